"""``GET /``: the live page, and ``GET /live``: the figures that it shows.

The page is one document that loads nothing from elsewhere; a content security policy names its script and style by their
digests, so that nothing that got into it would run. It holds no figures and is open to all; the figures need a key where
clients need one. They hold no prompt, no output, no tenant and no key.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import time
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from aiohttp import web

from endcast.pages import assembled
from endcast.router.cluster import UNLIMITED
from endcast.router.gateway.seen.calibration import CalibrationRow
from endcast.router.gateway.seen.decisions import Decision, Explains
from endcast.router.policy import ClusterView

if TYPE_CHECKING:
    from endcast.router.gateway.fleet.pools import PoolAtWork
    from endcast.router.gateway.gateway import Gateway

#: Points of a forecast window that are shown, requests that wait, and prices.
_POINTS, _WAITING, _PRICES = 41, 20, 20


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: KV tokens and slots; ``window`` is its expected load at the steps of ``Window.steps``."""

    name: str
    up: bool
    load: int
    capacity: int | None
    active: int
    slots: int
    queued: int
    window: list[float] | None


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits."""

    prompt_tokens: int
    wait_s: float
    overtaken: int


class ForecastStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's forecaster. ``skill``: how far its forecasts have proved true, 0 to 1, where the policy measures it."""

    bundle: str
    up: bool
    problem: str
    failures: int
    late: int
    priors: int
    skill: float | None


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A scarce resource, steps from now, and its price over what it earns on average."""

    resource: str
    workers: str
    first: int
    last: int
    price: float


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One pool."""

    name: str
    policy: str
    waiting: int
    running: int
    imbalance: float  #: KV tokens
    imbalance_share: float  #: of G times the heaviest load
    step_s: float | None
    tokens_per_step: float
    rounds: int
    problem: str  #: what was wrong with the last round that the policy could not decide
    steps: list[int]  #: of the windows
    workers: list[WorkerRow]
    oldest: list[WaitingRow]
    forecast: ForecastStatus | None
    prices: list[PriceRow] | None  #: ``None`` where the policy has none
    calibration: list[CalibrationRow]
    decisions: list[Decision]
    turned_away: dict[str, int]


class LiveReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows."""

    endcast: str
    now: float
    draining: bool
    open_calls: int
    lag_s: float
    pools: list[PoolStatus]


@cache
def page() -> tuple[str, str]:
    """The page and its content security policy."""
    own = importlib.resources.files("endcast.router.gateway.seen") / "page"
    return assembled(own / "live.html.j2", own / "live.js", own / "live.css")


def show_page() -> web.Response:
    """The answer to ``GET /``."""
    text, policy = page()
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return web.Response(text=text, content_type="text/html", headers=headers)


def show_figures(gateway: Gateway) -> web.Response:
    """The answer to ``GET /live``."""
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=msgspec.json.encode(live_of(gateway)), content_type="application/json", headers=headers)


def live_of(gateway: Gateway) -> LiveReply:
    """All pools as they are now; decisions are noted from here on, for a while."""
    return LiveReply(
        endcast=importlib.metadata.version("endcast"),
        now=time.time(),
        draining=gateway.draining,
        open_calls=gateway.open_calls,
        lag_s=gateway.watch.lag_s,
        pools=[_pool(pool, gateway.clock()) for pool in gateway.pools],
    )


def _pool(pool: PoolAtWork, now_s: float) -> PoolStatus:
    core = pool.core
    pool.decisions.watch()
    load = core.load()  # all events so far included
    view = core.cluster.view(now_s)
    policy, heaviest = core.policy, float(load.max()) * len(load)
    window = None if view.forecast is None else view.forecast.load
    steps = [0] if window is None else sorted(set(np.linspace(0, window.shape[1] - 1, _POINTS).astype(int).tolist()))
    scarce = policy.scarce() if isinstance(policy, Explains) else None
    return PoolStatus(
        name=pool.name,
        policy=core.policy_name,
        waiting=core.waiting,
        running=core.running,
        imbalance=pool.imbalance(),
        imbalance_share=pool.imbalance() / heaviest if heaviest > 0 else 0.0,
        step_s=core.beats.step_s,
        tokens_per_step=core.beats.tokens_per_step,
        rounds=core.rounds,
        problem=core.problem,
        steps=steps,
        workers=[
            _worker(pool, view, g, None if window is None else window[g, steps].tolist()) for g in range(len(load))
        ],
        oldest=_oldest(view),
        forecast=_forecast(pool),
        prices=None
        if scarce is None
        else [
            PriceRow(
                resource=one.resource,
                workers=", ".join(pool.workers[g].name for g in one.workers),
                first=one.first,
                last=one.last,
                price=one.price,
            )
            for one in scarce[:_PRICES]
        ],
        calibration=pool.calibration.rows(),
        decisions=list(pool.decisions.latest)[::-1],
        turned_away=dict(pool.dispatcher.turned_away),
    )


def _worker(pool: PoolAtWork, view: ClusterView, g: int, window: list[float] | None) -> WorkerRow:
    capacity = int(view.capacity[g])
    return WorkerRow(
        name=pool.workers[g].name,
        up=pool.dispatcher.is_up(g),
        load=int(view.load[g]),
        capacity=None if capacity >= UNLIMITED else capacity,
        active=int(view.active[g]),
        slots=int(view.slots[g]),
        queued=int(view.queued[g]),
        window=window,
    )


def _oldest(view: ClusterView) -> list[WaitingRow]:
    return [
        WaitingRow(
            prompt_tokens=int(view.waiting_prompt[i]),
            wait_s=max(float(view.now_s - view.waiting_arrival_s[i]), 0.0),
            overtaken=int(view.waiting_overtaken[i]),
        )
        for i in range(min(len(view.waiting), _WAITING))
    ]


def _forecast(pool: PoolAtWork) -> ForecastStatus | None:
    desk = pool.desk
    if desk is None:
        return None
    return ForecastStatus(
        bundle=desk.bundle,
        up=desk.healthy,
        problem=desk.problem,
        failures=desk.failures,
        late=desk.late,
        priors=desk.priors,
        skill=getattr(pool.core.policy, "skill", None),
    )
