"""Machines of five steps: one claim for all steps (run-ahead), a claim per step, default settings, and with history."""

from __future__ import annotations

from dataclasses import replace

from gen_durable import Start
from tools.bench.raw_floor import CHAINS, floor_case
from tools.bench.result import Result
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import WORK, costs, drain_case, hot, rates
from tools.bench.work import CHAIN, Chain, Recorded

NAME = "chain"
BARE = "tools.bench.ceiling:chain"
STEPS = len(CHAIN)
MANY: dict[str, object] = {"queues": {"default": 200}}
PAIRS = 4
"""So many more rounds for what history costs: it is little beside the noise of a shared machine."""


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    start, count = Start(Chain.first, 1), size.chains
    runs = await run_in_rounds(
        size,
        progress,
        {
            "raw": floor_case(server, count, (CHAINS, {})),
            "bare": drain_case(server, start, count, (BARE, {"run_ahead": True})),
            "run-ahead": drain_case(server, start, count, (WORK, MANY)),
            "defaults": drain_case(server, start, count, (WORK, {})),
            "bare, a claim per step": drain_case(server, start, count, (BARE, {"run_ahead": False})),
            "a claim per step": drain_case(server, start, count, (WORK, MANY | {"run_ahead_steps": 0})),
        },
    )
    pairs = await run_in_rounds(
        replace(size, rounds=PAIRS * size.rounds if size.rounds > 1 else 1),  # one round is a smoke test
        progress,
        {
            "history off": drain_case(server, start, count, (WORK, MANY)),
            "history on": drain_case(server, Start(Recorded.first, 1), count, (WORK, MANY)),
        },
    )
    off, on = pairs["history off"], pairs["history on"]
    bare, raw, ahead = runs["bare"], runs["raw"], runs["run-ahead"]
    defaults = runs["defaults"]
    apart, bare_apart = runs["a claim per step"], runs["bare, a claim per step"]
    held = f"{STEPS - 1} of {STEPS + 1} updates can be: claim and end move the row in an index"
    return [
        rates(NAME, "5-step chain", "steps/s", ahead, bare, floors=raw, per=STEPS, note="one process, concurrency 200"),
        rates(NAME, "history on, against off", "steps/s", on, off, per=STEPS, note="in the place of bare: off"),
        rates(
            *(NAME, "5-step chain, default settings", "steps/s", defaults, bare),
            floors=raw,
            per=STEPS,
            note="concurrency 10",
        ),
        rates(
            *(NAME, "5-step chain, no run-ahead", "steps/s", apart, bare_apart),
            floors=raw,
            per=STEPS,
            note="a claim per step; raw: one claim for all steps",
        ),
        *costs(NAME, "step", ahead, bare, per=STEPS),
        *costs(NAME, "step with history", on, off, per=STEPS),
        hot(NAME, "a chain", ahead, bare, note=held),
    ]


SCENARIO = Scenario(NAME, "Chains of five steps", "steps/s", run)
