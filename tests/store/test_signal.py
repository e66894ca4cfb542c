"""OutgoingSignal: to the living, once per dedup key, waking on the name."""

from __future__ import annotations

import json

import psycopg
import pytest
from tests.support.machine import send
from tests.support.rows import LIVE, ended, executing, instance, parent, parked
from tests.support.store import Store

from gen_durable.store.types import Commit, OutgoingSignal


def test_a_match_wakes(store: Store) -> None:
    """A signal by a name that is waited for makes the row runnable now; the names stay for the step that is woken."""
    store.given(parked(1, awaits=["go", "stop"], queue="q"))
    assert store.signal(OutgoingSignal(1, None, "go", '{"n": 1}', None)) == [(1, "delivered", "q")]
    row = store.row(1)
    assert (row["status"], row["awaits"], row["has_signals"]) == ("runnable", ["go", "stop"], True)
    assert row["eligible_in"] == pytest.approx(0, abs=5)
    (claim,) = store.pick(q=1).claims
    assert [(r.name, r.payload) for r in claim.inbox] == [("go", b'{"n": 1}')]
    assert claim.awaits == ["go", "stop"]


def test_a_locked_target_is_skipped_and_the_others_are_not(dsn: str, store: Store) -> None:
    """With `skip_locked`: nothing is delivered to a row that another session has locked, and the call does not wait."""
    store.given(parked(1, queue="q") + parked(2, queue="q"))
    sent = [send(1), send(2), send(3), send(1, "other")]
    with psycopg.connect(dsn) as other:
        other.execute(store.schema.render("select from @schema.instances where id = 1 for update"))
        answers = store.run(store.calls.signal(sent, skip_locked=True))
        assert [verdict for _, verdict, _ in answers] == ["locked", "delivered", "no_target", "locked"]
    assert [s["target_id"] for s in store.inbox()] == [2]
    assert store.row(1)["status"] == "awaiting_signal"
    answers = store.run(store.calls.signal(sent, skip_locked=True))
    assert [verdict for _, verdict, _ in answers] == ["delivered", "delivered", "no_target", "delivered"]


def test_a_wake_is_not_a_timeout(store: Store) -> None:
    """A woken row is due by its signal. Its deadline stays with `awaits`, and means nothing."""
    store.given(parked(1))
    store.sql("update @schema.instances set await_deadline = now() - interval '1 hour'")
    store.signal(send(1))
    row = store.row(1)
    assert (row["status"], row["due_at"]) == ("runnable", row["eligible_at"])
    (claim,) = store.pick().claims
    assert not claim.timed_out


@pytest.mark.parametrize(
    "given", [parked(1, "other"), executing(1), parent(1, 1) + executing(2, parent_id=1, parent_round=1)]
)
def test_no_match_waits_in_the_inbox(store: Store, given: str) -> None:
    """Another name, or a target that does not wait for signals: stored, flagged, and nothing else changes."""
    store.given(given)
    before = store.row(1)
    assert store.signal(send(1)) == [(1, "delivered", None)]
    after = store.row(1)
    assert (after["status"], after["due_at"], after["has_signals"]) == (before["status"], before["due_at"], True)
    assert [s["name"] for s in store.inbox()] == ["go"]


def test_a_due_target_is_to_be_looked_at_again(store: Store) -> None:
    """A row that is due already names its queue too: our lock may have hidden it from a picker that was just told."""
    store.given(instance(1))
    assert store.signal(send(1)) == [(1, "delivered", "default")]
    store.sql("update @schema.instances set eligible_at = now() + interval '1 hour'")
    assert store.signal(send(1)) == [(1, "delivered", None)]


def test_no_target(store: Store) -> None:
    """Unknown and ended instances, and keys that nobody holds, take no signal."""
    store.given(ended(1, unique_key=b"k", unique_scope="{runnable}") + ended(2, status="failed"))
    sent = [send(1), send(2), send(99), send(None, key=b"k"), send(None, key=b"nobody")]
    assert store.signal(*sent) == [(None, "no_target", None)] * 5
    assert store.inbox() == []


