"""MLflow and trackio under ``tachograph run``: each value that they keep is in the run once, as in their own store."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import pytest

import tachograph
from bridged_rows import Conforms, of_ranks
from launches import run, run_program
from logged_files import Logged, mlflow_runs, mlflow_values
from programs import beside, write
from tachograph.recording.journal import LOG
from tachograph.runs.run import Run
from test_bridges_trainers import ACCELERATE, TRANSFORMERS

pytestmark = pytest.mark.timeout(300)

MLFLOW = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DISABLE_MLFLOW_INTEGRATION": "FALSE"}
OPTIONS = ("--run-id", "job", "--port", "0", "--linger", "0")
PROGRAM = """
import math, os, random, sys, threading
import mlflow, numpy, torch
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

chance = random.Random(int(sys.argv[1]))
mlflow.set_tracking_uri("file:mlruns")
client = MlflowClient()
with mlflow.start_run(run_name="parent") as run:
    parent = run.info.run_id
    mlflow.log_params({"lr": 0.1, "layers": (2, [0.5]), "optimizer": "SGD", "version": "0010", "api_key": "hidden"})
    mlflow.log_param("amsgrad", True)
    for turn, step in enumerate([*range(100), *range(90, 110)]):
        mlflow.log_metric("train/loss", math.nan if turn == 7 else chance.random(), step=step)
        values = {"accuracy": numpy.float64(chance.random()), "lr": torch.tensor(chance.random())}
        values |= {"array": numpy.array(turn), "flag": turn % 2 == 0}
        mlflow.log_metrics(values, step=step, synchronous=turn % 5 == 0)
    mlflow.flush_async_logging()
    for _ in range(5):
        mlflow.log_metric("plain", chance.random())
    for step in range(3):
        client.log_metric(parent, "timed", chance.random(), timestamp=1_700_000_000_123 + step, step=step + 10)
    batch = [Metric("batched", chance.random(), 1_700_000_000_000, step) for step in range(2500)]
    batch.append(Metric("ends", math.inf, 1_700_000_000_000, 1))
    client.log_batch(parent, batch, [Param("batch", "64")], [RunTag("of.mine", "1")])

    def of_thread(name):
        for step in range(50):
            mlflow.log_metric(name, step / 7, step=step, run_id=parent)

    threads = [threading.Thread(target=of_thread, args=(f"thread/{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with mlflow.start_run(run_name="child", nested=True):
        mlflow.log_param("lr", 0.2)
        for step in range(10):
            mlflow.log_metric("train/loss", chance.random(), step=step)
    for wrong in (lambda: client.log_metric("no-such-run", "a", 1.0), lambda: mlflow.log_metric("b", "text"),
                  lambda: mlflow.log_metric("c", object())):
        try:
            wrong()
        except Exception as error:
            print("refused", type(error).__name__)
    mlflow.set_tag("mine", "yes")
    mlflow.log_text("a", "a.txt")
    mlflow.log_dict({"a": 1}, "a.json")
    mlflow.log_image(numpy.zeros((4, 4, 3), dtype="uint8"), key="image", step=1)  # two files
    mlflow.log_table({"a": [1, 2]}, "table.json")
    mlflow.log_artifact(__file__)
    try:
        mlflow.log_text(5, "wrong.txt")
    except TypeError:
        pass
    child = os.fork()
    if not child:
        mlflow.log_metric("forked", 1.0, step=1, run_id=parent)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
sys.exit(3)
"""
RANKS = """
import logging, os, random, sys
import mlflow
from torch.utils.tensorboard import SummaryWriter

rank = os.environ.get("RANK", "0")
chance = random.Random(f"{sys.argv[1]} {rank}")
mlflow.set_tracking_uri(f"file:mlruns-{rank}")
writer = SummaryWriter(f"runs/{rank}")
with mlflow.start_run(run_name="only"):
    mlflow.log_params({"lr": 0.1})
    for step in range(100):
        loss = chance.random()
        writer.add_scalar("train/loss", loss, step)
        mlflow.log_metrics({"train/loss": loss, "accuracy": chance.random()}, step=step)
writer.close()
logging.getLogger("model").warning("done in rank %s", rank)
"""
AUTOLOG = """
import lightning, mlflow.pytorch, torch
lightning.seed_everything(1)
mlflow.pytorch.autolog(log_models=False, log_datasets=False)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        loss = self.linear(batch[0]).square().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", self.linear(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
lightning.Trainer(
    max_epochs=4, logger=False, enable_checkpointing=False, accelerator="cpu", enable_model_summary=False
).fit(Model(), data, data)
"""
TRACKIO = """
import json, math, random, sqlite3, sys
import numpy, trackio
chance = random.Random(int(sys.argv[1]))
run = trackio.init(project="p", name="first", config={"lr": 0.1, "layers": 2, "hf_token": "hidden"}, embed=False)
for step in range(60):
    trackio.log({"train/loss": math.nan if step == 7 else chance.random(), "acc": numpy.float32(chance.random())})
for step in (100, 101, 90):
    trackio.log({"late": chance.random(), "step": step, "note": "text", "nested": {"a": 1}}, step=step)
trackio.log({"table": trackio.Histogram([1.0, 2.0])})
trackio.finish()
trackio.init(project="p", name="second", embed=False)
trackio.log({"train/loss": chance.random()}, step=4)
trackio.finish()
sys.exit(3)
"""

RANKS_OF_TRACKIO = """
import json, os, random, sys
rank = os.environ.get("RANK", "0")
os.environ["TRACKIO_DIR"] = os.path.abspath(f"trackio-{rank}")
import trackio
from tqdm import tqdm
chance = random.Random(f"{sys.argv[1]} {rank}")
run = trackio.init(project="p", name="first", config={"lr": 0.1}, embed=False)
noted = {"train/loss": [], "shown": []}
with open(os.devnull, "w") as nowhere:
    for bar in [tqdm(range(50), file=nowhere)]:
        for step in bar:
            noted["train/loss"].append((step, chance.random()))
            noted["shown"].append((step, chance.random()))
            trackio.log({"train/loss": noted["train/loss"][-1][1]}, step=step)
            bar.set_postfix(loss=noted["train/loss"][-1][1], shown=noted["shown"][-1][1])
trackio.finish()
with open(f"noted-{rank}.json", "w") as file:
    json.dump(noted, file)
"""


def launched(folder: Path, program: str, *arguments: str, code: int = 3, **more: str) -> Run:
    """Run a program under ``tachograph run``, and return what its hub has recorded."""
    done = run_program(folder, program, *arguments, options=OPTIONS, timeout=250, **{**MLFLOW, **more})
    assert done.returncode == code, done.stderr
    assert "could not instrument" not in done.stderr
    assert "dropped a value" not in done.stderr
    assert "could not record" not in done.stderr
    (folder / "said.txt").write_text(done.stdout + done.stderr)
    return tachograph.runs.open("job", folder / "store")


def stored(found: Run, rank: int | None = None) -> dict[str, list[tuple[float, str]]]:
    """Return x and value, as text, of every point, by group and metric; a second library's with its name behind."""
    curves: Logged = {}
    for point in found.points(rank=rank):
        source = "".join(f" @{point.attributes[key]}" for key in ("source",) if key in point.attributes)
        name = "/".join(part for part in (point.group, point.metric) if part) + source
        curves.setdefault(name, []).append((point.x, point.value))
    return exactly(curves)


def exactly(logged: Logged) -> dict[str, list[tuple[float, str]]]:
    """Return values as text, of which NaN is equal to itself, in the order of their steps."""
    return {name: [(x, repr(float(value))) for x, value in points] for name, points in logged.items()}


def not_taken(found: Run) -> dict[str, float]:
    """Return the count of items without a curve, by kind."""
    return {str(each.attributes["kind"]): each.value for each in found.series("tachograph.bridge.not_taken")}


@pytest.mark.torch
def test_mlflow_has_the_values_of_its_store(tmp_path: Path, conforms: Conforms) -> None:
    """Fluent, client, batches, asynchronous, threads, a nested run: values, steps, times, parameters as MLflow has."""
    found = launched(tmp_path, PROGRAM, str(secrets.randbelow(2**30)))
    curves, runs = stored(found), mlflow_runs(tmp_path / "mlruns")
    of_parent, of_child = (exactly(mlflow_values(runs[name])) for name in ("parent", "child"))
    plain = of_parent.pop("plain")
    assert [x for x, _ in plain] == [0.0] * 5  # MLflow's step where none is given: with us it is their count
    assert curves.pop("plain") == [(float(number), value) for number, (_, value) in enumerate(plain)]
    assert of_parent.pop("forked")  # by a child process, which is no rank
    wanted = {**of_parent, **{f"child/{name}": points for name, points in of_child.items()}}
    assert {name: sorted(points) for name, points in curves.items()} == {
        name: sorted(points) for name, points in wanted.items()
    }
    assert len(curves["train/loss"]) == 120
    assert {point.branch for point in found.points("loss") if point.group == "train"} == {0, 1}
    assert [point.time_unix_nano for point in found.points("timed")] == [
        (1_700_000_000_123 + step) * 1_000_000 for step in range(3)
    ]
    own = {"lr": 0.1, "layers": [2, [0.5]], "optimizer": "SGD", "version": "0010", "api_key": "***", "amsgrad": True}
    own |= {"batch": 64, "child.lr": 0.2}
    assert found.config == own
    assert not_taken(found) == {"tag": 2, "text": 1, "dict": 1, "image": 1, "table": 1, "artifact": 1}
    said = (tmp_path / "said.txt").read_text()
    assert (
        "mlflow: not recorded because they are not numbers: tag: 2, text: 1, dict: 1, image: 1, table: 1, artifact: 1"
        in said
    )
    assert said.count("recording the values of the latest one in group 'child'") == 1
    assert said.count("refused") == 3
    conforms("runs within a run", "mlflow", found=found, logged=wanted, stored=curves, config=own)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.parametrize("program", [TRANSFORMERS, ACCELERATE], ids=["transformers", "accelerate"])
def test_a_trainer_that_logs_to_mlflow_has_logged_once(tmp_path: Path, program: str) -> None:
    """The trainer's own values are recorded, MLflow's are the same ones: no further series, and all are counted."""
    found = launched(tmp_path, program, "1", "mlflow", code=0, MLFLOW_TRACKING_URI="file:mlruns", HF_HUB_OFFLINE="1")
    curves, (folder,) = stored(found), mlflow_runs(tmp_path / "mlruns").values()
    of_store = exactly(mlflow_values(folder))
    values = {value for points in curves.values() for _, value in points}
    assert not [name for name in curves if "@" in name]
    assert {value for points in of_store.values() for _, value in points} <= values
    (repeated,) = found.series("tachograph.bridge.repeated")
    assert repeated.attributes == {"library": "mlflow"}
    assert repeated.value >= sum(len(points) for points in of_store.values())


@pytest.mark.long
@pytest.mark.torch
def test_two_ranks_log_to_mlflow_and_tensorboard(tmp_path: Path, conforms: Conforms) -> None:
    """Each value is one point of its rank, whoever logs it first; each rank's warning is a log record of its."""
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    path = write(tmp_path, RANKS)
    done = run(tmp_path, *command, str(path), str(secrets.randbelow(2**30)), options=OPTIONS, timeout=250, **MLFLOW)
    assert done.returncode == 0, done.stderr
    found = tachograph.runs.open("job", tmp_path / "store")
    folders = {rank: mlflow_runs(tmp_path / f"mlruns-{rank}")["only"] for rank in range(2)}
    logged = {rank: exactly(mlflow_values(folder)) for rank, folder in folders.items()}
    kept = {rank: stored(found, rank) for rank in logged}
    assert kept == logged
    assert sum(float(each.value) for each in found.series("tachograph.bridge.repeated")) == 200
    assert found.config == {"lr": 0.1}
    said = [(found.ranks[record.stream], record.attributes["body"]) for record in found.events(LOG)]
    assert sorted(each for each in said if each[0] is not None) == [(0, "done in rank 0"), (1, "done in rank 1")]
    both = {"logged": of_ranks(logged), "stored": of_ranks(kept)}
    conforms("a loop", "mlflow and tensorboard at once", found=found, config={"lr": 0.1}, ranks=2, **both)


@pytest.mark.long
@pytest.mark.torch
def test_two_ranks_log_to_trackio_and_tqdm(tmp_path: Path, conforms: Conforms) -> None:
    """Each value is one point of its rank; that of a bar, which shows it without its group, is one of its own name."""
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    more = {**beside("trackio"), "HF_HUB_OFFLINE": "1"}
    path = write(tmp_path, RANKS_OF_TRACKIO)
    done = run(tmp_path, *command, str(path), str(secrets.randbelow(2**30)), options=OPTIONS, timeout=250, **more)
    assert done.returncode == 0, done.stderr
    found = tachograph.runs.open("job", tmp_path / "store")
    logged = {rank: json.loads((tmp_path / f"noted-{rank}.json").read_text()) for rank in range(2)}
    for noted in logged.values():
        noted["loss"] = noted["train/loss"]
    kept = {rank: stored(found, rank) for rank in logged}
    assert kept == {rank: exactly(noted) for rank, noted in logged.items()}
    assert found.config == {"lr": 0.1}
    both = {"logged": of_ranks(logged), "stored": of_ranks(kept)}
    conforms("a loop", "trackio and tqdm at once", found=found, config={"lr": 0.1}, ranks=2, **both)


@pytest.mark.long
@pytest.mark.torch
def test_autologging_of_lightning_counts_once(tmp_path: Path) -> None:
    """MLflow reads the values out of Lightning's trainer, with epochs for steps: each is there by one of the two."""
    found = launched(tmp_path, AUTOLOG, code=0, MLFLOW_TRACKING_URI="file:mlruns")
    curves, (folder,) = stored(found), mlflow_runs(tmp_path / "mlruns").values()
    of_store = exactly(mlflow_values(folder))
    assert not [name for name in curves if "@" in name]
    for name, points in of_store.items():
        assert sorted(value for _, value in points) == sorted(value for _, value in curves[name])
    assert found.config["optimizer_name"] == "SGD"


def test_trackio_has_the_values_of_its_store(tmp_path: Path, conforms: Conforms) -> None:
    """Values, steps given and counted, the configuration, a second run: as in trackio's own file."""
    import sqlite3

    folder = tmp_path / "trackio"
    more = {**beside("trackio"), "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    found = launched(tmp_path, TRACKIO, str(secrets.randbelow(2**30)), **more)
    with sqlite3.connect(next(folder.glob("*.db"))) as connection:
        rows = list(connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id"))
    wanted: Logged = {}
    for name_of_run, step, metrics in rows:
        for name, value in json.loads(metrics).items():
            if isinstance(value, int | float) or value == "NaN":
                wanted.setdefault(name if name_of_run == "first" else f"{name_of_run}/{name}", []).append(
                    (float(step), float(value))
                )
    kept, own = stored(found), {"lr": 0.1, "layers": 2, "hf_token": "***"}
    assert kept == exactly(wanted)
    assert set(wanted) == {"train/loss", "acc", "late", "__step", "second/train/loss"}
    assert found.config == own
    assert not_taken(found) == {"str": 3, "dict": 3, "Histogram": 1}
    conforms("two runs in a process", "trackio", found=found, logged=wanted, stored=kept, config=own)
