"""Model families by name. A new one: a file beside this one and a line here; ``docs/extending.md`` shows it.

Names are resolved when a model is trained, so that forecasting imports no training library.
"""

from endcast.predictors.models.protocol import ModelFamily
from endcast.registry import Registry

_HERE = "endcast.predictors.models"

MODELS: Registry[type[ModelFamily]] = Registry(
    "model",
    (
        ("kaplan_meier", f"{_HERE}.kaplan_meier:KaplanMeier"),
        ("kaplan_meier_by_size", f"{_HERE}.kaplan_meier:KaplanMeierBySize"),
        ("lightgbm", f"{_HERE}.lightgbm:LightGbmHazard"),
        ("logistic", f"{_HERE}.logistic:LogisticHazard"),
        ("neural", f"{_HERE}.neural:NeuralHazard"),
        ("text", f"{_HERE}.text:TextHazard"),
        ("distilled", f"{_HERE}.distilled:DistilledHazard"),
        ("length_class", f"{_HERE}.published.length_class:LengthClassHazard"),
        ("regression", f"{_HERE}.published.regression:RegressionHazard"),
        ("ranking", f"{_HERE}.published.ranking:RankingHazard"),
    ),
)
