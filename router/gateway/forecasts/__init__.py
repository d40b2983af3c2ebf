"""Forecasts for routing, in time or not at all."""
