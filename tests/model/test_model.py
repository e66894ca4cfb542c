"""Random histories of the real database beside a model of it: after every call both tell the same story.

MODEL_EXAMPLES=2000 (`make model MODEL_EXAMPLES=2000`) plays more of them; a failure prints the shortest that was found.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.support.length import short_or_long
from tests.support.machine import KNOWN, M, child, send
from tests.support.model import ENDS, Letter, Model, Row
from tests.support.store import Store

from gen_durable.starts import Start
from gen_durable.store.sql_files import checks
from gen_durable.store.types import Claim, Commit, OutgoingSignal
from gen_durable.testing.harness_statements import HarnessStatements

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", short_or_long("60", "300")))
STEPS = int(os.environ.get("MODEL_STEPS", "20"))
LEASE = 1e7  # no lease runs out by itself: a crash is a rule
MAX_CRASHES = 2
KEEP = 1800.0
MANY = 50
# A claim whose worker has died is left to the rule that reaps.
UNCHECKED = {"stuck_claim"}

names = st.sampled_from(["go", "stop"])
keys = st.sampled_from([None, None, "a", "b"])
partitions = st.sampled_from([None, None, "p", "q"])
delays = st.sampled_from([None, None, 60.0, 900.0])


class Histories(RuleBasedStateMachine):
    """Every call of the store, as rules."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.held: dict[int, Claim] = {}
        self.old: list[tuple[int, int, int]] = []
        self.letters = 0
        self.statements = HarnessStatements(self.store.schema)
        self.doctor = " union all ".join(
            f"select '{name}', c.id, c.problem from ({sql}\n) as c"
            for name, sql in checks(self.store.schema)
            if name not in UNCHECKED
        )
        self.store.given(self.statements.delete_rows_and_reset_ids)

    # Helpers.

    def some_claim(self, n: int) -> Claim:
        """One that is held. If there is none a worker comes first, and if there is nothing to do, work."""
        if not self.held:
            self.claim(MANY)
        if not self.held:
            self.insert(None, None, 0, None)
            self.claim(MANY)
        ids = sorted(self.held)
        return self.held[ids[n % len(ids)]]

    def some_row(self, n: int) -> Row:
        ids = sorted(self.model.rows)
        return self.model.rows[ids[n % len(ids)]]

    def let_go(self, claim: Claim) -> None:
        del self.held[claim.id]
        self.old.append((claim.id, claim.epoch, claim.seq))

    def check_and_advance(self) -> None:
        """Carry cascades on, as workers do."""
        while self.store.run(self.store.calls.cancel_listed_descendants(100, None)).more:
            pass

    # Instances come.

    @rule(key=keys, partition=partitions, priority=st.sampled_from([0, 0, 1]), delay=delays)
    def insert(self, key: str | None, partition: str | None, priority: int, delay: float | None) -> None:
        self.model.tick += 1
        more: dict[str, Any] = {} if delay is None else {"delay": timedelta(seconds=delay)}
        start = Start(M.s, {}, unique_key=key, partition_key=partition, priority=priority, **more)
        (made,) = self.store.insert(start, on_conflict="existing")
        holder = [r.id for r in self.model.rows.values() if key is not None and r.key == key]
        assert made.new == (not holder)
        assert not holder or made.id == holder[0]
        if made.new:
            assert made.id is not None
            at = self.model.now(delay or 0.0)
            self.model.rows[made.id] = Row(made.id, at, priority=priority, partition=partition, key=key)

    # Workers come.

    @rule(demand=st.sampled_from([1, 2, MANY]))
    def claim(self, demand: int) -> None:
        self.model.tick += 1
        gave_up: list[Row] = []
        while True:
            picked = self.store.run(self.store.calls.pick("w", {"default": demand}, KNOWN, LEASE))
            for claim in picked.claims:
                assert claim.id in self.model.runnable(), f"{claim.id} may not run"
                row = self.model.rows[claim.id]
                shown = [x for x in row.inbox if not x.consumed]
                assert [s.name for s in claim.inbox] == [x.name for x in shown]
                assert [json.loads(s.payload or "0") for s in claim.inbox] == [x.number for x in shown]
                if self.model.claim(row):
                    gave_up.append(row)
                assert claim.timed_out == row.timed_out
                assert (claim.epoch, claim.seq, claim.step, claim.attempt) == (
                    row.claims,
                    row.seq,
                    row.step,
                    row.attempt,
                )
                self.held[claim.id] = claim
            if demand < MANY:
                break
            if not picked.claims and not picked.woken_queues:
                assert self.model.runnable() == set(), f"{self.model.runnable()} could run"
                break
        for row in gave_up:
            self.model.cascade(row.id, row.round)
        self.check_and_advance()

    def outcome(self, n: int, kind: str, **more: Any) -> tuple[Claim, Row, bool]:
        """Commit one; whether it was written."""
        self.model.tick += 1
        claim = self.some_claim(n)
        row = self.model.rows[claim.id]
        expected = self.model.verdict(claim.id, claim.epoch, claim.seq, kind)
        commit = Commit(claim.id, claim.epoch, claim.seq, kind, parent=row.parent if kind in ENDS else None, **more)
        flushed = self.store.flush(commit)
        found = [
            w for w in ("stale", "already_committed", "cancel_requested") if claim.id in getattr(flushed, f"{w}_ids")
        ] or ["written"]
        assert found == [expected]
        if expected == "stale":
            self.let_go(claim)
        return claim, row, expected == "written"

    @rule(
        n=st.integers(0, 9),
        kind=st.sampled_from(["done", "continue", "next", "retry", "done", "fail", "cancel"]),
        step=st.sampled_from([None, "s", "t"]),
        delay=delays,
        consume=st.booleans(),
    )
    def commit(self, n: int, kind: str, step: str | None, delay: float | None, consume: bool) -> None:
        step = None if kind in ENDS or kind == "retry" else step
        delay = delay if kind in ("next", "retry") else None
        shown = [] if not consume else [s for s in self.some_claim(n).inbox if s.id > 0]
        extra = json.dumps({"consumed": [s.id for s in shown]}) if shown else None
        claim, row, written = self.outcome(n, kind, step=step, delay=delay, extra=extra)
        if written:
            numbers = [json.loads(s.payload or "0") for s in shown]
            if kind == "continue":
                self.old.append((claim.id, claim.epoch, claim.seq))
                claim.seq += 1
            else:
                self.let_go(claim)
            self.model.commit(row, kind, step=step, delay=delay, consumed=numbers)
        self.check_and_advance()

    @rule(n=st.integers(0, 9), several=st.booleans(), name=names, deadline=delays, stay=st.booleans())
    def park(self, n: int, several: bool, name: str, deadline: float | None, stay: bool) -> None:
        waits = ("go", "stop") if several else (name,)
        shown = list(self.some_claim(n).inbox)
        extra = json.dumps({"awaits": waits, "seen": [s.id for s in shown]})
        step = None if stay else "t"
        claim, row, written = self.outcome(n, "await", step=step, delay=deadline, extra=extra)
        if written:
            self.let_go(claim)
            self.model.commit(row, "await", step=step, delay=None, consumed=())
            seen = frozenset(json.loads(s.payload or "0") for s in shown)
            self.model.park(row, waits, seen, deadline)

    @rule(
        n=st.integers(0, 9),
        count=st.integers(0, 3),
        key=keys,
        barrier=st.tuples(st.sampled_from([None, None, 1, 2]), st.booleans(), st.booleans()),
        deadline=delays,
    )
    def spread(
        self, n: int, count: int, key: str | None, barrier: tuple[int | None, bool, bool], deadline: float | None
    ) -> None:
        """`barrier`: how many must be done, whether a failure wakes, whether the rest is cancelled."""
        needed, wakes, rest = barrier
        started = [child(key if i == 0 else None) for i in range(count)]
        extra: dict[str, Any] = {"children": started, "cancel_rest": rest}
        extra |= ({} if needed is None else {"join": needed}) | ({"on_failure": "wake"} if wakes else {})
        claim, row, written = self.outcome(n, "children", step="t", delay=deadline, extra=json.dumps(extra))
        if not written:
            return
        self.let_go(claim)
        self.model.commit(row, "children", step="t", delay=None, consumed=())
        taken = key is not None and any(r.key == key for r in self.model.rows.values())
        ids = [r["id"] for r in self.store.rows() if r["parent_id"] == row.id and r["parent_round"] == row.round + 1]
        assert len(ids) == count - (taken and count > 0)
        keyed = [key if not taken else None, None, None]
        made = [Row(i, self.model.now(), key=k) for i, k in zip(ids, keyed if not taken else [None] * 3, strict=False)]
        self.model.fan_out(row, made, needed, wakes=wakes, cancel_rest=rest)
        if row.status == "awaiting_children" and deadline is not None:
            row.deadline = self.model.now(deadline)
        self.check_and_advance()

    @precondition(lambda self: self.old)
    @rule(n=st.integers(0, 99), kind=st.sampled_from(["next", "done", "await", "children"]))
    def commit_late(self, n: int, kind: str) -> None:
        """An outcome of a claim that is over: nothing may come of it."""
        id, claim, seq = self.old[n % len(self.old)]  # noqa: A001
        extras = {"await": {"awaits": ["go"], "seen": []}, "children": {"children": [child("z")]}}
        extra = json.dumps(extras[kind]) if kind in extras else None
        expected = self.model.verdict(id, claim, seq, kind)
        if expected == "written":  # its worker was thought dead, and nobody has taken the claim back yet: not late
            return
        flushed = self.store.flush(Commit(id, claim, seq, kind, step=None, extra=extra))
        assert [
            w for w in ("stale", "already_committed", "cancel_requested") if id in getattr(flushed, f"{w}_ids")
        ] == [expected]

    @rule(n=st.integers(0, 9))
    def crash(self, n: int) -> None:
        """The worker of a claim dies; nobody has noticed yet."""
        claim = self.some_claim(n)
        found = self.store.run(self.statements.expire_lease(claim.id, claim.epoch))
        row = self.model.rows[claim.id]
        assert bool(found) == (row.claims == claim.epoch)
        row.expired = row.expired or bool(found)
        self.let_go(claim)

    @rule()
    def reap(self) -> None:
        self.model.tick += 1
        reaped = self.store.run(self.store.calls.reap(100, MAX_CRASHES))
        assert {r.id for r in reaped.claims} == self.model.reap(MAX_CRASHES)
        self.check_and_advance()

    @precondition(lambda self: self.held)
    @rule(n=st.integers(0, 9), delay=delays)
    def release(self, n: int, delay: float | None) -> None:
        self.model.tick += 1
        claim = self.some_claim(n)
        row = self.model.rows[claim.id]
        given = self.store.run(self.store.calls.release_claims([(claim.id, claim.epoch, delay, None)])).ids
        assert bool(given) == (row.claims == claim.epoch)
        if given:
            row.claims += 1
            if delay is not None:
                # The rest grows with every release, and a part of it is random.
                (found,) = self.store.sql(
                    "select extract(epoch from i.eligible_at - now())::float8 as rest from @schema.instances i "
                    "where i.id = $1",
                    claim.id,
                )
                assert delay - 1 < found["rest"] <= 1.1 * max(delay, 600)
                row.at = self.model.now(found["rest"])
            row.status, row.expired = ("executing", True) if row.marked else ("runnable", False)
        self.let_go(claim)

    @precondition(lambda self: self.held)
    @rule()
    def beat(self) -> None:
        claims = sorted((c.id, c.epoch) for c in self.held.values())
        lost = self.store.run(self.store.calls.heartbeat(claims, LEASE))
        assert set(lost) == {i for i, c in claims if i not in self.model.rows or self.model.rows[i].claims != c}

    # Others come.

    @precondition(lambda self: self.model.rows)
    @rule(n=st.integers(0, 99), name=names, dedup=st.sampled_from([None, None, "x"]), by_key=st.booleans())
    def signal(self, n: int, name: str, dedup: str | None, by_key: bool) -> None:
        self.model.tick += 1
        self.letters += 1
        row = self.some_row(n)
        key = row.key.encode() if by_key and row.key is not None else None
        delivery = OutgoingSignal(None if key else row.id, key, name, str(self.letters), dedup)
        ((_, verdict, _),) = self.store.signal(delivery)
        assert verdict == self.model.signal(row, Letter(self.letters, name, dedup))

    @rule()
    def signal_to_nobody(self) -> None:
        assert self.store.signal(send(10**9))[0][1] == "no_target"

    @precondition(lambda self: self.model.rows)
    @rule(n=st.integers(0, 99), cascade=st.booleans())
    def cancel(self, n: int, cascade: bool) -> None:
        self.model.tick += 1
        row = self.some_row(n)
        answers, _ = self.store.run(self.store.calls.cancel([(row.id, None)], "why", cascade=cascade))
        assert answers[0].verdict == self.model.cancel(row, cascade=cascade)
        self.check_and_advance()

    @precondition(lambda self: self.model.rows)
    @rule(n=st.integers(0, 99))
    def retry(self, n: int) -> None:
        self.model.tick += 1
        row = self.some_row(n)
        found = self.store.run(self.store.reads.retry(row.id, None))
        assert found is not None
        assert (found.was.value == row.status, self.model.retry(row)) == (True, found.queue is not None)

    @rule(seconds=st.sampled_from([60, 900, 3600]))
    def time_passes(self, seconds: int) -> None:
        for statement in self.store.run(self.statements.read_timestamp_shifts()):
            self.store.sql(statement, timedelta(seconds=seconds))
        self.model.jumped += seconds

    @rule()
    def collect(self) -> None:
        deleted = self.store.run(self.store.calls.gc(KEEP, KEEP, KEEP, 1000)).deleted
        gone = self.model.collect(KEEP)
        assert deleted == len(gone)
        self.held = {i: c for i, c in self.held.items() if i not in gone}

    # What must hold.

    @invariant()
    def both_tell_the_same(self) -> None:
        found = {r["id"]: r for r in self.store.rows()}
        assert set(found) == set(self.model.rows)
        mail: dict[int, list[tuple[str, bool]]] = {id: [] for id in found}  # noqa: A001
        for letter in self.store.inbox():
            mail[letter["target_id"]].append((letter["name"], letter["consumed"]))
        for id, row in self.model.rows.items():  # noqa: A001
            real = found[id]
            told = {c: real[c] for c in ("status", "step", "claims", "seq", "attempt", "crashes", "round")}
            assert told == {c: getattr(row, c) for c in told}, f"instance {id}"
            if row.status == "awaiting_children":
                assert real["children_pending"] == row.pending, f"instance {id}"
            assert mail[id] == [(x.name, x.consumed) for x in row.inbox], f"inbox of {id}"
            held = real["unique_guard"]
            assert (None if held is None else bytes(held).decode()) == row.key, f"key of {id}"

    @invariant()
    def the_doctor_is_content(self) -> None:
        found = self.store.sql(self.doctor)
        assert found == [], [tuple(row) for row in found]


@pytest.mark.scaled
@pytest.mark.timeout(0)
@pytest.mark.dirty  # a history ends anywhere: with a claim whose worker has died
def test_the_database_does_what_the_model_says(store: Store) -> None:
    Histories.store = store
    store.given("set synchronous_commit = off")
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize="MODEL_EXAMPLES" not in os.environ,  # the suite plays the same ones; a longer run plays others
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
