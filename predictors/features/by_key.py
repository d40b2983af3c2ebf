"""What requests can have in common: each line is one group of ``keyed_lengths``."""

from __future__ import annotations

import math
from functools import partial

from endcast.predictors.features.keyed_lengths import Key, KeyedLengths
from endcast.predictors.features.lengths import key_of
from endcast.predictors.features.prompt_size import prompt_text
from endcast.types import Request

#: Prompt sizes are filed by cells of log size; neighbouring cells differ by a factor of about 1.05.
CELLS_PER_E = 20


def _size(request: Request) -> int | None:
    return request.prompt_tokens


def _size_cell(request: Request) -> int | None:
    return None if request.prompt_tokens is None else int(math.log1p(request.prompt_tokens) * CELLS_PER_E)


def _prompt(request: Request) -> int | None:
    return key_of(prompt_text(request))


def _first_blocks(request: Request, count: int | None) -> int | None:
    """The first ``count`` blocks, of those that have so many; all blocks if ``None``."""
    blocks = request.prefix_blocks[:count]
    return key_of(*blocks) if len(blocks) >= (count or 1) else None


same_size = partial(KeyedLengths, key=Key("same_size", _size, 64, ("prompt_tokens",)))
near_size = partial(
    KeyedLengths,
    key=Key("near_size", _size_cell, 64, ("prompt_tokens",), near=lambda cell: (cell - 1, cell, cell + 1)),
)
model = partial(KeyedLengths, key=Key("model", lambda r: key_of(r.model), 400, ("model",)))
tenant = partial(KeyedLengths, key=Key("tenant", lambda r: key_of(r.tenant), 200, ("tenant",)))
tenant_model = partial(
    KeyedLengths, key=Key("tenant_model", lambda r: key_of(r.tenant, r.model), 200, ("tenant", "model"))
)
same_prompt = partial(KeyedLengths, key=Key("same_prompt", _prompt, 16, ("prompt", "messages")))
same_prefix = partial(KeyedLengths, key=Key("same_prefix", partial(_first_blocks, count=None), 16, ("prefix_blocks",)))
first_block = partial(KeyedLengths, key=Key("first_block", partial(_first_blocks, count=1), 64, ("prefix_blocks",)))
first_two_blocks = partial(
    KeyedLengths, key=Key("first_two_blocks", partial(_first_blocks, count=2), 64, ("prefix_blocks",))
)
