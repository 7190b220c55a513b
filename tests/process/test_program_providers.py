"""The providers that a program sets up itself: everything recorded arrives there, and they stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from programs import complaints, exported, run, spans

READER = """
import json, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()

def set_provider():
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))

def show():
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    found[f"{scope.scope.name}/{metric.name}"] = point.count if value is None else value
    print(json.dumps(found))
"""

RECORD = """
from datetime import timedelta

def record():
    import tachograph
    from tachograph.monitor import Aggregation, Stat

    @tachograph.prof(group="train")
    def step():
        pass

    step()
    tachograph.put_metric("loss", 0.5, "train")
    tachograph.put_metric("load.duration", 3, "train")
    tachograph.Metric("accuracy", group="eval").record(0.75)
    tachograph.MetricsLogger().log("gpu", {}, {"load": 0.25})
    global stat
    stat = Stat("wait", [Aggregation.SUM], timedelta(hours=9))
    stat.add(2.0)
"""

EVERYTHING = {
    "train/function.duration": 1,
    "train/function.calls": 1,
    "train/loss": 0.5,
    "train/load.duration": 1,
    "eval/accuracy": 0.75,
    "tachograph.logger/gpu.load": 0.25,
    "torch.monitor/wait": 1,
}

ORDERS = {
    "before the import": READER + RECORD + "set_provider(); record(); show()",
    "after the import": "import tachograph.elastic\n" + READER + RECORD + "set_provider(); record(); show()",
    "after the values": RECORD + "record()\n" + READER + "set_provider(); show()",
    "after the values, the API before them": READER + RECORD + "record(); set_provider(); show()",
}


def printed(tmp_path: Path, program: str, **environ: str) -> str:
    """Run a program that must end well and quietly, and return what it printed."""
    done = run(tmp_path, program, **environ)
    assert done.returncode == 0, done.stderr
    assert not complaints(done.stderr)
    return done.stdout


def found(tmp_path: Path, program: str, **environ: str) -> dict[str, float]:
    """Return what the reader of the program has found, our metrics about ourselves apart."""
    shown: dict[str, float] = json.loads(printed(tmp_path, program, **environ).splitlines()[-1])
    return {name: value for name, value in shown.items() if not name.startswith("tachograph/")}


@pytest.mark.parametrize("order", ORDERS)
def test_recording_is_enough(tmp_path: Path, order: str) -> None:
    """Without a start(), every front door arrives in the program's MeterProvider, whenever that is set."""
    assert found(tmp_path, ORDERS[order]) == EVERYTHING


def test_each_collection_has_what_was_recorded_before_it(tmp_path: Path) -> None:
    """A metric that is new since the last collection is in the next one, however soon that is."""
    more = """
import tachograph
set_provider()
tachograph.put_metric("one", 1, "g")
reader.get_metrics_data()
tachograph.put_metric("two", 2, "g")
tachograph.put_metric("two.duration", 2, "g")
show()
"""
    assert found(tmp_path, READER + more) == {"g/one": 1, "g/two": 2, "g/two.duration": 1}


PERIODIC = """
import sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
import tachograph

file = open(sys.argv[1], "w", buffering=1)
tachograph.put_metric("early", 1, "g")
exporter = ConsoleMetricExporter(out=file, formatter=lambda data: data.to_json(indent=None) + "\\n")
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))
tachograph.put_metric("late", 2, "g")
tachograph.put_metric("late.duration", 2, "g")
tachograph.put_metric("last", 2, "h")
tachograph.put_metric("last.duration", 2, "h")
"""


@pytest.mark.parametrize(
    "end", ["", "raise RuntimeError('the program fails')", "sys.exit(3)", "metrics.get_meter_provider().shutdown()"]
)
def test_the_last_values_arrive_at_the_end_of_the_process(tmp_path: Path, end: str) -> None:
    """A program that ends at once, without a start(): its provider's last collection has everything."""
    file = tmp_path / "out.json"
    run(tmp_path, PERIODIC + end, str(file))
    names = {
        metric["name"]
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resource_metrics"]
        for scope in resource["scope_metrics"]
        if scope["scope"]["name"] in ("g", "h")
        for metric in scope["metrics"]
    }
    assert names == {"early", "late", "late.duration", "last", "last.duration"}


