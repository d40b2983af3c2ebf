"""``endcast demo``: everything once, for real, on the smallest log that it makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from endcast.cli.demo import _service
from endcast.errors import EndcastError


@pytest.mark.slow
def test_the_demo_does_all_that_it_says(tmp_path: Path) -> None:
    out = tmp_path / "demo-out"
    command = [sys.executable, "-m", "endcast", "demo", "--out", str(out), "--requests", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = re.findall(r"^\$ (endcast \w+|curl)", done.stdout, flags=re.MULTILINE)
    assert ran == [
        "endcast trace", "endcast trace", "endcast train", "endcast evaluate", "endcast forecast", "endcast serve", "curl",
        "endcast simulate",
    ]  # fmt: skip
    assert '"p_end"' in done.stdout and "br_h, crossfit:lightgbm" in done.stdout
    summary = done.stdout[done.stdout.index("== Done in") :]
    for words in ("below Kaplan-Meier's", "least_kv (stands for today)", "br_h, oracle", "value captured"):
        assert words in summary
    for name in ("log.parquet", "bundle/manifest.json", "evaluation.html", "simulation.html", "plots/policies.png"):
        assert (out / name).is_file(), name
    assert str(out / "simulation.html") in summary


def test_a_service_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EndcastError, match="the service did not start"), _service(tmp_path / "no-bundle"):
        pass
