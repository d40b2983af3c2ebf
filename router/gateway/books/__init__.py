"""The books beside what engines tell of themselves."""
