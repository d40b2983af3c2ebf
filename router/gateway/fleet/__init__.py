"""Pools of workers at work, and their changes while requests run."""
