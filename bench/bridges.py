"""The overhead of each bridge beside its library's own call, in place and paired.

``python bench/bridges.py [LIBRARY …] [--rounds N]``. In one process a real writer, run or trainer is called in blocks,
with the bridge and without it in turn, so that noise falls on both. Printed are microseconds a call: the library's own,
and the medians of the differences between neighbouring blocks, by the clock and by the processor time of the thread. A
library that is not installed is left out, and said. The values wait in memory: nothing is sent.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.instrumentation.bridges import instrumentor_of

BLOCK = 100
Log = Callable[[int], object]


def tensorboard(folder: Path) -> Log:
    """Return a call of torch's ``add_scalar``."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    return lambda step: writer.add_scalar("train/loss", step / 3, step)


def tensorboardx(folder: Path) -> Log:
    """Return a call of tensorboardX's ``add_scalar``."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))
    return lambda step: writer.add_scalar("train/loss", step / 3, step)


def wandb(folder: Path, mode: str = "offline") -> Log:
    """Return a call of ``Run.log`` with one value."""
    import wandb as library

    quiet = library.Settings(console="off", silent=True)
    run = library.init(project="p", mode=mode, dir=str(folder), settings=quiet, reinit="create_new")
    return lambda step: run.log({"train/loss": step / 3}, step=step)


def wandb_disabled(folder: Path) -> Log:
    """Return the same of a disabled run."""
    return wandb(folder, "disabled")


def tqdm(_: Path) -> Log:
    """Return a call of ``set_postfix`` that draws nothing."""
    from tqdm import tqdm as bar_of

    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    bar = bar_of(total=10**9, file=nowhere, mininterval=3600)
    return lambda step: bar.set_postfix(refresh=False, loss=step / 3)


def mlflow(folder: Path) -> Log:
    """Return a call of ``log_metric`` into a file store."""
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    import mlflow as library

    library.set_tracking_uri((folder / "runs").as_uri())
    library.start_run()
    return lambda step: library.log_metric("train/loss", step / 3, step=step)


def trackio(folder: Path) -> Log:
    """Return a call of ``log`` into a file of this machine."""
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    import trackio as library

    run = library.init(project="p", embed=False)
    return lambda step: run.log({"train/loss": step / 3}, step=step)


def _logger(folder: Path) -> logging.Logger:
    found = logging.getLogger("bench")
    found.propagate = False
    found.setLevel(logging.INFO)
    found.handlers = [logging.FileHandler(folder / "log.txt")]
    return found


def logging_info(folder: Path) -> Log:
    """Return a call of ``Logger.info``, which is no record of ours."""
    log = _logger(folder)
    return lambda step: log.info("loss is %s", step / 3)


def logging_warning(folder: Path) -> Log:
    """Return a call of ``Logger.warning`` of one line, most of which are beyond its limit."""
    log = _logger(folder)
    return lambda step: log.warning("loss is %s", step / 3)


def accelerate(_: Path) -> Log:
    """Return a call of ``Accelerator.log`` without a tracker."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return lambda step: accelerator.log({"train/loss": step / 3}, step=step)


def lightning(_: Path) -> Log:
    """Return a call of ``Fabric.log`` without a logger."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu")
    return lambda step: fabric.log("train/loss", step / 3, step)


MADE = (
    *(tensorboard, tensorboardx, wandb, wandb_disabled, mlflow, trackio, logging_info, logging_warning),
    *(tqdm, accelerate, lightning),
)


def block(log: Log, begin: int) -> tuple[float, float]:
    """Return microseconds a call of a block, the medians by the clock and by the thread's processor time."""
    clock, own = [], []
    for step in range(begin, begin + BLOCK):
        before, before_own = time.perf_counter_ns(), time.thread_time_ns()
        log(step)
        own.append(time.thread_time_ns() - before_own)
        clock.append(time.perf_counter_ns() - before)
    return statistics.median(clock) / 1e3, statistics.median(own) / 1e3


def measured(made: Callable[[Path], Log], rounds: int, folder: Path) -> str:
    """Return a line of the table."""
    name = made.__name__
    instrumentor: Any = instrumentor_of(name.partition("_")[0])()
    log = made(folder)
    block(log, 0)
    alone, more, more_own = [], [], []
    for turn in range(1, rounds + 1):
        with_first = turn % 2
        found = {}
        for bridged in (with_first, 1 - with_first):
            if bridged:
                instrumentor.instrument(skip_dep_check=True)
            found[bridged] = block(log, (2 * turn + (bridged != with_first)) * BLOCK)
            if bridged:
                instrumentor.uninstrument()
        alone.append(found[0][0])
        more.append(found[1][0] - found[0][0])
        more_own.append(found[1][1] - found[0][1])
    numbers = (statistics.median(alone), statistics.median(more), statistics.median(more_own))
    return f"{name:16}" + "".join(f"{number:12.2f}" for number in numbers)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help="; ".join(made.__name__ for made in MADE))
    parser.add_argument("--rounds", type=int, default=40, help="pairs of blocks; %(default)s")
    options = parser.parse_args()
    print(f"{'us a call':16}{'its own':>12}{'+ bridge':>12}{'+ processor':>12}")
    for made in MADE:
        if options.libraries and made.__name__ not in options.libraries:
            continue
        folder = Path(tempfile.mkdtemp(prefix="bridges-"))  # its writers are open until the end
        try:
            print(measured(made, options.rounds, folder), flush=True)
        except ImportError as error:
            print(f"{made.__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
