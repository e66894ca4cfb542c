"""QueuePace: how many rows a queue claims ahead."""

from __future__ import annotations

import pytest

from gen_durable.engine.prefetch_pace import AHEAD_SECONDS, MAX_AHEAD, WINDOW_SECONDS, QueuePace


def steady(slots: int, seconds: float, count: int = 40) -> tuple[QueuePace, float]:
    """A queue that has run `count` steps of this length, one after the other in each slot, and the time now."""
    pace, now = QueuePace(slots, 0.0), 0.0
    for _ in range(count):
        now += seconds / slots
        pace.record_step_end(seconds, now)
    return pace, now


def test_nothing_is_claimed_ahead_before_a_step_has_ended() -> None:
    """The length of steps is not known yet, so no row is expected later than the one before it."""
    pace = QueuePace(10, 0.0)
    assert pace.seconds_per_start == 0.0
    assert pace.count_rows_to_claim_ahead(5.0, is_busy=True) == 0
    assert pace.seconds_per_start == 0.0


def test_as_many_rows_as_start_within_the_time() -> None:
    """Ten slots with steps of 10 ms start a thousand a second."""
    pace, now = steady(10, 0.01)
    assert pace.count_rows_to_claim_ahead(now, is_busy=True) in (39, 40)
    assert steady(10, 0.00001)[0].count_rows_to_claim_ahead(0.0, is_busy=False) == MAX_AHEAD


def test_long_steps_are_not_claimed_ahead() -> None:
    """Ten slots with steps of a second start less than one within the time."""
    pace, now = steady(10, 1.0)
    assert pace.count_rows_to_claim_ahead(now, is_busy=True) == 0


def test_steps_that_become_long_count_before_the_first_of_them_has_ended() -> None:
    """Every slot is busy and no step has ended for half a second: they take at least that long."""
    pace, now = steady(10, 0.001)
    assert pace.count_rows_to_claim_ahead(now, is_busy=True) >= 300
    pace.record_empty_buffer()
    assert pace.count_rows_to_claim_ahead(now + 0.5, is_busy=True) == 0
    assert pace.count_rows_to_claim_ahead(now + 0.5, is_busy=False) >= 300  # an idle queue is not a slow one


def test_the_rate_of_a_busy_worker_is_a_bound() -> None:
    """Steps are short, but the worker starts only a hundred of them in a window: a slow database, or a busy loop."""
    pace, _ = steady(10, 0.0001, count=100)
    now = 2 * WINDOW_SECONDS
    assert pace.count_rows_to_claim_ahead(now, is_busy=False) == int(100 / now * AHEAD_SECONDS)
    assert pace.seconds_per_start == pytest.approx(now / 100)


def test_an_idle_window_is_no_bound() -> None:
    """The buffer ran empty, so few starts are due to little work."""
    pace, _ = steady(10, 0.0001, count=100)
    pace.record_empty_buffer()
    assert pace.count_rows_to_claim_ahead(2 * WINDOW_SECONDS, is_busy=False) == MAX_AHEAD


def test_a_stalled_queue_claims_nothing_ahead_until_a_step_ends() -> None:
    pace, now = steady(10, 0.001)
    pace.stop_claiming_ahead()
    assert pace.count_rows_to_claim_ahead(now, is_busy=False) == 0
    pace.record_step_end(0.001, now)
    assert pace.count_rows_to_claim_ahead(now, is_busy=False) >= 300


def test_a_row_behind_claims_of_several_steps_is_expected_later() -> None:
    """Ten slots with steps of 10 ms, five in each claim: a slot is free for another row every 5 ms, not every one."""
    pace, now = QueuePace(10, 0.0), 0.0
    for n in range(100):
        now += 0.001
        pace.record_step_end(0.01, now)
        if n % 5 < 4:
            pace.record_claim_continues()
    assert pace.count_rows_to_claim_ahead(now, is_busy=True) in (39, 40)
    assert 0.0049 <= pace.seconds_per_start <= 0.0051


def test_the_length_of_steps_is_a_moving_mean() -> None:
    """The newest step counts an eighth; a claim has one step as long as no window says otherwise."""
    pace = QueuePace(10, 0.0)
    pace.record_step_end(0.01, 0.0)
    pace.record_step_end(0.018, 0.0)
    pace.count_rows_to_claim_ahead(0.0, is_busy=False)
    assert pace.seconds_per_start == pytest.approx(0.0011)


def test_a_window_counts_only_when_it_has_ended() -> None:
    """One short step in half a window is not a slow worker; at the end of the window it is."""
    pace = QueuePace(10, 0.0)
    pace.record_step_end(0.00001, 0.0)
    assert pace.count_rows_to_claim_ahead(WINDOW_SECONDS / 2, is_busy=False) == MAX_AHEAD
    assert pace.count_rows_to_claim_ahead(WINDOW_SECONDS, is_busy=False) == 0


def test_each_window_counts_anew() -> None:
    """Neither the steps of the first window count in the second, nor that its buffer ran empty."""
    pace, _ = steady(10, 0.0001, count=100)
    pace.record_claim_continues()
    pace.record_empty_buffer()
    pace.count_rows_to_claim_ahead(1.0, is_busy=False)
    for _ in range(10):
        pace.record_step_end(0.0001, 1.5)
    pace.count_rows_to_claim_ahead(2.0, is_busy=False)
    assert pace.seconds_per_start == pytest.approx(0.1)


def test_claims_that_all_go_on_count_as_one() -> None:
    """Five steps, none of which was the last of its claim: the next row waits for at least these five."""
    pace = QueuePace(10, 0.0)
    for _ in range(5):
        pace.record_step_end(0.01, 0.5)
        pace.record_claim_continues()
    pace.record_empty_buffer()
    pace.count_rows_to_claim_ahead(1.0, is_busy=False)
    assert pace.seconds_per_start == pytest.approx(5 * 0.001)
