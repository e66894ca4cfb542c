"""Looking: one instance, those that have ended, the names that nobody knows, the rows that nobody holds."""

from __future__ import annotations

from tests.support.rows import LIVE, ended, executing, instance, parked, seconds
from tests.support.store import Store

from gen_durable.instances import Status
from gen_durable.store.types import EndedInstance, UnknownStep


def test_get_by_id(store: Store) -> None:
    """Every column of an instance, in the words of the library."""
    store.given(
        parked(1, queue="q", priority=3, partition_key="p", unique_key=b"k", attempt=2, crashes=1, last_error="e")
        + executing(2, parent_id=1, parent_round=0, state='{"n": 1}')
        + ended(3, result="[1]")
    )
    one = store.run(store.calls.get(1, None))
    assert one is not None
    assert (one.id, one.machine, one.version, one.step, one.status) == (1, "m", 1, "s", Status.AWAITING_SIGNAL)
    assert (one.queue, one.priority, one.partition_key, one.unique_key, one.awaits) == ("q", 3, "p", b"k", ("go",))
    assert (one.attempt, one.crashes, one.claims, one.seq, one.last_error) == (2, 1, 1, 1, "e")
    two = store.run(store.calls.get(2, None))
    assert two is not None
    assert (two.locked_by, two.parent_id, two.state, two.finished_at, two.result) == ("w", 1, {"n": 1}, None, None)
    three = store.run(store.calls.get(3, None))
    assert three is not None
    assert (three.status, three.result) == (Status.DONE, [1])
    assert three.finished_at is not None
    assert store.run(store.calls.get(99, None)) is None


def test_get_by_key(store: Store) -> None:
    """A key finds the one who holds it now."""
    store.given(ended(1, unique_key=b"k") + instance(2, unique_key=b"k", unique_scope=LIVE))
    found = store.run(store.calls.get(None, b"k"))
    assert found is not None
    assert found.id == 2
    assert store.run(store.calls.get(None, b"x")) is None


def test_watch(store: Store) -> None:
    """Those that have ended are told with their result or reason, unknown ones as such, live ones not at all."""
    store.given(instance(1) + ended(2, result="7") + ended(3, status="failed", last_error="no"))
    found = store.run(store.calls.ends_of([1, 2, 3, 99]))
    assert sorted(found, key=lambda w: w.id) == [
        EndedInstance(2, Status.DONE, "7", None),
        EndedInstance(3, Status.FAILED, None, "no"),
        EndedInstance(99, None, None, None),
    ]


def test_ends_come_in_pages(store: Store) -> None:
    """Results and errors count; a page has at least one row; the rest is found with the ids that are left."""
    store.given("".join(ended(n, result=f'"{"x" * 998}"') for n in range(1, 8)) + ended(8, last_error="x" * 1500))
    ids, pages = list(range(1, 9)), list[list[int]]()
    while ids:
        page = store.run(store.calls.ends_of(ids, 3000))
        pages.append([found.id for found in page])
        ids = [n for n in ids if n not in pages[-1]]
    assert pages == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert [found.id for found in store.run(store.calls.ends_of([1, 2], 1))] == [1]


def test_strangers(store: Store) -> None:
    """Due rows of unknown names are counted per name; known, future and other queues' rows are not."""
    store.given(
        instance(1) + instance(2, fsm="x") + instance(3, fsm="x") + instance(4, fsm_version=2)
        + instance(5, fsm="x", eligible_at=seconds(60)) + instance(6, fsm="x", queue="other") + ended(7, fsm="x")
    )  # fmt: skip
    found = store.run(store.calls.count_due_unknown_steps(["default", "empty"], ["m/1/s"]))
    assert found == [UnknownStep("x", 1, "s", "default", 2), UnknownStep("m", 2, "s", "default", 1)]


def test_unlocked(store: Store, dsn: str) -> None:
    """Rows that another transaction holds are left out; those that do not exist too."""
    store.given(instance(1) + instance(2))
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin; select from @schema.instances where id = 1 for no key update")
        assert store.run(store.calls.unlocked_ids([1, 2, 99])) == {2}
        other.given("rollback")
    finally:
        other.close()
    assert store.run(store.calls.unlocked_ids([1, 2, 99])) == {1, 2}
