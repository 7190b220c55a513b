"""Trainers under ``tachograph run``: what they log is in the run once, with loggers of theirs and without any.

In the names that a program is given for its loggers, ``tachograph`` is our own class, which it names then.
"""

from __future__ import annotations

import csv
import json
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

import tachograph
from bridged_rows import Conforms
from launches import run
from programs import write
from tachograph.runs.run import Run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "MLFLOW_TRACKING_URI": "file:mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DISABLE_MLFLOW_INTEGRATION": "FALSE",
}
TRANSFORMERS = """
import json, random, sys, torch
from transformers import DefaultFlowCallback, Trainer, TrainingArguments
torch.manual_seed(int(sys.argv[1]))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        shown = self.linear(x)
        return {"loss": (shown - labels).square().mean(), "logits": shown}

data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
names = sys.argv[2].split(",")
callbacks = []
if "tachograph" in names:
    from tachograph.integrations.transformers import TachographCallback
    callbacks.append(TachographCallback())
reports = [name for name in names if name not in ("none", "tachograph")] or "none"
arguments = TrainingArguments(
    "out", logging_steps=2, num_train_epochs=2, per_device_train_batch_size=8, report_to=reports,
    eval_strategy="epoch", disable_tqdm=True, save_strategy="no", use_cpu=True, learning_rate=0.0125,
)
trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
trainer.train()
if trainer.is_world_process_zero():
    with open("noted.json", "w") as file:
        json.dump(trainer.state.log_history, file)
print(len(trainer.callback_handler.callbacks))
"""
ACCELERATE = """
import json, random, sys
from accelerate import Accelerator
chance = random.Random(int(sys.argv[1]))
trackers = [name for name in sys.argv[2].split(",") if name != "none"]
if "tachograph" in trackers:
    from accelerate.tracking import register_tracker_class
    from tachograph.integrations.accelerate import TachographTracker
    register_tracker_class(TachographTracker)
accelerator = Accelerator(log_with=trackers or None, project_dir="out", cpu=True)
accelerator.init_trackers("project", config={"lr": 0.1, "layers": 3})
noted = []
for step in range(50):
    noted.append({"train/loss": chance.random(), "accuracy": chance.random(), "note": "text"})
    accelerator.log(noted[-1], step=step)
accelerator.end_training()
if accelerator.is_main_process:
    with open("noted.json", "w") as file:
        json.dump(noted, file)
print(len(accelerator.trackers))
"""
LIGHTNING = """
import os, sys, torch
import lightning
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
lightning.seed_everything(int(sys.argv[1]))

def own():
    from tachograph.integrations.lightning import TachographLogger
    return TachographLogger()

made = {
    "tensorboard": lambda: TensorBoardLogger("board"),
    "wandb": lambda: WandbLogger(project="p"),
    "mlflow": MLFlowLogger,
    "csv": lambda: CSVLogger("rows", name="", version=""),
    "tachograph": own,
}

class Model(lightning.LightningModule):
    def __init__(self, rate=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        loss = self.linear(batch[0]).square().mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val/loss", self.linear(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
loggers = [made[name]() for name in sys.argv[2].split(",") if name != "none"] or False
trainer = lightning.Trainer(
    max_epochs=2, logger=loggers, log_every_n_steps=2, enable_checkpointing=False, accelerator="cpu",
    enable_model_summary=False, devices=int(os.environ.get("WORLD_SIZE", "1")),
)
trainer.fit(Model(), data, data)
print(len(trainer.loggers), len(trainer.callbacks))
"""
FABRIC = """
import json, os, random, sys
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
chance = random.Random(int(sys.argv[1]))
loggers = [] if sys.argv[2] == "none" else [TensorBoardLogger("board")]
fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "1")), loggers=loggers)
fabric.launch()
noted = []
for step in range(50):
    noted.append({"train/loss": chance.random(), "accuracy": chance.random()})
    fabric.log("train/loss", noted[-1]["train/loss"], step)
    fabric.log_dict({"accuracy": noted[-1]["accuracy"]}, step)
if fabric.is_global_zero:
    with open("noted.json", "w") as file:
        json.dump(noted, file)
"""


def launched(
    folder: Path, program: str, seed: int, loggers: str, *, name: str = "job", ranks: int = 1, bridges: str = "all"
) -> Run:
    """Run a program under ``tachograph run``, and return what its hub has recorded."""
    options = ("--run-id", name, "--port", "0", "--linger", "0")
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}") if ranks > 1 else ()
    given = loggers.replace(DISABLED, "wandb")
    command = (sys.executable, *torchrun, str(write(folder, program)), str(seed), given)
    mode = {"WANDB_MODE": "disabled"} if given != loggers else {}
    done = run(folder, *command, options=options, timeout=200, TACHOGRAPH_BRIDGES=bridges, **{**OFFLINE, **mode})
    assert done.returncode == 0, done.stderr
    assert "dropped a value" not in done.stderr
    assert "could not record" not in done.stderr
    return tachograph.runs.open(name, folder / "store")


