"""AES-256-GCM for payloads: `Durable(codec=AesGcm({"2026-11": key}))`.

A payload can be decrypted only with its key, and only as the same field of the same instance; a state only for the
step, machine and version that it was written for.

It is stored as: 1, the length of the key's id, the id, a nonce of 12 bytes, the ciphertext with its tag. Each instance
has a key of its own, derived from the given one: nonces are random, and one key must not see too many of them.

Needs the extra: `pip install 'gen-durable[crypto]'`.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gen_durable.encryption import PayloadContext
from gen_durable.errors import ConfigError, DecodeError
from gen_durable.validation import check_name

FORMAT: Final = 1
NONCE: Final = 12
PURPOSE: Final = b"gen_durable payload of "
FINGERPRINT: Final = b"gen_durable fingerprint of a key"


class AesGcm:
    """A `PayloadCodec` with keys of 32 bytes by their ids. `write` is the id of the key to encrypt with.

    With a single key, `write` may be left out. To change keys: deploy the new key to every process for reading, then
    name it in `write`, and remove the old key when no stored payload uses it.
    """

    __slots__ = ("_header", "_keys", "_write")

    def __init__(self, keys: Mapping[str, bytes], *, write: str | None = None) -> None:
        for name, key in keys.items():
            check_name(name, "the id of a key", ConfigError)
            if not isinstance(key, bytes) or len(key) != 32:
                raise ConfigError(f"Key {name!r} must be 32 bytes. Make one with secrets.token_bytes(32).")
        if write is None and len(keys) == 1:
            (write,) = keys
        if write is None or write not in keys:
            raise ConfigError("write= must be the id of the key to encrypt with, one of those in keys=.")
        self._keys = dict(keys)
        self._write = write
        self._header = bytes([FORMAT, len(write)]) + write.encode()

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Encrypt a payload for one field of one instance."""
        nonce = os.urandom(NONCE)
        cipher = _make_cipher(self._keys[self._write], context)
        return self._header + nonce + cipher.encrypt(nonce, data, self._header + context.as_bytes())

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Decrypt a payload. Raises `DecodeError` if it belongs to another field or instance, or to an unknown key."""
        if len(data) < 2 or data[0] != FORMAT:
            raise DecodeError("it was not encrypted by this version of AesGcm")
        at = 2 + data[1]
        header, nonce, ciphertext = data[:at], data[at : at + NONCE], data[at + NONCE :]
        name = header[2:].decode("ascii", "replace")
        key = self._keys.get(name)
        if key is None:
            raise DecodeError(f"it is encrypted with key {name!r}, which AesGcm was not given. Add it to keys=.")
        try:
            return _make_cipher(key, context).decrypt(nonce, ciphertext, header + context.as_bytes())
        except (InvalidTag, ValueError):
            raise DecodeError(
                "it was changed or copied from another instance, field or step, "
                f"or the given key {name!r} is another one."
            ) from None

    def is_current(self, data: bytes) -> bool:
        """Whether a payload is encrypted with the key that `write` names."""
        return data.startswith(self._header)

    @property
    def fingerprint(self) -> str:
        """Differs between sets of keys; the keys cannot be derived from it."""
        marks = [
            name.encode() + hmac.digest(key, FINGERPRINT, "sha256")[:6] for name, key in sorted(self._keys.items())
        ]
        return hmac.digest(FINGERPRINT, b"".join(marks), "sha256")[:6].hex()

    def __repr__(self) -> str:
        return f"AesGcm(write={self._write!r}, read={sorted(self._keys)})"


def _make_cipher(key: bytes, context: PayloadContext) -> AESGCM:
    return AESGCM(hmac.digest(key, PURPOSE + f"{context.schema}/{context.instance}".encode(), "sha256"))
