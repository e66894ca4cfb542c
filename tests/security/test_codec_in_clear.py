"""What a codec leaves in clear is what docs/howto/encrypt.md lists, column by column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.security.test_codec import aes, whole_life
from tests.support.canaries import CANARY, Patient, Secret, Vault, Waiter, burn, echo, told
from tests.support.engine import BRIEF, Opening

from gen_durable import Finished
from gen_durable.json_codec import ENCRYPTED_PREFIX
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.statements import Statement

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "encrypt.md"
CLEAR: dict[str, set[str]] = {
    "instances": {
        *("fsm", "step", "status", "queue", "partition_key", "metadata", "awaits", "locked_by", "blocked_on"),
        *("slot_key", "rate_key", "group_key", "error_type", "cancel_requested", "cancel_reason", "unique_scope"),
        *("history",),  # names of steps, and the worker
        *("last_error",),  # messages of the engine itself
    },
    "signals": {"name", "dedup_key", "rejection", "rejected_by"},
    "transitions": {"step", "outcome", "next_step", "worker", "error_type", "cause", "earlier"},
    "activities": {"step", "name"},
    "checkpoints": set(),
    "progress": {"step", "branch"},
}
TEXTS = "('text', 'jsonb', 'ARRAY', 'USER-DEFINED')"


async def test_only_listed_columns_are_in_clear(engine: Opening) -> None:
    """After every kind of step, each value of text or JSON in another column is an envelope."""
    async with engine(codec=aes()) as e, e.worker(Vault(), Patient(), Waiter(), echo, burn, **BRIEF):
        await whole_life(e)
        patient = await e.app.insert(Patient.wait, Secret(CANARY), metadata={"a": "b"}, partition_key="p")
        await e.rows.until(patient, status="executing")
        await e.app.cancel(patient.id, reason="enough")
        await e.end(patient)
        found: dict[str, set[str]] = {}
        for table in CLEAR:
            columns = await e.rows.fetch(
                "select column_name, data_type from information_schema.columns "
                f"where table_schema = $1 and table_name = $2 and data_type in {TEXTS}",
                e.rows.schema,
                table,
            )
            for name, kind in columns:
                value = f"{name} #>> '{{}}'" if kind == "jsonb" else f"{name}::text"
                query = f"select count(*) from @.{table} where not starts_with({value}, $1) and {value} <> '{{}}'"
                if await e.rows.value(query, ENCRYPTED_PREFIX):
                    found.setdefault(table, set()).add(name)
    assert {table: names - CLEAR[table] for table, names in found.items() if names - CLEAR[table]} == {}
    assert {"fsm", "step", "queue", "partition_key", "metadata", "error_type"} <= found["instances"]


def test_the_page_names_every_table() -> None:
    """The table of the page has the tables of the list above."""
    section = PAGE.read_text().split("## What is never encrypted")[1].split("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", " ".join(line.split("|")[2] for line in section.splitlines() if line[:1] == "|"))
    )
    assert {table for table, columns in CLEAR.items() if columns} <= named


@pytest.mark.parametrize("has_codec", [True, False])
async def test_no_statement_carries_a_payload(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, has_codec: bool
) -> None:
    """The parameters of all statements, which a server may log, are encrypted; without a codec they are not."""
    sent: list[str] = []
    run = PersistentConnection.run

    async def recording(self: Any, statement: Statement[Any], **named: Any) -> Any:
        sent.append(repr(statement.args))
        return await run(self, statement, **named)

    monkeypatch.setattr(PersistentConnection, "run", recording)
    async with engine(codec=aes() if has_codec else None) as e, e.worker(Vault(), echo, burn, **BRIEF):
        await whole_life(e)
    assert len(sent) > 10
    assert any(CANARY in text for text in sent) is not has_codec


async def test_a_signal_without_a_payload_needs_no_key(engine: Opening) -> None:
    """By SQL and by a client: it is stored in clear, and the step gets None."""
    async with engine(codec=aes()) as e, e.worker(Waiter(), **BRIEF):
        waiting = await e.app.insert(Waiter.wait, Secret("x"))
        await e.rows.until(waiting, status="awaiting_signal")
        await e.rows.fetch("select @.signal($1::bigint, 'plain')", waiting.id)
        await e.rows.fetch("select @.signal($1::bigint, 'told', '\"x\"', dedup_key => 'once')", waiting.id)
        rejected: list[Any] = []

        async def is_rejected() -> bool:
            rejected[:] = await e.app.rejected_signals()
            return bool(rejected)

        await e.rows.when(is_rejected)
        assert [one.name for one in rejected] == ["told"]
        assert (await e.rows.value("select count(*) from @.signals where name = 'plain' and payload is null")) == 1
        await waiting.signal(told, Secret("real"), dedup_key="once")  # the rejected one has freed its key
        assert await e.end(waiting) == Finished(waiting.id, "real/x")
