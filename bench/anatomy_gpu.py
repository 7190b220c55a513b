"""The anatomy of steps on a CUDA device: nothing waits for it, nothing of the program changes, phases are the device's.

``sh scripts/on_gpu.sh FOLDER`` runs all checks, each by itself: weights and random states with and without it, bit for
bit; ``set_sync_debug_mode("error")``; a captured graph; the overhead, in paired blocks; the phases of loads whose times
are known; and a job under ``tachograph run``. Prints one JSON object; ``wrong`` lists the failures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tachograph import runs
from tachograph.diagnosis.anatomy_series import EVENT, AnatomyOfSteps
from tachograph.diagnosis.phases import PHASES
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

WITHIN = 0.15  # of a known time: the device's clock changes its pace
SMALL_GOAL, LARGE_GOAL = 25.0, 0.003  # us a step of a small model; share of a step of 50 ms
PAIRS = 14
DEVICE = "cuda"
keep_busy: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001 - torch's own tests have no other way


class Seen:
    """The totals of a program's steps, once it has ended."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.journal = Journal(self.registry)
        self.steps = AnatomyOfSteps(self.registry, self.journal)
        self.totals: dict[str, Any] = {}
        self.errors = 0

    def end(self) -> None:
        """Restore torch, and take the last event."""
        self.steps.close()
        for event in self.journal.drain():
            if event.name == EVENT:
                self.totals = dict(event.attributes)
        for metric in self.registry.collect():
            if metric.name == "tachograph.errors":
                self.errors = sum(int(point.value) for point in metric.points)  # type: ignore[union-attr]

    def phases(self, which: str) -> dict[str, float]:
        """Return the milliseconds a step of each phase."""
        steps = max(1, self.totals.get("device.steps" if which != "phases" else "steps", 0))
        return {name: time / steps / 1e6 for name, time in zip(PHASES, self.totals.get(which, ()), strict=False)}


@contextlib.contextmanager
def seen() -> Iterator[Seen]:
    """Look into a program's steps."""
    found = Seen()
    try:
        yield found
    finally:
        found.end()


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples that take their time.

    Args:
        size: how many.
        seconds: for each.
        width: of one.
    """

    def __init__(self, size: int, seconds: float = 0.0, width: int = 256) -> None:
        self.size, self.seconds = size, seconds
        self.x = torch.randn(512, width)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return self.x[index % 512], index % 10


def model(width: int = 256, depth: int = 2) -> Any:
    """Return a model on the device."""
    layers: list[Any] = [nn.Linear(256, width), nn.ReLU(), nn.Dropout(0.1)]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)


def train(steps: int, *, scaled: bool = False, net: Any = None) -> Any:
    """Train a model, by default a new one, for some steps, and return it."""
    net = model() if net is None else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)
    for x, y in torch.utils.data.DataLoader(Data(steps * 32), batch_size=32, pin_memory=True):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, enabled=scaled):
            loss = nn.functional.cross_entropy(net(x.to(DEVICE, non_blocking=True)), y.to(DEVICE, non_blocking=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return net


def digest(*, scaled: bool, look: bool) -> str:
    """Return the digest of a training's weights and random states."""
    torch.manual_seed(7)
    with seen() if look else contextlib.nullcontext():
        net = train(60, scaled=scaled)
    states = [value.cpu().numpy().tobytes() for value in net.state_dict().values()]
    states += [torch.get_rng_state().numpy().tobytes(), torch.cuda.get_rng_state().numpy().tobytes()]
    return hashlib.sha256(b"".join(states)).hexdigest()[:16]


def identity() -> dict[str, Any]:
    """Compare weights and random states."""
    torch.use_deterministic_algorithms(True)
    try:
        found = {}
        for name, scaled in (("plain", False), ("amp", True)):
            without, again = (digest(scaled=scaled, look=False) for _ in range(2))
            within = digest(scaled=scaled, look=True)
            found[name] = {"deterministic": without == again, "same": without == within}
    finally:
        torch.use_deterministic_algorithms(False)
    wrong = [name for name, each in found.items() if each["deterministic"] and not each["same"]]
    return {**found, "wrong": wrong}


def synchronisation() -> dict[str, Any]:
    """Train while torch raises at each synchronisation."""
    wrong, steps = [], {}
    net = train(5)
    for look in (False, True):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with seen() if look else contextlib.nullcontext() as found:
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    train(50, net=net)
        except RuntimeError as error:
            wrong.append(f"{'with' if look else 'without'}: {error!r:.300}")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if found is not None:
            steps = {key: found.totals.get(key) for key in ("steps", "device.steps")}
            if found.errors or not found.totals.get("device.steps"):
                wrong.append(f"errors {found.errors}, steps on the device {found.totals.get('device.steps')}")
    return {**steps, "wrong": wrong}


