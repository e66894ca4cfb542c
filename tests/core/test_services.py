"""The services of a `Durable`: there while it is open, and only then."""

from __future__ import annotations

import pytest

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError

WHILE_OPEN = ("pool", "connection_target", "notifier", "completion_watcher", "installation_id", "handle_token_key")


async def test_what_exists_only_while_open(dsn: str, schema: str) -> None:
    """Before and after, each says that the client is not open."""
    app = Durable(dsn, schema=schema)
    services = services_of(app)
    await app.close()  # never opened: nothing to do
    for _ in range(2):
        for name in WHILE_OPEN:
            with pytest.raises(ConfigError, match="not open"):
                getattr(services, name)
        assert services.caller_transaction_watcher is None
        async with app:
            assert all(getattr(services, name) for name in WHILE_OPEN)
            assert services.caller_transaction_watcher is not None


async def test_the_caller_that_opens_it_learns_so(dsn: str, schema: str) -> None:
    """The caller that has opened a client closes it."""
    services = services_of(Durable(dsn, schema=schema))
    assert await services.open_if_closed() is True
    pool = services.pool
    assert await services.open_if_closed() is False
    assert services.pool is pool
    await services.close()


async def test_a_fork_hands_over_what_is_the_parents(dsn: str, schema: str) -> None:
    """All that holds connections, so that the child can keep it; the client counts as closed."""
    app = Durable(dsn, schema=schema)
    await app.open()
    services = services_of(app)
    parents = (services.caller_transaction_watcher, services.completion_watcher, services.notifier, services.pool)
    assert services.abandon_after_fork() == parents
    assert (services.is_open, services.caller_transaction_watcher) == (False, None)
    await services._notifier.close()
    await services._database.close()
