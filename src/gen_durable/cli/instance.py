"""`gen-durable signal`, `cancel`, `retry`, `rm`: do something about one instance."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any, cast

import typer

from gen_durable.cli.console import fail, plainly, say
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.options import CodecOption, IdArgument, KeyOption, ask, target
from gen_durable.signals import Signal


@plainly
def signal(
    words: Annotated[
        list[str], typer.Argument(metavar="ID NAME [JSON]", show_default=False, help="With --key: NAME [JSON].")
    ],
    *,
    key: KeyOption = None,
    dedup_key: str | None = typer.Option(None, "--dedup-key", help="Deliver it once, however often this is run."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Send a signal to an instance. The payload is JSON, null if left out; - reads it from stdin.

    gen-durable signal 42 payment '{"amount": 100}'
    gen-durable signal --key order:42 payment '{"amount": 100}' --dedup-key evt_1

    Exit code 1: the instance is unknown or has ended.
    """
    instance = None
    if key is None:
        first, *words = words
        if not first.isdigit():
            fail(f"{first!r} is no ID: write `signal ID NAME [JSON]`, or name the instance by --key KEY")
        instance = int(first)
    if len(words) not in (1, 2):
        fail("write `signal ID NAME [JSON]`, or `signal --key KEY NAME [JSON]`")
    payload = _payload(words[1]) if len(words) == 2 else None
    sent = Signal[Any](words[0], cast(Any, Any))
    which = target(instance, key)
    delivered = asyncio.run(
        ask(dsn, schema, lambda app: app.signal(which, sent, payload, dedup_key=dedup_key), codec=codec)
    )
    say(f"signal {words[0]}: {'delivered' if delivered else 'was delivered before under this dedup key'}")


@plainly
def cancel(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    reason: str = typer.Option("cancelled", "--reason", help="Kept as the error of what is cancelled."),
    cascade: bool = typer.Option(True, help="Its descendants too."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Cancel an instance and its descendants. What waits ends at once; what executes is stopped by its worker.

    gen-durable cancel 42 --reason "the customer changed her mind"

    Exit code 1: there is no such instance, or it has ended already.
    """
    which = target(instance, key)
    done = asyncio.run(ask(dsn, schema, lambda app: app.cancel(which, reason=reason, cascade=cascade)))
    if not done:
        fail(f"instance {done.id} is {done.was.value}: there is nothing to cancel", 1)
    say(f"instance {done.id}: {done.ended} cancelled, {done.requested} executing, with a cancel request")


@plainly
def retry(
    instance: IdArgument = None, *, key: KeyOption = None, dsn: DsnOption = None, schema: SchemaOption = SCHEMA
) -> None:
    """Let a failed or cancelled instance go on from the step that it ended in.

    A unique key that it has let go of is not taken again, and a parent that has gone on without it stays so.

    Exit code 1: there is no such instance, or it is done or has not ended.
    """
    which = target(instance, key)
    asyncio.run(ask(dsn, schema, lambda app: app.retry(which)))
    say(f"{_called(which)}: runnable again")


@plainly
def rm(
    instance: IdArgument = None, *, key: KeyOption = None, dsn: DsnOption = None, schema: SchemaOption = SCHEMA
) -> None:
    """Delete an instance that has ended, for good. Retention does that by itself after a while.

    Exit code 1: there is no such instance, or it, or its parent, has not ended.
    """
    which = target(instance, key)
    asyncio.run(ask(dsn, schema, lambda app: app.delete(which)))
    say(f"{_called(which)}: deleted")


def _payload(text: str) -> object:
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        fail(f"the payload is not JSON ({error}): quote it for the shell, as in '{{\"amount\": 100}}' or '\"text\"'")


def _called(which: int | str) -> str:
    return f"instance {which}" if isinstance(which, int) else f"holder of key {which}"
