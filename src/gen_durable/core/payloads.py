"""ClaimEncryption: payloads are opened when a claim begins, and sealed when its outcome is encoded.

In: a claim as it was picked; an outcome, encoded. Out: the same, opened or sealed. It is only there when the `Durable`
has a codec. Instances that an outcome starts get their ids before it is committed: their states are sealed to them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from gen_durable.encryption import ERROR, RESULT, STATE, PayloadEncryption, of_signal
from gen_durable.pg.faults import ConnectionLost, Fault, SqlError, classify
from gen_durable.pg.pool import Pool
from gen_durable.pg.sqlstate import to_error
from gen_durable.store.statements import Statement, Statements
from gen_durable.store.types import Claim, Commit, Inserted, OutgoingSignal

CHUNK: Final = 100
MAX_PAUSE: Final = 1.0
_EXTRA: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STARTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class ClaimEncryption:
    """Opens the claims of one worker, and seals their outcomes."""

    __slots__ = ("_calls", "_pool", "seal")

    def __init__(self, seal: PayloadEncryption, pool: Pool, calls: Statements) -> None:
        self.seal = seal
        self._pool = pool
        self._calls = calls

    def open(self, claim: Claim) -> None:
        """Open what came with a claim, once. Raises `DecodeError`. Its journal is opened by its notes."""
        if claim.opened:
            return
        state, inbox = self.seal.open(claim.state, claim.id, STATE), self.seal.inbox(claim.inbox, claim.id)
        children = self.seal.children(claim.children) if claim.children else claim.children
        claim.state, claim.inbox, claim.children, claim.opened = state, inbox, children, True

    def close_text(self, commit: Commit) -> None:
        """PayloadEncryption the error of an outcome that has no payload."""
        if commit.error is not None:
            commit.error = self.seal.close_text(commit.error, commit.id, ERROR)

    async def close(self, commit: Commit) -> None:
        """Encrypt an outcome. Raises `EncodeError` before any part is encrypted, except for a `Fail`."""
        value, extra = commit.value, commit.extra
        if value is not None:
            value = self.seal.close(value, commit.id, RESULT if commit.kind == "done" else STATE)
        if extra is not None:
            extra = await self._close_starts(extra)
        if commit.brood is not None:
            commit.brood.ids = await self._ids(len(commit.brood.encoded))
            commit.brood.encoded = await self._close_all(commit.brood.ids, commit.brood.encoded)
        commit.value, commit.extra = value, extra
        self.close_text(commit)

    async def _close_starts(self, extra: str) -> str:
        parts = _EXTRA.decode(extra)
        for name in ("children", "spawn"):
            if name in parts:
                starts = _STARTS.decode(parts[name])
                ids = await self._ids(len(starts))
                for instance, start in zip(ids, starts, strict=True):
                    self._close_start(instance, start)
                parts[name] = msgspec.Raw(msgspec.json.encode(starts))
        return msgspec.json.encode(parts).decode()

    async def _close_all(self, ids: Sequence[int], encoded: Sequence[bytes]) -> list[bytes]:
        """The children of a brood, with room for other work in between."""
        closed: list[bytes] = []
        for instance, one in zip(ids, encoded, strict=True):
            if len(closed) % CHUNK == 0:
                await asyncio.sleep(0)
            start = _EXTRA.decode(one)
            self._close_start(instance, start)
            del start["id"]  # the brood adds it
            closed.append(msgspec.json.encode(start))
        return closed

    def _close_start(self, instance: int, start: dict[str, msgspec.Raw]) -> None:
        start["id"] = msgspec.Raw(str(instance).encode())
        start["state"] = msgspec.Raw(self.seal.close(bytes(start["state"]).decode(), instance, STATE).encode())

    async def _ids(self, count: int) -> list[int]:
        """Tried again until the database has answered, as it is with outcomes: an outage is no error of the step."""
        pause = 0.02
        while True:
            try:
                return await self._pool.run(self._calls.allocate_ids(count))
            except ConnectionLost:
                pass
            except SqlError as error:
                if classify(error) is Fault.REFUSED:
                    raise to_error(error, "draw", self._calls.schema.name) from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)


def encrypted_insert(
    calls: Statements, call: Statement[list[Inserted]], ids: list[int], seal: PayloadEncryption
) -> Statement[list[Inserted]]:
    """An insert with its states sealed for the ids that were drawn."""
    states = cast("list[Any]", call.args[3])
    return calls.insert_as(call, ids, [seal.close(s, n, STATE) for n, s in zip(ids, states, strict=True)])


def encrypted_signal(delivery: OutgoingSignal, target: int, seal: PayloadEncryption) -> OutgoingSignal:
    """A signal with its payload sealed for its target. With a key too: the target must still hold it."""
    payload = None if delivery.payload is None else seal.close(delivery.payload, target, of_signal(delivery.name))
    return dataclasses.replace(delivery, target=target, payload=payload)
