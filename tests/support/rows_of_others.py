"""Rows of one login in every table, which no other login may change."""

from __future__ import annotations

from typing import Any

import psycopg
from tools.hostile.rows_of_others import OWNED, SHARED, digest_sql, login_sql

_ROWS = """
insert into @.signals (target_id, name, payload, dedup_key) select id, 'other', '"x"', 'once' from {mine};
update {mine} set has_signals = true, has_journal = true where id in (select target_id from @.signals);
insert into @.transitions (instance_id, started_at, duration, seq, attempt, step, outcome, next_step, worker, error,
  error_type, traceback, state) select id, now(), 1, 0, 0, 's', 'Next', 's', 'w', 'e', 'E', 't', '"x"' from {mine};
insert into @.activities select id, now(), 1, 0, 1, 0, 's', 'a', '{{}}', '"x"' from {mine};
insert into @.checkpoints select id, now(), 0, 1, 1, '"x"' from {mine};
insert into @.progress select id, now(), 0.5, 's', '', 'm', '"x"' from {mine};
insert into @.step_slots (ticket, slot_key, instance_id, claim) select id, 'slots', id, 1 from {mine};
insert into @.cascades (parent_id, first_round, last_round, origin, reason) select id, 0, 0, id, 'r' from {mine};
insert into @.allocated_ids (id, login) select 900000000 + n, {login} from generate_series(1, 3) as n;
insert into @.restricted_logins (login, login_name, max_live) values ({login}, 'other', 1000);
insert into @.grants (login, machine) values ({login}, 'm');
insert into @.limits (name, kind, slots) values ('slots', 'concurrency', 1);
insert into @.limits (name, kind, period, burst) values ('rate', 'rate', 1, 5);
insert into @.rate_buckets values ('rate', now() + interval '1 hour');
insert into @.retentions (fsm, done) values ('m', 3600);
"""
_UNFINISHED = "delete from @.step_slots; delete from @.cascades; delete from @.signals where name = 'other';"


class RowsOfOthers:
    """The rows of a login that has inserted some instances, made and read by a superuser."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, login: str) -> None:
        self._connection = connection
        self._schema = schema
        found = connection.execute(login_sql(login).encode()).fetchone()
        assert found is not None
        self.login = int(found[0])

    def make(self) -> None:
        """Give each instance of the login a row in every table."""
        mine = f"(select * from @.instances where inserted_by = {self.login}) as mine"
        for statement in _ROWS.format(mine="@mine", login=self.login).strip().splitlines():
            text = statement.replace("update @mine set", "update @.instances set").replace("@mine", mine)
            self._connection.execute(text.replace("@.", f'"{self._schema}".').encode())
        empty = [table for table, (count, _) in self.digests().items() if not count]
        assert empty == []

    def remove_unfinished(self) -> None:
        """Leave nothing for the doctor: no work is pending for these rows."""
        self._connection.execute(_UNFINISHED.replace("@.", f'"{self._schema}".').encode())

    def digests(self) -> dict[str, tuple[int, str]]:
        """The number and the digest of the rows, by table."""
        rows = self._connection.execute(
            digest_sql(self._schema, self.login, f"i.inserted_by = {self.login}").encode()
        ).fetchall()
        return {table: (count, digest) for table, count, digest in rows}

    def tables(self) -> set[str]:
        """The tables of the schema."""
        query = b"select relname from pg_class where relkind in ('r', 'p') and relnamespace = %s::regnamespace"
        return {row[0] for row in self._connection.execute(query, [f'"{self._schema}"']).fetchall()}


COMPARED = {*OWNED, *SHARED}
