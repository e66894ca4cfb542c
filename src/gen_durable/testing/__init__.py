"""Test machines and jobs with the real SQL, step by step, with a clock that the test moves."""

from __future__ import annotations

from gen_durable.testing.assertions import ANYTHING, Anything, Target
from gen_durable.testing.drain_result import DrainResult, Execution, Runaway
from gen_durable.testing.harness import Harness, HarnessFactory
from gen_durable.testing.history_explorer import Sends, Starts, explore, sends, starts
from gen_durable.testing.instance_snapshot import Snapshot
from gen_durable.testing.step_contexts import child_done, child_failed, make_context, round_trip, sent
from gen_durable.testing.throw_away_schemas import throw_away_schema

__all__ = [
    "ANYTHING",
    "Anything",
    "DrainResult",
    "Execution",
    "Harness",
    "HarnessFactory",
    "Runaway",
    "Sends",
    "Snapshot",
    "Starts",
    "Target",
    "child_done",
    "child_failed",
    "explore",
    "make_context",
    "round_trip",
    "sends",
    "sent",
    "starts",
    "throw_away_schema",
]
