"""How often messages may cause a pick: in bursts, then at a steady pace, and freely while they lead to rows."""

from __future__ import annotations

from gen_durable.engine.wakeup_budget import BURST, PICKS_PER_FIND, PICKS_PER_SECOND, WakeupBudget


def count_picks(budget: WakeupBudget, start: float, seconds: float, per_second: int, *, finds: bool = False) -> int:
    """How many picks so many messages cause: those at once, and one at each moment that they are put off to."""
    moments = set[float]()
    for n in range(int(seconds * per_second)):
        now = start + n / per_second
        pick_at = budget.reserve_pick_time(now)
        assert now <= pick_at <= now + 1 / PICKS_PER_SECOND + 1e-9
        moments.add(pick_at)
        if finds and pick_at == now:
            budget.refill_after_find()
    return len(moments)


def test_a_burst_and_then_a_steady_pace() -> None:
    budget = WakeupBudget(100.0)
    assert [budget.reserve_pick_time(100.0) for _ in range(int(BURST))] == [100.0] * int(BURST)
    assert budget.reserve_pick_time(100.0) > 100.0
    assert count_picks(budget, 100.0, 10.0, 10_000) <= 10.0 * PICKS_PER_SECOND + 1


def test_the_burst_comes_back_with_time() -> None:
    budget = WakeupBudget(0.0)
    count_picks(budget, 0.0, 1.0, 1000)
    assert budget.reserve_pick_time(1.001) > 1.001
    assert [budget.reserve_pick_time(10.0) for _ in range(int(BURST))] == [10.0] * int(BURST)


def test_messages_that_lead_to_rows_are_never_put_off() -> None:
    assert count_picks(WakeupBudget(0.0), 0.0, 5.0, 1000, finds=True) == 5000


def test_a_find_pays_for_some_picks_only() -> None:
    budget = WakeupBudget(0.0)
    for _ in range(int(BURST) + 1):
        budget.reserve_pick_time(0.0)
    budget.refill_after_find()
    later = 1 / PICKS_PER_SECOND + 1e-6
    assert sum(budget.reserve_pick_time(later) == later for _ in range(100)) <= PICKS_PER_FIND + 1
