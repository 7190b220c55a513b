"""The anatomy of steps in real torch programs: their number, and that nothing of the program changes."""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tachograph.diagnosis.anatomy import Anatomy, Lane, size_of
from tachograph.diagnosis.anatomy_ddp import Communication
from tachograph.diagnosis.anatomy_device import DeviceClock
from tachograph.diagnosis.anatomy_series import AnatomyOfSteps
from tachograph.diagnosis.phases import OPTIMIZER, OPTIMIZER_END, PHASES, Step, StepMachine, Totals
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Page
from tachograph.instrumentation import TorchStepInstrumentor
from tachograph.metric import log
from tachograph.metric._log import logged
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry
from tracing_on import Spans, program_that_traces  # noqa: F401 - one is a fixture

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch
BATCHES, SIZE = 10, 8


def never(error: Exception) -> None:
    """Fail: nothing of ours raises."""
    raise AssertionError(error)


class Seen:
    """The steps of a program, and its totals, once it has ended."""

    def __init__(self) -> None:
        self.anatomy = Anatomy(never)
        self.steps: list[Step] = []
        self.totals: Totals | None = None

    def end(self) -> None:
        """Take the marks of the first thread."""
        machine = StepMachine()
        for lane in list(self.anatomy.lanes.values())[:1]:
            marks, lost = lane.take()
            assert not lost
            self.steps = machine.take(marks) + machine.close()
            self.totals = machine.totals()
        self.anatomy.close()


@contextmanager
def seen() -> Iterator[Seen]:
    """Look into the steps of a program."""
    found = Seen()
    try:
        yield found
    finally:
        found.end()


def mlp() -> Any:
    """Return a small model."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def dataset() -> Any:
    """Return eighty samples."""
    return torch.utils.data.TensorDataset(torch.randn(80, 64), torch.randint(0, 10, (80,)))


def loader(**options: Any) -> Any:
    """Return a loader of ten batches."""
    return torch.utils.data.DataLoader(dataset(), batch_size=SIZE, **options)


def loss(model: Any, x: Any, y: Any) -> Any:
    """Return the loss of a batch."""
    return functional.cross_entropy(model(x), y)


def plain() -> None:
    """Train as every tutorial does."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader():
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()


def accumulation() -> None:
    """Step after each fifth backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(loader()):
        loss(model, x, y).backward()
        if number % 5 == 4:
            optimizer.step()
            optimizer.zero_grad()


def adversarial(every: int) -> Callable[[], None]:
    """Return a GAN whose generator steps once in so many batches."""

    def train() -> None:
        one, other = mlp(), mlp()
        first, second = torch.optim.Adam(one.parameters()), torch.optim.Adam(other.parameters())
        for number, (x, y) in enumerate(loader()):
            first.zero_grad()
            loss(one, x, y).backward()
            first.step()
            if number % every == every - 1:
                second.zero_grad()
                loss(other, x, y).backward()
                second.step()

    return train


def without_loader() -> None:
    """Train on one batch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = dataset().tensors
    for _ in range(10):
        optimizer.zero_grad()
        loss(model, x[:8], y[:8]).backward()
        optimizer.step()


def reinforcement() -> None:
    """Play, then learn in four epochs of two batches, three times: PPO's loop."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = dataset().tensors
    for _ in range(3):
        with torch.no_grad():
            for _ in range(20):
                model(x[:1])
        for _ in range(4 * 2):
            optimizer.zero_grad()
            loss(model, x[:8], y[:8]).backward()
            optimizer.step()


def closures() -> None:
    """Give the optimizer a closure that it calls several times."""
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for x, y in loader():

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            found = loss(model, x, y)
            found.backward()
            return found

        optimizer.step(closure)


def scaled() -> None:
    """Scale gradients, two of which overflow."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for number, (x, y) in enumerate(loader()):
        optimizer.zero_grad()
        scaler.scale(loss(model, x, y) * (float("inf") if number in {3, 4} else 1)).backward()
        scaler.step(optimizer)
        scaler.update()


def within_backward() -> None:
    """Step each parameter's optimizer as soon as its gradient is there."""
    model = mlp()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for x, y in loader():
        loss(model, x, y).backward()


