"""The training that ``bench/overhead.py`` measures: DDP on gloo, 100 recorded values a step. torchrun starts it.

``--pairs N`` measures blocks of about a second, on, off and off again in turn, in one process, so that other load of
the machine falls on all; the batch is as large as steps of 50 ms allow. A job starts once: each series has its first
thousand values before, and the first exports after a start are over before a block that is on is measured; before one
that is off there are as many steps. ``--steps N`` trains that many steps and prints digests of the weights and of the
random states; the caller then decides whether Tachograph is on. With ``--doctor`` all blocks are of one start, and
record nothing, so that our threads have little to do but pulses: there are some in one, none in another, and none in a
third.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import random
import statistics
import threading
import time
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from instructions import Instructions
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tachograph
from tachograph.diagnosis.pulse import Pulse
from tachograph.pipeline import Pipeline
from tachograph.recording.gauge_curve import FIRST
from tachograph.recording.pulse_source import Beat, pulse_source

# Of a step: seconds of the clock and of the processor, and instructions where counted; of the processor's seconds those
# that the recording takes, and those of our threads.
Cost = dict[str, float | None]
SECONDS = 0.05  # of a step
BLOCK, BLOCKS = 1.0, 3  # seconds, and how many between a start and its end
WARM = 2  # blocks from a start to the first that is measured: two exports, which send everything
ORDERS = list(permutations(("on", "off", "again")))  # of the sides of a pair, and of its control: off, too
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
        self.batch = BATCH
        self.recording = 0.0  # seconds of the processor

    def step(self, record: bool) -> None:
        """Train on one batch of noise, and record 100 values where asked."""
        features, labels = torch.randn(self.batch, FEATURES), torch.randint(0, 10, (self.batch,))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(features), labels)
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        if record:
            began = time.thread_time()
            for name in NAMES:
                tachograph.put_metric(name, value, "overhead")
            self.recording += time.thread_time() - began

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


class Pulses:
    """The pulses of this process, which can be held back.

    Attributes:
        on: they are made and sent; else none is.
        number: how many there were.
    """

    def __init__(self) -> None:
        self.on, self.number = True, 0
        pulse_source.loaded_by(self._begin)

    def _begin(self) -> Beat:
        made = Pulse()

        def beat() -> str | None:
            self.number += self.on
            return made() if self.on else None

        return beat


def agreed(number: float) -> int:
    """Return the greatest number that any rank has, so that all do the same."""
    tensor = torch.tensor(float(number))
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def started() -> Pipeline:
    """Return a pipeline that exports once a second."""
    return tachograph.start(metrics="otlp", traces="none", logs="otlp", interval=1.0)


def blocks(training: Training, steps: int, instructions: Instructions, *, on: bool) -> list[Cost]:
    """Return the costs of a step of some blocks to this process, without the start and the stop around them."""
    os.environ["TACHOGRAPH_HANGS"] = "true" if on else "false"  # one pulse a second, as by default
    pipeline = started() if on else None
    for _ in range(WARM * steps):
        training.step(on)
    found = [block(training, steps, instructions, on=on) for _ in range(BLOCKS)]
    if pipeline is not None:
        pipeline.shutdown()
    dist.barrier()
    return found


def block(training: Training, steps: int, instructions: Instructions, *, on: bool) -> Cost:
    """Return the costs of a step of a block to this process."""
    dist.barrier()
    training.recording, ours = 0.0, _our_threads()
    counted, busy, began = instructions(), time.process_time(), time.perf_counter()
    for _ in range(steps):
        training.step(on)
    return {
        "seconds": (time.perf_counter() - began) / steps,
        "processor": (time.process_time() - busy) / steps,
        "instructions": None if counted is None else ((instructions() or 0) - counted) / steps,
        "recording": training.recording / steps,
        "threads": (_our_threads() - ours) / steps,
    }


def with_pulses(training: Training, steps: int, instructions: Instructions, pulses: Pulses, *, on: bool) -> Cost:
    """Return the costs of a step of a block that records nothing, with pulses or without."""
    pulses.on = on
    return block(training, steps, instructions, on=False)


def _our_threads() -> float:
    """Return the seconds of the processor that our threads have taken so far; 0 where the kernel does not tell."""
    used = 0.0
    for thread in threading.enumerate():
        of = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if thread.name.startswith("tachograph") and of.exists():
            used += int(of.read_text(encoding="ascii").split()[0]) / 1e9
    return used


def steps_of(training: Training) -> float:
    """Return the seconds of the processor that a step takes, which are those of the clock on a machine that is idle."""
    for _ in range(3):
        training.step(False)
    started = time.process_time()
    for _ in range(10):
        training.step(False)
    return (time.process_time() - started) / 10


def pairs(
    training: Training, number: int, instructions: Instructions, *, doctor: bool
) -> dict[str, list[tuple[Cost, Cost]]]:
    """Return the costs of a step of each pair, in alternating order: on and off, and, as a control, off and off."""
    training.batch = max(1, agreed(BATCH * SECONDS / steps_of(training)))
    steps = max(2, agreed(BLOCK / steps_of(training)))
    for _ in range(0 if doctor else FIRST):
        for name in NAMES:
            tachograph.put_metric(name, 0.5, "overhead")
    found: list[tuple[Cost, Cost]] = []
    control: list[tuple[Cost, Cost]] = []
    pulses = Pulses() if doctor else None
    pipeline = started() if doctor else None
    for _ in range(WARM * steps if doctor else 0):
        training.step(True)  # the hub's first answer says that it takes pulses
    for turn in range(number if doctor else math.ceil(number / BLOCKS)):
        order = ORDERS[turn % len(ORDERS)]
        taken = {
            side: blocks(training, steps, instructions, on=side == "on")
            if pulses is None
            else [with_pulses(training, steps, instructions, pulses, on=side == "on")]
            for side in order
        }
        found += zip(taken["on"], taken["off"], strict=True)
        control += zip(taken["again"], taken["off"], strict=True)
        if dist.get_rank() == 0:
            ratio = statistics.median((on["processor"] or 0) / (off["processor"] or 1) for on, off in found)
            print(f"\rpair {len(found)} of {number}, {steps} steps a block: {ratio - 1:+.2%} ", end="", flush=True)
    if pipeline is not None:
        pipeline.shutdown()
    if pulses is not None and pulses.number < number // 2:
        raise RuntimeError(f"{pulses.number} pulses were made in {number} blocks")
    return {"pairs": found, "control": control}


def main() -> None:
    """Train, and write rank 0's results to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--doctor", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--result", required=True)
    options = parser.parse_args()
    instructions = Instructions()  # before any other thread begins
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    result: object
    if options.pairs:
        found = pairs(training, options.pairs, instructions, doctor=options.doctor)
        result = {**found, "why_not": instructions.why_not}
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
