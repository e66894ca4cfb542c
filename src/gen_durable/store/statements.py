"""Statements of clients and workers as values: text, parameters, and how to decode the rows. `pg` runs them.

Every write takes arrays; a single row is a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from gen_durable.context import Child
from gen_durable.instances import Instance
from gen_durable.json_codec import encode_json
from gen_durable.limits import Limit, LimitState, Policy
from gen_durable.starts import Start
from gen_durable.store.history_entries import entries_array_sql, join_entries
from gen_durable.store.limit_encoder import limit_policy_columns
from gen_durable.store.packed_lists import (
    JSON,
    empty_if_all_none,
    join_jsons,
    join_names,
    join_numbers,
    names_array_sql,
    numbers_array_sql,
)
from gen_durable.store.row_decoder import (
    CLAIM,
    INSTANCE,
    decode_cancel_result,
    decode_cascade_result,
    decode_children,
    decode_flush_result,
    decode_insert_results,
    decode_instance,
    decode_pick_result,
    decode_reap_result,
    decode_release_result,
    decode_status,
)
from gen_durable.store.schema import Schema
from gen_durable.store.start_encoder import EncodedStarts, encode_starts, insert_parameters, insert_sql
from gen_durable.store.types import (
    AcquireLimitResult,
    CancelResult,
    CascadeResult,
    Commit,
    EndedInstance,
    FlushResult,
    FollowUps,
    GcResult,
    InsertResult,
    OutgoingSignal,
    PickResult,
    ReapResult,
    ReleaseResult,
    ReturnedClaim,
    Row,
    UnknownStep,
)

T = TypeVar("T")
PAGE_BYTES: Final = 4_000_000  # the event loop decodes a page at once


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A statement, its parameters, and how to read its rows."""

    text: str
    args: tuple[object, ...]
    read: Callable[[Sequence[Row]], T]


