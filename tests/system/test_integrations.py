"""The classes that trainers take: their examples run as they stand, with the real libraries, and are recorded.

Whether each value counts once, with a bridge and in two ranks, is with the bridges in test_bridges_trainers.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tachograph
from launches import RUN
from places import ROOT
from programs import beside, environment, write
from tachograph.runs.members import NODE
from tachograph.runs.run import Run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "examples"
COPIES = """
import copy, json, os, pickle, pickletools, sys
import torch
import lightning
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainingArguments

def tried(function):
    try:
        return function()
    except Exception as error:
        return repr(error)

def parts(thing):  # of its pickle: addresses of memory, which are in it, differ from process to process
    codes = pickletools.genops(pickle.dumps(thing))
    return sorted({text for code, text, _ in codes if code.name == "SHORT_BINUNICODE" and not text.isdigit()})

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        shown = self.linear(x)
        return {"loss": (shown - labels).square().mean(), "logits": shown}

    def training_step(self, batch, number):
        loss = self.linear(batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(1)
out = {}

# torch.compile: the whole step is one graph, and its loss the same.
torch._dynamo.reset()
linear = torch.nn.Linear(4, 1)
writer = SummaryWriter("board")
compiled = torch.compile(lambda x: linear(x).relu().square().mean(), fullgraph=True, backend="aot_eager")
for step in range(5):
    loss = compiled(torch.ones(8, 4) * step)
    loss.backward()
    writer.add_scalar("train/loss", loss, step)
counters = torch._dynamo.utils.counters
out["compiled"] = [loss.item(), dict(counters["stats"]), dict(counters["graph_break"])]

# transformers
model = Model()
data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(16)]
arguments = TrainingArguments(
    "out", logging_steps=1, report_to="tensorboard", use_cpu=True, save_strategy="no", disable_tqdm=True
)
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
out["model"] = [parts(model), parts(copy.deepcopy(model)), sorted(vars(model)), sorted(vars(trainer))]
out["trainer"] = tried(lambda: sorted(vars(copy.deepcopy(trainer))))
out["pickled trainer"] = tried(lambda: len(pickle.dumps(trainer)) > 0)
out["callbacks"] = [type(one).__name__ for one in trainer.callback_handler.callbacks]

