"""What an editor shows after `app.`: the calls of users, and nothing that the library keeps for itself."""

from __future__ import annotations

from gen_durable.client import Durable

PUBLIC = [
    "activities",
    "cancel",
    "checkpoint",
    "close",
    "count",
    "delete",
    "events",
    "get",
    "handle",
    "history",
    "insert",
    "insert_many",
    "limits",
    "list",
    "list_all",
    "open",
    "progress",
    "remove_limit",
    "retry",
    "set_limit",
    "signal",
]


def test_durable_shows_only_what_users_call() -> None:
    app = Durable("postgresql://nowhere/none")
    assert sorted(name for name in dir(app) if not name.startswith("_")) == PUBLIC
