"""Handle tokens: one text per id and key, and no other text is accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import string
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable.errors import InputError
from gen_durable.handle_tokens import decode_handle_token, encode_handle_token

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
ALPHABET = string.ascii_letters + string.digits + "-_"
ids = st.integers(1, 2**63 - 1)


def spelled(id_bytes: bytes, mac: bytes) -> str:
    return base64.urlsafe_b64encode(id_bytes + mac).decode()


def accepted(token: Any, key: bytes = KEY) -> int | None:
    try:
        return decode_handle_token(key, token)
    except InputError as error:
        message = str(error)
    assert "handle token" in message
    assert len(message) < 200  # it does not quote the text
    return None


@given(ids)
def test_a_token_is_its_id(instance: int) -> None:
    token = encode_handle_token(KEY, instance)
    assert decode_handle_token(KEY, token) == instance
    assert len(token) == 32
    assert set(token) <= set(ALPHABET)
    assert accepted(token, OTHER_KEY) is None


def test_the_format_is_fixed() -> None:
    """URLs that were given away stay valid in later versions."""
    assert encode_handle_token(KEY, 42) == "AAAAAAAAACqbHWmRTKbUKtT9Q94rVpPI"


@given(st.text(), st.text(ALPHABET, min_size=32, max_size=32), st.binary(min_size=24, max_size=24))
def test_other_texts_are_refused(text: str, in_form: str, raw: bytes) -> None:
    """Random texts, random texts of the right form, and random bytes; 128 bits are not met by chance."""
    assert [accepted(one) for one in (text, in_form, base64.urlsafe_b64encode(raw).decode())] == [None] * 3


@given(ids, st.data())
def test_a_changed_token_is_refused(instance: int, data: st.DataObject) -> None:
    """One other character at any place, also one that Python's decoder would skip or take for another one."""
    token = encode_handle_token(KEY, instance)
    place = data.draw(st.integers(0, 31))
    changed = data.draw(st.one_of(st.sampled_from(ALPHABET + "+/=\n \0\u017f"), st.characters()))
    forged = token[:place] + changed + token[place + 1 :]
    assert accepted(forged) == (instance if forged == token else None)


def test_mangled_tokens_are_refused() -> None:
    # The MAC of this token has each character that has a second spelling in other alphabets.
    instance = next(n for n in range(1, 10_000) if {"-", "_"} <= set(encode_handle_token(KEY, n)))
    token = encode_handle_token(KEY, instance)
    mac = base64.urlsafe_b64decode(token)[8:]
    mangled: list[object] = [
        "",
        token[:-1],
        token[1:],
        token + "A",
        token + "=",
        token + "\n",
        " " + token,
        token[:31] + "\n",
        token.replace("-", "+"),
        token.replace("_", "/"),
        token.lower(),
        token.upper(),
        token.swapcase(),
        token[:31] + "\N{FULLWIDTH LATIN SMALL LETTER A}",
        token[:31] + "\ud800",
        "=" * 32,
        "\n" * 32,
        "%" * 32,
        token * 1_000_000,
        token.encode(),
        instance,
        None,
        [token],
        spelled((instance + 1).to_bytes(8, "big"), mac),
        spelled(instance.to_bytes(8, "big"), bytes(16)),
    ]
    assert [one for one in mangled if accepted(one) is not None] == []
    assert accepted(token) == instance


def test_a_huge_text_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs what its length costs: nothing."""
    decode = mock.Mock(side_effect=AssertionError("decoded"))
    monkeypatch.setattr("gen_durable.handle_tokens.base64.urlsafe_b64decode", decode)
    assert [accepted("A" * length) for length in (31, 33, 50_000_000)] == [None] * 3


def test_a_valid_mac_of_an_impossible_id_is_refused() -> None:
    """Not even the key makes a token for an id that no instance can have."""
    for id_bytes in (bytes(8), b"\xff" * 8, b"\x80" + bytes(7)):
        mac = hmac.digest(KEY, b"gen_durable handle token\0" + id_bytes, hashlib.sha256)[:16]
        assert accepted(spelled(id_bytes, mac)) is None


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that stops at the first difference would tell an attacker, by its time, how far a guess is right."""
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return True

    monkeypatch.setattr("gen_durable.handle_tokens.hmac.compare_digest", compare)
    forged = encode_handle_token(OTHER_KEY, 7)
    assert decode_handle_token(KEY, forged) == 7
    assert [{*map(str, pair)} for pair in compared] == [{forged, encode_handle_token(KEY, 7)}]
