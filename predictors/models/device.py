"""Where networks are trained: CUDA, an Ascend NPU or the CPU, found when asked for.

``torch_npu`` is imported only where an NPU may be meant, since on a machine without Ascend's driver the import fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from endcast.errors import TrainingError

ImportModule = Callable[[str], Any]
DEVICES = ("auto", "cpu", "cuda", "npu")


def _why_no_npu(import_module: ImportModule) -> str:
    """Empty if ``torch_npu`` is there (imported now, which teaches torch the name) and sees a device, else why not."""
    try:
        module = import_module("torch_npu")
    except ImportError as error:
        return f"torch_npu cannot be imported: {error!s:.200}"
    except OSError as error:  # its libraries are there and the driver's are not
        return f"torch_npu finds no Ascend driver: {error!s:.200}"
    if not module.npu.is_available():
        return "torch_npu sees no NPU"
    return ""


def choose_device(wanted: str = "auto", import_module: ImportModule = importlib.import_module) -> str:
    """The device's name: the one asked for, or the fastest that is there; ``TrainingError`` if one is named that is not.

    An NPU is used only where it is asked for or ``torch_npu`` is installed; CPU runs alone repeat bit by bit.
    """
    if wanted not in DEVICES:
        raise TrainingError(f"there is no device {wanted!r:.40}", hint=f"Known: {', '.join(DEVICES)}")
    if wanted == "cpu":
        return "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrainingError("no CUDA device can be used here", hint="Train with --device cpu")
    if wanted in ("auto", "cuda") and torch.cuda.is_available():
        return "cuda"
    why = _why_no_npu(import_module)
    if not why:
        return "npu"
    if wanted == "npu":
        raise TrainingError(why, hint="Install the extra endcast[npu] and Ascend's driver, or train with --device cpu")
    return "cpu"
