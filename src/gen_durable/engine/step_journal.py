"""The journal of one step: activities (`ctx.run`) and checkpoints, so that a second execution need not repeat work.

An activity that has a stored result is not called again in its visit. The journal does no I/O: its methods are
generators of actions (call this, pause, run this statement), which the `JournalActionRunner` performs on the event loop
or in the thread of a `def` step. Each write is fenced: in a worker that has lost its claim the first write raises
`LeaseLost`, which ends the step.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias, get_type_hints

import msgspec

from gen_durable.backoff import backoff as default_backoff
from gen_durable.encryption import PayloadEncryption, activity_field
from gen_durable.errors import GenDurableError, InputError, LeaseLost, NoFreeThread, TooLarge
from gen_durable.json_codec import JsonCodec, encode_json, make_json_codec
from gen_durable.jsonb_form import to_jsonb_form
from gen_durable.retry_policy import RetryPolicy
from gen_durable.store.journal import ActivityRecord, Fence, JournalStatementBuilder, check_checkpoint_format
from gen_durable.store.statements import Statement
from gen_durable.stored_exceptions import describe_error
from gen_durable.validation import MAX_CLAIM_PART, check_delay, check_name, to_storable_error

FIRST_PAUSE: Final = timedelta(milliseconds=100)
LONGEST_PAUSE: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class CallActivity:
    """Call the function of an activity."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SleepBeforeRetry:
    """Wait before the next attempt."""

    seconds: float


Action: TypeAlias = "CallActivity | SleepBeforeRetry | Statement[bool]"
"""One action of a journal method. A statement writes to the journal and returns whether the fence matched."""
Actions: TypeAlias = Generator[Action, Any, Any]


StoredActivity: TypeAlias = tuple[int, str, bool, str | None]
"""Number, name, whether it is finished, and its result as text."""


class StoredJournal(msgspec.Struct):
    """The result of `journal_of_claim.sql`. Activities that are too large for it are True, and follow page by page."""

    checkpoint: tuple[int, int, msgspec.Raw] | None = None  # format, version, value
    activities: list[StoredActivity] | bool | None = None  # msgspec before 0.22 knows no Literal[True]


_STORED: Final = msgspec.json.Decoder(StoredJournal)
_PAGE: Final = msgspec.json.Decoder(list[StoredActivity])


