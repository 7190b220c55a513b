"""The costs of ``tachograph.Metric`` and ``tachograph.progress``: ``python bench/metric.py``.

A value that is held back is measured beside an OpenTelemetry gauge, one that is kept beside TensorBoard's
``add_scalar``, an item of ``progress`` beside one of tqdm's, drawing to the null device. The measured time includes
draining the journal, as a pipeline does it.
"""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from collections.abc import Callable
from time import process_time
from typing import Any

from race import Goal, Side, finish, medians, report

CALLS = 16 * 1024
KEPT = 2048
REPETITIONS = 31
NANOSECONDS = 200.0  # on a machine where a gauge of OpenTelemetry takes no more than twenty times as long

_numbers = random.Random(7)
VALUES = [_numbers.lognormvariate(-3, 1.5) for _ in range(CALLS)]
RISING = [number * 0.25 for number in range(CALLS)]


def recording(
    record: Callable[..., Any], calls: int, after: Callable[[], object] = bool, values: list[float] = VALUES
) -> Side:
    """Return a side that records each value at its step."""
    pairs = list(enumerate(values[:calls]))

    def side() -> None:
        for step, value in pairs:
            record(value, at=step)
        after()

    return side


def held_back() -> list[Goal]:
    """Measure a throttled record, nearly all of which are held back."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    import tachograph
    from tachograph.recording import journal

    gauge = MeterProvider([InMemoryMetricReader()]).get_meter("bench").create_gauge("loss")
    metric = tachograph.Metric("bench.held")
    task_metric = tachograph.Metric("bench.task")
    values = VALUES

    def theirs() -> None:
        for value in values:
            gauge.set(value)

    def without_at() -> None:
        for value in values:
            timed.record(value)

    rising = tachograph.Metric("bench.rising")
    timed = tachograph.Metric("bench.timed")
    sides = {
        "gauge": theirs,
        "held": recording(metric.record, CALLS, journal.default.drain),
        "rising": recording(rising.record, CALLS, journal.default.drain, RISING),
        "timed": without_at,
        "task": tachograph.task(recording(task_metric.record, CALLS, journal.default.drain)),
    }
    cost = medians(sides, calls=CALLS, repetitions=REPETITIONS)
    allowed = max(NANOSECONDS, cost["gauge"] / 20)
    return [
        Goal("record, held back", cost["held"], allowed, 1),
        Goal("record, held back, each value the largest so far", cost["rising"], allowed, 1),
        Goal("record without at, held back", cost["timed"], allowed, 1),
        Goal("record in a task, held back", cost["task"], allowed, 1),
        Goal("record, held back / OpenTelemetry's gauge", cost["held"], cost["gauge"], 1),
    ]


def kept() -> list[Goal]:
    """Measure a record of which each value becomes a point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's own
        from torch.utils.tensorboard import SummaryWriter

    import tachograph
    from tachograph.recording import journal

    metric = tachograph.Metric("bench.kept", throttle=None)
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:

        def add(value: float, at: int) -> None:
            writer.add_scalar("bench", value, at)

        sides = {
            "theirs": recording(add, KEPT, writer.flush),  # as ours is drained: another thread writes
            "ours": recording(metric.record, KEPT, journal.default.drain),
        }
        cost = medians(sides, calls=KEPT, repetitions=REPETITIONS, clock=process_time)
    return [Goal("record, kept, and drained / add_scalar", cost["ours"], cost["theirs"], 0.1)]


def items() -> list[Goal]:
    """Measure an item of a loop that does nothing."""
    from tqdm import tqdm

    import tachograph
    from tachograph.metric import _progress as loop
    from tachograph.recording import journal

    with open(os.devnull, "w") as null:  # noqa: PTH123 - a device
        bars = loop.TerminalBar
        loop.on_terminal = lambda: True
        loop.TerminalBar = lambda *args, **options: bars(*args, **options, file=null)  # type: ignore[misc]
        numbers = range(CALLS)

        def theirs() -> None:
            for _ in tqdm(numbers, file=null):
                pass

        def ours() -> None:
            for _ in tachograph.progress(numbers, "bench"):
                pass

        sides = {"theirs": theirs, "ours": ours, "drain": journal.default.drain}
        cost = medians(sides, calls=CALLS, repetitions=REPETITIONS)
    return [Goal("progress / tqdm, an item", cost["ours"], cost["theirs"], 1.5)]


def main() -> None:
    """Measure, print and judge."""
    finish(report("Metric and progress", [*held_back(), *kept(), *items()]))


if __name__ == "__main__":
    main()
