"""Train a classifier of handwritten digits on several processes (DDP), and record it with Tachograph.

    torchrun --nproc-per-node 2 examples/digits_ddp.py

Every rank serves its own /metrics while it trains. At the end rank 0 reads all of them, as Prometheus would, and prints
what they say.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from read_back import page, table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import tachograph
from tachograph import prof, put_metric

GROUP = "digits"
HELD_OUT = 297

# The name alone is enough for most metrics; these say more.
tachograph.declare("samples", group=GROUP, kind="counter", unit="{sample}", description="Samples trained on.")
tachograph.declare(
    "correct", group=GROUP, kind="histogram", boundaries=range(0, 33, 4), description="Right answers in a batch."
)
tachograph.declare("step.duration", group=GROUP, kind="histogram", unit="s", description="Time of one step.")

recorded: defaultdict[str, list[float]] = defaultdict(list)


def record(name: str, value: float) -> None:
    """Record a value, and keep it for ``--expect``."""
    put_metric(name, value, GROUP)
    recorded[name].append(value)


@prof(group=GROUP)
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Train on one batch and return its loss."""
    started = time.perf_counter()
    optimizer.zero_grad()
    scores = model(images)
    loss = nn.functional.cross_entropy(scores, labels)
    loss.backward()
    optimizer.step()
    record("samples", len(labels))
    record("correct", int((scores.argmax(1) == labels).sum()))
    record("loss", loss.item())
    record("step.duration", time.perf_counter() - started)
    return loss.item()


@prof(group=GROUP)
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers on the images that were held out."""
    with torch.no_grad():
        accuracy = float((model(images).argmax(1) == labels).double().mean())
    record("accuracy", accuracy)
    return accuracy


def train(epochs: int, batch_size: int) -> None:
    """Train, and say after each epoch how far it is."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    training = TensorDataset(images[:-HELD_OUT], labels[:-HELD_OUT])
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(training, seed=0)
    loader = DataLoader(training, batch_size, sampler=sampler)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        losses = [train_step(model, optimizer, *batch) for batch in loader]
        accuracy = evaluate(model.module, images[-HELD_OUT:], labels[-HELD_OUT:])
        record("epoch.success", 1)
        if dist.get_rank() == 0:
            mean = sum(losses) / len(losses)
            print(f"epoch {epoch:2} of {epochs}   loss {mean:.4f}   accuracy {accuracy:.1%}", flush=True)


def join(folder: Path | None) -> None:
    """Join the other ranks: through torchrun's store, or a file of this attempt, if a folder is given.

    After a restart gloo finds addresses of the attempt before in torchrun's store, and may wait for them for ever.
    """
    if folder is None:
        dist.init_process_group("gloo")
        return
    rank, ranks, attempt = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    dist.init_process_group("gloo", f"file://{folder.resolve()}/{attempt}", rank=int(rank), world_size=int(ranks))


def gathered(mine: object) -> list[object]:
    """Return what every rank hands in, in the order of the ranks; it also waits for them."""
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def totals() -> dict[str, dict[str, float]]:
    """Return what this rank has recorded, by name."""
    return {
        name: {"count": len(values), "sum": math.fsum(values), "last": values[-1]} for name, values in recorded.items()
    }


def main() -> None:
    """Train, print what was recorded, and serve it as long as asked."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits; every rank serves /metrics.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--linger", type=float, default=0, metavar="SECONDS", help="serve on after the training")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="write what each rank recorded, as JSON")
    parser.add_argument("--meet", type=Path, metavar="FOLDER", help="where ranks meet, for jobs that restart")
    options = parser.parse_args()

    join(options.meet)
    with tachograph.start() as pipeline:
        rank = dist.get_rank()
        urls = gathered(pipeline.metrics_url)
        if rank == 0:
            for number, url in enumerate(urls):
                print(f"rank {number} serves {url}", flush=True)
        train(options.epochs, options.batch_size)
        pipeline.flush(timeout=10)
        expected = gathered(totals())
        if rank == 0:
            print("\nrecorded, as /metrics has it:\n")
            print(table((page(str(url)) for url in urls if url), GROUP), flush=True)
            if options.expect is not None:
                part = options.expect.with_suffix(".part")
                part.write_text(json.dumps(expected, indent=1))
                part.replace(options.expect)
        dist.barrier()
        if options.linger and rank == 0:
            print(f"\nserving for {options.linger:g} s more; Ctrl-C ends it", flush=True)
        time.sleep(options.linger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
