"""start() and shutdown(): one pipeline a process, whatever the order of things."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import count, exported, number, run

START = """
import sys
import tachograph
from pathlib import Path
from urllib.request import urlopen

FILE = Path(sys.argv[1])
def start(**more):
    return tachograph.start(**{"metrics": "jsonl", "jsonl": FILE, **more})
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where the program writes its JSON lines."""
    return tmp_path / "out.jsonl"


def succeed(tmp_path: Path, file: Path, program: str, **more: str) -> str:
    """Run a program that must end well and return what it printed."""
    done = run(tmp_path, START + program, str(file), **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_start_with_the_same_settings_is_the_same_pipeline(tmp_path: Path, file: Path) -> None:
    """Called twice alike it is one pipeline; called otherwise, an error says what differs and what to do."""
    printed = succeed(
        tmp_path,
        file,
        """
first = start()
assert start() is first
try:
    start(interval=5)
except RuntimeError as error:
    print(error)
""",
    )
    assert "interval=60.0, now 5" in printed
    assert "shutdown()" in printed


def test_a_collection_that_meets_the_end_loses_nothing(tmp_path: Path, file: Path) -> None:
    """A collection on time that waits for the last one does nothing after it: nothing comes too late, and is counted.

    The exporter is slow to take the last collection but one, so that the next falls due while the pipeline ends.
    """
    printed = succeed(
        tmp_path,
        file,
        """
import threading, time
from tachograph.recording import registry

taken = []

class Slow:
    def __init__(self, inner):
        self.inner = inner
        self.delivered = 0
        self.flush, self.close, self.reset_in_child = inner.flush, inner.close, inner.reset_in_child

    def __call__(self, batch):
        time.sleep(0.3)
        taken.append(batch)
        self.inner(batch)

for _ in range(3):
    pipeline = start(interval=0.01)
    (route,) = pipeline._routes
    pipeline._routes.own = [route._replace(destination=Slow(route.destination))]
    tachograph.put_metric("loss", 1.0)
    while not taken:
        time.sleep(0.01)
    taken.clear()
    pipeline.shutdown()
lost = registry.default.group("tachograph").instruments["tachograph.dropped"].all_series()
print([(dict(attributes), series.value()) for attributes, series in lost if not series.fold() or series.value()])
""",
    )
    assert printed.strip() == "[]"


def test_after_shutdown_recording_goes_on_and_start_delivers_it(tmp_path: Path, file: Path) -> None:
    """What is recorded before a start(), between two, and after, leaves with the next one; counts go on."""
    succeed(
        tmp_path,
        file,
        """
tachograph.put_metric("x.success", 1)
with start():
    tachograph.put_metric("x.success", 1)
tachograph.put_metric("x.success", 1)
start()
tachograph.put_metric("x.success", 1)
tachograph.shutdown()
tachograph.shutdown()
""",
    )
    assert number(exported(file)["torchelastic", "x.success"]) == 4


def test_spans_and_instruments_of_others_leave_after_a_restart_too(tmp_path: Path, file: Path) -> None:
    """The providers made once serve the pipelines that come later."""
    succeed(
        tmp_path,
        file,
        """
from opentelemetry import metrics, trace
for round in range(2):
    with start(traces="jsonl"):
        metrics.get_meter("lib").create_gauge("level").set(round)
        with trace.get_tracer("lib").start_as_current_span(f"work {round}"):
            pass
        provider = metrics.get_meter_provider()
assert provider is metrics.get_meter_provider()
""",
    )
    from programs import spans

    assert number(exported(file)["lib", "level"]) == 1
    assert [span["name"] for span in spans(file)] == ["work 0", "work 1"]


def test_without_any_exporter_nothing_happens_and_nothing_breaks(tmp_path: Path, file: Path) -> None:
    """``none`` is a setting like others: recording goes on in memory."""
    printed = succeed(
        tmp_path,
        file,
        """
with tachograph.start(metrics="none", traces="none", logs="none") as pipeline:
    tachograph.put_metric("loss", 0.5)
    print(pipeline.metrics_url, pipeline.flush())
""",
    )
    assert printed.strip() == "None True"


def test_disabled_means_nothing_recorded_and_nothing_delivered(tmp_path: Path, file: Path) -> None:
    """``OTEL_SDK_DISABLED=true`` leaves the function undecorated, the registry empty and no port open."""
    printed = succeed(
        tmp_path,
        file,
        """
