"""OpenTelemetry's own exporters by name and as objects: which are taken, which are refused, and at which price."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry

from programs import environment, run
from receivers import receiving, silent
from tachograph.exporters.batch import Batch
from tachograph.exporters.otel_exporters import EntryPointExporter, group_of, installed
from tachograph.exporters.otlp.settings import SIGNALS, Signal
from tachograph.pipeline.destinations import build_routes, given
from tachograph.pipeline.settings import read_settings
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

OFFICIAL = ("otlp_proto_http", "otlp_proto_grpc")


def install(folder: Path, entry_points: str, code: str = "") -> Path:
    """Install a distribution ``theirs`` with these entry points and this module; return the folder for the path."""
    made = folder / "theirs-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text(entry_points)
    (folder / "theirs.py").write_text(code)
    return folder


def counted(registry: Registry, name: str) -> dict[tuple[tuple[str, object], ...], float]:
    """Return a counter about ourselves, by its attributes."""
    return {
        tuple(point.attributes): point.value
        for metric in registry.collect()
        if metric.name == name
        for point in metric.points
        if isinstance(point, NumberPoint)
    }


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_entry_point_is_taken(signal: Signal) -> None:
    """Each installed exporter of a signal can be named in its variable; a name of ours is ours."""
    names = installed(signal)
    assert set(OFFICIAL) <= names
    for name in names:
        (found,) = getattr(read_settings({f"OTEL_{signal.upper()}_EXPORTER": name}), signal)
        assert found == (name if name in ("otlp", "console", "prometheus") else EntryPointExporter(signal, name))


def test_the_first_of_ours_then_our_entry_points_then_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked up among the built-in ones, tachograph.exporters, and the signal's own group, in this order."""
    theirs = "\n".join(
        f"[{group_of(signal)}]\njsonl = theirs:a\nboth = theirs:b\nMine = theirs:c" for signal in SIGNALS
    )
    monkeypatch.syspath_prepend(str(install(tmp_path, f"[tachograph.exporters]\nboth = theirs:d\n{theirs}\n")))
    assert read_settings({}, traces="jsonl,both,Mine").traces == ("jsonl", "both", EntryPointExporter("traces", "Mine"))
    with pytest.raises(ValueError, match=r"otlp, console, jsonl, none, both, Mine, otlp_proto_grpc, otlp_proto_http$"):
        read_settings({}, traces="mine")


def test_a_name_that_nothing_provides_is_an_error() -> None:
    """It names the variable, the value and every name that there is."""
    with pytest.raises(ValueError, match="OTEL_METRICS_EXPORTER") as caught:
        read_settings({"OTEL_METRICS_EXPORTER": "otlp_http"})
    for name in ("otlp,", "prometheus,", "console,", "jsonl,", "none,", *OFFICIAL):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "exporter", "belongs"),
    [
        ("metrics", ConsoleSpanExporter(), "traces="),
        ("metrics", [ConsoleLogRecordExporter()], "logs="),
        ("traces", ConsoleMetricExporter(), "metrics="),
        ("traces", InMemoryMetricReader(), "metrics="),
        ("logs", ["console", ConsoleSpanExporter()], "traces="),
    ],
)
def test_an_exporter_of_another_signal_is_refused(argument: str, exporter: Any, belongs: str) -> None:
    """The error names the argument, the object, and the argument where it belongs."""
    with pytest.raises(TypeError, match=f"^{argument}= must be an exporter of {argument}") as caught:
        read_settings({}, **{argument: exporter})
    assert belongs in str(caught.value)
    assert type(exporter[-1] if isinstance(exporter, list) else exporter).__name__ in str(caught.value)


def test_a_reader_of_another_provider_is_refused_at_the_start() -> None:
    """start() says that a reader has one provider, before anything of it has begun."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    with pytest.raises(ValueError, match=r"metrics= is .*registered with a MeterProvider"):
        read_settings({}, metrics=["console", reader])
    provider.shutdown()


def test_one_reader_is_one_destination() -> None:
    """A reader that is named twice is there once, and equal settings stay equal."""
    reader = PrometheusMetricReader(registry=CollectorRegistry())
    settings = read_settings({"HOME": "/h"}, metrics=[reader, reader], run_id="r")
    assert settings.metrics == (reader,)
    assert settings == read_settings({"HOME": "/h"}, metrics=reader, run_id="r")
    (route,) = build_routes(settings, Registry(enabled=True), metrics=True, own_logs=True)
    assert route.reader is not None
    assert read_settings({"HOME": "/h"}, metrics=reader, run_id="r") == settings, "it is ours, and asked for again"
    route.destination.close(1)
    with pytest.raises(ValueError, match="create a new one"):
        read_settings({}, metrics=reader)


BAD = """
[opentelemetry_metrics_exporter]
missing = nosuchmodule:Exporter
absent = theirs:Absent
raising = theirs:Raising
other = theirs:other
good = theirs:Good
reader = theirs:Reader

