"""`gen-durable worker`: run the worker that a module of the user makes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from gen_durable.cli.console import fail, plainly
from gen_durable.cli.load import load
from gen_durable.cli.supervise import supervise
from gen_durable.errors import ConfigError, GenDurableError
from gen_durable.worker import Worker

MAX_CRASHES = 10
_FORMAT = "%(asctime)s.%(msecs)03d [%(process)d] %(levelname)-7s %(name)s: %(message)s"


class LogLevel(StrEnum):
    """The levels of `logging` that make sense here."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@plainly
def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A Worker, or a function (async or not) without arguments that returns one. "
            "The working directory is searched for the module.",
        ),
    ],
    *,
    processes: int = typer.Option(1, "--processes", "-p", min=1, help="How many processes to run and keep running."),
    max_crashes: int | None = typer.Option(
        None,
        min=0,
        show_default=f"what the Worker says, else {MAX_CRASHES}",
        help="Fail an instance for good after so many executions that ended without an outcome. 0: never.",
    ),
    drain_timeout: float | None = typer.Option(
        None,
        min=0,
        metavar="SECONDS",
        show_default="what the Worker says",
        help="How long steps under way may go on after SIGTERM.",
    ),
    log_level: Annotated[LogLevel, typer.Option(help="The least level of log lines to show.")] = LogLevel.INFO,
    supervised: bool = typer.Option(False, "--supervised", hidden=True),
) -> None:
    """Run steps until SIGTERM or Ctrl-C; then drain and leave with exit code 0. A second signal leaves at once.

    The database is the one of your Durable: Durable() takes DATABASE_URL, else the embedded server.
    """
    logging.basicConfig(level=log_level.upper(), format=_FORMAT, datefmt="%H:%M:%S", stream=sys.stderr, force=True)
    if processes > 1:
        raise typer.Exit(
            asyncio.run(supervise(_same_command(target, max_crashes, drain_timeout, log_level), processes))
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)  # until the worker listens itself: nothing has been claimed yet
    if supervised:
        _end_with_parent()
    _run(_maker(target), max_crashes, drain_timeout)


def _run(make: Callable[[], Any], max_crashes: int | None, drain_timeout: float | None) -> None:
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_work(make, max_crashes, drain_timeout))
    except ConfigError:
        raise
    except GenDurableError as error:
        fail(str(error), 1)  # not the operator's words but the world: trying again may help
    if any(t is not threading.main_thread() and not t.daemon and t.is_alive() for t in threading.enumerate()):
        _leave_now(0)


async def _work(make: Callable[[], Any], max_crashes: int | None, drain_timeout: float | None) -> None:
    made = make()
    if inspect.isawaitable(made):
        made = await made
    if not isinstance(made, Worker):
        raise ConfigError(f"the function returned a {type(made).__name__}, and must return a Worker")
    options = made.options
    if max_crashes is not None:
        options = dataclasses.replace(options, max_crashes=max_crashes or None)
    elif options.max_crashes is None:
        options = dataclasses.replace(options, max_crashes=MAX_CRASHES)
    if drain_timeout is not None:
        options = dataclasses.replace(options, drain_timeout=timedelta(seconds=drain_timeout))
    made.options = options
    await made.run()


def _maker(target: str) -> Callable[[], Any]:
    found = load(target)
    if isinstance(found, Worker):
        return lambda: found
    if found is Worker:
        raise ConfigError(f"{target} is the class Worker itself: name a Worker, or a function that returns one")
    if callable(found):
        return found
    raise ConfigError(f"{target} is a {type(found).__name__}: name a Worker, or a function that returns one")


def _same_command(target: str, max_crashes: int | None, drain_timeout: float | None, log_level: LogLevel) -> list[str]:
    command = [sys.executable, "-m", "gen_durable.cli", "worker", target, "--supervised", "--log-level", log_level]
    if max_crashes is not None:
        command += ["--max-crashes", str(max_crashes)]
    if drain_timeout is not None:
        command += ["--drain-timeout", str(drain_timeout)]
    return command


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _leave_now(code: int) -> NoReturn:
    """End the process although a `def` step may still be running in its thread: the interpreter would wait for it."""
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    """Drain when the supervisor is gone, however it ended: it holds the other end of our stdin."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="gen_durable parent", daemon=True).start()