import threading
def f(): pass
assert tachograph.prof(f) is f
pipeline = start()
tachograph.put_metric("loss", 0.5)
from tachograph.recording.registry import default
print(default.collect(), pipeline.metrics_url, threading.active_count())
""",
        OTEL_SDK_DISABLED="true",
    )
    assert printed.strip() == "[] None 1"
    assert not file.exists()


def test_the_programs_own_provider_is_used_and_left_as_it_is(tmp_path: Path, file: Path) -> None:
    """Where the program has a meter provider, everything leaves through it, exactly, and start() opens no page."""
    printed = succeed(
        tmp_path,
        file,
        """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
provider = MeterProvider([reader])
metrics.set_meter_provider(provider)
pipeline = tachograph.start()
assert pipeline.metrics_url is None
for value in range(100):
    tachograph.put_metric("step.duration.ms", value, "train")
    tachograph.put_metric("loss", value, "train")
    tachograph.put_metric("x.success", 1, "train")
assert pipeline.flush()
assert metrics.get_meter_provider() is provider
for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
    for metric in scope.metrics:
        if scope.scope.name == "train":
            for point in metric.data.data_points:
                print(metric.name, getattr(point, "count", None), getattr(point, "value", None) or point.sum)
""",
    )
    assert sorted(printed.splitlines()) == ["loss None 99", "step.duration 100 4950", "x.success None 100"]


def test_beside_the_programs_own_provider_asked_for_destinations_are_served(tmp_path: Path, file: Path) -> None:
    """Metrics named in the call leave there, too."""
    succeed(
        tmp_path,
        file,
        """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
metrics.set_meter_provider(MeterProvider())
start()
tachograph.put_metric("loss", 0.25)
""",
    )
    assert number(exported(file)["torchelastic", "loss"]) == 0.25


def test_an_occupied_port_is_not_an_error(tmp_path: Path, file: Path) -> None:
    """The next free port is taken and told, in ``metrics_url``, in the log and in the target file."""
    printed = succeed(
        tmp_path,
        file,
        """
import json, socket, logging, os
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
taken = socket.socket(); taken.bind(("127.0.0.1", 0)); taken.listen()
port = taken.getsockname()[1]
pipeline = tachograph.start(prometheus_port=port)
assert f":{port}/" not in pipeline.metrics_url
(target,) = Path(os.environ["TACHOGRAPH_STORE"], "targets").glob("*.json")
assert json.loads(target.read_text())[0]["targets"][0] in pipeline.metrics_url
assert "target_info" in urlopen(pipeline.metrics_url).read().decode()
tachograph.shutdown()
assert not target.exists()
print("served at", pipeline.metrics_url)
""",
    )
    assert "served at" in printed


def test_several_destinations_at_once(tmp_path: Path, file: Path) -> None:
    """The page, JSON lines, the console and objects of the program all get the same."""
    printed = succeed(
        tmp_path,
        file,
        """
batches = []
pipeline = start(metrics=["prometheus", "jsonl", "console", batches.append], prometheus_port=0)
tachograph.put_metric("x.success", 3, "train")
assert b'x_success_total{' in urlopen(pipeline.metrics_url).read()
tachograph.shutdown()
assert [m.points[0].value for m in batches[-1].metrics if m.name == "x.success"] == [3]
""",
    )
    assert "x.success 3" in printed
    assert number(exported(file)["train", "x.success"]) == 3


def test_destinations_of_the_same_temporality_get_the_same_of_other_libraries(tmp_path: Path, file: Path) -> None:
    """Two exporters that want deltas both get every delta of the SDK's instruments, and each of them once."""
    printed = succeed(
        tmp_path,
        file,
        """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, MetricExportResult

class Kept(MetricExporter):
    def __init__(self, wanted):
        super().__init__(preferred_temporality=dict.fromkeys((Counter, Histogram), wanted))
        self.received = []
    def export(self, metrics_data, timeout_millis=0, **kwargs):
        for scope in metrics_data.resource_metrics[0].scope_metrics:
            if scope.scope.name == "lib":
                self.received += [
                    (metric.name, getattr(point, "count", None) or point.value)
                    for metric in scope.metrics for point in metric.data.data_points
                ]
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=0): return True
    def shutdown(self, timeout_millis=0, **kwargs): pass

kept = [Kept(AggregationTemporality.DELTA), Kept(AggregationTemporality.DELTA), Kept(AggregationTemporality.CUMULATIVE)]
pipeline = tachograph.start(metrics=kept)
counter = metrics.get_meter("lib").create_counter("requests")
histogram = metrics.get_meter("lib").create_histogram("sizes")
for number in (3, 4):
    tachograph.put_metric("loss", 1)
    counter.add(number)
    histogram.record(number)
    pipeline.flush()
tachograph.shutdown()
for one in kept:
    print(sorted(one.received))
""",
    )
    delta = "[('requests', 3), ('requests', 4), ('sizes', 1), ('sizes', 1)]"
    first, second, third = printed.splitlines()
    assert (first, second) == (delta, delta)
    assert "('requests', 7)" in third


