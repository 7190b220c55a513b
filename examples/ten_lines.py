# ruff: noqa: D100, D103 - README.md shows the lines below
import time

import tachograph


@tachograph.prof
def train_step(step: int) -> None:
    time.sleep(0.01)
    tachograph.put_metric("loss", 1 / (step + 1), "training")


with tachograph.start() as pipeline:
    for step in range(200):
        train_step(step)
    print("recorded:", pipeline.metrics_url)
