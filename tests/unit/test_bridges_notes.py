"""The notes of bridges, called as their libraries' own methods are: by runs and trainers that have as much as is read.

The libraries themselves: tests/system/test_bridges_*.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tachograph.testing
from hub_requests import Clock
from tachograph.instrumentation.bridges._nesting import OutermostCall, calls, under_way
from tachograph.instrumentation.bridges._values import MOST_HELD
from tachograph.instrumentation.bridges.mlflow import TrackingNotes
from tachograph.instrumentation.bridges.tensorboard import WriterNotes
from tachograph.instrumentation.bridges.trackio import TrackioNotes
from tachograph.instrumentation.bridges.trainers import AccelerateNotes, LightningNotes, TransformersNotes
from tachograph.instrumentation.bridges.wandb import RunNotes
from test_bridges import Recorded


class Object(SimpleNamespace):
    """An object of a library, as itself a key of weak sets."""

    __hash__ = object.__hash__


def points(recorded: Recorded) -> dict[str, list[tuple[float, float]]]:
    """Return x and value of each point by its name, with its group and, of a second library, its source."""
    return {
        "/".join(filter(None, (group, metric))) + (f" by {source}" if source else ""): [each[1:] for each in found]
        for (group, metric, source), found in recorded.curves().items()
    }


def told(recorded: Recorded) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of configurations and results."""
    recorded.values.settle()
    return [(event.name, dict(event.attributes)) for event in recorded.journal.drain()]


@contextmanager
def inside(**brings: float) -> Iterator[OutermostCall]:
    """Be inside of the call of another bridge, which records these values itself."""
    outermost = OutermostCall({leaf: [value] for leaf, value in brings.items()})
    calls.outermost = outermost
    under_way.add(outermost)
    try:
        yield outermost
    finally:
        calls.outermost = None
        under_way.discard(outermost)


def run_of(name: str = "run", *, disabled: bool = False, **config: Any) -> Any:
    """Return a run of W&B."""
    settings = SimpleNamespace(run_id="" if disabled else name, run_name=name)
    return Object(settings=settings, disabled=disabled, _config=config, config=config, summary={}, _local_step=0)


class Runs:
    """The notes of W&B, closed at the end."""

    def __init__(self) -> None:
        self.recorded = Recorded()
        self.notes = RunNotes(self.recorded.values)


@pytest.fixture
def runs() -> Iterator[Runs]:
    """Notes of W&B."""
    found = Runs()
    yield found
    found.notes.close()


def test_values_of_wandb(runs: Runs) -> None:
    """Each call is at its step, nested values have dots in their names, and its own keys are left out."""
    run = run_of()
    for step in range(3):
        runs.notes.log(run, {"loss": 1.0 / (step + 1), "lr": step, "_runtime": 5.0}, step)
    runs.notes.log(run, {"eval": {"acc": 0.5}, "_own": {"x": 1}, "image": object(), "text": "a"}, 3)
    run._local_step = 5
    runs.notes.log(run, {"loss": 0.2})  # the call has counted the step already
    runs.notes.log(run, {"loss": 0.1}, None, False)
    assert points(runs.recorded) == {
        "loss": [(0, 1.0), (1, 0.5), (2, 1 / 3), (4, 0.2), (5, 0.1)],
        "lr": [(0, 0), (1, 1), (2, 2)],
        "eval.acc": [(3, 0.5)],
    }
    assert runs.recorded.counted("tachograph.bridge.not_taken") == {("str", "wandb"): 1}
    assert runs.recorded.counted("tachograph.dropped") == {("registry", "no_number"): 1}


def test_axes_of_wandb(runs: Runs) -> None:
    """A metric is drawn over its step metric, from its definition on: its own name counts before a beginning."""
    run = run_of()
    runs.notes.log(run, {"eval/loss": 3.0, "epoch": 1}, 0)
    runs.notes.define_metric(run, "eval/*", "epoch")
    runs.notes.define_metric(run, "eval/loss", SimpleNamespace(name="tokens"))
    runs.notes.define_metric(run, "hidden")
    runs.notes.log(run, {"eval/loss": 2.0, "eval/acc": 0.5, "epoch": 2, "tokens": 900}, 7)
    found = points(runs.recorded)
    assert found["eval/loss"] == [(0, 3.0), (900, 2.0)]
    assert found["eval/acc"] == [(2, 0.5)]
    assert found["epoch"] == [(0, 1), (7, 2)]


