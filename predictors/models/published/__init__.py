"""Published predictors, each in its own terms, made into curves so that all can be compared on one footing.

They learn from requests that ended by themselves and leave censored ones out, as their authors do.
"""