def raising() -> None:
    """Have a closure raise once."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(loader()):
        optimizer.zero_grad()
        found = loss(model, x, y)
        if number == 3:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
        found.backward()
        optimizer.step()


def workers() -> None:
    """Read with workers, and evaluate with gradients on."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for x, y in loader(num_workers=2):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
        for x, _ in loader():
            model(x)


def inference() -> None:
    """Train nothing."""
    model = mlp()
    for x, _ in loader():
        model(x)


def own_optimizer() -> None:
    """Change the weights by hand: there is no step that could be told."""
    model = mlp()
    for x, y in loader():
        loss(model, x, y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None


def checkpointed() -> None:
    """Recompute activations in the backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader():
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=True)
        loss(model[1:], hidden.requires_grad_(), y).backward()
        optimizer.step()


def compiled() -> None:
    """Compile the whole train step but its optimizer."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for x, y in loader():
        optimizer.zero_grad()
        step(model, x, y).backward()
        optimizer.step()


def compiled_optimizer() -> None:
    """Compile the train step together with its optimizer, whose hooks are no part of the graph."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.compile(backend="aot_eager")  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> None:
        loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    for x, y in loader():
        step(x, y)


def trainer() -> None:
    """Train with transformers' Trainer, and evaluate each epoch."""
    transformers = pytest.importorskip("transformers")
    import tempfile

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Any = None, labels: Any = None) -> Any:
            logits = self.net(x)
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}

    rows = [{"x": x, "labels": y} for x, y in dataset()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            report_to=[],
            eval_strategy="epoch",
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            gradient_accumulation_steps=2,
        )
        transformers.Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows).train()


def lightning() -> None:
    """Train with Lightning, which steps by closures."""
    library = pytest.importorskip("lightning.pytorch")

    class Module(library.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, _number: int) -> Any:
            return loss(self.net, *batch)

        def validation_step(self, batch: Any, _number: int) -> None:
            loss(self.net, *batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    fit = library.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        devices=1,
    )
    fit.fit(Module(), loader(), loader())


def accelerated() -> None:
    """Train with Accelerate, which fetches a batch ahead."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = mlp()
    model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader())
    for x, y in data:
        optimizer.zero_grad()
        accelerator.backward(loss(model, x, y))
        optimizer.step()


LOOPS: dict[str, tuple[Callable[[], None], int]] = {
    "plain": (plain, 10),
    "accumulation of five": (accumulation, 2),
    "GAN": (adversarial(1), 10),
    "WGAN, five to one": (adversarial(5), 10),
    "no DataLoader": (without_loader, 10),
    "PPO": (reinforcement, 24),
    "LBFGS": (closures, 10),
    "AMP with two skipped": (scaled, 8),
    "optimizer in the backward": (within_backward, 10),
    "a closure that raises": (raising, 10),
    "workers, and evaluation with gradients": (workers, 20),
    "inference": (inference, 0),
    "an optimizer of their own": (own_optimizer, 0),
    "activation checkpointing": (checkpointed, 10),
    "a compiled loss": (compiled, 10),
    "a compiled optimizer": (compiled_optimizer, 0),
    "transformers": (trainer, 10),
    "lightning": (lightning, 20),
    "accelerate": (accelerated, 10),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_those_of_the_program(name: str) -> None:
    """Each kind of loop has as many steps as it has, and their phases add up to them."""
    train, wanted = LOOPS[name]
    torch.manual_seed(0)
    with seen() as found:
        train()
    assert len(found.steps) == wanted
    assert all(sum(step.phases) == step.duration for step in found.steps)
    if found.totals is not None:
        assert sum(found.totals.phases) == found.totals.end - found.totals.begin


@pytest.mark.parametrize("place", ["data_wait", "forward", "backward", "gradients", "optimizer", "checkpoint", "other"])
def test_a_sleep_grows_its_phase(place: str) -> None:
    """Time that is spent in a place of the loop is found in its phase, and in no other one."""
    slow = 0.02

    class Data(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            time.sleep(slow * (place == "data_wait"))
            return torch.full((64,), float(index)), index

    class Slow(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            time.sleep(slow * (place == "optimizer"))
            return super().step(closure)

    with seen() as found:
        model = mlp()
        optimizer = Slow(model.parameters(), 0.1)
        model[0].weight.register_hook(lambda _: time.sleep(slow * (place == "backward")))
        for x, y in torch.utils.data.DataLoader(Data(), batch_size=1):
            time.sleep(slow * (place == "forward"))
            loss(model, x, y).backward()
            time.sleep(slow * (place == "gradients"))
            optimizer.step()
            if place == "checkpoint":
                torch.save(Sleeps(slow), io.BytesIO())
            time.sleep(slow * (place == "other"))
    assert found.totals is not None
    phases = dict(zip(PHASES, (sum(of) for of in zip(*(s.phases for s in found.steps[1:]), strict=True)), strict=True))
    grown = max(phases, key=lambda name: phases[name])
    assert grown == place
    assert phases[place] >= 7 * slow * 1e9


class Sleeps:
    """An object whose pickling takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> Any:
        time.sleep(self.seconds)
        return Sleeps, (0.0,)