def stored(found: Run) -> dict[str, list[tuple[float, float]]]:
    """Return x and value of every point, by group and metric; a second library's would have a name of their own."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for point in found.points():
        source = "".join(f" @{point.attributes[key]}" for key in ("source",) if key in point.attributes)
        name = "/".join(part for part in (point.group, point.metric) if part) + source
        curves.setdefault(name, []).append((point.x, point.value))
    return curves


def noted(folder: Path) -> Any:
    """Return the program's own notes."""
    return json.loads((folder / "noted.json").read_text())


def of_csv(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the values of the file that Lightning's own CSV logger has written, by name."""
    (path,) = folder.glob("rows/**/metrics.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    return {
        name: [(float(row["step"]), float(row[name])) for row in rows if row[name]]
        for name in ("train/loss", "val/loss")
    }


def named(loggers: str, bridges: str) -> str:
    """Return the names of loggers as the table of conformance has them."""
    *some, last = [NAMES.get(name, name) for name in loggers.split(",")]
    together = f"{', '.join(some)} and {last} at once" if some else last
    return f"{together}, without bridges" if bridges == "none" else together


def rows_as_curves(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the numbers of the program's notes, a row a step, by name."""
    rows = list(enumerate(noted(folder)))
    return {name: [(float(step), row[name]) for step, row in rows] for name in ("train/loss", "accuracy")}


DISABLED = "wandb-disabled"
THREE = "tensorboard,wandb,mlflow"
NAMES = {"tachograph": "our class", DISABLED: "wandb disabled"}
CASES = [
    pytest.param("none", 1, "all", id="none"),
    pytest.param(DISABLED, 1, "all", marks=pytest.mark.long, id="wandb disabled"),
    pytest.param(THREE, 1, "all", marks=pytest.mark.long, id="three"),
    pytest.param(THREE, 2, "all", marks=pytest.mark.long, id="three in two ranks"),
    pytest.param("tachograph", 1, "none", marks=pytest.mark.long, id="our class"),
    pytest.param("tachograph,tensorboard", 1, "all", marks=pytest.mark.long, id="our class and bridges"),
    pytest.param("none", 2, "all", marks=pytest.mark.long, id="two ranks"),
    pytest.param("tachograph", 2, "none", marks=pytest.mark.long, id="our class in two ranks"),
]
"""Names of loggers, ranks, and TACHOGRAPH_BRIDGES."""


@pytest.mark.parametrize(("reports", "ranks", "bridges"), CASES)
def test_transformers(tmp_path: Path, reports: str, ranks: int, bridges: str, conforms: Conforms) -> None:
    """What is in the trainer's own history is in the run, with its steps; its arguments are the configuration."""
    found = launched(tmp_path, TRANSFORMERS, secrets.randbelow(2**30), reports, ranks=ranks, bridges=bridges)
    wanted: dict[str, list[tuple[float, float]]] = {}
    for entry in noted(tmp_path):
        for key, value in entry.items():
            if key != "step":
                name = "eval/" + key.removeprefix("eval_") if key.startswith("eval_") else f"train/{key}"
                wanted.setdefault(name, []).append((float(entry["step"]), float(value)))
    kept, own = stored(found), {"learning_rate": 0.0125, "num_train_epochs": 2}
    assert kept == wanted
    assert len(wanted["train/total_flos"]) == 1
    assert {key: found.config[key] for key in own} == own
    told = named(reports, bridges)
    conforms("transformers `Trainer`", told, ranks=ranks, found=found, logged=wanted, stored=kept, config=own)


@pytest.mark.parametrize(("trackers", "ranks", "bridges"), CASES)
def test_accelerate(tmp_path: Path, trackers: str, ranks: int, bridges: str, conforms: Conforms) -> None:
    """Each value of ``accelerator.log`` is one point, whatever its trackers are; so is its configuration."""
    found = launched(tmp_path, ACCELERATE, secrets.randbelow(2**30), trackers, ranks=ranks, bridges=bridges)
    wanted, kept, own = rows_as_curves(tmp_path), stored(found), {"lr": 0.1, "layers": 3}
    assert kept == wanted
    assert found.config == own
    told = named(trackers, bridges)
    conforms("Accelerate", told, ranks=ranks, found=found, logged=wanted, stored=kept, config=own)


NESTED = """
import sys
from accelerate import Accelerator
for step, trackers in enumerate((None, sys.argv[2].split(","))):
    accelerator = Accelerator(log_with=trackers, project_dir="out", cpu=True)
    accelerator.init_trackers("project")
    accelerator.log({"loss": 0.25, "eval": {"f1": step + 0.5}}, step=step)
    accelerator.end_training()
"""


@pytest.mark.long
def test_nested_values_of_accelerate(tmp_path: Path) -> None:
    """Values in nested dictionaries are curves with their groups, once each, with and without trackers."""
    found = launched(tmp_path, NESTED, 1, "tensorboard,wandb")
    assert stored(found) == {
        "loss": [(0.0, 0.25), (1.0, 0.25)],
        "eval/f1": [(0.0, 0.5), (1.0, 1.5)],
    }


@pytest.mark.parametrize(
    ("loggers", "ranks", "bridges"),
    [
        pytest.param(f"{THREE},csv", 1, "all", marks=pytest.mark.long, id="three"),
        pytest.param(f"{THREE},csv", 2, "all", marks=pytest.mark.long, id="three in two ranks"),
        pytest.param(f"csv,{DISABLED}", 1, "all", marks=pytest.mark.long, id="wandb disabled"),
        pytest.param("tachograph,csv", 1, "none", marks=pytest.mark.long, id="our class"),
        pytest.param("csv,tachograph,tensorboard", 1, "all", id="our class and bridges"),
        pytest.param("csv", 2, "all", marks=pytest.mark.long, id="two ranks"),
        pytest.param("csv,tachograph", 2, "none", marks=pytest.mark.long, id="our class in two ranks"),
    ],
)
def test_lightning(tmp_path: Path, loggers: str, ranks: int, bridges: str, conforms: Conforms) -> None:
    """Values of ``self.log`` are those of Lightning's own CSV file, once with four loggers; without any, the same."""
    seed = secrets.randbelow(2**30)
    found = launched(tmp_path, LIGHTNING, seed, loggers, ranks=ranks, bridges=bridges)
    curves, of_file = stored(found), of_csv(tmp_path)
    for name, points in of_file.items():
        assert len(points) == {"train/loss": 8 // ranks, "val/loss": 2}[name]
        assert curves[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in points]
    assert set(curves) - ({"epoch"} if bridges == "none" else set()) == {"train/loss", "val/loss"}
    assert found.config["rate"] == 0.1
    kept = {name: curves[name] for name in of_file}
    shown = {"logged": of_file, "stored": kept, "config": {"rate": 0.1}}
    conforms("Lightning", named(loggers, bridges), ranks=ranks, found=found, **shown)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_without_a_logger(tmp_path: Path, ranks: int, conforms: Conforms) -> None:
    """With ``logger=False`` the values are those that it has with a logger, whose file has them."""
    seed = secrets.randbelow(2**30)
    launched(tmp_path, LIGHTNING, seed, "csv", ranks=ranks, bridges="none", name="with")
    of_file = of_csv(tmp_path)
    found = launched(tmp_path, LIGHTNING, seed, "none", ranks=ranks)
    kept, own = stored(found), {"rate": 0.1}
    assert kept == {
        name: [(step, pytest.approx(value, rel=1e-6)) for step, value in points] for name, points in of_file.items()
    }
    assert found.config["rate"] == 0.1
    conforms("Lightning", "none", ranks=ranks, found=found, logged=of_file, stored=kept, config=own)


@pytest.mark.long
def test_lightning_under_its_other_name(tmp_path: Path, conforms: Conforms) -> None:
    """A program that imports ``pytorch_lightning`` is recorded as one that imports ``lightning``."""
    program = LIGHTNING.replace("import lightning\n", "import pytorch_lightning as lightning\n")
    program = program.replace("from lightning.pytorch", "from pytorch_lightning")
    found = launched(tmp_path, program, secrets.randbelow(2**30), "tensorboard,csv")
    kept, own = stored(found), {"rate": 0.1}
    assert {name: len(points) for name, points in kept.items()} == {"train/loss": 8, "val/loss": 2}
    told = named("tensorboard,csv", "all")
    conforms("`pytorch_lightning`", told, found=found, logged=of_csv(tmp_path), stored=kept, config=own)


@pytest.mark.long
@pytest.mark.parametrize(("loggers", "ranks"), [("none", 1), ("tensorboard", 1), ("tensorboard", 2)])
def test_fabric(tmp_path: Path, loggers: str, ranks: int, conforms: Conforms) -> None:
    """Each value of ``fabric.log`` and ``log_dict`` is one point, with a logger and without, and in two ranks."""
    found = launched(tmp_path, FABRIC, secrets.randbelow(2**30), loggers, ranks=ranks)
    wanted, kept = rows_as_curves(tmp_path), stored(found)
    assert kept == wanted
    conforms("Fabric", named(loggers, "all"), ranks=ranks, found=found, logged=wanted, stored=kept, config={})
