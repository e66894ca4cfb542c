"""Wait: block until an instance has ended, and decode how it ended."""

from __future__ import annotations

import math
from typing import TypeVar

from gen_durable.core.services import Services
from gen_durable.durations import Duration
from gen_durable.encryption import ERROR, RESULT, PayloadEncryption
from gen_durable.errors import DatabaseUnavailable, NotFound
from gen_durable.instances import Cancelled, Ending, Failed, Finished, Pending, Status
from gen_durable.json_codec import JsonCodec
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.store.types import EndedInstance
from gen_durable.validation import check_delay

R = TypeVar("R")


async def wait(
    services: Services,
    target: int | bytes,
    codec: JsonCodec[R],
    timeout: Duration | None,
    inserted_at: float = -math.inf,
) -> Ending[R]:
    """Wait until an instance, by id or unique key, has ended, or for `timeout`. Raises `NotFound`."""
    seconds = check_delay(timeout, "timeout") if timeout is not None else None
    instance = target if isinstance(target, int) else await _find_id_by_key(services, target)
    try:
        finished = await services.completion_watcher.wait_for_end(instance, seconds, inserted_at)
    except ConnectionLost as error:
        raise DatabaseUnavailable(f"wait: {error.problem}") from error
    if finished is None:
        return Pending(instance)
    match finished.status:
        case Status.DONE:
            return Finished(instance, codec.decode(_decrypt_result(finished, services.encryption)))
        case Status.FAILED:
            return Failed(instance, _decrypt_error(finished, services.encryption))
        case Status.CANCELLED:
            return Cancelled(instance, _decrypt_error(finished, services.encryption))
        case _:
            raise NotFound(f"instance {instance} is unknown; ended instances are deleted after their retention")


async def _find_id_by_key(services: Services, key: bytes) -> int:
    found = await services.statement_runner.run(services.statements.id_of_key(key), "wait", may_run_twice=True)
    if found is None:
        raise NotFound(f"the holder of key {key!r} is unknown")
    return found


def _decrypt_result(finished: EndedInstance, encryption: PayloadEncryption | None) -> str:
    if finished.result is None:
        return "null"
    return finished.result if encryption is None else encryption.decrypt(finished.result, finished.id, RESULT)


def _decrypt_error(finished: EndedInstance, encryption: PayloadEncryption | None) -> str:
    if encryption is None:
        return finished.last_error or ""
    return encryption.decrypt_text_or_explain(finished.last_error, finished.id, ERROR) or ""
