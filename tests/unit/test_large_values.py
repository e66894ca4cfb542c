"""Large values are encoded and checked fast: the event loop of a worker waits for it."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from gen_durable.errors import TooLarge
from gen_durable.json_codec import JsonCodec, encode_json, encode_metadata, written_out_size
from gen_durable.validation import MAX_PAYLOAD


def nested() -> Any:
    value: Any = "x"
    for _ in range(55):
        value = [value]
    return [value] * (MAX_PAYLOAD // 115)


VALUES: dict[str, Any] = {
    "brackets": nested(),
    "nulls": [None] * (MAX_PAYLOAD // 6),
    "objects": [{"k": 100_000 + n} for n in range(MAX_PAYLOAD // 16)],
    "quotes": '"' * (MAX_PAYLOAD // 2 - 2),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_megabyte_of_any_kind_is_encoded_in_a_fraction_of_a_second(kind: str) -> None:
    """Brackets took a second of CPU time, nulls and objects a tenth."""
    codec: JsonCodec[Any] = JsonCodec(Any, "a state")
    began = time.process_time()
    codec.encode_and_decode(VALUES[kind], canonical=True)
    assert time.process_time() - began < 0.6


@pytest.mark.parametrize(("number", "digits"), [(1e300, 301), (1e16, 17), (1e-300, 302), (-2.5e200, 202)])
def test_numbers_count_with_the_digits_that_the_database_writes(number: float, digits: int) -> None:
    """20 KB of 1e300 are a megabyte in each row, claim and answer."""
    count = MAX_PAYLOAD // digits + 1
    with pytest.raises(TooLarge, match="with its numbers written out"):
        encode_json([number] * count, "a state")
    encode_json([number] * (count // 2), "a state")


def test_digits_in_texts_do_not_count() -> None:
    text = "1e300" * (MAX_PAYLOAD // 6)
    assert written_out_size(encode_json([text, '\\"1e300'], "a state")) < MAX_PAYLOAD
    with pytest.raises(TooLarge, match="metadata is"):
        encode_metadata({"x": [1e300] * 30})


@dataclass
class Watching:
    """Records whether garbage is collected while it is decoded."""

    text: str
    collected: ClassVar[list[bool]] = []

    def __post_init__(self) -> None:
        self.collected.append(gc.isenabled())


def test_a_large_value_is_decoded_without_garbage_collections() -> None:
    """They would walk over it again and again. Afterwards they go on, unless the caller has turned them off."""
    codec: JsonCodec[Watching] = JsonCodec(Watching, "a state")
    Watching.collected.clear()
    large = b'{"text": "%s"}' % (b"x" * 100_000)
    assert codec.decode(b'{"text": "x"}') == Watching("x")
    assert codec.decode(large).text == "x" * 100_000
    assert gc.isenabled()
    gc.disable()
    try:
        assert codec.decode(large).text == "x" * 100_000
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert Watching.collected == [True, True, False, False]
