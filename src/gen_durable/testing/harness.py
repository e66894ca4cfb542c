"""The harness: runs steps when the test asks for it, and moves time when the test asks for it.

Steps run through the real SQL and the engine's own code, one after the other, in the same order every time. The harness
accepts only schemas made for tests (`throw_away_schema`), since it runs every row it finds and moves time for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.durations import Duration
from gen_durable.errors import ConfigError, InputError
from gen_durable.instances import Status
from gen_durable.jobs import Job
from gen_durable.machines import Machine
from gen_durable.step_registry import Registry
from gen_durable.store.types import Claim
from gen_durable.testing.assertions import Assertions, Target
from gen_durable.testing.drain_result import (
    DrainResult,
    Execution,
    Runaway,
    describe_instances,
    missing_machine_hint,
)
from gen_durable.testing.instance_snapshot import Snapshot
from gen_durable.testing.stepper import Stepper
from gen_durable.testing.throw_away_schemas import check_throw_away_schema
from gen_durable.validation import check_delay

DEFAULT_LIMIT = 1000


class Harness(Assertions):
    """`async with Harness(app, machines=[Checkout(stripe)]) as harness:`; `harness.app` inserts and signals."""

    def __init__(self, app: Durable, *, machines: Iterable[Machine] = (), jobs: Iterable[Job[Any, Any]] = ()) -> None:
        """Entering the harness opens the `Durable` unless it is open; leaving it closes what it opened."""
        super().__init__(app)
        self._registry = Registry(machines, jobs)
        self._stepper: Stepper | None = None
        self._opened = False

    async def __aenter__(self) -> Self:
        if self._stepper is not None:
            raise ConfigError("this harness is open already")
        self._opened = await services_of(self.app).open_if_closed()
        try:
            await check_throw_away_schema(self.app)
            stepper = Stepper(self.app, self._registry, self._statements, self._errors)
            await stepper.open()
        except BaseException:
            await self._close_app_if_opened()
            raise
        self._stepper = stepper
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            await stepper.close()
        await self._close_app_if_opened()

    async def drain(self, *, limit: int = DEFAULT_LIMIT) -> DrainResult:
        """Run steps until none is due, including steps that become due meanwhile. Returns what ran and what waits.

        One row of each queue runs per round, in the order of the queues' names; within a queue rows run by priority,
        due time and id. Retries of a `RetryPolicy` are due at once: the harness skips their pauses. Other rows that are
        due later, or wait for a signal, stay: see `advance` and `fire_timeouts`. Raises `Runaway` if more than `limit`
        steps are due.
        """
        stepper = self._require_stepper
        if limit < 1:
            raise InputError(f"limit must be 1 or more, got {limit!r}")
        ran: list[Execution] = []
        await stepper.reap_and_finish_cancels()
        idle = 0
        while idle < 2:  # a round without a claim may have unblocked a row that waited for its partition key
            idle += 1
            for queue in await stepper.read_due_queues():
                claim = await stepper.claim_next(queue)
                if claim is None:
                    continue
                if len(ran) == limit:
                    await stepper.release(claim)
                    raise self._make_runaway_error(await self._read_drain_result(ran), claim)
                ran.append(await stepper.execute_and_commit(claim))
                idle = 0
        return await self._read_drain_result(ran)

    async def run_one(self, target: Target | None = None) -> Execution:
        """Run one step and commit its outcome: the step of `target`, or the one that a drain would run next.

        Raises `AssertionError` if it cannot run now.
        """
        __tracebackhide__ = True
        return await self._require_stepper.execute_and_commit(await self._claim_target_or_next(target))

    async def try_one(self, *, crash: Literal["start", "end"] | None = None) -> Execution | None:
        """Run the step that a drain would run next, or crash in it. Returns None if no step can run now."""
        stepper = self._require_stepper
        claim = await self._reap_and_claim_next()
        if claim is None or crash is None:
            return None if claim is None else await stepper.execute_and_commit(claim)
        return await stepper.simulate_crash(claim, run=crash == "end")

    async def crash(self, target: Target | None = None, *, at: Literal["start", "end"] = "end") -> Execution:
        """Act like a worker that dies in a step: the step of `target`, or the one that a drain would run next.

        At the "end", the step runs with all its side effects and its outcome is lost. At the "start", no line of it
        runs. Then the lease ends and the reaper takes the claim back: the next drain runs the step again, from the same
        state, with `attempt` one higher.
        """
        __tracebackhide__ = True
        if at not in ("start", "end"):
            raise InputError(f"a crash is at 'start' or 'end', got {at!r}")
        return await self._require_stepper.simulate_crash(await self._claim_target_or_next(target), run=at == "end")

    async def advance(self, by: Duration) -> None:
        """Let time pass: delays, retries, deadlines and leases come nearer. The next drain runs what is due then.

        The database's clock does not change. Every time stored in the schema is moved back instead, for all instances,
        so a `schedule_at` that is given afterwards is still measured by the real clock.
        """
        await self._require_stepper.shift_times_back(timedelta(seconds=check_delay(by, "advance")))

    async def reset(self, *, machines: Iterable[Machine] = (), jobs: Iterable[Job[Any, Any]] = ()) -> None:
        """Delete every instance in the schema, and continue with these machines and jobs; the next id is 1 again."""
        registry = Registry(machines, jobs)
        await self._require_stepper.delete_instances_and_use_registry(registry)
        self._registry = registry

    async def fire_timeouts(self, target: Target | None = None) -> int:
        """Make the deadlines of waiting instances, or of `target`, due now; the next drain wakes them.

        Returns how many have a deadline. Raises `AssertionError` if `target` has none.
        """
        __tracebackhide__ = True
        _ = self._require_stepper
        found = None if target is None else await self.snapshot(target)
        fired = await services_of(self.app).pool.run(
            self._statements.fire_timeouts(None if found is None else found.id)
        )
        if found is not None and not fired:
            self._raise_assertion_error(found, "should wait with a deadline")
        return len(fired)

    async def waiting(self) -> tuple[Snapshot, ...]:
        """The instances that have not ended, by id."""
        rows = await services_of(self.app).pool.run(self._statements.read_snapshots(live=True))
        return tuple(rows)

    @property
    def _require_stepper(self) -> Stepper:
        if self._stepper is None:
            raise ConfigError("this harness is not open: use `async with Harness(...) as harness:`")
        return self._stepper

    async def _close_app_if_opened(self) -> None:
        if self._opened:
            self._opened = False
            await self.app.close()

    async def _reap_and_claim_next(self) -> Claim | None:
        """Claim the row that a drain would run next."""
        stepper = self._require_stepper
        await stepper.reap_and_finish_cancels()
        for _ in range(2):  # as in drain
            for queue in await stepper.read_due_queues():
                if (claim := await stepper.claim_next(queue)) is not None:
                    return claim
        return None

    async def _claim_target_or_next(self, target: Target | None) -> Claim:
        __tracebackhide__ = True
        if target is None:
            if (claim := await self._reap_and_claim_next()) is not None:
                return claim
            tally = await self._read_drain_result(())
            raise AssertionError(
                "\n".join(["no step can run now", *describe_instances(tally.waiting, tally.unknown_step_ids)])
            )
        stepper = self._require_stepper
        await stepper.reap_and_finish_cancels()
        found = await self.snapshot(target)
        claim = await stepper.claim_instance(found.id, found.queue)
        if claim is None:
            self._raise_assertion_error(found, "should be able to run now", self._explain_not_claimable(found))
        return claim

    def _explain_not_claimable(self, found: Snapshot) -> str:
        """Why an instance that is due cannot be claimed; empty for one that is not due, since its snapshot says so."""
        if found.due_in is None and found.status is Status.RUNNABLE:
            return ", but another instance with its partition key goes first"
        if found.due_in is None or found.due_in > timedelta(0):
            return ""
        if self._registry.find_step(found.machine, found.version, found.step) is None:
            return missing_machine_hint(found)
        if found.partition_key is not None:
            return ", but another instance with its partition key goes first"
        return ", but its row is locked by another transaction"

    async def _read_drain_result(self, ran: Iterable[Execution]) -> DrainResult:
        waiting = await self.waiting()
        unknown_step_ids = (w.id for w in waiting if self._registry.find_step(w.machine, w.version, w.step) is None)
        return DrainResult(tuple(ran), waiting, frozenset(unknown_step_ids))

    def _make_runaway_error(self, tally: DrainResult, claim: Claim) -> Runaway:
        return Runaway(
            f"drain ran {tally.executed} steps and there is more to run: next is instance {claim.id} at "
            f"{claim.machine}.{claim.step}, attempt {claim.attempt}. A step that leads back to itself without a delay, "
            "or that always raises under RetryPolicy(attempts=None), never ends; if this many are intended, pass a "
            f"higher limit=.\n{tally}",
            tally,
        )


@dataclass(frozen=True, slots=True)
class HarnessFactory:
    """Makes harnesses on one throw-away schema; the fixture `durable_harness` is one."""

    dsn: str
    schema: str

    def __call__(self, *, machines: Iterable[Machine] = (), jobs: Iterable[Job[Any, Any]] = ()) -> Harness:
        """A harness to enter: `async with durable_harness(machines=[Checkout(stripe)]) as harness:`."""
        return Harness(Durable(self.dsn, schema=self.schema, pool_size=4), machines=machines, jobs=jobs)
