"""What an editor shows after `app.`: the calls of users, and nothing that the library keeps for itself."""

from __future__ import annotations

from gen_durable.client import Durable

PUBLIC = [
    "activities",
    "cancel",
    "checkpoint",
    "close",
    "count",
    "debounce",
    "delete",
    "delete_signals",
    "events",
    "get",
    "handle",
    "handle_of_token",
    "history",
    "insert",
    "insert_many",
    "limits",
    "list",
    "list_all",
    "open",
    "progress",
    "rejected_signals",
    "remove_limit",
    "restore_signals",
    "retry",
    "set_limit",
    "signal",
    "signals",
]


def test_durable_shows_only_what_users_call() -> None:
    app = Durable("postgresql://nowhere/none")
    assert sorted(name for name in dir(app) if not name.startswith("_")) == PUBLIC
