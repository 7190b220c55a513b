"""Unmodified programs under ``tachograph run``: each value that they log is in the run once, as in the library's file.

The values are random in each run of the tests. A library that is missing is a failure: its package is among those of
the tests.
"""

from __future__ import annotations

import math
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tachograph
from bridged_rows import Conforms, of_ranks
from launches import run
from logged_files import Logged, mlflow_runs, mlflow_values, tensorboard_values, wandb_values
from programs import environment, write
from tachograph.runs.run import Run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = """
import hashlib, logging, math, os, random, sys
import numpy as np
import torch

seed, kinds, rank = int(sys.argv[1]), sys.argv[2].split(","), int(os.environ.get("RANK", "0"))
random.seed(seed + rank)
np.random.seed(seed % 2**32)
torch.manual_seed(seed + rank)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
settings = {"lr": 0.01, "layers": 2, "optimizer": "SGD", "seed": seed}
writers = []
if "tensorboard" in kinds:
    from torch.utils.tensorboard import SummaryWriter
    writers.append(SummaryWriter(f"runs/{rank}"))
if "tensorboardx" in kinds:
    import tensorboardX
    writers.append(tensorboardX.SummaryWriter(f"runs-x/{rank}"))
run = None
if "wandb" in kinds:
    import wandb
    run = wandb.init(project="p", config=settings, dir=f"wandb-{rank}", settings=wandb.Settings(console="off"))
    run.define_metric("val/*", step_metric="epoch")
tracked = None
if "mlflow" in kinds:
    import mlflow as tracked
    tracked.set_tracking_uri(f"file:mlruns-{rank}")
    tracked.start_run(run_name="only")
    tracked.log_params(settings)
for turn, step in enumerate([*range(300), *range(280, 320)]):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.detach() * (math.nan if turn == 7 else 1)
    accuracy = {"train": random.random(), "valid": random.random()}
    for writer in writers:
        writer.add_scalar("train/loss", shown, step)
        writer.add_scalar("lr", np.float64(random.random()) if len(writers) == 1 and run is None else 0.01 * step, step)
        writer.add_scalars("accuracy", accuracy, step)
        if turn % 100 == 0:
            writer.add_histogram("weights", model[0].weight, step)
            writer.add_text("note", "text", step)
    if tracked is not None:
        tracked.log_metrics({"train/loss": shown.item(), "lr": 0.01 * step}, step=step)
        tracked.log_metrics({f"accuracy/{name}": value for name, value in accuracy.items()}, step=step)
    if run is not None:
        run.log({"train/loss": shown.item(), "lr": 0.01 * step, "nested": {"value": accuracy["train"]}}, step=step)
        if turn % 50 == 49 and turn < 300:
            run.log({"val/accuracy": accuracy["valid"], "epoch": turn // 50}, step=step)
for writer in writers:
    called = "run_name" if hasattr(writer, "log_dir") else "name"
    writer.add_hparams(settings, {"final": 0.5}, **{called: "hp"})
    writer.close()
if run is not None:
    run.summary["best"] = 0.75
    run.config.update({"late": (0.9, 1, {"width": None})})
    logging.getLogger("wandb.sdk.lib.asyncio_manager").error("Uncaught exception in run_soon callback.")
    run.finish()
if tracked is not None:
    tracked.end_run()
weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
state = repr((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())).encode()
print("weights", hashlib.sha256(weights).hexdigest(), "random", hashlib.sha256(state).hexdigest())
sys.exit(3)
"""
QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


LOOP = "a training loop"


def configured(seed: int) -> dict[str, object]:
    """Return the program's configuration."""
    return {"lr": 0.01, "layers": 2, "optimizer": "SGD", "seed": seed}


