"""A small training with a fault, or without: ``python bench/anatomy_job.py CASE [SECONDS]``, also under torchrun.

A step computes for some milliseconds; the cases are those of ``bench/anatomy.py``. Under ``traceml run`` it calls what
TraceML asks of a loop of one's own.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

CASE = sys.argv[1] if len(sys.argv) > 1 else "healthy"
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WIDTH = 384
torch.set_num_threads(1)
torch.manual_seed(0)


def is_case(*names: str) -> bool:
    """Tell whether the case is one of these; those that end with ``rank`` are of rank 1 alone."""
    return CASE in names and (not CASE.startswith("rank_") or RANK == 1)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples, slow ones where the case is about data."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.x, self.y = torch.randn(64, WIDTH), torch.arange(64) % 10
        self.began = time.monotonic()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        worker = torch.utils.data.get_worker_info()
        if is_case("slow_dataset", "rank_input"):
            time.sleep(0.001)
        elif is_case("heavy_transform"):
            x = self.x[index % 64].view(1, 1, -1)
            for _ in range(6):
                x = nn.functional.conv1d(x, torch.ones(1, 1, 65) / 65, padding=32)
        elif is_case("slow_worker") and worker is not None and worker.id == 1:
            time.sleep(0.003)
        elif is_case("page_cache"):
            read_cold()
        elif is_case("slow_first_epoch") and time.monotonic() - self.began < SECONDS / 5:
            time.sleep(0.001)
        return self.x[index % 64], self.y[index % 64]


BLOCK, BLOCKS = 1 << 18, 128
FILE = tempfile.TemporaryFile()  # noqa: SIM115 - until the process ends
if CASE == "page_cache":
    FILE.write(os.urandom(BLOCK) * BLOCKS)
    FILE.flush()
    os.fsync(FILE.fileno())


def read_cold() -> None:
    """Read a block of a file that no page cache holds: the data set is larger than the memory."""
    place = random.randrange(BLOCKS) * BLOCK
    os.posix_fadvise(FILE.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(FILE.fileno(), BLOCK, place)


# Stops a process fifteen milliseconds of twenty, as the quota of a control group does.
THROTTLE = """
import os, signal, sys, time
pid = int(sys.argv[1])
while os.getppid() == pid:
    for number, seconds in ((signal.SIGSTOP, 0.015), (signal.SIGCONT, 0.005)):
        os.kill(pid, number)
        time.sleep(seconds)
"""


def collate(batch: Any) -> Any:
    """Return a batch, late where the case is about that."""
    if is_case("slow_collate"):
        time.sleep(0.01)
    return torch.utils.data.default_collate(batch)


class Net(nn.Module):
    """A model."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, x: Any) -> Any:
        """Return the classes' scores."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


def late_allreduce(_state: Any, bucket: Any) -> Any:
    """Average a bucket over a slow network."""
    tensor = bucket.buffer() / WORLD
    work = torch.distributed.all_reduce(tensor, async_op=True)

    def arrived(_future: Any) -> Any:
        time.sleep(0.015)
        return tensor

    return work.get_future().then(arrived)


late_allreduce.__annotations__.clear()  # DDP wants its own classes there, not their names


class Training:
    """The training, with a hook a case."""

    def __init__(self) -> None:
        self.net: Any = Net({"tiny": 1, "workers": 40}.get(CASE, 8))
        if WORLD > 1:
            torch.distributed.init_process_group("gloo")
            self.net = nn.parallel.DistributedDataParallel(self.net)
            if is_case("late_allreduce"):
                self.net.register_comm_hook(None, late_allreduce)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.other = torch.optim.AdamW(Net(1).parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=is_case("overflow", "overflow_at_first"))
        self.model: Callable[[Any], Any] = self.net
        if is_case("recompiles", "compiled"):
            torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 - torch's own name for the users' setting
            torch._dynamo.config.accumulated_recompile_limit = 10_000  # noqa: SLF001
            self.model = torch.compile(self.net, backend="aot_eager", dynamic=False)
        self.kept: list[Any] = []
        self.number = 0
        self.folder = Path(tempfile.mkdtemp())

    def step(self, x: Any, y: Any) -> None:
        """Take a step."""
        number = self.number = self.number + 1
        if is_case("recompiles"):
            x, y = x[: 2 + number % 29], y[: 2 + number % 29]
            if number % 29 == 0:  # no shape comes back, however long it trains
                torch._dynamo.reset()  # noqa: SLF001 - torch's own name for it
        if is_case("rank_compute"):
            time.sleep(0.01)
        loss = nn.functional.cross_entropy(self.model(x), y)
        if is_case("overflow") and number % 3 == 0:
            loss = loss * float("inf")
        self.scaler.scale(loss).backward()
        if is_case("clipping"):
            time.sleep(0.012)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1e3)
        if not is_case("accumulation") or number % 4 == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        self.after(loss)

    def after(self, loss: Any) -> None:
        """Do the work between two steps."""
        if is_case("sleep_after_step"):
            time.sleep(0.008)
        elif is_case("slow_logger"):
            with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
                for _ in range(40):
                    file.write(f"{float(loss.detach())}\n" * 50)
                    file.flush()
                    os.fsync(file.fileno())
        elif is_case("retained_graph"):
            self.kept.append(loss)
            self.kept.append(torch.ones(200_000))
        elif is_case("leak"):
            self.kept.append(torch.ones(200_000))
        elif is_case("item"):
            loss.item()
        elif is_case("items"):  # a histogram of weights, value by value
            self.kept = [value.item() for value in self.net.layers[0].weight[:32].flatten()]
        elif is_case("collections"):
            gc.collect()
        every = {"checkpoints": 4, "rank_checkpoint": 2, "rare_checkpoint": 200}.get(CASE, 0)
        if every and self.number % every == 0 and is_case("checkpoints", "rank_checkpoint", "rare_checkpoint"):
            torch.save([self.net.state_dict() for _ in range(12)], io.BytesIO())

    def evaluate(self) -> None:
        """Evaluate, often where the case is about that."""
        if is_case("evaluation", "rare_evaluation"):
            with torch.no_grad():
                data = Data(32 * (200 if is_case("evaluation") else 6))
                for x, y in torch.utils.data.DataLoader(data, batch_size=32):
                    nn.functional.cross_entropy(self.net(x), y)


def main() -> None:
    """Train for some seconds."""
    traced: Callable[[Any], Any] = contextlib.nullcontext
    if "TRACEML_SESSION_ID" in os.environ:
        import traceml_ai

        traceml_ai.init(mode="auto")
        traced = traceml_ai.trace_step
    workers = 2 if is_case("slow_worker", "workers") else 0
    size = 32 * (20 if is_case("evaluation") else 60)
    training = Training()
    if is_case("rank_throttled"):
        subprocess.Popen([sys.executable, "-c", THROTTLE, str(os.getpid())])  # noqa: S603 - ours
    loader = torch.utils.data.DataLoader(
        Data(size), batch_size=32, num_workers=workers, collate_fn=collate, persistent_workers=bool(workers)
    )
    goes_on = torch.ones(1)
    until = time.monotonic() + SECONDS
    while goes_on.item():
        for x, y in loader:
            with traced(training.net):
                training.step(x, y)
        training.evaluate()
        goes_on.fill_(float(time.monotonic() < until))
        if WORLD > 1:  # all ranks end together
            torch.distributed.broadcast(goes_on, 0)
    if WORLD > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
