"""The snippets of "Insert instances" and "Unique keys and retention" run in order, against the real database."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.support.pages import page_names, run_snippet, snippets

from gen_durable import Durable, Start, Worker
from gen_durable.core.insert_runner import OnConflict
from gen_durable.retention import Retention
from gen_durable.starts import StartOptions
from gen_durable.worker_options import WorkerOptions

HOWTO = Path(__file__).parents[2] / "docs/howto"


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The names that the snippets of a page bind."""
    with page_names() as made:
        yield made


async def test_unique_keys(dsn: str, schema: str, names: dict[str, Any]) -> None:
    """One order is charged once, and its key finds it after its end."""
    page = HOWTO / "unique-keys.md"
    definitions, *rest = snippets(page)
    await run_snippet(definitions, page, names)
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[names["Checkout"]()], jobs=[names["send_mail"]]),
    ):
        names["app"] = app
        for snippet in rest:
            await run_snippet(snippet, page, names)
        assert len(await app.list(unique_key="order:42")) == 1
        assert len(rest) == 6


async def test_inserting(dsn: str, schema: str, names: dict[str, Any]) -> None:
    """Every instance of the page is inserted, and the import ends with its children and its report."""
    page = HOWTO / "insert.md"
    definitions, *rest = snippets(page)
    await run_snippet(definitions, page, names)
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(
            app,
            machines=[names["Import"]()],
            jobs=[names["price"], names["report"]],
            queues={"default": 5, "imports": 1},
        ),
    ):
        names["app"] = app
        for snippet in rest:
            await run_snippet(snippet, page, names)
        assert len(rest) == 4
        imports = [one async for one in app.list_all(machine="Import", payloads=True)]
        assert await app.handle(imports[0].id, names["Import"].start).result() == 2
        night = await app.get("price:3")
        assert (night.queue, night.priority, night.partition_key) == ("night", -10, "it")
        assert night.metadata == {"tenant": "acme", "order": 3}
        children = await app.list(parent=imports[0].id)
        assert {(one.queue, one.partition_key) for one in children} == {("default", "de"), ("default", "fr")}


@pytest.mark.parametrize("option", sorted({*StartOptions.__annotations__, "on_conflict", "connection", "notify"}))
def test_every_option_has_its_line(option: str) -> None:
    """Each option of `insert` and `Start` is in a table of the page."""
    tables = "\n".join(re.findall(r"^\| .*$", (HOWTO / "insert.md").read_text(), re.MULTILINE))
    assert f"`{option}`" in tables


def test_the_options_of_start_are_those_of_its_typed_dict() -> None:
    """`StartOptions` has the keyword arguments of `Start`, so the page is complete."""
    parameters = inspect.signature(Start.__init__).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(StartOptions.__annotations__)


def test_the_page_names_the_defaults() -> None:
    """The retention of a worker, and the words of on_conflict."""
    assert WorkerOptions().retention == Retention(86_400, 30 * 86_400, 30 * 86_400)
    page = (HOWTO / "unique-keys.md").read_text()
    assert "done 1 day, failed and cancelled 30 days" in page
    assert [word for word in get_args(OnConflict) if f'`"{word}"`' not in page] == []
