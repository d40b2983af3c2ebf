"""What an operator may set about the forecast service: one line a setting, with its bounds and what it is for.

Where values come from is ``config``'s business: a file, the environment, flags. A field added here is read from all of
them, shown by ``endcast serve --print-config``, and has to be explained in ``docs/operating.md`` (a test compares).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

from endcast.errors import InputError
from endcast.types import MAX_TOKENS, shown


@dataclass(frozen=True)
class Declared:
    """What is declared of a setting beside its type: bounds hold for each element of a list."""

    about: str
    _: KW_ONLY
    least: float | None = None
    most: float | None = None
    above: float | None = None  #: exclusive
    below: float | None = None  #: exclusive
    choices: tuple[str, ...] = ()
    secret: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the service, checked; ``InputError`` names the field that breaks its bounds."""

    # listening
    host: Annotated[str, Declared("name or address to listen on; 0.0.0.0 for every one")] = "127.0.0.1"
    port: Annotated[int, Declared("port to listen on; 0 takes a free one", least=0, most=65_535)] = 8080
    grace_s: Annotated[
        float, Declared("seconds that calls on their way have to finish in on stop", least=0, most=3_600)
    ] = 10.0
    tls_certificate: Annotated[Path | None, Declared("PEM file with the certificate and its chain; turns TLS on")] = (
        None
    )
    tls_key: Annotated[Path | None, Declared("PEM file with the certificate's private key")] = None
    tls_min_version: Annotated[str, Declared("oldest TLS version that is spoken", choices=("1.2", "1.3"))] = "1.2"
    # who may call
    api_keys: Annotated[tuple[str, ...], Declared("keys for forecast calls, each KEY or NAME:KEY", secret=True)] = (
        field(default=(), repr=False)
    )
    api_keys_file: Annotated[Path | None, Declared("file with more of them, one a line")] = None
    admin_keys: Annotated[tuple[str, ...], Declared("keys for every call, each KEY or NAME:KEY", secret=True)] = field(
        default=(), repr=False
    )
    admin_keys_file: Annotated[Path | None, Declared("file with more of them, one a line")] = None
    public_metrics: Annotated[bool, Declared("whether /metrics is answered without a key")] = False
    # limits on a call
    max_body_bytes: Annotated[int, Declared("largest body of a call", least=1, most=1 << 30)] = 32 * 1024 * 1024
    inline_body_bytes: Annotated[int, Declared("a larger body is worked on beside the event loop", least=0)] = 64 * 1024
    max_requests: Annotated[int, Declared("generations in one call", least=1, most=65_536)] = 4_096
    max_waiting_calls: Annotated[int, Declared("calls that wait for forecasts; one more gets 429", least=1)] = 2_048
    max_waiting_bytes: Annotated[int, Declared("of the bodies of those calls", least=1)] = 256 * 1024 * 1024
    body_timeout_s: Annotated[
        float, Declared("seconds that a body may take to arrive; then 408", above=0, most=3_600)
    ] = 20.0
    max_connections: Annotated[int, Declared("connections of one process; one more is closed", least=1)] = 8_192
    # streams
    max_streams: Annotated[int, Declared("open streams of one process; one more gets 429", least=1)] = 10_000
    max_stream_bytes: Annotated[int, Declared("of the texts that open streams hold on to", least=1)] = 512 * 1024 * 1024
    stream_idle_s: Annotated[
        float, Declared("seconds without a call after which a stream is dropped", above=0, most=86_400)
    ] = 600.0
    # processes and bundles
    processes: Annotated[int, Declared("that share the listening socket", least=1, most=256)] = 1
    watch_s: Annotated[
        float, Declared("seconds between two looks at the folder for a new bundle; 0: never", least=0, most=86_400)
    ] = 0.0
    # what a call gets that does not say
    default_horizons: Annotated[tuple[int, ...], Declared("windows in tokens", least=1, most=MAX_TOKENS)] = (
        16,
        32,
        64,
        80,
        128,
    )
    default_quantiles: Annotated[tuple[float, ...], Declared("quantiles of the remaining tokens", above=0, below=1)] = (
        0.5,
        0.9,
    )
    # outcomes
    outcome_log: Annotated[
        Path | None, Declared("folder that outcomes are kept in; without one they are not durable")
    ] = None
    outcome_texts: Annotated[bool, Declared("whether prompts and outputs are kept there as well")] = False
    outcome_segment_bytes: Annotated[
        int, Declared("bytes at which a file of it is closed", least=4_096, most=1 << 32)
    ] = 64 << 20
    outcome_segment_s: Annotated[float, Declared("seconds after which one is closed", least=1)] = 3_600.0
    outcome_keep_bytes: Annotated[int, Declared("bytes of closed files that are kept", least=0)] = 8 << 30
    outcome_keep_days: Annotated[float, Declared("days that they are kept; 0 for no limit", least=0)] = 0.0
    outcome_replay: Annotated[
        int, Declared("outcomes at least that a start, or a new bundle, learns from", least=0)
    ] = 20_000
    outcome_peers: Annotated[
        bool, Declared("whether other processes, which share the log, serve forecasts as well")
    ] = False
    shadow_bundle: Annotated[
        Path | None, Declared("folder of a bundle that is scored beside the served one, answering nobody")
    ] = None
    learn_from_outcomes: Annotated[bool, Declared("whether outcomes feed history and recalibration")] = True
    recalibrate: Annotated[bool, Declared("whether outcomes correct hazards, besides being remembered")] = True
    ledger_forecasts: Annotated[int, Declared("forecasts that wait for their outcome at most", least=0)] = 100_000
    ledger_age_s: Annotated[float, Declared("seconds that they wait at most", least=1)] = 3_600.0
    scored_per_s: Annotated[float, Declared("forecasts a second that calibration looks at, at most", least=0)] = 2_000.0
    calibration_horizons: Annotated[
        tuple[int, ...], Declared("windows in tokens whose calibration is measured", least=1, most=MAX_TOKENS)
    ] = (16, 64, 128)
    calibration_quantiles: Annotated[
        tuple[float, ...], Declared("quantiles whose coverage is measured", above=0, below=1)
    ] = (0.5, 0.9)
    # logs
    log_level: Annotated[
        str, Declared("least severe line that is logged", choices=("debug", "info", "warning", "error"))
    ] = "info"
    log_format: Annotated[str, Declared("how lines are written", choices=("json", "text"))] = "json"
    log_prompts: Annotated[bool, Declared("whether bodies of calls, and so prompts and outputs, are logged")] = False

    def __post_init__(self) -> None:
        for name, declared in DECLARED.items():
            _check(name, getattr(self, name), declared)
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise InputError(missing, "must be given where the other of the pair is")


