"""Encrypt payloads with the user's `PayloadCodec` before they are stored, and decrypt them after they are read.

An encrypted payload is an envelope, `encrypted:1:` and base64: a JSON string in a jsonb column, plain text in a text
column. The codec gets the instance and the field of each payload, so an authenticated codec rejects an envelope that
was moved. Clear JSON is rejected unless `read_unencrypted` is set; clear text is an error message written by SQL, such
as a crash loop or a cancellation.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from gen_durable.context import Child
from gen_durable.errors import CodecUnavailable, ConfigError, DecodeError, EncodeError, SignalFault
from gen_durable.instances import Instance
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.json_codec import ENCRYPTED_PREFIX, UnreadablePayload, is_encrypted_json
from gen_durable.signals import Received

RESULT: Final = "result"
ERROR: Final = "error"
TRACEBACK: Final = "traceback"


@dataclass(frozen=True, slots=True)
class PayloadContext:
    """The place of a payload: the schema, the instance, and the field.

    Fields are `state/MACHINE/VERSION/STEP`, with the step that the state is for, `result`, `error`, `traceback`,
    `signal/NAME`, `checkpoint`, `activity/VISIT/NAME/parameters` (or `result`, `error`) and `progress/message` (or
    `detail`).
    """

    schema: str
    instance: int
    field: str

    def as_bytes(self) -> bytes:
        """Associated data for authenticated encryption: no two places have the same bytes."""
        return f"{self.schema}/{self.instance}/{self.field}".encode()


@runtime_checkable
class PayloadCodec(Protocol):
    """The protocol of `Durable(codec=...)`. Called from any thread. All clients and workers need codecs that agree.

    A codec may have an attribute `fingerprint`, a short text that differs between sets of keys and reveals none: a
    worker with other keys then tries signals again that could not be decrypted. It may have a method
    `is_current(data: bytes) -> bool`, whether `encode` would use the same key: `reencrypt` then leaves such data.
    """

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Encrypt a payload."""
        ...

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Decrypt a payload. Raises if it was encrypted for another place, or cannot be read."""
        ...


class PayloadEncryption:
    """The codec of one `Durable`, for the payloads of one schema."""

    __slots__ = ("_clear", "_codec", "_schema")

    def __init__(self, codec: PayloadCodec, schema: str, *, read_unencrypted: bool) -> None:
        if not isinstance(codec, PayloadCodec):
            raise ConfigError(f"codec must have encode and decode, got {type(codec).__name__}")
        self._codec = codec
        self._schema = schema
        self._clear = read_unencrypted

    @property
    def codec_identity(self) -> str:
        """Identifies the codec in fingerprints: its class and, if it has one, its attribute `fingerprint`."""
        kind = type(self._codec)
        own = getattr(self._codec, "fingerprint", "")
        return f"{kind.__module__}.{kind.__qualname__}/{own}/{'clear' if self._clear else ''}"

    def encrypt(self, json: str, instance: int, field: str) -> str:
        """JSON as an envelope, which is JSON too."""
        return f'"{self._make_envelope(json.encode(), PayloadContext(self._schema, instance, field))}"'

    def encrypt_text_or_drop(self, text: str, instance: int, field: str) -> str:
        """Text as an envelope. If the codec fails, the text is dropped: it is never stored in clear."""
        try:
            return self._make_envelope(text.encode(), PayloadContext(self._schema, instance, field))
        except EncodeError as error:
            return f"EncodeError: {error}"

    def decrypt(self, json: str | bytes, instance: int, field: str) -> str:
        """Decrypt JSON. Raises `DecodeError`, also for clear text unless `read_unencrypted` allows it."""
        text = json if isinstance(json, str) else json.decode()
        if is_encrypted_json(text):
            return self._open_envelope(text[1:-1], PayloadContext(self._schema, instance, field))
        if self._clear:
            return text
        raise DecodeError(
            f"instance {instance}: its {_describe_field(field)} is stored in clear, "
            "which a client with a codec does not read. "
            "Find out what wrote it. docs/howto/encrypt.md explains how to turn encryption on for a schema in use"
        )

    def is_envelope(self, text: str) -> bool:
        """Whether JSON or text is an envelope."""
        return text.startswith(ENCRYPTED_PREFIX) or is_encrypted_json(text)

    def reencrypt_unless_current(self, stored: str, instance: int, field: str) -> str | None:
        """An envelope, JSON or text, made anew; None if the codec says that it is current. Raises `DecodeError`.

        A codec without `is_current` makes every envelope anew.
        """
        quote = '"' if is_encrypted_json(stored) else ""
        envelope = stored.strip('"')
        is_current = getattr(self._codec, "is_current", None)
        context = PayloadContext(self._schema, instance, field)
        clear = self._open_envelope(envelope, context)  # also of a current one: it must be readable
        if is_current is not None and is_current(base64.b64decode(envelope[len(ENCRYPTED_PREFIX) :])):
            return None
        return f"{quote}{self._make_envelope(clear.encode(), context)}{quote}"

    def decrypt_text_if_encrypted(self, text: str, instance: int, field: str) -> str:
        """Decrypt a text. Clear text is a message of the engine and is returned unchanged."""
        if not text.startswith(ENCRYPTED_PREFIX):
            return text
        return self._open_envelope(text, PayloadContext(self._schema, instance, field))

    def decrypt_if_possible(self, raw: bytes, instance: int, field: str) -> bytes:
        """Decrypted JSON for a reader of instances; reading it raises `DecodeError` if it cannot be decrypted."""
        try:
            return self.decrypt(raw, instance, field).encode()
        except DecodeError as error:
            unreadable = UnreadablePayload(raw)
            unreadable.reason = str(error)
            return unreadable

    def decrypt_text_or_explain(self, text: str | None, instance: int, field: str) -> str | None:
        """Decrypted text for a reader of instances, or the reason why it cannot be decrypted."""
        if text is None:
            return None
        try:
            return self.decrypt_text_if_encrypted(text, instance, field)
        except DecodeError as error:
            return f"(cannot be read: {error})"

    def decrypt_instance(self, one: Instance) -> Instance:
        """An instance, decrypted."""
        return dataclasses.replace(
            one,
            last_error=self.decrypt_text_or_explain(one.last_error, one.id, ERROR),
            traceback=self.decrypt_text_or_explain(one.traceback, one.id, TRACEBACK),
            raw_state=None
            if one.raw_state is None
            else self.decrypt_if_possible(one.raw_state, one.id, state_field(one.machine, one.version, one.step)),
            raw_result=None if one.raw_result is None else self.decrypt_if_possible(one.raw_result, one.id, RESULT),
        )

    def decrypt_transition(self, one: Transition, instance: int, machine: str, version: int) -> Transition:
        """A transition of an instance, decrypted. At the end, its state is the one of the step that ran."""
        field = state_field(machine, version, one.next_step or one.step)
        state = None if one.raw_state is None else self.decrypt_if_possible(one.raw_state, instance, field)
        return dataclasses.replace(
            one,
            error=self.decrypt_text_or_explain(one.error, instance, ERROR),
            traceback=self.decrypt_text_or_explain(one.traceback, instance, TRACEBACK),
            raw_state=state,
        )

    def decrypt_activity(self, one: Activity, instance: int) -> Activity:
        """An activity of an instance, decrypted."""

        def field(part: str) -> str:
            return activity_field(one.visit, one.name, part)

        return dataclasses.replace(
            one,
            error=self.decrypt_text_or_explain(one.error, instance, field(ERROR)),
            raw_parameters=self.decrypt_if_possible(one.raw_parameters, instance, field("parameters")),
            raw_result=None
            if one.raw_result is None
            else self.decrypt_if_possible(one.raw_result, instance, field(RESULT)),
        )

    def decrypt_checkpoint(self, one: Checkpoint, instance: int) -> Checkpoint:
        """The checkpoint of an instance, decrypted."""
        return dataclasses.replace(one, raw_value=self.decrypt_if_possible(one.raw_value, instance, "checkpoint"))

    def decrypt_progress(self, one: Progress, instance: int) -> Progress:
        """The progress of an instance, decrypted."""
        detail = (
            None if one.raw_detail is None else self.decrypt_if_possible(one.raw_detail, instance, "progress/detail")
        )
        message = self.decrypt_text_or_explain(one.message, instance, "progress/message")
        return dataclasses.replace(one, message=message, raw_detail=detail)

    def decrypt_children(self, children: Iterable[Child]) -> tuple[Child, ...]:
        """Children for their parent's step. Raises `DecodeError`."""
        return tuple(
            dataclasses.replace(
                one,
                last_error=None
                if one.last_error is None
                else self.decrypt_text_if_encrypted(one.last_error, one.id, ERROR),
                raw_result=None if one.raw_result is None else self.decrypt(one.raw_result, one.id, RESULT).encode(),
                raw_state=self.decrypt(one.raw_state, one.id, state_field(one.machine, one.version, one.step)).encode(),
            )
            for one in children
        )

    def decrypt_signals_and_find_faults(
        self, signals: Iterable[Received], instance: int
    ) -> tuple[tuple[Received, ...], tuple[SignalFault, ...]]:
        """Signals for a step, and those that cannot be decrypted. A signal without a payload is not encrypted."""
        readable: list[Received] = []
        faults: list[SignalFault] = []
        for one in signals:
            if one.payload == b"null":
                readable.append(one)
                continue
            try:
                payload = self.decrypt(one.payload, instance, signal_field(one.name)).encode()
            except CodecUnavailable:
                raise  # this says nothing about the signal
            except DecodeError as error:
                faults.append(SignalFault(one.id, one.name, f"cannot be decrypted: {error}"))
            else:
                readable.append(dataclasses.replace(one, payload=payload))
        return tuple(readable), tuple(faults)

    def _make_envelope(self, data: bytes, context: PayloadContext) -> str:
        try:
            return ENCRYPTED_PREFIX + base64.b64encode(self._codec.encode(data, context)).decode()
        except Exception as error:
            # Only the type of the error: its message may quote the payload.
            what = _describe_field(context.field)
            raise EncodeError(f"the codec could not encode {what} ({type(error).__name__})") from None

    def _open_envelope(self, envelope: str, context: PayloadContext) -> str:
        where = f"instance {context.instance}: its {_describe_field(context.field)} cannot be decoded"
        try:
            return self._codec.decode(
                base64.b64decode(envelope[len(ENCRYPTED_PREFIX) :], validate=True), context
            ).decode()
        except DecodeError as error:
            kind = CodecUnavailable if isinstance(error, CodecUnavailable) else DecodeError
            raise kind(f"{where}: {error}") from None
        except (binascii.Error, UnicodeDecodeError):
            raise DecodeError(f"{where}: the envelope was changed") from None
        except Exception as error:
            raise DecodeError(f"{where} ({type(error).__name__})") from None


def _describe_field(field: str) -> str:
    """The field in a message. The step of a state is in the row that the message is about."""
    return "state" if field.startswith("state/") else field


def state_field(machine: str, version: int, step: str) -> str:
    """The field of a state, which is for one step. Names hold no slash, so no two steps have the same field."""
    return f"state/{machine}/{version}/{step}"


def signal_field(name: str) -> str:
    """The field of a signal's payload."""
    return f"signal/{name}"


def activity_field(visit: int, name: str, part: str) -> str:
    """A field of an activity."""
    return f"activity/{visit}/{name}/{part}"
