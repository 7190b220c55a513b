"""A job that records something of each kind, for the dashboards: torchrun starts it on two processes, without DDP.

It goes on until the file exists that its argument names, so that counters go up while Prometheus looks.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import tachograph
from tachograph import MetricGroup, MetricScale, hardware
from tachograph.monitor import Aggregation, Stat
from tachograph.recording import registry

STEPS = 100_000
RANK = int(os.environ.get("RANK", "0"))
HOSTILE = 'lo\\ss "{rank}" $rank {{dl_rank}} [[rank]] <b>🦀</b> ../; DROP TABLE'


class Broken(tachograph.elastic.MetricHandler):
    """A handler that cannot take anything."""

    def emit(self, metric_data: tachograph.elastic.MetricData) -> None:
        """Fail."""
        raise ValueError(metric_data)


@tachograph.prof
def step(number: int) -> None:
    """Take a while, and fail at times."""
    time.sleep(0.02 * (1 + RANK))
    if number % 10 == 9:
        raise ValueError(number)


class Curves:
    """Metrics with groups and scales, with a progress bar, alone, of NaN, and with a name that might do harm."""

    def __init__(self) -> None:
        epochs = MetricGroup("training", units="epoch", lower=0, upper=10)
        percent = MetricScale("quality", units="%", lower=0, upper=100)
        self.accuracy = tachograph.Metric("accuracy", group=epochs, scale=percent)
        self.recall = tachograph.Metric("recall", group="training", scale="quality")
        self.loss = tachograph.Metric("loss", group="training", scale=MetricScale("loss", lower=0))
        self.bytes = tachograph.Metric("throughput", group="training", scale=MetricScale(units="By/s"))
        self.warm_up = tachograph.Metric(
            "warm-up", group="training", scale=MetricScale(progress=True, lower=0, upper=4)
        )
        self.heat = tachograph.Metric("heat", scale=MetricScale(units="Cel"))
        self.load = tachograph.Metric("load_ms")
        self.nan = tachograph.Metric("sometimes nan")
        scale = MetricScale(HOSTILE, units=HOSTILE)
        self.hostile = tachograph.Metric(HOSTILE, group=MetricGroup(HOSTILE, units=HOSTILE), scale=scale)

    def record(self, number: int) -> None:
        """Record a value of each."""
        at = min(number / 100, 10.0)
        self.accuracy.record(min(number, 99), at=at)
        self.recall.record(min(number, 90), at=at)
        self.loss.record(1 / (1 + number), at=at)
        self.bytes.record(1e6 + number)
        self.warm_up.record(min(number, 4))
        self.heat.record(20 + RANK)
        self.load.record(20)
        self.nan.record(float("nan") if number % 7 == 0 else number)
        self.hostile.record(number)


def main(stop: Path) -> None:
    """Record until the file is there."""
    hardware.observe(registry.default, node=RANK == 0, process=True)
    tachograph.configure(Broken(), "broken")
    curves = Curves()
    waits = Stat("wait", (Aggregation.MEAN, Aggregation.MAX), timedelta(seconds=1))
    for number in tachograph.progress(range(STEPS), "steps", group="training"):
        with suppress(ValueError):
            step(number)
        curves.record(number)
        waits.add(number)
        tachograph.put_metric("step.duration.ms", 20.0 * (1 + RANK), "train")
        tachograph.put_metric("samples.success", 1, "train")
        tachograph.put_metric("no number", "text", "train")
        tachograph.put_metric("anything", 1, "broken")
        for _ in tachograph.progress(iter(range(2)), "inner"):
            pass
        if stop.exists():
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
