"""Which inputs a forecast had: given by the caller and, for names, met before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from endcast.predictors.features.keyed_lengths import KeyedLengths
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.types import Request

_INPUTS = ("prompt_tokens", "prompt", "model", "tenant", "session", "cap", "output")


def known_inputs(
    requests: Sequence[Request], outputs: Sequence[bool], pipeline: FeaturePipeline
) -> list[Mapping[str, bool]]:
    """For each request: input → whether it was known; ``outputs`` (n,) whether its text so far was read. Where it is the same,
    requests share one mapping.

    A model or tenant counts as known only where a finished request of the same name is remembered: never in a bundle that
    does not learn from it.
    """
    groups = {group.name: group for group in pipeline.groups if isinstance(group, KeyedLengths)}
    model, tenant = groups.get("model"), groups.get("tenant")
    made: dict[tuple[bool, ...], Mapping[str, bool]] = {}
    known: list[Mapping[str, bool]] = []
    for request, output in zip(requests, outputs, strict=True):
        had = (
            request.prompt_tokens is not None,
            request.prompt is not None or request.messages is not None,
            model is not None and model.knows(request),
            tenant is not None and tenant.knows(request),
            request.session is not None or bool(request.prefix_blocks),
            request.cap is not None,
            output,
        )
        found = made.get(had)
        if found is None:
            found = made[had] = dict(zip(_INPUTS, had, strict=True))
        known.append(found)
    return known
