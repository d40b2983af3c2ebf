"""What forecasts buy in routing (all simulated): placement, order of admission, draining, the time left of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.accuracy.data import CONVERSATION, MOONCAKE, TEXT, Tell, final, trained

from endcast.datasets.read import read
from endcast.predictors.landmarks import EVERY
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.router.arrivals import borrowed_arrivals
from endcast.router.forecasts import ForecastSource, Landmarked, Precomputed, kaplan_meier_of_log
from endcast.router.simulator import SimulationSettings
from endcast.router.soften import Softened
from endcast.router.workload import Workload
from endcast.training.crossfit import crossfit
from endcast.training.served import serve_outputs
from endcast.training.train import Settings
from endcast.training.value import ValueSettings, measure_value
from endcast.training.value_studies import first_to_drain, order_of_admission, remaining_tokens

#: Tried on the first 30 % of requests to arrive, for each forecast and fleet.
VALUE = ValueSettings(horizons=(20, 80), discounts=(0.95, 0.98), soften=(0.0, 0.5, 0.7), seeds=4, tuning_seeds=1)
#: Tokens ahead that curves along outputs must be exact for: the longest studies look this far.
REACH = 2048

Sources = dict[str, ForecastSource]


def crossfitted(folder: Path, file: str, tell: Tell) -> tuple[Workload, Sources]:
    """A whole log with Kaplan-Meier on its own lengths, and forecasts at admission made out of sample."""
    trace = read(folder / file).trace
    static = Precomputed("static", crossfit(trace, Settings(), tell=tell))
    return Workload.from_trace(trace), {"kaplan_meier": kaplan_meier_of_log(trace), "static": static}


def with_text(folder: Path, tell: Tell) -> tuple[Workload, Sources]:
    """Answers to prompts that training had not seen, in random order, at Azure's arrivals and with Azure's prompt sizes."""
    parted = final(folder, TEXT)
    trace = parted.test.take(np.random.default_rng(0).permutation(len(parted.test)))
    azure = read(folder / CONVERSATION).trace
    with trained(parted, Settings(split="all"), tell) as (bundle, _):
        forecaster = OnnxForecaster(bundle)
        nothing = np.zeros(len(trace), dtype=bool)
        served, along = serve_outputs(forecaster, trace, ~nothing, every=EVERY, reach=REACH, observed=nothing)
    place = np.argsort(served.rows)
    static = Precomputed("static", served.batch.take(place))
    text = Landmarked("text so far", along.batch, along.first[place], along.count[place], along.every)
    count = np.arange(len(trace))
    workload = Workload.from_trace(
        trace,
        arrival_s=borrowed_arrivals(len(trace), azure.arrival_s),
        prompt=azure.prompt_tokens[count % len(azure)],
    )
    sources: Sources = {
        "kaplan_meier": kaplan_meier_of_log(parted.train),
        "static": static,
        "text so far": text,
        "half static, half text": Softened(text, static, 0.5),
    }
    return workload, sources


def value(folder: Path, tell: Tell) -> dict[str, Any]:
    """Placement's gain, and the three studies, on three logs."""
    found: dict[str, Any] = {}
    for name, (workload, sources) in (
        ("Azure 2023 conversation", crossfitted(folder, CONVERSATION, tell)),
        ("Mooncake conversation", crossfitted(folder, MOONCAKE, tell)),
        ("AlpacaEval outputs at Azure's arrivals", with_text(folder, tell)),
    ):
        tell(f"{name}: {len(workload)} requests")
        reference = sources["kaplan_meier"]
        placed = measure_value(
            workload,
            sources,
            reference=reference,
            settings=VALUE,
            progress=lambda done, total, what: tell(f"{done}/{total} {what}") if done % 20 == 0 else None,
        )
        ordered = {key: source for key, source in sources.items() if key == "static"}
        fleet = SimulationSettings(workers=8, slots=32, utilization=0.95, candidates=1024, seeds=3)
        found[name] = {
            "requests": len(workload),
            "placement": [
                {**msgspec.to_builtins(one), "captured": one.captured, "captured_of_best": one.captured_of_best}
                for one in placed
            ],
            "order": msgspec.to_builtins(order_of_admission(workload, ordered, fleet)),
            "drain": msgspec.to_builtins(first_to_drain(workload, sources)),
            "remaining": msgspec.to_builtins(remaining_tokens(workload, sources)),
        }
    return found
