"""The cost of recording one value, beside torch.monitor, torchelastic, prometheus_client and the OpenTelemetry SDK.

The values are log-normal; the cost of a distribution includes its folds. Run it as ``python bench/recording.py``.
Without NumPy (measured in a process of its own) nothing gates: torch programs have imported it.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from race import Goal, Side, finish, medians, report

CALLS = 16 * 1024
REPETITIONS = 61
ATTRIBUTES = {"model": "resnet", "phase": "train", "device": "cpu"}

_numbers = random.Random(7)
VALUES = [_numbers.lognormvariate(-3, 1.5) for _ in range(CALLS)]


def each(record: Callable[[float], object]) -> Side:
    """Return a side that records every value."""

    def side() -> None:
        for value in VALUES:
            record(value)

    return side


def putting(put_metric: Callable[..., object], name: str, group: str) -> Side:
    """Return a side that records every value by name."""

    def side() -> None:
        for value in VALUES:
            put_metric(name, value, group)

    return side


def sdk_histogram() -> Side:
    """Return a side that records into the SDK's histogram with three attributes."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    provider = MeterProvider(metric_readers=[InMemoryMetricReader()], shutdown_on_exit=False)
    record = provider.get_meter("bench").create_histogram("latency").record

    def side() -> None:
        for value in VALUES:
            record(value, ATTRIBUTES)

    return side


def ours() -> dict[str, Side]:
    """Return our sides."""
    import tachograph
    from tachograph.recording.registry import Registry

    seconds = tachograph.declare("bench.bound", group="bench", kind="histogram", unit="s")
    tachograph.declare("bench.put", group="bench", kind="histogram", unit="s")
    counting = Registry()
    counting.intervals.open()
    counted = counting.group("bench").declare("bench", kind="histogram", unit="s", description="", boundaries=None)
    return {
        "bound": each(seconds.bind(phase="train")),
        "counted": each(counted.bind(phase="train")),
        "gauge": putting(tachograph.put_metric, "bench.gauge", "bench"),
        "distribution": putting(tachograph.put_metric, "bench.put", "bench"),
    }


def theirs() -> dict[str, Side]:
    """Return the others' sides; importing torch imports NumPy."""
    from datetime import timedelta

    import prometheus_client
    import torch.distributed.elastic.metrics as torchelastic
    from torch.monitor import Aggregation, Stat

    aggregations = [Aggregation.SUM, Aggregation.COUNT, Aggregation.MIN, Aggregation.MAX]
    stat: Any = Stat("bench", aggregations, timedelta(hours=1))
    histogram = prometheus_client.Histogram(
        "bench_seconds", "Bench.", ["phase"], registry=prometheus_client.CollectorRegistry()
    ).labels("train")
    torchelastic.configure(torchelastic.NullMetricHandler())
    return {
        "stat": each(stat.add),
        "prometheus": each(histogram.observe),
        "torchelastic": putting(torchelastic.put_metric, "bench", "bench"),
        "sdk": sdk_histogram(),
    }


def kibibytes(make: Callable[[int], object], count: int) -> float:
    """Return the KiB that each of ``count`` objects keeps."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for index in range(count):
        make(index)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count / 1024


def memory() -> list[Goal]:
    """Measure the memory of a gauge series, and of a distribution after many values."""
    import tachograph

    gauge = tachograph.declare("bench.memory.gauge", group="bench")

    def hot(index: int) -> None:
        record = tachograph.declare(f"bench.memory.{index}", group="bench", kind="histogram", unit="s").bind()
        for value in VALUES:
            record(value * 1.0000001)

    return [
        Goal("a gauge series (KiB)", kibibytes(lambda i: gauge.record(0.5 + i, {"rank": i}), 1000), 1.5, 1, ""),
        Goal("a hot distribution (KiB)", kibibytes(hot, 20), 200, 1, ""),
    ]


def without_numpy() -> None:
    """Measure our sides alone, in a process that has not imported NumPy, and print them as one line."""
    sides = ours() | {"sdk": sdk_histogram()}
    found = medians(sides, calls=CALLS, repetitions=REPETITIONS)
    if "numpy" in sys.modules:
        raise SystemExit("something has imported NumPy")
    print("without NumPy: " + ", ".join(f"{name} {nanoseconds:.0f} ns" for name, nanoseconds in found.items()))


def main() -> None:
    """Measure, print and judge."""
    found = medians(theirs() | ours(), calls=CALLS, repetitions=REPETITIONS)
    goals = [
        Goal("bound distribution / torch.monitor.Stat.add", found["bound"], found["stat"], 0.7),
        Goal("bound distribution for our own hub / for others", found["counted"], found["bound"], 1.04),
        Goal("bound distribution / prometheus_client bound observe", found["bound"], found["prometheus"], 1 / 5),
        Goal("put_metric, gauge / torchelastic put_metric, Null", found["gauge"], found["torchelastic"], 0.4),
        Goal("put_metric, distribution / torchelastic's, Null", found["distribution"], found["torchelastic"], 0.6),
        Goal("put_metric, gauge / SDK histogram, 3 attributes", found["gauge"], found["sdk"], 1 / 20),
        Goal("put_metric, distribution / SDK histogram, 3 attributes", found["distribution"], found["sdk"], 1 / 20),
    ]
    kept = report("Recording one value, NumPy imported", goals)
    kept_memory = report("Memory", memory())
    print(f"calibration: one SDK histogram record with three attributes takes {found['sdk']:.0f} ns here")
    subprocess.run([sys.executable, __file__, "--without-numpy"], check=True)  # noqa: S603 - this very file
    finish(kept, kept_memory)


if __name__ == "__main__":
    if "--without-numpy" in sys.argv:
        without_numpy()
    else:
        main()
