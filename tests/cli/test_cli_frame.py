"""The frame of the command line: what is imported when, and what a user sees when something goes wrong."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import typer

import endcast
from endcast.cli import main
from endcast.cli.errors import EXTRA_OF
from endcast.cli.lazy import LazyCommand, lazy_group
from endcast.errors import BundleError, InputError, TraceError, UnknownNameError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``endcast do`` with a command of the test's own; exit code, stdout, stderr."""

    def call(command: Callable[..., Any], *arguments: str) -> tuple[int, str, str]:
        module = types.ModuleType("commands_of_a_test")
        module.do = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        with pytest.raises(SystemExit) as exit_:
            main(arguments or ["do"], [LazyCommand("do", "commands_of_a_test:do", "Do it.")])
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def test_a_command_that_works_exits_with_0(run: Run) -> None:
    assert run(lambda: print("done")) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (TraceError("a.csv, line 7: no\nnumber", hint="Mend it"), 1, "error: a.csv, line 7: no number. Mend it\n"),
        (BundleError("bundle/graph.onnx has another digest"), 1, "error: bundle/graph.onnx has another digest\n"),
        (InputError("max_tokens", "must lie [red]within[/red]"), 2, "error: max_tokens: must lie [red]within[/red]\n"),
        (UnknownNameError("unknown model 'x'", hint="Known: a"), 2, "error: unknown model 'x'. Known: a\n"),
        (
            FileNotFoundError(2, "No such file or directory", "log.csv"),
            1,
            "error: log.csv: No such file or directory\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_line_on_stderr(run: Run, error: BaseException, code: int, line: str) -> None:
    assert run(raising(error)) == (code, "", line)


def test_a_long_line_is_not_broken(run: Run) -> None:
    _, _, err = run(raising(TraceError("word " * 200)))
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(run: Run) -> None:
    code, _, err = run(raising(TraceError("no number")), "--debug", "do")
    assert code == 1 and "Traceback" in err and err.endswith("error: no number\n")


def test_what_is_no_users_error_keeps_its_traceback(run: Run) -> None:
    for fault in (ZeroDivisionError(), OSError("odd"), ModuleNotFoundError("no such module", name="mistyped")):
        with pytest.raises(type(fault)):
            run(raising(fault))


@pytest.mark.parametrize(("library", "extra"), EXTRA_OF.items())
def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    code, out, err = run(lambda: __import__(library))
    assert (code, out) == (1, "") and err.endswith(f"pip install 'endcast[{extra}]'\n") and err.count("\n") == 1


def test_a_missing_extra_of_a_command_module_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "needs_lightgbm.py").write_text("import lightgbm\n\ndef do(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(SystemExit):
        main(["do"], [LazyCommand("do", "needs_lightgbm:do", "Do it.")])
    assert "pip install 'endcast[train]'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("undo",), ("do", "--undone"), ("do", "extra"), ("--undone", "do")])
def test_usage_errors_exit_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(lambda: None, *arguments)
    assert (code, out) == (2, "") and "Traceback" not in err and "Usage" in err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2 and "serve" in capsys.readouterr().out


def test_a_slip_of_the_pen_is_recognised(run: Run) -> None:
    assert "'do'" in run(lambda: None, "doo")[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code in (0, None) and capsys.readouterr().out == f"endcast {endcast.__version__}\n"


def test_a_command_registered_twice_fails() -> None:
    command = LazyCommand("do", "math:pi", "Do it.")
    with pytest.raises(ValueError, match="registered twice"):
        lazy_group([command, command])


def test_groups_stay_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one with a single command, which typer alone would fold into its group."""
    app = typer.Typer(help="Many things.")
    app.command()(lambda: print("one"))
    app.registered_commands[0].name = "one"
    module = types.ModuleType("commands_of_a_test")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(SystemExit) as exit_:
        main(["many", "one"], [LazyCommand("many", "commands_of_a_test:app", "Many things.")])
    assert exit_.value.code in (0, None) and capsys.readouterr().out == "one\n"


def script(code: str) -> list[str]:
    """An interpreter that runs ``endcast do`` with ``code`` as the command's body."""
    body = "\n    ".join(code.splitlines())
    program = (
        "import sys, types\nfrom endcast.cli import main\nfrom endcast.cli.lazy import LazyCommand\n"
        f"module = types.ModuleType('own')\ndef do():\n    {body}\nmodule.do = do\nsys.modules['own'] = module\n"
        "main(['do'], [LazyCommand('do', 'own:do', 'Do it.')])\n"
    )
    return [sys.executable, "-c", program]


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    code = "from endcast.cli.output import console\nfor i in range(100000): console.print('line', i)"
    with subprocess.Popen(script(code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(20) == 1


def test_ctrl_c_ends_it_with_130() -> None:
    code = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
    with subprocess.Popen(script(code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr and process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "Traceback" not in process.stderr.read()


def test_a_terminal_without_our_signs_gets_question_marks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(script("print('λ')"), env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "?\n"


def test_python_m_endcast_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "endcast", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"endcast {endcast.__version__}\n"
