"""A training job that goes wrong: ``hangs_job.py KIND`` trains with DDP on gloo until, at a step, one rank misbehaves.

What happens is in the variables HANG_AT (the step), HANG_GUILTY (the rank), HANG_MARK (a file that the guilty rank
writes the time into), HANG_SECONDS (for how long harmless work lasts) and HANG_STEPS. Lines that a verdict has to name
end in a comment.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
AT, GUILTY = int(os.environ.get("HANG_AT", "30")), int(os.environ.get("HANG_GUILTY", "1"))
SECONDS, STEPS = float(os.environ.get("HANG_SECONDS", "60")), int(os.environ.get("HANG_STEPS", "1000000"))
MARK = Path(os.environ["HANG_MARK"])
EVER = 10_000


def mark() -> None:
    """Note that it begins now, and leave a progress bar behind."""
    sys.stderr.write("\r 45%|####")
    sys.stderr.flush()
    MARK.write_text(f"{time.time()}")


class Samples(Dataset[torch.Tensor]):
    """Random samples; one that the guilty rank's worker never returns."""

    def __len__(self) -> int:
        """Return more than any job takes."""
        return 10**6

    def __getitem__(self, place: int) -> torch.Tensor:
        """Return a sample."""
        if KIND == "dataloader" and rank == GUILTY and place >= AT * 8:
            mark()
            time.sleep(EVER)  # at worker
        return torch.randn(64)


def gil_sleep() -> None:
    """Hold the GIL and sleep."""
    ctypes.PyDLL(None).sleep(EVER)  # at gil_sleep


def gil_regex() -> None:
    """Hold the GIL and compute."""
    re.match(r"(a+)+$", "a" * 60 + "b")  # at gil_regex


def c_sleep() -> None:
    """Sleep in C, with the GIL free."""
    ctypes.CDLL(None).sleep(EVER)  # at c_sleep


def fifo() -> None:
    """Open a pipe that has no writer."""
    path = MARK.with_suffix(".fifo")
    os.mkfifo(path)
    path.read_text()  # at fifo


def deadlock() -> None:
    """Take two locks in two orders."""
    one, two, go = threading.Lock(), threading.Lock(), threading.Event()

    def other() -> None:
        with two:
            go.set()
            time.sleep(0.2)
            with one:
                pass

    threading.Thread(target=other, name="other", daemon=True).start()
    with one:
        go.wait()
        time.sleep(0.1)
        with two:  # at deadlock
            pass


def spin() -> None:
    """Run Python for ever, and call nothing."""
    while GUILTY >= 0:  # at spin
        pass


def until_over(work: Callable[[], object]) -> None:
    """Do something for as long as harmless work lasts."""
    end = time.time() + SECONDS
    while time.time() < end:
        work()


def checkpoint() -> None:
    """Write checkpoints."""
    state, path = torch.randn(2_000_000), MARK.with_suffix(".pt")

    def once() -> None:
        torch.save(state, path)
        path.unlink()  # before the system writes it: else these are gigabytes, for which what runs beside it waits

    until_over(once)


def evaluate() -> None:
    """Evaluate a model."""

    def once() -> None:
        with torch.no_grad():
            for _ in range(20):
                net(torch.randn(512, 64)).softmax(-1).mean().item()
            sorted(str(number) for number in range(20000))

    until_over(once)


def compiled() -> None:
    """Compile a model."""
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))]
    torch.compile(torch.nn.Sequential(*layers))(torch.randn(8, 64)).sum().backward()


def garbage() -> list[list[object]]:
    """Return lists that refer to each other all over the memory: a collection takes long."""
    kept: list[list[object]] = [[] for _ in range(1_500_000)]
    others = list(kept)
    random.shuffle(others)
    for one, other in zip(kept, others, strict=True):
        one.append(other)
    return kept


def collected() -> None:
    """Collect garbage, for long each time."""
    until_over(gc.collect)


def dumped() -> None:
    """Have a faulthandler of the program's own write where it stands, and another one wait."""
    with open(os.devnull, "w") as file:  # noqa: PTH123
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
        os.kill(os.getpid(), signal.SIGUSR1)
        faulthandler.unregister(signal.SIGUSR1)
    faulthandler.dump_traceback_later(1000)


