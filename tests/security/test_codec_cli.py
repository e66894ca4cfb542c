"""The command line and a codec: without it encrypted payloads are named as such, with it they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.security.test_codec import aes
from tests.support.canaries import CANARY, Secret, Waiter, burn, told
from tests.support.engine import Opening
from typer.testing import CliRunner, Result

from gen_durable import Finished
from gen_durable.cli.app import app

Run = Callable[..., Result]
CODEC = f"""
from gen_durable.contrib.aes import AesGcm
codec = AesGcm({{"k1": {aes()._keys["k1"]!r}}})
"""


@pytest.fixture
def run(dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "crypto_of_the_cli.py").write_text(CODEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def running(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--dsn", dsn, "--schema", schema])

    return running


def in_thread(run: Run, *words: str) -> Result:
    """Commands have event loops of their own."""
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(1) as one:
        return one.submit(run, *words).result()


async def test_show_ls_history_and_signal(engine: Opening, run: Run) -> None:
    async with engine(codec=aes()) as e, e.worker(burn, Waiter()):
        failed = await e.app.insert(burn, Secret(CANARY))
        await e.end(failed)
        for words in (["show", str(failed.id), "--state"], ["ls"], ["history", str(failed.id)]):
            without = in_thread(run, *words)
            assert without.exit_code == 0, without.output
            assert CANARY not in without.output
            assert "encrypted" in without.output
            read = in_thread(run, *words, "--codec", "crypto_of_the_cli:codec")
            assert read.exit_code == 0, read.output
            assert CANARY in read.output
            assert "encrypted" not in read.output
        told_json = json.loads(in_thread(run, "show", str(failed.id), "--state", "--json").stdout)
        assert told_json["state"].startswith("encrypted:1:")

        waiting = await e.app.insert(Waiter.wait, Secret("s"), unique_key="w")
        await e.rows.until(waiting, status="awaiting_signal")
        payload = json.dumps({"text": "by hand"})
        sent = in_thread(run, "signal", "--key", "w", told.name, payload, "--codec", "crypto_of_the_cli:codec")
        assert sent.exit_code == 0, sent.output
        assert await e.end(waiting) == Finished(waiting.id, "by hand/s")


def test_a_codec_that_is_none(run: Run) -> None:
    found = run("show", "1", "--codec", "json:dumps")
    assert found.exit_code == 2
    assert "codec must have encode and decode" in found.output
