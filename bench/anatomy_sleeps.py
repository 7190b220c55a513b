"""Sleeps in random places on random ranks: does the right phase grow by as much, and is the rank named?

``torchrun --nproc-per-node 2 bench/anatomy_sleeps.py [CASES]``: in each seeded case DDP trains some steps without a
sleep and some with one, of 10 to 40 ms, in one place of one rank. The median of that phase on that rank must grow by
the sleep, within a tenth, and the verdict must be that this rank holds up the others. The sleep is as long as the
program has measured it: on a busy machine the kernel lets it sleep for longer. A rank that is slow within its backward
cannot be told from those that wait for it there: there the verdict must be none, or right.
"""

from __future__ import annotations

import io
import os
import random
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tachograph.diagnosis.anatomy import Anatomy
from tachograph.diagnosis.phases import PHASES, Step, StepMachine
from tachograph.diagnosis.verdict import verdicts
from tachograph.diagnosis.window import Window

STEPS = 30  # of each half of a case, beside the first ones
SETTLE = 3
WITHIN = 0.1
PLACES = ("data_wait", "forward", "backward", "gradients", "optimizer", "checkpoint", "other")
RANK = int(os.environ["RANK"])


class Sleep:
    """The sleep of a case: seconds at a place, 0 for none; and how long each one was."""

    place, seconds = "", 0.0

    def __init__(self) -> None:
        self.took: list[float] = []

    def at(self, place: str) -> None:
        """Sleep, where this is the place."""
        if place == self.place and self.seconds:
            begun = time.perf_counter()
            time.sleep(self.seconds)
            self.took.append(time.perf_counter() - begun)


sleep = Sleep()


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples without an end."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Any:
        sleep.at("data_wait")
        return torch.full((128,), float(index % 7)), index % 10


class Slow(torch.optim.SGD):
    """An optimizer that sleeps in its step."""

    def step(self, closure: Any = None) -> Any:
        """Step."""
        sleep.at("optimizer")
        return super().step(closure)


class Slept:
    """An object whose saving takes its time."""

    def __reduce__(self) -> Any:
        sleep.at("checkpoint")
        return Slept, ()


def window(rank: int, steps: Sequence[Step]) -> Window:
    """Return the window of some steps."""
    return Window(rank, len(steps), {name: sum(step.phases[n] for step in steps) for n, name in enumerate(PHASES)})


def middle(steps: Sequence[Step], place: str) -> float:
    """Return the median of a phase, in milliseconds."""
    return median(step.phases[PHASES.index(place)] for step in steps) / 1e6


class Training:
    """The training of all cases."""

    def __init__(self) -> None:
        self.net = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
        )
        self.net.module[0].weight.register_hook(lambda _: sleep.at("backward"))
        self.optimizer = Slow(self.net.parameters(), 0.01)
        self.batches = iter(torch.utils.data.DataLoader(Data()))
        self.machine = StepMachine()
        self.anatomy = Anatomy(print)

    def steps(self, number: int) -> list[Step]:
        """Take some steps, and return those that have ended meanwhile, without the first ones."""
        for _ in range(number + SETTLE):
            x, y = next(self.batches)
            sleep.at("forward")
            nn.functional.cross_entropy(self.net(x), y).backward()
            sleep.at("gradients")
            self.optimizer.step()
            self.optimizer.zero_grad()
            torch.save(Slept(), io.BytesIO())
            sleep.at("other")
        found = []
        for lane in self.anatomy.lanes.values():
            found += self.machine.take(lane.take()[0])
        return found[SETTLE:]


def judged(place: str, rank: int, slept: float, before: Sequence[Any], after: Sequence[Any]) -> tuple[bool, str]:
    """Return whether a case is right, and its numbers."""
    grown = middle(after[rank], place) - middle(before[rank], place)
    found = verdicts([window(each, steps) for each, steps in enumerate(after)])
    named = [each.ranks for each in found if each.name == "straggler"]
    right = abs(grown - slept * 1e3) <= WITHIN * slept * 1e3
    right &= named in ([], [(rank,)]) if place == "backward" else named == [(rank,)]
    return right, f"{place:10} rank {rank} slept {slept * 1e3:5.1f} ms, grew {grown:5.1f} ms, named {named}"


def main() -> int:
    """Run the cases; return how many were wrong."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training, wrong = Training(), 0
    for case in range(cases):
        chosen = random.Random(case)
        place, rank, slept = chosen.choice(PLACES), chosen.randrange(dist.get_world_size()), chosen.uniform(0.01, 0.04)
        halves, slept_by = [], [0.0] * dist.get_world_size()
        for seconds in (0.0, slept):
            dist.barrier()
            sleep.place, sleep.seconds = place, seconds * (rank == RANK)
            sleep.took.clear()
            own, every = training.steps(STEPS), [None] * dist.get_world_size()
            dist.all_gather_object(every, own)
            halves.append(every)
            dist.all_gather_object(slept_by, median(sleep.took[SETTLE:] or [0.0]))
        right, told = judged(place, rank, slept_by[rank], *halves)
        wrong += not right
        if RANK == 0:
            print(f"{'right' if right else 'WRONG'} {case:3} {told}", flush=True)
    if RANK == 0:
        print(f"{cases - wrong} of {cases} right")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