def test_what_else_wandb_is_told(runs: Runs) -> None:
    """The configuration and results are events, without its own keys; artifacts and alerts are counted."""
    run = run_of(lr=0.1)
    runs.notes.begin(run)
    runs.notes.config(run, ("model", "depth"), 12)
    runs.notes.config(run, data={"_wandb": {}, "seed": 3})
    runs.notes.config(run, "_wandb", {})
    runs.notes.summary(run, SimpleNamespace(update=[SimpleNamespace(key=["best", "loss"], value=0.5)]))
    runs.notes.summary(run, SimpleNamespace(update=[]))
    runs.notes.log_artifact(run, "model.pt")
    runs.notes.alert(run, "diverged")
    said = told(runs.recorded)
    assert len(said) == 4
    assert all(part in str(said) for part in ("lr", "model.depth", "seed", "best.loss"))
    assert "_wandb" not in str(said)
    assert runs.recorded.counted("tachograph.bridge.not_taken") == {("alert", "wandb"): 1, ("artifact", "wandb"): 1}


def test_a_disabled_run_of_wandb(runs: Runs) -> None:
    """It counts no steps: they are counted as W&B would; its results are those that are no values of its curves."""
    run = run_of(disabled=True, lr=0.1)
    runs.notes.begin(Object(settings=run.settings, disabled=True))  # whose configuration is not there yet
    runs.notes.begin(run)
    original = []
    log = runs.notes.disabled_log(lambda *args: original.append(args), SimpleNamespace(on=True), pytest.fail)
    last = 0.25
    log(run, {"loss": 1.0})
    log(run, {"loss": 0.5}, None, False)
    log(run, {"acc": 0.1}, None, True)
    log(run, {"loss": 0.4, "nested": {"a": 1}}, 9)
    log(run, {"loss": last}, 12)
    with inside(other=1.0):
        log(run, {"acc": 0.2}, 13)
    log(run, {"loss": 0.2}, 14, None, "more")
    run.summary = {"loss": last, "best": 0.25}
    assert len(original) == 7
    said = str(told(runs.recorded))
    assert points(runs.recorded) == {
        "loss": [(0, 1.0), (1, 0.5), (9, 0.4), (12, 0.25), (14, 0.2)],
        "acc": [(1, 0.1), (13, 0.2)],
        "nested.a": [(9, 1)],
    }
    assert "lr" in said
    assert "best" not in said
    runs.notes.finish_disabled(run)
    assert "best" in str(told(runs.recorded))


def test_a_disabled_run_whose_bridge_fails(runs: Runs) -> None:
    """The program's call returns as ever, after the bridge's end, and where the bridge cannot read what it logs."""
    errors: list[Exception] = []
    bridge = SimpleNamespace(on=True)
    log = runs.notes.disabled_log(lambda *_args: "returned", bridge, errors.append)
    run = run_of(disabled=True)
    assert log(run, 7) == "returned"
    assert [type(error) for error in errors] == [TypeError]
    bridge.on = False
    assert log(run, 7) == log(run, {"loss": 1.0}) == "returned"
    assert len(errors) == 1
    assert points(runs.recorded) == {}