# Lightning
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
fitted = lightning.Trainer(
    max_epochs=1, logger=TensorBoardLogger("lightning"), log_every_n_steps=1, accelerator="cpu",
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
fitted.fit(model, batches)
loggers = [type(one).__name__ for one in fitted.loggers]
out["fitted"] = [[weight.tolist() for weight in model.parameters()], sorted(vars(fitted)), loggers]
out["copied"] = tried(lambda: sorted(vars(copy.deepcopy(fitted))))
out["pickled"] = tried(lambda: len(pickle.dumps(fitted)) > 0)
with open(sys.argv[1], "w") as file:
    json.dump(out, file)
"""
OWN_COPIES = """
import copy, pickle
from tachograph.integrations.accelerate import TachographTracker
from tachograph.integrations.lightning import TachographLogger
from tachograph.integrations.transformers import TachographCallback
import lightning
from lightning.fabric import Fabric
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from accelerate import PartialState
import tachograph

logger = TachographLogger(version="v")
for one in (TachographCallback(), logger, TachographTracker("p")):
    for again in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert type(again) is type(one) and vars(again) == vars(one)

# A logger of Lightning's: by itself, after its end, with all kinds of hyperparameters, in other ranks, and in Fabric.
from argparse import Namespace
logger.log_hyperparams({"rate": 0.1, "nested": {"layers": 2}})
logger.log_hyperparams(Namespace(size=3))
logger.log_hyperparams(None)
logger.log_hyperparams(7)  # no hyperparameters: counted, and the program goes on
logger.log_metrics({"train/loss": 1.0, "note": "text", "wrong": object()}, step=3)
logger.finalize("success")
logger.log_metrics({"train/loss": 2.0}, step=4)
assert logger.experiment is tachograph.metric and (logger.name, logger.version) == ("tachograph", "v")
rank_zero_only.rank = 1
logger.log_metrics({"train/loss": 9.0}, step=5)
assert logger.experiment is not tachograph.metric
rank_zero_only.rank = 0
fabric = Fabric(accelerator="cpu", loggers=[TachographLogger()])
fabric.log("fabric", 1.5, step=1)
assert fabric.logger.version == "job"

# A callback in a process that is not of rank zero.
callback = TachographCallback()
state = TrainerState(global_step=3)
state.is_world_process_zero = False
callback.on_log(TrainingArguments("out"), state, TrainerControl(), logs={"loss": 1.0})
callback.on_train_begin(TrainingArguments("out"), state, TrainerControl())

tracker = TachographTracker("p")
PartialState(cpu=True)
tracker.store_init_configuration({"tracked": True})
tracker.log({"tracked": 1, "text": "x"})
tracker.finish()
assert tracker.tracker is tachograph.metric
"""

NAMES = """
import importlib, sys
from tachograph.instrumentation.bridges import instrumentor_of
from tachograph.instrumentation.bridges._libraries import LIBRARIES

def looked_up():
    found = {}
    for library in LIBRARIES.values():
        for name in library.names:
            path, _, attribute = name.path.rpartition(".")
            owner = importlib.import_module(name.module)
            for part in path.split(".") if path else ():
                owner = getattr(owner, part)
            found[name.module, name.path] = vars(owner).get(attribute), hasattr(owner, attribute), name.optional
    return found

before = looked_up()
missing = [name for name, (_, there, optional) in before.items() if not there and not optional]
assert not missing, missing
instrumentors = [instrumentor_of(library)() for library in LIBRARIES]
for instrumentor in instrumentors:
    instrumentor.instrument(skip_dep_check=True)
patched = looked_up()
alike = [name for name, (value, there, _) in patched.items() if there and value is before[name][0]]
assert not alike, alike
for instrumentor in instrumentors:
    instrumentor.uninstrument()
assert looked_up() == before
"""

OTHER_PACKAGE = """
import pytorch_lightning
from tachograph.integrations.lightning import TachographLogger
assert issubclass(TachographLogger, pytorch_lightning.loggers.Logger)
"""


def done(
    folder: Path, *command: str, before: tuple[str, ...] = (), timeout: float = 280, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, whose run is ``job``; it must end well."""
    found = subprocess.run(
        [*before, sys.executable, *command],
        cwd=folder,
        env=environment(folder, TACHOGRAPH_RUN="job", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", **more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found


def recorded(folder: Path) -> Run:
    """Return the run of a folder."""
    return tachograph.runs.open("job", folder / "store")


def curves(found: Run) -> dict[str, list[float]]:
    """Return the x of each point, by group and metric."""
    known: dict[str, list[float]] = {}
    for point in found.points():
        known.setdefault("/".join(part for part in (point.group, point.metric) if part), []).append(point.x)
    return known


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "metric", "x", "configured"),
    [
        ("accelerate_tracker.py", "train/loss", list(range(20)), {"lr": 0.1}),
        ("lightning_logger.py", "train/loss", list(range(1, 32, 2)), {"rate": 0.1}),
        ("transformers_callback.py", "train/loss", list(range(2, 25, 2)), {"num_train_epochs": 3}),
    ],
)
def test_example(tmp_path: Path, example: str, metric: str, x: list[float], configured: dict[str, Any]) -> None:
    """An example of a class runs as it stands: the curve is there, with its steps, and the configuration."""
    assert len((EXAMPLES / example).read_text().splitlines()) <= 30
    stderr = done(tmp_path, str(EXAMPLES / example)).stderr
    assert "dropped a value" not in stderr
    assert "could not record" not in stderr
    found = recorded(tmp_path)
    assert curves(found)[metric] == x
    assert {key: found.config[key] for key in configured} == configured


@pytest.mark.long
def test_an_unmodified_script(tmp_path: Path) -> None:
    """The README's first command: a script that knows nothing of us has its curves and its configuration."""
    program = EXAMPLES / "hugging_face.py"
    assert "tachograph" not in program.read_text().lower().split('"""')[2]
    done(tmp_path, str(program), before=(*RUN, "--run-id", "job", "--port", "0", "--linger", "0", "--"))
    found = recorded(tmp_path)
    known = curves(found)
    assert known["train/loss"] == list(range(5, 471, 5))
    assert known["eval/accuracy"] == [*range(25, 451, 25), 470]
    assert found.config["learning_rate"] == 0.001


@pytest.mark.long
def test_torchtitans_handler(tmp_path: Path) -> None:
    """A scalar is a curve over the step; a span is a value of a histogram, with a curve over the number of spans."""
    done(tmp_path, str(EXAMPLES / "torchtitan_handler.py"), **beside("torchtitan"))
    found = recorded(tmp_path)
    assert curves(found) == {
        "trainer/local_valid_tokens": [1, 2, 3, 4, 5],
        "trainer/fwd_bwd.duration.ms": [0, 1, 2, 3, 4],
    }
    (span,) = found.series("fwd_bwd.duration")
    assert (span.group, span.value.count) == ("trainer", 5)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rays_callback(tmp_path: Path) -> None:
    """Values of the worker of rank zero are curves, nested ones by their path, to the last one.

    They come from Ray's controller, which Ray kills. Its services, and workers that record nothing, are no processes of
    the job.
    """
    options = ("--run-id", "job", "--port", "0", "--linger", "0", "--")
    waits = {**beside("ray"), "RAY_raylet_start_wait_time_s": "300"}  # on a busy machine
    command = (str(EXAMPLES / "ray_callback.py"), str(tmp_path / "out"))
    done(tmp_path, *command, before=(*RUN, *options), timeout=560, **waits)
    steps = [0, 1, 2, 3, 4]
    found = recorded(tmp_path)
    assert curves(found) == {"train/loss": steps, "step": steps, "memory/used": steps}
    others = sorted(process.role for process in found.processes() if process.rank is None and process.role != NODE)
    controller, cleaner = "default_worker", "default_worker"
    # The driver, and two of about eight workers; the second one has recorded nothing but what Ray warns of in it.
    assert others in (["", controller], ["", controller, cleaner]), others


RAY = """
import sys
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.tensorboard import SummaryWriter

def train():
    rank = ray.train.get_context().get_world_rank()
    with SummaryWriter(f"{sys.argv[1]}/{rank}") as writer:
        for step in range(50):
            writer.add_scalar("train/loss", rank + step / 4, step)

ray.init(num_cpus=2, include_dashboard=False)
run_config = RunConfig(name="job", storage_path=sys.argv[1])
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_values_of_rays_workers_are_there_to_the_last(tmp_path: Path) -> None:
    """Ray kills its workers once they have trained: each rank's values are there, also of its last second."""
    options = ("--run-id", "job", "--port", "0", "--linger", "0", "--")
    waits = {**beside("ray"), "RAY_raylet_start_wait_time_s": "300"}  # on a busy machine
    command = (str(write(tmp_path, RAY)), str(tmp_path / "out"))
    done(tmp_path, *command, before=(*RUN, *options), timeout=560, **waits)
    found = recorded(tmp_path)
    for rank in range(2):
        points = [(point.x, point.value) for point in found.points("loss", rank=rank)]
        assert points == [(step, rank + step / 4) for step in range(50)]


@pytest.mark.long
def test_models_and_trainers_are_compiled_and_copied_as_ever(tmp_path: Path) -> None:
    """Graphs, pickles, deep copies and attributes of models and trainers are those of a run without us."""
    program = str(write(tmp_path, COPIES))
    options = ("--run-id", "job", "--port", "0", "--linger", "0", "--")
    done(tmp_path, program, "with.json", before=(*RUN, *options))
    done(tmp_path, program, "without.json")
    with_bridges, without = (json.loads((tmp_path / name).read_text()) for name in ("with.json", "without.json"))
    assert with_bridges == without
    assert without["compiled"][1]["unique_graphs"] == 1
    assert len(curves(recorded(tmp_path))["train/loss"]) > 0


@pytest.mark.long
def test_the_table_of_names_is_true(tmp_path: Path) -> None:
    """Every name is there in the installed libraries, is patched, and is itself again after the instrumentor's end."""
    done(tmp_path, str(write(tmp_path, NAMES)), **beside("trackio"))


@pytest.mark.long
def test_classes_follow_the_rules_of_their_libraries(tmp_path: Path) -> None:
    """Ranks, copies, hyperparameters and the end: as the libraries' own; wrong values are counted and never raise."""
    options = ("--run-id", "job", "--port", "0", "--linger", "0", "--")
    said = done(tmp_path, str(write(tmp_path, OWN_COPIES)), before=(*RUN, *options), TACHOGRAPH_BRIDGES="none").stderr
    assert "lightning: dropped a value of 'wrong'" in said
    assert "lightning: could not record a call" in said
    done(tmp_path, str(write(tmp_path, OTHER_PACKAGE)))
    found = recorded(tmp_path)
    assert curves(found) == {"train/loss": [3, 4], "fabric": [1], "tracked": [0]}
    assert found.config == {"rate": 0.1, "nested.layers": 2, "size": 3, "tracked": True}
