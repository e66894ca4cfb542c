"""Keyed starts: deliver a signal to the holder of a unique key or start one, and restart the delay of a waiting one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gen_durable.core.insert_runner import ID_DRAWS
from gen_durable.core.services import Services
from gen_durable.core.start_and_signal_encryption import add_encrypted_payload_for_holder, encrypt_keyed_start
from gen_durable.durations import Duration
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import DatabaseUnavailable, Duplicate, InputError, NoTarget
from gen_durable.handles import Handle, SignalOrStartResult, make_handle
from gen_durable.operations.signal import is_delivered_or_raise
from gen_durable.pg.sqlstate_errors import IdTaken
from gen_durable.signals import Signal
from gen_durable.starts import LIVE, Start
from gen_durable.store.start_or_update import (
    Debounce,
    SignalOrStart,
    StartOrUpdate,
    StartOrUpdateResult,
    encode_start_with_scope,
)
from gen_durable.store.statements import Statement
from gen_durable.store.types import FollowUps
from gen_durable.validation import check_delay, to_stored_key

if TYPE_CHECKING:
    from gen_durable.client import Durable

R = TypeVar("R")
HOLDER_TRIES: Final = 5


def make_signal_or_start(
    target: int | str | bytes | Handle[Any],
    signal: Signal[Any],
    payload: object,
    dedup_key: str | None,
    start: Start[Any],
) -> SignalOrStart:
    """A checked call of `signal_or_start.sql`. Raises `InputError` and `EncodeError`."""
    if not isinstance(signal, Signal):
        raise InputError(f"signal takes a Signal, got {type(signal).__name__}: declare it as Signal(name, type)")
    if not isinstance(start, Start):
        raise InputError(f"or_start takes Start(...), got {type(start).__name__}")
    if not isinstance(target, (str, bytes)):
        raise InputError("or_start needs a unique key as the target, since an id cannot be chosen: pass the key")
    key = to_stored_key(target, "unique_key")
    if start.unique_key not in (None, key):
        raise InputError(
            f"or_start starts an instance under unique_key {start.unique_key!r}, but the signal goes to {key!r}: "
            "give both the same key, or leave it out of Start"
        )
    message = signal.of(payload, dedup_key=dedup_key)
    scope = start.unique_scope or LIVE
    encoded = encode_start_with_scope(start, scope, (*start.signals, message))
    return SignalOrStart(key, message, encoded)


def make_debounce(start: Start[Any], max_delay: Duration | None) -> Debounce:
    """A checked call of `debounce.sql`. Raises `InputError` and `EncodeError`."""
    if start.unique_key is None:
        raise InputError("debounce needs a unique_key: calls with the same key are one")
    seconds = None if max_delay is None else check_delay(max_delay, "max_delay")
    if seconds is not None and seconds < start.delay:
        raise InputError(f"max_delay must be at least the delay of {start.delay:g} s, got {seconds:g} s")
    return Debounce(start.unique_key, encode_start_with_scope(start, start.unique_scope), seconds)


def start_or_update_statements(
    call: StartOrUpdate,
    encryption: PayloadEncryption | None,
    start_or_update: Callable[[StartOrUpdate], Statement[StartOrUpdateResult]],
    allocate_ids: Callable[[int], Statement[list[int]]],
) -> Generator[Statement[Any], Any, StartOrUpdateResult]:
    """The statements of a call, each sent the answer to the one before: one, if payloads are not encrypted.

    An encrypted payload fits one instance. The first try is for a new one; the database refuses it by the id of the
    holder, if there is one, and the next try is for that.
    """
    if encryption is None:
        only: StartOrUpdateResult = yield start_or_update(call)
        return only
    (new_id,) = yield allocate_ids(1)
    encrypted = encrypt_keyed_start(call, new_id, encryption)
    for _ in range(HOLDER_TRIES):
        result: StartOrUpdateResult = yield start_or_update(encrypted)
        if result.verdict != "other_holder" or result.target is None:
            return result
        encrypted = add_encrypted_payload_for_holder(encrypted, call, result.target, encryption)
    raise DatabaseUnavailable(f"the holder of key {call.key!r} changed {HOLDER_TRIES} times during the call: try again")


async def run_start_or_update(services: Services, call: StartOrUpdate, operation: str) -> StartOrUpdateResult:
    """Run a call in transactions of the library, and wake the queue of its instance."""
    for draws_left in range(ID_DRAWS - 1, -1, -1):
        try:
            result = await _run_statements(services, call, operation)
        except IdTaken:  # as in insert
            if draws_left == 0:
                raise
        else:
            services.notifier.act_on_follow_ups(follow_ups_of(result))
            return result
    raise AssertionError("unreachable")


async def _run_statements(services: Services, call: StartOrUpdate, operation: str) -> StartOrUpdateResult:
    statements = start_or_update_statements(
        call, services.encryption, services.start_or_update_statements.start_or_update, services.statements.allocate_ids
    )
    # A second try after a lost answer restarts a delay once more, and finds a dedup key; a signal without one could
    # be delivered twice.
    may_run_twice = isinstance(call, Debounce) or call.message.dedup_key is not None
    answer: Any = None
    while True:
        try:
            statement = statements.send(answer)
        except StopIteration as end:
            result: StartOrUpdateResult = end.value
            return result
        answer = await services.statement_runner.run(statement, operation, may_run_twice=may_run_twice)


def signal_result_or_raise(
    app: Durable, result: StartOrUpdateResult, call: SignalOrStart, start: Start[R]
) -> SignalOrStartResult[Handle[R]]:
    """The result of a call for its caller. Raises `NoTarget` and `TooLarge`."""
    if result.target is None or result.verdict == "no_target":
        raise NoTarget(
            f"signal {call.message.name!r}: key {call.key!r} is kept by an instance that has ended, and starts no other"
        )
    is_new = result.verdict == "started"
    delivered = is_new or is_delivered_or_raise(result.verdict, call.key, call.message.name)
    return SignalOrStartResult(make_handle(app, start, result.target, is_new=is_new), is_new, delivered)


def follow_ups_of(result: StartOrUpdateResult) -> FollowUps:
    """The follow-ups of a committed call."""
    return FollowUps(
        frozenset() if result.woken_queue is None else frozenset({result.woken_queue}),
        frozenset() if result.cascade_origin is None else frozenset({result.cascade_origin}),
    )


def debounced_id_or_raise(result: StartOrUpdateResult, start: Start[Any]) -> int:
    """The instance that waits. Raises `Duplicate` if the key is held by one that cannot be postponed."""
    if result.verdict == "taken" or result.target is None:
        key = start.unique_key
        holder = (
            "an instance of another login"
            if result.target is None
            else f"instance {result.target}, which has begun or is of another machine"
        )
        raise Duplicate(
            f"unique_key {key!r} is held by {holder}: use a key that only debounce uses",
            key=key,
            existing_id=result.target,
        )
    return result.target
