"""The steps that a worker can run, by machine, version and step: the only way from a row's text to code.

The host program passes machines and jobs. A row's text never leads to an import, a getattr or a scan; an unknown name
is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gen_durable.context import Context
from gen_durable.errors import DefinitionError
from gen_durable.jobs import Job
from gen_durable.machines import Machine, MachineSpec, StepSpec
from gen_durable.retention import Retention
from gen_durable.retry_policy import DEFAULT_POLICY, RetryPolicy
from gen_durable.step_after_retries import check_state_of_step_after_retries


@dataclass(frozen=True, slots=True)
class RunnableStep:
    """A step that can be run: its spec, the bound function, and the machine or job that handles its errors."""

    spec: StepSpec
    call: Callable[..., Any]
    owner: Machine | Job[Any, Any]
    is_job: bool
    wants_context: bool
    plain: bool
    """True if the call is awaited directly: no thread, no timeout, no transaction."""
    retry: RetryPolicy | None
    """The policy for its exceptions; None if `on_error` answers all of them."""
    has_on_error: bool
    """Whether its machine has an `on_error` of its own."""

    @classmethod
    def from_spec(cls, spec: StepSpec, owner: Machine | Job[Any, Any]) -> RunnableStep:
        """Compute once what every execution of the step needs."""
        plain = spec.is_async and spec.timeout is None and not spec.transactional
        has_on_error = isinstance(owner, Machine) and getattr(owner.on_error, "__func__", None) is not Machine.on_error
        return cls(
            spec,
            _make_function_with_state_argument(owner) if isinstance(owner, Job) else spec.fn.__get__(owner),
            owner,
            is_job=isinstance(owner, Job),
            wants_context=owner.wants_context if isinstance(owner, Job) else True,
            plain=plain,
            retry=spec.retry or (None if has_on_error else DEFAULT_POLICY),
            has_on_error=has_on_error,
        )


def _make_function_with_state_argument(job: Job[Any, Any]) -> Callable[..., Any]:
    """The function of a job, called with the state as every step is, also when it takes no argument."""
    function = job.fn
    if job.takes_argument:
        return function

    def with_context(_state: object, ctx: Context) -> object:
        return function(ctx)

    def without_context(_state: object) -> object:
        return function()

    return with_context if job.wants_context else without_context


class Registry:
    """All steps of the given machines and jobs, by their names and aliases."""

    __slots__ = ("_entries", "specs")

    def __init__(self, machines: Iterable[Machine] = (), jobs: Iterable[Job[Any, Any]] = ()) -> None:
        self._entries: dict[tuple[str, int, str], RunnableStep] = {}
        self.specs: list[MachineSpec] = []
        for machine in machines:
            if isinstance(machine, type):
                raise DefinitionError(f"machines takes instances: pass {machine.__name__}(), not the class")
            if not isinstance(machine, Machine):
                raise DefinitionError(f"machines takes Machine instances, got {type(machine).__name__}")
            if type(machine) is Machine:
                raise DefinitionError("machines takes machines of your own: subclass Machine and mark steps with @step")
            self._register_machine_or_job(type(machine).__gen_durable__, machine)
        for job in jobs:
            if not isinstance(job, Job):
                raise DefinitionError(f"jobs takes functions decorated with @job, got {type(job).__name__}")
            self._register_machine_or_job(job.__gen_durable_step__.machine, job)

    def _register_machine_or_job(self, spec: MachineSpec, owner: Machine | Job[Any, Any]) -> None:
        if not spec.steps:
            raise DefinitionError(f"machine {spec.name!r} has no steps: mark at least one method with @step")
        if any(s.name == spec.name and s.version == spec.version for s in self.specs):
            raise DefinitionError(
                f"two machines or jobs are called {spec.name!r} version {spec.version}: "
                "rename one (name=...) or give it another version"
            )
        self.specs.append(spec)
        for step in spec.steps.values():
            _ = step.state_codec  # resolves annotations now, so that a mistake stops the start and not a row
            _ = step.result_codec
            check_state_of_step_after_retries(step)
            entry = RunnableStep.from_spec(step, owner)
            for name in (step.name, *step.aliases):
                self._entries[spec.name, spec.version, name] = entry

    def find_step(self, machine: str, version: int, step: str) -> RunnableStep | None:
        """The step to run for a row; None if this worker does not know it."""
        return self._entries.get((machine, version, step))

    def get_known_step(self, machine: str, version: int, step: str) -> RunnableStep:
        """The step of a row that `pick` matched against `known_step_keys`, or of a machine that is running here."""
        return self._entries[machine, version, step]

    def get_machine_or_job(self, spec: MachineSpec) -> Machine | Job[Any, Any]:
        """The machine or job that a spec was taken from."""
        return self._entries[spec.name, spec.version, next(iter(spec.steps.values())).name].owner

    @property
    def machines_without_history(self) -> list[str]:
        """The machines and jobs with `history="off"`."""
        return [spec.name for spec in self.specs if spec.history == "off"]

    @property
    def retentions(self) -> dict[str, Retention | None]:
        """The retention that each machine and job declares, in its newest version; None if it declares none."""
        return {spec.name: spec.retention for spec in sorted(self.specs, key=lambda spec: spec.version)}

    @property
    def known_step_keys(self) -> list[str]:
        """All steps as `machine/version/step`, the form in which the SQL function `pick` compares them."""
        return [f"{machine}/{version}/{step}" for machine, version, step in self._entries]
