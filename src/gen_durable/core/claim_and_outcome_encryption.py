"""Decrypts claims before their steps run, and encrypts outcomes before they are committed.

It is in use only if the `Durable` has a codec. A payload is encrypted for its instance, so the ids of instances that an
outcome starts are allocated first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from gen_durable.backoff import GrowingPauses
from gen_durable.core.start_and_signal_encryption import add_id, encrypt_start
from gen_durable.encryption import ERROR, RESULT, TRACEBACK, PayloadEncryption, state_field
from gen_durable.errors import UnreadableSignal
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, SqlError, classify_error
from gen_durable.pg.pool import Pool
from gen_durable.pg.sqlstate_errors import to_library_error
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim, Commit

CHUNK: Final = 100
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class ClaimAndOutcomeEncryption:
    """Decrypts the claims of one worker, and encrypts their outcomes."""

    __slots__ = ("_pool", "_statements", "encryption")

    def __init__(self, encryption: PayloadEncryption, pool: Pool, statements: StatementBuilder) -> None:
        self.encryption = encryption
        self._pool = pool
        self._statements = statements

    def decrypt_claim(self, claim: Claim) -> None:
        """Decrypt the state, signals and children of a claim, once. The journal is separate.

        Raises `DecodeError`, and `UnreadableSignal` after the rest is decrypted: the claim is then without the signals
        that cannot be.
        """
        if claim.is_decrypted:
            return
        encryption = self.encryption
        state = encryption.decrypt(claim.state, claim.id, state_field(claim.machine, claim.version, claim.step))
        inbox, faults = encryption.decrypt_signals_and_find_faults(claim.inbox, claim.id)
        children = encryption.decrypt_children(claim.children) if claim.children else claim.children
        claim.state, claim.inbox, claim.children, claim.is_decrypted = state, inbox, children, True
        if faults:
            raise UnreadableSignal(faults)

    def encrypt_error(self, commit: Commit) -> None:
        """Encrypt the error of an outcome that has no payload."""
        if commit.error is not None:
            commit.error = self.encryption.encrypt_text_or_drop(commit.error, commit.id, ERROR)

    async def allocate_ids_and_encrypt_outcome(self, commit: Commit, claim: Claim) -> None:
        """Encrypt an outcome of a claim, for the ids that are allocated here if it starts instances.

        A state is for the step that it leads to. On `EncodeError` the outcome is unchanged.
        """
        value, extra = commit.value, commit.extra
        if value is not None:
            field = state_field(claim.machine, claim.version, commit.step or claim.step)
            value = self.encryption.encrypt(value, commit.id, RESULT if commit.kind == "done" else field)
        if extra is not None:
            parts = _OBJECT.decode(extra)
            self._encrypt_traceback(parts, commit.id)
            await self._allocate_ids_and_encrypt_starts(parts)
            extra = msgspec.json.encode(parts).decode()
        if (many := commit.many_children) is not None:
            many.ids = await self._allocate_ids(len(many.encoded))
            many.encoded = await self._encrypt_children(many.ids, many.encoded)
        commit.value, commit.extra = value, extra
        self.encrypt_error(commit)

    def _encrypt_traceback(self, parts: dict[str, msgspec.Raw], instance: int) -> None:
        if "traceback" in parts:
            text = self.encryption.encrypt_text_or_drop(
                msgspec.json.decode(parts["traceback"], type=str), instance, TRACEBACK
            )
            parts["traceback"] = msgspec.Raw(msgspec.json.encode(text))

    async def _allocate_ids_and_encrypt_starts(self, parts: dict[str, msgspec.Raw]) -> None:
        for name in ("children", "spawn"):
            if name in parts:
                starts = _OBJECTS.decode(parts[name])
                ids = await self._allocate_ids(len(starts))
                for started, start in zip(ids, starts, strict=True):
                    encrypt_start(start, started, self.encryption)
                    add_id(start, started)
                parts[name] = msgspec.Raw(msgspec.json.encode(starts))

    async def _encrypt_children(self, ids: Sequence[int], encoded: Sequence[bytes]) -> list[bytes]:
        """Encrypt the children of a fan-out, letting other tasks run after each `CHUNK` of them."""
        encrypted: list[bytes] = []
        for instance, one in zip(ids, encoded, strict=True):
            if len(encrypted) % CHUNK == 0:
                await asyncio.sleep(0)
            start = _OBJECT.decode(one)
            encrypt_start(start, instance, self.encryption)
            encrypted.append(msgspec.json.encode(start))  # `ManyChildren.encode_parts` adds the id
        return encrypted

    async def _allocate_ids(self, count: int) -> list[int]:
        """Allocate ids, retrying until the database answers, as commits do: an outage is no error of the step."""
        pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return await self._pool.run(self._statements.allocate_ids(count))
            except ConnectionLost:
                pass
            except SqlError as error:
                if classify_error(error) is FaultKind.REFUSED:
                    raise to_library_error(error, "allocate_ids", self._statements.schema.name) from None
            await asyncio.sleep(pauses.next_seconds())
