"""The goodput of a scripted job against its known truth: start-up, two kills, resumes, evaluations and checkpoints.

``python bench/goodput.py [--scale S]`` runs a job under torchrun that notes by itself what it does when; it is killed
twice, by SIGTERM and by SIGKILL, and resumes from its last checkpoint. Shows the difference of each category, as a
share of the wall time. A rank that is killed by SIGKILL takes its last second or two along, which then count as
restart: the longer the run (``--scale``), the less that is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GOAL = 0.01
CATEGORIES = ("productive", "data_wait", "checkpoint", "evaluation", "startup", "restart", "lost", "other")

JOB = """
import io, json, os, pathlib, signal, sys, time, torch
from torch import nn
folder, scale = pathlib.Path(sys.argv[1]), float(sys.argv[2])
saved, notes = folder / "saved.json", (folder / "notes.jsonl").open("a")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
first = json.loads(saved.read_text())["step"] if saved.exists() else 0
time.sleep(2 * scale)

def note(kind, took=0.0, **more):
    notes.write(json.dumps({"attempt": attempt, "kind": kind, "took": took, "at": time.time(), **more}) + "\\n")
    notes.flush()

class Data(torch.utils.data.Dataset):
    def __init__(self, size, seconds):
        self.size, self.seconds = size, seconds
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(8), 0

class Slow:
    def __reduce__(self):
        time.sleep(0.4 * scale)
        return Slow, ()

net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
steps = iter(torch.utils.data.DataLoader(Data(10_000, 0.02 * scale)))
note("begin", start=int(os.environ["TACHOGRAPH__START_NS"]) / 1e9)
for step in range(first, 160):
    begun = time.perf_counter()
    x, _ = next(steps)
    fetched = time.perf_counter()
    time.sleep(0.05 * scale)
    net(x).sum().backward()
    optimizer.step()
    done = time.perf_counter()
    note("step", done - fetched, wait=fetched - begun)
    if step % 50 == 49:
        since = time.perf_counter()
        for x, _ in torch.utils.data.DataLoader(Data(10, 0.05 * scale)):
            with torch.no_grad():
                net(x)
        note("evaluation", time.perf_counter() - since)
    if step % 40 == 39:
        since = time.perf_counter()
        torch.save(Slow(), io.BytesIO())
        note("checkpoint", time.perf_counter() - since)
        saved.write_text(json.dumps({"step": step + 1}))
    if (attempt, step) in ((0, 70), (1, 130)):
        note("killed")
        os.kill(os.getpid(), signal.SIGTERM if attempt == 0 else signal.SIGKILL)
        time.sleep(60)
note("end")
"""


def truth(notes: list[dict[str, Any]], start: float, end: float) -> dict[str, float]:
    """Return the seconds of each category, by the job's own notes."""
    found = dict.fromkeys(
        ("productive", "data_wait", "checkpoint", "evaluation", "startup", "restart", "lost", "other"), 0.0
    )
    last = max(each["attempt"] for each in notes)
    ended = start
    for attempt in range(last + 1):
        own = [each for each in notes if each["attempt"] == attempt]
        found["restart" if attempt else "startup"] += own[0]["at"] - ended
        ended = own[-1]["at"]
        kept = unsaved = 0.0
        for each in own:
            if each["kind"] == "step":
                unsaved += each["took"]
                found["data_wait"] += each["wait"]
            elif each["kind"] in ("evaluation", "checkpoint"):
                found[each["kind"]] += each["took"]
                if each["kind"] == "checkpoint":
                    kept, unsaved = kept + unsaved, 0.0
        found["productive"] += kept + (unsaved if attempt == last else 0.0)
        found["lost"] += 0.0 if attempt == last else unsaved
    found["other"] += end - ended
    return found


def main() -> int:
    """Run the job, and return 1 where a category is off by more than a hundredth of the wall time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB, encoding="utf-8")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TACHOGRAPH_"))}
        tachograph = [sys.executable, "-m", "tachograph"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "2"]
        job = [*torchrun, "--monitor-interval", "0.1", str(folder / "job.py"), name, str(options.scale)]
        timed = ["sh", "-c", f'"$@"; date +%s.%N > {folder}/end', "sh", *job]
        command = [*tachograph, "run", "--store", name, "--run-id", "job", "--quiet", "--", *timed]
        subprocess.run(command, env=kept, check=True, timeout=800)  # noqa: S603 - ours
        end = float((folder / "end").read_text())
        told = subprocess.run(  # noqa: S603 - ours
            [*tachograph, "diagnose", "job", "--store", name, "--json"], env=kept, check=False, capture_output=True
        )
        notes = [json.loads(line) for line in (folder / "notes.jsonl").read_text().splitlines()]
    goodput = json.loads(told.stdout)["goodput"]
    start = notes[0]["start"]
    wanted, wall = truth(notes, start, end), end - start
    worst = 0.0
    for category, seconds in wanted.items():
        off = (goodput[category] - seconds) / wall
        worst = max(worst, abs(off))
        print(f"{category:12} {seconds:8.2f} s, told {goodput[category]:8.2f} s, off by {off:+.2%} of {wall:.1f} s")
    print(goodput["line"])
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main())
