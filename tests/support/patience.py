# SPDX-License-Identifier: Apache-2.0
"""How long a test waits for what has to come. Deadlines of tests are there against hanging only: a slow or busy machine stretches them."""
import functools
import os
import time

FLOOR_S = 60  # no deadline is shorter on the fastest machine at rest
LOOP_S = 0.02  # what slowness() measures took on the machine that the limits were chosen on


@functools.cache
def slowness():
    """This processor against that machine's, at least 1; tests/run.py measures it once and hands it on."""
    given = os.environ.get("TITAN_TEST_SLOWNESS")
    if given:
        return float(given)
    best = 1e9
    for _ in range(5):
        begin = time.thread_time()
        sum(range(1000000))
        best = min(best, time.thread_time() - begin)
    return max(1.0, best / LOOP_S)


def patience():
    """What a deadline is multiplied by: the processor's slowness, and the processes that want to run for each processor."""
    return slowness() * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
