"""Handle tokens: ids of instances that cannot be guessed, for URLs. Pure: the key is an argument.

A token is the id (8 bytes) and the first 128 bits of an HMAC-SHA256 of it, in URL-safe base64: 24 bytes are exactly 32
characters, so that no padding and no unused bits are left in which two spellings of one token could differ.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from gen_durable.errors import InputError

_MAC_BYTES: Final = 16
_LENGTH: Final = 32
# What this MAC is for, so that another use of the key could never make a token.
_PURPOSE: Final = b"gen_durable handle token\0"


def encode_handle_token(key: bytes, instance: int) -> str:
    """The token of an instance's id."""
    id_bytes = instance.to_bytes(8, "big")
    mac = hmac.digest(key, _PURPOSE + id_bytes, hashlib.sha256)[:_MAC_BYTES]
    return base64.urlsafe_b64encode(id_bytes + mac).decode("ascii")


def decode_handle_token(key: bytes, token: str) -> int:
    """The id in a token. Raises `InputError` for everything that `encode_handle_token` does not return for this key."""
    if not isinstance(token, str):
        raise InputError(f"a handle token is a str, got {type(token).__name__}")
    # The length comes first: a huge text must cost nothing. No message quotes the text, which an attacker chooses.
    if len(token) != _LENGTH or not token.isascii():
        raise _refusal()
    try:
        instance = int.from_bytes(base64.urlsafe_b64decode(token)[:8], "big")
    except binascii.Error:
        raise _refusal() from None
    # Python's decoder skips and replaces characters. Comparing whole texts leaves one spelling, in constant time.
    if not 1 <= instance < 2**63 or not hmac.compare_digest(encode_handle_token(key, instance), token):
        raise _refusal()
    return instance


def _refusal() -> InputError:
    return InputError("this is not a handle token of this installation: pass the unchanged text of handle.token")
