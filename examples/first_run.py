# ruff: noqa: D100, S311 - README.md shows the lines below
import random

import tachograph

tachograph.config({"lr": 0.1, "batch": 32})
loss = 1.0
for step in range(200):
    loss *= 0.98 + random.uniform(-0.02, 0.02)
    tachograph.log({"train/loss": loss}, step=step)
tachograph.summary({"final.loss": loss})
