"""``fleet.toml``: everything that an operator may set, as frozen values. A fault names its key and what is allowed.

Lengths are tokens, times seconds. A pool is a group of identical engines that serve the same models; a worker with
``ranks`` is one address behind which so many data-parallel ranks are pinned by header, each a worker to the router.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from endcast.errors import EndcastError
from endcast.router.admission import ADMISSION_RULES, admission_rule
from endcast.router.cluster import UNLIMITED
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.simulation_settings import DEFAULT_ADMISSION

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000)]
Text = Annotated[str, Meta(min_length=1)]
#: How often a request goes on elsewhere at most, where engines give requests back: decode workers that others prefill for.
_CONTINUATIONS = 4
#: What is best in docs/olp.md with forecasts, and in docs/routing.md without.
_WITH_FORECASTS, _WITHOUT = "olp_br_h", "br_0"
_HINT = "docs/deploying.md lists the keys of the file"


class Listen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[listen]``: where clients connect; both TLS files (PEM) or none."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    tls_certificate: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be given together")


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[auth.keys]]``: a client's bearer key and whose it is."""

    key: Text
    tenant: Text | None = None


class Auth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[auth]``: without keys everybody may call. ``tenant_header`` names the tenant where the key does not."""

    keys: tuple[Key, ...] = ()
    tenant_header: Text | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: what a client can be made to wait for, and what it may send."""

    max_waiting: Count = 4096  #: requests that wait in one pool; more are answered 429
    max_wait_s: Seconds = 600.0  #: longest wait for a slot; then 503
    no_worker_wait_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 5.0  #: longest wait while no worker is up; then 503
    max_body_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = 64 << 20
    connect_timeout_s: Seconds = 15.0
    first_byte_timeout_s: Seconds = 600.0  #: from dispatch to the response's headers; then 504
    inter_chunk_timeout_s: Seconds = 120.0  #: a stream silent for longer is ended with an error frame
    retries: Annotated[int, Meta(ge=0, le=20)] = 2  #: further attempts after a failure before the first byte
    drain_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 30.0  #: what runs may end in this time once told to stop


