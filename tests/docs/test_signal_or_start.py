"""The snippets of docs/howto/signal-or-start.md run, one after the other, and do what the page says."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.engine import Opening, engine, soon

__all__ = ["engine"]

PAGE = (Path(__file__).parents[2] / "docs/howto/signal-or-start.md").read_text()


async def run(snippet: str, names: dict[str, Any]) -> None:
    code = compile(snippet, "signal-or-start.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waited = eval(code, names)
    if inspect.iscoroutine(waited):
        await waited


async def test_the_page(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of Python and SQL; then what each has made ends as described."""
    blocks = re.findall(r"```(python|sql)\n(.*?)```", PAGE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python"] * 5 + ["sql"]
    page = ModuleType("signal_or_start_page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, page.__name__, page)
    names = vars(page)
    handles: list[Any] = []
    async with engine() as e:
        names["app"] = e.app
        for kind, text in blocks:
            if kind == "python":
                await run(text, names)
                handles.append(names.get("handle"))
            else:
                for statement in text.replace("gen_durable.", "@.").split(";\n")[:2]:
                    await e.rows.fetch(statement)
        assert names["result"].is_new
        checkout, reindex, payment = names["Checkout"], names["reindex"], names["payment"]
        waiting = await e.app.get("reindex:7")
        assert (waiting.id, waiting.state) == (names["handle"].id, "draft 3")
        await e.app.debounce(reindex, "draft 4", unique_key="reindex:7", delay=0)
        await e.app.insert(checkout.start, names["Order"](1), signals=[payment.of(names["Paid"](7))])
        async with e.worker(checkout(), reindex):
            assert await soon(names["handle"].result()) == "indexed draft 4"
            assert await soon(handles[1].result()) == 100
            assert await soon(names["result"].handle.result()) == 100
            assert await soon(e.app.handle("order:43", checkout.start).result()) == 100