def test_a_done_instance_that_still_holds_its_key_takes_no_signal(store: Store) -> None:
    """A scope may reach past the end, a delivery does not."""
    store.given(ended(1, unique_key=b"k", unique_scope="{runnable,done}"))
    assert store.signal(send(None, key=b"k")) == [(None, "no_target", None)]


def test_by_key(store: Store) -> None:
    """A key finds its live holder, whatever bytes it is made of, and not the one who held it before."""
    key = b"\x00order:\xff"
    store.given(ended(1, unique_key=key) + parked(2, unique_key=key, unique_scope=LIVE))
    assert store.signal(send(None, key=key)) == [(2, "delivered", "default")]


def test_dedup(store: Store) -> None:
    """One dedup key is delivered once per instance; without a key every delivery counts."""
    store.given(executing(1) + executing(2))
    sent = [send(1, dedup="d"), send(1, dedup="d"), send(2, dedup="d"), send(1), send(1)]
    verdicts = [verdict for _, verdict, _ in store.signal(*sent)]
    assert verdicts == ["delivered", "duplicate", "delivered", "delivered", "delivered"]
    assert store.signal(send(1, dedup="d")) == [(1, "duplicate", None)]
    assert len(store.inbox()) == 4


def test_dedup_holds_after_consumption(store: Store) -> None:
    """A signal that was consumed is still known while its instance lives, and does not wake it again."""
    store.given(executing(1))
    store.signal(send(1, dedup="d"))
    (sent,) = store.inbox()
    store.flush(
        Commit(1, 1, 0, "await", delay=None, extra=json.dumps({"awaits": ["go"], "seen": [], "consumed": [sent["id"]]}))
    )
    assert store.row(1)["status"] == "awaiting_signal"
    assert store.signal(send(1, dedup="d")) == [(1, "duplicate", None)]
    assert store.row(1)["status"] == "awaiting_signal"


def test_a_duplicate_of_another_name_does_not_wake(store: Store) -> None:
    """What was not delivered wakes nobody, even if its name is waited for."""
    store.given(parked(1))
    store.signal(send(1, "other", dedup="d"))
    assert store.signal(send(1, "go", dedup="d"), send(1, "third")) == [(1, "duplicate", None), (1, "delivered", None)]
    assert store.row(1)["status"] == "awaiting_signal"


def test_a_batch_to_one_target(store: Store) -> None:
    """Many signals to one instance in one call: all are stored in order, and it is woken once."""
    store.given(parked(1))
    answers = store.signal(*(send(1, name) for name in ("x", "go", "y", "go")))
    assert [verdict for _, verdict, _ in answers] == ["delivered"] * 4
    assert {woken for _, _, woken in answers} == {"default"}
    assert [s["name"] for s in store.inbox()] == ["x", "go", "y", "go"]
    assert store.row(1)["status"] == "runnable"


def test_a_large_batch(store: Store) -> None:
    """A thousand targets in one call, answered in input order."""
    store.sql(
        "insert into @schema.instances (fsm, step, status, awaits, seen)"
        " select 'm', 's', 'awaiting_signal', '{go}', '{}' from generate_series(1, 1000)"
    )
    targets = [row["id"] for row in store.rows()][::-1]
    answers = store.signal(*(send(target) for target in targets))
    assert [target for target, _, _ in answers] == targets
    assert len(store.pick(2000).claims) == 1000


def test_an_empty_batch(store: Store) -> None:
    """Nothing in, nothing out."""
    assert store.signal() == []


@pytest.mark.parametrize("target", ["42", "'order:42'"])
def test_the_door_for_psql(store: Store, target: str) -> None:
    """One signal can be sent by a plain select, to an id or to a key, with its verdict as the answer."""
    store.given(parked(42, unique_key=b"order:42", unique_scope=LIVE))
    (row,) = store.sql(f"select @schema.signal({target}, 'go', '{{\"amount\": 100}}', 'event-7') as verdict")
    assert row["verdict"] == "delivered"
    (row,) = store.sql(f"select @schema.signal({target}, 'go', dedup_key => 'event-7') as verdict")
    assert row["verdict"] == "duplicate"
    assert store.row(42)["status"] == "runnable"
