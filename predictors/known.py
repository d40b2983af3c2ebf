"""Which inputs a forecast had: given by the caller and, for names, met before."""

from __future__ import annotations

from collections.abc import Mapping

from endcast.predictors.features.keyed_lengths import KeyedLengths
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.types import Request


def known_inputs(request: Request, pipeline: FeaturePipeline) -> Mapping[str, bool]:
    """Input → whether it was known. A model or tenant counts as known only where a finished request of the same name is
    remembered: never in a bundle that does not learn from it."""
    known = {
        "prompt_tokens": request.prompt_tokens is not None,
        "prompt": request.prompt is not None or request.messages is not None,
        "model": False,
        "tenant": False,
        "session": request.session is not None or bool(request.prefix_blocks),
        "cap": request.cap is not None,
        "output": False,
    }
    for group in pipeline.groups:
        if isinstance(group, KeyedLengths) and group.name in known:
            known[group.name] = group.knows(request)
    return known