def test_join_false_keeps_everything_out_of_their_providers(tmp_path: Path) -> None:
    """TACHOGRAPH_JOIN=false: nothing of ours is in the program's provider; a start() serves its own destinations."""
    program = READER + RECORD + "set_provider(); record()\n"
    assert found(tmp_path, program + "show()", TACHOGRAPH_JOIN="false") == {}
    start = f"tachograph.start(metrics='jsonl', jsonl={str(tmp_path / 'out.jsonl')!r})"
    assert found(tmp_path, f"import tachograph\n{program}{start}\nshow()", TACHOGRAPH_JOIN="false") == {}
    assert ("train", "loss") in exported(tmp_path / "out.jsonl")


def test_a_wrong_join_is_said_and_nothing_is_joined(tmp_path: Path) -> None:
    """A wrong TACHOGRAPH_JOIN is no reason to fail in set_meter_provider: it is said, with what is allowed."""
    done = run(tmp_path, READER + RECORD + "set_provider(); record(); show()", TACHOGRAPH_JOIN="maybe")
    assert done.returncode == 0, done.stderr
    assert "TACHOGRAPH_JOIN is 'maybe'" in done.stderr


def test_set_global_false_leaves_the_globals_to_the_program(tmp_path: Path) -> None:
    """start(set_global=False) sets no provider; @prof has our tracer all the same; a later provider is joined."""
    file = tmp_path / "out.jsonl"
    program = f"""
import tachograph
from opentelemetry import _logs, trace
from opentelemetry.metrics import get_meter_provider

@tachograph.prof(group="train")
def step():
    assert trace.get_current_span().get_span_context().is_valid

pipeline = tachograph.start(set_global=False, metrics="jsonl", traces="jsonl", logs="jsonl", jsonl={str(file)!r})
for provider in trace.get_tracer_provider(), get_meter_provider(), _logs.get_logger_provider():
    assert "Proxy" in type(provider).__name__, provider
step()
assert not trace.get_tracer("theirs").start_span("theirs").is_recording()
set_provider()
tachograph.put_metric("loss", 0.5, "train")
show()
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()
theirs = TracerProvider(shutdown_on_exit=False)
theirs.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(theirs)
step()
assert [span.name.rpartition(".")[2] for span in kept.get_finished_spans()] == ["step"]
"""
    assert found(tmp_path, READER + program) == {
        "train/loss": 0.5,
        "train/function.calls": 1,
        "train/function.duration": 1,
    }
    assert [span["name"].rpartition(".")[2] for span in spans(file)] == ["step"]
    assert {("train", "loss"), ("train", "function.calls")} <= set(exported(file))


def test_instruments_without_a_provider_are_said_once(tmp_path: Path) -> None:
    """With set_global=False, what other libraries measure goes nowhere: one line says so, and names the setting."""
    program = """
import tachograph, sys
from opentelemetry import metrics
metrics.get_meter("theirs").create_counter("requests").add(1)
pipeline = tachograph.start(set_global=False, metrics="jsonl", jsonl=sys.argv[1])
pipeline.flush(); pipeline.flush()
"""
    done = run(tmp_path, program, str(tmp_path / "out.jsonl"))
    assert done.stderr.count("set_global") == 1
    assert done.stderr.startswith("tachograph: 1 OpenTelemetry instruments have no MeterProvider")
    alone = run(tmp_path, program.replace("metrics.get", "# "), str(tmp_path / "out.jsonl"))
    assert "set_global" not in alone.stderr


