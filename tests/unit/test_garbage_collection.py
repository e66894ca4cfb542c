"""The collector of a worker's process runs rarely, unless its user has chosen otherwise."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from gen_durable.garbage_collection import WORKER_THRESHOLDS, tune_garbage_collector


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("default", [700, 2000])
def test_a_default_threshold_is_raised(default: int) -> None:
    gc.set_threshold(default, 10, 10)
    tune_garbage_collector()
    assert gc.get_threshold() == WORKER_THRESHOLDS
    assert gc.isenabled()


@pytest.mark.parametrize("own", [(0, 10, 10), (5000, 7, 7)], ids=["off", "its own"])
def test_the_settings_of_the_user_are_kept(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    tune_garbage_collector()
    assert gc.get_threshold() == own


def test_what_is_alive_is_not_looked_at_again() -> None:
    alive = [[] for _ in range(1000)]
    before = gc.get_freeze_count()
    tune_garbage_collector()
    assert gc.get_freeze_count() >= before + len(alive)
