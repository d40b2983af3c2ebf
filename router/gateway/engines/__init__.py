"""Engines as they are reached: calls to them, their health and metrics, time limits."""
