"""Priorities and tenants from a log to who starts: read, multiplied into the reward, and seen in waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.errors import SimulationError
from endcast.router.forecasts import Oracle
from endcast.router.olp.settings import OlpSettings
from endcast.router.simulator import PlayedRun, SimulationSettings, simulate
from endcast.router.workload import Workload


def log_with(parameters: Sequence[dict[str, Any] | None], tenants: list[str | None] | None = None) -> Trace:
    """A synthetic log whose requests came with these parameters."""
    table = synthesize(SynthSettings(requests=len(parameters), seed=3)).trace.table
    told = [None if each is None else json.dumps(each) for each in parameters]
    table = table.set_column(table.schema.get_field_index("parameters"), table.schema.field("parameters"), [told])
    if tenants is not None:
        field = table.schema.field("tenant")
        table = table.set_column(table.schema.get_field_index("tenant"), field, [pa.array(tenants).cast(field.type)])
    return Trace(table)


def waits(load: Workload, policy: str, **olp: float) -> np.ndarray:
    """(n,), seconds that each request waits, in the workload's order."""
    found: list[np.ndarray] = []

    def watch(run: PlayedRun) -> None:
        found.append(run.record.admission_s - run.record.arrival_s)

    settings = SimulationSettings(
        workers=3,
        slots=4,
        utilization=1.2,
        olp=OlpSettings(tail_scale_s=30.0, **olp),  # type: ignore[arg-type]
    )
    output = np.zeros(int(load.row.max()) + 1, dtype=np.int64)
    output[load.row] = load.output
    simulate(load, settings, policies=[policy], forecasts=[Oracle(output)], watch=watch)
    return found[0]


def test_weights_are_read_from_parameters() -> None:
    load = Workload.from_trace(log_with([{"weight": 4}, None, {"temperature": 1.0}, {"weight": 0.5}] * 10))
    assert load.weight is not None
    by_row = load.weight[np.argsort(load.row)]
    assert by_row.tolist() == [4.0, 1.0, 1.0, 0.5] * 10
    assert Workload.from_trace(log_with([{"temperature": 1.0}] * 8)).weight is None


@pytest.mark.parametrize("weight", [0, -1, "high", True])
def test_a_weight_that_is_none_is_refused(weight: object) -> None:
    with pytest.raises(SimulationError, match="request 2 of the log has the weight"):
        Workload.from_trace(log_with([None, {"weight": weight}]))


@pytest.mark.parametrize("policy", ["olp", "olp_br_h"])
def test_who_counts_more_waits_less(policy: str) -> None:
    """Every fifth request counts four times: it waits less than it does among equals, and less than the others."""
    parameters: list[dict[str, Any]] = [{"weight": 4.0} if i % 5 == 0 else {} for i in range(400)]
    some, same = Workload.from_trace(log_with(parameters)), Workload.from_trace(log_with([{}] * 400))
    high = some.row % 5 == 0
    with_weights, without = waits(some, policy), waits(same, policy)
    assert with_weights[high].mean() < 0.6 * without[high].mean()
    assert with_weights[high].mean() < 0.6 * with_weights[~high].mean()


@pytest.mark.parametrize("policy", ["olp", "olp_br_h"])
def test_a_tenant_that_floods_does_not_make_the_others_wait(policy: str) -> None:
    tenants: list[str | None] = ["flood" if i % 10 else "small" for i in range(400)]
    load = Workload.from_trace(log_with([{} for _ in tenants], tenants))
    assert load.tenant is not None
    small = load.row % 10 == 0
    equal, fair = (waits(load, policy, fairness=strength, fairness_s=30.0) for strength in (0.0, 1.0))
    assert fair[small].mean() < 0.75 * equal[small].mean()
