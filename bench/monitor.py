"""The costs of ``tachograph.monitor``, beside the real ``torch.monitor``: ``python bench/monitor.py``.

``Stat.add`` includes its folds and the closing of its window, with six aggregations. Closing all windows at once is
measured in the CPU time of the process, and in the waits of a thread that releases the GIL and takes it again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from race import Goal, Side, finish, medians, report

CALLS = 16 * 1024
REPETITIONS = 61
STATS, VALUES = 10_000, 10
ROUNDS = 9

_numbers = random.Random(7)
LOG_NORMAL = [_numbers.lognormvariate(-3, 1.5) for _ in range(CALLS)]
CONSTANT = [0.25] * CALLS
HOUR = timedelta(hours=1)


def adding(stat: Any, values: list[float], close: Callable[[], object]) -> Side:
    """Return a side that adds every value, and closes the window."""

    def side() -> None:
        for value in values:
            stat.add(value)
        close()

    return side


def stats() -> list[Goal]:
    """Measure ``add``."""
    import torch.monitor as theirs

    from tachograph import monitor as ours
    from tachograph.monitor._event_log import EventLog
    from tachograph.monitor._windows import Windows
    from tachograph.recording.journal import Journal
    from tachograph.recording.registry import Registry

    registry = Registry()
    now = [time.time_ns()]
    windows = Windows(EventLog(Journal(registry), registry), registry, clock=lambda: now[0], threaded=False)

    def close() -> None:
        now[0] += 3600 * 10**9
        windows.tick()

    def pair(name: str, samples: int, values: list[float]) -> dict[str, Side]:
        six = ("VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN")
        their = theirs.Stat(name, [getattr(theirs, asked) for asked in six], HOUR, samples)
        our = ours.Stat(name, [getattr(ours, asked) for asked in six], HOUR, samples, windows=windows)
        return {"theirs": adding(their, values, lambda: None), "ours": adding(our, values, close)}

    found = []
    for what, samples, values, limit in (
        ("Stat.add, log-normal", 2**63 - 1, LOG_NORMAL, 0.7),
        ("Stat.add, constant", 2**63 - 1, CONSTANT, 0.6),
        ("Stat.add, max_samples not reached", 2**40, LOG_NORMAL, 0.9),
        ("Stat.add, max_samples reached at 1,000", 1000, LOG_NORMAL, 0.9),
    ):
        cost = medians(pair(what, samples, values), calls=CALLS, repetitions=REPETITIONS)
        found.append(Goal(f"{what} / torch.monitor", cost["ours"], cost["theirs"], limit))
    return found


def events() -> list[Goal]:
    """Measure ``log_event`` with one handler."""
    import torch.monitor as theirs

    from tachograph import monitor as ours

    data = {"step": 7, "loss": 0.25, "phase": "train"}

    def logging(module: Any) -> Side:
        event = module.Event("bench", datetime.now().astimezone(), data)
        log_event = module.log_event

        def side() -> None:
            for _ in range(1000):
                log_event(event)

        return side

    # As a running pipeline does: nothing piles up.
    from tachograph.recording import journal

    handles = [module.register_event_handler(lambda _: None) for module in (theirs, ours)]
    sides = {"theirs": logging(theirs), "ours": logging(ours), "drained": journal.default.drain}
    cost = medians(sides, calls=1000, repetitions=REPETITIONS)
    for module, handle in zip((theirs, ours), handles, strict=True):
        module.unregister_event_handler(handle)
    return [Goal("log_event, one handler / torch.monitor", cost["ours"], cost["theirs"], 2)]


def closing() -> list[Goal]:
    """Measure the cost of closing many windows at once, and the longest wait of another thread."""
    from tachograph import monitor as ours
    from tachograph.monitor._event_log import EventLog
    from tachograph.monitor._windows import Windows
    from tachograph.recording.journal import Journal
    from tachograph.recording.registry import Registry

    registry = Registry()
    journal = Journal(registry)
    now = [time.time_ns()]
    windows = Windows(EventLog(journal, registry), registry, clock=lambda: now[0], threaded=False)
    made = [
        ours.Stat(f"stat.{number}", [ours.MEAN, ours.COUNT, ours.SUM, ours.MAX, ours.MIN], HOUR, windows=windows)
        for number in range(STATS)
    ]
    cpu: list[float] = []
    waits: list[float] = []

    def fill() -> None:
        journal.drain()  # as a running pipeline does: nothing piles up
        for stat in made:
            for value in range(VALUES):
                stat.add(value * 0.25)
        now[0] += 3600 * 10**9

    def closer() -> None:
        start = time.thread_time()
        windows.tick()
        cpu.append((time.thread_time() - start) * 1e3)

    for _ in range(ROUNDS):
        fill()
        closer()
    for _ in range(ROUNDS):
        fill()
        thread = threading.Thread(target=closer)
        thread.start()
        while thread.is_alive():
            start = time.perf_counter()
            time.sleep(0)  # drops the interpreter and takes it again
            waits.append((time.perf_counter() - start) * 1e3)
    alone = sorted(cpu[:ROUNDS])[ROUNDS // 2]
    waits.sort()
    return [
        Goal(f"closing {STATS:,} Stats of {VALUES} values (ms of CPU)", alone, 50, 1, ""),
        Goal("waiting for the interpreter, 99th percentile (ms)", waits[len(waits) * 99 // 100], 2, 1, ""),
    ]


def main() -> None:
    """Measure, print and judge."""
    finish(report("torch.monitor", [*stats(), *events(), *closing()]))


if __name__ == "__main__":
    main()
