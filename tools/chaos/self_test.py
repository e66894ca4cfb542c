"""Proof that the verdict can be bad: for each of its checks, the least harm to a good run that this check must find.

Each harm is done in the database of a run that was judged, in a transaction that is rolled back.
"""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from tools.chaos.checks import CheckResult, check_tables

HARM: Final = {
    "ledger sequence": """
        insert into chaos.ledger (id, seq, claims, step, was, status, replayed)
        select id, seq, claims, step, was, status, replayed from chaos.ledger where n = 1""",
    "ledger is the row": "delete from chaos.ledger where n = (select max(n) from chaos.ledger)",
    "steps counted": """
        update gen_durable.instances set result = jsonb_set(result, '{steps}', '999')
        where id = (select min(id) from gen_durable.instances where status = 'done')""",
    "accepted inserts": "delete from gen_durable.instances where id = (select min(id) from chaos.expected)",
    "all ended": """
        update gen_durable.instances set status = 'runnable', finished_at = null
        where id = (select min(id) from gen_durable.instances)""",
    "results": """
        update gen_durable.instances set result = jsonb_set(result, '{value}', '-1')
        where id = (select min(id) from chaos.expected where kind = 'Chain')""",
    "fence": "update chaos.ledger set claims = claims + 1 where n = 1",
    "commit before proceed": """
        update chaos.ledger set at = at + interval '1 minute'
        where n = (select min(l.n) from chaos.ledger l join chaos.effects e on e.id = l.id and e.seq = l.seq)""",
    "executions accounted": """
        insert into chaos.effects
        select worker, id, claims + 100, seq, attempt, step, began, ended from chaos.effects limit 1""",
    "once per claim": "insert into chaos.effects select * from chaos.effects where step = 'Chain.work' limit 1",
    "attempts": "update chaos.effects set attempt = 50 where began = (select min(began) from chaos.effects)",
    "signals": "insert into chaos.sent select id, 99, true from chaos.expected where kind = 'Mailbox' limit 1",
    "families": """
        delete from gen_durable.instances where id = (
          select min(c.id) from gen_durable.instances c
          join chaos.expected e on e.id = c.parent_id and e.kind = 'Parent'
        )""",
    "spawned once": "update gen_durable.instances set metadata = null where metadata is not null",
    "partition order": "update chaos.expected set partition_key = 'one' where partition_key is not null",
    "partition overlap": "update chaos.expected set partition_key = 'one' where partition_key is not null",
    "slots": "update chaos.effects set step = 'Narrow.squeeze' where step = 'Chain.work'",
    "timers": """
        update gen_durable.instances set state = jsonb_set(state, '{delay}', '500')
        where id = (select min(id) from chaos.expected where kind = 'Timer')""",
    "transactional rows": "insert into chaos.book select * from chaos.book limit 1",
    "activities": """
        insert into gen_durable.activities
          (instance_id, started_at, duration, visit, n, attempt, step, name, parameters, result)
        select instance_id, started_at, duration, visit, n + 100, attempt + 1, step, name, parameters, result
        from gen_durable.activities where error is null limit 1""",
    "activities, their answers": "update chaos.book set receipt = 'x' where id = (select min(id) from chaos.book)",
    "poisons": """
        update chaos.expected set kind = 'Poison', result = null
        where id = (select min(id) from chaos.expected where kind = 'Chain')""",
    "neighbours": """
        update gen_durable.instances set status = 'failed', result = null, last_error = 'x'
        where id = (select min(id) from chaos.expected where kind = 'Chain')""",
    "urgent": "update gen_durable.instances set inserted_at = inserted_at - interval '1 minute', "
    "eligible_at = eligible_at - interval '1 minute' where fsm = 'Urgent'",
    "rate": "insert into chaos.grants (id, claims) select 1, n from generate_series(1, 20) as n",
}


async def verify_checks(connection: asyncpg.Connection[Any]) -> list[CheckResult]:
    """One line for each check: whether it has found its harm."""
    lines: list[CheckResult] = []
    checks = {line.name for line in await check_tables(connection)}
    for name, sql in HARM.items():
        transaction = connection.transaction()
        await transaction.start()
        try:
            done = await connection.execute(sql)
            (found,) = [line for line in await check_tables(connection) if line.name == name.partition(",")[0]]
        finally:
            await transaction.rollback()
        good = not found.good and not done.endswith(" 0")
        lines.append(CheckResult(f"proof: {name}", "It finds the harm that was done.", good, found.details or done))
    missing = checks - set(HARM)
    lines.append(CheckResult("proof", "Every check has a harm.", not missing, ", ".join(sorted(missing))))
    return lines
