"""``endcast serve``: says where, answers there, and stops when told, with exit code 0."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from endcast.cli import main

PROGRAM = """
import endcast.predictors.onnx_forecaster as bundles
from endcast.cli import main
from endcast.testing import ConstantHazardForecaster

class Bundle(ConstantHazardForecaster):
    manifest = {}

bundles.load_forecaster = lambda path, **_: Bundle(0.01, bundle="sha256:abc")
main(["serve", "bundle", "--port", "0"])
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its address, and the line with the ready-made call."""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            first = process.stdout.readline()
            match = re.fullmatch(r"serving sha256:abc at (http://127\.0\.0\.1:\d+)\n", first)
            assert match, (first, process.stderr and process.stderr.read())
            yield process, match[1], process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_it_serves_until_told_to_stop(server: tuple[subprocess.Popen[str], str, str], stop: signal.Signals) -> None:
    process, url, _ = server
    response = httpx.post(f"{url}/v1/forecasts", json={"requests": [{"prompt_tokens": 1}], "horizons": [10]})
    assert response.json()["forecasts"][0]["p_end"]["10"] == pytest.approx(1 - 0.99**10)
    assert httpx.get(f"{url}/readyz").json()["bundle"] == "sha256:abc"
    process.send_signal(stop)
    assert process.wait(20) == 0
    assert process.stderr
    logged = [json.loads(line) for line in process.stderr]
    assert {line["level"] for line in logged} == {"info"}
    assert [line["path"] for line in logged if line["message"] == "call"] == ["/v1/forecasts"]


def test_the_call_that_it_shows_works(server: tuple[subprocess.Popen[str], str, str]) -> None:
    _, url, line = server
    match = re.fullmatch(r"try: curl -s (\S+) -d '(.*)'\n", line)
    assert match and match[1] == f"{url}/v1/forecasts"
    response = httpx.post(match[1], content=match[2])
    assert response.status_code == 200 and len(response.json()["forecasts"]) == 1


def test_a_port_in_use_is_one_line(server: tuple[subprocess.Popen[str], str, str]) -> None:
    _, url, _ = server
    port = url.rsplit(":", 1)[1]
    program = PROGRAM.replace('"0"', f'"{port}"')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(rf"error: cannot listen on 127\.0\.0\.1 port {port}: .*in use\. --port 0 .*\n", done.stderr)


def test_calls_on_their_way_are_finished(server: tuple[subprocess.Popen[str], str, str]) -> None:
    process, url, _ = server
    answers: list[httpx.Response] = []
    body = {"requests": [{"prompt_tokens": 1}] * 1_000, "curve": True}
    call = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/forecasts", json=body, timeout=20)))
    call.start()
    while "endcast_request_seconds" not in httpx.get(f"{url}/metrics").text:
        pass
    process.send_signal(signal.SIGTERM)
    call.join(20)
    assert [answer.status_code for answer in answers] == [200] and process.wait(20) == 0


def test_settings_are_shown_with_their_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "endcast.toml"
    file.write_text("grace_s = 3\nport = 1\n")
    monkeypatch.setenv("ENDCAST_MAX_REQUESTS", "7")
    monkeypatch.setenv("ENDCAST_API_KEYS", "a-key-that-nobody-sees")
    words = ["serve", "no-bundle-is-loaded", "--config", str(file), "--port", "0", "--set", "log_level=error"]
    with pytest.raises(SystemExit) as done:
        main([*words, "--print-config", "--json"])
    assert done.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["port"] == {"value": 0, "source": "--port"}
    assert shown["log_level"] == {"value": "error", "source": "--set log_level"}
    assert shown["max_requests"] == {"value": 7, "source": "ENDCAST_MAX_REQUESTS"}
    assert shown["grace_s"] == {"value": 3.0, "source": f"{file} line 1, grace_s"}
    assert shown["host"] == {"value": "127.0.0.1", "source": "default"}
    with pytest.raises(SystemExit):
        main([*words, "--print-config"])
    text = capsys.readouterr().out
    assert "# --port: port to listen on" in text and "nobody-sees" not in text


def test_a_wrong_setting_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDCAST_PORT", "eighty")
    with pytest.raises(SystemExit) as done:
        main(["serve", "bundle"])
    assert done.value.code == 2
    assert capsys.readouterr().err == "error: ENDCAST_PORT: must be a whole number, not 'eighty'\n"