def launched(folder: Path, kinds: str, *, ranks: int = 1, seed: int, name: str = "job", **more: str) -> Run:
    """Run the program under ``tachograph run``, and return what its hub has recorded."""
    path = write(folder, PROGRAM)
    command = [sys.executable, str(path)]
    if ranks > 1:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            str(path),
        ]
    for rank in range(ranks):
        (folder / f"wandb-{rank}").mkdir(exist_ok=True)
    options = ("--run-id", name, "--port", "0", "--linger", "0")
    done = run(folder, *command, str(seed), kinds, options=options, timeout=250, **{**QUIET, **more})
    assert done.returncode == (3 if ranks == 1 else 1), done.stderr
    assert "could not instrument" not in done.stderr
    assert "dropped a value" not in done.stderr
    assert "could not record" not in done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return tachograph.runs.open(name, folder / "store")


def stored(found: Run, rank: int | None) -> Logged:
    """Return the points of every curve of a rank: ``group/metric``, with ``source`` behind an @ where there is one.

    Those of a histogram, which have no values of their own in the libraries' files, are left out.
    """
    curves: Logged = {}
    for point in found.points(rank=rank):
        if point.metric == "weights":
            continue
        source = point.attributes.get("source")
        name = "/".join(part for part in (point.group, point.metric) if part) + (f" @{source}" if source else "")
        curves.setdefault(name, []).append((point.x, point.value))
    return curves


def as_single(points: list[tuple[float, float]]) -> list[tuple[float, str]]:
    """Return points in single precision, which is what TensorBoard keeps; NaN is equal to itself."""
    return [(x, str(np.float32(value))) for x, value in points]


def of_writer(folder: Path) -> Logged:
    """Return a writer's values by the names that they have with us."""
    found: Logged = {}
    for tag, points in tensorboard_values(folder).items():
        below, _, name = tag.rpartition(":")
        if below.startswith("accuracy"):  # a folder of its own for each curve: torch's accuracy_train, accuracy/train
            name = "accuracy/" + below.removeprefix("accuracy")[1:]
        elif below:
            continue  # of add_hparams, whose results are the summary
        found[name] = points
    return found


def offline_file(folder: Path, rank: int) -> Path:
    """Return the file of the one run that a rank has logged to W&B."""
    (path,) = folder.glob(f"wandb-{rank}/wandb/offline-run-*/*.wandb")
    return path


def alike(one: Logged, other: Logged) -> None:
    """Check that two sources have the same values at the same x, in single precision."""
    assert {name: as_single(points) for name, points in one.items()} == {
        name: as_single(points) for name, points in other.items()
    }


def repeated(found: Run) -> float:
    """Return the number of values that came by a second library."""
    return sum(float(series.value) for series in found.series("tachograph.bridge.repeated"))


@pytest.mark.parametrize(
    ("kind", "folder"),
    [("tensorboard", "runs"), pytest.param("tensorboardx", "runs-x", marks=pytest.mark.long)],
)
def test_a_writers_values_are_those_of_its_file(tmp_path: Path, kind: str, folder: str, conforms: Conforms) -> None:
    """TensorBoard alone: values, steps, configuration, results, histograms; a step that goes back is a branch."""
    seed = secrets.randbelow(2**40)
    found = launched(tmp_path, kind, seed=seed)
    curves = stored(found, None)
    of_file = of_writer(tmp_path / folder / "0")
    alike(curves, of_file)
    assert set(curves) == {"train/loss", "lr", "accuracy/train", "accuracy/valid"}
    assert {point.branch for point in found.points("loss")} == {0, 1}
    assert sum(math.isnan(value) for _, value in curves["train/loss"]) == 1
    assert found.config == configured(seed)
    assert found.summary == {"final": 0.5}
    (weights,) = found.series("weights")
    assert weights.value.count == 4 * 128
    assert [(point.x, point.more["count"]) for point in found.points("weights")] == [
        (x, 128) for x in (0, 100, 200, 280)
    ]
    (texts,) = found.series("tachograph.bridge.not_taken")
    assert (texts.value, texts.attributes) == (4, {"library": kind, "kind": "text"})
    conforms(LOOP, kind, found=found, logged=of_file, stored=curves, config=configured(seed))


