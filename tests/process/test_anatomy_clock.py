"""The step breakdown against a clock in the program, for each kind of loop: the time that it sleeps is in its phase.

The programs have the shapes of public ones. They sleep for a known time in their data set, model, optimizer and so on.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import programs
from tachograph.diagnosis.anatomy_series import EVENT, VERDICT_EVENT, AnatomyOfSteps
from tachograph.diagnosis.phases import PHASES
from tachograph.diagnosis.verdict_run import diagnose_run, step_streams
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry
from tachograph.runs.file import RunFile, look
from test_anatomy import seen

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

STEPS = 36  # ten of which verdicts leave out; below twenty others there is none
SIZE = 4
MS = 0.001
SECOND = 1e9


class Clock:
    """The seconds that a program has slept, by the phase in which they belong."""

    def __init__(self) -> None:
        self.slept: Counter[str] = Counter()

    def sleep(self, phase: str, milliseconds: float) -> None:
        """Sleep, and note for how long."""
        begun = time.perf_counter()
        time.sleep(milliseconds * MS)
        self.slept[phase] += time.perf_counter() - begun


class Model(nn.Module):  # type: ignore[misc, name-defined]
    """A model that sleeps in its forward and in its backward.

    Args:
        clock: notes the time.
        without_gradients: the phase to which a forward without gradients belongs.
    """

    def __init__(self, clock: Clock, without_gradients: str = "evaluation") -> None:
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.clock = clock
        self.without_gradients = without_gradients
        self.net.weight.register_hook(lambda _: clock.sleep("backward", 3))

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        with torch.no_grad():  # as rotary embeddings do
            x = x + torch.zeros(8)
        self.clock.sleep("forward" if torch.is_grad_enabled() else self.without_gradients, 5)
        return self.net(x)


class Optimizer(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """An optimizer that sleeps in its step, after its closure."""

    def __init__(self, clock: Clock, model: Any) -> None:
        super().__init__(model.parameters(), 0.01)
        self.clock = clock

    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        value = super().step(closure)
        self.clock.sleep("optimizer", 2)
        return value


class Data(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Samples, of which the first one of each batch takes a while to read."""

    def __init__(self, clock: Clock, batches: int = STEPS, phase: str = "data_wait", milliseconds: float = 0.5) -> None:
        self.clock = clock
        self.size = batches * SIZE
        self.phase = phase
        self.milliseconds = milliseconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index % SIZE == 0:
            self.clock.sleep(self.phase, self.milliseconds)
        return torch.full((8,), float(index % 7)), index % 4


def loader(data: Data) -> Any:
    """Return a loader of four samples a batch."""
    return torch.utils.data.DataLoader(data, batch_size=SIZE)


def evaluation_loader(clock: Clock) -> Any:
    """Return a loader of three batches for an evaluation."""
    return loader(Data(clock, 3, "evaluation", 2))


def batch() -> tuple[Any, Any]:
    """Return a batch that is in memory."""
    return torch.ones(SIZE, 8), torch.zeros(SIZE, dtype=torch.long)


def loss(model: Any, x: Any, y: Any) -> Any:
    """Return the loss of a batch."""
    return functional.cross_entropy(model(x), y)


