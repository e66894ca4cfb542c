"""The command line application: every command, and the text of `gen-durable --help`."""

from __future__ import annotations

import os
from enum import StrEnum
from importlib.metadata import version
from typing import Annotated

import typer
import typer.rich_utils

from gen_durable.cli.change_instance import cancel, retry, rm, signal
from gen_durable.cli.console import EscapingCommandGroup, is_color_disabled, print_line
from gen_durable.cli.demo.command import demo
from gen_durable.cli.doctor import doctor
from gen_durable.cli.grants import grant, grants, revoke
from gen_durable.cli.graph import graph
from gen_durable.cli.history import history
from gen_durable.cli.limits import limits
from gen_durable.cli.list_and_count import count, ls
from gen_durable.cli.migrate import migrate
from gen_durable.cli.reencrypt import reencrypt
from gen_durable.cli.show import show
from gen_durable.cli.signals import signals
from gen_durable.cli.uninstall import uninstall
from gen_durable.cli.worker import worker
from gen_durable.pg.dsn import REQUIRE_TLS_VARIABLE

if is_color_disabled():
    typer.rich_utils.COLOR_SYSTEM = None

app = typer.Typer(
    name="gen-durable",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # `main` prints tracebacks
    cls=EscapingCommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:  # noqa: FBT001  # typer passes it by position
    if is_given:
        print_line(f"gen-durable {version('gen-durable')}")
        raise typer.Exit


_EPILOG = """
[bold]Try it[/bold]
  gen-durable demo                           run 40 orders, and kill a worker

[bold]Run[/bold]
  gen-durable migrate                        create or upgrade the schema
  gen-durable worker shop.main:worker        run your machines until SIGTERM
  gen-durable worker shop.main:worker -p 4   the same in four processes

[bold]Inspect and steer[/bold]
  gen-durable ls --status failed             list failed instances
  gen-durable count --queue mail             count the instances of a queue
  gen-durable show 42                        show its status and error
  gen-durable history 42                     show what it has done
  gen-durable signal 42 payment '{"n": 1}'   send it a signal
  gen-durable signals 42                     list its signals
  gen-durable cancel 42                      cancel it and its descendants
  gen-durable retry 42                       resume it where it failed
  gen-durable rm 42                          delete it

[bold]Maintain[/bold]
  gen-durable doctor                         check every invariant
  gen-durable limits                         show the use of each limit
  gen-durable grants                         list what single logins may insert
  gen-durable graph shop.checkout:Checkout   draw the steps of a machine
  gen-durable reencrypt                      encrypt payloads with the new key
  gen-durable uninstall                      remove the schema and its data

Database: --dsn, else DATABASE_URL, else an embedded server in ./.gen_durable/
"""


class RequireTlsMode(StrEnum):
    """The choices of --require-tls."""

    VERIFY_FULL = "verify-full"


@app.callback(epilog=_EPILOG)
def apply_global_options(
    context: typer.Context,
    *,
    require_tls: Annotated[
        RequireTlsMode | None,
        typer.Option(
            "--require-tls",
            envvar=REQUIRE_TLS_VARIABLE,
            metavar="MODE",
            show_default=False,
            help="Refuse to connect over a network without sslmode=verify-full, the only MODE.",
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable state machines on Postgres: an instance is a row, and the outcome of each step is committed."""
    if require_tls is not None:
        # In the environment it also reaches the Durable of a worker, and the processes that a command starts.
        former = os.environ.get(REQUIRE_TLS_VARIABLE)
        os.environ[REQUIRE_TLS_VARIABLE] = require_tls.value
        context.call_on_close(lambda: _restore_require_tls_variable(former))


def _restore_require_tls_variable(former: str | None) -> None:
    if former is None:
        os.environ.pop(REQUIRE_TLS_VARIABLE, None)
    else:
        os.environ[REQUIRE_TLS_VARIABLE] = former


app.command()(demo)
app.command()(migrate)
app.command()(worker)
app.command()(ls)
app.command()(count)
app.command()(show)
app.command()(history)
app.command()(signal)
app.command()(signals)
app.command()(cancel)
app.command()(retry)
app.command()(rm)
app.command()(doctor)
app.command()(grant)
app.command()(revoke)
app.command()(grants)
app.command()(graph)
app.command()(reencrypt)
app.command()(uninstall)
app.add_typer(limits, name="limits")
