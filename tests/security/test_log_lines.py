"""The log of a worker that meets hostile rows: whole lines, and nothing that a terminal would act on."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
from tests.support.canaries import echo
from tests.support.engine import BRIEF, Opening
from tests.support.hostile import ALL, FORGED

from gen_durable.printable_text import escape_to_one_line
from gen_durable.telemetry import InstanceDeadLettered, UnknownStepsFound

pytestmark = pytest.mark.dirty


async def test_rows_forge_no_log_line(engine: Opening) -> None:
    """A dead letter and a step that no worker knows, with names that attack; a worker with such a name; a subscriber
    that raises such a text.
    """
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("LOG %(levelname)s %(name)s: %(message)s"))
    parent = logging.getLogger("gen_durable")
    level = parent.level
    parent.addHandler(handler)
    parent.setLevel(logging.DEBUG)
    try:
        async with engine() as e:
            names = (ALL + "machine", ALL + "step")
            dead = "insert into @.instances (fsm, step, status, locked_by, lease_expires_at, claims, crashes) "
            await e.rows.fetch(dead + "values ($1, $2, 'executing', $1, now() - interval '1 minute', 1, 9)", *names)
            await e.rows.fetch("insert into @.instances (fsm, step) values ($1, $2)", *names)
            worker = e.worker(echo, max_crashes=3, **BRIEF)
            worker.name = ALL

            def raise_hostile_text(_: object) -> None:
                raise RuntimeError(ALL)

            e.app.events.subscribe(raise_hostile_text)
            async with worker:
                await e.seen.until(InstanceDeadLettered)
                await e.seen.until(UnknownStepsFound)
    finally:
        parent.removeHandler(handler)
        parent.setLevel(level)
    lines = stream.getvalue().removesuffix("\n").split("\n")
    start = escape_to_one_line(ALL)
    for words in (f"worker {start}: ", f"({start}machine.{start}step) was failed after", f"wait for {start}machine"):
        assert [line for line in lines if words in line and line.startswith("LOG ")], words
    assert f"RuntimeError: {start[:40]}" in "\n".join(lines)
    for line in lines:
        assert escape_to_one_line(line) == line
        assert not line.startswith(FORGED)
