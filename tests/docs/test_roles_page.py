"""docs/howto/roles.md: its commands run as they stand, and its Python waits for a quota."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.support.pages import DOCS, page_names, run_snippet, snippets
from tests.support.roles import PASSWORD, login_dsn, logins
from typer.testing import CliRunner

from gen_durable import Context, Done, Durable, Machine, Outcome, step
from gen_durable.cli.app import app as cli

PAGE = DOCS / "howto" / "roles.md"
COMMANDS = re.findall(r"^gen-durable ((?:grant|revoke|grants)\b.*)$", PAGE.read_text(), re.MULTILINE)


@dataclass
class Cart:
    """The state of the page's machine."""

    items: int


class Checkout(Machine):
    """The machine of the page."""

    @step
    async def start(self, cart: Cart, ctx: Context) -> Outcome[str]:
        return Done("paid")


@pytest.fixture
def shop(dsn: str, schema: str) -> Iterator[str]:
    """A login for the page's `shop`: roles belong to the whole cluster, and other tests have one, too."""
    with logins(dsn, schema), psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"create role {schema}_shop login password '{PASSWORD}'".encode())
        yield f"{schema}_shop"
        admin.execute(f"drop role {schema}_shop".encode())


async def test_the_page(dsn: str, schema: str, shop: str) -> None:
    def run(words: str) -> str:
        done = CliRunner().invoke(cli, [*words.replace("shop", shop).split(), "--dsn", dsn, "--schema", schema])
        assert done.exit_code == 0, (words, done.output)
        return done.output

    assert len(COMMANDS) == 7
    said = [await asyncio.to_thread(run, words) for words in COMMANDS]
    assert said[3].count("may insert") == 1  # the grant that is left
    assert "10,000 live instances" in said[5]
    assert "50 instances a second" in said[5]
    assert "a second" not in said[6]

    await asyncio.to_thread(run, "revoke producer shop")
    await asyncio.to_thread(run, "grant producer shop --max-inserts-per-second 4")
    (snippet,) = snippets(PAGE)
    with page_names() as names:
        names |= {"Checkout": Checkout, "Cart": Cart}
        await run_snippet(snippet, PAGE, names)
        insert_patiently: Any = names["insert_patiently"]
        async with Durable(login_dsn(dsn, shop), schema=schema) as app:
            async with asyncio.timeout(30):
                handles = [await insert_patiently(app, Cart(n)) for n in range(6)]
    assert len({handle.id for handle in handles}) == 6
