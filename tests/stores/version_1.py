"""The job whose store is version-1.sql: ``tachograph run --run-id version-1 -- torchrun --nproc-per-node 2 FILE``."""

from __future__ import annotations

import contextlib
import math
import os
import time
from datetime import UTC, datetime, timedelta

from tachograph import Metric, MetricGroup, MetricScale, prof, progress, put_metric
from tachograph.logger import MetricsLogger
from tachograph.monitor import Aggregation, Event, Stat, log_event

rank = int(os.environ.get("RANK", "0"))
train = MetricGroup("train", units="step", lower=0, upper=40)
loss = Metric("loss", group=train, scale=MetricScale("loss", units="nat", lower=0), throttle=None)
lr = Metric("lr")
accuracy = Metric("accuracy", group="validation", scale=MetricScale(units="%", lower=0, upper=100))
load = Stat("load", [Aggregation.MEAN, Aggregation.MAX], timedelta(seconds=1))
logger = MetricsLogger(group="vision", role="trainer")


@prof
def step(number: int) -> None:
    """Take a while."""
    time.sleep(0.01)
    if number == 30:
        raise ValueError("planned")


for number in progress(range(40), key="epoch"):
    value = 2 * math.exp(-number / 20) + rank / 10
    loss.record(math.nan if number == 13 else 50.0 if number == 31 else value, at=number)
    lr.record(1e-3 / (number + 1))
    put_metric("grad.norm", value * 3, "train")
    put_metric("fetch_ms", 4 + number % 3, "train")
    put_metric("batch.success", 1, "train")
    load.add(number)
    with contextlib.suppress(ValueError):
        step(number)
    if number % 10 == 0:
        accuracy.record(number, at=number // 10)
        logger.log("epoch", {"phase": "train"}, {"loss": value, "epoch": number // 10})
        log_event(Event("checkpoint", datetime.now(UTC), {"epoch": number // 10, "path": "/ckpt"}))
time.sleep(1.2)
load.add(1)
