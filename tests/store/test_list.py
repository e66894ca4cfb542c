"""Listing and counting: each filter, pages while rows change, and calls that are cut before they have seen all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.machine import M, child, fan_out
from tests.support.rows import LIVE, ended, executing, instance, parent, parked, seconds
from tests.support.store import Store

from gen_durable.instances import Instance
from gen_durable.listing import Count, Page, decode_cursor, encode_filters
from gen_durable.starts import Start
from gen_durable.store.row_decoder import decode_instance
from gen_durable.store.sql_files import metadata_index_script
from gen_durable.store.statements import Statement

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)


def page(store: Store, limit: int = 50, after: str | None = None, **filters: Any) -> Page:
    return store.run(store.reads.list(encode_filters(filters), decode_cursor(after), limit, payloads=False))


def ids(store: Store, **filters: Any) -> list[int]:
    """All that fit, on one page; counting them says the same."""
    found = page(store, **filters)
    assert found.cursor is None
    assert store.run(store.reads.count(encode_filters(filters))) == Count(len(found), exact=True)
    return [one.id for one in found]


@pytest.fixture
def zoo(store: Store) -> Store:
    """One of each."""
    store.given(
        ended(1, ago=7200, status="failed", last_error="no", inserted_at=seconds(-9000), updated_at=seconds(-7200))
        + instance(8, queue="q", fsm_version=2, metadata='{"tenant": "acme", "order": {"n": 1}}')
        + executing(2, partition_key="p", fsm="other")
        + parked(3, step="t", unique_key=b"k", unique_scope=LIVE)
        + parent(4, 2)
        + instance(5, parent_id=4, parent_round=1)
        + instance(6, parent_id=4, parent_round=1, partition_key="p", blocked_on="partition/p")
        + ended(7, ago=10, unique_key=b"k", metadata='{"tenant": "acme"}')
        + ended(9, ago=10, status="cancelled", metadata='{"tenant": "other"}')
    )
    return store


FILTERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "nothing": ({}, [9, 8, 7, 6, 5, 4, 3, 2, 1]),
    "runnable": ({"status": "runnable"}, [8, 6, 5]),
    "executing": ({"status": "executing"}, [2]),
    "due": ({"due": True}, [8, 5]),
    "not due": ({"due": False}, [9, 7, 6, 4, 3, 2, 1]),
    "blocked": ({"blocked": True}, [6]),
    "blocked and due": ({"blocked": True, "due": True}, []),
    "not blocked": ({"blocked": False, "status": "runnable"}, [8, 5]),
    "error": ({"error": "NO"}, [1]),
    "error of a status": ({"error": "no", "status": "failed"}, [1]),
    "another error": ({"error": "no%"}, []),
    "failed": ({"status": "failed"}, [1]),
    "cancelled or failed": ({"status": ["failed", "cancelled"]}, [9, 1]),
    "several": ({"status": ["executing", "failed", "done"]}, [7, 2, 1]),
    "waiting": ({"status": {"awaiting_signal", "awaiting_children"}}, [4, 3]),
    "machine": ({"machine": "other"}, [2]),
    "version": ({"version": 2}, [8]),
    "step": ({"step": "t"}, [3]),
    "queue": ({"queue": "q"}, [8]),
    "partition key": ({"partition_key": "p"}, [6, 2]),
    "parent": ({"parent": 4}, [6, 5]),
    "unique key": ({"unique_key": "k"}, [7, 3]),  # also 7, which has released it
    "inserted before": ({"inserted_before": NOW - HOUR}, [1]),
    "inserted after": ({"inserted_after": NOW - HOUR, "status": ["failed", "cancelled"]}, [9]),
    "updated before": ({"updated_before": NOW - HOUR}, [1]),
    "updated after": ({"updated_after": NOW - HOUR, "machine": "other"}, [2]),
    "finished after": ({"finished_after": NOW - HOUR}, [9, 7]),
    "finished before": ({"finished_before": NOW - HOUR}, [1]),
    "finished between": ({"finished_after": NOW - 3 * HOUR, "finished_before": NOW - HOUR}, [1]),
    "metadata": ({"metadata": {"tenant": "acme"}}, [8, 7]),
    "metadata within": ({"metadata": {"order": {"n": 1}}}, [8]),
    "metadata and status": ({"metadata": {"tenant": "acme"}, "status": "done"}, [7]),
    "any metadata": ({"metadata": {}}, [9, 8, 7]),
    "nobody": ({"machine": "nobody"}, []),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(zoo: Store, name: str) -> None:
    """Each finds what it says, newest first, whatever else there is."""
    filters, expected = FILTERS[name]
    assert ids(zoo, **filters) == expected


def test_what_is_listed(zoo: Store) -> None:
    """Instances come without states and results unless asked for, else as `get` tells them."""
    (light,) = page(zoo, status="executing")
    assert (light.raw_state, light.raw_result, light.machine, light.locked_by) == (None, None, "other", "w")
    (whole,) = zoo.run(zoo.reads.list(encode_filters({"status": "executing"}), None, 9, payloads=True))
    assert whole == zoo.run(zoo.calls.get(2, None))
    (blocked,) = page(zoo, partition_key="p", status="runnable")
    assert (blocked.blocked_on, blocked.due_at, blocked.metadata) == ("partition/p", None, {})


def test_pages(zoo: Store) -> None:
    """Each page goes on where the last one ended; the last one says so."""
    first = page(zoo, 4)
    second = page(zoo, 4, first.cursor)
    third = page(zoo, 4, second.cursor)
    assert [[one.id for one in p] for p in (first, second, third)] == [[9, 8, 7, 6], [5, 4, 3, 2], [1]]
    assert third.cursor is None
    assert page(zoo, 9).cursor is None


def through(store: Store, limit: int, **filters: Any) -> Iterator[Instance]:
    cursor = None
    while True:
        found = page(store, limit, cursor, **filters)
        yield from found
        cursor = found.cursor
        if cursor is None:
            return


def test_pages_while_rows_change(store: Store) -> None:
    """Rows that come, go and change between pages: nobody is seen twice, who stays and fits is seen."""
    store.given("".join(instance(n) for n in range(1, 41)))
    seen = []
    for one in through(store, 5, status="runnable"):
        seen.append(one.id)
        if one.id == 36:  # the end of the first page
            store.given(
                "delete from @schema.instances where id in (36, 35);"
                " update @schema.instances set status = 'awaiting_signal', awaits = '{a}', seen = '{}' where id = 34;"
                " update @schema.instances set updated_at = now(), priority = 5 where id = 33;" + instance(50)
            )
    assert seen == [*range(40, 35, -1), *range(33, 0, -1)]


def cut(store: Store, below: int | None, limit: int, scan: int, **filters: Any) -> tuple[list[int], int | None]:
    """A call that looks at few rows."""
    call = Statement(
        store.schema.render("select ids, rest from @schema.list($1, $2, $3, $4)"),
        (encode_filters(filters), below, limit, scan),
        lambda rows: (rows[0][0] or [], rows[0][1]),
    )
    return store.run(call)


def test_a_call_that_is_cut_goes_on(store: Store) -> None:
    """A page that has looked at as many rows as it may is short, even empty, and says where to go on."""
    store.given("".join(instance(n, step="rare" if n in (3, 25) else "s") for n in range(1, 31)))
    assert cut(store, None, 5, 10, step="rare") == ([25], 21)
    assert cut(store, 21, 5, 10, step="rare") == ([], 11)
    assert cut(store, 11, 5, 10, step="rare") == ([3], 1)
    assert cut(store, 1, 5, 10, step="rare") == ([], None)


def test_children_of_many_rounds(store: Store) -> None:
    """Pages of a parent's children go through its rounds, and go on although the child they ended with is gone."""
    store.given(
        executing(1, round=3) + "".join(ended(n, parent_id=1, parent_round=n // 10) for n in range(10, 40))
    )  # fmt: skip
    assert [one.id for one in through(store, 7, parent=1)] == [*range(39, 9, -1)]
    store.given("delete from @schema.instances where id = 25")
    assert cut(store, 25, 3, 100, parent=1) == ([24, 23, 22], 22)


def test_few_by_their_own_index_else_by_age(store: Store) -> None:
    """Executing and lately finished ones are found at once if they are few; if they are many, newest rows first."""
    store.given("".join(executing(n) for n in range(1, 8)) + "".join(instance(n) for n in range(8, 41)))
    assert cut(store, None, 3, 28, status="executing") == ([7, 6, 5], 5)  # 7 are few
    assert cut(store, None, 3, 24, status="executing") == ([], 17)  # 7 are many
    assert cut(store, 17, 3, 24, status="executing") == ([7, 6, 5], 5)


def test_counts_that_are_estimated(store: Store) -> None:
    """Beyond what may be looked at a count is an estimate, never less than what was seen."""
    store.sql(
        "insert into @schema.instances (fsm, step) select 'm', case when n % 4 = 0 then 't' else 's' end"
        " from generate_series(1, 2000) n"
    )

    def count(most: int, scan: int, **filters: Any) -> tuple[int, bool]:
        text = store.schema.render("select value, exact from @schema.count($1, $2, $3, 10000)")
        return store.run(Statement(text, (encode_filters(filters), most, scan), lambda rows: (rows[0][0], rows[0][1])))

    assert count(2000, 5000) == (2000, True)
    assert count(100, 5000, step="t") == (500, False)  # all pages are in the sample
    assert count(500, 5000, step="t") == (500, True)
    assert count(500, 1000, step="t") == (500, False)
    assert count(500, 1000, step="none") == (0, False)


def test_the_planner_never_estimates_none(store: Store) -> None:
    """Its smallest guess is one row; if no row was seen and none sampled, the count is 0."""
    store.sql("insert into @schema.instances (fsm, step) select 'm', 's' from generate_series(1, 3000) n")
    store.given("analyze @schema.instances")
    text = store.schema.render("select value, exact from @schema.count($1, 100, 100, 1)")
    counted = Statement(text, (encode_filters({"step": "none"}),), lambda rows: (rows[0][0], rows[0][1]))
    assert store.run(counted) == (0, False)


@pytest.mark.dirty
def test_due_rows_are_found_at_once_if_few_rows_may_be_picked(store: Store) -> None:
    """Else newest rows first: rows that are scheduled for later fill the same index. So for blocked rows."""
    store.given(
        "".join(instance(n) for n in range(1, 4))
        + "".join(instance(n, partition_key="p", blocked_on="partition/p") for n in range(4, 8))
        + "".join(instance(n, eligible_at=seconds(3600)) for n in range(8, 12))
        + "".join(ended(n) for n in range(12, 41))
    )
    assert cut(store, None, 3, 28, due=True) == ([3, 2, 1], None)  # 7 are few
    assert cut(store, None, 3, 24, due=True) == ([], 17)
    assert cut(store, None, 3, 16, blocked=True) == ([7, 6, 5], 5)
    assert cut(store, None, 3, 12, blocked=True) == ([], 29)


def test_metadata_index(zoo: Store) -> None:
    """With the index, what is rare is found at once and completely although the newest rows do not have it."""
    zoo.sql(
        "insert into @schema.instances (fsm, step, metadata) select 'm', 's', '{\"tenant\": \"many\"}'"
        " from generate_series(1, 100) n"
    )
    assert cut(zoo, None, 5, 50, metadata={"tenant": "acme"}) == ([], 151)
    zoo.sql(metadata_index_script(zoo.schema))
    zoo.sql("select @schema.has_metadata_index()")
    assert cut(zoo, None, 5, 50, metadata={"tenant": "acme"}) == ([8, 7], None)
    assert cut(zoo, None, 1, 50, metadata={"tenant": "acme"}) == ([8], 8)
    assert cut(zoo, 8, 1, 50, metadata={"tenant": "acme"}) == ([7], None)
    assert cut(zoo, None, 5, 50, metadata={"tenant": "acme"}, status="runnable") == ([8], None)
    assert cut(zoo, 100, 5, 4, metadata={"tenant": "many"}) == ([], 6)  # too many to be told at once
    for filters, expected in (({}, (2, True)), ({"status": "runnable"}, (1, True)), ({"status": "failed"}, (0, True))):
        what = encode_filters({"metadata": {"tenant": "acme"}, **filters})
        ((value, exact),) = zoo.sql("select value, exact from @schema.count($1, 100, 50)", what)
        assert (value, exact) == expected
    ((_, exact),) = zoo.sql(
        "select value, exact from @schema.count($1, 100, 50)", encode_filters({"metadata": {"tenant": "many"}})
    )
    assert not exact


def test_metadata_goes_in(store: Store) -> None:
    """Inserted and spawned instances keep what was said about them; without it nothing is stored."""
    store.insert(Start(M.s, {}, metadata={"a": [1, None]}), Start(M.s, {}), Start(M.s, {}, metadata={}))
    rows = store.rows()
    assert [row["metadata"] for row in rows] == ['{"a": [1, null]}', None, None]
    picked = store.pick()
    store.flush(fan_out(picked.claims[0].id, child(metadata={"b": 2}), child(metadata=None)))
    assert [row["metadata"] for row in store.rows()[3:]] == ['{"b": 2}', None]
    one = store.run(store.calls.get(rows[0]["id"], None))
    assert one is not None
    assert one.metadata == {"a": [1, None]}
    assert decode_instance(tuple(store.sql("select * from @schema.instances_of($1, true)", [rows[0]["id"]])[0])) == one


def test_moments_of_insertion_bound_the_search(store: Store) -> None:
    """Old rows are found without going through the newer ones, and a search for new ones ends before the old ones."""
    store.sql(
        "insert into @schema.instances (fsm, step, inserted_at) "
        "select 'm', 's', now() - make_interval(hours => 200 - n) from generate_series(1, 200) n order by n"
    )  # ids from 101 on, one an hour
    now = datetime.now(UTC)
    old = {"inserted_before": now - 150 * HOUR}
    assert cut(store, None, 2, 10, **old) == ([150, 149], 149)
    assert cut(store, 149, 60, 100, **old) == ([*range(148, 100, -1)], None)
    assert cut(store, None, 50, 20, inserted_after=now - 10.5 * HOUR) == ([*range(300, 289, -1)], None)
    assert cut(store, None, 50, 11, inserted_after=now - 10.5 * HOUR) == ([*range(300, 289, -1)], 290)  # perhaps more
    assert cut(store, None, 2, 10, **old, inserted_after=now - 152 * HOUR) == ([150, 149], None)
    assert store.run(store.reads.count(encode_filters(old))) == Count(50, exact=True)
