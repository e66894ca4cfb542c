"""Every column that stores a payload, an instance that fills them all, and values that no engine has written there."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.canaries import Secret, told
from tests.support.engine import NEVER, Engine
from tests.support.fuzz_values import Values

from gen_durable import (
    Await,
    Context,
    Done,
    Handle,
    Machine,
    Outcome,
    Retry,
    RetryPolicy,
    ScheduleChildren,
    Start,
    job,
    step,
)
from gen_durable.encryption import PayloadCodec, PayloadContext
from gen_durable.json_codec import ENCRYPTED_PREFIX

TEXT, JSON = "text", "jsonb"
COLUMNS: Final = {
    "instances": {"state": JSON, "result": JSON, "metadata": JSON, "last_error": TEXT, "last_traceback": TEXT},
    "signals": {"payload": JSON},
    "transitions": {"state": JSON, "error": TEXT, "traceback": TEXT},
    "activities": {"parameters": JSON, "result": JSON, "error": TEXT},
    "checkpoints": {"value": JSON},
    "progress": {"message": TEXT, "detail": JSON},
}
"""The payload columns, and `metadata`, which is JSON of users too."""
OWNERS: Final = {"instances": "id", "signals": "target_id"}  # the others: instance_id
DEEP: Final = "[" * 3000 + "]" * 3000
SHAPES: Final = (
    *("null", "[]", "{}", "5", '"x"', "true", "[1, 2]", '[["a", 1]]', "-0.0", '{"text": 1}', '{"count": "x"}', "1e400"),
    *('{"": null}', DEEP, "9" * 5000, '{"text": "' + "x" * 50_000 + '"}', '{"a": ' + "1" * 4400 + "}", "1e-400"),
    *(f'"{ENCRYPTED_PREFIX}"', f'"{ENCRYPTED_PREFIX}AAAA"', f'"{ENCRYPTED_PREFIX}!!"', f'"{ENCRYPTED_PREFIX}\u00e9"'),
    *('"encrypted:2:AAAA"', '"encrypted:"', f'"{ENCRYPTED_PREFIX}AQA=\\u0022"', f'["{ENCRYPTED_PREFIX}AAAA"]'),
)


@job
async def quick(secret: Secret) -> Secret:
    return secret


class Slow(Machine):
    """A child that holds its parent's join until it is told."""

    @step
    async def wait(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        found = ctx.take(told)
        return Await(told, state=secret) if found is None else Done(found)


async def charge(secret: Secret) -> Secret:
    return secret


async def decline(secret: Secret) -> Secret:
    raise PermissionError(secret.text)


class Clerk(Machine, history="states", retry=RetryPolicy(attempts=1)):
    """Fills every payload column, rests, reads its journal again, and joins two children, one of which waits."""

    @step
    async def begin(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        charged: Secret = await ctx.run("charge", charge, secret)
        await ctx.run("charge_again", charge, secret)
        if ctx.attempt == 0:
            with contextlib.suppress(PermissionError):
                await ctx.run("decline", decline, secret)
            await ctx.checkpoint({"saved": charged.text})
            ctx.progress(0.5, f"half of {secret.text}", detail={"secret": secret.text})
            raise LookupError(secret.text)
        _ = ctx.last_checkpoint
        return ScheduleChildren([Start(quick, charged), Start(Slow.wait, charged)], then=self.gather, state=charged)

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Any]:
        if isinstance(error, LookupError):
            return Retry(state, delay=NEVER)
        raise error

    @step
    async def gather(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        (one,) = ctx.results(quick)
        return Done(one)


MACHINES: Final = (Clerk(), Slow(), quick)


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value for one column of one instance, as text; `kind` says what it is."""

    table: str
    column: str
    kind: str
    text: str


class BadValues:
    """Draws bad values: random JSON and text, and with a codec envelopes of other places, keys and versions."""

    def __init__(self, chance: random.Random, schema: str, codec: PayloadCodec | None, other: PayloadCodec) -> None:
        self._chance = chance
        self._values = Values(chance, [1, 2, 3])
        self._schema = schema
        self._codec = codec
        self._other = other

    def draw(self, table: str, column: str, stored: Sequence[str]) -> BadValue:
        """A value for a column; `stored` are what other rows and other columns hold."""
        kind, value = self._json_or_envelope(stored)
        if COLUMNS[table][column] == JSON:
            return BadValue(table, column, kind, value)
        bare = json.loads(value) if kind not in ("document", "shape") else self._values.text()
        return BadValue(table, column, kind, str(bare).replace("\0", ""))

    def _json_or_envelope(self, stored: Sequence[str]) -> tuple[str, str]:
        kinds = ["document", "shape", "bytes", "elsewhere"]
        if self._codec is not None:
            kinds += ["another instance", "wrong key", "truncated", "wrong version", "changed", "elsewhere"]
        kind = self._chance.choice(kinds)
        match kind:
            case "document":
                return kind, self._values.document(4)
            case "shape":
                return kind, self._chance.choice(SHAPES)
            case "bytes":
                return kind, _envelope(self._chance.randbytes(self._chance.choice((0, 1, 2, 13, 30, 400))))
            case "elsewhere":
                return kind, self._chance.choice(stored)
            case "another instance":
                return kind, self._encrypt(self._codec, instance=999_999)
            case "wrong key":
                return kind, self._encrypt(self._other, instance=1)
            case _:
                whole = json.loads(self._encrypt(self._codec, instance=1))
                cut = self._chance.randrange(len(ENCRYPTED_PREFIX), len(whole))
                changed = {
                    "truncated": whole[:cut],
                    "wrong version": whole.replace(":1:", ":7:", 1),
                    "changed": whole[:cut] + ("A" if whole[cut] != "A" else "B") + whole[cut + 1 :],
                }
                return kind, json.dumps(changed[kind])

    def _encrypt(self, codec: PayloadCodec | None, *, instance: int) -> str:
        assert codec is not None
        field = self._chance.choice(("result", "error", "checkpoint", "progress/detail", "state/Clerk/1/begin"))
        return _envelope(codec.encode(b'{"text":"x"}', PayloadContext(self._schema, instance, field)))


def _envelope(data: bytes) -> str:
    return json.dumps(ENCRYPTED_PREFIX + base64.b64encode(data).decode())


async def store(e: Engine, instance: int, bad: BadValue) -> None:
    """Write a bad value over the stored one, in the first row of the instance."""
    owner = OWNERS.get(bad.table, "instance_id")
    kind = COLUMNS[bad.table][bad.column]
    await e.rows.fetch(
        f"update @.{bad.table} set {bad.column} = $2::text::{kind} where ctid = "
        f"(select ctid from @.{bad.table} where {owner} = $1 order by ctid limit 1)",
        instance,
        bad.text,
    )


async def stored_values(e: Engine) -> list[str]:
    """What the payload columns hold, as JSON."""
    parts = (
        f"select {f'{column}::text' if kind == JSON else f'to_jsonb({column})::text'} from @.{table} "
        f"where {column} is not null"
        for table, columns in COLUMNS.items()
        for column, kind in columns.items()
    )
    return [row[0] for row in await e.rows.fetch(" union ".join(parts))]


async def until_resting(e: Engine, clerk: Handle[Any]) -> None:
    """The first execution has failed and waits for its retry, and its report of progress is written."""
    await e.rows.until(clerk, status="runnable", attempt=1)
    await e.rows.when(lambda: _has_row(e, "progress", clerk.id))


async def _has_row(e: Engine, table: str, instance: int) -> bool:
    return bool(await e.rows.value(f"select exists (select from @.{table} where instance_id = $1)", instance))
