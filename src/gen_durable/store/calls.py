"""The calls of the engine: each builds one statement with its parameters and knows how to read its answer.

In: typed values. Out: a `Call`, which `pg` runs. Every write takes arrays; a single is a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from gen_durable.codec import decode_plain
from gen_durable.context import Child
from gen_durable.instances import Instance, Status
from gen_durable.outcomes import Start
from gen_durable.signals import Received
from gen_durable.store.rows import (
    Claim,
    Commit,
    Delivery,
    Flushed,
    Inserted,
    Picked,
    QueueNews,
    Reaping,
    Reclaimed,
    Released,
    Stranger,
    Watched,
)
from gen_durable.store.schema import Schema

TOO_MANY: Final = "true"  # children_of.sql

T = TypeVar("T")
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A statement, its parameters, and how to read its rows."""

    text: str
    args: tuple[object, ...]
    read: Callable[[Sequence[Row]], T]


class Calls:
    """All calls, for one schema."""

    __slots__ = (
        "_children",
        "_flush",
        "_gc",
        "_get",
        "_heartbeat",
        "_insert",
        "_notify",
        "_pick",
        "_reap",
        "_release",
        "_reserve",
        "_signal",
        "_spawn",
        "_strangers",
        "_sweep",
        "_unlocked",
        "_watch",
        "schema",
    )

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        s = f'"{schema.name}"'
        self._insert = f"select ord, id, inserted from {s}.insert($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)"  # noqa: S608
        self._pick = f"select * from {s}.pick($1,$2,$3,$4,$5,$6)"  # noqa: S608
        self._flush = f"select stale, already, wake from {s}.flush($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"  # noqa: S608
        self._reserve = f"select {s}.reserve($1,$2,$3,$4)"
        self._spawn = f"select {s}.spawn($1,$2,$3,array['children'],$4)"
        self._children = f"select {s}.children_page($1,null,$2,$3)"
        self._signal = f"select ord, target, verdict, woken from {s}.signal($1::bigint[],$2::bytea[],$3,$4,$5)"  # noqa: S608
        self._heartbeat = f"select lost from {s}.heartbeat($1,$2,$3)"  # noqa: S608
        self._reap = f"select id, fsm, fsm_version, step, queue, crashes, dead from {s}.reap($1,$2)"  # noqa: S608
        self._sweep = f"select last, woken from {s}.sweep($1,$2)"  # noqa: S608
        self._release = f"select id, woken from {s}.release($1,$2,$3,$4)"  # noqa: S608
        self._gc = f"select {s}.gc($1,$2,$3,$4)"
        self._watch = f"select id, status, result, last_error from {s}.watch($1)"  # noqa: S608
        self._get = f"select * from {s}.get($1,$2)"  # noqa: S608
        self._strangers = f"select fsm, fsm_version, step, queue, waiting from {s}.strangers($1,$2)"  # noqa: S608
        self._unlocked = f"select id from {s}.unlocked($1)"  # noqa: S608
        self._notify = (
            "select pg_notify($1, q) from unnest($2::text[]) as q, set_config('synchronous_commit', 'off', true)"
        )

    def insert(self, starts: Sequence[Start[Any]], on_conflict: str) -> Call[list[Inserted]]:
        return Call(
            self._insert,
            (
                [s.step.machine.name for s in starts],
                [s.step.machine.version for s in starts],
                [s.step.name for s in starts],
                [s.step.state_codec.store(s.state)[0] for s in starts],
                [s.queue for s in starts],
                _sparse([s.priority or None for s in starts]),
                _sparse([s.partition_key for s in starts]),
                _sparse([s.delay or None for s in starts]),
                _sparse([s.schedule_at for s in starts]),
                _sparse([s.unique_key for s in starts]),
                _sparse(["{" + ",".join(s.unique_scope) + "}" if s.unique_scope else None for s in starts]),
                on_conflict,
            ),
            lambda rows: [Inserted(row[1], row[2]) for row in rows],
        )

    def pick(
        self, worker: str, demands: Mapping[str, int], known: list[str], lease: float, floors: str | None = None
    ) -> Call[Picked]:
        return Call(self._pick, (worker, list(demands), list(demands.values()), known, lease, floors), _read_picked)

    def flush(self, commits: Sequence[Commit]) -> Call[Flushed]:
        """`commits` in the order of their ids: rows are locked in that order."""
        return Call(
            self._flush,
            (
                [c.id for c in commits],
                [c.claim for c in commits],
                [c.seq for c in commits],
                [c.kind for c in commits],
                _sparse([c.step for c in commits]),
                [c.value for c in commits],
                _sparse([c.delay for c in commits]),
                _sparse([c.error for c in commits]),
                _sparse([c.parent for c in commits]),
                _sparse([c.extra for c in commits]),
            ),
            _read_flushed,
        )

    def reserve(self, commit: Commit, count: int) -> Call[list[int] | None]:
        """Lock the row of a commit, and get ids for its children; None: the claim is not ours any more."""
        return Call(self._reserve, (commit.id, commit.claim, commit.seq, count), lambda rows: rows[0][0])

    def spawn(self, commit: Commit, children: str) -> Call[list[str]]:
        """Start children, a JSON array of them, of a row that `reserve` has locked."""
        extra = f'{{"children":{children}}}'
        args = ([commit.id], [commit.claim], [commit.seq], [extra])
        return Call(self._spawn, args, lambda rows: rows[0][0] or [])

    def children(self, parent: int, after: int, limit: int) -> Call[list[Child]]:
        """Some children of a parent's present round, in the order of their ids, from the one after `after` on."""
        return Call(self._children, (parent, after, limit), lambda rows: list(_read_children(rows[0][0] or "[]")))

    def signal(self, deliveries: Sequence[Delivery]) -> Call[list[tuple[int | None, str, str | None]]]:
        return Call(
            self._signal,
            (
                [d.target for d in deliveries],
                [d.key for d in deliveries],
                [d.name for d in deliveries],
                [d.payload for d in deliveries],
                [d.dedup_key for d in deliveries],
            ),
            lambda rows: [(row[1], row[2], row[3]) for row in rows],
        )

    def heartbeat(self, claims: Sequence[tuple[int, int]], lease: float) -> Call[list[int]]:
        """`claims` are (id, claim), in the order of ids."""
        return Call(
            self._heartbeat,
            ([c[0] for c in claims], [c[1] for c in claims], lease),
            lambda rows: [row[0] for row in rows],
        )

    def reap(self, batch: int, max_crashes: int | None) -> Call[Reaping]:
        return Call(self._reap, (batch, max_crashes), _read_reaping)

    def sweep(self, after: str | None, batch: int) -> Call[tuple[str | None, list[str]]]:
        """Hand over keys that are free although rows wait for them, a batch at a time: where it ended, and queues."""
        return Call(self._sweep, (after, batch), lambda rows: (rows[0][0], rows[0][1] or []))

    def release(self, claims: Sequence[tuple[int, int, float | None, str | None]]) -> Call[Released]:
        """`claims` are (id, claim, delay, reason), in the order of ids."""
        columns: list[list[object]] = [list(column) for column in zip(*claims, strict=True)]
        return Call(self._release, tuple(columns), _read_released)

    def gc(self, done: float | None, failed: float | None, cancelled: float | None, batch: int) -> Call[int]:
        return Call(self._gc, (done, failed, cancelled, batch), lambda rows: int(rows[0][0]))

    def watch(self, ids: Sequence[int]) -> Call[list[Watched]]:
        return Call(
            self._watch,
            (list(ids),),
            lambda rows: [Watched(r[0], None if r[1] is None else Status(r[1]), r[2], r[3]) for r in rows],
        )

    def get(self, instance: int | None, key: bytes | None) -> Call[Instance | None]:
        return Call(self._get, (instance, key), lambda rows: _read_instance(rows[0]) if rows else None)

    def strangers(self, queues: list[str], known: list[str]) -> Call[list[Stranger]]:
        return Call(self._strangers, (queues, known), lambda rows: [Stranger(*row) for row in rows])

    def unlocked(self, ids: Sequence[int]) -> Call[set[int]]:
        return Call(self._unlocked, (list(ids),), lambda rows: {row[0] for row in rows})

    def notify(self, queues: Sequence[str]) -> Call[None]:
        return Call(self._notify, (self.schema.channel, list(queues)), lambda _rows: None)