def train_step(clock: Clock, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    """Take a step that clips, and logs afterwards."""
    optimizer.zero_grad(set_to_none=True)
    loss(model, x, y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    clock.sleep("gradients", 1)
    optimizer.step()


class Result(NamedTuple):
    """What a program has slept and what was recorded, in seconds by phase, and the verdicts."""

    slept: dict[str, float]
    phases: dict[str, float]
    verdicts: list[str]


def run(program: Callable[[Clock], object]) -> Result:
    """Run a program and look into its steps."""
    clock, registry = Clock(), Registry()
    journal = Journal(registry)
    steps = AnatomyOfSteps(registry, journal)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        program(clock)
    finally:
        torch.set_num_threads(threads)
        steps.close()
    events = journal.drain()
    (said,) = [event.attributes for event in events if event.name == EVENT][-1:]
    return Result(
        dict(clock.slept),
        phases_of(said),
        [str(event.attributes["verdict"]) for event in events if event.name == VERDICT_EVENT],
    )


def phases_of(said: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each phase in totals of steps, with those after the last one."""
    whole = [of_steps + after for of_steps, after in zip(said["phases"], said["rest"], strict=True)]
    return {name: nanoseconds / SECOND for name, nanoseconds in zip(PHASES, whole, strict=True)}


def assert_agrees(result: Result) -> None:
    """Assert that each phase has the time that the program slept in it and no other one, and no verdict is false."""
    whole = sum(result.phases.values())
    for phase, seconds in result.slept.items():
        assert result.phases.get(phase, 0.0) >= seconds * 0.95, (phase, result)
    for phase in {"data_wait", "evaluation", "rollout", "checkpoint"} - {*result.slept}:
        assert result.phases.get(phase, 0.0) <= 0.02 * whole, (phase, result)
    # A busy machine may make the data set slow indeed.
    is_starved = result.slept.get("data_wait", 0.0) >= 0.08 * whole
    assert {*result.verdicts} <= ({"input_bound"} if is_starved else set()), result


# Loops without an evaluation.


def plain(clock: Clock) -> None:
    """Train as every tutorial does."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for x, y in loader(Data(clock)):
        train_step(clock, model, optimizer, x, y)


def closure(clock: Clock) -> None:
    """Give the optimizer a closure."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for x, y in loader(Data(clock)):

        def compute(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            return value

        optimizer.step(compute)


def closure_without_loader(clock: Clock) -> None:
    """Give the optimizer a closure, with batches that the program makes between two steps."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for _ in range(STEPS):
        clock.sleep("forward", 1)  # without a DataLoader reading is in here
        x, y = batch()

        def compute(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            return value

        optimizer.step(compute)


def lbfgs(clock: Clock) -> None:
    """Have LBFGS call its closure several times a step; its steps turn gradients off by themselves."""
    model = Model(clock)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for x, y in loader(Data(clock)):

        def compute(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            return value

        optimizer.step(compute)


def full_batch(clock: Clock) -> None:
    """Read the whole data set within the closure, as LBFGS on all samples does."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)

    def compute() -> Any:
        optimizer.zero_grad()
        for x, y in loader(Data(clock, 2)):
            loss(model, x, y).backward()

    for _ in range(STEPS // 2):
        optimizer.step(compute)


def adversarial(clock: Clock) -> None:
    """Train two models by two optimizers, one after the other."""
    one, other = Model(clock), Model(clock)
    first, second = Optimizer(clock, one), Optimizer(clock, other)
    for x, y in loader(Data(clock)):
        train_step(clock, one, first, x, y)
        train_step(clock, other, second, x, y)


def distilled(clock: Clock) -> None:
    """Ask a teacher first, in each step: what the step compares itself with is no evaluation."""
    model, teacher = Model(clock), Model(clock, "rollout").eval()
    optimizer = Optimizer(clock, model)
    for x, y in loader(Data(clock)):
        with torch.no_grad():
            teacher(x)
        train_step(clock, model, optimizer, x, y)


# Evaluations.


def nano_gpt(clock: Clock, mode: Any = torch.no_grad) -> None:
    """Estimate the loss now and then without a DataLoader, save, accumulate two micro-batches, and clip."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)

    def get_batch(phase: str) -> tuple[Any, Any]:
        clock.sleep(phase, 0.5)
        return batch()

    @mode()  # type: ignore[untyped-decorator]
    def estimate_loss() -> None:
        model.eval()
        for _ in range(4):
            loss(model, *get_batch("evaluation"))
        model.train()

    x, y = get_batch("forward")
    clock.slept.clear()  # nothing is hooked before the first step
    for number in range(STEPS):
        if number and number % 8 == 0:
            estimate_loss()
            torch.save(model.state_dict(), io.BytesIO())
        for _ in range(2):
            value = loss(model, x, y)
            x, y = get_batch("forward")
            value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        clock.sleep("gradients", 1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def nano_gpt_in_inference_mode(clock: Clock) -> None:
    """Estimate the loss in inference mode."""
    nano_gpt(clock, torch.inference_mode)


def batch_by_batch(clock: Clock) -> None:
    """Turn gradients off for each batch of an evaluation, and make its batches in between."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for number, (x, y) in enumerate(loader(Data(clock))):
        train_step(clock, model, optimizer, x, y)
        if number % 9 == 8:
            model.eval()
            for _ in range(6):
                clock.sleep("evaluation", 1)
                with torch.no_grad():
                    model(x)
            model.train()


def held_out(clock: Clock) -> None:
    """Evaluate on tensors in memory after each epoch, without ``eval()``."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for _ in range(3):
        for x, y in loader(Data(clock, STEPS // 3)):
            train_step(clock, model, optimizer, x, y)
        with torch.no_grad():
            for _ in range(4):
                model(batch()[0])
    for x, y in loader(Data(clock, 1)):
        train_step(clock, model, optimizer, x, y)


def image_models(clock: Clock) -> None:
    """Validate in inference mode with a DataLoader, and average the weights: timm and YOLOv5."""
    model = Model(clock)
    average = nn.Linear(8, 4).eval()
    optimizer = Optimizer(clock, model)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update() -> None:
        average.weight.lerp_(model.net.weight, 0.1)
        clock.sleep("other", 0.5)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def validate() -> None:
        model.eval()
        for x, _ in evaluation_loader(clock):
            model(x)

    for _ in range(3):
        model.train()
        for x, y in loader(Data(clock, STEPS // 3)):
            train_step(clock, model, optimizer, x, y)
            update()
        validate()
    for x, y in loader(Data(clock, 1)):
        train_step(clock, model, optimizer, x, y)


def min_gpt(clock: Clock) -> None:
    """Generate a sample in a callback now and then, after a step."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    data = iter(loader(Data(clock)))
    for number in range(STEPS):
        train_step(clock, model, optimizer, *next(data))
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                for _ in range(5):
                    model(batch()[0])
            model.train()


# Reinforcement learning.


def learn(clock: Clock, model: Any, optimizer: Any) -> None:
    """Learn from an episode in twelve minibatches."""
    for _ in range(12):
        train_step(clock, model, optimizer, *batch())


def clean_rl(clock: Clock, *, mode: Callable[[Any], object] = lambda _: None) -> None:
    """Ask the policy before each step of an environment, then learn: PPO."""
    model = Model(clock, "rollout")
    optimizer = Optimizer(clock, model)
    learn(clock, model, optimizer)
    clock.slept.clear()
    for _ in range(3):
        mode(model)
        for _ in range(10):
            with torch.no_grad():
                model(batch()[0])
            clock.sleep("rollout", 3)  # the environment
        with torch.no_grad():
            model(batch()[0])  # the value of the last state
        model.train()
        learn(clock, model, optimizer)


def stable_baselines(clock: Clock) -> None:
    """Play in the mode of an evaluation, which is set by ``train(False)``."""
    clean_rl(clock, mode=lambda model: model.train(False))


def one_region(clock: Clock) -> None:
    """Play a whole episode without gradients."""
    model = Model(clock, "rollout")
    optimizer = Optimizer(clock, model)
    learn(clock, model, optimizer)
    for _ in range(3):
        with torch.no_grad():
            for _ in range(10):
                model(batch()[0])
                clock.sleep("rollout", 3)
        learn(clock, model, optimizer)


def completions(clock: Clock) -> None:
    """Fetch a prompt, generate completions without gradients, and learn from them: TRL."""
    model = Model(clock, "rollout")
    optimizer = Optimizer(clock, model)
    for x, y in loader(Data(clock)):
        with torch.no_grad():
            for _ in range(4):
                model(x)
        train_step(clock, model, optimizer, x, y)


def completions_in_evaluation_mode(clock: Clock) -> None:
    """Generate completions in the mode of an evaluation in each step, for dropout is of no use to them."""
    model = Model(clock, "rollout")
    optimizer = Optimizer(clock, model)
    for x, y in loader(Data(clock)):
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                model(x)
        model.train()
        train_step(clock, model, optimizer, x, y)


# Libraries.


def lightning(clock: Clock, *, validates: bool) -> None:
    """Train with Lightning, which steps by closures."""
    library = pytest.importorskip("lightning.pytorch")

    class Module(library.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(clock)

        def training_step(self, batch: Any, _number: int) -> Any:
            clock.sleep("forward", 10)
            return loss(self.model, *batch)

        def validation_step(self, batch: Any, _number: int) -> None:
            loss(self.model, *batch)

        def configure_optimizers(self) -> Any:
            return Optimizer(clock, self)

    fit = library.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        accelerator="cpu",
        devices=1,
    )
    fit.fit(Module(), loader(Data(clock, STEPS // 2)), evaluation_loader(clock) if validates else None)


def lightning_with_validation(clock: Clock) -> None:
    """Train with Lightning, and validate after each epoch."""
    lightning(clock, validates=True)


def lightning_without_validation(clock: Clock) -> None:
    """Train with Lightning, and never validate."""
    lightning(clock, validates=False)


class Labelled(nn.Module):  # type: ignore[misc, name-defined]
    """A model that computes its loss itself, as those of transformers do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.model = Model(clock)

    def forward(self, x: Any = None, labels: Any = None) -> Any:
        """Return the loss and the logits."""
        logits = self.model(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Rows(Data):
    """Samples by name."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


def transformers(clock: Clock) -> None:
    """Train with transformers' Trainer, and evaluate now and then."""
    library = pytest.importorskip("transformers")
    with tempfile.TemporaryDirectory() as folder:
        arguments = library.TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=SIZE,
            per_device_eval_batch_size=SIZE,
            report_to=[],
            eval_strategy="steps",
            eval_steps=10,
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            optim="sgd",
        )
        model = Labelled(clock)
        library.Trainer(
            model, arguments, train_dataset=Rows(clock), eval_dataset=Rows(clock, 3, "evaluation", 2)
        ).train()


def accelerate(clock: Clock) -> None:
    """Train with Accelerate, which fetches a batch ahead."""
    library = pytest.importorskip("accelerate")
    accelerator = library.Accelerator(cpu=True)
    model = Model(clock)
    data = accelerator.prepare(loader(Data(clock)))
    optimizer = Optimizer(clock, model)
    for x, y in data:
        train_step(clock, model, optimizer, x, y)


LOOPS = {
    program.__name__: program
    for program in (
        *(plain, closure, closure_without_loader, lbfgs, full_batch, adversarial, distilled),
        *(nano_gpt, nano_gpt_in_inference_mode, batch_by_batch, held_out, image_models, min_gpt),
        *(clean_rl, stable_baselines, one_region, completions, completions_in_evaluation_mode),
        *(lightning_with_validation, lightning_without_validation, transformers, accelerate),
    )
}


@pytest.mark.parametrize("name", LOOPS)
def test_each_phase_has_the_time_that_the_program_spends_in_it(name: str) -> None:
    """Data, forward, backward, clipping, optimizer, evaluation and rollouts, whatever the loop looks like."""
    result = run(LOOPS[name])
    assert_agrees(result)


def minibatches_by_loader(clock: Clock) -> None:
    """Play without gradients for most of the time, and learn from the episode with a DataLoader."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for _ in range(9):
        with torch.no_grad():
            for _ in range(32):
                model(batch()[0])
        for x, y in loader(Data(clock, 8)):
            train_step(clock, model, optimizer, x, y)


def evaluation_mode_in_each_episode(clock: Clock) -> None:
    """Act in the mode of an evaluation before each step, as DDPG does, without a DataLoader."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for _ in range(70):
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(batch()[0])
        model.train()
        train_step(clock, model, optimizer, *batch())


@pytest.mark.parametrize("program", [minibatches_by_loader, evaluation_mode_in_each_episode])
def test_no_advice_where_an_evaluation_may_be_a_rollout(program: Callable[[Clock], object]) -> None:
    """Two thirds of the time go into forwards without gradients, of which nothing says what they are for."""
    result = run(program)
    assert result.slept["evaluation"] > 0.4 * sum(result.phases.values())
    assert "evaluation_bound" not in result.verdicts


def evaluates_too_often(clock: Clock) -> None:
    """Estimate the loss after each fourth step, for most of the time."""
    model = Model(clock)
    optimizer = Optimizer(clock, model)
    for number in range(80):
        train_step(clock, model, optimizer, *batch())
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                for _ in range(16):
                    model(batch()[0])
            model.train()


def test_an_evaluation_without_a_loader_has_its_verdict() -> None:
    """Two thirds of the time in ``eval()`` without gradients are said."""
    assert run(evaluates_too_often).verdicts == ["evaluation_bound"]


def samples_of(train: Callable[[], object]) -> list[int | None]:
    """Return the samples of each step."""
    with seen() as found:
        train()
    return [step.samples for step in found.steps]


def test_samples_are_those_that_a_step_has_trained_on() -> None:
    """Accelerate fetches a batch ahead of the one that it hands out, which is the one that counts."""
    pytest.importorskip("accelerate")
    assert samples_of(lambda: accelerate(Clock())) == [SIZE] * STEPS
    pytest.importorskip("transformers")
    assert samples_of(lambda: transformers(Clock())) == [SIZE] * STEPS


def test_an_early_end_of_an_accelerated_loop_leaves_its_loader_alone() -> None:
    """A loop that breaks closes the loader's generator, and the next one begins anew, with all its batches."""
    library = pytest.importorskip("accelerate")
    clock = Clock()
    data = library.Accelerator(cpu=True).prepare(loader(Data(clock, 5)))
    model = Model(clock)
    optimizer = Optimizer(clock, model)

    def train() -> None:
        for turns in (2, 5):
            for number, (x, y) in enumerate(data, start=1):
                train_step(clock, model, optimizer, x, y)
                if number == turns:
                    break

    assert samples_of(train) == [SIZE] * 7
    assert not data.end_of_dataloader or data.remainder == 0


def test_a_checkpoint_of_several_files_is_one() -> None:
    """The Trainer saves weights, optimizer, scheduler, random states and arguments: that is one checkpoint."""
    library = pytest.importorskip("transformers")
    registry = Registry()
    steps = AnatomyOfSteps(registry, Journal(registry))
    try:
        with tempfile.TemporaryDirectory() as folder:
            arguments = library.TrainingArguments(
                folder,
                max_steps=9,
                per_device_train_batch_size=SIZE,
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                save_strategy="steps",
                save_steps=3,
            )
            library.Trainer(Labelled(Clock()), arguments, train_dataset=Rows(Clock())).train()
            saved = len(list(Path(folder).glob("checkpoint-*")))
    finally:
        steps.close()
    (durations,) = [metric for metric in registry.collect() if metric.name == "dl.checkpoint.duration"]
    assert [point.summary.count for point in durations.points] == [saved] == [3]  # type: ignore[union-attr]


RANKS = """
import json, os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from test_anatomy_clock import Clock, Data, Model, Optimizer, batch, loader, train_step
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
clock = Clock()
model = DistributedDataParallel(Model(clock))
optimizer = Optimizer(clock, model)
for number, (x, y) in enumerate(loader(Data(clock, 150))):
    if rank == 1 and number == 90:
        clock.sleep("forward", 2500)  # once
    train_step(clock, model, optimizer, x, y)
    if number % 40 == 39 and number < 140:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model.module(x)
        model.train()
dist.destroy_process_group()
with open(f"slept-{rank}.json", "w") as file:
    json.dump(clock.slept, file)
"""


def test_ranks_of_data_parallel_training(tmp_path: Path) -> None:
    """Each rank's phases agree with its own clock, and a rank that has paused once holds up nobody."""
    script = programs.write(tmp_path, RANKS)
    tachograph = [sys.executable, "-m", "tachograph", "run", "--store", str(tmp_path), "--run-id", "job", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    here = Path(__file__).parent
    done = subprocess.run(
        [*tachograph, *torchrun, str(script)],
        cwd=tmp_path,
        env=programs.environment(tmp_path, PYTHONPATH=f"{here}:{here.parent}"),
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    with look(RunFile(tmp_path / "runs" / "job.db")) as reading:
        streams = step_streams(reading, recent=False)
        found = [verdict.name for verdict in diagnose_run(reading, 0, recent=False).verdicts]
    for stream in streams:
        slept = json.loads((tmp_path / f"slept-{stream.rank}.json").read_text())
        assert_agrees(Result(slept, phases_of(stream.last), found))
    assert len(streams) == 2


def real_stable_baselines(clock: Clock) -> None:
    """Learn by PPO in an environment that sleeps, and evaluate the policy in another one."""
    library, gymnasium = pytest.importorskip("stable_baselines3"), pytest.importorskip("gymnasium")
    import numpy as np
    from stable_baselines3.common.callbacks import EvalCallback

    class Environment(gymnasium.Env):  # type: ignore[misc, name-defined]
        observation_space = gymnasium.spaces.Box(-1, 1, (4,))
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, phase: str) -> None:
            self.phase = phase
            self.turns = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed, options=options)
            self.turns = 0
            return np.zeros(4, np.float32), {}

        def step(self, _action: Any) -> Any:
            clock.sleep(self.phase, 2)
            self.turns += 1
            return np.zeros(4, np.float32), 1.0, self.turns >= 20, False, {}

    class Starts(EvalCallback):  # type: ignore[misc]
        def _on_rollout_start(self) -> None:
            if self.num_timesteps <= 64:
                clock.slept.clear()  # nothing is hooked before the first step

    model = library.PPO("MlpPolicy", Environment("rollout"), n_steps=64, batch_size=16, n_epochs=4, device="cpu")
    model.learn(64 * 6, callback=Starts(Environment("evaluation"), eval_freq=100, n_eval_episodes=3, verbose=0))


def test_the_evaluation_of_a_policy_is_no_rollout() -> None:
    """Stable-Baselines3 plays both in the same way: ``evaluate_policy`` is evaluation, and neither gets advice."""
    result = run(real_stable_baselines)
    assert result.phases["evaluation"] >= 0.95 * result.slept["evaluation"]
    # The environment's step right before an evaluation or a backward has the name of its gap.
    assert 0.9 * result.slept["rollout"] <= result.phases["rollout"] <= sum(result.phases.values()) / 2
    assert result.verdicts == []
