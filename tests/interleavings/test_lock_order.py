"""Whoever locks several rows, keys or gates and waits for them takes them in order: nobody deadlocks with anybody.

Two calls of the same function would agree in any order. So each is led against a session that goes up one by one,
as all others do.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M, child
from tests.support.rows import executing, instance, parent, parked, seconds, signal

from gen_durable.limits import Concurrency, Rate
from gen_durable.starts import Start
from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

CLIMBERS = """
create or replace function @schema.climb_rows(ids bigint[]) returns void language plpgsql as $$
declare
  one bigint;
begin
  foreach one in array ids loop
    perform @schema.breakpoint('climb ' || one);
    perform from @schema.instances i where i.id = one for no key update;
  end loop;
end
$$;
create or replace function @schema.climb_keys(keys bytea[]) returns void language plpgsql as $$
declare
  one bytea;
begin
  foreach one in array keys loop
    perform @schema.breakpoint('climb');
    insert into @schema.instances (fsm, step, unique_key, unique_scope) values ('m', 's', one, '{runnable}')
    on conflict (unique_guard) where unique_guard is not null do nothing;
  end loop;
end
$$;
create or replace function @schema.climb_gates(gates text[]) returns void language plpgsql as $$
declare
  one bigint;
begin
  for one in select distinct @schema.gate_row_id(g.gate) from unnest(gates) as g (gate) order by 1 loop
    perform @schema.breakpoint('climb');
    perform from @schema.gate_locks lock where lock.id = one for no key update;
  end loop;
end
$$;
"""


def climbs(calls: StatementBuilder, what: str, steps: list[Any]) -> list[Statement[Any]]:
    kind = {"rows": "bigint[]", "keys": "bytea[]", "gates": "text[]"}[what]
    return [Statement(calls.schema.render(f"select @schema.climb_{what}($1::{kind})"), (steps,), list)]


def whatever(_: End) -> None:
    """Nobody was thrown out: that is all."""


TOLD = "insert into @schema.limits (name, kind, period, burst) values ('r', 'rate', 3600, 1);\n" + "".join(
    instance(i, rate_key="r", eligible_at=seconds(-9), token_at=seconds(600)) for i in (1, 2)
)
ROWS: dict[str, tuple[str, Any]] = {
    "flush": (
        parent(1, pending=1) + executing(2, parent_id=1, parent_round=1),
        lambda calls: calls.flush([Commit(2, 1, 0, "done", value="1", parent=1)]),
    ),
    "flush-of-two": (
        executing(1) + executing(2),
        lambda calls: calls.flush([Commit(i, 1, 0, "retry") for i in (1, 2)]),
    ),
    "signal": (
        parked(1) + parked(2),
        lambda calls: calls.signal([OutgoingSignal(i, None, "go", None, None) for i in (1, 2)]),
    ),
    "cancel": (
        parent(1, pending=1) + parked(2, parent_id=1, parent_round=1),
        lambda calls: calls.cancel([(2, None)], "why", cascade=False),
    ),
    "retry": (
        parent(1, pending=1)
        + parked(3, parent_id=1, parent_round=1)
        + instance(2, parent_id=1, parent_round=1, status="failed", finished_at=seconds(-1)),
        lambda calls: Statement(calls.schema.render("select * from @schema.retry(2)"), (), list),
    ),
    "release": (
        executing(1) + executing(2),
        lambda calls: calls.release_claims([(i, 1, None, None) for i in (1, 2)]),
    ),
    "reject-signals": (
        executing(1, awaits=["go"]) + executing(2, awaits=["go"]) + signal(7, 1) + signal(8, 2),
        lambda calls: Statement(
            calls.schema.render(
                "select * from @schema.reject_signals_and_release_claims('{1,2}', '{1,1}', '{7,8}', '{a,b}', '{f,f}')"
            ),
            (),
            list,
        ),
    ),
    "restore-signals": (
        parked(1) + parked(2) + "".join(signal(6 + i, i, consumed=True, rejection="no") for i in (1, 2)),
        lambda calls: InboxStatementBuilder(calls.schema).restore_signals([8, 7]),
    ),
    "set-limit": (TOLD, lambda calls: calls.set_limit("r", Rate(1, timedelta(minutes=1)), declared=False)),
}


@pytest.mark.parametrize("name", ROWS)
async def test_rows_are_locked_in_the_order_of_ids(exploring: Exploring, calls: StatementBuilder, name: str) -> None:
    given, call = ROWS[name]
    async with exploring(also=CLIMBERS) as explorer:
        report = await explorer.explore(given, [call(calls)], climbs(calls, "rows", [1, 2]), whatever)
    assert report.faults == []
    assert report.schedules > 3


def spread(calls: StatementBuilder) -> Statement[Any]:
    """A parent starts two children, listed in the wrong order."""
    extra = json.dumps({"children": [child("b"), child("a")]})
    return calls.flush([Commit(1, 1, 0, "children", step="t", extra=extra)])


@pytest.mark.parametrize("what", ["insert", "spawn"])
async def test_keys_are_taken_in_their_order(exploring: Exploring, calls: StatementBuilder, what: str) -> None:
    inserting = calls.insert([Start(M.s, {}, unique_key=key) for key in "ba"], "skip")
    async with exploring(also=CLIMBERS) as explorer:
        report = await explorer.explore(
            executing(1),
            [inserting if what == "insert" else spread(calls)],
            climbs(calls, "keys", [b"a", b"b"]),
            whatever,
        )
    assert report.faults == []


async def test_gates_are_locked_in_the_order_of_their_numbers(exploring: Exploring, calls: StatementBuilder) -> None:
    """Whatever order the rows have that free them."""
    for keys in ("ab", "ba"):
        given = "".join(executing(i, partition_key=key) for i, key in enumerate(keys, 1))
        ends = [calls.flush([Commit(i, 1, 0, "done", value="1") for i in (1, 2)])]
        gates = [f"partition/{key}" for key in keys]
        async with exploring(also=CLIMBERS) as explorer:
            report = await explorer.explore(given, ends, climbs(calls, "gates", gates), whatever)
        assert report.faults == []
        assert report.schedules > 3


async def test_a_change_of_policy_locks_gates_in_the_order_of_their_numbers(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    given = "insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);\n"
    async with exploring(also=CLIMBERS) as explorer:
        report = await explorer.explore(
            given,
            [calls.set_limit("l", Concurrency(2), declared=False)],
            climbs(calls, "gates", ["slot/l/a", "slot/l/b"]),
            whatever,
        )
    assert report.faults == []
    assert report.schedules > 3