def test_wandb_has_the_values_of_its_file(tmp_path: Path, conforms: Conforms) -> None:
    """W&B offline: values, steps, an axis of its own, configuration and results."""
    seed = secrets.randbelow(2**40)
    found = launched(tmp_path, "wandb", seed=seed)
    curves, of_file = stored(found, None), wandb_values(offline_file(tmp_path, 0))
    epochs = [epoch for _, epoch in of_file["epoch"]]
    of_file["val/accuracy"] = [
        (epoch, value) for epoch, (_, value) in zip(epochs, of_file["val/accuracy"], strict=True)
    ]
    kept = dict(curves)
    for name in ("train/loss", "lr", "nested.value"):
        assert len(kept[name]) == 340
        # W&B refuses steps that go back, which are a branch here; a step that comes again takes its row over.
        kept[name] = kept[name][:299] + [point for point in kept[name][300:] if point[0] >= 299]
    alike(kept, of_file)
    assert found.config == configured(seed) | {"late": [0.9, 1, {"width": None}]}
    assert found.summary == {"best": 0.75}
    assert not [event for event in found.events("tachograph.log") if "run_soon" in str(event.attributes["body"])]
    conforms(LOOP, "wandb offline", found=found, logged=of_file, stored=kept, config=found.config)


@pytest.mark.long
def test_a_disabled_wandb_has_the_same_values(tmp_path: Path, conforms: Conforms) -> None:
    """W&B disabled: values, configuration and results are those that it has offline."""
    seed = secrets.randbelow(2**40)
    offline = launched(tmp_path, "wandb", seed=seed, name="offline")
    disabled = launched(tmp_path, "wandb", seed=seed, name="disabled", WANDB_MODE="disabled")
    curves, of_offline = stored(disabled, None), stored(offline, None)
    alike(curves, of_offline)
    assert (disabled.config, disabled.summary) == (offline.config, offline.summary)
    conforms(LOOP, "wandb disabled", found=disabled, logged=of_offline, stored=curves, config=offline.config)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_at_once_each_value_is_there_once(tmp_path: Path, ranks: int, conforms: Conforms) -> None:
    """Four libraries log the same: each value is one point of each rank, and the job has not changed.

    Its weights and the state of its random numbers are those of a run without us, as are its output, its exit code and
    its files.
    """
    seed, kinds = secrets.randbelow(2**40), "tensorboard,tensorboardx,wandb,mlflow"
    found = launched(tmp_path, kinds, ranks=ranks, seed=seed)
    logged, kept = {}, {}
    for number in range(ranks):
        curves = stored(found, number if ranks > 1 else None)
        of_wandb = {name: curves.pop(name) for name in ("nested.value", "val/accuracy", "epoch")}
        logged[number], kept[number] = of_writer(tmp_path / "runs" / str(number)), curves
        alike(curves, logged[number])
        alike(curves, of_writer(tmp_path / "runs-x" / str(number)))
        (folder,) = mlflow_runs(tmp_path / f"mlruns-{number}").values()
        alike(curves, mlflow_values(folder))
        own = wandb_values(offline_file(tmp_path, number))
        assert [value for _, value in of_wandb["val/accuracy"]] == [value for _, value in own["val/accuracy"]]
        assert len(of_wandb["nested.value"]) == 340
    # Of four curves of a second writer, two of W&B's, and four of MLflow's.
    assert repeated(found) == ranks * 340 * (4 + 2 + 4) + ranks * 2
    names = "tensorboard, tensorboardx, wandb and mlflow at once"
    both = {"logged": of_ranks(logged), "stored": of_ranks(kept)}
    conforms(LOOP, names, found=found, config=configured(seed), ranks=ranks, **both)
    if ranks > 1:
        return
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "wandb-0").mkdir()
    command = [sys.executable, str(write(plain, PROGRAM)), str(seed), kinds]
    without = subprocess.run(
        command, cwd=plain, env=environment(plain, **QUIET), capture_output=True, text=True, timeout=120, check=False
    )
    assert without.returncode == 3, without.stderr
    assert (tmp_path / "said.txt").read_text() == without.stdout
    for each in ("runs", "runs-x"):
        assert repr(tensorboard_values(plain / each)) == repr(tensorboard_values(tmp_path / each))
    assert repr(wandb_values(offline_file(plain, 0))) == repr(wandb_values(offline_file(tmp_path, 0)))
    ours = {"plain", "store", "said.txt"}
    assert {path.name for path in tmp_path.iterdir()} - ours == {path.name for path in plain.iterdir()} - ours


