"""`gen-durable doctor`: silent when all is well, precise when it is not."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import checks


async def plant(dsn: str, schema: str, rows: int) -> None:
    """Rows that say they wait for a signal, but not for which."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            f"insert into {schema}.instances (fsm, step, status)"
            f" select 'Shop', 'start', 'awaiting_signal' from generate_series(1, {rows})"
        )
    finally:
        await connection.close()


async def test_a_clean_schema_is_exit_code_0(run: Any, dsn: str, schema: str) -> None:
    done = run("doctor", "--dsn", dsn, "--schema", schema)
    assert done.returncode == 0, done.stderr
    for name, _ in checks(Schema(schema)):
        assert name in done.stdout
    assert f"all {len(checks(Schema(schema)))} checks are clean" in done.stdout


@pytest.mark.dirty
async def test_a_violation_is_exit_code_1_and_is_named_and_explained(run: Any, dsn: str, schema: str) -> None:
    await plant(dsn, schema, rows=7)
    done = run("doctor", "--dsn", dsn, "--schema", schema)
    assert done.returncode == 1
    assert "await_without_signals" in done.stdout
    assert "7 rows" in done.stdout
    assert "A parked instance awaits no signal." in done.stdout
    assert "awaiting_signal without names" in done.stdout
    assert "and 2 more" in done.stdout
    assert "1 of" in done.stdout


@pytest.mark.dirty
async def test_json_has_the_same_for_programs(run: Any, dsn: str, schema: str) -> None:
    await plant(dsn, schema, rows=1)
    done = run("doctor", "--dsn", dsn, "--schema", schema, "--json")
    assert done.returncode == 1
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert len(findings) == len(checks(Schema(schema)))
    broken = findings.pop("await_without_signals")
    assert broken["count"] == 1
    assert broken["rows"][0]["problem"] == "awaiting_signal without names"
    assert all(finding["clean"] for finding in findings.values())


def test_a_database_that_is_not_migrated_is_exit_code_2(run: Any, dsn: str, bare_schema: str) -> None:
    done = run("doctor", "--dsn", dsn, "--schema", bare_schema)
    assert done.returncode == 2
    assert "gen-durable migrate" in done.stderr