def paused() -> None:
    """Be stopped for two seconds."""
    subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(2); os.kill({os.getpid()}, 18)"])  # noqa: S603
    os.kill(os.getpid(), signal.SIGSTOP)


def forked() -> None:
    """Fork a child that ends."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def debugged() -> None:
    """Stand in a debugger."""
    import pdb  # noqa: T100 - it is the subject

    reading, writing = os.pipe()
    threading.Timer(SECONDS, lambda: os.write(writing, b"c\n")).start()
    pdb.Pdb(stdin=os.fdopen(reading), stdout=open(os.devnull, "w")).set_trace()  # noqa: SIM115, PTH123
    time.sleep(0.01)


def served() -> None:
    """Wait for requests, as an inference server does that has none."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Timer(SECONDS, server.shutdown).start()
    server.serve_forever()


ALONE = {each.__name__: each for each in (gil_sleep, gil_regex, c_sleep, fifo, deadlock, spin)}
SHORT = {each.__name__: each for each in (paused, forked, dumped)}  # again each hundred steps
LONG = {each.__name__: each for each in (checkpoint, evaluate, compiled, collected, debugged, served)}
HARMLESS = SHORT | LONG


def differ() -> None:
    """Call another operation than the others."""
    data = torch.ones(1000)
    if rank == GUILTY:
        dist.broadcast(data, 0)  # at mismatch
    else:
        dist.all_reduce(data)


def skip() -> None:
    """Leave out an operation that the others call."""
    if rank != GUILTY:
        dist.all_reduce(torch.ones(3))
    dist.barrier()  # at skip
    dist.broadcast(torch.ones(5), 0)


def chained() -> None:
    """Keep a rank of the smaller group waiting, for which all others wait."""
    if rank == GUILTY:
        c_sleep()
    if rank in pair:
        dist.all_reduce(torch.ones(7), group=half)


def crossed() -> None:
    """Use two groups in two orders."""
    first, second = (half, None) if rank == GUILTY else (None, half)
    if rank not in pair:
        dist.all_reduce(torch.ones(2))
        return
    dist.all_reduce(torch.ones(2), group=first)  # at crossed
    dist.all_reduce(torch.ones(2), group=second)


def receive() -> None:
    """Wait for data that never come."""
    if rank == GUILTY:
        dist.recv(torch.ones(3), (GUILTY + 1) % world)  # at receive


def send() -> None:
    """Keep a rank waiting for data, and both of them the others."""
    if rank == GUILTY:
        c_sleep()
    elif rank in pair:
        dist.recv(torch.ones(3), GUILTY)


TOGETHER = {"mismatch": differ, "skip": skip, "subgroup": chained, "crossed": crossed, "receive": receive, "send": send}


def go_wrong() -> None:
    """Do the thing that this job is for."""
    if rank == GUILTY and KIND != "dataloader":
        mark()
    if KIND in TOGETHER:
        TOGETHER[KIND]()
    elif rank == GUILTY and KIND in ALONE | HARMLESS:
        (ALONE | HARMLESS)[KIND]()
    elif rank == GUILTY and KIND in ("stop", "kill"):
        os.kill(os.getpid(), signal.SIGSTOP if KIND == "stop" else signal.SIGKILL)
    elif rank == GUILTY and KIND == "raise":
        raise RuntimeError("out of luck")
    elif KIND == "all_evaluate":
        evaluate()


torch.set_num_threads(1)
torch.manual_seed(7)
kept = garbage() if KIND == "collected" and int(os.environ["RANK"]) == GUILTY else []
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
pair = [GUILTY, (GUILTY + 1) % world]
half = dist.new_group(sorted(pair), group_desc="pair")
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
workers = {"num_workers": 1, "prefetch_factor": 2} if KIND == "dataloader" else {}
batches = iter(DataLoader(Samples(), batch_size=8, **workers))
for step in range(STEPS):
    batch = next(batches)  # at dataloader
    if step == AT or (step > AT and KIND in SHORT and (step - AT) % 100 == 0):
        go_wrong()
    if step > AT and KIND == "slow" and rank == GUILTY:
        time.sleep(0.5)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
