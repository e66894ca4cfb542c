"""Random histories of one instance: signals, crashes, passing time and cancels, in any order.

`explore` raises an `AssertionError` with the shortest history found that breaks an invariant. Hypothesis generates and
shrinks the histories; it comes with the extra `testing`. A `Harness` plays each of them, so every step goes through the
real SQL, and nothing happens that the history does not contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from gen_durable.durations import Duration
from gen_durable.errors import ConfigError, InputError, NoTarget
from gen_durable.handles import Handle
from gen_durable.jobs import Job
from gen_durable.machines import Machine
from gen_durable.signals import Signal
from gen_durable.starts import Start, Startable, StartOptions
from gen_durable.testing.drain_result import Execution
from gen_durable.testing.harness import Harness, HarnessFactory
from gen_durable.testing.instance_snapshot import Snapshot
from gen_durable.validation import check_delay

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy
    from typing_extensions import Unpack

M = TypeVar("M", bound=Machine)
P = TypeVar("P")
Invariant: TypeAlias = "Callable[[M, Snapshot], object]"
"""Asserts a condition on the machine (with its services) and the instance."""

JUMPS: Final = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), timedelta(days=30))
MAX_STEPS: Final = 100
"""The most steps that run at the end of one history."""


@dataclass(frozen=True, slots=True)
class Starts:
    """How an instance starts; made by `starts`."""

    step: Startable[Any, Any]
    states: SearchStrategy[Any]
    options: StartOptions


@dataclass(frozen=True, slots=True)
class Sends:
    """A signal that may arrive; made by `sends`."""

    signal: Signal[Any]
    payloads: SearchStrategy[Any] | None


def starts(step: Startable[P, Any], states: SearchStrategy[P], **options: Unpack[StartOptions]) -> Starts:
    """Start an instance at this step with any of these states; the options are those of `Start`."""
    return Starts(step, states, options)


def sends(signal: Signal[P], payloads: SearchStrategy[P] | None = None) -> Sends:
    """Let this signal arrive with any of these payloads, at any time and any number of times."""
    return Sends(signal, payloads)


def explore(
    harnesses: HarnessFactory,
    machine: Callable[[], M],
    start: Starts,
    *,
    signals: Sequence[Sends] = (),
    invariants: Sequence[Invariant[M]],
    jobs: Iterable[Job[Any, Any]] = (),
    raises: tuple[type[Exception], ...] = (),
    jumps: Sequence[Duration] = JUMPS,
    crashes: bool = True,
    cancels: bool = False,
    moves: int = 12,
    examples: int = 100,
    seed: int | None = None,
) -> None:
    """Play `examples` random histories of up to `moves` moves each, and check the invariants after every move.

    `machine` makes a fresh one for each history, with fresh services. A move runs the next step, delivers a signal,
    crashes in the next step (after its last line or before its first), lets time pass by one of `jumps`, or cancels.
    At the end everything that is due runs. A step that raises is a failure, too, unless the error is one of `raises`.
    With a `seed` the histories are the same in every run. Call it from a plain `def` test: it runs its own event loop.
    """
    if not invariants:
        raise InputError(
            "explore() needs invariants=: functions of the machine and the instance that assert something."
        )
    spans = [timedelta(seconds=check_delay(jump, "a jump of explore")) for jump in jumps]
    _check_can_explore()
    scripts = _make_script_strategy(_make_move_strategies(signals, spans, crashes=crashes, cancels=cancels), moves)
    all_jobs = tuple(jobs)
    with asyncio.Runner() as runner:
        harness = runner.run(harnesses().__aenter__())

        def history(state: Any, script: Sequence[_Move]) -> None:
            __tracebackhide__ = True
            record = _HistoryRecord(machine(), invariants, raises)
            record.add_line(f"an instance starts with {state!r}")
            one = Start(start.step, state, **start.options)
            runner.run(_play_history(harness, one, script, record, all_jobs))

        try:
            _make_example_decorator(start.states, scripts, examples=examples, seed=seed)(history)()
        finally:
            runner.run(harness.__aexit__(None, None, None))


@dataclass(frozen=True, slots=True)
class _Move:
    """One event of a history."""

    kind: Literal["run", "signal", "crash", "wait", "cancel"]
    signal: Signal[Any] | None = None
    payload: Any = None
    at: Literal["start", "end"] = "end"
    by: timedelta = timedelta(0)


@dataclass(slots=True)
class _HistoryRecord(Generic[M]):
    """The history so far, in words, and the invariants."""

    machine: M
    invariants: Sequence[Invariant[M]]
    raises: tuple[type[Exception], ...]
    lines: list[str] = field(default_factory=list[str])

    def add_line(self, line: str) -> None:
        self.lines.append(line)

    def add_execution_and_check_error(self, ran: Execution, *, crash: bool = False) -> None:
        """Record that a step has run to its last line. Raises `AssertionError` if it raised an unexpected error."""
        __tracebackhide__ = True
        attempt = f" (attempt {ran.attempt})" if ran.attempt else ""
        outcome = "its worker dies before the commit" if crash else ran.outcome
        raised = f" after {ran.error!r}" if ran.error is not None else ""
        self.add_line(f"instance {ran.id} runs {ran.label}{attempt}: {outcome}{raised}")
        if ran.error is not None and not isinstance(ran.error, self.raises):
            raise AssertionError(f"{ran.label} raises {ran.error!r}\n{self.numbered_lines}") from ran.error

    def check_invariants(self, found: Snapshot) -> None:
        __tracebackhide__ = True
        for invariant in self.invariants:
            try:
                invariant(self.machine, found)
            except Exception as error:
                name = getattr(invariant, "__name__", repr(invariant))
                said = "".join(f": {line}" for line in str(error).splitlines()[:1])  # the cause has the rest
                text = f"{name} does not hold{said}\n{self.numbered_lines}\nnow {found}\n{found.details}"
                raise AssertionError(text) from error

    @property
    def numbered_lines(self) -> str:
        return "\n".join(f"  {number}. {line}" for number, line in enumerate(self.lines, 1))


async def _play_history(
    harness: Harness,
    start: Start[Any],
    script: Sequence[_Move],
    record: _HistoryRecord[Any],
    jobs: Sequence[Job[Any, Any]],
) -> None:
    __tracebackhide__ = True
    await harness.reset(machines=[record.machine], jobs=jobs)
    (handle,) = await harness.app.insert_many([start])
    record.check_invariants(await harness.snapshot(handle))
    for move in script:
        if await _play_move(harness, handle, move, record):
            record.check_invariants(await harness.snapshot(handle))
    for _ in range(MAX_STEPS):
        if (ran := await harness.try_one()) is None:
            return
        record.add_execution_and_check_error(ran)
        record.check_invariants(await harness.snapshot(handle))
    raise AssertionError(
        "\n".join([f"more than {MAX_STEPS} steps ran, and there are more to run", *record.lines[-20:]])
    )


async def _play_move(harness: Harness, handle: Handle[Any], move: _Move, record: _HistoryRecord[Any]) -> bool:
    """Play one move. Returns False if it cannot happen now."""
    match move.kind:
        case "run":
            if (ran := await harness.try_one()) is None:
                return False
            record.add_execution_and_check_error(ran)
        case "crash":
            if (ran := await harness.try_one(crash=move.at)) is None:
                return False
            if move.at == "end":
                record.add_execution_and_check_error(ran, crash=True)
            else:
                record.add_line(f"instance {ran.id} should run {ran.label}: its worker dies before that")
        case "signal":
            assert move.signal is not None
            try:
                await harness.app.signal(handle, move.signal, move.payload)
            except NoTarget:
                return False
            record.add_line(
                f"signal {move.signal.name!r} arrives{'' if move.payload is None else f' with {move.payload!r}'}"
            )
        case "wait":
            await harness.advance(move.by)
            record.add_line(f"{move.by} pass")
        case "cancel":
            await harness.app.cancel(handle)
            record.add_line("it is cancelled")
    return True


def _make_move_strategies(
    signals: Sequence[Sends], jumps: Sequence[timedelta], *, crashes: bool, cancels: bool
) -> list[SearchStrategy[_Move]]:
    """A strategy for each kind of move; the first one runs a step."""
    from hypothesis import strategies as st

    kinds: list[SearchStrategy[_Move]] = [st.just(_Move("run"))]
    for one in signals:
        payloads: SearchStrategy[Any] = st.none() if one.payloads is None else one.payloads
        kinds.append(st.builds(_Move, st.just("signal"), st.just(one.signal), payloads))
    if crashes:
        kinds += [st.just(_Move("crash")), st.just(_Move("crash", at="start"))]
    if jumps:
        kinds.append(st.sampled_from(list(jumps)).map(lambda by: _Move("wait", by=by)))
    if cancels:
        kinds.append(st.just(_Move("cancel")))
    return kinds


def _check_can_explore() -> None:
    """Raise `ConfigError` if hypothesis is missing or an event loop runs."""
    try:
        import hypothesis

        _ = hypothesis  # it is needed later
    except ModuleNotFoundError as error:
        raise ConfigError("explore() needs hypothesis. Run: pip install 'gen-durable[testing]'") from error
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError("explore() runs its own event loop. Call it from a plain `def` test.")


def _make_script_strategy(kinds: Sequence[SearchStrategy[_Move]], moves: int) -> SearchStrategy[list[_Move]]:
    """A strategy for scripts of up to `moves` moves. The first kind of move is never left out."""
    from hypothesis import strategies as st

    # Each history leaves out some kinds of moves, so that the others come often enough to meet.
    without = st.lists(st.booleans(), min_size=len(kinds) - 1, max_size=len(kinds) - 1)

    def scripts(is_left_out: list[bool]) -> SearchStrategy[list[_Move]]:
        left = [kind for kind, out in zip(kinds, [False, *is_left_out], strict=True) if not out]
        return st.lists(st.one_of(*left, kinds[0]), max_size=moves)

    return without.flatmap(scripts)


def _make_example_decorator(
    *strategies: SearchStrategy[Any], examples: int, seed: int | None
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A decorator that runs a function of one example with many."""
    import hypothesis

    health = hypothesis.HealthCheck
    configured = hypothesis.settings(
        max_examples=examples,
        deadline=None,  # a database under load may be slow
        database=None,  # failures are shown in full; two explorations would mix their examples
        print_blob=False,
        report_multiple_bugs=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=(health.too_slow, health.data_too_large, health.filter_too_much),
    )

    def decorated(history: Callable[..., None]) -> Callable[[], None]:
        tried = configured(hypothesis.given(*strategies)(history))
        return tried if seed is None else hypothesis.seed(seed)(tried)

    return decorated
