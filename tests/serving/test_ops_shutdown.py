"""Told to stop, a service finishes what is on its way; several processes count as one service; TLS as it is set."""

from __future__ import annotations

import json
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from endcast.errors import EndcastError
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.run import make_server
from endcast.testing import ConstantHazardForecaster

ASK = {"requests": [{"prompt_tokens": 1}]}
SLOW = """
import sys, time
import endcast.predictors.onnx_forecaster as bundles
from endcast.cli import main
from endcast.testing import ConstantHazardForecaster

class Slow(ConstantHazardForecaster):
    manifest = {}
    def forecast(self, landmarks):
        if landmarks[0].request.model == "slow":
            print("working", flush=True)
            time.sleep(1.5)
        return super().forecast(landmarks)

bundles.load_forecaster = lambda path, **_: Slow(0.01, bundle="sha256:abc")
main(["serve", "bundle", "--port", "0", *sys.argv[1:]])
"""


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """A function that starts ``endcast serve`` and gives the process and its address."""
    started: list[subprocess.Popen[str]] = []

    def run(*command: str) -> tuple[subprocess.Popen[str], str]:
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([sys.executable, "-u", *command], stdout=subprocess.PIPE, stderr=log, text=True)
        started.append(process)
        assert process.stdout
        first = process.stdout.readline()
        assert first, (tmp_path / "log").read_text()
        process.stdout.readline()
        return process, first.split()[-1]

    yield run
    for process in started:
        process.kill()
        process.wait(20)
        assert process.stdout
        process.stdout.close()


def test_a_call_on_its_way_is_answered_and_no_other(
    start: Callable[..., tuple[subprocess.Popen[str], str]], tmp_path: pathlib.Path
) -> None:
    process, url = start("-c", SLOW)
    answers: list[httpx.Response] = []
    slow = {"requests": [{"prompt_tokens": 1, "model": "slow"}] * 80}  # so many that a thread works on them
    call = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/forecasts", json=slow, timeout=60)))
    call.start()
    assert process.stdout and process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/healthz")
    call.join(60)
    assert answers[0].status_code == 200 and len(answers[0].json()["forecasts"]) == 80
    assert process.wait(30) == 0
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in logged if line["message"] == "call"] == [200]


def test_the_grace_ends(start: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    """A client that never finishes its call does not keep the service."""
    process, url = start("-c", SLOW, "--set", "grace_s=1", "--set", "log_level=error")
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as hanging:
        hanging.sendall(b"POST /v1/forecasts HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert httpx.get(f"{url}/healthz").status_code == 200
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert time.monotonic() - began < 15


@pytest.mark.slow
def test_several_processes_are_measured_as_one_service(
    start: Callable[..., tuple[subprocess.Popen[str], str]], two_bundles: tuple[pathlib.Path, pathlib.Path]
) -> None:
    process, url = start("-m", "endcast", "serve", str(two_bundles[0]), "--port", "0", "--set", "processes=2")
    answered = set()
    for _ in range(30):
        answer = httpx.post(f"{url}/v1/forecasts", json=ASK, timeout=120)
        assert answer.status_code == 200
        answered.add(httpx.get(f"{url}/v1/status", timeout=60).json()["process"])
    until = time.monotonic() + 30
    while (seen := counted(url)) != 30:
        assert time.monotonic() < until, seen
        time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def counted(url: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=60).text
    wanted = 'endcast_request_seconds_count{route="/v1/forecasts",status="200"} '
    return float(next(line.removeprefix(wanted) for line in text.splitlines() if line.startswith(wanted)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """A certificate of our own for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return certificate, key


def test_tls_and_its_oldest_version(
    start: Callable[..., tuple[subprocess.Popen[str], str]], certificate: tuple[pathlib.Path, pathlib.Path]
) -> None:
    options = [f"tls_certificate={certificate[0]}", f"tls_key={certificate[1]}", "tls_min_version=1.3"]
    _, url = start("-c", SLOW, *(word for option in options for word in ("--set", option)))
    assert url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    assert httpx.post(f"{url}/v1/forecasts", json=ASK, verify=trusting).status_code == 200
    old = ssl.create_default_context(cafile=str(certificate[0]))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/healthz", verify=old)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url.replace('https', 'http')}/healthz")


def test_a_certificate_that_cannot_be_used_is_said(
    certificate: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    app: Any = create_app(Settings(), ConstantHazardForecaster())
    for wrong in (tmp_path / "none.pem", certificate[0]):
        with pytest.raises(EndcastError, match="cannot use the certificate"):
            make_server(app, Settings(tls_certificate=certificate[0], tls_key=wrong))
