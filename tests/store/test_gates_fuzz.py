"""Random sequences against a model of partition keys: heads are claimed, nobody else, and nobody is left behind."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.length import short_or_long
from tests.support.machine import M, child, send
from tests.support.store import Store

import gen_durable
from gen_durable.starts import Start
from gen_durable.store.types import Commit

QUEUES = ["a", "b", "c"]
KEYS = ["k", "l", "m", None]
SEEDS = range(short_or_long(5, 12))
WIDE = 30
STRANDED = Path(gen_durable.__file__).parent / "sql" / "checks" / "blocked_at_free_gate.sql"


def start(rnd: random.Random) -> Start[Any]:
    more: dict[str, Any] = {}
    if rnd.random() < 0.15:
        more["schedule_at"] = datetime.now(UTC) - timedelta(seconds=rnd.randint(0, 100))
    elif rnd.random() < 0.1:
        more["delay"] = timedelta(hours=1)
    if rnd.random() < 0.05:
        more["unique_key"] = f"u{rnd.randint(0, 5)}"
    return Start(
        M.s, {}, queue=rnd.choice(QUEUES), partition_key=rnd.choice(KEYS), priority=rnd.choice([0, 0, 0, -1, 1]), **more
    )


HEADS = """
select distinct on (i.partition_key) i.id, i.queue, i.partition_key from @schema.instances i
where i.partition_key is not null and i.finished_at is null and i.status <> 'executing'
  and case when i.blocked_on is not null then i.eligible_at else i.due_at end <= now()
  and not exists (select from @schema.instances e where e.status = 'executing' and e.partition_key = i.partition_key)
order by i.partition_key, i.priority, case when i.blocked_on is not null then i.eligible_at else i.due_at end, i.id
"""


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_sequences(store: Store, seed: int) -> None:
    """Inserts, picks, outcomes, signals, releases, reaps, crowds and timers, in any order."""
    rnd = random.Random(seed)
    held: dict[int, Any] = {}
    log: list[str] = []
    moved = False
    for _ in range(120):
        what = rnd.choices(
            ["insert", "pick", "flush", "signal", "release", "reap", "crowd", "timeout"], [4, 8, 8, 2, 1, 1, 1, 1]
        )[0]
        if what == "insert":
            log.append("insert")
            store.insert(*[start(rnd) for _ in range(rnd.choice([1, 1, 3, 8]))], on_conflict="skip")
        elif what == "crowd":
            key, queue = rnd.choice(["k", "l"]), rnd.choice(QUEUES)
            n = rnd.choice([12, 40])
            log.append(f"crowd {key} {queue} {n}")
            for _ in range(n):
                store.insert(Start(M.s, {}, queue=queue, partition_key=key, priority=rnd.choice([0, 0, 1])))
        elif what == "timeout":
            store.sql(
                "update @schema.instances set await_deadline = now()"
                " where await_deadline is not null and blocked_on is null"
            )
        elif what == "pick":
            some = rnd.sample(QUEUES, rnd.randint(1, 3))
            demands = {q: rnd.choice([1, 2, WIDE]) for q in some}
            heads = {r["id"]: r for r in store.sql(HEADS)}
            picked = store.pick(**demands)
            log.append(f"pick {demands}: {[(c.id, c.queue, c.partition_key) for c in picked.claims]}")
            got = {c.id for c in picked.claims}
            for c in picked.claims:
                assert c.id not in held
                held[c.id] = c
                if c.partition_key is not None:
                    assert c.id in heads, (log[-8:], c.id, c.partition_key, heads)
            missing = [
                h
                for h, r in heads.items()
                if r["queue"] in demands
                and h not in got
                and sum(c.queue == r["queue"] for c in picked.claims) < demands[r["queue"]]
            ]
            # A blocked head that was let back in a queue that was looked at before may wait for its ring.
            woken = picked.woken_queues
            for h in missing:
                row = store.row(h)
                told = "\n".join([*log[-14:], str(dict(row)), str(woken), str(picked.unmet)])
                assert row["due_at"] is not None, told
                assert row["queue"] in woken, told
        elif what in ("flush", "release", "reap") and held:
            id = rnd.choice(list(held))  # noqa: A001
            c = held.pop(id)
            log.append(f"{what} {id} {c.partition_key}")
            if what == "flush":
                kind = rnd.choice(
                    ["done", "done", "fail", "next", "retry", "delay", "await", "awaitfor", "children", "move"]
                )
                if kind == "delay":
                    commit = Commit(id, c.epoch, c.seq, "retry", delay=3600.0)
                elif kind.startswith("await"):
                    commit = Commit(
                        id,
                        c.epoch,
                        c.seq,
                        "await",
                        delay=3600.0 if kind == "awaitfor" else None,
                        extra=json.dumps({"awaits": ["go"], "seen": []}),
                    )
                elif kind == "children":
                    kids = [
                        child(queue=rnd.choice(QUEUES), partition_key=rnd.choice(KEYS))
                        for _ in range(rnd.choice([0, 2, 15]))
                    ]
                    commit = Commit(id, c.epoch, c.seq, "children", step="t", extra=json.dumps({"children": kids}))
                elif kind == "move":
                    extra: dict[str, Any] = {"queue": rnd.choice(QUEUES), "priority": rnd.choice([-1, 0, 1])}
                    new = rnd.choice(KEYS)
                    if new != c.partition_key:
                        extra["partition_key"] = new
                        if c.partition_key is not None:
                            extra["left"] = [f"partition/{c.partition_key}"]
                    commit = Commit(id, c.epoch, c.seq, "next", step="t", extra=json.dumps(extra))
                else:
                    commit = Commit(id, c.epoch, c.seq, kind, step="t" if kind == "next" else None, value="1")
                log[-1] += f" {kind}"
                if commit.kind in ("done", "fail"):
                    commit.parent = c.parent_id
                assert not store.flush(commit).stale_ids
            elif what == "release":
                store.run(store.calls.release_claims([(id, c.epoch, rnd.choice([None, 3600.0]), None)]))
            else:
                store.sql(
                    "update @schema.instances set lease_expires_at = now() - interval '1 second' where id = $1", id
                )
                store.run(store.calls.reap(10, rnd.choice([None, 1])))
        elif what == "signal":
            ids = [r["id"] for r in store.sql("select id from @schema.instances where finished_at is null")]
            if ids:
                target = rnd.choice(ids)
                log.append(f"signal {target}")
                store.signal(send(target))
        if what not in ("signal", "timeout"):
            for h in store.sql(HEADS):
                if store.row(h["id"])["blocked_on"] is not None and not moved:
                    raise AssertionError(("a head is blocked", log[-4:], h))
        else:
            moved = True
        stranded = store.sql(store.schema.render(STRANDED.read_text("utf-8")))
        assert not stranded, (log[-8:], stranded)