[opentelemetry_traces_exporter]
raising = theirs:Raising

[opentelemetry_logs_exporter]
raising = theirs:Raising

[tachograph.exporters]
ours = nosuchmodule:export
"""
THEIRS = """
from opentelemetry.sdk.metrics.export import *

class Raising:
    def __init__(self):
        raise RuntimeError("no\\nlicence")

def other():
    return 42

class Good(ConsoleMetricExporter):
    def __init__(self):
        super().__init__(formatter=lambda data: "good" + data.to_json(indent=None) + "\\n")

def Reader():
    formatter = lambda data: "read" + data.to_json(indent=None) + "\\n"
    return PeriodicExportingMetricReader(ConsoleMetricExporter(formatter=formatter), export_interval_millis=3600000)
"""


def test_an_entry_point_that_is_bad_is_one_line_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that does not load, raises, or gives something else costs itself alone, is said and counted."""
    monkeypatch.syspath_prepend(str(install(tmp_path, BAD, THEIRS)))
    registry = Registry(enabled=True)
    settings = read_settings(
        {}, metrics="missing,absent,raising,other,ours,good", traces="raising", logs="raising", store=tmp_path
    )
    (route,) = build_routes(settings, registry, metrics=True, own_logs=True)
    assert route.metrics
    route.destination.close(1)
    assert counted(registry, "tachograph.errors") == {(("where", "exporter"),): 7}
    said = [record.getMessage() for record in caplog.records if record.name == "tachograph"]
    assert len(said) == 7
    assert not any("\n" in line for line in said)
    assert [line.split()[5] for line in said] == ["missing", "absent", "raising", "other", "ours", "raising", "raising"]
    sys.modules.pop("theirs", None)


@pytest.mark.process
def test_a_program_goes_on_with_the_exporters_that_are_good(tmp_path: Path) -> None:
    """By variables, under start(): the bad ones are a line each, the exporter and the reader get what is recorded."""
    folder = install(tmp_path / "installed", BAD, THEIRS)
    program = "import tachograph\ntachograph.start()\ntachograph.put_metric('loss', 0.5, 'g')\n"
    names = {"OTEL_METRICS_EXPORTER": "missing,good,reader", "OTEL_TRACES_EXPORTER": "raising"}
    done = run(tmp_path, program, PYTHONPATH=str(folder), **names)
    assert done.returncode == 0
    assert [line.partition(" for ")[0] for line in done.stderr.splitlines()] == [
        "tachograph: could not start the exporter missing",
        "tachograph: could not start the exporter raising",
    ]
    lines = done.stdout.splitlines()
    for kind in ("good", "read"):
        assert '"loss"' in [line for line in lines if line.startswith(kind)][-1]


@pytest.mark.process
def test_plain_opentelemetry_instrument_takes_them(tmp_path: Path) -> None:
    """Zero code without ``tachograph run``: exporters and readers by their names, a bad one costs itself alone."""
    folder = install(tmp_path / "installed", BAD, THEIRS)
    (tmp_path / "program.py").write_text("import tachograph\ntachograph.put_metric('loss', 0.5, 'g')\n")
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "program.py"]
    with receiving() as receiver:
        base = receiver.url.removesuffix("/v1/metrics")
        more = {
            "PYTHONPATH": str(folder),
            "OTEL_METRICS_EXPORTER": "otlp_proto_http,raising,good,reader",
            "OTEL_LOGS_EXPORTER": "otlp_proto_http",
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
            "OTEL_EXPORTER_OTLP_ENDPOINT": base,
        }
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(tmp_path, **more),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        paths = {path for path, _, body in receiver.requests if b"loss" in body or b"tachograph.process" in body}
    assert done.returncode == 0, done.stderr
    assert (
        len(
            [
                line
                for line in done.stderr.splitlines()
                if line.startswith("tachograph: could not start the exporter raising")
            ]
        )
        == 1
    )
    for kind in ("good", "read"):
        assert '"loss"' in [line for line in done.stdout.splitlines() if line.startswith(kind)][-1]
    assert paths == {"/v1/metrics", "/v1/logs"}


class Spans(SpanExporter):
    """An exporter of spans that notes its calls, and says what it is told to."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.calls: list[object] = []
        self.threads: set[int] = set()
        self._result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Note how many there are."""
        from opentelemetry.context import get_value

        assert get_value("suppress_instrumentation"), "its own requests shall make no spans"
        self.calls.append(len(spans))
        self.threads.add(threading.get_ident())
        return self._result

    def shutdown(self) -> None:
        """Note it."""
        self.calls.append("shutdown")


