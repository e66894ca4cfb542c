"""Random sequences against a model of limits: never above the slots, no token out of nothing, nobody left behind."""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.length import short_or_long
from tests.support.machine import M, child, send
from tests.support.store import Store

from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.starts import Start
from gen_durable.store.sql_files import checks
from gen_durable.store.types import Claim, Commit

QUEUES = ["a", "b", "c"]
KEYS = ["k", "j", None, None, None]
SEEDS = range(short_or_long(3, 10))
STEPS = 100
PARTS = [None, None, "x", "y"]
SHIFT = """
update @schema.instances set token_at = token_at - i, eligible_at = eligible_at - i, updated_at = updated_at - i,
  await_deadline = await_deadline - i
from make_interval(secs => $1) as i where finished_at is null
"""
HEADS = """
select distinct on (i.partition_key) i.id, i.partition_key from @schema.instances i
cross join lateral (
  select case when i.blocked_on is not null or i.token_at is not null then i.eligible_at else i.due_at end as at
) as w
where i.partition_key is not null and i.finished_at is null and i.status <> 'executing' and w.at <= now()
order by i.partition_key, i.priority, w.at, i.id
"""
AHEAD = """
select i.id from @schema.instances i
where i.partition_key is not null and (i.token_at is not null or not starts_with(i.blocked_on, 'partition/'))
"""


