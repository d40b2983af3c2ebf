"""The page of a simulation: one file that fetches nothing, the same bytes each time, whatever was simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup

from endcast.reporting import simulation_report
from endcast.reporting.figures import style
from endcast.reporting.simulation_command import command
from endcast.reporting.simulation_report import PLOTS, write_plots, write_report
from endcast.reporting.simulation_summary import Simulated
from endcast.reporting.simulation_words import columns, lead, left_out, result_rows

Simulate = Callable[..., Simulated]
QUESTIONS = (
    "What does the fleet lose today, and to what?",
    "Which policy gives what?",
    "Who waits longest?",
    "How good do forecasts have to be?",
    "What does this simulation leave out?",
    "How to repeat it",
)


class Page(HTMLParser):
    """Elements of a page: tags, ids, references, and texts by tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
                self.references.append(value or "")
            elif value is not None:
                self.references += re.findall(r"url\(([^)]*)\)", value)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data


@pytest.fixture(scope="module")
def text(simulated: Simulated, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(simulated, path)
    return path.read_text(encoding="utf-8")


def test_it_fetches_nothing_and_runs_nothing(text: str) -> None:
    page = Page(text)
    assert page.references, "plots refer to their own parts"
    assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in page.references)
    assert not {"script", "link", "iframe", "object", "embed", "img"} & set(page.tags)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", text)


def test_what_a_plot_refers_to_is_its_own(text: str) -> None:
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= set(page.ids)


def test_it_answers_in_order(text: str) -> None:
    page = Page(text)
    assert page.texts["h2"] == list(QUESTIONS)
    assert page.tags.count("svg") == 2 * len(PLOTS)
    assert all(caption.startswith("Simulated") for caption in page.texts["figcaption"])
    assert "None" not in text and "nan" not in re.findall(r">([^<]*)<", text)


def test_every_policy_has_a_row(simulated: Simulated, text: str) -> None:
    first_cells = re.findall(r"<tr(?: class=\"best\")?><td>([^<]*)", text)
    for row in ("round_robin", "least_kv", "br_0", "br_h, none", "br_h, kaplan_meier", "br_h, oracle"):
        assert row in [cell.strip() for cell in first_cells]
    assert text.count('<tr class="best">') == 1
    assert "(today)" in text and "(true lengths)" in text
    assert "±" in text and simulated.report.seeds == 2


@pytest.mark.parametrize("name", ["loads", "policies"])
def test_a_plot_drawn_again_has_the_same_bytes(simulated: Simulated, text: str, name: str) -> None:
    assert str(simulation_report._inline(name, simulated)) in text


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take seconds; what stands around them does not need them."""
    monkeypatch.setattr(simulation_report, "_inline", lambda name, simulated: Markup("<svg></svg>"))


@pytest.mark.usefixtures("without_plots")
def test_names_are_escaped(simulate_trace: Simulate, tmp_path: Path) -> None:
    found = replace(simulate_trace("round_robin", name="<script>alert('x')</script>&.csv"), notes=("<b>bold</b>",))
    write_report(found, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script" not in text and "<b>bold" not in text
    assert not {"script", "i"} & set(Page(text).tags)
    assert "&lt;script&gt;" in text and "&lt;b&gt;bold&lt;/b&gt;" in text


@pytest.mark.usefixtures("without_plots")
def test_a_warning_stands_on_top(simulated: Simulated, tmp_path: Path) -> None:
    write_report(replace(simulated, warnings=("the forecasts saw the answers",)), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert 0 < text.index("the forecasts saw the answers") < text.index('class="cards"')


ODD = {
    "one policy": ("round_robin", "oracle", {}),
    "true lengths only": ("br_h", "oracle", {}),
    "nobody waits": ("br_0,least_kv", "oracle", {"workers": 1, "slots": 400}),
    "one request": ("least_kv,br_0,br_h", "kaplan_meier,oracle,none", {"requests": 1}),
    "few requests": ("least_kv,br_h", "kaplan_meier", {"requests": 3, "workers": 14}),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_simulations_can_be_shown(
    simulate_trace: Simulate, tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every plot is laid out, without being written, and the page around them is whole."""
    policies, forecasts, fleet = ODD[odd]
    drawn = []

    def draw_only(name: str, simulated: Simulated) -> Markup:
        drawn.append(name)
        with style():
            PLOTS[name][0](simulated, narrow=odd == "few requests").draw_without_rendering()
        return Markup("<svg></svg>")

    monkeypatch.setattr(simulation_report, "_inline", draw_only)
    write_report(simulate_trace(policies, forecasts, **fleet), tmp_path / "r.html")
    assert Page((tmp_path / "r.html").read_text(encoding="utf-8")).texts["h2"] == list(QUESTIONS)
    assert drawn == [name for name in PLOTS if name != "forecasts" or "br_h" in policies]


def test_the_lead_claims_nothing_within_noise(simulate_trace: Simulate) -> None:
    assert "none of the other policies played here does clearly better" in lead(simulate_trace("least_kv"))
    better = lead(simulate_trace("round_robin,br_0"))
    assert better.startswith("In simulation") and "With br_0 it would lose" in better


def test_the_command_repeats_the_run(simulate_trace: Simulate) -> None:
    found = simulate_trace("least_kv,br_h", "none,oracle", name="my log.csv", seeds=2, horizon=7)
    words = command(found).replace("\\\n", "")
    assert words.startswith("endcast simulate 'my log.csv' ")
    for part in ("--policies least_kv,br_h", "--forecast none,oracle", "--horizon 7", "--seeds 2", "--max-overtakes 48",
                 "--utilization 1.1", "--today least_kv"):  # fmt: skip
        assert part in words
    assert "--kv-capacity" not in words and "--arrivals" not in words


def test_bounded_memory_is_in_the_command_and_in_what_is_left_out(simulate_trace: Simulate) -> None:
    found = simulate_trace("least_kv,br_0", kv_capacity=9000, admission="optimistic:0.05", victim="smallest_kv")
    words = command(found).replace("\\\n", "")
    for part in ("--kv-capacity 9000", "--admission optimistic:0.05", "--victim smallest_kv", "--recompute-rate 10000"):
        assert part in words
    assert any(
        "holds 9,000 KV tokens (admission optimistic:0.05, victim smallest_kv)" in text for text in left_out(found)
    )
    assert columns(found)[-3:] == ["thrown out", "prefilled anew, tokens", "refused"]
    for row in result_rows(found):
        thrown_out, anew, refused = (cell[0] for cell in row.cells[-3:])
        assert (
            0.0 < float(thrown_out.removesuffix(" %")) < 100.0 and float(anew.replace(",", "")) > 0.0 and refused == "0"
        )


def test_what_is_left_out_names_the_scale(simulated: Simulated) -> None:
    told = left_out(simulated)
    assert "20 ms and another 40 ms" in told[0]
    assert all(text.endswith(".") for text in told)


def test_plots_as_files(simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation_report, "PLOTS", {"policies": PLOTS["policies"]})
    (path,) = write_plots(simulated, tmp_path / "plots")
    assert path.name == "policies.png"
    assert path.read_bytes().startswith(b"\x89PNG")