def _sparse(column: list[T | None]) -> list[T | None]:
    """A column, or nothing for one that is all null: the driver looks at every element, and SQL fills up with nulls."""
    return column if any(value is not None for value in column) else []


def _read_picked(rows: Sequence[Row]) -> Picked:
    claims: list[Claim] = []
    news: list[QueueNews] = []
    heads: dict[str, str] = {}
    woken: set[str] = set()
    for row in rows:
        if row[0] is not None:
            claims.append(_read_claim(row))
        elif row[8] is None:
            woken.update(row[13])
        elif row[18] is not None:
            heads[row[8]] = row[18]
        else:
            news.append(QueueNews(row[8], row[16], row[17]))
    return Picked(claims, news, heads, frozenset(woken))


def _read_claim(row: Row) -> Claim:
    claim = Claim(*row[:14])
    if row[14] is not None:
        claim.inbox = _read_inbox(row[14])
    if row[15] is not None:
        claim.children = None if row[15] == TOO_MANY else _read_children(row[15])
    return claim


def _read_inbox(text: str) -> tuple[Received, ...]:
    return tuple(
        Received(s["id"], s["name"], (s["payload"] or "null").encode(), datetime.fromtimestamp(s["at"], UTC))
        for s in decode_plain(text)
    )


def _read_children(text: str) -> tuple[Child, ...]:
    return tuple(
        Child(
            id=c["id"],
            machine=c["machine"],
            version=c["version"],
            step=c["step"],
            status=Status(c["status"]),
            last_error=c["last_error"],
            raw_result=None if c["status"] != "done" else (c["result"] or "null").encode(),
            raw_state=c["state"].encode(),
        )
        for c in decode_plain(text)
    )


def _read_reaping(rows: Sequence[Row]) -> Reaping:
    claims = [Reclaimed(*row) for row in rows if row[0] is not None]
    return Reaping(claims, [row[4] for row in rows if row[0] is None])


def _read_released(rows: Sequence[Row]) -> Released:
    return Released([row[0] for row in rows if row[0] is not None], [row[1] for row in rows if row[0] is None])


def _read_flushed(rows: Sequence[Row]) -> Flushed:
    stale, already, wake = rows[0]
    return Flushed(frozenset(stale or ()), frozenset(already or ()), frozenset(wake or ()))


def _read_instance(row: Row) -> Instance:
    values = list(row)
    values[4] = Status(values[4])
    values[9] = tuple(values[9] or ())
    values[23] = values[23].encode()
    values[24] = None if values[24] is None else values[24].encode()
    return Instance(*values)
