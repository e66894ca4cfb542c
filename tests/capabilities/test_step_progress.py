"""Step progress: one row for each (run, step, branch), the last word counts, nobody waits."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from tests.support.capabilities import Opening

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, step


class Import(Machine):
    @step
    async def parse(self, n: int, ctx: Context) -> Outcome[float]:
        for done in range(n + 1):
            ctx.progress(done / n, f"parsed {done} of {n}", detail={"done": done})
            ctx.progress(done / n / 2, branch="slow half")
        return Next(self.store, n)

    @step
    async def store(self, n: int, ctx: Context) -> Outcome[float]:
        began = time.perf_counter()
        ctx.progress(0.5)
        ctx.progress(float("nan"), detail={"bad": object()})  # what cannot be written is dropped
        return Done(time.perf_counter() - began)


async def test_one_row_for_each_step_and_branch(engine: Opening, dsn: str, schema: str) -> None:
    """The API and the command line read the same; a report costs the step nothing and cannot fail it."""
    async with engine() as e:
        handle = await e.app.insert(Import.parse, 10)
        ending = await e.end(handle, machines=[Import()])
        assert isinstance(ending, Finished)
        assert ending.result < 0.1
        found = {(p.step, p.branch): (p.fraction, p.message, p.detail) for p in await e.app.progress(handle)}
        assert found == {
            ("parse", ""): (1.0, "parsed 10 of 10", {"done": 10}),
            ("parse", "slow half"): (0.5, None, None),
            ("store", ""): (0.5, None, None),
        }
        ((kind,),) = await e.sql("select jsonb_typeof(detail) from @schema.progress where detail is not null")
        assert kind == "object"
    command = [
        sys.executable,
        "-m",
        "gen_durable.cli",
        "show",
        str(handle.id),
        "--json",
        "--dsn",
        dsn,
        "--schema",
        schema,
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: ASYNC221  # the test waits for it
    assert {(p["step"], p["branch"]) for p in json.loads(shown.stdout)["progress"]} == set(found)


async def test_the_status_of_each_step_for_a_page(engine: Opening) -> None:
    """Status, activity, attempt, times, error and detail of each step, without a write of their own."""
    async with engine() as e:
        handle = await e.app.insert(Import.parse, 10)
        await e.end(handle, machines=[Import()])
        rows = await e.sql("select * from @schema.step_status where instance_id = $1 order by visit", handle.id)
        assert [(r["step"], r["status"], r["attempts"], r["fraction"]) for r in rows] == [
            ("parse", "done", 1, 1.0),
            ("store", "done", 1, 0.5),
        ]
        parse, store = rows
        assert (parse["message"], json.loads(parse["detail"]), parse["error"]) == (
            "parsed 10 of 10",
            {"done": 10},
            None,
        )
        assert parse["started_at"] <= parse["finished_at"] <= store["finished_at"]
        assert store["finished_at"] == (await handle.get()).finished_at