def weights(train: Callable[[], Any]) -> tuple[str, bytes]:
    """Return the digest of what a program has trained, and torch's random state after it."""
    torch.manual_seed(3)
    model = train()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    return digest.hexdigest(), torch.get_rng_state().numpy().tobytes()


def test_weights_and_random_state_are_bit_identical() -> None:
    """A model trained under the hooks has the same bits, and so has torch's generator."""

    def train() -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 10))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for x, y in loader(shuffle=True):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
        return model

    before = weights(train)
    with seen() as found:
        within = weights(train)
    assert before == within
    assert len(found.steps) == 10


class Own(nn.Module):  # type: ignore[misc, name-defined]
    """A module of the program's own, as dynamo skips those of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Any) -> Any:
        """Return the net's output."""
        return self.net(x)


HOW = ["module", "in place", "function", "train step", "optimizer"]


def compile_as(how: str, model: Any, optimizer: Any, x: Any) -> Callable[[], Any]:
    """Return a training step of which a part is compiled."""

    def measured() -> Any:
        return model(x).pow(2).mean()

    def trains(step: Callable[[], Any], finish: Callable[[], Any]) -> Callable[[], Any]:
        def turn() -> Any:
            found = step()
            found.backward()
            finish()
            optimizer.zero_grad()
            return found.detach()

        return turn

    full = {"backend": "aot_eager", "fullgraph": True}
    if how == "module":
        fast = torch.compile(model, **full)
        return trains(lambda: fast(x).pow(2).mean(), optimizer.step)
    if how == "in place":
        model.compile(**full)
        return trains(measured, optimizer.step)
    if how == "function":
        return trains(torch.compile(measured, **full), optimizer.step)
    if how == "optimizer":
        return trains(measured, torch.compile(optimizer.step, backend="aot_eager"))
    return torch.compile(trains(measured, optimizer.step), backend="aot_eager")  # type: ignore[no-any-return]


