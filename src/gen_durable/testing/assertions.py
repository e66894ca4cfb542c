"""Assertions about instances, which `Harness` inherits.

A failing assertion says what the instance is doing instead. Its cause is the error that the instance's last step
raised, so that the test report shows where.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, final, overload

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.errors import InputError
from gen_durable.handles import Handle
from gen_durable.instances import Status
from gen_durable.json_codec import decode_untyped_json, encode_json
from gen_durable.signals import Signal
from gen_durable.starts import Startable, to_step_spec
from gen_durable.testing.drain_result import describe_instances
from gen_durable.testing.harness_statements import HarnessStatements
from gen_durable.testing.instance_snapshot import Snapshot, shorten_for_message
from gen_durable.validation import to_stored_key

R = TypeVar("R")
S = TypeVar("S")
Target: TypeAlias = "int | str | bytes | Handle[Any]"
"""An instance, by its handle, its id or its unique key; a key means the newest instance that was started with it."""


@final
class Anything:
    """The type of `ANYTHING`: the value is not checked."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = Anything()


class Assertions:
    """The assertions of a `Harness`."""

    def __init__(self, app: Durable) -> None:
        self.app = app
        self._statements = HarnessStatements(services_of(app).statements.schema)
        self._errors: dict[int, Exception] = {}
        """The error of each instance's last execution."""

    @overload
    async def assert_done(self, target: Handle[R], result: R | Anything = ANYTHING) -> R: ...
    @overload
    async def assert_done(self, target: int | str | bytes, result: object = ANYTHING) -> Any: ...
    async def assert_done(self, target: Target, result: object = ANYTHING) -> Any:
        """Assert that the instance is done, with this result. Returns the result."""
        __tracebackhide__ = True
        found = await self.snapshot(target)
        if found.status is not Status.DONE:
            self._raise_assertion_error(found, "should be done")
        if (
            not isinstance(result, Anything)
            and (wanted := _to_plain_json(result, "the expected result")) != found.result
        ):
            self._raise_assertion_error(found, f"should be done with {shorten_for_message(repr(wanted))}")
        return target.codec.decode(found.raw_result or "null") if isinstance(target, Handle) else found.result

    async def assert_failed(self, target: Target, match: str | None = None) -> str:
        """Assert that the instance has failed, with a reason that matches the pattern. Returns the reason."""
        __tracebackhide__ = True
        found = await self.snapshot(target)
        if found.status is not Status.FAILED:
            self._raise_assertion_error(found, "should have failed")
        reason = found.last_error or ""
        if match is not None and re.search(match, reason) is None:
            self._raise_assertion_error(found, f"should have failed with a reason that matches {match!r}")
        return reason

    async def assert_awaiting(self, target: Target, *signals: Signal[Any]) -> None:
        """Assert that the instance waits for these signals, and maybe others; without arguments, for any signal."""
        __tracebackhide__ = True
        found = await self.snapshot(target)
        names = [signal.name for signal in signals]
        if found.status is not Status.AWAITING_SIGNAL or not set(names) <= set(found.awaits):
            wanted = " and ".join(repr(name) for name in names) or "of some name"
            self._raise_assertion_error(found, f"should wait for signal {wanted}")

    async def assert_at(self, target: Target, step: Startable[Any, Any]) -> None:
        """Assert that the instance has not ended, and that this is the step that it runs next."""
        __tracebackhide__ = True
        spec = to_step_spec(step, "assert_at")
        found = await self.snapshot(target)
        here = found.machine == spec.machine.name and found.step in (spec.name, *spec.aliases)
        if found.status.terminal or not here:
            self._raise_assertion_error(found, f"should be at step {spec.label}")

    async def assert_inserted(
        self,
        step: Startable[S, R],
        state: S | Anything = ANYTHING,
        *,
        count: int | None = None,
        unique_key: str | bytes | None = None,
    ) -> list[Handle[R]]:
        """Assert that `count` instances (default: one or more) are at this step, with this state and this key.

        A row holds the current step of an instance, not its first one: assert before a drain moves it on. Returns
        their handles, oldest first.
        """
        __tracebackhide__ = True
        spec = to_step_spec(step, "assert_inserted")
        key = None if unique_key is None else to_stored_key(unique_key, "unique_key")
        rows = await services_of(self.app).pool.run(self._statements.read_snapshots(key=key, machine=spec.machine.name))
        here = [r for r in rows if r.version == spec.machine.version and r.step in (spec.name, *spec.aliases)]
        wanted = ANYTHING if isinstance(state, Anything) else _to_plain_json(state, "the expected state")
        found = [r for r in here if isinstance(wanted, Anything) or r.state == wanted]
        if len(found) != count if count is not None else not found:
            filters = [f"at {spec.label}"]
            filters += [] if isinstance(wanted, Anything) else [f"with state {shorten_for_message(repr(wanted))}"]
            filters += [] if unique_key is None else [f"with unique key {unique_key!r}"]
            expected = "at least 1 instance" if count is None else f"{count} instances"
            all_instances = await services_of(self.app).pool.run(self._statements.read_snapshots())
            raise AssertionError(
                "\n".join(
                    [
                        f"there should be {expected} {' '.join(filters)}, but there are {len(found)}; all instances:",
                        *describe_instances(all_instances, frozenset()),
                        *(f"  instance {row.id} has state {shorten_for_message(row.raw_state)}" for row in here[:10]),
                    ]
                )
            )
        return [Handle(self.app, row.id, spec.result_codec, spec.machine.name) for row in found]

    async def snapshot(self, target: Target) -> Snapshot:
        """The current state of an instance. Raises `AssertionError` if it does not exist."""
        __tracebackhide__ = True
        instance = target.id if isinstance(target, Handle) else target
        if isinstance(instance, bool) or not isinstance(instance, (int, str, bytes)):
            raise InputError(f"Name an instance by its handle, id or unique key; got {type(target).__name__}.")
        if isinstance(instance, int):
            statement = self._statements.read_snapshots(instance=instance)
        else:
            statement = self._statements.read_snapshots(key=to_stored_key(instance, "unique_key"))
        found = await services_of(self.app).pool.run(statement)
        if not found:
            all_instances = await services_of(self.app).pool.run(self._statements.read_snapshots())
            lines = [
                f"there is no instance {instance!r}; all instances:",
                *describe_instances(all_instances, frozenset()),
            ]
            raise AssertionError("\n".join(lines))
        return found[-1]

    def _raise_assertion_error(self, found: Snapshot, expectation: str, advice: str | None = None) -> NoReturn:
        __tracebackhide__ = True
        tail = _hint_at_next_harness_call(found) if advice is None else advice
        message = f"instance {found.id} {expectation}, but it {found.doing}{tail}\n{found.details}"
        raise AssertionError(message) from self._errors.get(found.id)


def _to_plain_json(value: object, what: str) -> object:
    """A value as plain JSON values: assertions compare the stored form, not the class's own equality."""
    plain: object = decode_untyped_json(encode_json(value, what))
    return plain


def _hint_at_next_harness_call(found: Snapshot) -> str:
    match found.status:
        case Status.RUNNABLE if found.due_in is not None and found.due_in.total_seconds() > 0:
            return " (advance() makes it due, drain() runs it)"
        case Status.RUNNABLE:
            return " (drain() runs it, if the harness has its machine)"
        case Status.AWAITING_SIGNAL if found.due_in is not None:
            return " (signal it, or let fire_timeouts() end its wait)"
        case _:
            return ""
