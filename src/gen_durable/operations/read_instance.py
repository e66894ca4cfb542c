"""Read: one instance and its journal (history, activities, checkpoint, progress), decrypted."""

from __future__ import annotations

from typing import Any

from gen_durable.core.services import Services
from gen_durable.errors import NotFound
from gen_durable.handles import Handle, describe_target, parse_target
from gen_durable.instances import Instance
from gen_durable.journal import Activity, Checkpoint, Progress, Transition, check_last_argument

Target = int | str | bytes | Handle[Any]


async def get_instance(services: Services, target: Target) -> Instance:
    """Read an instance by id, or by unique key. Raises `NotFound`."""
    found = await services.statement_runner.run(
        services.statements.get(*parse_target(target, services)), "get", may_run_twice=True
    )
    if found is None:
        raise NotFound(f"{describe_target(target)} is unknown")
    return found if services.encryption is None else services.encryption.decrypt_instance(found)


async def read_history(services: Services, target: Target, last: int | None) -> list[Transition]:
    """Read the transitions of an instance, or the `last` few of them."""
    instance, key = await _resolve_target(services, target)
    statement = services.journal_statements.history(instance, key, check_last_argument(last))
    found = await services.statement_runner.run(statement, "history", may_run_twice=True)
    if services.encryption is None or instance is None or not found:
        return found
    # A state is bound to its machine and version, which transitions do not have.
    one = await services.statement_runner.run(services.statements.get(instance, None), "get", may_run_twice=True)
    if one is None:
        return []  # deleted meanwhile, with its history
    return [services.encryption.decrypt_transition(t, instance, one.machine, one.version) for t in found]


async def read_activities(services: Services, target: Target, last: int | None) -> list[Activity]:
    """Read the activities of an instance, or the `last` few of them."""
    instance, key = await _resolve_target(services, target)
    statement = services.journal_statements.activities(instance, key, check_last_argument(last))
    found = await services.statement_runner.run(statement, "activities", may_run_twice=True)
    if services.encryption is None or instance is None:
        return found
    return [services.encryption.decrypt_activity(one, instance) for one in found]


async def read_checkpoint(services: Services, target: Target) -> Checkpoint | None:
    """Read the latest checkpoint of an instance's current step."""
    instance, key = await _resolve_target(services, target)
    statement = services.journal_statements.checkpoint_of(instance, key)
    found = await services.statement_runner.run(statement, "checkpoint", may_run_twice=True)
    if found is None or services.encryption is None or instance is None:
        return found
    return services.encryption.decrypt_checkpoint(found, instance)


async def read_progress(services: Services, target: Target) -> list[Progress]:
    """Read the progress of each step of an instance, the latest last."""
    instance, key = await _resolve_target(services, target)
    found = await services.statement_runner.run(
        services.journal_statements.progress(instance, key), "progress", may_run_twice=True
    )
    if services.encryption is None or instance is None:
        return found
    return [services.encryption.decrypt_progress(one, instance) for one in found]


async def _resolve_target(services: Services, target: Target) -> tuple[int | None, bytes | None]:
    """The id or key of an instance; with encryption always the id, which decryption needs."""
    instance, key = parse_target(target, services)
    if services.encryption is not None and key is not None:
        instance = await services.statement_runner.run(services.statements.id_of_key(key), "get", may_run_twice=True)
    return instance, key