class World:
    """A store, what is held of it, and what its limits should be."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.rnd = store, random.Random(seed)
        self.held: dict[int, Claim] = {}
        self.log: list[str] = []
        self.policies: dict[str, Concurrency | Rate] = {}
        self.drained: dict[str, float] = {}  # by rate key: when all tokens taken are back, on our clock
        self.tickets: dict[int, tuple[int, Limit, bool]] = {}  # the claim, its limit, whether it is inside
        self.skipped = 0.0
        self.doctor = " union all ".join(
            f"select '{name}', c.id, c.problem from ({sql}\n) as c" for name, sql in checks(store.schema)
        )
        for name in ("l", "m", "r", "s"):
            self.set(name)

    def now(self) -> float:
        return time.monotonic() + self.skipped

    # What can happen.

    def set(self, name: str | None = None) -> None:
        name = name or self.rnd.choice(["l", "m", "r", "s"])
        policy: Concurrency | Rate
        if name in ("l", "m"):
            policy = Concurrency(self.rnd.choice([1, 1, 2, 3, 5]))
        else:
            policy = Rate(1, timedelta(seconds=self.rnd.choice([60, 600])), burst=self.rnd.choice([1, 2, 3, 6]))
        self.log.append(f"set {name} {policy}")
        self.store.run(self.store.calls.set_limit(name, policy, declared=False))
        old = self.policies.get(name)
        if isinstance(old, Rate) and isinstance(policy, Rate):
            for key in [k for k in self.drained if k.partition("/")[0] == name]:
                gone = max(self.drained[key] - self.now(), 0) * policy.seconds_per_token / old.seconds_per_token
                self.drained[key] = self.now() + (
                    min(gone, policy.burst * policy.seconds_per_token) if policy.burst < old.burst else gone
                )
        self.policies[name] = policy

    def remove(self) -> None:
        name = self.rnd.choice(["l", "m", "r", "s"])
        self.log.append(f"remove {name}")
        self.store.run(self.store.calls.remove_limit(name))
        self.policies.pop(name, None)
        self.drained = {k: v for k, v in self.drained.items() if k.partition("/")[0] != name}

    def limits(self) -> list[Limit]:
        chosen = []
        for names in ("lm", "rs"):
            if self.rnd.random() < 0.45:
                name = self.rnd.choice(names)
                policy = self.policies.get(name)
                weight = self.rnd.choice([1, 1, policy.burst]) if isinstance(policy, Rate) else 1
                chosen.append(Limit(name, self.rnd.choice(PARTS), weight))
        return [limit for limit in chosen if limit.name in self.policies]

    def start(self, **fixed: Any) -> Start[Any]:
        more: dict[str, Any] = {"queue": self.rnd.choice(QUEUES), "priority": self.rnd.choice([0, 0, 0, -1, 1])}
        more |= {"partition_key": self.rnd.choice(KEYS), "limit": self.limits()}
        if self.rnd.random() < 0.1:
            more["delay"] = timedelta(seconds=self.rnd.choice([30, 3600]))
        return Start(M.s, {}, **(more | fixed))

    def insert(self) -> None:
        starts = [self.start() for _ in range(self.rnd.choice([1, 1, 3, 8]))]
        self.log.append(f"insert {len(starts)}")
        self.store.insert(*starts)

    def crowd(self) -> None:
        """Many of one limit, in one call or one by one."""
        fixed: dict[str, Any] = {"limit": self.limits(), "partition_key": None}
        if self.rnd.random() < 0.5:
            fixed["queue"] = self.rnd.choice(QUEUES)
        starts = [self.start(**fixed) for _ in range(self.rnd.choice([12, 30]))]
        self.log.append(f"crowd {len(starts)} {fixed['limit']}")
        for several in [starts] if self.rnd.random() < 0.5 else [[s] for s in starts]:
            self.store.insert(*several)

    def pick(self, demands: dict[str, int] | None = None) -> bool:
        """Returns whether there is a reason to pick again."""
        if demands is None:
            demands = {q: self.rnd.choice([1, 3, 40]) for q in self.rnd.sample(QUEUES, self.rnd.randint(1, 3))}
        heads = {r["partition_key"]: r["id"] for r in self.store.sql(HEADS)}
        ahead = {r["id"] for r in self.store.sql(AHEAD)}
        picked = self.store.pick(**demands)
        self.log.append(f"pick {demands}: {[(c.id, c.queue, c.partition_key, c.limited) for c in picked.claims]}")
        for c in picked.claims:
            assert c.id not in self.held
            self.held[c.id] = c
            assert c.partition_key is None or heads.get(c.partition_key) == c.id or c.id in ahead, (
                "order",
                c.id,
                heads,
            )
        for key in {c.limited for c in picked.claims if c.limited}:
            self.within(key)
        claimed = [c.id for c in picked.claims]
        rates: dict[str, float] = {}
        for row in self.store.sql("select rate_key, weight from @schema.instances where id = any ($1)", claimed):
            policy = self.policies.get((row["rate_key"] or "").partition("/")[0])
            if isinstance(policy, Rate):
                rates[row["rate_key"]] = rates.get(row["rate_key"], 0) + min(row["weight"] or 1, policy.burst)
        for key, weight in rates.items():
            self.take(key, weight)
        return bool(picked.claims or picked.woken_queues)

    def within(self, key: str) -> None:
        policy = self.policies.get(key.partition("/")[0])
        if isinstance(policy, Concurrency):
            inside = sum(may and limit.key == key for _, limit, may in self.tickets.values())
            running = sum(c.limited == key for c in self.held.values()) + inside
            assert running <= policy.slots, f"{running} run under {key} {policy}"

    def take(self, key: str, weight: float) -> None:
        policy = self.policies[key.partition("/")[0]]
        assert isinstance(policy, Rate)
        gone = max(self.drained.get(key, 0) - self.now(), 0)
        tokens = policy.burst - gone / policy.seconds_per_token
        assert weight <= tokens + 0.1, f"{weight} tokens of {key}, which has {tokens}"
        self.drained[key] = self.now() + gone + weight * policy.seconds_per_token

    def any_held(self) -> Claim | None:
        return self.held.pop(self.rnd.choice(list(self.held))) if self.held else None

    def flush(self) -> None:
        if (c := self.any_held()) is None:
            return
        self.gone(c.id)
        kind = self.rnd.choice(
            ["done", "done", "done", "fail", "next", "next", "retry", "await", "awaitfor", "children"]
        )
        self.log.append(f"flush {c.id} {kind} {c.partition_key} {c.limited}")
        commit = Commit(c.id, c.epoch, c.seq, kind)
        extra: dict[str, Any] = {}
        if kind in ("next", "children"):
            commit.step = "t"
            extra["limits"] = [[limit.name, limit.partition, limit.weight] for limit in self.limits()]
        if kind == "next" and self.rnd.random() < 0.4:
            extra |= {"queue": self.rnd.choice(QUEUES), "priority": self.rnd.choice([-1, 0, 1])}
            new = self.rnd.choice(KEYS)
            if new != c.partition_key:
                extra["partition_key"] = new
                if c.partition_key is not None:
                    extra["left"] = [f"partition/{c.partition_key}"]
        elif kind == "retry":
            commit.delay = self.rnd.choice([None, 30.0, 3600.0])
        elif kind.startswith("await"):
            commit.kind, commit.delay = "await", 30.0 if kind == "awaitfor" else None
            extra |= {"awaits": ["go"], "seen": []}
        elif kind == "children":
            extra["children"] = [self.child() for _ in range(self.rnd.choice([0, 2, 12]))]
        else:
            commit.parent = c.parent_id
        if extra:
            commit.extra = json.dumps(extra)
        assert not self.store.flush(commit).stale_ids

    def child(self) -> dict[str, object]:
        wants = [[limit.name, limit.partition, limit.weight] for limit in self.limits()] or None
        return child(queue=self.rnd.choice(QUEUES), partition_key=self.rnd.choice(KEYS), limits=wants)

    def release(self) -> None:
        if c := self.any_held():
            self.gone(c.id)
            self.log.append(f"release {c.id}")
            self.store.run(self.store.calls.release_claims([(c.id, c.epoch, self.rnd.choice([None, 3600.0]), None)]))

    def reap(self) -> None:
        if c := self.any_held():
            self.tickets = {t: of for t, of in self.tickets.items() if of[0] != c.id}
            self.log.append(f"reap {c.id}")
            self.store.sql("update @schema.instances set lease_expires_at = now() - interval '1 s' where id = $1", c.id)
            self.store.run(self.store.calls.reap(10, self.rnd.choice([None, 1])))

    def signal(self) -> None:
        found = self.store.sql("select id from @schema.instances where finished_at is null")
        if found:
            target = self.rnd.choice(found)["id"]
            self.log.append(f"signal {target}")
            self.store.signal(send(target))

    def enter(self) -> None:
        """Ask for a limit from inside a step, or ask again."""
        waiting = [t for t, (_, _, may) in self.tickets.items() if not may]
        if waiting and self.rnd.random() < 0.5:
            ticket = self.rnd.choice(waiting)
            id, limit, _ = self.tickets[ticket]  # noqa: A001
        elif self.held and (limits := self.limits()):
            ticket, id, limit = len(self.log), self.rnd.choice(list(self.held)), self.rnd.choice(limits)  # noqa: A001
        else:
            return
        if limit.name not in self.policies:
            return
        answer = self.store.run(self.store.calls.acquire_step_limit(id, self.held[id].epoch, limit, ticket))
        self.log.append(f"enter {id} {limit} {answer}")
        assert not answer.is_lost
        if answer.has_ticket:
            self.tickets[ticket] = (id, limit, answer.is_granted)
            if answer.is_granted:
                self.within(limit.key)
        elif answer.is_granted:
            self.take(limit.key, limit.weight)

    def leave(self) -> None:
        if self.tickets:
            self.go_out(self.rnd.choice(list(self.tickets)))

    def gone(self, id: int) -> None:  # noqa: A002
        """A step leaves what it has entered before it ends."""
        for ticket in [t for t, of in self.tickets.items() if of[0] == id]:
            self.go_out(ticket)

    def go_out(self, ticket: int) -> None:
        self.log.append(f"leave {self.tickets.pop(ticket)}")
        self.store.run(self.store.calls.release_step_limit(ticket))

    def sweep(self) -> None:
        self.log.append("sweep")
        self.store.run(self.store.calls.unblock_missed_rows(None, 100))

    def pass_by(self, seconds: float | None = None) -> None:
        seconds = seconds or self.rnd.choice([7, 25, 61, 601])
        self.log.append(f"{seconds} s pass")
        self.store.sql(SHIFT, float(seconds))
        self.store.sql(
            "update @schema.rate_buckets set drained_until = drained_until - make_interval(secs => $1)",
            float(seconds),
        )
        self.store.sql("update @schema.limits set updated_at = updated_at - make_interval(secs => $1)", float(seconds))
        self.skipped += seconds

    def receive_result(self) -> None:
        """Pick until there is no reason to: then nothing that is due is left."""
        for _ in range(60):
            if not self.pick(dict.fromkeys(QUEUES, 100)):
                break
        else:
            raise AssertionError("picks go on and on")
        left = self.store.sql(
            "select id, due_at, blocked_on, slot_key, rate_key from @schema.instances where due_at <= now()"
        )
        assert not left, f"due, and not picked: {[dict(row) for row in left]}"

    def examine(self) -> None:
        found = self.store.sql(self.doctor)
        assert not found, f"the doctor found {[tuple(row) for row in found]}"

    def run_out(self) -> None:
        """Everything runs to its end, without a sweep."""
        for ticket in list(self.tickets):
            self.go_out(ticket)
        for _ in range(400):
            self.receive_result()
            commits = [Commit(c.id, c.epoch, c.seq, "done", parent=c.parent_id) for _, c in sorted(self.held.items())]
            self.held.clear()
            if commits:
                self.store.flush(*commits)
            else:
                parked = self.store.sql("select id from @schema.instances where status = 'awaiting_signal'")
                if parked:
                    self.store.signal(*(send(row["id"]) for row in parked))
                if not self.store.sql("select from @schema.instances where finished_at is null limit 1"):
                    return
                self.pass_by(601)
            self.examine()
        left = self.store.sql("select id, status, blocked_on from @schema.instances where finished_at is null")
        raise AssertionError(f"left behind: {[dict(row) for row in left]}")


WHAT = {
    World.insert: 5, World.crowd: 1, World.pick: 9, World.flush: 9, World.release: 1, World.reap: 1, World.signal: 2,
    World.set: 1, World.remove: 0.3, World.enter: 2, World.leave: 1, World.sweep: 0.5, World.pass_by: 2,
    World.receive_result: 0.7,
}  # fmt: skip


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_sequences(store: Store, seed: int) -> None:
    """Everything that can happen to rows under limits, in any order; in the end all have run."""
    world = World(store, seed)
    try:
        for _ in range(STEPS):
            world.rnd.choices(list(WHAT), list(WHAT.values()))[0](world)
            world.examine()
        world.run_out()
    except (AssertionError, asyncpg.PostgresError) as error:
        raise AssertionError(f"{error}\n" + "\n".join(world.log[-16:])) from error
