"""Messages between processes: the payload of each kind, in Python and in SQL."""

from __future__ import annotations

import logging

import psycopg
import pytest
from tests.support.store import Store

from gen_durable.core.notification_messages import (
    CancelChildren,
    CheckCancelRequests,
    Message,
    QueueReady,
    decode_message,
    encode_message,
    messages_of_follow_ups,
)
from gen_durable.pg.error_classifier import SqlError
from gen_durable.store.types import NO_FOLLOW_UPS, FollowUps

PAYLOADS: list[tuple[Message, str]] = [
    (QueueReady("default"), "queue:default"),
    (QueueReady("cancel_children:42"), "queue:cancel_children:42"),
    (QueueReady("check_cancel_requests:host:7:ab"), "queue:check_cancel_requests:host:7:ab"),
    (CancelChildren(42), "cancel_children:42"),
    (CancelChildren(None), "cancel_children:"),
    (CheckCancelRequests("host:7:ab"), "check_cancel_requests:host:7:ab"),
    (CheckCancelRequests("queue:default"), "check_cancel_requests:queue:default"),
]


@pytest.mark.parametrize(("message", "payload"), PAYLOADS, ids=[payload for _, payload in PAYLOADS])
def test_every_message_survives_the_round_trip(message: Message, payload: str) -> None:
    """A queue or a worker that is named like another kind of message stays a queue or a worker."""
    assert encode_message(message) == payload
    assert decode_message(payload) == message


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "default",
        "queue:",
        "check_cancel_requests:",
        "cancel_children:x",
        "cancel_children:-1",
        "cancel_children:²",
        f"cancel_children:{2**63}",
        f"cancel_children:{'9' * 5000}",
        f"queue:{'q' * 600}",
        f"check_cancel_requests:{'w' * 501}",
        "new:1",
    ],
)
def test_an_unknown_payload_is_ignored(payload: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gen_durable.notifier"):
        assert decode_message(payload) is None
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_wakeups_stand_for_one_message_each() -> None:
    follow_ups = FollowUps(frozenset({"a", "b"}), frozenset({1, None}), frozenset({"w"}))
    assert set(messages_of_follow_ups(follow_ups)) == {
        QueueReady("a"),
        QueueReady("b"),
        CancelChildren(1),
        CancelChildren(None),
        CheckCancelRequests("w"),
    }
    assert (bool(follow_ups), bool(NO_FOLLOW_UPS)) == (True, False)


def test_sql_encodes_the_same_payloads(dsn: str, schema: str, store: Store) -> None:
    """Notifications inside a caller's transaction are sent by `notify_workers.sql`, on the channel of the schema."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'listen "{store.schema.channel}"'.encode())
        for message, payload in PAYLOADS:
            kind, _, argument = encode_message(message).partition(":")
            store.sql("select @schema.notify_workers($1, array[$2, null])", kind, argument)
            (sent,) = connection.notifies(timeout=10, stop_after=1)
            assert sent.payload == payload


def test_sql_refuses_what_no_receiver_accepts(store: Store) -> None:
    """A service that may only enqueue can call the function."""
    refused: list[tuple[str | None, list[str]]] = [
        ("pause", ["default"]),
        (None, ["default"]),
        ("queue:x", ["default"]),
        ("queue", ["fine", ""]),
        ("queue", ["q" * 501]),
        ("check_cancel_requests", ["w" * 501]),
        ("cancel_children", ["x"]),
        ("cancel_children", ["9" * 20]),
    ]
    for kind, arguments in refused:
        with pytest.raises(SqlError) as raised:
            store.sql("select @schema.notify_workers($1, $2)", kind, arguments)
        assert raised.value.sqlstate == "22023", kind