def compilation(how: str, *, before: bool, after: bool) -> tuple[Any, ...]:
    """Return the graphs, breaks and losses of a compiled program that is hooked before or after its first compile."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(1)
    model, x = Own(), torch.randn(4, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hooks = Anatomy(never) if before else None
    try:
        step = compile_as(how, model, optimizer, x)
        losses = []
        for number in range(4):
            if after and number == 2:
                hooks = Anatomy(never)
            losses.append(float(step()))
        stats = {key: counters["stats"][key] for key in ("unique_graphs", "calls_captured")}
        return stats, sum(counters["graph_break"].values()), losses
    finally:
        if hooks is not None:
            hooks.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", HOW)
def test_compiled_programs_stay_as_they_are(how: str) -> None:
    """``fullgraph=True`` passes, and graphs, breaks and losses are the same, hooked early or late."""
    bare = compilation(how, before=False, after=False)
    assert compilation(how, before=True, after=False) == bare
    if how not in {"train step", "optimizer"}:  # dynamo guards an optimizer by its hooks: new ones recompile it
        assert compilation(how, before=False, after=True) == bare


def within_no_grad(model: Any, x: Any) -> Any:
    """Turn gradients off in a part of it."""
    with torch.no_grad():
        known = model(x)
    return known + model(x)


@torch.no_grad()  # type: ignore[untyped-decorator]
def decorated(model: Any, x: Any) -> Any:
    """Turn gradients off for all of it."""
    return model(x) * 2


def within_inference_mode(model: Any, x: Any) -> Any:
    """Compute in inference mode, and with gradients afterwards."""
    with torch.inference_mode():
        model(x)
    return model(x)


def evaluated(model: Any, x: Any) -> Any:
    """Set the mode of an evaluation."""
    model.eval()
    return model(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", [within_no_grad, decorated, within_inference_mode, evaluated])
def test_gradient_modes_compile_as_ever(compute: Callable[[Any, Any], Any]) -> None:
    """Code that turns gradients off has the same graphs, breaks and values, compiled as a whole if it was before."""
    from torch._dynamo.utils import counters

    def compiled_values(*, hooked: bool) -> tuple[Any, ...]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(1)
        model, x = Own(), torch.randn(4, 64)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        hooks = Anatomy(never) if hooked else None
        try:
            loss(model, x, torch.zeros(4, dtype=torch.long)).backward()
            optimizer.step()  # this thread has a lane
            fast = torch.compile(compute, backend="aot_eager", fullgraph=True)
            values: list[Any] = []
            for _ in range(3):
                try:
                    values.append(float(fast(model, x).sum()))
                except torch._dynamo.exc.TorchDynamoException as error:
                    values.append(type(error))
            return {**counters["stats"]}, sum(counters["graph_break"].values()), values
        finally:
            if hooks is not None:
                hooks.close()

    assert compiled_values(hooked=True) == compiled_values(hooked=False)


@pytest.mark.filterwarnings("ignore")
def test_gradient_modes_are_scripted_as_ever() -> None:
    """TorchScript reads the source of ``no_grad``: it finds that of torch."""
    with seen():
        script = torch.jit.script(scripted)
        assert float(script(torch.ones(2))) == 4


def scripted(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    """Turn gradients off in a part of it."""
    with torch.no_grad():
        y = x * 2
    return y.sum()


@pytest.mark.filterwarnings("always:'pin_memory' argument")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_warning_of_a_hooked_function_names_the_line_that_it_names_without_us(workers: int) -> None:
    """``DataLoader(pin_memory=True)`` without an accelerator warns about a line of torch, not about one of a hook."""

    def place() -> list[tuple[str, int]]:
        with pytest.warns(UserWarning, match="pin_memory") as caught:
            list(torch.utils.data.DataLoader(dataset(), SIZE, pin_memory=True, num_workers=workers))
        return [(warning.filename, warning.lineno) for warning in caught if "pin_memory" in str(warning.message)]

    bare = place()
    with seen():
        assert place() == bare


def test_objects_pickle_and_copy_as_ever() -> None:
    """Models and optimizers that were trained under the hooks have nothing of ours in them."""
    with seen():
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        loss(model, *dataset().tensors).backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        for each in (model, optimizer, loader()):
            assert b"tachograph" not in pickle.dumps(each)
            copy.deepcopy(each)
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save  # noqa: S301 - our own
    assert b"tachograph" not in file.getvalue()
    file.seek(0)
    assert set(torch.load(file)) == {"model", "optimizer"}


def test_torch_is_restored() -> None:
    """After the end each name of torch is what it was, and there is no hook."""
    from torch.optim import optimizer as optimizers  # noqa: F401 - imported with torch
    from torch.utils.data import dataloader

    def names() -> list[Any]:
        iterator = dataloader._BaseDataLoaderIter
        return [
            *(torch.save, torch.serialization.save, torch.autograd._engine_run_backward, torch.amp.GradScaler.step),
            *(iterator.__next__, iterator.__init__, dataloader.DataLoader.__iter__),
            nn.parallel.DistributedDataParallel.__init__,
        ]

    before = names()
    with seen():
        assert all(one is not other for one, other in zip(names(), before, strict=True))
    assert names() == before


def test_threads_have_steps_of_their_own() -> None:
    """Two models that train in two threads are two lanes, each with its own steps."""
    registry, journal = Registry(), Journal(Registry())
    steps = AnatomyOfSteps(registry, journal)
    try:
        thread = threading.Thread(target=plain, name="beside")
        thread.start()
        plain()
        thread.join()
    finally:
        steps.close()
    (counted,) = [each for each in registry.collect() if each.name == "dl.step.count"]
    found = {point.attributes: point.value for point in counted.points}  # type: ignore[union-attr]
    assert sorted(found.values()) == [10, 10]


def test_series_and_event_of_a_program() -> None:
    """The instrumentor records durations, phases, samples and tokens, and the totals as an event, in real units."""
    registry = Registry()
    journal = Journal(registry)
    steps = AnatomyOfSteps(registry, journal)
    try:
        model = nn.Embedding(16, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        rows = [{"input_ids": torch.arange(16)} for _ in range(40)]
        for batch in torch.utils.data.DataLoader(rows, batch_size=4):
            model(batch["input_ids"]).sum().backward()
            optimizer.step()
    finally:
        steps.close()
    found = {metric.name: metric for metric in registry.collect()}
    (duration,) = found["dl.step.duration"].points
    phases = found["dl.step.phase.duration"].points
    assert duration.summary.count == 10  # type: ignore[union-attr]
    assert sum(p.summary.total.value() for p in phases) == pytest.approx(duration.summary.total.value(), rel=1e-9)  # type: ignore[union-attr]
    assert [found[name].points[0].value for name in ("dl.step.count", "dl.samples", "dl.tokens")] == [10, 40, 640]  # type: ignore[union-attr]
    (event,) = [event for event in journal.drain() if event.name == "tachograph.steps"]
    said = event.attributes
    assert (said["steps"], said["samples"], said["tokens"]) == (10, 40, 640)
    assert sum(said["phases"]) == said["end"] - said["begin"]  # type: ignore[arg-type, operator]
    assert said["rss.rank"] > 10**7  # type: ignore[operator]


@pytest.mark.parametrize(
    ("first", "every", "each", "counted"),
    [
        pytest.param(1, 1, 100, 1000, id="each step"),
        pytest.param(1, 5, 500, 1000, id="each fifth step"),
        pytest.param(6, 1, 60, 6 * 64 + 4 * 60, id="from the sixth step on, whose batch tells"),
    ],
)
def test_tokens_that_the_program_logs_are_counted_instead(first: int, every: int, each: int, counted: int) -> None:
    """From the first ones on, and never both: also where batches of ``input_ids`` were counted before that."""
    registry = Registry()
    logged.reset()
    journal = Journal(registry)
    steps = AnatomyOfSteps(registry, journal)
    try:
        model = nn.Embedding(16, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        rows = [{"input_ids": torch.arange(16)} for _ in range(40)]
        for number, batch in enumerate(torch.utils.data.DataLoader(rows, batch_size=4), start=1):
            model(batch["input_ids"]).sum().backward()
            optimizer.step()
            if number != first:
                steps.series.fold()
            if number >= first and number % every == 0:
                log({"loss": 0.5, "tokens": each})
    finally:
        steps.close()
        logged.reset()
    (found,) = [metric for metric in registry.collect() if metric.name == "dl.tokens"]
    assert [point.value for point in found.points] == [counted]  # type: ignore[union-attr]
    assert [event.attributes["tokens"] for event in journal.drain() if event.name == "tachograph.steps"][-1] == counted


UNSAMPLED = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags.get_default())


def exemplars(registry: Registry) -> set[tuple[int, int]]:
    """Return the traces and spans that are left at the duration of steps: the same over OTLP and on a page."""
    now = time.time_ns()
    encoder = MetricsEncoder("there", registry, temporality="cumulative", points_per_request=100, pace=lambda: None)
    (message,) = [message for message, _ in encoder.messages(Batch(registry.columns(), None, [], {}, now))]
    sent = [
        (int.from_bytes(exemplar.trace_id, "big"), int.from_bytes(exemplar.span_id, "big"))
        for scope in type(message).FromString(message.SerializeToString()).resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == "dl.step.duration"
        for exemplar in metric.histogram.data_points[0].exemplars
        if 0 < now - exemplar.time_unix_nano < 60 * 10**9
    ]
    page = Page({}, {}, registry).render(registry.collect(), None, Format(openmetrics=True, version="1.0.0")).decode()
    shown = [
        (int(sample.exemplar.labels["trace_id"], 16), int(sample.exemplar.labels["span_id"], 16))
        for family in text_string_to_metric_families(page)
        if family.name == "dl_step_duration_seconds"
        for sample in family.samples
        if sample.exemplar
    ]
    assert sorted(sent) == sorted(shown)
    return set(sent)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_of_every_kind(tmp_path: Path) -> None:
    """A distributed checkpoint is one, whatever its parts; so is a file of safetensors."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    safetensors = pytest.importorskip("safetensors.torch")
    before = checkpoint.save, checkpoint.async_save, safetensors.save_file
    with seen() as found:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in loader():
            loss(model, x, y).backward()
            optimizer.step()
        for save in (
            lambda: checkpoint.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "parts", no_dist=True),
            lambda: safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors"),
            lambda: torch.save(model.state_dict(), tmp_path / "model.pt"),
        ):
            save()
            loss(model, x, y).backward()
            optimizer.step()
    assert found.totals is not None
    assert (found.totals.checkpoints, found.totals.steps) == (3, BATCHES + 3)
    assert found.totals.phases[PHASES.index("checkpoint")] > 0
    assert (checkpoint.save, checkpoint.async_save, safetensors.save_file) == before


