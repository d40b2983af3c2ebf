"""Prompts computed on other engines, and their KV fetched."""
