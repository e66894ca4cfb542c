"""Inserts of one login at the edge of its quota, at once: together they never exceed it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End, Explorer, Report
from tests.support.exploring import Exploring

from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row

# What insert does for a login with a quota; in this schema without roles it does not come to that by itself.
INSERT = """
create or replace function @schema.insert_by(login oid, many int) returns void language plpgsql as $$
begin
  perform @schema.take_login_quota(login, many);
  insert into @schema.instances (fsm, step, inserted_by) select 'm', 's', login from generate_series(1, many);
end
$$;
"""
LIVE = """
insert into @schema.restricted_logins (login, login_name, max_live, live_left) values (7, 'shop', 3, {left})
on conflict (login) do update set
  max_live = excluded.max_live, live_left = excluded.live_left, inserts_per_second = null;
insert into @schema.instances (fsm, step, inserted_by) values ('m', 's', 7);
"""
RATE = """
insert into @schema.restricted_logins (login, login_name, inserts_per_second) values (7, 'shop', 0.001)
on conflict (login) do update set
  max_live = null, inserts_per_second = excluded.inserts_per_second, drained_until = null;
"""
LOCK = Cure("take_login_quota", "  for no key update;", ";")


def insert(schema: Schema, many: int = 2) -> Statement[Sequence[Row]]:
    return Statement(schema.render("select @schema.insert_by(7, $1)"), (many,), lambda rows: rows)


async def explore(explorer: Explorer, given: str, many: int, most: int, *, first_fault: bool = False) -> Report:
    def within_quota(end: End) -> None:
        assert len(end.rows) <= most, f"{len(end.rows)} rows"
        refused = [answer for answer in (*end.left, *end.right) if isinstance(answer, Exception)]
        assert len(refused) == 1

    call = insert(explorer.schema, many)
    errors = frozenset({"GD007"})
    return await explorer.explore(given, [call], [call], within_quota, errors=errors, first_fault=first_fault)


@pytest.mark.parametrize(
    ("given", "many", "most"),
    [
        pytest.param(LIVE.format(left=0), 2, 3, id="counted"),
        pytest.param(LIVE.format(left=2), 2, 3, id="what-the-last-count-left"),
        pytest.param(RATE, 1, 1, id="rate"),
    ],
)
async def test_quota_quota(exploring: Exploring, given: str, many: int, most: int) -> None:
    """One of two inserts fits: one is made, the other is refused, whatever their order."""
    async with exploring(also=INSERT) as explorer:
        report = await explore(explorer, given, many, most)
        assert report.faults == []
        assert report.schedules > 1
    async with exploring(LOCK, also=INSERT) as explorer:
        assert (await explore(explorer, given, many, most, first_fault=True)).faults
