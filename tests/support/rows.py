"""Rows to begin with, as SQL text: what a schedule starts from.

In: an id and the columns that matter. Out: an insert statement with `@schema` in it. Ids up to 100 are the test's own;
rows that the engine makes get ids above.
"""

from __future__ import annotations

from dataclasses import dataclass

LIVE = "{runnable,executing,awaiting_signal,awaiting_children}"


@dataclass(frozen=True, slots=True)
class Sql:
    """A piece of SQL, taken as it is."""

    text: str


def seconds(n: float) -> Sql:
    """So many seconds from now."""
    return Sql(f"now() + interval '{n} seconds'")


def instance(id: int, **columns: object) -> str:  # noqa: A002  # the column's name
    """One row."""
    values = {"id": id, "fsm": "m", "step": "s", **columns}
    return (
        f"insert into @schema.instances ({', '.join(values)}) overriding system value "
        f"values ({', '.join(_literal(v) for v in values.values())});\n"
    )


def executing(id: int, **columns: object) -> str:  # noqa: A002
    """A row that worker w holds by its claim 1; the lease is long unless said otherwise."""
    held = {"status": "executing", "claims": 1, "locked_by": "w", "lease_expires_at": seconds(300)}
    return instance(id, **{**held, **columns})


def parked(id: int, name: str = "go", **columns: object) -> str:  # noqa: A002
    """A row that waits for a signal."""
    return instance(id, **{"status": "awaiting_signal", "awaits": [name], "seen": [], "claims": 1, "seq": 1, **columns})


def parent(id: int, pending: int, **columns: object) -> str:  # noqa: A002
    """A row that waits for its children of round 1."""
    held = {"status": "awaiting_children", "children_pending": pending, "round": 1, "claims": 1, "seq": 1}
    return instance(id, **{**held, **columns})


def ended(id: int, ago: float = 3600, **columns: object) -> str:  # noqa: A002
    """A row that is done."""
    return instance(id, **{"status": "done", "finished_at": seconds(-ago), "claims": 1, "seq": 1, **columns})


def signal(id: int, target: int, name: str = "go", **columns: object) -> str:  # noqa: A002
    """A signal in an inbox, and the flag of its target."""
    values = {"id": id, "target_id": target, "name": name, **columns}
    return (
        f"insert into @schema.signals ({', '.join(values)}) overriding system value "
        f"values ({', '.join(_literal(v) for v in values.values())});\n"
        f"update @schema.instances set has_signals = true where id = {target};\n"
    )


def _literal(value: object) -> str:
    match value:
        case Sql(text):
            return text
        case None:
            return "null"
        case bool() | int():
            return str(value).lower()
        case bytes():
            return f"'\\x{value.hex()}'"
        case list():
            return "'{" + ",".join(str(v) for v in value) + "}'"
        case _:
            return "'" + str(value).replace("'", "''") + "'"
