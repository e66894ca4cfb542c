"""Limits: create, change, remove and read them, and wake the queues in which rows became runnable."""

from __future__ import annotations

from gen_durable.core.services import Services
from gen_durable.limits import LimitState, Policy, check_limit_policy
from gen_durable.validation import check_name

LIMIT_NAME = "the name of a limit"


async def set_limit(services: Services, name: str, policy: Policy) -> bool:
    """Create or change a limit. Returns whether that changed anything."""
    return await _set_or_declare_limit(services, name, policy, declared=False)


async def declare_limit(services: Services, name: str, policy: Policy) -> bool:
    """As `set_limit`, for code that declares the same policy at each start: a change made since then stays."""
    return await _set_or_declare_limit(services, name, policy, declared=True)


async def remove_limit(services: Services, name: str) -> bool:
    """Remove a limit. Returns whether it existed."""
    statement = services.statements.remove_limit(check_name(name, LIMIT_NAME))
    removed, woken_queues = await services.statement_runner.run(statement, "remove_limit", may_run_twice=True)
    services.notifier.wake_queues(woken_queues)
    return removed


async def list_limits(services: Services) -> list[LimitState]:
    """Read the state of every limit, by partition."""
    return await services.statement_runner.run(services.statements.limit_states(), "limits", may_run_twice=True)


async def _set_or_declare_limit(services: Services, name: str, policy: Policy, *, declared: bool) -> bool:
    check_limit_policy(check_name(name, LIMIT_NAME), policy)
    statement = services.statements.set_limit(name, policy, declared=declared)
    changed, woken_queues = await services.statement_runner.run(statement, f"limit {name!r}", may_run_twice=True)
    services.notifier.wake_queues(woken_queues)
    return changed
