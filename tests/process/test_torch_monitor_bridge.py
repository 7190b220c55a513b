"""The bridge: what is logged through the real torch.monitor is recorded, whatever threads, forks and exits do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs import count, environment, events, exported, number, run, write
from tachograph.instrumentation._bridge import Bridge, BridgedStats
from tachograph.recording.journal import LIMIT, Journal
from tachograph.recording.points import HistogramPoint, NumberPoint
from tachograph.recording.registry import Registry

monitor = pytest.importorskip("torch.monitor")
pytestmark = pytest.mark.torch

AGGREGATIONS = ("MEAN", "COUNT", "SUM", "MAX", "MIN")
WINDOW = timedelta(hours=1)


class Recorded:
    """A bridge, and what came over it."""

    def __init__(self, limit: int) -> None:
        self.registry = Registry(enabled=True)
        self.journal = Journal(self.registry)
        self.bridge = Bridge(monitor, self.journal, self.registry, limit=limit)

    def gauges(self) -> dict[str, float]:
        """Return every value of the scope."""
        return {name: value for (scope, name), value in values(self.registry).items() if scope == "torch.monitor"}


def values(registry: Registry) -> dict[tuple[str, str], float]:
    """Return the values of all gauges and counters, by scope and name."""
    return {
        (metric.scope, metric.name): sum(point.value for point in metric.points if isinstance(point, NumberPoint))
        for metric in registry.collect()
        if metric.kind != "histogram"
    }


def histogram(registry: Registry, name: str) -> HistogramPoint | None:
    """Return the only point of a Stat's histogram."""
    for metric in registry.collect():
        if (metric.scope, metric.name, metric.kind) == ("torch.monitor", name, "histogram"):
            (point,) = metric.points
            assert isinstance(point, HistogramPoint)
            return point
    return None


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Bridge to a journal and a registry of the test's own."""
    one = Recorded(limit=1000)
    try:
        yield one
    finally:
        one.bridge.close()


def log(name: str, **data: str | float) -> None:
    """Log an event through torch."""
    monitor.log_event(monitor.Event(name, datetime.now(), data))  # noqa: DTZ005 - torch loses the zone


def stat(name: str, samples: int, *asked: str) -> object:
    """Make a real Stat whose window closes with that many values."""
    return monitor.Stat(name, [monitor.Aggregation.__members__[one] for one in asked], WINDOW, samples)


def test_an_event_arrives_as_it_was_logged(recorded: Recorded) -> None:
    """Name, time to the microsecond, and data of each event are in the journal, in order."""
    at = datetime(2026, 11, 21, 12, 0, 0, 123457)  # noqa: DTZ001 - torch loses the zone
    monitor.log_event(monitor.Event("first", at, {"a": 1, "b": 2.5, "c": "x"}))
    log("second")
    assert recorded.bridge.drain()
    first, second = recorded.journal.drain()
    assert (first.name, second.name) == ("first", "second")
    assert first.attributes == {"a": 1, "b": 2.5, "c": "x"}
    assert first.time_unix_nano == round(at.timestamp() * 1e6) * 1000
    assert first.observed_unix_nano >= second.time_unix_nano


def test_a_time_that_otlp_cannot_carry_is_unknown(recorded: Recorded) -> None:
    """An event from before 1970 arrives, without its time."""
    monitor.log_event(monitor.Event("old", datetime(1903, 1, 1), {}))  # noqa: DTZ001
    recorded.bridge.drain()
    assert [event.time_unix_nano for event in recorded.journal.drain()] == [0]


def test_a_stat_becomes_gauges_and_sums(recorded: Recorded) -> None:
    """Each window sets the gauges that ours sets, and adds to one histogram; it is an event in the journal, too."""
    loss = stat("loss", 2, *AGGREGATIONS)
    loss.add(1.0)  # type: ignore[attr-defined]
    loss.add(4.0)  # type: ignore[attr-defined]
    again = stat("loss", 1, *AGGREGATIONS)
    again.add(7.0)  # type: ignore[attr-defined]
    assert recorded.gauges() == {
        "loss.mean": 7.0,
        "loss.min": 7.0,
        "loss.max": 7.0,
        "loss.window.count": 1,
        "loss.window.sum": 7.0,
        "loss.window.end": pytest.approx(time.time(), abs=60),
    }
    point = histogram(recorded.registry, "loss")
    assert point is not None
    spread = point.summary
    assert (spread.count, spread.total.value(), spread.minimum, spread.maximum) == (3, 12.0, 1.0, 7.0)
    first, second = recorded.journal.drain()
    assert first.name == second.name == "torch.monitor.Stat"
    assert first.attributes == {"loss.mean": 2.5, "loss.count": 2, "loss.sum": 5, "loss.max": 4, "loss.min": 1}