def capture() -> dict[str, Any]:
    """Capture whole steps into a graph while steps are timed, and replay it."""
    results, wrong = [], []
    for look in (False, False, True):
        torch.manual_seed(11)
        with seen() if look else contextlib.nullcontext() as found:
            net = nn.Linear(256, 10, device=DEVICE)
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)
            x, y = torch.randn(32, 256, device=DEVICE), torch.arange(32, device=DEVICE) % 10

            def step(net: Any = net, optimizer: Any = optimizer, x: Any = x, y: Any = y) -> None:
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            for _ in range(30):  # in some of them a step is being timed when the capture begins
                step()
                time.sleep(0.004)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            for _ in range(20):
                graph.replay()
            for _ in range(30):
                step()
                time.sleep(0.004)
        if found is not None and (found.errors or not found.totals.get("device.steps")):
            wrong.append(f"errors {found.errors}, steps on the device {found.totals.get('device.steps')}")
        results.append(hashlib.sha256(net.weight.detach().cpu().numpy().tobytes()).hexdigest()[:16])
    deterministic, same = results[0] == results[1], results[0] == results[2]
    return {"deterministic": deterministic, "same": same, "wrong": wrong + ["weights"] * (deterministic and not same)}


def paired(width: int, depth: int, batch: int, steps: int, pairs: int) -> dict[str, float]:
    """Return the microseconds a step with and without, in blocks by turns, each order as often."""
    net = model(width, depth)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    data = torch.utils.data.DataLoader(Data(batch * steps), batch_size=batch, pin_memory=True)

    def block(*, look: bool) -> float:
        with seen() if look else contextlib.nullcontext():
            begun = time.perf_counter()
            for x, y in data:
                optimizer.zero_grad()
                out = net(x.to(DEVICE, non_blocking=True))
                nn.functional.cross_entropy(out, y.to(DEVICE, non_blocking=True)).backward()
                optimizer.step()
            torch.cuda.synchronize()
            return (time.perf_counter() - begun) / steps * 1e6

    block(look=False), block(look=True)
    differences, without = [], []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        took = {look: block(look=look) for look in order}
        differences.append(took[True] - took[False])
        without.append(took[False])
    error = statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.mean(differences)
    found = {"step_us": statistics.median(without), "paired_us": statistics.median(differences), "mean_us": mean}
    return {name: round(value, 2) for name, value in {**found, "upper_us": mean + 1.8 * error}.items()}


def overhead() -> dict[str, Any]:
    """Measure the cost a step of a small model and of a large one."""
    small = paired(256, 2, 32, 300, PAIRS)
    large = paired(4096, 8, 4096, 12, PAIRS)
    wrong = []
    if small["paired_us"] > SMALL_GOAL:
        wrong.append(f"{small['paired_us']} us a small step, at most {SMALL_GOAL}")
    if large["paired_us"] > LARGE_GOAL * large["step_us"]:
        wrong.append(f"{large['paired_us']} us of a step of {large['step_us']} us")
    return {"small": small, "large": large, "wrong": wrong}


