"""What measures still runs: each of it once, as small as it gets. Nothing is said here about speed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.bench.delaying_proxy import DelayingProxy
from tools.bench.scenarios import latency_model

ROOT = Path(__file__).parents[2]


def run(*arguments: str, may_judge: bool = False) -> str:
    """Run it on a server of its own; `may_judge`: 1 is a verdict that a run so short does not bear."""
    environment = {name: value for name, value in os.environ.items() if name != "GEN_DURABLE_TEST_DSN"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in ((0, 1) if may_judge else (0,)), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_benchmark(tmp_path: Path) -> None:
    """`make bench`: two of its scenarios, beside their ceilings."""
    file = tmp_path / "bench.json"
    run(
        "tools.bench", "--size", "small", "--scenario", "chain", "--scenario", "drain", "--no-plot", "--json", str(file)
    )
    rows = {row["name"]: row for row in json.loads(file.read_text())["results"]}
    for name in ("5-step chain", "history on, against off", "no-op jobs"):
        assert rows[name]["value"] > 0
        assert rows[name]["ratio"] > 0
    for name in ("5-step chain", "no-op jobs", "no-op jobs, 2 processes"):
        assert rows[name]["floor_ratio"] == pytest.approx(rows[name]["value"] / rows[name]["floor"])


@pytest.mark.long
def test_the_raw_floor_of_every_throughput_scenario(tmp_path: Path) -> None:
    """Each scenario of a rate of the engine has the fixed table beside it."""
    file = tmp_path / "bench.json"
    names = ("threads", "naps", "fanout", "inserts")
    chosen = [word for name in names for word in ("--scenario", name)]
    printed = run("tools.bench", "--size", "small", *chosen, "--no-plot", "--json", str(file))
    assert "of raw" in printed
    with_floor = {row["scenario"] for row in json.loads(file.read_text())["results"] if row["floor_ratio"]}
    assert with_floor == set(names)


@pytest.mark.long
def test_what_calls_cost_on_a_larger_table(tmp_path: Path) -> None:
    """`make bench-scale`, without its long reader."""
    file = tmp_path / "scale.json"
    small = ("--sizes", "2k", "--executing", "0", "--rounds", "1", "--reader", "0", "--obstacles", "0")
    assert "flush done" in run("tools.bench.scale", *small, "--no-plot", "--json", str(file))


@pytest.mark.long
def test_what_looking_costs() -> None:
    """`make bench-look`."""
    assert "metadata, none" in run("tools.bench.listing", "--rows", "10k", "--rounds", "1", may_judge=True)


@pytest.mark.long
def test_the_soak(tmp_path: Path) -> None:
    """`make soak`: all that is inserted ends, and the doctor finds nothing."""
    file = tmp_path / "soak.json"
    short = ("--hours", "0.001", "--peak-seconds", "1.5", "--workers", "1")
    run("tools.bench.soak", *short, "--no-plot", "--json", str(file), may_judge=True)
    found: dict[str, Any] = json.loads(file.read_text())
    verdict = {line["what"]: line for line in found["verdict"]}
    assert found["instances"] > 0
    for what in ("inserted, not ended", "ended badly", "findings of the doctor"):
        assert verdict[what]["good"], verdict[what]


@pytest.mark.long
def test_throughput_over_a_network(tmp_path: Path) -> None:
    """The latency model: a rate for each latency, and the round trips that fit them."""
    file = tmp_path / "bench.json"
    run("tools.bench", "--size", "small", "--scenario", "latency-model", "--no-plot", "--json", str(file))
    rows = {row["name"]: row for row in json.loads(file.read_text())["results"]}
    for latency in ("0", "1", "5"):
        assert rows[f"no-op jobs, default settings, +{latency} ms"]["value"] > 0
    assert rows["R of 5 ms jobs, nothing claimed ahead"]["unit"] == "round trips"


def test_the_fit_of_the_latency_model() -> None:
    """Rates that follow the model give back its numbers."""
    model = latency_model.Model(10, 1.5, 0.006)
    latencies = (0.0, 0.001, 0.005)
    found = latency_model.fit(10, latencies, [model.rate(latency) for latency in latencies])
    assert found.round_trips == pytest.approx(1.5)
    assert found.time == pytest.approx(0.006)


async def test_the_proxy_delays_without_limiting_the_throughput() -> None:
    """Each answer comes as late as the round trip, however many are under way."""

    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, DelayingProxy(f"postgresql://postgres@127.0.0.1:{port}/postgres", 0.2) as proxy:
        assert proxy.dsn == f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for n in range(10):
            writer.write(f"{n}\n".encode())
            await asyncio.sleep(0)
        assert [await reader.readline() for _ in range(10)] == [f"{n}\n".encode() for n in range(10)]
        assert 0.2 <= loop.time() - began < 1.0  # ten delays one after the other would take two seconds
        writer.close()
        await writer.wait_closed()
        await ended.wait()
        while proxy._writers:  # noqa: ASYNC110  # the proxy has no event for it
            await asyncio.sleep(0.01)
