"""The training that ``bench/overhead.py`` measures: DDP on gloo, 100 recorded values a step. torchrun starts it.

``--pairs N`` times blocks of about a second, on and off in turn, in one process, so that other load of the machine
falls on both. ``--steps N`` trains that many steps and prints digests of the weights and of the random states; the
caller then decides whether Tachograph is on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import random
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tachograph

VALUES = 100  # a step
FEATURES, HIDDEN, BATCH = 256, 1024, 384
NAMES = [f"value.{number}" for number in range(VALUES // 2)] + [
    f"time_{number}_seconds" for number in range(VALUES // 2)
]


class Training:
    """A model on two or more ranks, with its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global state must stay untouched
        layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        self.model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(HIDDEN, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def step(self, record: bool) -> None:
        """Train on one batch of noise, and record 100 values where asked."""
        features, labels = torch.randn(BATCH, FEATURES), torch.randint(0, 10, (BATCH,))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(features), labels)
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        if record:
            for name in NAMES:
                tachograph.put_metric(name, value, "overhead")

    def digests(self) -> dict[str, str]:
        """Return a digest of the weights, and one of each random state."""
        weights = b"".join(part.detach().numpy().tobytes() for part in self.model.state_dict().values())
        states = {
            "weights": weights,
            "random": pickle.dumps(random.getstate()),
            "numpy": pickle.dumps(np.random.get_state()),  # noqa: NPY002 - see above
            "torch": torch.get_rng_state().numpy().tobytes(),
        }
        return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def agreed(number: float) -> int:
    """Return the greatest number that any rank has, so that all do the same."""
    tensor = torch.tensor(float(number))
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def block(training: Training, steps: int, *, on: bool) -> float:
    """Return the seconds of a step in a block, without the start and the stop around it."""
    pipeline = tachograph.start(metrics="otlp", traces="none", logs="otlp", interval=0.8) if on else None
    for _ in range(3):
        training.step(on)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        training.step(on)
    taken = (time.perf_counter() - started) / steps
    if pipeline is not None:
        pipeline.shutdown()
    dist.barrier()
    return taken


def pairs(training: Training, number: int) -> list[tuple[float, float]]:
    """Return the seconds of a step of each pair, on and off, in alternating order."""
    started = time.perf_counter()
    for _ in range(50):
        training.step(False)
    steps = agreed(50 / (time.perf_counter() - started))
    found = []
    for turn in range(number):
        taken = {on: block(training, steps, on=on) for on in ((True, False) if turn % 2 else (False, True))}
        found.append((taken[True], taken[False]))
        if dist.get_rank() == 0:
            ratio = statistics.median(on / off for on, off in found)
            print(f"\rpair {turn + 1} of {number}, {steps} steps a block: {ratio - 1:+.2%} ", end="", flush=True)
    return found


def main() -> None:
    """Train, and write rank 0's results to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--result", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    result: object
    if options.pairs:
        result = pairs(training, options.pairs)
    else:
        for _ in range(options.steps):
            training.step(True)
        result = training.digests()
    if dist.get_rank() == 0:
        with open(options.result, "w", encoding="utf-8") as file:  # noqa: PTH123 - this is a script
            json.dump(result, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