class Health(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[health]``: ``GET path`` on each address; a worker that failed is paused, twice as long each time."""

    path: Text = "/health"
    interval_s: Seconds = 5.0
    timeout_s: Seconds = 2.0
    pause_s: Seconds = 0.5
    longest_pause_s: Seconds = 30.0
    reconcile_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 2.0  #: between polls of ``/metrics``; 0: never


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[log]``: the access log, JSON Lines that ``endcast train`` reads; prompts and outputs only if switched on."""

    path: Text | None = None
    prompts: bool = False
    outputs: bool = False


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[pools.workers]]``: one address. ``ranks``: data-parallel ranks behind it, pinned by header."""

    url: Text
    ranks: Annotated[int, Meta(ge=1, le=4096)] | None = None
    slots: Count | None = None
    kv_capacity: Tokens | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)


class PrefillConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[pools.prefill]]``: an engine that computes prompts for the pool's workers, which fetch their KV from it."""

    url: Text

    def __post_init__(self) -> None:
        _check_url(self.url)


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[pools]]``: engines that serve the same models, and how requests are routed among them."""

    workers: Annotated[tuple[WorkerConfig, ...], Meta(min_length=1)]
    prefill: tuple[PrefillConfig, ...] = ()  #: none: the workers compute prompts themselves
    models: tuple[Text, ...] = ()  #: names that clients use; may be empty where there is one pool
    slots: Count = 64  #: requests that one worker runs at once
    kv_capacity: Tokens | None = None  #: KV tokens of one worker; unlimited unless given
    context_limit: Tokens | None = None
    engine_key: Text | None = None  #: bearer key that engines want; clients' own is passed on unless given
    usage_options: bool = True  #: whether engines know ``stream_options``; without, events are counted for tokens
    #: how often a request that engines give back goes on elsewhere; 0: their marker is passed on. 4 with ``prefill``, else 0
    continuations: Annotated[int, Meta(ge=0, le=100)] | None = None
    policy: str = ""  #: unless given ``olp_br_h`` where there is a forecaster, else ``br_0``
    forecaster: Text | None = None  #: a bundle's folder, a service's URL, or ``cold_start``
    forecaster_key: Text | None = None  #: the service's API key
    forecast_timeout_s: Seconds = 0.05
    admission: str = DEFAULT_ADMISSION
    horizon: Annotated[int, Meta(ge=0, le=4096)] = 20
    discount: Annotated[float, Meta(gt=0, le=1)] = 0.95
    candidates: Count = 64
    max_overtakes: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    soften: Annotated[float, Meta(ge=0, le=1)] = 0.0  #: share of the prior in every forecast
    prefix_weight: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0  #: what prefix caches count beside balance

    def __post_init__(self) -> None:
        if not self.policy:
            chosen = _WITHOUT if self.forecaster is None else _WITH_FORECASTS
            msgspec.structs.force_setattr(self, "policy", chosen)
        if self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r:.60} is unknown; known: {', '.join(POLICIES)}")
        told = [*(worker.url for worker in self.workers), *(worker.url for worker in self.prefill)]
        urls = [url.rstrip("/") for url in told]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is there twice; several ranks behind one address are its ranks = N")
        if self.admission.partition(":")[0] not in ADMISSION_RULES:
            raise ValueError(f"admission {self.admission!r:.60} is unknown; known: {', '.join(ADMISSION_RULES)}")
        if self.prefix_weight and not POLICIES.get(self.policy)(self.policy_settings()).needs_prefix:
            raise ValueError(f"policy {self.policy!r} does not look at prefixes: prefix_weight must be 0")
        if self.needs_forecasts and self.forecaster is None:
            raise ValueError(
                f'policy {self.policy!r} uses forecasts: forecaster must name a bundle, a service by URL, or "cold_start"'
            )
        if self.forecasts_by_service:
            _check_url(self.forecaster or "")
        elif self.forecaster_key is not None:
            raise ValueError("forecaster_key is for a forecaster that is a service's URL")

    @property
    def needs_forecasts(self) -> bool:
        """Whether routing in the pool uses forecasts."""
        policy = POLICIES.get(self.policy)(self.policy_settings())
        return policy.needs_forecast or admission_rule(self.admission).needs_forecast

    @property
    def most_continuations(self) -> int:
        """``continuations``, or what it is unless given."""
        return (_CONTINUATIONS if self.prefill else 0) if self.continuations is None else self.continuations

    @property
    def forecasts_by_service(self) -> bool:
        """Whether ``forecaster`` is the address of a forecast service."""
        return self.forecaster is not None and self.forecaster.startswith(("http://", "https://"))

    @property
    def size(self) -> int:
        """Workers, each rank being one."""
        return sum(worker.ranks or 1 for worker in self.workers)

    def policy_settings(self) -> PolicySettings:
        """What the policy is made from; ``max_overtakes`` is four times all slots unless given."""
        total = sum((worker.ranks or 1) * (worker.slots or self.slots) for worker in self.workers)
        return PolicySettings(
            horizon=self.horizon,
            discount=self.discount,
            candidates=self.candidates,
            max_overtakes=4 * total if self.max_overtakes is None else self.max_overtakes,
            prefix_weight=self.prefix_weight,
        )


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    pools: Annotated[tuple[Pool, ...], Meta(min_length=1)]
    listen: Listen = Listen()
    auth: Auth = Auth()
    limits: Limits = Limits()
    health: Health = Health()
    log: Log = Log()
    pass_through: bool = True  #: whether other paths than those routed are passed on to an engine

    def __post_init__(self) -> None:
        names = [name for pool in self.pools for name in pool.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the model {twice[0]!r:.80} is served by two pools")
        if len(self.pools) > 1 and not all(pool.models for pool in self.pools):
            raise ValueError("with several pools each must list its models")


class Worker(msgspec.Struct, frozen=True):
    """A worker of a pool as the router sees it: one address, or one rank behind it."""

    index: int
    url: str
    rank: int | None
    slots: int
    kv_capacity: int

    @property
    def name(self) -> str:
        """The address, with the rank behind a ``#`` where there is one."""
        return self.url if self.rank is None else f"{self.url}#{self.rank}"


def workers_of(pool: Pool) -> tuple[Worker, ...]:
    """Every worker of the pool, ranks one by one, numbered in the file's order."""
    found: list[Worker] = []
    for told in pool.workers:
        slots = told.slots or pool.slots
        capacity = told.kv_capacity or pool.kv_capacity or UNLIMITED
        for rank in range(told.ranks) if told.ranks else (None,):
            found.append(Worker(len(found), told.url.rstrip("/"), rank, slots, capacity))
    return tuple(found)


def parse_config(text: str, name: str = "fleet.toml", *, forecaster: str | None = None) -> Config:
    """The configuration in ``text``; ``EndcastError`` names the line or key at fault, in the file called ``name``.

    ``forecaster`` takes the place of what the file says for each pool.
    """
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EndcastError(f"{name} is no TOML: {error}", hint=_HINT) from None
    if forecaster is not None:
        pools = table.get("pools")
        for pool in pools if isinstance(pools, list) else ():
            if isinstance(pool, dict):
                pool["forecaster"] = forecaster
    try:
        return msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$")
        where = key.rstrip("`").lstrip(".")
        raise EndcastError(f"{name}: {where + ': ' if where else ''}{what}", hint=_HINT) from None


def read_config(path: Path, *, forecaster: str | None = None) -> Config:
    """The configuration in a file; ``EndcastError`` if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise EndcastError(f"{path} is no TOML: it is not UTF-8", hint=_HINT) from None
    return parse_config(text, str(path), forecaster=forecaster)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url must be like http://host:port, not {url!r:.80}")
    _ = parts.port  # a ValueError of its own where it is no port
