"""Fingerprints: the same for the same code in every process, another one for other types, versions and codecs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest
from tests.support import canaries

from gen_durable import Await, Context, Done, Machine, Outcome, Signal, job, step
from gen_durable.contrib.aes import AesGcm
from gen_durable.encryption import PayloadEncryption
from gen_durable.signal_decoder_fingerprints import (
    SignalDecoderFingerprints,
    find_signals_in_code,
    make_machine_fingerprint,
)
from gen_durable.step_registry import Registry


@dataclass
class Paid:
    amount: int


class Model(pydantic.BaseModel):
    kind: Literal["a", "b", "c"]


paid = Signal("paid", Paid)
model = Signal("model", Model)
helped = Signal("helped", int)
unused = Signal("unused", int)


def helper(ctx: Context) -> int | None:
    return ctx.take(helped)


class Names:
    held = Signal("held", str)


class Shop(Machine):
    attribute = Signal("attribute", int)

    def __init__(self, own: Signal[int] | None = None) -> None:
        self.own = own or Signal("own", int)

    @step
    async def start(self, _: int, ctx: Context) -> Outcome[int]:
        return Await({paid, canaries.told}, then=self.take, state=0)

    @step
    async def take(self, _: int, ctx: Context) -> Outcome[int]:
        names = [ctx.take(signal) for signal in (model, Names.held)]
        return Done(len(names) + (helper(ctx) or 0))


@job
async def plain(number: int) -> int:
    return number


def mark(machine: Machine, codec: str = "") -> str:
    return make_machine_fingerprint(type(machine).__gen_durable__, machine, codec)


def test_signals_are_found_wherever_the_code_names_them() -> None:
    """Globals, attributes of modules and classes, helpers, attributes of the machine; not what it does not name."""
    found = {signal.name for signal in find_signals_in_code(Shop.__gen_durable__, Shop())}
    assert found == {"paid", "model", "helped", "held", "attribute", "own", "told"}


def made(payload_type: Any, name: str = "s") -> Machine:
    signal = Signal(name, payload_type)

    class Closed(Machine, name="closed"):
        @step
        async def start(self, _: int, ctx: Context) -> Outcome[Any]:
            return Done(ctx.take(signal))

    return Closed()


@dataclass
class Later:
    amount: int
    currency: str = "EUR"


def test_another_type_is_another_fingerprint() -> None:
    marks = {mark(made(type_)) for type_ in (Paid, Later, Model, int, str, None, list[Paid])}
    assert len(marks) == 7
    assert mark(made(Paid)) == mark(made(Paid))
    assert mark(made(Paid)) != mark(made(Paid, "other"))
    assert mark(made(Paid)) != mark(made(Paid), "codec")


def test_a_type_without_a_schema_counts_by_its_name() -> None:
    signal = Signal("s", object)

    class Odd(Machine):
        @step
        async def start(self, _: int, ctx: Context) -> Outcome[Any]:
            return Done(ctx.take(signal))

    assert len(mark(Odd())) == 16


def test_the_fingerprints_of_a_worker() -> None:
    marks = SignalDecoderFingerprints(Registry([Shop()], [plain]), "")
    assert {(machine, version) for machine, version, _ in marks.list_all()} == {("Shop", 1), ("plain", 1)}
    assert marks.get_for_machine("Shop", 1) == mark(Shop())
    assert SignalDecoderFingerprints(Registry([Shop()]), "codec").get_for_machine("Shop", 1) != marks.get_for_machine(
        "Shop", 1
    )


@pytest.mark.parametrize("seed", ["0", "1", "77"])
def test_every_process_computes_the_same(seed: str) -> None:
    """Whatever the order of sets and the addresses of objects."""
    code = "from tests.unit.test_signal_decoder_fingerprints import *; print(mark(Shop()))"
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == mark(Shop())


def codec_identity(codec: Any, *, read_unencrypted: bool = False) -> str:
    return PayloadEncryption(codec, "s", read_unencrypted=read_unencrypted).codec_identity


def test_codecs_differ_by_their_keys() -> None:
    """And no key can be read from them."""
    one, other = b"1" * 32, b"2" * 32
    several = [
        codec_identity(AesGcm({"k": one})),
        codec_identity(AesGcm({"k": other})),
        codec_identity(AesGcm({"j": one})),
        codec_identity(AesGcm({"k": one, "j": other}, write="k")),
        codec_identity(AesGcm({"k": one}), read_unencrypted=True),
    ]
    assert len(set(several)) == 5
    assert several[0] == codec_identity(AesGcm({"k": one}))
    assert codec_identity(AesGcm({"k": one, "j": other}, write="k")) == codec_identity(
        AesGcm({"j": other, "k": one}, write="j")
    )


class Reversing:
    """A codec without a fingerprint of its own."""

    def encode(self, data: bytes, context: object) -> bytes:
        return data[::-1]

    decode = encode


def test_a_codec_without_a_fingerprint_counts_by_its_class() -> None:
    assert codec_identity(Reversing()) == codec_identity(Reversing())
    assert "Reversing" in codec_identity(Reversing())