def test_a_provider_that_comes_too_late_is_explained(tmp_path: Path) -> None:
    """After start(), OpenTelemetry refuses the program's providers: one line a signal says why, and the way out."""
    program = (
        READER
        + """
import tachograph
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
tachograph.start(metrics="jsonl", traces="jsonl", jsonl=sys.argv[1])
for _ in range(2):
    metrics.set_meter_provider(MeterProvider())
    trace.set_tracer_provider(TracerProvider())
"""
    )
    done = run(tmp_path, program, str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done.stderr
    for setter in ("set_meter_provider()", "set_tracer_provider()"):
        assert done.stderr.count(f"{setter} had no effect because tachograph.start()") == 1, done.stderr
    assert "set_global=False" in done.stderr


def test_nothing_is_loaded_where_the_program_has_no_opentelemetry(tmp_path: Path) -> None:
    """Recording alone loads no OpenTelemetry and starts no thread."""
    program = """
import sys, threading, tachograph
tachograph.put_metric("loss", 1.0)
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
assert threading.active_count() == 1
"""
    printed(tmp_path, program)


def test_a_start_takes_over_from_what_was_joined(tmp_path: Path) -> None:
    """A start() after the first values adds its destinations; in the program's provider nothing is twice or missing."""
    file = tmp_path / "out.jsonl"
    program = (
        READER
        + f"""
import tachograph
set_provider()
for _ in range(3):
    tachograph.put_metric("load.duration", 1, "g")
    tachograph.put_metric("x.success", 1, "g")
show()
tachograph.start(metrics="jsonl", jsonl={str(file)!r})
for _ in range(2):
    tachograph.put_metric("load.duration", 1, "g")
    tachograph.put_metric("x.success", 1, "g")
show()
"""
    )
    assert found(tmp_path, program) == {"g/load.duration": 5, "g/x.success": 5}
    assert ("g", "load.duration") in exported(file)


def test_a_start_and_a_provider_at_the_same_moment(tmp_path: Path) -> None:
    """One thread sets a provider while another one calls start(): neither waits for the other for ever."""
    program = (
        READER
        + """
import threading, tachograph
from tachograph.pipeline import lifecycle
tachograph.put_metric("loss", 1.0, "g")
barrier = threading.Barrier(2)
def begin():
    barrier.wait()
    tachograph.start(metrics="jsonl", jsonl=sys.argv[1])
thread = threading.Thread(target=begin, daemon=True)
thread.start()
barrier.wait()
set_provider()
thread.join(20)
assert not thread.is_alive()
tachograph.shutdown()
"""
    )
    for attempt in range(5):
        done = run(tmp_path, program, str(tmp_path / f"{attempt}.jsonl"), timeout=40)
        assert done.returncode == 0, done.stderr


INSTRUMENTED = """
import json, sys, time
from datetime import datetime, timedelta
from opentelemetry import _logs, metrics
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from tachograph.instrumentation.torch_monitor import TorchMonitorInstrumentor
from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor

reader, kept = InMemoryMetricReader(), InMemoryLogRecordExporter()
meters, loggers = MeterProvider([reader]), LoggerProvider()
loggers.add_log_record_processor(SimpleLogRecordProcessor(kept))
if sys.argv[1] == "given":
    given = {"meter_provider": meters, "logger_provider": loggers, "tracer_provider": TracerProvider()}
else:
    given = {}
    metrics.set_meter_provider(meters)
    _logs.set_logger_provider(loggers)
TorchMonitorInstrumentor().instrument(**given)
TorchElasticInstrumentor().instrument(**given)

from torch import monitor
from torch.distributed.elastic.events import Event as ElasticEvent, EventSource, record
from torch.distributed.elastic.metrics import prof, put_metric

@prof(group="job")
def load():
    pass

load()
put_metric("depth", 7, "job")
record(ElasticEvent("mine", EventSource.WORKER), "null")
stat = monitor.Stat("batch", [monitor.Aggregation.SUM, monitor.Aggregation.COUNT], timedelta(milliseconds=1))
stat.add(3)
time.sleep(0.01)
stat.add(5)
monitor.log_event(monitor.Event("epoch", datetime.now(), {"epoch": 1}))
del stat
names = set()
deadline = time.monotonic() + 20
while time.monotonic() < deadline and not {"epoch", "mine"} <= names:
    time.sleep(0.05)
    names = {record.log_record.event_name for record in kept.get_finished_logs()}
data = reader.get_metrics_data()
found = {
    f"{scope.scope.name}/{metric.name}": getattr(point, "value", None) or getattr(point, "count", None)
    for resource in data.resource_metrics for scope in resource.scope_metrics
    for metric in scope.metrics for point in metric.data.data_points
}
print(json.dumps([sorted(names), found]))
"""


@pytest.mark.torch
@pytest.mark.parametrize("how", ["given", "global"])
def test_instrumentors_reach_the_providers_without_a_start(tmp_path: Path, how: str) -> None:
    """Every instrumentor of ours takes the three providers, or finds the global ones; nobody calls start()."""
    done = run(tmp_path, INSTRUMENTED, how)
    assert done.returncode == 0, done.stderr
    names, metrics = json.loads(done.stdout)
    assert {"epoch", "mine", "torch.monitor.Stat"} <= set(names)
    expected = {"job/depth": 7, "job/function.calls": 1, "job/function.duration": 1, "torch.monitor/batch": 2}
    assert expected.items() <= metrics.items()


@pytest.mark.torch
def test_given_providers_get_what_others_do_not(tmp_path: Path) -> None:
    """What an instrumentor records into given providers reaches no other destination, and uninstrument() ends it."""
    program = (
        INSTRUMENTED.partition("data = reader")[0]
        + """
import tachograph
tachograph.start(metrics="jsonl", logs="jsonl", jsonl=sys.argv[2])
tachograph.put_metric("loss", 1.0, "mine")
TorchMonitorInstrumentor().uninstrument()
TorchElasticInstrumentor().uninstrument()
put_metric("depth", 9, "job")
tachograph.shutdown()
"""
    )
    file = tmp_path / "out.jsonl"
    done = run(tmp_path, program, "given", str(file))
    assert done.returncode == 0, done.stderr
    assert ("mine", "loss") in exported(file)
    assert not {scope for scope, _ in exported(file)} & {"job", "torch.monitor"}


@pytest.mark.torch  # an instrumentor that finds no torch looks at no provider
@pytest.mark.parametrize("name", ["meter_provider", "logger_provider", "tracer_provider"])
def test_no_provider_is_a_type_error(tmp_path: Path, name: str) -> None:
    """An argument that is no such provider is refused at the call, by its name; so is the class."""
    program = f"""
from opentelemetry.sdk.metrics import MeterProvider
from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor
for wrong in "theirs", MeterProvider:
    try:
        TorchElasticInstrumentor().instrument({name}=wrong)
    except TypeError as error:
        print(error)
"""
    lines = printed(tmp_path, program).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(name) for line in lines)


