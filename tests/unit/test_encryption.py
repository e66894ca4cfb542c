"""Payloads inside envelopes: what cannot be opened says why, and never what was inside."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gen_durable.context import Child
from gen_durable.encryption import PayloadContext, PayloadEncryption
from gen_durable.errors import DecodeError
from gen_durable.instances import Status
from gen_durable.journal import Checkpoint


class Reversing:
    """A codec that turns payloads around, and accepts only its own place."""

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return (context.as_bytes() + b"|" + data)[::-1]

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        place, _, payload = data[::-1].partition(b"|")
        if place != context.as_bytes():
            raise PermissionError(f"{payload!r} belongs elsewhere")
        return payload


encryption = PayloadEncryption(Reversing(), "s", read_unencrypted=False)


def test_an_envelope_with_foreign_characters_was_changed() -> None:
    """Base64 ignores them by default, so that a changed envelope would be opened."""
    envelope = encryption.encrypt("{}", 7, "state")
    changed = f"{envelope[:20]}!{envelope[20:]}"
    with pytest.raises(DecodeError, match=r"^instance 7: its state cannot be decoded: the envelope was changed$"):
        encryption.decrypt(changed, 7, "state")
    assert encryption.decrypt(envelope.encode(), 7, "state") == "{}"


def test_an_error_of_the_codec_is_named_by_its_type() -> None:
    """Its message may quote the payload, and so may the error that it came from."""
    envelope = encryption.encrypt('"canary"', 7, "state")
    with pytest.raises(DecodeError, match=r"^instance 8: its state cannot be decoded \(PermissionError\)$") as caught:
        encryption.decrypt(envelope, 8, "state")
    assert caught.value.__suppress_context__


def test_children_of_a_round_are_decrypted() -> None:
    """State, result and error of each, in its own place."""
    done = Child(
        id=1,
        machine="m",
        version=1,
        step="s",
        status=Status.DONE,
        last_error=None,
        raw_result=encryption.encrypt("1", 1, "result").encode(),
        raw_state=encryption.encrypt("2", 1, "state/m/1/s").encode(),
    )
    failed = Child(
        id=2,
        machine="m",
        version=1,
        step="s",
        status=Status.FAILED,
        last_error=encryption.encrypt_text_or_drop("lost", 2, "error"),
        raw_result=None,
        raw_state=encryption.encrypt("3", 2, "state/m/1/s").encode(),
    )
    found = encryption.decrypt_children([done, failed])
    assert [(one.state, one.result, one.last_error) for one in found] == [(2, 1, None), (3, None, "lost")]


def test_a_checkpoint_is_decrypted() -> None:
    """One that was moved from another instance raises when it is read."""
    raw = encryption.encrypt("[1]", 7, "checkpoint").encode()
    stored = Checkpoint(version=1, updated_at=datetime(2030, 1, 1, tzinfo=UTC), raw_value=raw)
    assert encryption.decrypt_checkpoint(stored, 7).value == [1]
    moved = encryption.decrypt_checkpoint(stored, 8)
    with pytest.raises(DecodeError, match=r"^instance 8: its checkpoint cannot be decoded"):
        _ = moved.value
