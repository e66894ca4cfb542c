"""Runs the Python snippets of a documentation page as they stand, in order, against the real database.

All snippets of a page share one module, in which `app` is an open `Durable`. They may await at their top level. When a
snippet binds `worker`, that worker runs until the page ends or another snippet binds a new one. An exception of a
snippet, or a failed assert in it, fails the test with the line of the page.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import types
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.engine import PATIENCE

from gen_durable import Durable, Worker

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block, and the line of the page on which its code begins."""

    source: str
    line: int


def snippets(page: Path, language: str = "python") -> list[Snippet]:
    """The fenced blocks of a language, in order. Raises if one is indented, since it would not be run."""
    text = page.read_text("utf-8")
    found = [
        Snippet(block[1], text.count("\n", 0, block.start(1)) + 1)
        for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    assert len(found) == text.count(f"```{language}\n"), f"{page} has a block that does not begin its line"
    return found


async def run_page(page: Path, dsn: str, schema: str) -> None:
    """Run all Python snippets of a page."""
    running: Worker | None = None
    with page_names() as names:
        async with Durable(dsn, schema=schema) as app, AsyncExitStack() as stack:
            names["app"] = app
            for snippet in snippets(page):
                async with asyncio.timeout(PATIENCE):
                    await run_snippet(snippet, page, names)
                    if names.get("worker") is not running:
                        await stack.aclose()
                        running = await stack.enter_async_context(names["worker"])


@contextmanager
def page_names() -> Iterator[dict[str, Any]]:
    """The names of a module in which the snippets of a page run: dataclasses look their module up."""
    module = types.ModuleType(f"page_{uuid.uuid4().hex[:8]}")
    sys.modules[module.__name__] = module
    try:
        yield vars(module)
    finally:
        del sys.modules[module.__name__]


async def run_snippet(snippet: Snippet, page: Path, names: dict[str, Any]) -> None:
    """Run one snippet, which may await at its top level."""
    source = "\n" * (snippet.line - 1) + snippet.source  # so that tracebacks have the lines of the page
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    left = eval(code, names)  # our own documentation
    if inspect.iscoroutine(left):
        await left
