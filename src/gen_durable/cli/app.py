"""The commands, gathered: `gen-durable --help` is the first page of the manual."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from gen_durable.cli.demo.command import demo
from gen_durable.cli.doctor import doctor
from gen_durable.cli.graph import graph
from gen_durable.cli.history import history
from gen_durable.cli.instance import cancel, retry, rm, signal
from gen_durable.cli.limits import limits
from gen_durable.cli.list import count, ls
from gen_durable.cli.migrate import migrate
from gen_durable.cli.show import show
from gen_durable.cli.worker import worker

app = typer.Typer(
    name="gen-durable",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a traceback of user code is the user's: shown plainly and whole
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:  # noqa: FBT001  # typer calls it by position
    if wanted:
        typer.echo(f"gen-durable {version('gen-durable')}")
        raise typer.Exit


_EPILOG = """
[bold]First[/bold]
  gen-durable demo                           see it work, with a kill -9 in it

[bold]Then[/bold]
  gen-durable migrate                        make the schema in your database
  gen-durable worker shop.main:worker        run your machines until SIGTERM
  gen-durable worker shop.main:worker -p 4   the same in four processes

[bold]Look[/bold]
  gen-durable ls --status failed             which have failed?
  gen-durable count --queue mail             how many?
  gen-durable show 42                        where is it, what does it wait for, what went wrong?
  gen-durable history 42                     what has it done?
  gen-durable signal 42 payment '{"n": 1}'   tell it something
  gen-durable cancel 42                      stop it, and all that it has started
  gen-durable retry 42                       let it go on from the step that failed
  gen-durable rm 42                          delete it

[bold]Now and then[/bold]
  gen-durable doctor                         does every invariant hold?
  gen-durable limits                         how full is each limit, and who waits?
  gen-durable graph shop.checkout:Checkout   which step can lead where

The database: --dsn, else DATABASE_URL, else a server in ./.gen_durable/
"""


@app.callback(epilog=_EPILOG)
def gen_durable(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Durable state machines on Postgres: an instance is a row, each step's outcome is committed before it goes on."""


app.command()(demo)
app.command()(migrate)
app.command()(worker)
app.command()(ls)
app.command()(count)
app.command()(show)
app.command()(history)
app.command()(signal)
app.command()(cancel)
app.command()(retry)
app.command()(rm)
app.command()(doctor)
app.command()(graph)
app.add_typer(limits, name="limits")