class _Busy(torch.autograd.Function):
    """Keeps the device busy in the forward and in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, forward: int, backward: int) -> Any:
        ctx.backward_cycles = backward
        keep_busy(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        keep_busy(ctx.backward_cycles)
        return gradients[0], None, None


class _Slow(torch.optim.SGD):
    """Keeps the device busy in its step."""

    cycles = 0

    def step(self, closure: Any = None) -> Any:
        keep_busy(self.cycles)
        return super().step(closure)


def cycles_a_ms() -> float:
    """Return how many cycles the device sleeps in a millisecond."""
    keep_busy(10**8)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    keep_busy(10**8)
    end.record()
    end.synchronize()
    return float(10**8 / begin.elapsed_time(end))


def loaded(times: dict[str, float], seconds: float, steps: int) -> Seen:
    """Train with a load of so many milliseconds a phase on the device, and seconds a batch on the host."""
    a_ms = cycles_a_ms()
    cycles = {name: int(ms * a_ms) for name, ms in times.items()}
    net = nn.Linear(256, 10, device=DEVICE)
    optimizer = _Slow(net.parameters(), lr=1e-4)
    optimizer.cycles = cycles["optimizer"]
    torch.cuda.synchronize()
    with seen() as found:
        for number, (x, _) in enumerate(torch.utils.data.DataLoader(Data(steps, seconds), pin_memory=True)):
            out = _Busy.apply(net(x.to(DEVICE, non_blocking=True)), cycles["forward"], cycles["backward"])
            out.sum().backward()
            keep_busy(cycles["gradients"])
            optimizer.step()
            optimizer.zero_grad()
            if number % 20 == 19:  # the program's own wait, so that it does not run ahead without end
                torch.cuda.synchronize()
    return found


def known_loads() -> dict[str, Any]:
    """Compare the phases on the device with those that it was given."""
    wrong, found = [], {}
    wanted = {"forward": 6.0, "backward": 12.0, "gradients": 4.0, "optimizer": 3.0}
    for name, seconds, idle in (("busy", 0.0, 0.0), ("starved", 0.06, 35.0)):
        looked = loaded(wanted, seconds, 80)
        device, host = looked.phases("device"), looked.phases("phases")
        found[name] = {
            "steps": [looked.totals.get("steps"), looked.totals.get("device.steps")],
            "device_ms": {key: round(value, 2) for key, value in device.items()},
            "host_ms": {key: round(value, 2) for key, value in host.items()},
        }
        expected = {**wanted, **({"data_wait": idle} if idle else {})}
        wrong += [
            f"{name}: {key} {device.get(key, 0.0):.2f} ms, not {ms}"
            for key, ms in expected.items()
            if abs(device.get(key, 0.0) - ms) > WITHIN * ms + 0.3
        ]
        if not idle and device.get("data_wait", 0.0) > 1:
            wrong.append(f"{name}: data_wait {device['data_wait']:.2f} ms though the host was ahead")
        allocated = looked.totals.get("allocated")
        if not allocated or looked.errors:
            wrong.append(f"{name}: {allocated} bytes allocated, {looked.errors} errors")
    return {**found, "wrong": wrong}


def within_backward() -> dict[str, Any]:
    """Step optimizers in hooks of the backward, which run in the device's own thread."""
    net = model()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in net.parameters()}
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: optimizers[each].step())
    with seen() as found:
        for x, _ in torch.utils.data.DataLoader(Data(320), batch_size=32):
            net(x.to(DEVICE)).sum().backward()
    return {"steps": found.totals.get("steps"), "wrong": ["errors"] * bool(found.errors)}


JOB = """
import torch
from torch import nn
net = nn.Linear(256, 10).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(6000, 256), torch.arange(6000) % 10)
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x.cuda()), y.cuda()).backward()
    optimizer.step()
"""


def run() -> dict[str, Any]:
    """Run a job under ``tachograph run``, and read its totals."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name, "job.py")
        script.write_text(JOB, encoding="utf-8")
        command = [sys.executable, "-m", "tachograph", "run", "--store", name, "--", sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
        totals: dict[str, Any] = {}
        for listed in runs.list(name):
            for event in runs.open(listed.id, name).events(EVENT):
                totals = dict(event.attributes)
    said = {key: totals.get(key) for key in ("steps", "samples", "device.steps", "allocated")}
    wrong = [] if done.returncode == 0 and totals.get("steps") == 1500 else [done.stderr[-800:]]
    return {**said, "stderr": done.stderr.splitlines()[-4:], "wrong": wrong}


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "identity": identity,
    "synchronisation": synchronisation,
    "capture": capture,
    "known_loads": known_loads,
    "within_backward": within_backward,
    "run": run,
    "overhead": overhead,
}


def main() -> int:
    """Make all checks; return 1 where something is wrong, 2 where there is no device."""
    if not torch.cuda.is_available():
        print(json.dumps({"error": "no CUDA device"}))
        return 2
    begun = time.monotonic()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cpus": os.cpu_count()}
    wrong = []
    for name, check in CHECKS.items():
        since = time.monotonic()
        try:
            found[name] = check()
        except Exception as error:  # noqa: BLE001 - the others are made all the same
            found[name] = {"wrong": [repr(error)[:500], traceback.format_exc()[-1500:]]}
        found[name]["seconds"] = round(time.monotonic() - since, 1)
        wrong += [name] * bool(found[name]["wrong"])
        Path(sys.argv[1]).write_text(json.dumps({**found, "wrong": wrong}), encoding="utf-8")
    found |= {"seconds": round(time.monotonic() - begun, 1), "wrong": wrong}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    print(json.dumps(found))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
