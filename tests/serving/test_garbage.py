"""The collector of cycles: what is old is out of its sight, and is taken all the same when it has doubled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from endcast.serving.processes.garbage import SeldomFull


class Cycle:
    """Garbage that no count of references frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()


def test_what_survives_young_collections_is_looked_at_no_more() -> None:
    gc.unfreeze()
    kept = [Cycle() for _ in range(100)]
    policy = SeldomFull()
    with policy.kept():
        young = weakref.ref(Cycle())
        gc.collect(0)
        assert young() is None  # cycles that die young are taken as always
        gc.collect(1)
        frozen = gc.get_freeze_count()
        assert frozen >= 2 * len(kept)  # with their dictionaries
        assert not any(one is kept[0] for one in gc.get_objects())
    gc.collect(1)
    assert gc.get_freeze_count() <= frozen, "the policy has ended"


def test_cycles_that_die_old_are_taken_when_there_are_too_many() -> None:
    policy = SeldomFull(few=10)
    with policy.kept():
        old = [Cycle() for _ in range(100)]
        seen = [weakref.ref(one) for one in old]
        gc.collect(1)
        del old
        gc.collect()
        assert all(ref() is not None for ref in seen)  # out of sight
        assert policy.look()
        assert all(ref() is None for ref in seen)
        assert not policy.look()  # not again until it has doubled
