"""`gen-durable doctor`: check every invariant of the engine in the database."""

from __future__ import annotations

import asyncio

import typer
from rich.console import Console
from rich.text import Text

from gen_durable.cli.console import exit_on_expected_errors, make_escaped_text, new_result_console, print_json
from gen_durable.cli.database_opener import open_database
from gen_durable.cli.shared_options import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.tables import join_lines_into_cell, new_borderless_table
from gen_durable.invariant_checker import Advice, Finding, Violation, check_roles, diagnose, find_owner_members
from gen_durable.pg.migrate import check_schema_version
from gen_durable.store.schema import Schema

SHOWN = 5


@exit_on_expected_errors
def doctor(
    *,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Check every invariant of the engine and, with roles, owners and rights.

    With roles, it also advises on logins with the rights of the owner, which
    does not change the exit code. Each check is a query that only reads: safe on a busy production database.

    Exit code 0: all hold. 1: a row violates one. 2: the database is unreachable
    or not migrated.
    """
    location, findings, advice = asyncio.run(_run_invariant_and_role_checks(dsn, Schema(schema)))
    if as_json:
        print_json([*map(_finding_json_fields, findings), *map(_advice_json_fields, advice)])
    else:
        console = new_result_console()
        print_findings(findings, console, f"schema {schema}, {location}")
        print_advice(advice, console)
    if not all(finding.is_clean for finding in findings):
        raise typer.Exit(1)


async def _run_invariant_and_role_checks(dsn: str | None, schema: Schema) -> tuple[str, list[Finding], list[Advice]]:
    async with open_database(dsn) as database:
        await check_schema_version(database.connection, schema)
        findings = await diagnose(database.connection, schema)
        roles = await check_roles(database.connection, schema)
        advice = await find_owner_members(database.connection, schema)
        all_findings = findings if roles is None else [*findings, roles]
        return database.location, all_findings, [] if advice is None else [advice]


def print_findings(findings: list[Finding], console: Console, location: str) -> None:
    """Print the findings as a table, and a summary line."""
    table = new_borderless_table()
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("problem")
    for finding in findings:
        if finding.is_clean:
            table.add_row(finding.check, make_escaped_text("ok", "green"), "")
        else:
            rows = "row" if finding.count == 1 else "rows"
            table.add_row(
                finding.check, make_escaped_text(f"{finding.count} {rows}", "bold red"), _finding_details(finding)
            )
    console.print(table)
    broken = sum(not finding.is_clean for finding in findings)
    console.print()
    if broken:
        console.print(
            make_escaped_text(f"{broken} of {len(findings)} checks found violations ({location})", "bold red")
        )
    else:
        console.print(make_escaped_text(f"all {len(findings)} checks are clean ({location})", "green"))


def print_advice(advice: list[Advice], console: Console) -> None:
    """Print what is no violation, below the summary."""
    for one in advice:
        console.print()
        console.print(make_escaped_text(f"advice: {one.meaning}", "yellow"))
        for line in one.lines:
            console.print(make_escaped_text(f"  {line}"))


def _finding_details(finding: Finding) -> Text:
    lines = [make_escaped_text(finding.meaning)]
    lines += [make_escaped_text(f"  {_describe_violation(finding, one)}", "yellow") for one in finding.first[:SHOWN]]
    if finding.count > SHOWN:
        lines.append(make_escaped_text(f"  and {finding.count - SHOWN} more (--json shows up to 20)", "dim"))
    return join_lines_into_cell(lines)


def _describe_violation(finding: Finding, violation: Violation) -> str:
    return (
        violation.problem
        if violation.id is None
        else f"{finding.violation_id_kind} {violation.id}: {violation.problem}"
    )


def _advice_json_fields(advice: Advice) -> dict[str, object]:
    return {
        "check": advice.about,
        "clean": True,
        "meaning": advice.meaning,
        "count": 0,
        "rows": [],
        "advice": list(advice.lines),
    }


def _finding_json_fields(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "clean": finding.is_clean,
        "meaning": finding.meaning,
        "count": finding.count,
        "rows": [{"id": violation.id, "problem": violation.problem} for violation in finding.first],
    }
