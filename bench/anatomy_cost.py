"""The cost of the anatomy in place: the same steps with and without it, in blocks by turns, each order as often.

``python bench/anatomy_cost.py [--pairs N]``: steps of an MLP of about 0.6 ms, and of 50 ms. Shown are the median of the
paired differences of the blocks' median steps, and the upper end of their 95 % interval; the timer folds meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tachograph.diagnosis.anatomy_series import AnatomyOfSteps
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

GOALS = {"small": 10.0, "large": 150.0}  # microseconds a step: of 0.6 ms, and 0.3 % of 50 ms
T_95 = 1.8


class Job:
    """A training whose blocks of steps are timed.

    Args:
        width: of the model.
        depth: its layers.
        batch: samples a step.
        steps: of a block.
    """

    def __init__(self, width: int, depth: int, batch: int, steps: int) -> None:
        self.steps = steps
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

    def block(self, *, look: bool) -> float:
        """Return the median of a block's steps, in microseconds."""
        registry = Registry()
        steps = AnatomyOfSteps(registry, Journal(registry)) if look else None
        took = []
        for _ in range(self.steps):
            begun = time.perf_counter_ns()
            x, y = next(self.batches)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            took.append(time.perf_counter_ns() - begun)
        if steps is not None:
            steps.close()
        return statistics.median(took) / 1e3


def main() -> int:
    """Measure both; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    torch.manual_seed(0)
    missed = 0
    for name, job in (("small", Job(256, 1, 64, 1000)), ("large", Job(1024, 6, 96, 20))):
        job.block(look=False)
        differences, without = [], []
        for number in range(pairs):
            found = {look: job.block(look=look) for look in ((False, True) if number % 2 else (True, False))}
            differences.append(found[True] - found[False])
            without.append(found[False])
        middle, mean = statistics.median(differences), statistics.mean(differences)
        upper = mean + T_95 * statistics.stdev(differences) / pairs**0.5
        step = statistics.median(without)
        missed |= middle > GOALS[name]
        print(f"{name}: a step of {step:.0f} us, {middle:+.1f} us, at most {upper:+.1f} us ({upper / step:+.2%})")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
