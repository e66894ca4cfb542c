"""docs/howto/failures.md: its snippets run, and print what the page shows."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gen_durable import Durable, Failed, Worker

PAGE = (Path(__file__).parents[2] / "docs/howto/failures.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `shop` of the page, with its report."""
    path = tmp_path / "shop.py"
    path.write_text("\n\n".join(blocks("python")[:2]))
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shop", module)
    monkeypatch.setattr(logging.getLogger("gen_durable.errors"), "level", logging.NOTSET)
    spec.loader.exec_module(module)
    return module


async def test_the_page_is_true(
    shop: Any, dsn: str, schema: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The machine, the report of its failure, the statement that groups failures, and the level of the log."""
    exec(blocks("python")[2], {})
    async with Durable(dsn, schema=schema) as app:
        async with Worker(app, machines=[shop.Checkout()]):
            handle = await app.insert(shop.Checkout.pay, "4111")
            assert isinstance(await handle.wait(20), Failed)
        await shop.report(app, handle.id)
    (printed,) = blocks("text")
    assert capsys.readouterr().out.replace(str(Path(shop.__file__).parent), "/app") == printed
    logged = [record.getMessage() for record in caplog.records if record.name == "gen_durable.errors"]
    assert ["in Checkout.pay" in text and "4111" not in text for text in logged] == [True]
    connection = await asyncpg.connect(dsn)
    (group,) = await connection.fetch(blocks("sql")[0].replace("gen_durable.", f"{schema}."))
    await connection.close()
    assert tuple(group) == ("Checkout", "pay", "shop.Declined", 1)
