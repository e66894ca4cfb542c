"""Settings of Python's garbage collector for a process that only runs workers."""

from __future__ import annotations

import gc
from typing import Final

DEFAULT_THRESHOLD: Final = 700  # of CPython up to 3.13
LATER_DEFAULT_THRESHOLD: Final = 2000
WORKER_THRESHOLDS: Final = (50_000, 20, 50)


def tune_garbage_collector() -> None:
    """Make garbage collections rarer and cheaper; `gen-durable worker` does this.

    Call it after your imports in a program that is mainly a worker. A claim makes hundreds of objects and frees them
    without the collector, which yet looks for cycles among the rows in hand again and again, a tenth of a worker's
    processor time. What is alive now, such as modules, is left out of all later collections; objects that are freed
    without a cycle are not affected. A threshold that your code has set is kept.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold()[0] in (DEFAULT_THRESHOLD, LATER_DEFAULT_THRESHOLD):
        gc.set_threshold(*WORKER_THRESHOLDS)
