"""Registries fail loudly: at a name given twice, and at a name that nobody gave."""

from __future__ import annotations

import subprocess
import sys

import pytest

from endcast.errors import EndcastError, UnknownNameError
from endcast.registry import Registry


def test_an_entry_is_imported_when_asked_for() -> None:
    code = (
        "import sys\nfrom endcast.registry import Registry\n"
        "r = Registry('codec', (('j', 'json.tool:main'),))\n"
        "assert 'json.tool' not in sys.modules\n"
        "entry = r.get('j')\nassert entry is sys.modules['json.tool'].main\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_keep_their_order() -> None:
    registry: Registry[object] = Registry("thing", (("b", "math:pi"), ("a", "math:e")))
    assert list(registry) == ["b", "a"] and len(registry) == 2 and "a" in registry and "c" not in registry


def test_a_name_registered_twice_fails() -> None:
    with pytest.raises(ValueError, match="model registered twice: a"):
        Registry("model", (("a", "math:pi"), ("b", "math:e"), ("a", "math:tau")))


def test_an_unknown_name_lists_the_known() -> None:
    registry: Registry[object] = Registry("model", (("kaplan_meier", "math:pi"), ("lightgbm", "math:e")))
    with pytest.raises(UnknownNameError) as caught:
        registry.get("lightgmb")
    assert str(caught.value) == "unknown model 'lightgmb'. Known: kaplan_meier, lightgbm"
    assert isinstance(caught.value, EndcastError) and isinstance(caught.value, KeyError)