def test_a_window_that_does_not_tell_its_count_adds_to_no_sum(recorded: Recorded) -> None:
    """A Stat that was asked for its mean alone gives that gauge and nothing else."""
    stat("a.b", 1, "MEAN").add(3.0)  # type: ignore[attr-defined]
    assert recorded.gauges() == {"a.b.mean": 3.0, "a.b.window.end": pytest.approx(time.time(), abs=60)}
    assert histogram(recorded.registry, "a.b") is None


def test_a_mean_and_a_count_make_a_sum(recorded: Recorded) -> None:
    """Extremes that no window told are not made up."""
    stat("x", 1, "MEAN", "COUNT").add(3.0)  # type: ignore[attr-defined]
    point = histogram(recorded.registry, "x")
    assert point is not None
    assert (point.summary.count, point.summary.total.value()) == (1, 3.0)
    assert point.summary.minimum != point.summary.minimum
    assert point.summary.maximum != point.summary.maximum


def test_nan_does_not_spoil_the_sum(recorded: Recorded) -> None:
    """The gauge shows NaN; the cumulative sum leaves that window out, and its values are counted as dropped."""
    for value in (1.0, float("nan"), 2.0):
        stat("x", 1, "SUM", "COUNT").add(value)  # type: ignore[attr-defined]
    point = histogram(recorded.registry, "x")
    assert point is not None
    assert (point.summary.count, point.summary.total.value()) == (2, 3.0)
    assert values(recorded.registry)["tachograph", "tachograph.dropped"] == 1


def test_an_event_that_only_looks_like_a_stat(recorded: Recorded) -> None:
    """What no Stat says under the name of Stats' event is in the journal, and makes no metric."""
    log("torch.monitor.Stat", mean=1.0, text="x", **{"a.median": 1.0, "a.mean": "text", ".mean": 2.0})
    assert recorded.gauges() == {}
    assert len(recorded.journal) == 1


windows = st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5), max_size=20)


@given(windows)
def test_the_sum_over_windows_is_the_sum_of_the_values(taken: list[list[int]]) -> None:
    """Whatever the windows hold, the histogram's count, sum and extremes are those of all values together."""
    registry = Registry(enabled=True)
    stats = BridgedStats(registry)
    for window in taken:
        told = {"count": len(window), "sum": sum(window), "min": min(window), "max": max(window)}
        stats.add({f"x.{asked}": float(value) for asked, value in told.items()}, time.time_ns())
    everything = [value for window in taken for value in window]
    point = histogram(registry, "x")
    if not everything:
        assert point is None
        return
    assert point is not None
    found = (point.summary.count, point.summary.total.value(), point.summary.minimum, point.summary.maximum)
    assert found == (len(everything), sum(everything), min(everything), max(everything))


def test_what_does_not_fit_is_counted() -> None:
    """Where more events wait than may, the newest arrive and the number of the others is known."""
    one = Recorded(limit=10)
    try:
        for index in range(25):
            log("e", index=index)
        one.bridge.drain()
        for index in range(25, 30):
            log("e", index=index)
    finally:
        one.bridge.close()
    arrived = [event.attributes["index"] for event in one.journal.drain()]
    assert arrived[-15:] == list(range(15, 30))
    dropped = values(one.registry).get(("tachograph", "tachograph.dropped"), 0)
    assert len(arrived) + dropped == 30


def test_closing_drains_first_and_ends_it(recorded: Recorded) -> None:
    """What was logged before closing arrives, what comes later does not, and closing again does nothing."""
    log("before")
    recorded.bridge.close()
    log("after")
    recorded.bridge.close()
    assert [event.name for event in recorded.journal.drain()] == ["before"]
    assert list(recorded.journal.holders) == []