#: Type and declaration of each setting, by name, in the order above.
_HINTS: Mapping[str, Any] = MappingProxyType(get_type_hints(Settings, include_extras=True))
TYPES: Mapping[str, Any] = MappingProxyType({name: hint.__origin__ for name, hint in _HINTS.items()})
DECLARED: Mapping[str, Declared] = MappingProxyType({name: hint.__metadata__[0] for name, hint in _HINTS.items()})


def _check(name: str, value: object, declared: Declared) -> None:
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, int | float) and not isinstance(each, bool):
            _check_number(name, each, declared)
        if declared.choices and each not in declared.choices:
            raise InputError(name, f"must be one of {', '.join(declared.choices)}, not {shown(each)}")


def _check_number(name: str, value: float, declared: Declared) -> None:
    if not math.isfinite(value):
        raise InputError(name, f"must be finite, not {shown(value)}")
    if declared.least is not None and value < declared.least:
        raise InputError(name, f"must be at least {declared.least}, not {shown(value)}")
    if declared.most is not None and value > declared.most:
        raise InputError(name, f"must be at most {declared.most}, not {shown(value)}")
    if declared.above is not None and value <= declared.above:
        raise InputError(name, f"must be above {declared.above}, not {shown(value)}")
    if declared.below is not None and value >= declared.below:
        raise InputError(name, f"must be below {declared.below}, not {shown(value)}")
