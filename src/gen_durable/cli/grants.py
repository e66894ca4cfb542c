"""`gen-durable grant`, `revoke` and `grants`: what single logins may insert, and how much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from gen_durable.cli.console import (
    exit_on_expected_errors,
    exit_with_error,
    exit_with_message,
    make_escaped_text,
    new_result_console,
    print_json,
    print_line,
    print_message,
)
from gen_durable.cli.database_opener import open_database
from gen_durable.cli.shared_options import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.tables import new_borderless_table
from gen_durable.errors import NotFound
from gen_durable.pg import login_grants
from gen_durable.pg.login_grants import Grant, LoginGrants, Quota
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.validation import check_name, check_text_key

T = TypeVar("T")


class InsertRole(StrEnum):
    """The roles that a grant can restrict."""

    PRODUCER = "producer"
    CLIENT = "client"


RoleArgument = Annotated[InsertRole, typer.Argument(metavar="ROLE", help="producer or client.", show_default=False)]
LoginArgument = Annotated[str, typer.Argument(metavar="LOGIN", help="The Postgres login of a service.")]
MachineOption = Annotated[
    str | None, typer.Option("--machine", metavar="NAME", show_default=False, help="Only this machine or job.")
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", show_default=False, help="Only this queue.")
]

PartitionPrefixOption = Annotated[
    str | None,
    typer.Option(
        "--partition-prefix",
        metavar="TEXT",
        show_default=False,
        help="Only partition keys that begin with TEXT, so that it cannot hold up the keys of others.",
    ),
]


@exit_on_expected_errors
def grant(
    role: RoleArgument,
    login: LoginArgument,
    *,
    machine: MachineOption = None,
    queue: QueueOption = None,
    max_priority: int | None = typer.Option(
        None,
        metavar="N",
        show_default=False,
        help="Nothing more urgent than N: lower numbers run earlier, and are refused.",
    ),
    partition_prefix: PartitionPrefixOption = None,
    max_live: int | None = typer.Option(
        None, metavar="N", show_default=False, help="The most live instances of this login."
    ),
    max_inserts_per_second: float | None = typer.Option(
        None,
        metavar="N",
        show_default=False,
        help="The most inserts of this login per second, and at once after an idle time.",
    ),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Grant a role to a login, restricted to a machine, a queue or a priority, with quotas.

    Without options the login gets the role, and may insert everything. With
    --machine, --queue, --max-priority or --partition-prefix it may insert only
    that; several grants are alternatives, and the same machine and queue again
    replaces its priority and prefix.
    Quotas hold for all inserts of the login. Signals and cancels are not
    restricted.

    gen-durable grant producer shop --machine Checkout --queue checkout --max-priority 0
    gen-durable grant producer shop --max-live 10000 --max-inserts-per-second 50

    Run it as the login that migrates. Needs the roles of migrate --roles.
    """
    _check_range(max_priority, "--max-priority", -32768, 32767)
    _check_range(max_live, "--max-live", 1, 1_000_000)
    _check_range(max_inserts_per_second, "--max-inserts-per-second", 0.001, 1_000_000)
    prefix = None if partition_prefix is None else check_text_key(partition_prefix, "--partition-prefix")
    names = _check_optional_name(machine, "--machine"), _check_optional_name(queue, "--queue")
    wanted = Grant(*names, max_priority, prefix)
    quota, checked = Quota(max_live, max_inserts_per_second), Schema(schema)
    granted = _run_with_connection(
        dsn, lambda link: login_grants.grant_role(link, checked, role.value, login, grant=wanted, quota=quota)
    )
    _print_login_rights(granted)


