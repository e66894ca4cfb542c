"""The errors of the library for the SQLSTATEs that the server raises.

Messages never repeat the server's own text, which may quote a payload; the SQL functions' own errors (class GD) do not.
"""

from __future__ import annotations

from gen_durable.errors import DatabaseRefused, Duplicate, GenDurableError, InputError, QuotaExceeded, UnknownLimit
from gen_durable.pg.error_classifier import (
    READ_ONLY_DATABASE,
    constraint_of,
    detail_and_hint_of,
    message_of,
    sqlstate_of,
    table_of,
)


class IdTaken(DatabaseRefused):
    """An id that was allocated for a new instance cannot be used: draw another one, and encrypt again."""


def to_library_error(error: BaseException, operation: str, schema: str) -> GenDurableError:
    """The library's error for an error of the server; `operation` names the call in its message."""
    code = sqlstate_of(error)
    match code:
        case "GD001":
            return _to_duplicate_error(error)
        case "GD002":
            return UnknownLimit(f"{operation}: {message_of(error)}. {detail_and_hint_of(error)[1]}")
        case "GD003" | "GD004" | "GD005":  # raised by keys_of_limits.sql and set_limit.sql
            return InputError(f"{operation}: {message_of(error)}")
        case "GD006":  # raised by require_read_committed.sql
            return InputError(f"{operation}: {message_of(error)}: use READ COMMITTED for it")
        case "GD007":  # raised by take_login_quota.sql
            detail, hint = detail_and_hint_of(error)
            retry_after = float(detail) if detail else None
            return QuotaExceeded(f"{operation}: {message_of(error)}. {hint}", retry_after=retry_after)
        case "GD008":  # raised by use_up_allocated_ids.sql and draw_unused_ids.sql
            return IdTaken(f"{operation}: {message_of(error)}")
        case "23505" if constraint_of(error) == "instances_pkey":
            return IdTaken(f"{operation}: the id of a new instance exists already: try again")
        case "25006":
            return DatabaseRefused(f"{operation}: {READ_ONLY_DATABASE}")
        case "42501" if table_of(error) == "grants":  # raised by require_granted.sql
            return DatabaseRefused(f"{operation}: {message_of(error)}. {detail_and_hint_of(error)[1]}")
        case "42501":
            return DatabaseRefused(
                f"{operation}: permission denied: this login may not do that in schema {schema!r}; if it should, grant "
                "it the role that may (gen-durable migrate --roles)"
            )
        case _:
            return DatabaseRefused(
                f"{operation}: the database rejected the call ({type(error).__name__}, SQLSTATE {code})"
            )


def _to_duplicate_error(error: BaseException) -> Duplicate:
    """GD001 as insert.sql raises it: the key in DETAIL; the holder's id in HINT, empty for a sibling of the call."""
    detail, hint = detail_and_hint_of(error)
    key = bytes.fromhex(detail or "")
    shown = repr(key.decode(errors="replace"))
    if not hint:
        return Duplicate(f"unique_key {shown} is given twice in one call: nothing was inserted", key=key)
    return Duplicate(
        f"unique_key {shown} is taken by instance {hint}: pass on_conflict='existing' or 'skip' if that is fine",
        key=key,
        existing_id=int(hint),
    )