def test_calls_that_are_held_are_bounded(runs: Runs) -> None:
    """Where nothing collects, the oldest calls become points once very many wait."""
    run, disabled = run_of(), run_of("off", disabled=True)
    log = runs.notes.disabled_log(lambda *_args: None, SimpleNamespace(on=True), pytest.fail)
    for step in range(MOST_HELD // 2 + 10):
        runs.notes.log(run, {"loss": 1.0}, step)
        log(disabled, {"loss": 1.0}, step)
    assert len(runs.recorded.values.held) <= MOST_HELD


def test_a_value_that_a_trainer_hands_to_wandb(runs: Runs) -> None:
    """It is the trainer's, and counted as repeated; where the trainer's call fails, it is recorded after all."""
    run = run_of()
    with inside(loss=0.5) as outermost:
        runs.notes.log(run, {"train/loss": 0.5, "other": 2.0}, 3)
        assert points(runs.recorded) == {"other": [(3, 2.0)]}
        outermost.failed()
    assert points(runs.recorded) == {"train/loss": [(3, 0.5)]}
    assert runs.recorded.counted("tachograph.bridge.repeated") == {("wandb",): 1}


@pytest.fixture
def recorded() -> Recorded:
    """A registry and a journal."""
    return Recorded()


@pytest.fixture
def clock() -> Clock:
    """A clock of nanoseconds that stands."""
    return Clock()


@pytest.fixture
def tracking(recorded: Recorded, clock: Clock) -> Iterator[TrackingNotes]:
    """Notes of MLflow's client."""
    found = TrackingNotes(recorded.values, clock)
    yield found
    found.close()


def test_values_of_mlflow(recorded: Recorded, tracking: TrackingNotes) -> None:
    """The x is the step, or a count where all steps are 0; parameters are numbers where their text is one."""
    for value in (1.0, 2.0):
        tracking.log_metric(None, "r", "loss", value, 1_790_000_000_000, 0)
    batch = [SimpleNamespace(key="acc", value=0.1 * step, timestamp=None, step=step) for step in (0, 5, 0)]
    params = [
        SimpleNamespace(key=key, value=text) for key, text in (("lr", "0.1"), ("n", "3"), ("on", "True"), ("s", "1e1"))
    ]
    tags = [SimpleNamespace(key="mlflow.user", value="me"), SimpleNamespace(key="sweep", value="1")]
    tracking.log_batch(None, "r", batch, params, tags)
    tracking.log_param(None, "r", "depth", 7)
    tracking.log_artifact(None, "r", "model.pt")
    tracking.log_inputs(None, "r")
    tracking.log_outputs(None, "r")
    assert points(recorded) == {"loss": [(0, 1.0), (1, 2.0)], "acc": [(0, 0.0), (5, 0.5), (0, 0.0)]}
    said = str(told(recorded))
    assert all(part in said for part in ("lr", "0.1", "depth", "1e1"))
    kinds = recorded.counted("tachograph.bridge.not_taken")
    assert kinds == {(kind, "mlflow"): 1 for kind in ("tag", "artifact", "input", "outputs")}
    with pytest.raises(AttributeError):
        tracking.get_metric  # noqa: B018 - no name of a call


def test_parameters_of_mlflow(recorded: Recorded, tracking: TrackingNotes) -> None:
    """MLflow keeps a parameter as text; a list, a mapping or None is itself again, and any other text stays a text."""
    values = {"betas": (0.9, 1), "stages": [{"width": 8, "norm": None}], "resume": None, "model": {"heads": [4]}}
    texts = {
        "json": "[1,2]",
        "bytes": "[b'a']",
        "open": "[1",
        "path": "['C:\\data']",
        "note": "(see below)",
        "quoted": "'a'",
    }
    for key, value in {**values, **texts}.items():
        tracking.log_param(None, "r", key, value)
    (*_, (_, event)) = told(recorded)
    assert event["tachograph.config"] == {
        "betas": [0.9, 1],
        "stages": [{"width": 8, "norm": None}],
        "resume": None,
        "model.heads": [4],
        **texts,
    }


def test_values_that_mlflow_reads_out_of_a_trainer(
    recorded: Recorded, tracking: TrackingNotes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a second, as the trainer's own are better; then they are taken, with steps of our own count."""
    safety = ModuleType("safety")
    safety._AutologgingSessionManager = SimpleNamespace(_session="of a trainer")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow.utils.autologging_utils.safety", safety)
    tracking.log_metric(None, "r", "loss", 0.5, None, 40)
    tracking.take_old()
    assert points(recorded) == {}
    clock.forward(1.1)
    tracking.take_old()
    monkeypatch.undo()  # no trainer is at it any more
    assert points(recorded) == {"loss": [(40, 0.5)]}
    with inside(loss=0.4):
        tracking.log_metric(None, "r", "train/loss", 0.4, None, 41)
        tracking.log_metric(None, "r", "acc", 0.9, None, 41)
        with inside(**{"\0artifact": 1}):
            tracking.log_artifact(None, "r", "image.png")
    assert points(recorded) == {"acc": [(41, 0.9)]}
    assert recorded.counted("tachograph.bridge.not_taken") == {}
    assert recorded.counted("tachograph.bridge.repeated") == {("mlflow",): 1}


def test_runs_of_an_mlflow_sweep_are_bounded(
    recorded: Recorded, tracking: TrackingNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of very many is forgotten for a new one; the active run alone has a name: the store is not asked."""
    monkeypatch.setattr("tachograph.instrumentation.bridges.mlflow.MOST_ORIGINS", 2)
    mlflow = ModuleType("mlflow")
    mlflow.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="r1", run_name="the best"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for number in range(4):
        tracking.log_metric(None, f"r{number}", "loss", float(number), None, 1)
    assert list(tracking._runs) == ["r2", "r3"]
    assert points(recorded).keys() == {"loss", "the best/loss", "r2/loss", "r3/loss"}


def test_values_of_trackio(recorded: Recorded) -> None:
    """Names that trackio reserves have its two underscores, and what is no number is counted."""
    notes, run = TrackioNotes(recorded.values), Object(id=1, name="run", config={"_u": 1, "lr": 0.1}, _next_step=4)
    notes.begin(run)
    notes.log(run, {"loss": 0.5, "step": 9, "text": "a"})
    notes.log(run, {"loss": 0.4}, 8)
    with inside(loss=0.3):
        notes.log(run, {"train/loss": 0.3, "acc": 1}, 9)
    notes.log_system(run, {})
    notes.log_artifact(run, "a")
    notes.alert(run, "a")
    assert points(recorded) == {"loss": [(3, 0.5), (8, 0.4)], "__step": [(3, 9)], "acc": [(9, 1)]}
    assert "lr" in str(told(recorded))
    kinds = recorded.counted("tachograph.bridge.not_taken")
    assert kinds == {(kind, "trackio"): 1 for kind in ("str", "system", "artifact", "alert")}
    notes.close()


def test_values_of_a_tensorboard_writer(recorded: Recorded) -> None:
    """Steps and times may be those of tensorboardX's ``use_metadata``; results of hyperparameters are the run's."""
    notes = WriterNotes("tensorboard", recorded.values)
    writer, other = (
        Object(log_dir="runs/one/"),
        Object(logdir="runs/two", _default_metadata={"global_step": 6, "walltime": 1.0}),
    )
    notes.add_scalar(writer, "loss", 0.5, 3, 1_790_000_000.0)
    notes.add_scalars(writer, "lr", {"slow": 0.1, "fast": 0.2}, 3)
    notes.add_scalar(other, "loss", 0.4)
    with inside(loss=0.3):
        notes.add_scalar(writer, "train/loss", 0.3, 4)
        notes.add_scalar(writer, "acc", 0.9, 4)
    notes.add_histogram(writer, "weights", [1.0, 2.0])
    notes.add_hparams(writer, {"depth": 3}, {"best": 0.1})
    notes.add_image(writer, "image", None)
    assert points(recorded) == {
        "loss": [(3, 0.5)],
        "lr/slow": [(3, 0.1)],
        "lr/fast": [(3, 0.2)],
        "two/loss": [(6, 0.4)],
        "acc": [(4, 0.9)],
    }
    assert notes.hparams_bring(writer, {}, {"eval/best": 0.1, "text": "a"}) == {"best": [0.1]}
    said = str(told(recorded))
    assert "depth" in said
    assert "best" in said
    assert recorded.counted("tachograph.bridge.not_taken") == {("image", "tensorboard"): 1}
    with pytest.raises(AttributeError):
        notes.flush  # noqa: B018 - no name of a call
    notes.close()


def test_values_of_transformers(recorded: Recorded) -> None:
    """The main process's values have their groups, the flop count that callbacks take out, too."""
    notes = TransformersNotes("transformers", recorded.values)
    logs = {"loss": 0.5, "eval_loss": 0.4, "test_acc": 0.3}
    state = SimpleNamespace(
        is_world_process_zero=True, global_step=7, log_history=[{**logs, "total_flos": 9.0, "step": 7}]
    )
    args = SimpleNamespace(to_dict=lambda: {"lr": 0.1})
    elsewhere = SimpleNamespace(is_world_process_zero=False)
    for each in (elsewhere, state):
        notes.on_train_begin(None, args, each)
        notes.on_log(None, args, each, None, logs)
    assert points(recorded) == {
        "train/loss": [(7, 0.5)],
        "eval/loss": [(7, 0.4)],
        "test/acc": [(7, 0.3)],
        "train/total_flos": [(7, 9.0)],
    }
    assert len(told(recorded)) == 1
    assert notes.logs_bring(None, args, elsewhere, None, logs) == {}
    assert notes.logs_bring(None, args, state, None, logs) == {"loss": [0.5, 0.4], "acc": [0.3], "global_step": [7]}
    notes.close()


def test_values_of_accelerate(recorded: Recorded) -> None:
    """Those of the main process, its trackers' text left out; they are declared where there are trackers."""
    notes = AccelerateNotes("accelerate", recorded.values)
    main, elsewhere = (SimpleNamespace(is_main_process=each, trackers=["one"]) for each in (True, False))
    for each in (main, elsewhere):
        notes.log(each, {"loss": 0.5, "text": "a"}, 2)
        notes.init_trackers(each, "project", {"lr": 0.1})
    with inside(loss=0.4):
        notes.log(main, {"loss": 0.4, "acc": 1.0}, 3)
    notes.log(main, {"eval": {"acc": 0.5, "by class": {"cat": 0.25, "note": "text"}}}, 4)
    assert points(recorded) == {
        "loss": [(2, 0.5)],
        "acc": [(3, 1.0)],
        "eval/acc": [(4, 0.5)],
        "eval/by class/cat": [(4, 0.25)],
    }
    assert len(told(recorded)) == 1
    assert notes.values_bring(main, {"train_loss": 0.5}) == {"loss": [0.5]}
    assert notes.values_bring(main, {"eval": {"val_acc": 0.5}}) == {"acc": [0.5]}
    assert notes.values_bring(elsewhere, {"train_loss": 0.5}) == {}


def test_values_of_lightning(recorded: Recorded) -> None:
    """The x is the trainer's step by its own rule; its epoch and step are declared for loggers, and Fabric's values."""
    notes = LightningNotes("lightning", recorded.values)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=5))
    model, data = SimpleNamespace(hparams_initial={"lr": 0.1}), SimpleNamespace(hparams_initial=None)
    trainer = SimpleNamespace(
        is_global_zero=True, loggers=["one"], current_epoch=2, fit_loop=loop, lightning_module=model, datamodule=data
    )
    connector, elsewhere = (
        SimpleNamespace(trainer=trainer),
        SimpleNamespace(trainer=SimpleNamespace(is_global_zero=False)),
    )
    notes.lightning_log(connector, {"loss": 0.5})
    notes.lightning_log(connector, {"loss": 0.4, "step": 8})
    notes.lightning_log(elsewhere, {"loss": 0.3})
    notes.hyperparameters(trainer)
    fabric = SimpleNamespace(is_global_zero=True, loggers=[])
    notes.fabric_log(fabric, {"acc": 0.9}, 4)
    notes.fabric_log(elsewhere.trainer, {"acc": 0.1}, 4)
    assert points(recorded) == {"loss": [(5, 0.5), (8, 0.4)], "acc": [(4, 0.9)]}
    assert len(told(recorded)) == 1
    assert notes.lightning_brings(connector, {"val_loss": 0.5}, 9) == {"epoch": [2], "global_step": [9], "loss": [0.5]}
    assert notes.fabric_brings(fabric, {"acc": 0.9}) == {}
    fabric.loggers = ["one"]
    assert notes.fabric_brings(fabric, {"acc": 0.9}) == {"acc": [0.9]}
    trainer.loggers = []
    assert notes.lightning_brings(connector, {"loss": 0.5}) == {}
    assert notes.placeholder(trainer) == {"hp_metric": [-1]}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our callback for Ray Train, whose own class is an interface without content."""
    package, train = ModuleType("ray"), ModuleType("ray.train")
    train.UserCallback = type("UserCallback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.delitem(sys.modules, "tachograph.integrations.ray", raising=False)
    module = import_module("tachograph.integrations.ray")
    yield module
    sys.modules.pop("tachograph.integrations.ray", None)


def test_values_of_ray(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of rank zero: nested names with a slash, x by the first of the known names; it leaves at once.

    A receiver that is slow is waited for once, and then left alone for half a minute.
    """
    flushes: list[float] = []
    monkeypatch.setattr(ray, "running_pipeline", lambda: SimpleNamespace(flush=flushes.append))
    callback = ray.TachographCallback()
    endless: dict[str, Any] = {"depth": 1.0}
    endless["self"] = endless
    with tachograph.testing.capture() as captured:
        callback.after_report(None, [{"loss": 0.5, "eval": {"acc": 0.9}, "epoch": 3}, {"loss": 7.0}], None)
        callback.after_report(None, [{"step": 5, "loss": 0.25}], None)
        callback.after_report(None, [], None)
        callback.after_report(None, ["no report"], None)
        assert captured.value("loss", "tachograph.metric") == 0.25
        assert captured.value("acc", "eval") == 0.9
        callback.after_report(None, [endless], None)
        assert captured.value("depth", "tachograph.metric") == 1.0
    assert flushes == [1.0]
