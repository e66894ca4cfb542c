"""`gen-durable reencrypt`: encrypt stored payloads again with the current key."""

from __future__ import annotations

import asyncio
import time

import typer

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import exit_on_expected_errors, exit_with_message, print_message
from gen_durable.cli.shared_options import SCHEMA, CodecOption, DsnOption, SchemaOption
from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.durations import parse_duration
from gen_durable.operations.reencrypt import ReencryptProgress
from gen_durable.operations.reencrypt import reencrypt as run_reencrypt

REPORT_SECONDS = 1.0


@exit_on_expected_errors
def reencrypt(
    *,
    codec: CodecOption = None,
    batch: int = typer.Option(50, "--batch", metavar="N", min=1, max=1000, help="Rows per statement."),
    patience: str = typer.Option(
        "60s", "--patience", metavar="DURATION", help="How long to come back to executing instances at the end."
    ),
    encrypt_clear: bool = typer.Option(
        False, "--encrypt-clear", help="Encrypt payloads in clear too: you vouch for all of them."
    ),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Encrypt all stored payloads again with the key that the codec writes with.

    Works beside running workers, in batches. A run that was stopped is started
    again: payloads with the current key are left as they are. Executing instances
    are left out, and visited again at the end.

    gen-durable reencrypt --codec shop.crypto:codec

    Exit code 1: some payloads could not be decrypted, are in clear, or belong to
    instances that still execute.
    """
    if codec is None:
        exit_with_message("reencrypt needs the codec of your payloads: --codec MODULE:NAME or GEN_DURABLE_CODEC")
    seconds = parse_duration(patience).total_seconds()

    async def run(app: Durable) -> ReencryptProgress:
        progress, reported = ReencryptProgress(), time.monotonic()
        async for progress in run_reencrypt(
            services_of(app), batch=batch, patience_seconds=seconds, encrypt_clear=encrypt_clear
        ):
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                print_message(f"{progress.table}: {progress.rows:,} rows read, {progress.written:,} payloads written")
        return progress

    _print_result_and_exit_if_incomplete(asyncio.run(run_with_client(dsn, schema, run, codec=codec)))


def _print_result_and_exit_if_incomplete(progress: ReencryptProgress) -> None:
    print_message(f"{progress.rows:,} rows read, {progress.written:,} payloads written")
    for problem in progress.problems:
        print_message(problem)
    if progress.unreadable:
        print_message(f"{progress.unreadable:,} payloads could not be decrypted, and are unchanged")
    if progress.in_clear:
        print_message(f"{progress.in_clear:,} payloads are in clear, and are unchanged")
    if progress.busy:
        print_message(f"{len(progress.busy):,} instances still execute. Run the command again when they have ended.")
    if progress.unreadable or progress.in_clear or progress.busy:
        raise typer.Exit(1)
