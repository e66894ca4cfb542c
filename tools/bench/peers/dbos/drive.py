"""DBOS: workflows in a queue, and a chain as one workflow with five steps.

An end is counted when `update_workflow_outcome` has returned. The clock starts when the queue is first asked for work:
a queue that is registered while DBOS runs is noticed up to a second later.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dbos import DBOS
from dbos._dbos import _get_dbos_instance
from peer import CHAIN, WARM, DrainResult, read_task, report_rate, report_samples

QUEUE = "work"
SLOTS = 100
POLL = 0.01
POOL = 20
SETTINGS = (
    f"sync workflows, worker_concurrency {SLOTS}, polling_interval_sec {POLL} (default 1.0), sys_db_pool_size {POOL};"
    " latency without the queue, by start_workflow"
)


@DBOS.step()
def one() -> int:
    return 1


@DBOS.workflow()
def noop(number: int) -> int:
    return number


@DBOS.workflow()
def chain(number: int) -> int:
    for _ in range(CHAIN):
        one()
    return number


def main() -> None:
    task = read_task()
    DBOS(config={"name": "bench", "system_database_url": task.dsn, "sys_db_pool_size": POOL, "log_level": "ERROR"})
    DBOS.launch()
    match task.work:
        case "drain":
            report_rate(SETTINGS, count=task.count, seconds=drained(noop, task.count))
        case "chain":
            report_rate(SETTINGS, count=CHAIN * task.count, seconds=drained(chain, task.count))
        case "latency":
            report_samples(SETTINGS, latencies(task.count))
    DBOS.destroy()


def drained(workflow: Any, count: int) -> float:
    """Enqueue, then register the queue, and wait for the ends."""
    with ThreadPoolExecutor(POOL) as threads:
        for done in [threads.submit(DBOS.enqueue_workflow, QUEUE, workflow, number) for number in range(count)]:
            done.result()
    tally = DrainResult(count)
    store = _get_dbos_instance()._sys_db
    commit, dequeue = store.update_workflow_outcome, store.start_queued_workflows
    asked_before = False

    def committed(*arguments: Any, **named: Any) -> Any:
        found = commit(*arguments, **named)
        tally.add()
        return found

    def dequeued(queue: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal asked_before
        if queue.name == QUEUE and not asked_before:
            asked_before = True
            tally.start()
        return dequeue(queue, *arguments, **named)

    store.update_workflow_outcome = committed
    store.start_queued_workflows = dequeued
    DBOS.register_queue(QUEUE, worker_concurrency=SLOTS, polling_interval_sec=POLL)
    tally.full.wait()
    return tally.seconds


def latencies(count: int) -> list[float]:
    found: list[float] = []
    for number in range(WARM + count):
        time.sleep(random.uniform(0.005, 0.015))
        began = time.monotonic()
        DBOS.start_workflow(noop, number).get_result()
        found.append(time.monotonic() - began)
    return found[WARM:]


main()