@pytest.mark.long
@pytest.mark.parametrize("asked", ["none", "wandb"])
def test_a_bridge_that_was_not_asked_for_takes_nothing(tmp_path: Path, asked: str) -> None:
    """TACHOGRAPH_BRIDGES names the libraries; the values of others are not recorded."""
    found = launched(tmp_path, "tensorboard", seed=1, TACHOGRAPH_BRIDGES=asked)
    assert stored(found, None) == {}


TWO_RUNS = """
import math, sys
import numpy as np
import torch
import wandb

for number, mode in enumerate(("offline", "disabled")):
    run = wandb.init(
        project="p", mode=mode, name=f"run {number}", id=f"id{number}", config={"lr": 0.5 + number},
        reinit="create_new", settings=wandb.Settings(console="off", silent=True),
    )
    values, tensor, array = {"a": 0.0}, torch.zeros(()), np.zeros(())
    for step in range(10):
        values["a"] += 1
        tensor += 2
        array += 3
        run.log(values, commit=False)
        run.log({"tensor": tensor, "array": array, "flag": True, "rows": [1, 2], "text": "x", "bad": torch.ones(2)})
    for step in (20, 25, 25):
        run.log({"odd name, with/slash": math.nan}, step=step)
    run.log({"last": 1})
    run.finish()
"""


def test_two_runs_of_wandb_are_two_groups(tmp_path: Path) -> None:
    """A second run in the process is a group of its own, which is said; values are those of the moment of the call."""
    path = write(tmp_path, TWO_RUNS)
    done = run(tmp_path, sys.executable, str(path), options=("--run-id", "job", "--port", "0", "--linger", "0"))
    assert done.returncode == 0, done.stderr
    assert (
        "wandb has 2 writers or runs in this process: recording the values of the latest one in group 'run 1'"
        in done.stderr
    )
    assert "wandb: dropped a value of 'bad'" in done.stderr
    assert "wandb: not recorded because they are not numbers: int: 20, str: 20" in done.stderr
    found = tachograph.runs.open("job", tmp_path / "store")
    steps = [float(step) for step in range(10)]
    wanted = {
        "a": [(step, step + 1) for step in steps],
        "tensor": [(step, 2 * step + 2) for step in steps],
        "array": [(step, 3 * step + 3) for step in steps],
        "flag": [(step, 1.0) for step in steps],
        "odd name, with/slash": [(20.0, math.nan), (25.0, math.nan), (25.0, math.nan)],
        "last": [(25.0, 1.0)],
    }
    alike(stored(found, None), wanted | {f"run 1/{name}": points for name, points in wanted.items()})
    assert found.config == {"lr": 0.5, "run 1.lr": 1.5}


SWEEP = """
import gc
import wandb

for number in range(1100):
    run = wandb.init(project="p", mode="disabled", name=f"run {number}", config={"lr": number}, reinit="create_new")
    for step in range(3):
        run.log({"train/loss": number + step / 4}, step=step)
    run.finish()
del run
gc.collect()
from tachograph.instrumentation import WandbInstrumentor
from tachograph.instrumentation.bridges._values import _everywhere
[values] = _everywhere
values.settle()
print(len(values._origins), len(WandbInstrumentor()._notes._runs))
"""


@pytest.mark.long
def test_a_sweep_of_wandb_in_one_process(tmp_path: Path) -> None:
    """Each value of each run is there; the notes of runs that have ended are not kept beyond 1,024."""
    path = write(tmp_path, SWEEP)
    options = ("--run-id", "job", "--port", "0", "--linger", "0")
    done = run(tmp_path, sys.executable, str(path), options=options, timeout=200, **QUIET)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1024", "1"]  # W&B itself holds its last one
    curves = stored(tachograph.runs.open("job", tmp_path / "store"), None)
    values = {(x, value) for points in curves.values() for x, value in points}
    assert len(curves) == 1100
    assert values == {(float(step), number + step / 4) for number in range(1100) for step in range(3)}
