"""A machine for tests of the SQL: its rows are what counts, its steps never run."""

from __future__ import annotations

from typing import Any

from gen_durable.context import Context
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Outcome


class M(Machine, name="m"):
    """Any states, two steps."""

    @step
    async def s(self, state: Any, ctx: Context) -> Outcome[Any]:
        return Done(state)

    @step
    async def t(self, state: Any, ctx: Context) -> Outcome[Any]:
        return Done(state)
