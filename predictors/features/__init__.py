"""Feature groups by name. A new one: a file beside this one and a line here; ``docs/extending.md`` shows it."""

from collections.abc import Callable

from endcast.predictors.features.protocol import FeatureGroup
from endcast.predictors.grid import IntervalGrid
from endcast.registry import Registry

_HERE = "endcast.predictors.features"

FEATURES: Registry[Callable[[IntervalGrid], FeatureGroup]] = Registry(
    "feature group",
    (
        ("prompt_size", f"{_HERE}.prompt_size:PromptSize"),
        ("rough_size", f"{_HERE}.prompt_size:RoughSize"),
        ("prompt_cues", f"{_HERE}.prompt_cues:PromptCues"),
        ("prompt_score", f"{_HERE}.prompt_score:PromptScore"),
        ("prompt_pieces", f"{_HERE}.prompt_pieces:PromptPieces"),
        ("encoder_score", f"{_HERE}.encoder_score:EncoderScore"),
        ("parameters", f"{_HERE}.parameters:Parameters"),
        ("clock", f"{_HERE}.clock:Clock"),
        ("same_size", f"{_HERE}.by_key:same_size"),
        ("near_size", f"{_HERE}.by_key:near_size"),
        ("model", f"{_HERE}.by_key:model"),
        ("tenant", f"{_HERE}.by_key:tenant"),
        ("tenant_model", f"{_HERE}.by_key:tenant_model"),
        ("same_prompt", f"{_HERE}.by_key:same_prompt"),
        ("same_prefix", f"{_HERE}.by_key:same_prefix"),
        ("first_block", f"{_HERE}.by_key:first_block"),
        ("first_two_blocks", f"{_HERE}.by_key:first_two_blocks"),
        ("earlier_turn", f"{_HERE}.earlier_turn:EarlierTurn"),
    ),
)
