"""Pages that are walked while rows come, go, run, end and are tried again.

A row that fits from the first page to the last is on exactly one of them; no row is on two, whatever happens to it.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.length import short_or_long
from tests.support.rows import executing, instance, parent
from tests.support.store import Store

from gen_durable.listing import encode_filters
from gen_durable.store.statements import Statement
from gen_durable.store.types import Commit

LONG_AGO = datetime.now(UTC) - timedelta(days=1)
FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "runnable": {"status": "runnable"},
    "live": {"status": ["runnable", "executing"]},
    "executing": {"status": "executing"},
    "troubled": {"status": ["failed", "cancelled"]},
    "ended": {"status": ["done", "failed", "cancelled"], "machine": "m"},
    "parent": {"parent": 1},
    "children that run": {"parent": 1, "status": ["runnable", "executing"]},
    "finished": {"finished_after": LONG_AGO},
    "inserted": {"inserted_after": LONG_AGO, "queue": "default"},
    "metadata": {"metadata": {"tenant": "acme"}},
}
FAMILY = {"parent_id": 1, "parent_round": 1, "metadata": '{"tenant": "acme"}'}
GIVEN = (
    parent(1, pending=60)
    + "".join(instance(i, **FAMILY) for i in range(2, 42))
    + "".join(executing(i, **FAMILY) for i in range(42, 62))
    + "".join(instance(i, metadata='{"tenant": "acme"}') for i in range(62, 81))
    + "".join(instance(i, status=s, finished_at=LONG_AGO + timedelta(hours=1)) for i, s in enumerate(
        ["done", "failed", "cancelled"] * 6, start=81
    ))
)  # fmt: skip


class Traffic:
    """What happens to the rows between two pages: each time one thing of many."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.done: dict[str, int] = {}

    def happens(self) -> None:
        kind = self.rng.choice(["insert", "run", "end", "cancel", "retry", "delete", "reap"])
        if getattr(self, f"_{kind}")():
            self.done[kind] = self.done.get(kind, 0) + 1

    def _one(self, where: str) -> Any:
        found = self.store.sql(f"select id, claims, seq, parent_id from @schema.instances where {where} order by id")
        return self.rng.choice(found) if found else None

    def _insert(self) -> bool:
        fits = self.rng.random() < 0.5
        self.store.given(
            "insert into @schema.instances (fsm, step, metadata) values ('m', 's', "
            + ("'{\"tenant\": \"acme\"}'" if fits else "null") + ")"
        )  # fmt: skip
        return True

    def _run(self) -> bool:
        return bool(self.store.pick(self.rng.randint(1, 3)).claims)

    def _end(self) -> bool:
        row = self._one("status = 'executing'")
        if row is not None:
            kind = self.rng.choice(["done", "fail", "next"])
            self.store.flush(Commit(row["id"], row["claims"], row["seq"], kind, parent=row["parent_id"]))
        return row is not None

    def _cancel(self) -> bool:
        row = self._one("status = 'runnable' and id <> 1")
        if row is not None:
            self.store.run(self.store.calls.cancel([(row["id"], None)], "why", cascade=False))
        return row is not None

    def _retry(self) -> bool:
        row = self._one("status in ('failed', 'cancelled')")
        return row is not None and self.store.run(self.store.reads.retry(row["id"], None)) is not None

    def _delete(self) -> bool:
        row = self._one("status in ('done', 'failed', 'cancelled') and parent_id is null")
        return row is not None and bool(self.store.run(self.store.reads.delete_instance(row["id"], None)))

    def _reap(self) -> bool:
        row = self._one("status = 'executing'")
        if row is not None:
            self.store.sql(
                "update @schema.instances set lease_expires_at = now() - interval '1 s' where id = $1", row["id"]
            )
            self.store.run(self.store.calls.reap(10, self.rng.choice([None, 1])))
        return row is not None


def fitting(store: Store, filters: dict[str, Any]) -> set[int]:
    """All that fit now, by one plain query without pages."""
    text = store.sql("select filters from @schema.filter_sql($1)", encode_filters(filters))[0][0]
    text = text.replace("$1", "$1::jsonb").replace("true", "$1::jsonb is not null", 1)
    return {row[0] for row in store.sql(f"select i.id from @schema.instances i where {text}", encode_filters(filters))}


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("scan", [20_000, 24], ids=["whole pages", "short pages"])
@pytest.mark.parametrize("name", FILTERS)
def test_no_row_is_missed_and_none_is_seen_twice(store: Store, name: str, scan: int) -> None:
    """Three walks, with one to four things happening before each page."""
    store.given(GIVEN)
    filters = FILTERS[name]
    for seed in range(short_or_long(1, 3)):
        traffic = Traffic(store, seed)
        steady, seen, below, pages = fitting(store, filters), list[int](), None, 0
        while True:
            text = store.schema.render("select ids, rest from @schema.list($1, $2, 6, $3)")
            call = Statement(text, (encode_filters(filters), below, scan), lambda rows: (rows[0][0] or [], rows[0][1]))
            fits_now = fitting(store, filters)
            ids, below = store.run(call)
            assert set(ids) <= fits_now
            seen += ids
            pages += 1
            if below is None:
                break
            for _ in range(traffic.rng.randint(1, 4)):
                traffic.happens()
                steady &= fitting(store, filters)
        assert seen == sorted(set(seen), reverse=True), "twice, or out of order"
        assert steady <= set(seen), f"missed: {sorted(steady - set(seen))}"
        assert pages == 1 or traffic.done
    assert len(seen) > 0