def test_two_bridges_take_each_event_each(recorded: Recorded) -> None:
    """Closing one takes the other's handlers not away."""
    other = Recorded(limit=1000)
    log("both")
    other.bridge.close()
    log("one")
    recorded.bridge.drain()
    assert [event.name for event in other.journal.drain()] == ["both"]
    assert [event.name for event in recorded.journal.drain()] == ["both", "one"]


FOUR_THREADS = """
import threading
from datetime import datetime
from tachograph.instrumentation import TorchMonitorInstrumentor

instrumentor = TorchMonitorInstrumentor()
instrumentor.instrument()
from torch import monitor
from tachograph.recording import journal, registry

def work():
    event = monitor.Event("e", datetime.now(), {"a": 1.5})
    for _ in range(250_000):
        monitor.log_event(event)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
instrumentor.uninstrument()
dropped = sum(
    point.value
    for metric in registry.default.collect() if metric.name == "tachograph.dropped"
    for point in metric.points
)
print(len(journal.default), dropped, len(journal.default) + dropped)
"""


@pytest.mark.usefixtures("untraced")  # a million calls, each of which would be
def test_a_million_events_from_four_threads(tmp_path: Path) -> None:
    """Four threads that log as fast as they can do not hang, and every event arrived or is counted."""
    done = run(tmp_path, FOUR_THREADS, timeout=120)
    assert done.returncode == 0, done.stderr
    arrived, dropped, together = map(float, done.stdout.split())
    assert together == 1_000_000
    assert 0 < arrived <= LIMIT  # the journal is bounded: the others are counted
    assert dropped >= together - LIMIT


LIFE = """
import sys
import time
from tachograph.instrumentation import TorchMonitorInstrumentor
instrumentor = TorchMonitorInstrumentor()
instrumentor.instrument()
instrumentor.instrument()
assert "torch" not in sys.modules
import torch.monitor
from datetime import datetime, timedelta
from tachograph.recording import journal
from tachograph.identity.import_hooks import ImportHook

assert "torch.monitor" not in [finder._name for finder in sys.meta_path if isinstance(finder, ImportHook)]
assert type(torch.monitor.__loader__).__name__ == "SourceFileLoader"
assert torch.monitor.__spec__.loader is torch.monitor.__loader__

def log(name):
    torch.monitor.log_event(torch.monitor.Event(name, datetime.now(), {}))

log("one")
instrumentor.uninstrument()
instrumentor.uninstrument()
log("nobody's")
instrumentor.instrument()
log("two")
TorchMonitorInstrumentor().uninstrument()
print([event.name for event in journal.default.drain()])
"""


