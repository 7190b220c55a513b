"""Recording inside of functions that ``torch.compile`` compiles: one graph break a call, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import tachograph
from tachograph import MetricsLogger, elastic, metric, monitor
from tachograph.instrumentation import TensorBoardInstrumentor
from tachograph.testing import capture

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("error")]

CALLS = 200


class Handler(elastic.MetricHandler):
    """A handler whose own code depends on how many points it has seen: dynamo would compile it again for each."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def emit(self, metric_data: elastic.MetricData) -> None:
        """Keep one value."""
        self.seen.append(metric_data.value)
        self.seen.append(float(metric_data.value))


def put_for_a_handler() -> Callable[[Any], object]:
    """Return a call whose group has a handler of the program's own."""
    elastic.configure(Handler(), "compiled.handled")
    return lambda value: elastic.put_metric("loss", value, "compiled.handled")


def log_for_a_handler() -> Callable[[Any], object]:
    """Return a call that logs an event for a handler of the program's own, which works with a tensor."""
    seen, weight = [], torch.ones(1)
    handle = monitor.register_event_handler(lambda event: seen.append((event, weight + len(seen))))
    event = monitor.Event("compiled", datetime.now().astimezone(), {"loss": 0.5})

    def log(_value: object) -> None:
        monitor.log_event(event)

    log.undo = lambda: monitor.unregister_event_handler(handle)  # type: ignore[attr-defined]
    return log


def log_point() -> Callable[[Any], object]:
    """Return a call that logs a point."""
    logger = MetricsLogger()
    return lambda value: logger.log("compiled", {"a": "b"}, {"loss": value})


def wait() -> Callable[[Any], object]:
    """Return a call that measures a wait."""
    counter = monitor._WaitCounter("compiled")

    def waits(_value: object) -> None:
        with counter.guard():
            pass

    return waits


def follow_loop() -> Callable[[Any], object]:
    """Return a call with a progress bar."""

    def loops(_value: object) -> None:
        for _ in metric.progress(range(2), "compiled.loop"):
            pass

    return loops


def stat(**options: Any) -> monitor.Stat:
    """Return a Stat whose window stays open."""
    return monitor.Stat("compiled.stat", [monitor.MEAN], timedelta(hours=1), **options)


CASES: dict[str, Callable[[], Callable[[Any], object]]] = {
    "bound histogram": lambda: tachograph.declare("compiled.histogram", kind="histogram").bind(),
    "bound counter": lambda: tachograph.declare("compiled.counter", kind="counter").bind(),
    "bound gauge": lambda: tachograph.declare("compiled.gauge", kind="gauge").bind(),
    "bound with attributes": lambda: tachograph.declare("compiled.split", kind="histogram").bind(part="a"),
    "Instrument.record": lambda: tachograph.declare("compiled.recorded", kind="histogram").record,
    "declare in the function": lambda: lambda value: tachograph.declare("compiled.late", kind="gauge").record(value),
    "put_metric": lambda: lambda value: tachograph.put_metric("compiled.put", value),
    "put_metric of the module": lambda: lambda value: elastic.put_metric("compiled.put.duration.ms", value),
    "put_metric for a handler": put_for_a_handler,
    "a stream": lambda: lambda value: elastic.getStream("compiled").add_value("loss", value),
    "Metric.record": lambda: tachograph.Metric("compiled.metric").record,
    "Metric.record with x": lambda: lambda value: tachograph.Metric("compiled.x").record(value, at=1),
    "log": lambda: lambda value: tachograph.log({"compiled": {"loss": value}}),
    "config": lambda: lambda _value: tachograph.config({"compiled": 1}),
    "Stat.add": lambda: stat().add,
    "Stat.add with a limit": lambda: stat(max_samples=3).add,
    "log_event": lambda: lambda _value: monitor.log_event(monitor.Event("compiled", datetime(2026, 1, 1), {"a": 1})),  # noqa: DTZ001
    "log_event for a handler": log_for_a_handler,
    "a wait": wait,
    "MetricsLogger.log": log_point,
    "progress": follow_loop,
}


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[Any]:
    """A dynamo that has compiled nothing yet, and that raises where it would compile something again."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield counters
    torch._dynamo.reset()


def compiled(record: Callable[[Any], object], value_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a compiled function that records a value between two operations."""

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        y = x.sin()
        record(value_of(y))
        return y.cos()

    return step  # type: ignore[no-any-return]