@pytest.mark.parametrize("started", ["", "start()"])
def test_an_exporter_for_one_group_needs_no_start(tmp_path: Path, file: Path, started: str) -> None:
    """``configure(exporter, group)`` delivers that group and no other, with start() or without."""
    printed = succeed(
        tmp_path,
        file,
        f"""
import os
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
class Print(MetricExporter):
    def export(self, metrics_data, timeout_millis=0, **kwargs):
        for scope in metrics_data.resource_metrics[0].scope_metrics:
            self.say(scope.scope.name + " " + str([m.name for m in scope.metrics]))
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=0): return True
    def shutdown(self, timeout_millis=0, **kwargs): self.say("shut down")
    def say(self, what): os.write(1, (self.name + " " + what + chr(10)).encode())
one, two = Print(), Print()
one.name, two.name = "one", "two"
from tachograph import elastic
elastic.configure(one, "a")
tachograph.put_metric("loss", 1, "a")
tachograph.put_metric("loss", 1, "b")
{started}
elastic.configure(two, "b")
""",
    )
    assert set(printed.splitlines()) == {"one a ['loss']", "two b ['loss']", "one shut down", "two shut down"}
    assert printed.count("shut down") == 2


@pytest.mark.parametrize(
    ("arguments", "environment", "error"),
    [
        ("metrics='promtheus'", {}, "promtheus"),
        ("interval=-1", {}, "interval"),
        ("prometheus_port='a'", {}, "prometheus_port"),
        ("no_such=1", {}, "no_such"),
        ("", {"OTEL_METRICS_EXPORTER": "otpl"}, "OTEL_METRICS_EXPORTER"),
        ("", {"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "OTEL_METRIC_EXPORT_INTERVAL"),
        ("", {"OTEL_EXPORTER_PROMETHEUS_PORT": "70000"}, "OTEL_EXPORTER_PROMETHEUS_PORT"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(
    tmp_path: Path, arguments: str, environment: dict[str, str], error: str
) -> None:
    """The message names the variable or argument; what was recorded is still there for a right start()."""
    done = run(
        tmp_path,
        f"""
import tachograph
tachograph.put_metric("x.success", 1)
try:
    tachograph.start({arguments})
except (TypeError, ValueError) as error:
    print(error)
import os
for name in {list(environment)!r}:
    del os.environ[name]
tachograph.start(metrics="jsonl", jsonl="out.jsonl")
""",
        **environment,
    )
    assert done.returncode == 0, done.stderr
    assert error in done.stdout
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "x.success"]) == 1


def test_neither_random_state_nor_the_sdk_is_touched(tmp_path: Path, file: Path) -> None:
    """Spans, exports and all leave the program's random numbers as they were."""
    succeed(
        tmp_path,
        file,
        """
import random
random.seed(3); before = random.getstate()
with start(traces="jsonl", interval=0.05):
    from opentelemetry import metrics
    @tachograph.prof
    def work():
        tachograph.put_metric("step.duration.ms", 3)
        metrics.get_meter("lib").create_histogram("h").record(1)
    import time
    for _ in range(200):
        work(); time.sleep(0.001)
assert random.getstate() == before
""",
    )
    assert count(exported(file)["torchelastic", "function.duration"]) == 200


def test_a_destination_that_fails_costs_neither_the_others_nor_the_program(tmp_path: Path, file: Path) -> None:
    """Out of memory while one is handed a batch: that is counted and said, and the program's own exception goes on."""
    printed = succeed(
        tmp_path,
        file,
        """
from tachograph.recording import registry

class Failing:
    delivered = 0
    flush = close = reset_in_child = lambda self, *_: True
    def __call__(self, batch):
        raise MemoryError

try:
    with start() as pipeline:
        (route,) = pipeline._routes
        pipeline._routes.own = [route._replace(destination=Failing()), route]
        tachograph.put_metric("loss", 0.25)
        assert pipeline.flush()
        raise LookupError("the program's own")
except LookupError as error:
    print(error)
lost = registry.default.group("tachograph").instruments["tachograph.dropped"].all_series()
print(sum(series.value() or 0 for attributes, series in lost if not series.fold() or True) >= 1)
""",
    )
    assert printed == "the program's own\nTrue\n"
    assert number(exported(file)["torchelastic", "loss"]) == 0.25