def test_the_slowest_step_of_each_hundred_carries_its_trace() -> None:
    """Of those that have one, also where they are not in time; the last steps, fewer than a hundred, do at the end."""
    registry = Registry()
    steps = AnatomyOfSteps(registry, Journal(registry))
    communication = Communication(WeakKeyDictionary(), never)
    lane = steps.anatomy.lanes[1] = Lane(DeviceClock(torch, never), communication, lambda: None)
    took = {40: 200, 150: 70, 210: 400, 215: 800}  # milliseconds, of different buckets: each shows one exemplar
    now = time.perf_counter_ns() - 10**10
    for number in range(220):
        lane.add((OPTIMIZER, now, 1))
        now += took.get(number, 1 + number % 7) * 10**6
        lane.add((OPTIMIZER_END, now, 1, 7, number) if number != 215 else (OPTIMIZER_END, now, 1))
    steps.series.fold()
    assert exemplars(registry) == {(7, 40), (7, 150)}
    steps.close()
    assert exemplars(registry) == {(7, 40), (7, 150), (7, 210)}


def test_a_step_has_the_span_at_its_end(spans: Spans) -> None:
    """From the first step on, the one of each step; none where it is not sampled, or where the program has none."""
    tracer, unsampled = spans.provider.get_tracer("training"), set_span_in_context(NonRecordingSpan(UNSAMPLED))
    wanted: list[tuple[int, ...]] = []
    with seen() as found:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number, (x, y) in enumerate(loader()):
            with tracer.start_as_current_span("step", unsampled if number == 3 else None) as span:
                loss(model, x, y).backward()
                optimizer.step()
            wanted.append((span.get_span_context().trace_id, span.get_span_context().span_id) if number != 3 else ())
        loss(model, x, y).backward()
        optimizer.step()
    assert [step.span for step in found.steps] == [*wanted, ()]


