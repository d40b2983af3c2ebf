"""A synthetic log whose hazards are known, so that a test can check that they are recovered.

Every request's natural length is log-logistic with a scale of its own: kind of task × number of things asked for ×
model × tenant × session. A cap, a client who leaves (a constant hazard a token), an error or the end of the log may
cut it. Sessions arrive in bursts with a daily rhythm; each turn's prompt repeats all that was said before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from endcast.datasets.synth_apps import APPS, CONTEXT_LIMIT, KIND_INDEX, KINDS, MODELS, App
from endcast.datasets.synth_table import canonical_table
from endcast.datasets.synth_text import with_texts
from endcast.datasets.trace import UNKNOWN, IntArray, Trace
from endcast.errors import InputError
from endcast.types import EndReason

FloatArray = npt.NDArray[np.float64]
#: Requests under construction, name → (n,).
Rows = dict[str, npt.NDArray[Any]]

MOST_REQUESTS = 100_000_000
MOST_TURNS = 30
#: Longest natural length: longer than any context, so that only caps and the context limit cut it.
MOST_TOKENS = 1_000_000
_TENANT_SPREAD, _SESSION_SPREAD, _PROMPT_SPREAD = 0.35, 0.25, 0.8
#: Mean 1, squared coefficient of variation 1/shape: sessions come in bursts.
_BURST_SHAPE = 0.5
_DAY_S, _DAY_SWING = 86_400.0, 0.6
#: One in so many requests is made beyond those wanted, so that sessions go on beyond the log's end.
_SPARE = 50
_STOP, _LENGTH, _ABORT, _ERROR, _UNFINISHED = range(len(EndReason))


@dataclass(frozen=True, kw_only=True)
class SynthSettings:
    """What to make. ``text``: with prompts and outputs; the numbers are the same without. ``hours`` of log in which
    sessions begin; ``block_tokens`` per prefix block; ``apps`` who sends requests."""

    requests: int
    seed: int = 0
    text: bool = False
    hours: float = 24.0
    block_tokens: int = 512
    apps: Sequence[App] = APPS

    def __post_init__(self) -> None:
        if not 1 <= self.requests <= MOST_REQUESTS:
            raise InputError("requests", f"must lie between 1 and {MOST_REQUESTS:,}, not {self.requests}")
        if not self.seed >= 0:
            raise InputError("seed", f"must not be negative, not {self.seed}")
        if not 0 < self.hours <= 24 * 366:
            raise InputError("hours", f"must be above 0 and at most a year, not {self.hours}")
        if not 1 <= self.block_tokens <= CONTEXT_LIMIT:
            raise InputError("block_tokens", f"must lie between 1 and {CONTEXT_LIMIT}, not {self.block_tokens}")


@dataclass(frozen=True, eq=False)
class SynthTruth:
    """What a log cannot tell, row by row (n,): the natural length's ``scale`` and ``shape``, the hazard of an abort a
    token, the natural length itself, and the kind of task (an index into ``KINDS``) with the number asked for."""

    scale: FloatArray
    shape: FloatArray
    abort_rate: FloatArray
    natural_tokens: IntArray
    kind: IntArray
    asked: IntArray

    def survival(self, tokens: FloatArray | IntArray) -> FloatArray:
        """P(o > t) of the natural length, (n, m) for m values of t ≥ 0."""
        return np.asarray(1.0 / (1.0 + (tokens[None, :] / self.scale[:, None]) ** self.shape[:, None]))

    def hazard(self, tokens: IntArray) -> FloatArray:
        """λ(t) = P(o = t given o ≥ t), (n, m) for m values of t ≥ 1."""
        return np.asarray(1.0 - self.survival(tokens) / self.survival(tokens - 1))

    def take(self, index: IntArray) -> SynthTruth:
        """Those rows only."""
        return SynthTruth(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class SynthLog:
    """A synthetic log and the truth about it, row by row."""

    trace: Trace
    truth: SynthTruth


@dataclass
class Columns:
    """Requests under construction: name → parts, one an app and turn, all of the same length."""

    parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)

    def add(self, columns: Rows) -> None:
        for name, column in columns.items():
            self.parts.setdefault(name, []).append(column)

    def joined(self) -> Rows:
        return {name: np.concatenate(parts) for name, parts in self.parts.items()}


def synthesize(settings: SynthSettings, *, progress: Callable[[int, int], None] | None = None) -> SynthLog:
    """Make a log; the same settings give the same log. ``progress`` is told the requests done and in all."""
    columns = Columns()
    seeds = np.random.SeedSequence(settings.seed).spawn(len(settings.apps) + 1)
    made = settings.requests + max(settings.requests // _SPARE, 20)
    counts = _split(made, [app.share for app in settings.apps])
    first_session = first_tenant = done = 0
    for place, (app, count, seed) in enumerate(zip(settings.apps, counts, seeds, strict=False)):
        if count:
            sessions = _Sessions.draw(app, count, np.random.default_rng(seed), settings)
            sessions.run(columns, place, first_session, first_tenant)
            first_session += len(sessions.turns)
        first_tenant += app.tenants
        done += count
        if progress is not None:
            progress(min(done, settings.requests), settings.requests)
    rows = _cut_at_the_end(_by_arrival(columns.joined()), settings.requests)
    table = canonical_table(rows, settings.apps, settings.block_tokens)
    if settings.text:
        table = with_texts(table, rows, settings.apps, np.random.default_rng(seeds[-1]))
    return SynthLog(Trace(table), _truth(rows))


def _split(total: int, shares: Sequence[float]) -> list[int]:
    bounds = np.round(np.cumsum([0.0, *shares]) / sum(shares) * total).astype(int)
    return [int(count) for count in np.diff(bounds)]


@dataclass
class _Sessions:
    """All sessions of one app, as arrays (sessions,)."""

    app: App
    rng: np.random.Generator
    turns: IntArray
    starts: FloatArray
    tenant: IntArray
    model: IntArray
    language: IntArray
    level: FloatArray

    @classmethod
    def draw(cls, app: App, requests: int, rng: np.random.Generator, settings: SynthSettings) -> _Sessions:
        """Sessions with ``requests`` turns in all."""
        turns = np.minimum(rng.geometric(1 / app.turns, size=requests), MOST_TURNS)
        number = int(np.searchsorted(np.cumsum(turns), requests)) + 1
        turns = turns[:number]
        turns[-1] -= turns.sum() - requests
        weights = 1.0 / np.arange(1, app.tenants + 1)
        tenant = rng.choice(app.tenants, size=number, p=weights / weights.sum())
        verbose = rng.normal(0.0, _TENANT_SPREAD, size=app.tenants)
        return cls(
            app=app,
            rng=rng,
            turns=turns.astype(np.int64),
            starts=session_starts(number, settings.hours * 3600.0, rng),
            tenant=tenant,
            model=_pick(rng, list(MODELS), app.models, number),
            language=_pick(rng, list(app.languages), app.languages, number),
            level=np.exp(verbose[tenant] + rng.normal(0.0, _SESSION_SPREAD, size=number)),
        )

    def run(self, columns: Columns, app_index: int, first_session: int, first_tenant: int) -> None:
        """Play all sessions, turn by turn, and add their requests to ``columns``."""
        live = np.arange(len(self.turns))
        clock = self.starts.copy()
        said = np.zeros(len(live), dtype=np.int64)  # tokens of the turns before
        segment = np.zeros(len(live), dtype=np.int64)  # counts how often the history was cut off
        for turn in range(int(self.turns.max())):
            live = live[self.turns[live] > turn]
            made = self._turn(live, said, segment)
            arrival = clock[live]
            finish = arrival + made["service"]
            made |= {"session": live + first_session, "tenant": self.tenant[live] + first_tenant}
            made |= {"model": self.model[live], "language": self.language[live], "segment": segment[live]}
            made |= {"app": np.full(len(live), app_index), "turn": np.full(len(live), turn)}
            columns.add(made | {"arrival": arrival, "finish": finish})
            said[live] = made["prompt"] - self.app.system_tokens + made["output"]
            think = self.rng.lognormal(np.log(self.app.think_s), 1.0, size=len(live))
            clock[live] = finish + think

    def _turn(self, live: IntArray, said: IntArray, segment: IntArray) -> Rows:
        """One request of each live session."""
        app, rng, size = self.app, self.rng, len(live)
        spread = rng.lognormal(np.log(app.new_tokens), _PROMPT_SPREAD, size=size)
        new = np.clip(spread, 24, CONTEXT_LIMIT // 4).astype(np.int64)
        full = app.system_tokens + said[live] + new > CONTEXT_LIMIT // 2
        said[live[full]] = 0
        segment[live[full]] += 1
        prompt = app.system_tokens + said[live] + new
        kind = _pick(rng, list(KIND_INDEX), app.kinds, size)
        asked = _asked(kind, rng)
        speeds = np.asarray(list(MODELS.values()))[self.model[live]]
        scale = np.asarray([k.tokens for k in KINDS])[kind] * asked * speeds[:, 0] * self.level[live]
        shape = np.asarray([k.shape for k in KINDS])[kind]
        natural = _natural_length(scale, shape, rng.random(size))
        caps = [UNKNOWN, *app.caps]
        cap = np.asarray(caps)[rng.choice(len(caps), size=size, p=_with_rest(list(app.caps.values())))]
        output, end = _cut(natural, cap, CONTEXT_LIMIT - prompt, app, rng)
        return {
            "new": new,
            "prompt": prompt,
            "output": output,
            "end": end,
            "cap": cap,
            "kind": kind,
            "asked": asked,
            "scale": scale,
            "shape": shape,
            "natural": natural,
            "abort_rate": np.full(size, app.abort_rate),
            "service": prefill_s(prompt) + speeds[:, 1] * output,
            "token_s": speeds[:, 1],
        }


def prefill_s(prompt: IntArray) -> FloatArray:
    """(n,) seconds from arrival to the first token."""
    return np.asarray(0.2 + prompt / 10_000)


def session_starts(number: int, span_s: float, rng: np.random.Generator) -> FloatArray:
    """(number,) seconds in [0, span): a bursty renewal process, warped so that the rate follows the day."""
    gaps = rng.gamma(_BURST_SHAPE, 1 / _BURST_SHAPE, size=number + 1)
    uniform = np.cumsum(gaps)[:-1] / gaps.sum()
    grid = np.linspace(0.0, span_s, 4097)
    phase = 2 * np.pi * grid / _DAY_S
    load = grid - _DAY_SWING * _DAY_S / (2 * np.pi) * np.sin(phase)  # integral of 1 − swing·cos: quiet at midnight
    return np.asarray(np.interp(uniform * load[-1], load, grid))


def _pick(rng: np.random.Generator, names: list[str], chances: Mapping[str, float], size: int) -> IntArray:
    """(size,) places in ``names``, drawn with ``chances``."""
    weights = np.asarray([chances.get(name, 0.0) for name in names])
    return np.asarray(rng.choice(len(names), size=size, p=weights / weights.sum()), dtype=np.int64)


def _with_rest(chances: list[float]) -> list[float]:
    return [1.0 - sum(chances), *chances]


def _asked(kind: IntArray, rng: np.random.Generator) -> IntArray:
    """(n,), how many things each request asks for."""
    counts = [np.asarray(k.counts) for k in KINDS]
    drawn = rng.random(len(kind))
    out = np.ones(len(kind), dtype=np.int64)
    for i, options in enumerate(counts):
        of_kind = kind == i
        out[of_kind] = options[(drawn[of_kind] * len(options)).astype(np.int64)]
    return out


def _natural_length(scale: FloatArray, shape: FloatArray, u: FloatArray) -> IntArray:
    """The smallest t ≥ 1 with S(t) ≤ 1 − u."""
    length = np.ceil(scale * (u / (1.0 - u)) ** (1.0 / shape))
    return np.clip(length, 1, MOST_TOKENS).astype(np.int64)


def _cut(
    natural: IntArray, cap: IntArray, room: IntArray, app: App, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Output tokens and end (a place in ``EndReason``): the first of natural end, cap, abort; or an error at once."""
    size = len(natural)
    most = np.where(cap == UNKNOWN, room, np.minimum(cap, room))
    output = np.minimum(natural, most)
    end = np.where(natural > most, _LENGTH, _STOP)
    if app.abort_rate:
        leaves = rng.geometric(app.abort_rate, size=size)
        end = np.where(leaves < output, _ABORT, end)
        output = np.minimum(output, leaves)
    failed = rng.random(size) < app.error_rate
    return np.where(failed, 0, output), np.where(failed, _ERROR, end)


def _by_arrival(rows: Rows) -> Rows:
    order = np.argsort(rows["arrival"], kind="stable")
    return {name: column[order] for name, column in rows.items()}


def _cut_at_the_end(rows: Rows, requests: int) -> Rows:
    """The first ``requests``; the log ends when the next one would arrive, and what still runs then is unfinished."""
    last = rows["arrival"][requests]
    rows = {name: column[:requests] for name, column in rows.items()}
    running = rows["finish"] > last
    begun = rows["arrival"] + prefill_s(rows["prompt"])
    so_far = np.maximum((last - begun) / rows["token_s"], 0).astype(np.int64)
    rows["output"] = np.where(running, np.minimum(so_far, rows["output"]), rows["output"])
    rows["end"] = np.where(running, _UNFINISHED, rows["end"])
    rows["finish"] = np.where(running, np.nan, rows["finish"])
    return rows


def _truth(rows: Rows) -> SynthTruth:
    return SynthTruth(
        scale=rows["scale"],
        shape=rows["shape"],
        abort_rate=rows["abort_rate"],
        natural_tokens=rows["natural"],
        kind=rows["kind"],
        asked=rows["asked"],
    )
