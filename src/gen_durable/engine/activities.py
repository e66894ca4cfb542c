"""StepJournal: what a step keeps of its work before its outcome, so that its next execution need not do it again.

In: `ctx.checkpoint` and `ctx.run`. Out: fenced writes, and answers from what former executions of the same visit have
left. A worker that has lost its claim is told by the first write: `LeaseLost` ends the step.

This room owns the invariant that an activity which was answered once is not called again in its visit. What it does is
written as moves, without I/O: an `async def` step makes them on the loop, a `def` step in its own thread.
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

from gen_durable.backoff import backoff as jobs_backoff
from gen_durable.codec import Codec, codec_for, encode
from gen_durable.durations import Duration
from gen_durable.encryption import PayloadEncryption, of_activity
from gen_durable.errors import GenDurableError, InputError, LeaseLost
from gen_durable.jobs import Abort
from gen_durable.outcomes import describe
from gen_durable.store.journal import Fence, JournalCalls, Noted, check_format
from gen_durable.store.statements import Statement
from gen_durable.validation import check_delay, check_name, clean_error

FIRST_PAUSE: Final = timedelta(milliseconds=100)
LONGEST_PAUSE: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Invoke:
    """Statement the function of an activity."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Rest before the next try."""

    seconds: float


Move: TypeAlias = "Invoke | Pause | Statement[bool]"
"""What is to be done next. A call is one of the journal's: it answers whether the claim is still ours."""
Moves: TypeAlias = Generator[Move, Any, Any]


class Brought(msgspec.Struct):
    """What `journal_of.sql` tells: [format, version, value], and [n, name, finished, result] for each activity."""

    checkpoint: tuple[int, int, msgspec.Raw] | None = None
    activities: list[tuple[int, str, bool, msgspec.Raw]] | None = None


_BROUGHT: Final = msgspec.json.Decoder(Brought)


class StepJournal:
    """The notes of the executions of a step by one claim: but for a transaction that was lost, that is one."""

    __slots__ = ("_calls", "_fence", "_finished", "_next", "_seal", "_tried", "_used", "_visit", "checkpoint")

    def __init__(
        self,
        calls: JournalCalls,
        fence: Fence,
        brought: str | None = None,
        *,
        visit: int = 0,
        seal: PayloadEncryption | None = None,
    ) -> None:
        """`brought` is the journal of the visit, as the claim brought it; one from a newer library is refused."""
        self._visit = visit
        self._seal = seal
        self._calls = calls
        self._fence = fence
        self._used: set[str] = set()
        self._finished: dict[str, bytes] = {}
        self._tried: dict[str, int] = {}
        self._next = 1
        self.checkpoint: bytes | None = None
        """The newest checkpoint of this visit."""
        if brought is not None:
            self._read(_BROUGHT.decode(brought))

    def _read(self, brought: Brought) -> None:
        if brought.checkpoint is not None:
            format_, _, value = brought.checkpoint
            check_format(format_)
            self.checkpoint = self._open(bytes(value), "checkpoint")
        for number, name, finished, result in brought.activities or ():
            self._next = number + 1
            self._tried[name] = self._tried.get(name, 0) + 1
            if finished:
                self._finished[name] = self._open(bytes(result), of_activity(self._visit, name, "result"))

    def _open(self, raw: bytes, field: str) -> bytes:
        return raw if self._seal is None else self._seal.open(raw, self._fence.id, field).encode()

    def begin_again(self) -> None:
        """The step runs again by the same claim: what was finished is there to be asked for once more."""
        self._used.clear()

    def save(self, value: object) -> Moves:
        """Write a checkpoint."""
        raw = encode(value, "a checkpoint")
        text = raw.decode()
        if self._seal is not None:
            text = self._seal.close(text, self._fence.id, "checkpoint")
        yield self._calls.checkpoint(self._fence, text)
        self.checkpoint = raw

    def clear(self) -> Moves:
        """Forget the checkpoint."""
        yield self._calls.clear(self._fence)
        self.checkpoint = None

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retries: int,
        backoff: Callable[[int], Duration] | None,
    ) -> Moves:
        """Run an activity, or answer from what was finished before in this visit."""
        check_name(name, "the name of an activity")
        if not callable(fn):
            raise InputError(f"activity {name!r}: ctx.run takes a function and its arguments, got {type(fn).__name__}")
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise InputError(f"activity {name!r}: retries must be 0 or more, got {retries!r}")
        if name in self._used:
            raise InputError(
                f"activity {name!r} was run already in this visit of the step, and is answered once: "
                f"give each call a name of its own, as {name + ':1'!r}"
            )
        codec = _codec(fn, name)
        parameters = encode(_by_name(fn, args, kwargs, name), f"the arguments of activity {name!r}").decode()
        invoke = Invoke(functools.partial(fn, **kwargs) if kwargs else fn, args)
        self._used.add(name)
        finished = self._finished.get(name)
        if finished is not None:
            return codec.decode(finished)
        try:
            return (
                yield from self._tries(name, invoke, parameters, codec, retries=retries, backoff=backoff or _backoff)
            )
        except BaseException:
            self._used.discard(name)
            raise

    def _tries(
        self,
        name: str,
        invoke: Invoke,
        parameters: str,
        codec: Codec[Any],
        *,
        retries: int,
        backoff: Callable[[int], Duration],
    ) -> Moves:
        for left in range(retries, -1, -1):
            number, attempt = self._next, self._tried.get(name, 0)
            self._next, self._tried[name] = number + 1, attempt + 1
            began = time.perf_counter()
            result: str | None = None
            value: Any = None
            failure: Exception | None = None
            try:
                result, value = codec.store((yield invoke))
            except LeaseLost:
                raise
            except Exception as error:
                failure = error
            took = time.perf_counter() - began
            told = None if failure is None else clean_error(describe(failure))
            noted = Noted(number, name, parameters, result, told, took, took, attempt)
            if self._seal is not None:
                noted = self._sealed(noted, self._seal)
            yield self._calls.activity(self._fence, noted)
            if failure is None:
                self._finished[name] = (result or "null").encode()
                return value
            if left == 0 or isinstance(failure, (GenDurableError, Abort)):
                raise failure
            yield Pause(check_delay(backoff(retries - left), f"the backoff of activity {name!r}"))
        raise AssertionError("unreachable")

    def _sealed(self, noted: Noted, seal: PayloadEncryption) -> Noted:
        def field(part: str) -> str:
            return of_activity(self._visit, noted.name, part)

        instance, result, error = self._fence.id, noted.result, noted.error
        return dataclasses.replace(
            noted,
            parameters=seal.close(noted.parameters, instance, field("parameters")),
            result=None if result is None else seal.close(result, instance, field("result")),
            error=None if error is None else seal.close_text(error, instance, field("error")),
        )


def _by_name(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> dict[str, Any]:
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


def _backoff(attempt: int) -> timedelta:
    return jobs_backoff(attempt, base=FIRST_PAUSE, cap=LONGEST_PAUSE)


def _codec(fn: Callable[..., Any], name: str) -> Codec[Any]:
    """How the result is stored and read again: by the function's return annotation, if it has one that can be read."""
    plain: Any = fn
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not inspect.isroutine(plain) and not isinstance(plain, type):
        plain = type(plain).__call__
    try:
        type_ = Any if isinstance(plain, type) else get_type_hints(plain).get("return", Any)
    except (NameError, TypeError):  # somebody else's, perhaps; its answer is read as plain JSON values
        type_ = Any
    return codec_for(type_, f"the result of activity {name!r}")
