"""`gen-durable worker`: run the Worker of a user's module."""

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
from collections.abc import Callable, Coroutine
from datetime import timedelta
from enum import StrEnum
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from gen_durable.cli.console import exit_on_expected_errors, exit_with_error
from gen_durable.cli.object_importer import import_object
from gen_durable.cli.process_supervisor import supervise_processes
from gen_durable.core.services import services_of
from gen_durable.durations import parse_duration
from gen_durable.errors import ConfigError, GenDurableError
from gen_durable.garbage_collection import tune_garbage_collector
from gen_durable.worker import Worker

MAX_CRASHES = 10
EXIT_SECONDS = 2.0
_FORMAT = "%(asctime)s.%(msecs)03d [%(process)d] %(levelname)-7s %(name)s: %(message)s"


class LogLevel(StrEnum):
    """The choices of --log-level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME",
        help="A Worker, or a function without arguments (async or not) that returns one. "
        "The module may be in the working directory.",
    ),
]
EmbeddedOption = Annotated[
    bool,
    typer.Option(
        "--embedded",
        help="Start the embedded server if neither your Durable nor DATABASE_URL names a database. "
        "Without a terminal this is needed.",
    ),
]


@exit_on_expected_errors
def worker(
    target: TargetArgument,
    *,
    processes: int = typer.Option(
        1, "--processes", "-p", metavar="N", min=1, help="How many processes to run. One that dies is replaced."
    ),
    max_crashes: int | None = typer.Option(
        None,
        metavar="N",
        min=0,
        show_default=f"the Worker's own setting, else {MAX_CRASHES}",
        help="Fail an instance after this many executions that ended without an outcome. 0 means never.",
    ),
    drain_timeout: str | None = typer.Option(
        None,
        metavar="DURATION",
        show_default="the Worker's own setting",
        help="How long running steps may continue after SIGTERM: 30s, 5m.",
    ),
    log_level: Annotated[
        LogLevel,
        typer.Option(metavar="LEVEL", help="Show log lines from this level on: debug, info, warning or error."),
    ] = LogLevel.INFO,
    embedded: EmbeddedOption = False,
    supervised: bool = typer.Option(False, "--supervised", hidden=True),
) -> None:
    """Run your machines and jobs until SIGTERM or Ctrl-C.

    On the first signal the worker drains and exits with code 0; a second signal
    exits at once. The database is that of your Durable: Durable() uses
    DATABASE_URL, else, in a terminal or with --embedded, the embedded server.
    """
    logging.basicConfig(level=log_level.upper(), format=_FORMAT, datefmt="%H:%M:%S", stream=sys.stderr, force=True)
    drain = None if drain_timeout is None else parse_duration(drain_timeout)
    if processes > 1:
        command = _make_worker_process_command(target, max_crashes, drain_timeout, log_level, embedded=embedded)
        raise typer.Exit(asyncio.run(supervise_processes(command, processes)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, _raise_system_exit_on_signal
        )  # until the worker installs its own handlers: nothing is claimed before
    if supervised:
        _drain_when_parent_dies()
    may_embed = embedded or sys.stdin.isatty() or sys.stderr.isatty()
    factory = _import_worker_factory(target)
    _run_in_new_event_loop(_make_and_run_worker(factory, max_crashes, drain, may_embed=may_embed))
    _exit_if_threads_remain()


def _run_in_new_event_loop(running: Coroutine[Any, Any, None]) -> None:
    try:
        with asyncio.Runner(loop_factory=_find_uvloop_factory()) as runner:
            runner.run(running)
    except ConfigError:
        raise
    except GenDurableError as error:
        exit_with_error(error, 1)  # not a mistake of the command line, so a restart may help


def _exit_if_threads_remain() -> None:
    if any(t is not threading.main_thread() and not t.daemon and t.is_alive() for t in threading.enumerate()):
        _exit_without_joining_threads(0)


async def _make_and_run_worker(
    factory: Callable[[], Any], max_crashes: int | None, drain_timeout: timedelta | None, *, may_embed: bool
) -> None:
    worker = await _make_worker(factory)
    if services_of(worker).is_embedded_by_default and not may_embed:
        raise ConfigError(
            "No database: neither the Durable nor DATABASE_URL names one. Set DATABASE_URL or pass a DSN. To run on "
            "the embedded server in ./.gen_durable/, add --embedded."
        )
    _apply_options_to_worker(worker, max_crashes, drain_timeout)
    if worker.on_stuck_loop is None:
        worker.on_stuck_loop = _exit_because_loop_stuck
    tune_garbage_collector()
    await worker.run()


async def _make_worker(factory: Callable[[], Any]) -> Worker:
    built = factory()
    if inspect.isawaitable(built):
        built = await built
    if not isinstance(built, Worker):
        raise ConfigError(f"The function returned a {type(built).__name__}. It must return a Worker.")
    return built


def _apply_options_to_worker(worker: Worker, max_crashes: int | None, drain_timeout: timedelta | None) -> None:
    """Override the Worker's own options with those of the command. Without either, `max_crashes` is `MAX_CRASHES`."""
    options = worker.options
    if max_crashes is not None:
        options = dataclasses.replace(options, max_crashes=max_crashes or None)
    elif options.max_crashes is None:
        options = dataclasses.replace(options, max_crashes=MAX_CRASHES)
    if drain_timeout is not None:
        options = dataclasses.replace(options, drain_timeout=drain_timeout)
    worker.options = options


def _import_worker_factory(target: str) -> Callable[[], Any]:
    found = import_object(target)
    if isinstance(found, Worker):
        return lambda: found
    if found is Worker:
        raise ConfigError(f"{target} is the class Worker itself. Name a Worker, or a function that returns one.")
    if callable(found):
        if missing := _list_required_parameters(found):
            raise ConfigError(
                f"{target} needs arguments ({', '.join(missing)}). Name a Worker, or a function without arguments "
                "that returns one."
            )
        return found
    raise ConfigError(f"{target} is a {type(found).__name__}. Name a Worker, or a function that returns one.")


def _list_required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C without a signature
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in optional]


def _make_worker_process_command(
    target: str, max_crashes: int | None, drain_timeout: str | None, log_level: LogLevel, *, embedded: bool
) -> list[str]:
    command = [sys.executable, "-m", "gen_durable.cli", "worker", target, "--supervised", "--log-level", log_level]
    if embedded:
        command += ["--embedded"]
    if max_crashes is not None:
        command += ["--max-crashes", str(max_crashes)]
    if drain_timeout is not None:
        command += ["--drain-timeout", drain_timeout]
    return command


def _find_uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def _raise_system_exit_on_signal(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _exit_without_joining_threads(code: int) -> NoReturn:
    """Exit although a `def` step may still run in its thread: a normal exit would wait for it."""
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _exit_because_loop_stuck() -> None:
    """Exit so that the process is restarted. The stuck thread may hold the lock of a log handler or of stdout."""
    exiting = threading.Thread(target=_exit_without_joining_threads, args=(1,), daemon=True)
    exiting.start()
    exiting.join(EXIT_SECONDS)
    os._exit(1)


def _drain_when_parent_dies() -> None:
    """Drain when the supervisor dies: it holds the other end of this process's stdin."""

    def wait_for_parent() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_parent, name="gen_durable parent", daemon=True).start()