def test_instrumenting_again_and_again(tmp_path: Path) -> None:
    """Instrumenting imports no torch, works when torch comes, is undone without a trace, and can be done again."""
    done = run(tmp_path, LIFE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['one', 'two']"


def test_a_program_without_torch_never_sees_it(tmp_path: Path) -> None:
    """Where torch is never imported nothing happens, and uninstrumenting leaves Python's imports as they were."""
    program = """
    import sys
    from tachograph.instrumentation import TorchMonitorInstrumentor
    before = list(sys.meta_path)
    TorchMonitorInstrumentor().instrument()
    import json
    TorchMonitorInstrumentor().uninstrument()
    assert sys.meta_path == before and "torch" not in sys.modules
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("untraced")  # nothing of it runs
def test_disabled_is_off(tmp_path: Path) -> None:
    """With OTEL_SDK_DISABLED torch is not touched."""
    program = """
    import sys, threading, torch
    from tachograph.instrumentation import TorchMonitorInstrumentor
    before = threading.active_count()
    TorchMonitorInstrumentor().instrument(wait_counters=True)
    assert threading.active_count() == before
    assert torch.monitor._WaitCounter.guard.__class__.__name__ == "instancemethod"
    TorchMonitorInstrumentor().uninstrument()
    """
    done = run(tmp_path, program, OTEL_SDK_DISABLED="true")
    assert done.returncode == 0, done.stderr


EXIT = """
import sys
import tachograph
from tachograph.instrumentation import TorchMonitorInstrumentor

def begin():
    tachograph.start(metrics="jsonl", logs="jsonl", jsonl="out.jsonl")

if sys.argv[1] == "start first":
    begin()
TorchMonitorInstrumentor().instrument()
import torch
from datetime import datetime, timedelta
from torch import monitor
if sys.argv[1] == "instrument first":
    begin()
stat = monitor.Stat("left.open", [monitor.MEAN, monitor.COUNT], timedelta(seconds=3600), 3)
for index in range(3):
    stat.add(index)
kept = [monitor.log_event, monitor.Event("later", datetime.now(), {})]
for index in range(1000):
    monitor.log_event(monitor.Event("e", datetime.now(), {"index": index}))
"""


@pytest.mark.parametrize("order", ["start first", "instrument first"])
def test_the_process_ends_well_and_loses_nothing(tmp_path: Path, order: str) -> None:
    """A program that just ends, with a Stat open, does not crash, and all that it logged has left."""
    done = run(tmp_path, EXIT, order)
    assert (done.returncode, done.stderr) == (0, "")
    found = events(tmp_path / "out.jsonl")
    assert [event["eventName"] for event in found].count("e") == 1000
    assert number(exported(tmp_path / "out.jsonl")["torch.monitor", "left.open.window.count"]) == 3
    assert count(exported(tmp_path / "out.jsonl")["torch.monitor", "left.open"]) == 3


FORK = """
import os, sys, time
from tachograph.instrumentation import TorchMonitorInstrumentor
instrumentor = TorchMonitorInstrumentor()
instrumentor.instrument()
from datetime import datetime
from torch import monitor
from tachograph.recording import journal

def log(name):
    monitor.log_event(monitor.Event(name, datetime.now(), {}))

log("before")
child = os.fork()
if not child:
    log("child")
    instrumentor.uninstrument()
    print("child", [event.name for event in journal.default.drain()], flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
log("after")
second = os.fork()
if not second:
    sys.exit(0)  # with the handlers that it has inherited
assert os.waitpid(second, 0)[1] == 0
instrumentor.uninstrument()
print("parent", [event.name for event in journal.default.drain()])
"""


@pytest.mark.parametrize("helpers", ["", "1"])
def test_a_forked_child_neither_repeats_nor_crashes(tmp_path: Path, helpers: str) -> None:
    """A child drops what the parent has to deliver, records its own only if asked to, and ends well."""
    done = run(tmp_path, FORK, TACHOGRAPH_HELPERS=helpers)
    assert done.returncode == 0, done.stderr
    own = ["child"] if helpers else []
    assert done.stdout.splitlines() == [f"child {own}", "parent ['before', 'after']"]


def test_opentelemetry_instrument_finds_it(tmp_path: Path) -> None:
    """The entry point names the instrumentor, and OpenTelemetry's own loader instruments a program with it."""
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="tachograph_torch_monitor")
    assert entry.load().__name__ == "TorchMonitorInstrumentor"
    program = """
    from datetime import datetime
    from torch import monitor
    monitor.log_event(monitor.Event("zero code", datetime.now(), {}))
    """
    code = (
        "from opentelemetry.instrumentation.auto_instrumentation import initialize; initialize();"
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(write(tmp_path, program))],
        cwd=tmp_path,
        env=environment(
            tmp_path, OTEL_METRICS_EXPORTER="none", OTEL_TRACES_EXPORTER="none", OTEL_LOGS_EXPORTER="jsonl"
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "store").glob("exports/*/*.jsonl")
    assert [event["eventName"] for event in events(file)].count("zero code") == 1


COMING_AND_GOING = """
import threading, time
from datetime import datetime
from torch import monitor
from tachograph.instrumentation._bridge import Bridge
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

stop = threading.Event()

def work():
    event = monitor.Event("e", datetime.now(), {"a": 1.5})
    while not stop.is_set():
        monitor.log_event(event)

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(20):
    registry = Registry(enabled=True)
    bridge = Bridge(monitor, Journal(registry), registry, limit=100)
    stop.wait(0.02)
    bridge.close()
stop.set()
for thread in threads: thread.join()
deadline = time.monotonic() + 10
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(threading.active_count())
"""


@pytest.mark.usefixtures("untraced")  # as fast as threads can
def test_bridges_come_and_go_while_threads_log(tmp_path: Path) -> None:
    """Opening and closing bridges in the middle of everything neither hangs nor crashes, and leaves no thread."""
    done = run(tmp_path, COMING_AND_GOING, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
