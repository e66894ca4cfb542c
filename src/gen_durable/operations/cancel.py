"""Cancel: end an instance at once, or have its worker end it; its descendants are cancelled without waiting for that.

The target is cancelled first, in a transaction of its own; `core.cancel_cascader` cancels the descendants, in batches.
"""

from __future__ import annotations

from typing import Any

from gen_durable.core.cancel_cascader import CascadeCount
from gen_durable.core.services import Services
from gen_durable.errors import InputError, NotFound
from gen_durable.handles import Handle, describe_target, parse_target
from gen_durable.instances import Cancellation, Status
from gen_durable.store.types import CancelResult
from gen_durable.validation import to_storable_error

NO_DESCENDANTS = CascadeCount(0, 0)


async def cancel(
    services: Services, target: int | str | bytes | Handle[Any], reason: str, *, cascade: bool
) -> Cancellation:
    """Cancel an instance, and with `cascade` its descendants. `reason` comes from `to_storable_cancel_reason`."""
    statement = services.statements.cancel([parse_target(target, services)], reason, cascade=cascade)
    (found,), follow_ups = await services.statement_runner.run(statement, "cancel", may_run_twice=True)
    services.notifier.act_on_follow_ups(follow_ups)
    descendants = NO_DESCENDANTS
    if cascade and found.id is not None:
        descendants = await services.notifier.cascader.run_cascade(found.id)
    if found.id is not None and found.verdict == "ended":
        services.completion_watcher.report_end(found.id, Status.CANCELLED, None, reason)
    return to_cancellation_or_raise(found, target, descendants)


def to_storable_cancel_reason(reason: str) -> str:
    """A reason as it is stored. Raises `InputError` unless it is a non-empty str."""
    if not isinstance(reason, str) or not reason:
        raise InputError(f"cancel takes a reason that is a non-empty str, got {reason!r}")
    return to_storable_error(reason)


def to_cancellation_or_raise(
    found: CancelResult, target: int | str | bytes | Handle[Any], descendants: CascadeCount = NO_DESCENDANTS
) -> Cancellation:
    """The answer of a cancel. Raises `NotFound`."""
    if found.id is None or found.was is None:
        by_key = isinstance(target.target if isinstance(target, Handle) else target, (str, bytes))
        raise NotFound(f"cancel: {describe_target(target)} is unknown" + (" or has ended" if by_key else ""))
    return Cancellation(
        found.id,
        found.was,
        descendants.ended + (found.verdict == "ended"),
        descendants.requested + (found.verdict == "requested"),
    )