class StatementBuilder:
    """The statements of clients and workers, for one schema."""

    __slots__ = (
        "_acquire_limit",
        "_allocate_ids",
        "_cancel",
        "_cancel_requests_of",
        "_cascade",
        "_children",
        "_delete_full_buckets",
        "_delete_tickets",
        "_ends_of",
        "_flush",
        "_gc",
        "_gc_allocated_ids",
        "_get",
        "_heartbeat",
        "_id_of_key",
        "_insert",
        "_insert_as",
        "_limits",
        "_live_id_of_key",
        "_lock_parent_and_allocate_ids",
        "_notify",
        "_pick",
        "_pick_without_payloads",
        "_reap",
        "_release_claims",
        "_release_limit",
        "_remove_limit",
        "_set_limit",
        "_signal",
        "_signal_skipping_locked",
        "_start_instances",
        "_unblock_missed",
        "_unknown_steps",
        "_unlocked_ids",
        "schema",
    )

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        s = f'"{schema.name}"'
        self._insert = insert_sql(s)
        self._insert_as = self._insert.replace(",notify", ",$18,notify")
        self._allocate_ids = f"select {s}.allocate_ids($1)"
        self._id_of_key = f"select {s}.id_of_key($1)"
        self._live_id_of_key = f"select {s}.live_id_of_key($1)"
        self._pick = f"select {CLAIM} from {s}.pick($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"  # noqa: S608
        self._pick_without_payloads = self._pick[:-1] + ",false)"
        self._flush = (
            "select stale, already_committed, woken_queues, cascade_origins, cancel_requested from "  # noqa: S608
            f"{s}.flush({numbers_array_sql(1)},{numbers_array_sql(2)},{numbers_array_sql(3)},"
            f"{names_array_sql(4)},{names_array_sql(5)},$6,$7,$8,$9,$10,$11,{entries_array_sql(12)})"
        )
        self._lock_parent_and_allocate_ids = f"select {s}.lock_parent_and_allocate_ids($1,$2,$3,$4)"
        self._start_instances = f"select {s}.insert_instances_of_outcomes($1,$2,$3,array['children'],$4)"
        self._children = f"select {s}.children_page($1,null,$2,$3,$4)"
        self._signal = (
            "select ord, target, verdict, woken_queue from "  # noqa: S608
            f"{s}.signal($1::bigint[],$2::pg_catalog.bytea[],$3,$4{JSON},$5)"
        )
        self._signal_skipping_locked = self._signal[:-1] + ",true)"
        self._cancel = (
            "select ord, target, was, verdict, woken_queues, cascade_origins, workers_with_cancel_requests from "  # noqa: S608
            f"{s}.cancel($1::bigint[],$2::pg_catalog.bytea[],$3,$4)"
        )
        self._cascade = (
            "select ended, requested, woken_queues, cascade_origins, workers_with_cancel_requests, more, refused, "  # noqa: S608
            f"refusal from {s}.cancel_listed_descendants($1,$2)"
        )
        self._cancel_requests_of = f"select id, reason from {s}.cancel_requests_of($1,$2)"  # noqa: S608
        self._heartbeat = f"select lost from {s}.heartbeat($1,$2,$3)"  # noqa: S608
        self._reap = f"select reclaimed, woken_queues, cascade_origins, cascade_due from {s}.reap($1,$2,$3,$4)"  # noqa: S608
        self._unblock_missed = f"select last_gate, woken_queues from {s}.unblock_missed_rows($1,$2,$3)"  # noqa: S608
        self._gc = f"select deleted, visited_until, more from {s}.gc($1,$2,$3,$4,$5,$6,$7)"  # noqa: S608
        self._gc_allocated_ids = f"select {s}.gc_unused_ids($1)"
        self._release_claims = f"select released, woken_queues from {s}.release_claims($1,$2,$3,$4,$5)"  # noqa: S608
        self._ends_of = f"select id, status, result::text, last_error from {s}.ends_of($1,$2)"  # noqa: S608
        self._get = f"select {INSTANCE} from {s}.get($1,$2) as i"  # noqa: S608
        self._unknown_steps = f"select fsm, fsm_version, step, queue, waiting from {s}.count_due_unknown_steps($1,$2)"  # noqa: S608
        self._unlocked_ids = f"select id from {s}.unlocked_ids($1)"  # noqa: S608
        self._build_limit_texts(s)
        self._notify = (
            "select pg_catalog.pg_notify($1, payload) from pg_catalog.unnest($2::pg_catalog.text[]) as payload, "
            "pg_catalog.set_config('synchronous_commit', 'off', true)"
        )

    def _build_limit_texts(self, s: str) -> None:
        self._set_limit = f"select changed, woken_queues from {s}.set_limit($1,$2,$3,$4,$5,$6::text::jsonb,false)"  # noqa: S608
        self._remove_limit = f"select removed, woken_queues from {s}.remove_limit($1,false)"  # noqa: S608
        self._limits = f"select * from {s}.limit_states()"  # noqa: S608
        self._acquire_limit = (
            f"select is_granted, wait_seconds, has_ticket, is_lost from {s}.acquire_step_limit($1,$2,$3,$4,$5,$6)"  # noqa: S608
        )
        self._release_limit = f"select {s}.release_step_limit($1)"
        self._delete_full_buckets = f"select {s}.delete_full_rate_buckets()"
        self._delete_tickets = f"select {s}.delete_tickets_of_dead_claims()"

    def insert(self, starts: Sequence[Start[Any]], on_conflict: str) -> Statement[list[InsertResult]]:
        return self.insert_encoded(encode_starts(starts), on_conflict)

    def insert_encoded(self, encoded: EncodedStarts, on_conflict: str) -> Statement[list[InsertResult]]:
        return Statement(self._insert, insert_parameters(encoded, on_conflict), decode_insert_results)

    def insert_with_ids(
        self, statement: Statement[list[InsertResult]], ids: list[int], states: list[str], signals: list[str | None]
    ) -> Statement[list[InsertResult]]:
        """An `insert` with allocated ids, and the states and signals that were encrypted for them."""
        args = (*statement.args[:3], join_jsons(states), *statement.args[4:16], signals, ids)
        return Statement(self._insert_as, args, statement.read)

    def allocate_ids(self, count: int) -> Statement[list[int]]:
        """Draw ids for new instances, which only this login can use, each once."""
        return Statement(self._allocate_ids, (count,), lambda rows: list(rows[0][0]))

    def id_of_key(self, key: bytes) -> Statement[int | None]:
        """The id of the instance that holds a unique key, else of the last one inserted with it."""
        return Statement(self._id_of_key, (key,), lambda rows: rows[0][0])

    def live_id_of_key(self, key: bytes) -> Statement[int | None]:
        """The id of the live instance that holds a unique key."""
        return Statement(self._live_id_of_key, (key,), lambda rows: rows[0][0])

    def pick(
        self,
        worker: str,
        demands: Mapping[str, int],
        known: list[str],
        lease: float,
        *,
        scan_positions: str | None = None,
        fair: str | None = None,
        free: Sequence[int] | None = None,
        crashed: int | None = None,
        last_chance: bool = True,
    ) -> Statement[PickResult]:
        """`scan_positions` and `fair` are JSON, from the reports of earlier picks. The others are explained in
        `pick.sql`.
        """
        args = (
            worker,
            list(demands),
            list(demands.values()),
            known,
            lease,
            scan_positions,
            fair,
            free,
            crashed,
            last_chance,
        )
        return Statement(self._pick, args, decode_pick_result)

    def pick_without_payloads(self, statement: Statement[PickResult]) -> Statement[PickResult]:
        """A `pick` whose claims lack inbox, children and journal: they cannot be run, only released."""
        return Statement(self._pick_without_payloads, statement.args, statement.read)

    def flush(self, commits: Sequence[Commit], worker: str | None = None, now: float = 0.0) -> Statement[FlushResult]:
        """`commits` in the order of ids: rows are locked in that order. `now` is the clock of `Commit.began`."""
        return Statement(
            self._flush,
            (
                join_numbers([c.id for c in commits]),
                join_numbers([c.epoch for c in commits]),
                join_numbers([c.seq for c in commits]),
                " ".join([c.kind for c in commits]),
                join_names([c.step for c in commits]),
                [c.value for c in commits],
                empty_if_all_none([c.delay for c in commits]),
                empty_if_all_none([c.error for c in commits]),
                empty_if_all_none([c.parent for c in commits]),
                empty_if_all_none([c.extra for c in commits]),
                worker,
                join_entries(commits, now),
            ),
            decode_flush_result,
        )

    def lock_parent_and_allocate_ids(self, commit: Commit, count: int) -> Statement[list[int] | None]:
        """Lock the row of a commit and allocate ids for its children. Returns None if the claim was taken over."""
        return Statement(
            self._lock_parent_and_allocate_ids, (commit.id, commit.epoch, commit.seq, count), lambda rows: rows[0][0]
        )

    def insert_instances_of_outcomes(self, commit: Commit, children: str) -> Statement[list[str]]:
        """Insert children, a JSON array, of a row that `lock_parent_and_allocate_ids` has locked."""
        extra = f'{{"children":{children}}}'
        args = ([commit.id], [commit.epoch], [commit.seq], [extra])
        return Statement(self._start_instances, args, lambda rows: rows[0][0] or [])

    def children_page(self, parent: int, after: int, limit: int) -> Statement[list[Child]]:
        """The next children of a parent's current round, after the id `after`: at most `limit`, and PAGE_BYTES."""
        return Statement(
            self._children, (parent, after, limit, PAGE_BYTES), lambda rows: list(decode_children(rows[0][0] or "[]"))
        )

    def signal(
        self, deliveries: Sequence[OutgoingSignal], *, skip_locked: bool = False
    ) -> Statement[list[tuple[int | None, str, str | None]]]:
        return Statement(
            self._signal_skipping_locked if skip_locked else self._signal,
            (
                [d.target for d in deliveries],
                [d.key for d in deliveries],
                [d.name for d in deliveries],
                [d.payload for d in deliveries],
                [d.dedup_key for d in deliveries],
            ),
            lambda rows: [(row[1], row[2], row[3]) for row in rows],
        )

    def cancel(
        self, targets: Sequence[tuple[int | None, bytes | None]], reason: str, *, cascade: bool
    ) -> Statement[tuple[list[CancelResult], FollowUps]]:
        """`targets` are (id, key), one of them None."""
        args = ([t[0] for t in targets], [t[1] for t in targets], reason, cascade)
        return Statement(self._cancel, args, decode_cancel_result)

    def cancel_listed_descendants(self, batch: int, origin: int | None) -> Statement[CascadeResult]:
        """Cancel up to `batch` descendants of cancelled instances; with `origin`, only of this one."""
        return Statement(self._cascade, (batch, origin), decode_cascade_result)

    def cancel_requests_of(self, claims: Sequence[tuple[int, int]]) -> Statement[dict[int, str]]:
        """The reasons of pending cancel requests, by id. `claims` are (id, epoch)."""
        args = ([c[0] for c in claims], [c[1] for c in claims])
        return Statement(self._cancel_requests_of, args, lambda rows: {row[0]: row[1] for row in rows})

    def heartbeat(self, claims: Sequence[tuple[int, int]], lease: float) -> Statement[list[int]]:
        """`claims` are (id, epoch), in the order of ids. Returns the ids of claims that were lost."""
        return Statement(
            self._heartbeat,
            ([c[0] for c in claims], [c[1] for c in claims], lease),
            lambda rows: [row[0] for row in rows],
        )

    def reap(
        self, batch: int, max_crashes: int | None, without_history: Sequence[str] = (), *, skip: int = 0
    ) -> Statement[ReapResult]:
        """`without_history`: names of machines without a history. `skip`: how many of the oldest to leave out."""
        return Statement(self._reap, (batch, max_crashes, list(without_history), skip), decode_reap_result)

    def unblock_missed_rows(
        self, after: str | None, batch: int, *, skip: int = 0
    ) -> Statement[tuple[str | None, list[str]]]:
        """Unblock rows whose gate is free, a batch of gates at a time. Returns the last gate and the woken queues."""
        return Statement(self._unblock_missed, (after, batch, skip), lambda rows: (rows[0][0], rows[0][1] or []))

    def release_claims(self, claims: Sequence[ReturnedClaim], longest_delay: float = 600.0) -> Statement[ReleaseResult]:
        """`claims` in the order of ids; a delay doubles up to the longest."""
        columns: list[list[object]] = [list(column) for column in zip(*claims, strict=True)]
        return Statement(self._release_claims, (*columns, longest_delay), decode_release_result)

    def set_limit(self, name: str, policy: Policy, *, declared: bool) -> Statement[tuple[bool, list[str]]]:
        """Create or change a policy.

        `declared`: by `Worker(limits=)`. An unchanged declaration does not undo a change made since with `set_limit`.
        """
        columns = limit_policy_columns(policy)
        args = (name, *columns, encode_json(list(columns), "a policy").decode() if declared else None)
        return Statement(self._set_limit, args, lambda rows: (rows[0][0], rows[0][1] or []))

    def remove_limit(self, name: str) -> Statement[tuple[bool, list[str]]]:
        return Statement(self._remove_limit, (name,), lambda rows: (rows[0][0], rows[0][1] or []))

    def limit_states(self) -> Statement[list[LimitState]]:
        return Statement(self._limits, (), lambda rows: [LimitState(*row) for row in rows])

    def acquire_step_limit(self, instance: int, epoch: int, limit: Limit, ticket: int) -> Statement[AcquireLimitResult]:
        """Acquire a limit inside a step. `ticket` is a random number of the caller, the same in repeated attempts."""
        args = (instance, epoch, limit.name, limit.partition, limit.weight, ticket)
        return Statement(self._acquire_limit, args, lambda rows: AcquireLimitResult(*rows[0]))

    def release_step_limit(self, ticket: int) -> Statement[list[str]]:
        return Statement(self._release_limit, (ticket,), lambda rows: rows[0][0] or [])

    def delete_full_rate_buckets(self) -> Statement[int]:
        return Statement(self._delete_full_buckets, (), lambda rows: int(rows[0][0]))

    def delete_tickets_of_dead_claims(self) -> Statement[None]:
        return Statement(self._delete_tickets, (), lambda _rows: None)

    def gc(
        self,
        done: float | None,
        failed: float | None,
        cancelled: float | None,
        batch: int,
        *,
        skip: int = 0,
        after: datetime | None = None,
        min_age: float | None = None,
    ) -> Statement[GcResult]:
        """`skip`: how many of the oldest to leave out. `after`: the `visited_until` of the call before."""
        args = (done, failed, cancelled, batch, skip, after, min_age)
        return Statement(self._gc, args, lambda rows: GcResult(*rows[0]))

    def gc_unused_ids(self, batch: int) -> Statement[int]:
        """Forget ids that were drawn long ago and not used."""
        return Statement(self._gc_allocated_ids, (batch,), lambda rows: int(rows[0][0]))

    def ends_of(self, ids: Sequence[int], page_size: int = 16_000_000) -> Statement[list[EndedInstance]]:
        return Statement(
            self._ends_of,
            (list(ids), page_size),
            lambda rows: [EndedInstance(r[0], None if r[1] is None else decode_status(r[1]), r[2], r[3]) for r in rows],
        )

    def get(self, instance: int | None, key: bytes | None) -> Statement[Instance | None]:
        return Statement(self._get, (instance, key), lambda rows: decode_instance(rows[0]) if rows else None)

    def count_due_unknown_steps(self, queues: list[str], known: list[str]) -> Statement[list[UnknownStep]]:
        return Statement(self._unknown_steps, (queues, known), lambda rows: [UnknownStep(*row) for row in rows])

    def unlocked_ids(self, ids: Sequence[int]) -> Statement[set[int]]:
        return Statement(self._unlocked_ids, (list(ids),), lambda rows: {row[0] for row in rows})

    def notify(self, payloads: Sequence[str]) -> Statement[None]:
        """`payloads` are encoded messages (`core/notification_messages.py`)."""
        return Statement(self._notify, (self.schema.channel, list(payloads)), lambda _rows: None)
