"""Retention: store what machines declare, for the garbage collectors of all workers."""

from __future__ import annotations

from collections.abc import Mapping

from gen_durable.core.services import Services
from gen_durable.retention import Retention


async def declare_retentions(services: Services, retentions: Mapping[str, Retention | None]) -> None:
    """Store the retention of each machine; None for a machine that declares none."""
    if retentions:
        statement = services.retention_statements.declare_retentions(retentions)
        await services.engine_statement_runner.run(statement, "retention", may_run_twice=True)