def test_sigterm_loses_nothing_in_the_programs_provider(tmp_path: Path) -> None:
    """Without a start(), a SIGTERM still takes the last values out through the program's own exporter, and kills."""
    file = tmp_path / "out.json"
    program = (
        PERIODIC
        + """
import os, signal, time
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
    )
    done = run(tmp_path, program, str(file))
    assert done.returncode == -15, done.stderr
    names = [
        metric["name"]
        for resource in json.loads(file.read_text().splitlines()[-1])["resource_metrics"]
        for scope in resource["scope_metrics"]
        if scope["scope"]["name"] in ("g", "h")
        for metric in scope["metrics"]
    ]
    assert set(names) == {"early", "late", "late.duration", "last", "last.duration"}


def test_a_start_after_the_provider_is_the_only_pipeline(tmp_path: Path) -> None:
    """A ``start()`` before the first value, where a provider is set, is one pipeline, and flushes its readers."""
    done = run(
        tmp_path,
        READER
        + """
import threading
set_provider()
import tachograph
flushed = []
reader.force_flush = lambda *_, **__: flushed.append(1)
pipeline = tachograph.start(metrics="none", traces="none", logs="none")
tachograph.put_metric("loss", 0.5, "train")
pipeline.flush(5)
from tachograph.pipeline import running_pipeline
print(running_pipeline() is pipeline, len(flushed))
""",
    )
    assert (done.returncode, done.stdout) == (0, "True 1\n"), done.stderr
