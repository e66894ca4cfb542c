"""Fingerprints of what a worker decodes signals with: machine, version, the types of its signals, and the codec.

A signal that a worker cannot read is marked with the fingerprint (reject_signals_and_release_claims.sql). A worker
whose fingerprint differs tries the signal again. The same code gives the same fingerprint in every process.

The signals of a machine are found in its code: `Signal` objects that its functions refer to by a global name, a
closure, or an attribute of a module or class, also through helper functions of the same package. A signal that is not
found leaves the fingerprint as it is; `app.restore_signals` then lets every worker try again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec

from gen_durable.jobs import Job
from gen_durable.json_codec import type_name
from gen_durable.machines import Machine, MachineSpec
from gen_durable.signals import Signal
from gen_durable.step_registry import Registry

LENGTH: Final = 16


class SignalDecoderFingerprints:
    """The fingerprints of the machines of one worker, computed when they are first needed."""

    __slots__ = ("_by_machine", "_codec", "_registry")

    def __init__(self, registry: Registry, codec: str) -> None:
        """`codec` is the identity of the payload codec, "" without one."""
        self._registry = registry
        self._codec = codec
        self._by_machine: dict[tuple[str, int], str] | None = None

    def get_for_machine(self, machine: str, version: int) -> str:
        """The fingerprint of one machine of the registry."""
        return self._get_or_compute_all()[machine, version]

    def list_all(self) -> list[tuple[str, int, str]]:
        """(machine, version, fingerprint) of every machine and job."""
        return [(machine, version, mark) for (machine, version), mark in self._get_or_compute_all().items()]

    def _get_or_compute_all(self) -> dict[tuple[str, int], str]:
        if self._by_machine is None:
            self._by_machine = {
                (spec.name, spec.version): make_machine_fingerprint(
                    spec, self._registry.get_machine_or_job(spec), self._codec
                )
                for spec in self._registry.specs
            }
        return self._by_machine


def make_machine_fingerprint(spec: MachineSpec, owner: Machine | Job[Any, Any], codec: str) -> str:
    """A short hash of a machine's name and version, the types of the signals in its code, and the codec."""
    found = find_signals_in_code(spec, owner)
    signals = sorted({(signal.name, _json_schema_or_type_name(signal.payload_type)) for signal in found})
    text = json.dumps([spec.name, spec.version, codec, signals])
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def find_signals_in_code(spec: MachineSpec, owner: Machine | Job[Any, Any]) -> list[Signal[Any]]:
    """The signals that the code of a machine or job refers to."""
    found: list[Signal[Any]] = []
    seen: set[int] = set()
    due: list[object] = [step.fn for step in spec.steps.values()]
    if isinstance(owner, Machine):
        due += getattr(owner, "__dict__", {}).values()
        for cls in type(owner).__mro__:
            if issubclass(cls, Machine) and cls is not Machine:
                due += vars(cls).values()
    package = {step.fn.__module__.partition(".")[0] for step in spec.steps.values()}
    while due:
        value = due.pop()
        if isinstance(value, (staticmethod, classmethod)):
            value = cast(Any, value).__func__
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Signal):
            found.append(cast(Any, value))
        elif isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] in package:
            due += _values_named_in_code(value)
            due.append(inspect.unwrap(value))
    return found


def _values_named_in_code(function: types.FunctionType) -> Iterator[object]:
    """The values of the names in a function's code, and those of their attributes that the code names."""
    names = set(_names_in_code(function.__code__))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    for name in sorted(names | set(cells)):
        try:
            value = cells[name].cell_contents if name in cells else function.__globals__.get(name)
        except ValueError:  # the cell is empty
            continue
        yield value
        if isinstance(value, (types.ModuleType, type)):
            # getattr_static: reading code must not run it
            yield from (inspect.getattr_static(value, attribute, None) for attribute in sorted(names))


def _names_in_code(code: types.CodeType) -> Iterator[str]:
    """The global and attribute names of a code object and of the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in_code(constant)


def _json_schema_or_type_name(type_: object) -> str:
    """The JSON schema of a payload's type; its name if it has none."""
    try:
        model_schema: Callable[[], object] | None = getattr(type_, "model_json_schema", None)
        schema = (
            model_schema() if model_schema is not None else msgspec.json.schema(type_, schema_hook=_pydantic_schema)
        )
        return json.dumps(schema, sort_keys=True)
    except Exception:  # a forward reference, or a type with a hook of its own: the name is what is known
        return f"{getattr(type_, '__module__', '')}.{type_name(type_)}"


def _pydantic_schema(type_: type) -> dict[str, Any]:
    return cast("dict[str, Any]", cast(Any, type_).model_json_schema())