def test_batches_have_their_sizes() -> None:
    """Samples are the first dimension of the first tensor, wherever it is; a batch without one has none."""
    x = torch.zeros(4, 3)
    assert size_of(x) == size_of((x, x)) == size_of([(x, x), x]) == size_of({"image": x}) == (4, 0)
    assert size_of({"labels": x, "input_ids": x}) == (4, 12)
    assert size_of(torch.tensor(1.0)) == size_of(["text"]) == size_of(None) == size_of({}) == (-1, 0)


class OwnOptimizer:
    """An optimizer of their own: none of torch's, so without its hooks."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]

    def step(self) -> None:
        """Change the weights."""


def test_an_optimizer_without_hooks_behind_a_scaler() -> None:
    """Its steps cannot be told, and none of them counts as left out for an overflow; those of the other one are."""
    with seen() as found:
        one, other = mlp(), mlp()
        first, second = torch.optim.SGD(one.parameters(), 0.01), OwnOptimizer(other.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for number, (x, y) in enumerate(loader()):
            for model, optimizer in ((one, first), (other, second)):
                scaler.scale(loss(model, x, y) * (float("inf") if number == 3 else 1)).backward()
                scaler.step(optimizer)
            scaler.update()
            first.zero_grad()
    assert found.totals is not None
    assert (found.totals.steps, found.totals.skipped) == (9, 1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
def test_nested_batches_have_their_sizes(layout: Any) -> None:
    """A nested tensor may have no shape, but it has a first dimension: alone, in a pair, and as ``input_ids``."""
    x = torch.nested.nested_tensor([torch.zeros(3, 5), torch.zeros(4, 5)], layout=layout)
    assert size_of(x) == size_of((x, x)) == size_of({"image": x}) == (2, 0)
    assert size_of({"input_ids": x}) == (2, 35)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "samples"),
    [
        pytest.param(lambda x: torch.nested.nested_tensor([x, x]), 2, id="nested"),
        pytest.param(lambda x: [torch.nested.nested_tensor([x, x]), x], 2, id="first is nested"),
        pytest.param(lambda x: [x.sum(), x], None, id="first has no dimension"),
        pytest.param(lambda x: [x[:0], x], 0, id="first is empty"),
        pytest.param(lambda _: object(), None, id="not a tensor"),
    ],
)
def test_batches_of_odd_shapes(make: Callable[[Any], Any], samples: int | None) -> None:
    """A nested tensor's first dimension is the samples; where there is none there are no samples, and no error."""
    x, y = next(iter(loader()))
    with seen() as found:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in torch.utils.data.DataLoader([0, 1], collate_fn=lambda _: make(x)):
            loss(model, x, y).backward()
            optimizer.step()
    assert [step.samples for step in found.steps] == [samples, samples]


