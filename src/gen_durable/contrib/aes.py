"""AES-256-GCM for payloads: `Durable(codec=AesGcm({"2026-11": key}))`.

In: keys of 32 bytes by their ids, of which one writes. Out: a `PayloadCodec`: what it stores can be read only with the
key, and only as the field of the instance that it was stored for.

A payload is stored as: 1, the length of the key's id, the id, a nonce of 12 bytes, the ciphertext with its tag. Each
instance has a key of its own, derived from the one that was given: nonces are random, and one key would have too many.

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


class AesGcm:
    """The codec. `write` is the id of the key to encrypt with; the others only read. With one key it may be left out.

    To change keys: give the new one to every process for reading, then let it write, and drop the old one when nothing
    is left that it has encrypted.
    """

    __slots__ = ("_header", "_keys", "_write")

    def __init__(self, keys: Mapping[str, bytes], *, write: str | None = None) -> None:
        for name, key in keys.items():
            check_name(name, "the id of a key", ConfigError)
            if not isinstance(key, bytes) or len(key) != 32:
                raise ConfigError(f"key {name!r} must be 32 bytes, as of secrets.token_bytes(32)")
        if write is None and len(keys) == 1:
            (write,) = keys
        if write is None or write not in keys:
            raise ConfigError("write must name one of the keys: the one to encrypt with")
        self._keys = dict(keys)
        self._write = write
        self._header = bytes([FORMAT, len(write)]) + write.encode()

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Encrypt a payload for its place."""
        nonce = os.urandom(NONCE)
        cipher = _cipher(self._keys[self._write], context)
        return self._header + nonce + cipher.encrypt(nonce, data, self._header + context.as_bytes())

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Decrypt a payload; one that was made for another place, or with another key, is refused."""
        if len(data) < 2 or data[0] != FORMAT:
            raise DecodeError("this is no payload of AesGcm, or of a newer version")
        at = 2 + data[1]
        header, nonce, sealed = data[:at], data[at : at + NONCE], data[at + NONCE :]
        name = header[2:].decode("ascii", "replace")
        key = self._keys.get(name)
        if key is None:
            raise DecodeError(f"it is encrypted with key {name!r}, which was not given")
        try:
            return _cipher(key, context).decrypt(nonce, sealed, header + context.as_bytes())
        except (InvalidTag, ValueError):
            raise DecodeError(
                f"it was changed, or moved here from another place, or its key {name!r} is not the one that was given"
            ) from None

    def __repr__(self) -> str:
        return f"AesGcm(write={self._write!r}, read={sorted(self._keys)})"


def _cipher(key: bytes, context: PayloadContext) -> AESGCM:
    return AESGCM(hmac.digest(key, PURPOSE + f"{context.schema}/{context.instance}".encode(), "sha256"))
