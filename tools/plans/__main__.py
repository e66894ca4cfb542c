"""`python -m tools.plans`: explains the hot statements on a filled table, and writes docs/reference/plans.md.

The server is that of GEN_DURABLE_TEST_DSN, which needs auto_explain: `make plans` runs it on Debian's postgresql-15.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import asyncpg

from gen_durable.store.schema import Schema
from tools.plans.dataset import drop_schema, fill_schema
from tools.plans.explained_calls import explain_calls
from tools.plans.page import Conditions, render_page

PAGE = Path(__file__).parents[2] / "docs/reference/plans.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.plans", description="Write the plans of the hot statements.")
    parser.add_argument("--terminal", type=int, default=1_000_000, help="how many rows have ended")
    parser.add_argument("--runnable", type=int, default=100_000, help="how many rows are runnable")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument(
        "--schema", default="gen_durable_plans", help="a schema that is created, and dropped in the end"
    )
    return parser.parse_args()


async def main(options: argparse.Namespace, dsn: str) -> None:
    schema = Schema(options.schema)
    connection = await asyncpg.connect(dsn)
    try:
        server = "Postgres " + (await connection.fetchval("show server_version")).split()[0]
    finally:
        await connection.close()
    await drop_schema(dsn, schema)
    try:
        await fill_schema(dsn, schema, terminal=options.terminal, runnable=options.runnable)
        calls = await explain_calls(dsn, schema)
    finally:
        await drop_schema(dsn, schema)
    page = render_page(calls, Conditions(server, options.terminal, options.runnable))
    await asyncio.to_thread(options.page.write_text, page)
    print(f"wrote {options.page}: {len(calls)} calls, {sum(len(call.plans) for call in calls)} plans")


if __name__ == "__main__":
    found = os.environ.get("GEN_DURABLE_TEST_DSN")
    if found is None:
        sys.exit("GEN_DURABLE_TEST_DSN is not set. Run `make plans`, or name a server with auto_explain.")
    asyncio.run(main(arguments(), found))
