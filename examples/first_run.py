# ruff: noqa: D100, S311 - README.md shows the lines below
import random
import time

import tachograph

tachograph.config({"lr": 0.1, "batch": 32})
loss = 1.0
for step in range(1000):
    loss *= 0.995 + random.uniform(-0.02, 0.02)
    tachograph.log({"train/loss": loss}, step=step)
    time.sleep(0.05)
tachograph.summary({"final.loss": loss})
