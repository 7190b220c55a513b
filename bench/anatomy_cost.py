"""The cost of the anatomy in place: short blocks of the same steps, each with it between two without it.

``python bench/anatomy_cost.py [--pairs N]``: steps of an MLP of about 0.6 ms, and of 50 ms; two minutes on a quiet
machine. Shown are the medians of the differences between a block and the mean of its two neighbours (both orders, and
what drifts is the same on both sides), with 95 % intervals by bootstrap: by the clock, of the blocks' median steps, and
in processor time of the training thread. Beside them stand the two neighbours against each other, which is the
machine's noise, and the processor time of the timer, which makes steps of the marks in its own thread. Judged is the
clock: the middle of the small step, the upper end of the large one.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from tachograph.diagnosis.anatomy_series import AnatomyOfSteps
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

SMALL_GOAL, LARGE_GOAL = 10.0, 0.003  # microseconds a step; share of the step
RESAMPLED = 2000
ALONE = 4.0  # seconds of steps for the timer's part


class Found(NamedTuple):
    """A block's step in microseconds: by the clock, the median; in processor time of the training thread, the mean."""

    clock: float
    processor: float


class Job:
    """A training whose blocks of steps are timed.

    Args:
        width: of the model.
        depth: its layers.
        batch: samples a step.
        steps: of a block.
        settle: steps before them that are not timed: the first one makes the lane, and methods that have been
            replaced, or put back, are slow until the interpreter has specialised their calls again.
    """

    def __init__(self, width: int, depth: int, batch: int, steps: int, settle: int) -> None:
        self.steps, self._settle = steps, settle
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.net = nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 10))
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        data = torch.utils.data.TensorDataset(torch.randn(batch * 64, 64), torch.randint(0, 10, (batch * 64,)))
        self.loader = torch.utils.data.DataLoader(data, batch_size=batch)
        self.batches = self.endless()

    def endless(self) -> Iterator[Any]:
        """Yield batches without an end."""
        while True:
            yield from self.loader

    def step(self) -> None:
        """Take a step."""
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()

    def block(self, *, look: bool) -> Found:
        """Time a block's steps."""
        registry = Registry()
        opened = AnatomyOfSteps(registry, Journal(registry)) if look else None
        for _ in range(self._settle):
            self.step()
        took, processor = [], time.thread_time_ns()
        for _ in range(self.steps):
            begun = time.perf_counter_ns()
            self.step()
            took.append(time.perf_counter_ns() - begun)
        processor = time.thread_time_ns() - processor
        if opened is not None:
            opened.close()
        return Found(statistics.median(took) / 1e3, processor / self.steps / 1e3)

    def timer(self) -> float:
        """Return the processor time of all other threads, in microseconds a step: the timer's."""
        registry = Registry()
        opened = AnatomyOfSteps(registry, Journal(registry))
        began, number = time.process_time_ns() - time.thread_time_ns(), 0
        until = time.monotonic() + ALONE
        while time.monotonic() < until:
            self.step()
            number += 1
        took = time.process_time_ns() - time.thread_time_ns() - began
        opened.close()
        return took / number / 1e3


class Interval(NamedTuple):
    """A median, and the ends of its 95 % interval by bootstrap."""

    middle: float
    least: float
    most: float


def interval(found: Sequence[float]) -> Interval:
    """Return the interval of the median of some values."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(found, k=len(found))) for _ in range(RESAMPLED))
    return Interval(statistics.median(found), medians[RESAMPLED // 40], medians[-RESAMPLED // 40])


def shown(what: str, step: float, differences: Sequence[float]) -> Interval:
    """Show and return the interval of paired differences."""
    found = interval(differences)
    ends = f"95 %: {found.least:+.1f} to {found.most:+.1f} us, {found.most / step:+.2%} at most"
    print(f"  {what:<16}{found.middle:+.1f} us, {found.middle / step:+.2%} ({ends})", flush=True)
    return found


def main() -> int:
    """Measure both; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=150, help="blocks of the large step with it; of the small one four times as many"
    )
    parser.add_argument("--step", choices=("small", "large"), help="measure one of them alone")
    options = parser.parse_args()
    pairs = options.pairs
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("load", *(f"{load:.2f}" for load in os.getloadavg()))
    missed = False
    for name, job, number in (("small", Job(256, 1, 64, 20, 60), 4 * pairs), ("large", Job(1024, 6, 96, 2, 1), pairs)):
        if options.step not in (None, name):
            continue
        job.block(look=False)
        found = [[job.block(look=look) for look in (False, True, False)] for _ in range(number)]
        step = statistics.median(before.clock for before, _, _ in found)
        goal = SMALL_GOAL if name == "small" else LARGE_GOAL * step
        print(f"{name}: a step of {step:.0f} us, {number} times; goal {goal:.0f} us")
        clock = shown("clock", step, [on.clock - (one.clock + other.clock) / 2 for one, on, other in found])
        shown("processor", step, [on.processor - (one.processor + other.processor) / 2 for one, on, other in found])
        shown("off against off", step, [other.clock - one.clock for one, _, other in found])
        missed |= (clock.middle if name == "small" else clock.most) > goal
        print(f"  {'timer':<16}{job.timer():+.1f} us of another thread's processor time")
    print("MISSED" if missed else "ok")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
