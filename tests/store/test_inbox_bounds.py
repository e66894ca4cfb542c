"""The bounds of an inbox: per name, and in total for names that are not awaited."""

from __future__ import annotations

import pytest
from tests.support.machine import send
from tests.support.rows import executing, parked, signal
from tests.support.store import Store

from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.types import OutgoingSignal

FILL = """
insert into @schema.signals (target_id, name, size) select 1, {name}, {size} from generate_series(1, {count}) as n;
update @schema.instances set has_signals = true where id = 1;
"""


def verdict(store: Store, name: str, payload: str = "1") -> str:
    return store.signal(OutgoingSignal(1, None, name, payload, None))[0][1]


def test_ten_thousand_signals_of_a_name_do_not_shut_out_another(store: Store) -> None:
    store.given(parked(1) + FILL.format(name="'spam'", size=1, count=10_000))
    assert verdict(store, "spam") == "full"
    assert verdict(store, "next") == "delivered"
    assert store.signal(send(1)) == [(1, "delivered", "default")]


def test_64_mb_of_a_name_do_not_shut_out_another(store: Store) -> None:
    store.given(parked(1) + FILL.format(name="'spam'", size=1_000_000, count=64))
    assert verdict(store, "spam") == "full"
    assert verdict(store, "next") == "delivered"
    assert verdict(store, "go") == "delivered"


@pytest.mark.parametrize(("size", "count"), [(1, 20_000), (1_000_000, 128)], ids=["signals", "bytes"])
@pytest.mark.parametrize("row", [parked(1), executing(1, awaits=["go"])], ids=["parked", "executing"])
def test_invented_names_are_bounded_together_and_awaited_ones_are_not(
    store: Store, size: int, count: int, row: str
) -> None:
    store.given(row + FILL.format(name="'n' || n", size=size, count=count))
    assert verdict(store, "n-more") == "full"
    assert verdict(store, "go") == "delivered"
    store.sql("delete from @schema.signals where id = (select min(id) from @schema.signals)")
    assert verdict(store, "go") == "delivered"


def test_the_signals_of_one_call_are_bounded_by_name(store: Store) -> None:
    store.given(parked(1) + FILL.format(name="'spam'", size=1_000_000, count=60))
    several = [OutgoingSignal(1, None, name, f'"{"x" * 1_000_000}"', None) for name in ("spam", "other") * 5]
    verdicts = [found for _, found, _ in store.signal(*several)]
    assert verdicts[::2] == ["delivered"] * 3 + ["full"] * 2
    assert verdicts[1::2] == ["delivered"] * 5


def test_the_key_of_a_rejected_signal_is_free_in_a_full_inbox(store: Store) -> None:
    """The answer is that the inbox is full: a sender must not take the signal for delivered."""
    store.given(parked(1) + FILL.format(name="'spam'", size=1, count=10_000))
    store.given(signal(7, 1, "spam", dedup_key="d", consumed=True, rejection="no"))
    assert store.signal(OutgoingSignal(1, None, "spam", "1", "d"))[0][1] == "full"


def test_pages_of_some_names_and_of_the_others(store: Store) -> None:
    store.given(executing(1))
    for name in ("a", "b", "c", "a"):
        assert verdict(store, name) == "delivered"

    def names(*args: object) -> list[str]:
        return [received.name for received in store.run(InboxStatementBuilder(store.schema).inbox_page(1, 0, *args))]

    assert names() == ["a", "b", "c", "a"]
    assert names(["a", "b"]) == ["a", "b", "a"]
    assert names(None, ["a", "b"]) == ["c"]


def test_a_page_skips_what_is_left_out_however_large(store: Store) -> None:
    """More than a page of another name lies before the signal."""
    store.given(executing(1) + FILL.format(name="'spam'", size=3_000_000, count=3))
    assert verdict(store, "go") == "delivered"
    for args in ((["go"], ()), (None, ["spam"])):
        assert [
            received.name for received in store.run(InboxStatementBuilder(store.schema).inbox_page(1, 0, *args))
        ] == ["go"]


def test_more_than_ten_thousand_signals_do_not_come_with_the_claim(store: Store) -> None:
    store.given(parked(1) + FILL.format(name="'n' || n % 2", size=0, count=10_001))
    store.signal(send(1))
    (claim,) = store.pick().claims
    assert claim.has_unread_inbox
