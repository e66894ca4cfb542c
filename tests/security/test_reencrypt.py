"""`gen-durable reencrypt`: every payload gets the new key, beside running workers, and again after it was stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.security.test_codec import Long, aes
from tests.security.test_codec_cli import in_thread
from tests.support.canaries import CANARY, Secret, Vault, Waiter, burn, dump, echo, told
from tests.support.engine import Engine, Opening, soon
from typer.testing import CliRunner, Result

from gen_durable import Context, Finished, Start, job
from gen_durable.cli.app import app as cli
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError
from gen_durable.operations import reencrypt as module
from gen_durable.operations.reencrypt import ReencryptProgress, reencrypt
from gen_durable.store.reencrypt import PAYLOAD_TABLES, PayloadReplacement, PayloadStatementBuilder

OLD, BOTH, NEW = aes("k1"), aes("k1", "k2", write="k2"), aes("k2")


async def run(e: Engine, *, batch: int = 3, patience: float = 0.0, encrypt_clear: bool = False) -> ReencryptProgress:
    running = reencrypt(services_of(e.app), batch=batch, patience_seconds=patience, encrypt_clear=encrypt_clear)
    return [progress async for progress in running][-1]


async def live(e: Engine) -> int:
    """An instance that has a payload in every column, and waits for a signal that is there."""
    async with e.worker(Vault(), echo, burn):
        done = await e.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
        await e.rows.until(done, status="awaiting_signal")
        await e.app.signal("vault", told, Secret(CANARY, 7), dedup_key="once")
        assert await e.end(done) == Finished(done.id, Secret(CANARY, 99))
    waiting = await e.app.insert(Waiter.wait, Secret("x"), queue="nobody")
    await e.app.signal(waiting.id, told, Secret(CANARY))
    await e.rows.fetch(
        "insert into @.checkpoints (instance_id, visit, version, format, value) values ($1, 0, 1, 1, $2::text::jsonb)",
        waiting.id,
        services_of(e.app).encryption.encrypt(f'"{CANARY}"', waiting.id, "checkpoint"),  # type: ignore[union-attr]
    )
    await e.rows.fetch("update @.instances set has_journal = true where id = $1", waiting.id)
    return done.id


async def test_every_payload_is_readable_with_the_new_key_alone(engine: Opening) -> None:
    """Of all tables and columns. A second run finds nothing to write."""
    async with engine(codec=OLD) as e:
        done = await live(e)
        before = [await read_all(e, done), await e.app.signals(done + 7, payloads=True)]
    async with engine(codec=BOTH) as e:
        progress = await run(e)
        assert progress.written > 20
        assert (progress.unreadable, progress.in_clear, progress.busy, progress.problems) == (0, 0, set(), [])
        tables = {table: await e.rows.value(f"select count(*) from @.{table}") for table in PAYLOAD_TABLES}
        assert min(tables.values()) > 0
        assert progress.rows == sum(tables.values())
        assert (await run(e)).written == 0
    async with engine(codec=NEW) as e:
        assert [await read_all(e, done), await e.app.signals(done + 7, payloads=True)] == before
        for line in (await dump(e.rows)).split('"'):
            assert CANARY not in line
        async with e.worker(Waiter(), queues={"nobody": 1}):
            (waiting,) = [one async for one in e.app.list_all(machine="Waiter")]
            assert await e.end(e.app.handle(waiting.id, Waiter.wait)) == Finished(waiting.id, f"{CANARY}/x")


async def read_all(e: Engine, instance: int) -> list[object]:
    """Everything that a reader with the codec sees of all instances."""
    found: list[object] = []
    async for one in e.app.list_all(payloads=True):
        found += [one.id, one.state, one.result, one.last_error, one.traceback]
        found += [(t.state, t.error, t.traceback) for t in await e.app.history(one.id)]
        found += [(a.parameters, a.result, a.error) for a in await e.app.activities(one.id)]
        found += [(p.message, p.detail) for p in await e.app.progress(one.id)]
        checkpoint = await e.app.checkpoint(one.id)
        found += [checkpoint.value if checkpoint is not None else None]
    assert CANARY in str(found)
    return found


async def test_executing_instances_are_visited_again(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of theirs is written while they execute; without patience the run says that they are left."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)
    entered, leave = asyncio.Event(), asyncio.Event()

    @job
    async def hold(secret: Secret, ctx: Context) -> str:
        await ctx.checkpoint(secret.text)
        entered.set()
        await leave.wait()
        return secret.text

    async with engine(codec=OLD) as e, e.worker(hold), engine(codec=BOTH) as operator:
        handle = await e.app.insert(hold, Secret(CANARY))
        await soon(entered.wait())
        stored = "select state::text || (select value::text from @.checkpoints) from @.instances"
        before = await e.rows.value(stored)
        progress = await run(operator)
        assert (progress.busy, progress.written) == ({handle.id}, 0)
        assert await e.rows.value(stored) == before
        async for progress in reencrypt(services_of(operator.app), batch=3, patience_seconds=30, encrypt_clear=False):
            if progress.table == PAYLOAD_TABLES[-1] and not leave.is_set():
                assert (progress.busy, progress.written) == ({handle.id}, 0)
                leave.set()
                assert await e.end(handle) == Finished(handle.id, CANARY)
        assert (progress.busy, progress.written) == (set(), 3)  # its state, its result and its checkpoint
    async with engine(codec=NEW) as e:
        assert (await e.app.get(handle.id)).result == CANARY


async def test_a_locked_or_changed_row_is_left_alone(engine: Opening) -> None:
    """A row that a delivery or a commit holds is not waited for; a value that has changed is not overwritten."""
    async with engine(codec=OLD) as e:
        first, _ = await e.app.insert_many([Start(echo, Secret("1")), Start(echo, Secret("2"))])
        statements = PayloadStatementBuilder(services_of(e.app).schema)
        pool = services_of(e.app).pool
        page = await pool.run(statements.payloads_page("instances", None, 10, None))
        both = [PayloadReplacement(row.key, row.instance, row.payloads[0].text, '"new"') for row in page]
        async with e.rows.connection.transaction():
            await e.rows.fetch("select from @.instances where id = $1 for update", first.id)
            result = await soon(pool.run(statements.replace_payloads("instances", "state", both)))
            assert (result.written, result.busy) == (1, [first.id])
        result = await pool.run(statements.replace_payloads("instances", "state", both))
        assert (result.written, result.busy) == (1, [])  # the second had changed
        assert await pool.run(statements.payloads_page("instances", page[0].key, 10, [first.id])) == []
        with pytest.raises(Exception, match=r"no payload is in instances\.fsm"):
            await pool.run(statements.replace_payloads("instances", "fsm", both))
        await e.rows.fetch("delete from @.instances")


async def test_a_running_instance_is_not_written(engine: Opening) -> None:
    """Also if it was claimed after its payloads were read."""
    async with engine(codec=OLD) as e:
        handle = await e.app.insert(echo, Secret("1"))
        statements, pool = PayloadStatementBuilder(services_of(e.app).schema), services_of(e.app).pool
        (row,) = await pool.run(statements.payloads_page("instances", None, 10, None))
        await e.rows.fetch("update @.instances set status = 'executing', lease_expires_at = now(), locked_by = 'w'")
        given = [PayloadReplacement(row.key, row.instance, row.payloads[0].text, '"new"')]
        result = await pool.run(statements.replace_payloads("instances", "state", given))
        assert (result.written, result.busy) == (0, [handle.id])
        await e.rows.fetch("delete from @.instances")


async def test_rows_of_one_instance_are_told_apart(engine: Opening) -> None:
    """Two rows of a history with the same text: only the one that is named is written."""
    async with engine(codec=OLD) as e:
        handle = await e.app.insert(echo, Secret("1"))
        await e.rows.fetch(
            "insert into @.transitions (instance_id, started_at, duration, seq, attempt, step, outcome, state) "
            "select $1, now(), 0, n, 0, 'run', 'Retry', '1' from generate_series(1, 2) as n",
            handle.id,
        )
        statements, pool = PayloadStatementBuilder(services_of(e.app).schema), services_of(e.app).pool
        given = [PayloadReplacement([str(handle.id), "2"], handle.id, "1", "2")]
        assert (await pool.run(statements.replace_payloads("transitions", "state", given))).written == 1
        stored = await e.rows.fetch("select state::text from @.transitions order by seq")
        assert [row[0] for row in stored] == ["1", "2"]
        await e.rows.fetch("delete from @.transitions")


async def test_under_load(engine: Opening) -> None:
    """Old and new workers commit meanwhile; every instance ends, and all payloads have the new key in the end."""
    async with engine(codec=aes("k1", "k2", write="k1")) as e, e.worker(Long()), engine(codec=BOTH) as new:
        handles = await e.app.insert_many([Start(Long.walk, Secret(str(n))) for n in range(40)])
        async with new.worker(Long()):
            await run(new, batch=5, patience=5)
            for n, handle in enumerate(handles):
                assert await e.end(handle) == Finished(handle.id, Secret(str(n), 6))
        await run(new)
    async with engine(codec=NEW) as e:
        assert {i.result["count"] async for i in e.app.list_all(payloads=True)} == {6}


async def test_what_is_in_clear_or_moved_is_not_sealed(engine: Opening) -> None:
    """To encrypt it would vouch for what a writer of the tables has put there."""
    async with engine(codec=OLD) as e:
        one, two, three = [await e.app.insert(echo, Secret(str(n))) for n in range(3)]
        await e.rows.fetch('update @.instances set state = \'{"text": "forged"}\' where id = $1', one.id)
        await e.rows.fetch(
            "update @.instances i set state = o.state from @.instances o where i.id = $1 and o.id = $2",
            two.id,
            three.id,
        )
    async with engine(codec=BOTH) as e:
        progress = await run(e)
        assert (progress.written, progress.in_clear, progress.unreadable) == (1, 1, 1)
        assert progress.problems[0].startswith(f"instance {two.id}: its state cannot be decoded: it was changed")
        progress = await run(e, encrypt_clear=True)
        assert (progress.written, progress.in_clear, progress.unreadable) == (1, 0, 1)
        assert (await e.app.get(one.id)).state == {"text": "forged"}
    async with engine() as e:
        with pytest.raises(ConfigError, match="reencrypt needs the codec"):
            await run(e)
        await e.rows.fetch("delete from @.instances")


CODECS = f"""
from gen_durable.contrib.aes import AesGcm
both = AesGcm({{name: key for name, key in {BOTH._keys!r}.items()}}, write="k2")
"""


async def test_the_command(
    engine: Opening, dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it has done; anything that is left is exit code 1."""
    (tmp_path / "codecs_of_reencrypt.py").write_text(CODECS)
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> Result:
        return CliRunner().invoke(cli, ["reencrypt", *words, "--dsn", dsn, "--schema", schema])

    async with engine(codec=OLD) as e:
        await e.app.insert_many([Start(echo, Secret(str(n))) for n in range(3)])
        done = in_thread(command, "--codec", "codecs_of_reencrypt:both", "--batch", "2")
        assert (done.exit_code, "3 rows read, 3 payloads written" in done.output) == (0, True), done.output
        await e.rows.fetch("update @.instances set state = '1' where id = 1")
        done = in_thread(command, "--codec", "codecs_of_reencrypt:both")
        assert (done.exit_code, "1 payloads are in clear" in done.output) == (1, True), done.output
        assert in_thread(command).exit_code == 2
        await e.rows.fetch("delete from @.instances")
