"""The forecasts that ``endcast simulate`` gives to policies, by the names that a user gives them.

All names are checked before a log is read; what a source needs (training, a bundle's forecasts) is made afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from endcast.datasets.trace import NS_PER_S, Trace
from endcast.errors import InputError, UnknownNameError
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.models import MODELS
from endcast.router.forecasts import ForecastSource, Landmarked, NoForecast, Oracle, Precomputed, kaplan_meier_of_log
from endcast.router.soften import Softened

if TYPE_CHECKING:
    from endcast.predictors.onnx_forecaster import OnnxForecaster

CROSSFIT = "crossfit:"
KAPLAN_MEIER = "kaplan_meier"
#: Forecasts made along outputs are exact so many tokens ahead: further than any window reaches before the next one.
_REACH = 512
Tell = Callable[[str], None]


class ForecastChoice(Protocol):
    """A source of forecasts that a user named."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """As results name it; ``None`` for no forecast."""

    @abstractmethod
    def make(self, trace: Trace, tell: Tell) -> ForecastSource:
        """The source for every request of ``trace``, by row."""

    @abstractmethod
    def warning(self, trace: Trace) -> str:
        """Why its figures on this log are not to be believed; empty if they are."""


@dataclass(frozen=True)
class Plain:
    """One that needs nothing but the log's lengths."""

    name: str | None
    of: Callable[[Trace], ForecastSource]

    def make(self, trace: Trace, tell: Tell) -> ForecastSource:
        """At once."""
        return self.of(trace)

    def warning(self, trace: Trace) -> str:
        """None: Kaplan-Meier on the log's own lengths knows no request from another, and an oracle says what it is."""
        return ""


@dataclass(frozen=True)
class CrossFit:
    """Trained on each half of the log by time, used on the other."""

    model: str
    seed: int

    @property
    def name(self) -> str:
        """``crossfit:MODEL``."""
        return f"{CROSSFIT}{self.model}"

    def make(self, trace: Trace, tell: Tell) -> ForecastSource:
        """Trains twice. On a log without arrivals the halves are parted by prompt."""
        from endcast.training.crossfit import crossfit
        from endcast.training.train import Settings

        timed = trace if trace.has_arrivals else _parted_by_prompt(trace, self.seed)
        settings = Settings(model=self.model, seed=self.seed)
        return Precomputed(self.name, crossfit(timed, settings, tell=lambda text: tell(f"{self.name}: {text}")))

    def warning(self, trace: Trace) -> str:
        """None: no model saw the requests that it forecasts."""
        return ""


@dataclass(frozen=True, eq=False)
class FromBundle:
    """A bundle that lives through the log: it forecasts each arrival, and observes each end when it happened."""

    path: Path
    bundle: Bundle

    @property
    def name(self) -> str:
        """The bundle's id."""
        return self.bundle.id

    def make(self, trace: Trace, tell: Tell) -> ForecastSource:
        """Forecasts at admission, and along the output where the bundle reads it and the log has it."""
        from endcast.predictors.onnx_forecaster import OnnxForecaster
        from endcast.training.served import forecast_trace

        tell(f"forecasting {len(trace):,} requests with {self.path}")
        forecaster = OnnxForecaster(self.bundle)
        if forecaster.refresh_every is None or trace.table.column("output").null_count == len(trace):
            return Precomputed(self.name, forecast_trace(self.bundle, trace))
        return _along_outputs(self.name, forecaster, trace, forecaster.refresh_every)

    def warning(self, trace: Trace) -> str:
        """That its training part holds requests of this log."""
        from endcast.training.fingerprints import overlap

        shared = overlap(self.bundle.fingerprints, trace)
        if shared == 0.0:
            return ""
        return (
            f"{self.path} was trained on this very log ({shared:.0%} of its training requests are in it), so its forecasts "
            f"saw the answers and its figures are too good. For figures that hold: "
            f"--forecast {CROSSFIT}{self.bundle.manifest.model}"
        )


def _along_outputs(name: str, forecaster: OnnxForecaster, trace: Trace, every: int) -> Landmarked:
    from endcast.training.served import serve_outputs

    everything = np.ones(len(trace), dtype=np.bool_)
    served, along = serve_outputs(forecaster, trace, everything, every=every, reach=_REACH)
    first, count = np.empty_like(along.first), np.empty_like(along.count)
    first[served.rows], count[served.rows] = along.first, along.count
    return Landmarked(name, along.batch, first, count, along.every)


def choices(text: str, seed: int) -> list[ForecastChoice]:
    """``none,oracle,kaplan_meier,crossfit:MODEL,BUNDLE`` as choices; ``UnknownNameError`` lists what there is."""
    made = [_choice(part.strip(), seed) for part in text.split(",")]
    names = [choice.name for choice in made]
    twice = next((choice.name or "none" for choice in made if names.count(choice.name) > 1), None)
    if twice is not None:
        raise InputError("--forecast", f"{twice} is given twice")
    return made


def softens(choice: ForecastChoice) -> bool:
    """Whether ``--soften`` blends it: knowing nothing cannot be softened, and Kaplan-Meier is what the rest move towards."""
    return choice.name not in (None, KAPLAN_MEIER)


def make_sources(chosen: Sequence[ForecastChoice], trace: Trace, soften: float, tell: Tell) -> list[ForecastSource]:
    """Every source for the log; those that can be softened moved by ``soften`` in [0, 1] towards its Kaplan-Meier curve."""
    made = [choice.make(trace, tell) for choice in chosen]
    if soften == 0.0:
        return made
    blunt = kaplan_meier_of_log(trace)
    return [
        Softened(source, blunt, soften) if softens(choice) else source
        for choice, source in zip(chosen, made, strict=True)
    ]


def _choice(name: str, seed: int) -> ForecastChoice:
    plain: dict[str, ForecastChoice] = {
        "none": Plain(None, lambda trace: NoForecast()),
        "oracle": Plain("oracle", lambda trace: Oracle(trace.output_tokens)),
        KAPLAN_MEIER: Plain(KAPLAN_MEIER, kaplan_meier_of_log),
    }
    if name in plain:
        return plain[name]
    if name.startswith(CROSSFIT):
        model = name.removeprefix(CROSSFIT)
        MODELS.get(model)  # unknown, or a library that it needs is missing: say so before any work
        return CrossFit(model, seed)
    if name and Path(name).is_dir():
        return FromBundle(Path(name), read_bundle(name))
    raise UnknownNameError(
        f"unknown forecast {name!r:.80}",
        hint=f"Known: {', '.join(plain)}, {CROSSFIT}MODEL with one of {', '.join(MODELS)}, or a bundle's folder",
    )


def _parted_by_prompt(trace: Trace, seed: int) -> Trace:
    """All answers to a prompt arrive at one instant, prompts in random order: none is forecast from another's answer."""
    from endcast.training.replay import prompt_groups

    groups = prompt_groups(trace)
    place = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
    columns = {
        "arrival_ns": pa.array(place[groups] * NS_PER_S),
        "finished_ns": pa.nulls(len(trace), pa.int64()),
    }
    table = trace.table
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    return Trace(table)
