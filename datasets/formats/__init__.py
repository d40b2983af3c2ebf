"""Every log format that endcast reads: one file, one line here."""

from __future__ import annotations

from endcast.datasets.formats.base import TraceFormat
from endcast.registry import Registry

FORMATS: Registry[TraceFormat] = Registry(
    "trace format",
    (
        ("canonical", "endcast.datasets.formats.canonical:CANONICAL"),
        ("generic", "endcast.datasets.formats.generic:GENERIC"),
        ("azure", "endcast.datasets.formats.azure:AZURE"),
        ("mooncake", "endcast.datasets.formats.mooncake:MOONCAKE"),
        ("burstgpt", "endcast.datasets.formats.burstgpt:BURSTGPT"),
        ("conversations", "endcast.datasets.formats.conversations:CONVERSATIONS"),
        ("openai", "endcast.datasets.formats.openai:OPENAI"),
        ("outcomes", "endcast.datasets.formats.outcomes:OUTCOMES"),
    ),
)