class StepJournal:
    """The journal of a step as one claim executes it, again after a transaction that did not commit."""

    __slots__ = (
        "_encryption",
        "_fence",
        "_finished",
        "_next",
        "_size",
        "_statements",
        "_tried",
        "_used",
        "_visit",
        "checkpoint",
    )

    def __init__(
        self,
        statements: JournalStatementBuilder,
        fence: Fence,
        stored: str | None = None,
        *,
        visit: int = 0,
        encryption: PayloadEncryption | None = None,
    ) -> None:
        """`stored` is the journal that came with the claim. Raises if a newer version of the library wrote it."""
        self._visit = visit
        self._encryption = encryption
        self._statements = statements
        self._fence = fence
        self._used: set[str] = set()
        self._finished: dict[str, bytes] = {}
        self._tried: dict[str, int] = {}
        self._next = 1
        self._size = 0  # of the results that come with the next claim of this visit
        self.checkpoint: bytes | None = None
        """The newest checkpoint of this visit."""
        if stored is not None:
            self._load_stored_journal(_STORED.decode(stored))

    def _load_stored_journal(self, stored: StoredJournal) -> None:
        if stored.checkpoint is not None:
            format_, _, value = stored.checkpoint
            check_checkpoint_format(format_)
            self.checkpoint = self._decrypt_stored_value(bytes(value), "checkpoint")
        if isinstance(stored.activities, list):
            self._add_activities(stored.activities)

    def load_activities_page(self, page: str) -> int:
        """Take over a page of activities (activities_page.sql). Returns the number of the last one."""
        self._add_activities(_PAGE.decode(page))
        return self._next - 1

    @property
    def size(self) -> int:
        """Bytes of the results that are stored in this visit."""
        return self._size

    def _add_activities(self, activities: list[StoredActivity]) -> None:
        for number, name, finished, result in activities:
            self._next = number + 1
            self._tried[name] = self._tried.get(name, 0) + 1
            if finished:
                raw = (result or "null").encode()
                self._finished[name] = raw = self._decrypt_stored_value(
                    raw, activity_field(self._visit, name, "result")
                )
                self._size += len(raw)

    def _decrypt_stored_value(self, raw: bytes, field: str) -> bytes:
        return raw if self._encryption is None else self._encryption.decrypt(raw, self._fence.id, field).encode()

    def restart_for_next_execution(self) -> None:
        """Prepare for another execution by the same claim: finished activities answer again."""
        self._used.clear()

    def save_checkpoint_actions(self, value: object) -> Actions:
        """Write a checkpoint."""
        raw = to_jsonb_form(encode_json(value, "a checkpoint"))
        text = raw.decode()
        if self._encryption is not None:
            text = self._encryption.encrypt(text, self._fence.id, "checkpoint")
        yield self._statements.record_checkpoint(self._fence, text)
        self.checkpoint = raw

    def clear_checkpoint_actions(self) -> Actions:
        """Delete the checkpoint."""
        yield self._statements.clear_checkpoint(self._fence)
        self.checkpoint = None

    def activity_actions(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: RetryPolicy | None,
    ) -> Actions:
        """Run an activity, or return the result it has stored in this visit."""
        check_name(name, "the name of an activity")
        if not callable(fn):
            raise InputError(f"activity {name!r}: ctx.run takes a function and its arguments, got {type(fn).__name__}")
        if retry is not None and retry.then is not None:
            raise InputError(f"activity {name!r}: RetryPolicy(then=) is for steps; catch the error of the activity")
        if name in self._used:
            raise InputError(
                f"activity {name!r} was run already in this visit of the step: "
                f"give each call a name of its own, as {name + ':1'!r}"
            )
        codec = _result_codec(fn, name)
        parameters = encode_json(
            _arguments_by_name(fn, args, kwargs, name), f"the arguments of activity {name!r}"
        ).decode()
        invoke = CallActivity(functools.partial(fn, **kwargs) if kwargs else fn, args)
        self._used.add(name)
        finished = self._finished.get(name)
        if finished is not None:
            return codec.decode(finished)
        try:
            return (yield from self._call_and_record_with_retries(name, invoke, parameters, codec, retry))
        except BaseException:
            self._used.discard(name)
            raise

    def _call_and_record_with_retries(
        self,
        name: str,
        invoke: CallActivity,
        parameters: str,
        codec: JsonCodec[Any],
        retry: RetryPolicy | None,
    ) -> Actions:
        errors = 0
        while True:
            number, attempt = self._next, self._tried.get(name, 0)
            self._next, self._tried[name] = number + 1, attempt + 1
            began = time.perf_counter()
            result: str | None = None
            value: Any = None
            failure: Exception | None = None
            try:
                result, value = codec.encode_and_decode((yield invoke), canonical=True)
                self._check_total_size(name, len(result.encode()))
            except (LeaseLost, NoFreeThread):
                raise
            except Exception as error:
                failure = error
            took = time.perf_counter() - began
            error_text = None if failure is None else to_storable_error(describe_error(failure))
            record = ActivityRecord(number, name, parameters, result, error_text, took, took, attempt)
            if self._encryption is not None:
                record = self._encrypt_record(record, self._encryption)
            yield self._statements.record_activity(self._fence, record)
            if failure is None:
                self._finished[name] = raw = (result or "null").encode()
                self._size += len(raw)
                return value
            errors += 1
            if retry is None or retry.is_used_up(errors) or not retry.covers(failure):
                raise failure
            if isinstance(failure, GenDurableError):  # another call would not cure it
                raise failure
            pause = _default_activity_backoff if retry.backoff is default_backoff else retry.backoff
            yield SleepBeforeRetry(check_delay(pause(errors - 1), f"the backoff of activity {name!r}"))

    def _check_total_size(self, name: str, size: int) -> None:
        if self._size + size > MAX_CLAIM_PART:
            raise TooLarge(
                f"activity {name!r}: the results of the activities of one step are over {MAX_CLAIM_PART:,} bytes: "
                "continue in another step with Next, or store large data elsewhere and return a reference to it"
            )

    def _encrypt_record(self, record: ActivityRecord, encryption: PayloadEncryption) -> ActivityRecord:
        def field(part: str) -> str:
            return activity_field(self._visit, record.name, part)

        instance, result, error = self._fence.id, record.result, record.error
        return dataclasses.replace(
            record,
            parameters=encryption.encrypt(record.parameters, instance, field("parameters")),
            result=None if result is None else encryption.encrypt(result, instance, field("result")),
            error=None if error is None else encryption.encrypt_text_or_drop(error, instance, field("error")),
        )


def _arguments_by_name(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> dict[str, Any]:
    """The arguments of a call by the names of the function's parameters; `*args` as a list, `**kwargs` by their names.

    A function without a signature, as some builtins are, has its positional arguments under "args".
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return {"args": list(args), **kwargs} if args else dict(kwargs)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InputError(f"activity {name!r} cannot be called like this: {error}") from None
    named: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in bound.items():
        match signature.parameters[key].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                named[key] = list(value)
            case inspect.Parameter.VAR_KEYWORD:
                extra = {key: value} if value.keys() & bound.keys() else value
            case _:
                named[key] = value
    return named | extra


def _default_activity_backoff(attempt: int) -> timedelta:
    """Shorter pauses than those of steps: the step waits meanwhile, and occupies its slot."""
    return default_backoff(attempt, base=FIRST_PAUSE, cap=LONGEST_PAUSE)


def _result_codec(fn: Callable[..., Any], name: str) -> JsonCodec[Any]:
    """The codec of the result, by the return annotation of the function; plain JSON values without a usable one."""
    plain: Any = fn
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not inspect.isroutine(plain) and not isinstance(plain, type):
        plain = type(plain).__call__
    try:
        type_ = Any if isinstance(plain, type) else get_type_hints(plain).get("return", Any)
    except (NameError, TypeError):  # annotations that cannot be resolved, of a third-party function perhaps
        type_ = Any
    return make_json_codec(type_, f"the result of activity {name!r}")