@pytest.mark.parametrize("value_of", [lambda _: 0.5, lambda y: y.detach().sum()], ids=["a float", "a tensor"])
@pytest.mark.parametrize("name", CASES)
def test_each_recording_function_is_one_graph_break(
    name: str, value_of: Callable[[Any], Any], dynamo: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A compiled function that records has two graphs, one before and one after; no warning, no second compilation."""
    record = CASES[name]()
    step = compiled(record, value_of)
    x = torch.ones(3)
    for _ in range(CALLS):
        assert torch.equal(step(x), x.sin().cos())
    getattr(record, "undo", lambda: None)()
    assert dynamo["stats"]["unique_graphs"] == 2
    assert capfd.readouterr().err == ""


def test_each_value_is_recorded_once() -> None:
    """What a compiled function records is there as often as it was called, the calls while it is compiled included."""
    with capture() as captured:
        histogram = tachograph.declare("compiled.values", kind="histogram")
        record = histogram.bind()
        step = compiled(record, lambda y: y.detach().sum())
        for number in range(CALLS):
            step(torch.full((1,), float(number)))
        found: Any = captured.value("compiled.values")
        assert found.count == CALLS
        assert found.total.value() == pytest.approx(sum(float(torch.tensor(float(n)).sin()) for n in range(CALLS)))


def test_a_profiled_function_stays_compiled(dynamo: Any) -> None:
    """``@prof`` above or below ``torch.compile``, or inside of it: its calls are measured, and its body is a graph."""
    full = {"backend": "eager", "fullgraph": True}

    def body(x: Any) -> Any:
        return x.sin().cos()

    def calls(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: inner(x.tan()).exp()

    group, x = "compiled.prof", torch.ones(3)
    ways: dict[str, tuple[Callable[[Any], Any], int]] = {
        "above": (tachograph.prof(torch.compile(body, **full), group=group), 1),
        "below": (torch.compile(tachograph.prof(body, group=group), backend="eager"), 1),
        "inside": (torch.compile(calls(tachograph.prof(body, group=group)), backend="eager"), 3),
    }
    for way, (function, graphs) in ways.items():
        dynamo.clear()
        torch._dynamo.reset()
        with capture() as captured:
            for _ in range(CALLS):
                function(x)
            calls_of_body = {"code.function.name": body.__qualname__, "outcome": "success"}
            assert captured.value("function.calls", group, **calls_of_body) == CALLS, way
        assert dynamo["stats"]["unique_graphs"] == graphs, way


def test_a_bridged_writer_breaks_the_graph_as_often_as_without_us(
    dynamo: Any, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    """A library whose values a bridge records has as many graphs in a compiled function as it has by itself."""
    from torch.utils.tensorboard import SummaryWriter

    def graphs() -> tuple[int, int]:
        dynamo.clear()
        torch._dynamo.reset()
        step = compiled(lambda value: writer.add_scalar("compiled/loss", value, 1), lambda y: y.detach().sum())
        for _ in range(20):
            step(torch.ones(3))
        return dynamo["stats"]["unique_graphs"], sum(dynamo["graph_break"].values())

    with SummaryWriter(str(tmp_path)) as writer:
        bare = graphs()
        bridge = TensorBoardInstrumentor()
        bridge.instrument()
        request.addfinalizer(bridge.uninstrument)
        assert graphs() == bare


@pytest.mark.parametrize("first", ["tachograph", "torch._dynamo"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    """``import tachograph`` before torch, after it, or after its compiler: one graph break."""
    program = f"""
import {first}
import tachograph, torch, torch._dynamo
from torch._dynamo.utils import counters
torch._dynamo.config.error_on_recompile = True
record = tachograph.declare("loss", kind="histogram").bind()
@torch.compile(backend="eager")
def step(x):
    y = x.sin()
    record(y.detach().sum())
    return y.cos()
for _ in range({CALLS}):
    step(torch.ones(3))
print(counters["stats"]["unique_graphs"])
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["2"]), ended.stderr


def test_importing_us_loads_no_torch() -> None:
    """``import tachograph`` and recording load no part of torch."""
    program = "import sys, tachograph; tachograph.put_metric('a', 1.0); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
