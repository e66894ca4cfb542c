"""How long ended instances are kept: `retention=` of machines and jobs, `keep=` of an instance, and forever keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engine import Engine, Opening, seconds

from gen_durable import Context, Done, Fail, Machine, Outcome, Retention, Start, job, step
from gen_durable.engine import gc
from gen_durable.errors import DefinitionError
from gen_durable.telemetry import InstancesCollected

OFTEN: dict[str, Any] = {"gc_interval": seconds(0.05), "reap_interval": None, "gc_retention": seconds(3600)}


@pytest.fixture(autouse=True)
def _scans_from_the_oldest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second round, so that no test waits for sixty rounds until rows are seen that a scan has passed."""
    monkeypatch.setattr(gc, "REVISIT_ROUNDS", 2)


class Kept(Machine, retention=Retention(done=seconds(10 * 3600), failed=None, cancelled=0)):
    @step
    async def run(self, is_well: bool, ctx: Context) -> Outcome[None]:
        return Done() if is_well else Fail("no")


class Plain(Machine):
    @step
    async def run(self, _: None, ctx: Context) -> Outcome[None]:
        return Done()


@job(retention=seconds(0))
async def fleeting() -> None:
    """Deleted at the next round."""


async def end_rows(e: Engine, machine: str, hours: float, status: str = "done", **columns: Any) -> int:
    """A row that ended some hours ago."""
    (row,) = await e.rows.fetch(
        "insert into @.instances (fsm, step, status, claims, seq, finished_at, keep_seconds, unique_key, unique_scope) "
        "values ($1, 'run', $2::text::@.durable_status, 1, 1, now() - make_interval(secs => $3), $4, $5, "
        "enum_range(null::@.durable_status)) returning id",
        machine, status, hours * 3600, columns.get("keep"), columns.get("key"),
    )  # fmt: skip
    return int(row[0])


async def ids(e: Engine) -> list[int]:
    return [row[0] for row in await e.rows.fetch("select id from @.instances order by id")]


async def collected(e: Engine, expected: list[int]) -> None:
    """Wait until these rows are left, and two more rows that are due have gone: a later round keeps them as well."""

    async def there() -> bool:
        return await ids(e) == expected

    await e.rows.when(there)
    before = len(e.seen.of(InstancesCollected))
    for count in (1, 2):
        await end_rows(e, "nothing", 1000)
        await e.seen.until(InstancesCollected, count=before + count)
    assert await ids(e) == expected


async def test_the_retention_of_a_machine(engine: Opening) -> None:
    """By the way of ending; machines without one have that of the worker."""
    async with engine() as e:
        young, old = await end_rows(e, "Kept", 5), await end_rows(e, "Kept", 11)
        failed, cancelled = await end_rows(e, "Kept", 5000, "failed"), await end_rows(e, "Kept", 0.1, "cancelled")
        plain, kept_plain = await end_rows(e, "Plain", 5), await end_rows(e, "Plain", 0.5)
        async with e.worker(Kept(), Plain(), **OFTEN):
            await collected(e, [young, failed, kept_plain])
        assert {old, cancelled, plain}.isdisjoint(await ids(e))


async def test_workers_that_do_not_know_a_machine_keep_to_its_retention(engine: Opening) -> None:
    """It is declared in the database by the workers that have the machine."""
    async with engine() as e:
        async with e.worker(Kept(), gc_interval=None):
            pass
        kept = await end_rows(e, "Kept", 5)
        async with e.worker(Plain(), **OFTEN):
            await collected(e, [kept])
            async with e.worker(Kept(), gc_interval=None):
                await collected(e, [kept])


