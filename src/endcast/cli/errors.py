"""What a user sees when a command fails: one line on stderr that says what to do, and an exit code."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from endcast.errors import EndcastError, InputError, UnknownNameError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

#: Libraries that a plain ``pip install endcast`` leaves out, and the extra that brings each.
EXTRA_OF = {
    "httpx": "client",
    "lightgbm": "train",
    "sklearn": "train",
    "onnx": "train",
    "torch": "text",
    "transformers": "text",
    "torch_npu": "npu",
}


def run_reporting_errors(command: Callable[[], object], *, debug: Callable[[], bool]) -> int:
    """Run ``command`` and return its exit code; an error that it raises becomes one line on stderr.

    A ``SystemExit`` (help, usage errors) passes through. What is not a user's error is reported with its traceback.
    """
    try:
        command()
    except EndcastError as error:
        report(error.message, error.hint, trace=debug())
        return MISUSED if isinstance(error, InputError | UnknownNameError) else FAILED
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        report(f"this needs {error.name}, which is not installed", f"pip install 'endcast[{extra}]'", trace=debug())
        return FAILED
    except BrokenPipeError:
        raise  # whoever read our output has left; typer ends quietly
    except OSError as error:
        if error.filename is None:
            raise
        report(f"{error.filename}: {error.strerror}", trace=debug())
        return FAILED
    except KeyboardInterrupt:
        report("interrupted")
        return INTERRUPTED
    return 0


def report(message: str, hint: str = "", *, trace: bool = False) -> None:
    """Print one red line to stderr, after the traceback of the present exception if ``trace``."""
    from rich.text import Text

    from endcast.cli.output import err_console

    if trace:
        err_console.print(Text(traceback.format_exc()))
    line = Text.assemble(("error: " + " ".join(message.split()), "red"))
    if hint:
        line.append(". " + " ".join(hint.split()))
    err_console.print(line, soft_wrap=True)