def test_opentelemetry_loads_it_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TACHOGRAPH_ANATOMY ``opentelemetry-instrument`` leaves torch alone."""
    import sys
    import types

    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.auto_instrumentation", types.ModuleType("auto"))
    instrumentor = TorchStepInstrumentor()
    for asked, wanted in ((None, False), ("false", False), ("true", True)):
        if asked is None:
            monkeypatch.delenv("TACHOGRAPH_ANATOMY", raising=False)
        else:
            monkeypatch.setenv("TACHOGRAPH_ANATOMY", asked)
        instrumentor.instrument(skip_dep_check=True)
        assert instrumentor.is_instrumented_by_opentelemetry is wanted
    instrumentor.uninstrument()


def test_a_rank_shows_its_own_verdicts() -> None:
    """Without a hub, too, a starved program has the gauge and the event, once."""
    registry = Registry()
    journal = Journal(registry)
    steps = AnatomyOfSteps(registry, journal)

    class Data(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.005)
            return torch.full((64,), float(index)), index % 10

    try:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in torch.utils.data.DataLoader(Data()):
            loss(model, x, y).backward()
            optimizer.step()
    finally:
        steps.close()
    (verdict,) = [metric for metric in registry.collect() if metric.name == "tachograph.verdict"]
    assert [(point.attributes, point.value) for point in verdict.points] == [((("verdict", "input_bound"),), 2)]  # type: ignore[union-attr]
    (event,) = [event for event in journal.drain() if event.name == "tachograph.verdict"]
    assert event.attributes["severity"] == "critical"
    assert "num_workers=0" in str(event.attributes["evidence"])


def test_the_setting() -> None:
    """TACHOGRAPH_ANATOMY is ``true`` or ``false``; another value is said, and the default taken."""
    from tachograph.instrumentation.torch_step import asks_for_anatomy

    assert asks_for_anatomy({}, default=True)
    assert not asks_for_anatomy({}, default=False)
    assert not asks_for_anatomy({"TACHOGRAPH_ANATOMY": "false"}, default=True)
    assert asks_for_anatomy({"TACHOGRAPH_ANATOMY": "true"}, default=False)
    assert asks_for_anatomy({"TACHOGRAPH_ANATOMY": "1"}, default=False)
    assert not asks_for_anatomy({"TACHOGRAPH_ANATOMY": "0"}, default=True)
    assert asks_for_anatomy({"TACHOGRAPH_ANATOMY": "perhaps"}, default=True)