@exit_on_expected_errors
def revoke(
    role: RoleArgument,
    login: LoginArgument,
    *,
    machine: MachineOption = None,
    queue: QueueOption = None,
    quotas: bool = typer.Option(False, "--quotas", help="Remove only the quotas of the login."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Revoke a role from a login, or one of its grants, or its quotas.

    Without options the login loses the role, its grants and its quotas. With
    --machine or --queue it loses the grant that names exactly these; with the
    last one it loses the role, too: a login without grants may insert everything.

    gen-durable revoke producer shop --machine Checkout --queue checkout
    gen-durable revoke producer shop

    Exit code 1: there is no such login or grant.
    """
    checked = Schema(schema)
    named = Grant(_check_optional_name(machine, "--machine"), _check_optional_name(queue, "--queue"))
    if quotas:
        if not named.is_unrestricted:
            exit_with_message("--quotas goes without --machine and --queue: quotas hold for all inserts of the login.")
        left = _run_with_connection(dsn, lambda link: login_grants.remove_quotas(link, checked, login))
    elif named.is_unrestricted:
        left = _run_with_connection(dsn, lambda link: login_grants.revoke_role(link, checked, role.value, login))
    else:
        left = _run_with_connection(
            dsn, lambda link: login_grants.revoke_insert_grant(link, checked, role.value, login, named)
        )
    _print_login_rights(left)


@exit_on_expected_errors
def grants(
    *,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: bool = typer.Option(False, "--json", help="Print the grants as JSON."),
) -> None:
    """List the logins with grants or quotas.

    A login that is not listed has all rights of its role.
    """
    checked = Schema(schema)
    found = _run_with_connection(dsn, lambda link: login_grants.list_grants(link, checked))
    if as_json:
        print_json([asdict(login) for login in found])
    elif not found:
        print_message("no login is restricted: each has all rights of its role. `gen-durable grant --help` says how.")
    else:
        console = new_result_console()
        console.print(_grants_table(found))
        for login in found:
            if login.problem is not None:
                console.print(make_escaped_text(f"{login.login}: {login.problem}", "yellow"))


def _check_optional_name(name: str | None, option: str) -> str | None:
    return None if name is None else check_name(name, option)


def _check_range(value: float | None, option: str, least: float, most: float) -> None:
    """Checked here, because typer would print the range beside the option and cut the name of a long one."""
    if value is not None and not least <= value <= most:
        exit_with_message(f"{option} must be from {least:,} to {most:,}, got {value}.")


def _run_with_connection(dsn: str | None, operation: Callable[[PersistentConnection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_database(dsn) as database:
            try:
                return await operation(database.connection)
            except NotFound as error:
                exit_with_error(error, 1)

    return asyncio.run(run())


def _print_login_rights(login: LoginGrants) -> None:
    """Print all that a login may do now, not only what has changed."""
    if not any(role in login.roles for role in InsertRole):
        print_line(f"{login.login}: may insert nothing")
        return
    print_line(f"{login.login}: has the role {' and '.join(role for role in InsertRole if role in login.roles)}")
    for one in login.grants:
        print_line(f"{login.login}: may insert {one}")
    if not login.grants:
        print_line(f"{login.login}: may insert {Grant()}")
    if login.quota.max_live is not None:
        print_line(f"{login.login}: may have {login.quota.max_live:,} live instances")
    if login.quota.inserts_per_second is not None:
        print_line(f"{login.login}: may insert {login.quota.inserts_per_second:g} instances a second")


def _grants_table(found: list[LoginGrants]) -> Table:
    table = new_borderless_table()
    has_prefixes = any(one.partition_prefix is not None for login in found for one in login.grants)
    keys = ("keys",) if has_prefixes else ()  # most have none, and a terminal of 80 columns has no space for it
    for head in ("login", "role", "machine", "queue", "priority", *keys, "live", "per second"):
        table.add_column(head, no_wrap=True)
    for login in found:
        live, rate = login.quota.max_live, login.quota.inserts_per_second
        first = True
        for one in login.grants or (Grant(),):
            table.add_row(
                login.login if first else "",
                ", ".join(login.roles) if first else "",
                one.machine or make_escaped_text("any", "dim"),
                one.queue or make_escaped_text("any", "dim"),
                make_escaped_text("any", "dim") if one.most_urgent is None else f"from {one.most_urgent}",
                *((make_escaped_text(f"{one.partition_prefix or ''}..."),) if has_prefixes else ()),
                "" if live is None or not first else f"{live:,}",
                "" if rate is None or not first else f"{rate:g}",
            )
            first = False
    return table