async def test_a_changed_retention_applies_to_rows_that_ended_before(engine: Opening) -> None:
    """A shorter one deletes at the next round; without one the worker's applies again."""

    def kept(**options: Any) -> Machine:
        class Changing(Machine, **options):
            @step
            async def run(self, _: None, ctx: Context) -> Outcome[None]:
                return Done()

        return Changing()

    async with engine() as e, e.worker(Plain(), **OFTEN):
        async with e.worker(kept(retention=None), gc_interval=None):
            rows = [await end_rows(e, "Changing", hours) for hours in (50, 5, 0.5)]
            await collected(e, rows)
        async with e.worker(kept(retention=seconds(10 * 3600)), gc_interval=None):
            await collected(e, rows[1:])
        async with e.worker(kept(), gc_interval=None):
            await collected(e, rows[2:])


async def test_a_job_with_a_retention(engine: Opening) -> None:
    """`@job(retention=)`, here shorter than the worker's."""
    async with engine() as e, e.worker(fleeting, Plain(), **OFTEN):
        await e.app.insert_many([Start(fleeting), Start(fleeting)])
        plain = await e.app.insert(Plain.run, None)
        await plain.wait()
        await collected(e, [plain.id])


async def test_of_two_versions_the_newest_declares(engine: Opening) -> None:
    """One machine has one retention, whatever the order in which its versions are passed."""

    def version(number: int, hours: int) -> Machine:
        class Versioned(Machine, version=number, retention=seconds(hours * 3600)):
            @step
            async def run(self, _: None, ctx: Context) -> Outcome[None]:
                return Done()

        return Versioned()

    async with engine() as e:
        async with e.worker(version(2, 7), version(1, 3), gc_interval=None):
            (row,) = await e.rows.fetch("select * from @.retentions")
        assert (row["fsm"], row["done"], row["failed"], row["cancelled"]) == ("Versioned", *[7 * 3600.0] * 3)


async def test_a_key_that_is_held_forever_is_spared(engine: Opening) -> None:
    """Retention spares its row, unless `keep` has passed; also rows without a key have a keep of their own."""
    async with engine() as e:
        forever = await end_rows(e, "Plain", 5000, keep=float("inf"), key=b"a")
        passed = await end_rows(e, "Plain", 5000, keep=3600, key=b"b")
        within = await end_rows(e, "Plain", 5000, keep=6000 * 3600, key=b"c")
        shorter = await end_rows(e, "Plain", 0.5, keep=60)
        async with e.worker(Plain(), **OFTEN):
            await collected(e, [forever, within])
            assert {passed, shorter}.isdisjoint(await ids(e))
            again = await e.app.insert(Plain.run, None, unique_key="a", on_conflict="existing")
            assert again.id == forever
            anew = await e.app.insert(Plain.run, None, unique_key="b", on_conflict="existing")
            assert anew.id > shorter


async def test_a_keep_applies_whatever_the_retention(engine: Opening) -> None:
    """Also where the worker keeps everything for good."""
    async with engine() as e:
        await end_rows(e, "Plain", 2, keep=3600)
        kept = await end_rows(e, "Plain", 2000)
        async with e.worker(Plain(), **(OFTEN | {"gc_retention": None})):
            await e.seen.until(InstancesCollected)
        assert await ids(e) == [kept]


@pytest.mark.parametrize("retention", ["1 day", -1, "worker's", True])
def test_a_retention_that_means_nothing_is_refused(retention: Any) -> None:
    """When the class is created."""
    with pytest.raises(DefinitionError, match="the retention of machine 'Wrong' must"):

        class Wrong(Machine, retention=retention):
            pass

    with pytest.raises(DefinitionError, match="the retention of job 'wrong' must"):

        @job(retention=retention)
        async def wrong() -> None: ...


def test_a_dataclass_with_slots_keeps_its_retention() -> None:
    """`@dataclass(slots=True)` creates the class again, without its arguments."""

    @dataclass(slots=True)
    class Slotted(Machine, retention=60):
        @step
        async def run(self, _: None, ctx: Context) -> Outcome[None]:
            return Done()

    assert Slotted.__gen_durable__.retention == Retention(60, 60, 60)