def spans(count: int) -> Batch:
    """Return a batch of spans."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("g")
    made = [tracer.start_span(f"span {number}") for number in range(count)]
    return Batch([], None, made, {}, time.time_ns())  # type: ignore[arg-type] # they are readable


def test_an_exporter_of_spans_is_flushed_and_shut_down() -> None:
    """It gets up to 512 spans at a time in one thread of its own, and its end comes last."""
    registry = Registry(enabled=True)
    exporter = Spans()
    route = given(exporter, registry, spans=True)
    route.destination(spans(1100))
    assert route.destination.flush(5)
    assert route.destination.delivered == 3
    route.destination.close(5)
    assert exporter.calls == [512, 512, 76, "shutdown"]
    assert len(exporter.threads) == 1
    assert threading.get_ident() not in exporter.threads
    assert counted(registry, "tachograph.dropped") == {}


def test_spans_that_were_not_taken_are_counted() -> None:
    """Each span of a failed export is counted by the exporter's name."""
    registry = Registry(enabled=True)
    route = given(Spans(SpanExportResult.FAILURE), registry, spans=True, name="theirs")
    route.destination(spans(3))
    assert not route.destination.flush(5)
    route.destination.close(5)
    assert route.destination.delivered == 0
    assert counted(registry, "tachograph.dropped") == {(("destination", "theirs"), ("reason", "rejected")): 3}


def test_an_object_with_two_bases_is_an_exporter_of_both() -> None:
    """Named for metrics and for spans, it gets both."""

    class Both(ConsoleMetricExporter, Spans):  # type: ignore[misc] # their export() differ
        def __init__(self) -> None:
            ConsoleMetricExporter.__init__(self)

    settings = read_settings({}, metrics=(both := Both()), traces=[both])
    routes = build_routes(settings, Registry(enabled=True), metrics=True, own_logs=True)
    assert [(route.metrics, route.spans, route.events) for route in routes] == [
        (True, False, False),
        (False, True, False),
    ]
    for route in routes:
        route.destination.close(1)


DEAD = """
import sys, time, threading
import tachograph
from tachograph.recording import journal, registry
pipeline = tachograph.start()
@tachograph.prof
def step(): pass
step()
journal.default.append("e", time.time_ns(), {"n": 1})
tachograph.put_metric("loss", 0.5)
if sys.argv[1] == "shutdown":
    pipeline.shutdown(1)
    counted = {
        point.attributes: point.value
        for metric in registry.default.collect() if metric.name == "tachograph.dropped" for point in metric.points
    }
    print(sum(counted.values()) >= 3, flush=True)
    until = time.monotonic() + 5
    left = lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("tachograph otlp")]
    while time.monotonic() < until and left():
        time.sleep(0.05)
    print(left())
print(time.time(), flush=True)
"""


@pytest.mark.process
@pytest.mark.timing
@pytest.mark.parametrize("name", [OFFICIAL[0], pytest.param(OFFICIAL[1], marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "answers", [pytest.param(True, id="refused"), pytest.param(False, id="silent", marks=pytest.mark.long)]
)
def test_a_dead_receiver_holds_up_no_exit(tmp_path: Path, name: str, answers: bool) -> None:
    """The official exporters try again for ten seconds; the process ends within its second, and says what is lost."""
    with silent() as port:
        where = 9 if answers else port
        chosen = {f"OTEL_{signal.upper()}_EXPORTER": name for signal in SIGNALS}
        more = {**chosen, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{where}"}
        done = run(tmp_path, DEAD, "exit", **more)
        ended = time.time()
    assert done.returncode == 0, done.stderr
    assert ended - float(done.stdout) < 2.5, "a second, and the end of the interpreter on a busy machine"
    assert done.stderr.count("data was lost (shutdown") == 3


@pytest.mark.process
@pytest.mark.parametrize("name", OFFICIAL)
def test_after_a_shutdown_nothing_of_theirs_goes_on(tmp_path: Path, name: str) -> None:
    """Where the process goes on, their retries are given up, their threads end, and each thing lost is counted."""
    chosen = {f"OTEL_{signal.upper()}_EXPORTER": name for signal in SIGNALS}
    done = run(tmp_path, DEAD, "shutdown", **chosen, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["True", "[]"]


@pytest.mark.process
@pytest.mark.parametrize("name", OFFICIAL)
def test_a_forked_child_does_not_hang_on_theirs(tmp_path: Path, name: str) -> None:
    """A child that is forked while they export ends at once, whether it records or not."""
    with receiving() as receiver:
        base = receiver.url.removesuffix("/v1/metrics")
        done = run(
            tmp_path,
            """
import gc, os, time
import tachograph
tachograph.start(interval=0.05)
for number in range(5):
    tachograph.put_metric("loss", number)
    time.sleep(0.1)
    child = os.fork()
    if not child:
        tachograph.put_metric("loss", -1)
        gc.collect()
        raise SystemExit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
            OTEL_METRICS_EXPORTER=name,
            OTEL_EXPORTER_OTLP_ENDPOINT=base,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3"] * 5
