"""What ships for operators beside the code: a dashboard, alert rules, a Dockerfile, and the pages that explain them."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from endcast.serving.app import create_app
from endcast.serving.metrics.of_outcomes import COUNTERS, GAUGES
from endcast.serving.operations.config import PREFIX
from endcast.serving.operations.settings import DECLARED, Settings
from endcast.testing import ConstantHazardForecaster

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
#: What PromQL itself brings, of what is used.
WORDS = {
    "sum", "max", "min", "avg", "count", "topk", "rate", "increase", "histogram_quantile", "and", "or", "unless", "label_values",
}  # fmt: skip
#: What Prometheus adds to every series.
ADDED_LABELS = {"job", "instance"}
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)
}  # fmt: skip


def series() -> dict[str, set[str]]:
    """Every series that the service can have, with its labels."""
    app: Any = create_app(Settings(), ConstantHazardForecaster())
    registry = app.state.context.metrics.registry
    app.state.context.metrics.exposition("bundle", 0)
    out = {f"{name}_total": set(labels) for name, (_, labels) in COUNTERS.items()}
    out |= {name: set(labels) for name, (_, labels) in GAUGES.items()}
    for collector in registry._collector_to_names:
        labels = set(getattr(collector, "_labelnames", ()))
        kinds = {family.name: family.type for family in collector.describe()} if hasattr(collector, "describe") else {}
        for family in collector.collect():
            kinds[family.name] = family.type
        for name, kind in kinds.items():
            for suffix in SUFFIXES[kind]:
                own = {key for one in collector.collect() for sample in one.samples for key in sample.labels}
                out.setdefault(f"{name}{suffix}", labels | own | ({"le"} if suffix == "_bucket" else set()))
    return out | {"up": set()}


SERIES = series()


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each name of a PromQL expression that is neither a word of the language nor a label, with its matchers' labels."""
    plain = re.sub(r"\b(by|without|on|ignoring|group_left)\s*\([^)]*\)", " ", expression)
    plain = re.sub(r"\[[^\]]*\]", " ", plain)
    for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", re.sub(r'"[^"]*"', '""', plain)):
        if name not in WORDS:
            yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def grouped(expression: str) -> set[str]:
    return {label.strip() for part in re.findall(r"\bby\s*\(([^)]*)\)", expression) for label in part.split(",")}


def faults(expression: str) -> list[str]:
    """What an expression names that the service does not have."""
    found = list(used(expression))
    wrong = [name for name, _ in found if name not in SERIES]
    have = ADDED_LABELS.union(*(SERIES.get(name, set()) for name, _ in found))
    wrong += [
        f"{name}{{{label}}}" for name, labels in found for label in labels - SERIES.get(name, set()) - ADDED_LABELS
    ]
    return wrong + [f"by ({label})" for label in grouped(expression) - have]


EXPRESSIONS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = re.findall(r"- alert: (\w+)\n\s+expr: '(.+)'", ALERTS)


def test_the_checker_finds_what_is_wrong() -> None:
    good = (
        'histogram_quantile(0.9, sum by (le) (rate(endcast_request_seconds_bucket{job=~"a|b", route="/x"}[5m]))) > 0.1'
    )
    assert faults(good) == []
    assert faults("rate(endcast_request_seconds_total[5m])") == ["endcast_request_seconds_total"]
    assert faults('endcast_bundle_info{bundel="x"}') == ["endcast_bundle_info{bundel}"]
    assert faults("sum by (model) (endcast_degraded)") == ["by (model)"]
    assert faults("summ(endcast_degraded)") == ["summ"]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=lambda v: str(v)[:50])
def test_every_query_of_the_dashboard_names_what_exists(title: str, expression: str) -> None:
    assert list(used(expression)) and faults(expression) == []


def test_the_dashboard_can_be_imported() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    assert all(
        panel["title"] and panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for panel in panels
    )
    places = {(x, y) for panel in panels for x in span(panel, "x", "w") for y in span(panel, "y", "h")}
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels), "two panels overlap"
    assert max(x for x, _ in places) < 24
    variable = next(one for one in DASHBOARD["templating"]["list"] if one["name"] == "job")
    assert faults(variable["query"].replace(", job)", ")")) == []


def span(panel: Mapping[str, Any], at: str, size: str) -> range:
    return range(panel["gridPos"][at], panel["gridPos"][at] + panel["gridPos"][size])


@pytest.mark.parametrize(("name", "expression"), RULES)
def test_every_alert_names_what_exists(name: str, expression: str) -> None:
    assert list(used(expression)) and faults(expression) == []


def test_alert_rules_are_whole() -> None:
    """Each has the five lines of a rule, in one form, so that nothing is misread for want of a YAML reader here."""
    rule = (
        r"      - alert: Endcast\w+\n        expr: '[^'\n]+'\n        for: \d+[mhd]\n"
        r"        labels: \{severity: (?:page|ticket|info)\}\n        annotations: \{summary: \"[^\"\n]+\.\"\}\n"
    )
    body = re.sub(r"(?m)^#.*\n", "", ALERTS)
    assert re.fullmatch(rf"groups:\n  - name: endcast\n    rules:\n(?:{rule})+", body)
    assert len(RULES) == ALERTS.count("- alert:") == len({name for name, _ in RULES})


def table_names(heading: str) -> list[str]:
    """The first column of all tables below a heading of docs/operating.md."""
    part = re.split(rf"(?m)^## {heading}$", OPERATING)[1]
    part = re.split(r"(?m)^## ", part)[0]
    return [name for row in re.findall(r"(?m)^\| (`[^|]+) \|", part) for name in re.findall(r"`(\w+)`", row)]


def test_every_setting_is_explained_and_no_other() -> None:
    assert sorted(table_names("Settings")) == sorted(DECLARED)


def test_every_metric_is_explained_and_no_other() -> None:
    own = {name for name in SERIES if name.startswith("endcast_")}
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in GAUGES else name for name in own}
    assert sorted(table_names("Metrics")) == sorted(plain)


def test_every_alert_is_explained_and_no_other() -> None:
    assert sorted(table_names("Alerts")) == sorted(name for name, _ in RULES)


def test_defaults_in_the_settings_table_are_the_defaults() -> None:
    for name in DECLARED:
        row = re.search(rf"(?m)^\| `{name}` \| ([^|]+) \|", OPERATING)
        assert row, name
        default = getattr(Settings(), name)
        shown = row[1].strip().replace(",", "").replace("`", "")
        expected = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        told = {"None": "–", "": "–", "True": "true", "False": "false"}.get(expected, expected)
        assert shown == told or (shown.replace(".", "").isdigit() and float(shown) == float(default)), (
            name,
            shown,
            told,
        )


def test_the_image_runs_as_nobody_in_particular() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 10001" in lines and lines.index("USER 10001") < next(
        i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT")
    )
    assert not any(re.search(r"(?i)\b(key|password|secret|token)=", line) for line in lines)
    assert "do not build it" in lines[0]
    kept = {
        line[1:] for line in (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    }
    assert all((ROOT / name).exists() for name in kept)


def test_the_environments_names_are_as_documented() -> None:
    assert f"`{PREFIX}MAX_REQUESTS`" in OPERATING
