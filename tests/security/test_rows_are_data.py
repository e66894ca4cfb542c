"""Rows are data: no name, payload or error in one is ever imported, looked up or unpickled."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from tests.support.canaries import CANARY, Secret, Waiter, echo
from tests.support.engine import BRIEF, Opening

import gen_durable
from gen_durable import Context, Done, Machine, Outcome, ScheduleChildren, Start, step
from gen_durable.telemetry import StateUndecodable

ROOT = Path(__file__).parents[2]
SOURCE = Path(gen_durable.__file__).parent
NAMES = [
    "os.system",
    "subprocess:Popen",
    "builtins.eval",
    "__class__",
    "echo.__class__",
    "echo.fn",
    "tests.security.bomb",
    "../bomb",
    "Waiter.wait",
    "x" * 10_000,
    "'; drop table gen_durable; --",
    "\N{SNOWMAN}",
    " echo",
    "ECHO",
]
STEPS = ["wait", "on_error", "on_cancel", "__init__", "__class__", "__reduce__", "wait.__globals__", "_private"]
PAYLOADS = [
    {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["true"]]},
    {"__class__": "subprocess.Popen", "args": ["true"]},
    {"text": "gASVKAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjA10b3VjaCAvdG1wL3h4eJSFlFKULg==", "count": "!!python/object"},
    ["cos\nsystem\n(S'true'\ntR."],
]


async def test_a_row_causes_no_import(engine: Opening, dsn: str, schema: str) -> None:
    """Rows with hostile names, steps and payloads: a worker under an audit hook imports and executes nothing."""
    environment = {**os.environ, "DSN": dsn, "SCHEMA": schema, "PYTHONPATH": str(ROOT)}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "tests/support/programs/watched.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    async with asyncio.timeout(60):
        assert await child.stdout.readline() == b"READY\n"
    async with engine() as e:
        insert = "insert into @.instances (fsm, step, state, last_error) values ($1, $2, $3, 'subprocess.Popen: x')"
        for name in NAMES:
            await e.rows.fetch(insert, name, "run", "{}")
        for step_ in STEPS:
            await e.rows.fetch(insert, "Waiter", step_, '{"text": "x"}')
        for payload in PAYLOADS:
            await e.rows.fetch(insert, "echo", "run", json.dumps(payload))
            await e.rows.fetch(insert, "Waiter", "wait", json.dumps(payload))
        child.stdin.write(b"go\n")
        async with asyncio.timeout(60):
            lines = (await child.stdout.read()).decode().splitlines()
        assert await child.wait() == 0
        assert lines == ["END"]
        # Nobody claimed what he does not know: `Waiter.wait` alone has such a step.
        touched = await e.rows.fetch("select fsm, step from @.instances where claims > 0 and state <> $1", '{"x":1}')
        known = {("echo", "run"), ("burn", "run"), ("Waiter", "wait")}
        assert {(row[0], row[1]) for row in touched} <= known


class Heir(Machine):
    """Reads what its child has failed with."""

    @step
    async def start(self, state: str, ctx: Context) -> Outcome[str]:
        return ScheduleChildren([Start(echo, Secret("x"), queue="nobody")], then=self.read, state=state)

    @step
    async def read(self, state: str, ctx: Context) -> Outcome[str]:
        (child,) = ctx.children
        return Done(f"{type(child.last_error).__name__} {child.last_error}")


async def test_errors_are_texts(engine: Opening) -> None:
    """An error that names a class is a text to whoever waits, and to a parent."""
    async with engine() as e, e.worker(Heir(), **BRIEF):
        handle = await e.app.insert(Heir.start, "x")
        await e.rows.until(handle, status="awaiting_children")
        (child,) = await e.rows.fetch("select id from @.instances where parent_id = $1", handle.id)
        await e.app.cancel(child[0], reason="subprocess.Popen: ['touch', '/tmp/x']")
        assert (await e.end(handle)).result == "str subprocess.Popen: ['touch', '/tmp/x']"  # type: ignore[union-attr]


async def test_an_unreadable_row_does_no_harm(engine: Opening) -> None:
    """Payloads that are no state of the step are put back; the step does not see them."""
    async with engine() as e, e.worker(Waiter(), **BRIEF):
        for payload in PAYLOADS[1:]:
            sql = "insert into @.instances (fsm, step, state) values ('Waiter', 'wait', $1)"
            await e.rows.fetch(sql, json.dumps(payload))
        await e.seen.until(StateUndecodable, count=len(PAYLOADS) - 1)
        assert CANARY not in str(e.seen.events)


BANNED = {"pickle", "cPickle", "marshal", "shelve", "dill", "jsonpickle", "yaml", "runpy", "imp", "code", "codeop"}
RUNS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {
    ("cli/object_importer.py", "importlib"),  # MODULE:NAME, typed by the operator
    ("cli/app.py", "importlib.metadata"),
    ("embedded/binaries.py", "importlib.util"),  # where a wheel is, by a name in the code
    ("store/sql_files.py", "importlib.resources"),
    ("testing/harness_statements.py", "importlib.resources"),
}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_source_has_no_way_to_run_data(path: Path) -> None:
    """No pickle and the like, no eval, exec or compile, and no import by name but the operator's."""
    where = str(path.relative_to(SOURCE))
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNS:
            found.append(node.func.id)
        for name in names:
            if name.partition(".")[0] in BANNED:
                found.append(name)
            if name.partition(".")[0] == "importlib" and (where, name) not in ALLOWED:
                found.append(name)
    assert found == []
