"""The console exporter: readable lines for what has changed."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from tachograph.exporters.batch import Batch
from tachograph.exporters.console import Console
from tachograph.recording.registry import Registry

NOW = 1_800_000_000_123_000_000
STAMP = "2027-01-15T08:00:00.123Z"


def batch(registry: Registry, sdk: MetricsData | None = None, spans: tuple[ReadableSpan, ...] = ()) -> Batch:
    """Return what the registry holds as a batch."""
    return Batch(registry.collect(), sdk, spans, {}, NOW)


def lines(stream: io.StringIO) -> list[str]:
    """Return what was written since the last time, without what we tell about ourselves."""
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return [line for line in text.splitlines() if "[tachograph]" not in line]


def test_one_line_a_series() -> None:
    """Gauges and counters show value and unit, histograms count, sum, minimum and maximum, with their attributes."""
    registry = Registry(enabled=True)
    group = registry.group("train")
    group.instrument("loss").record(0.25, {"split": "eval", "rank": 0})
    group.instrument("sent.bytes").record(512)
    for value in (1, 2.5, float("nan")):
        group.instrument("fetch_seconds").record(value)
    stream = io.StringIO()
    console = Console(registry, stream)
    console(batch(registry))
    assert console.flush(5)
    assert lines(stream) == [
        f'{STAMP} [train] loss{{rank=0,split="eval"}} 0.25',
        f"{STAMP} [train] sent 512 By",
        f"{STAMP} [train] fetch count=2 sum=3.5 min=1.0 max=2.5 nonfinite=1 s",
    ]
    console.close(5)
    assert not stream.closed


def test_only_what_changed() -> None:
    """A series that is as it was is not shown again, NaN included; nothing new, no line at all."""
    registry = Registry(enabled=True)
    group = registry.group("train")
    group.instrument("loss").record(1)
    group.instrument("accuracy").record(float("nan"))
    stream = io.StringIO()
    console = Console(registry, stream)
    for expected in (2, 0, 1):
        if expected == 1:
            group.instrument("loss").record(2)
        console(batch(registry))
        assert console.flush(5)
        assert len(lines(stream)) == expected
    console.close(5)


def test_other_libraries_and_spans_are_shown() -> None:
    """SDK instruments of other libraries and ended spans have their lines, too."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("library")
    meter.create_counter("requests").add(2, {"code": 200})
    meter.create_histogram("size", unit="By").record(10)
    span = TracerProvider(shutdown_on_exit=False).get_tracer("train").start_span("step")
    span.end()
    assert isinstance(span, ReadableSpan)
    stream = io.StringIO()
    registry = Registry(enabled=True)
    console = Console(registry, stream)
    console(batch(registry, reader.get_metrics_data(), (span,)))
    assert console.flush(5)
    requests, size, step = lines(stream)
    assert requests == f"{STAMP} [library] requests{{code=200}} 2"
    assert size == f"{STAMP} [library] size count=1 sum=10 min=10 max=10 By"
    assert step.startswith(f"{STAMP} [train] span step ")
    assert f"trace={span.get_span_context().trace_id:032x}" in step
    console.close(5)
    provider.shutdown()


def test_a_name_cannot_break_the_lines() -> None:
    """A line break in a name or an attribute stays in its line; what the stream cannot encode is escaped."""
    registry = Registry(enabled=True)
    registry.group("train").instrument("a\nb").record(1, {"text": 'say "hi"\nthere', "who": "Zoë"})
    raw = io.BytesIO()
    console = Console(registry, io.TextIOWrapper(raw, encoding="ascii"))
    console(batch(registry))
    assert console.flush(5)
    assert raw.getvalue().decode("ascii") == (f'{STAMP} [train] a\\nb{{text="say \\"hi\\"\\nthere",who="Zo\\xeb"}} 1\n')
    console.close(5)


def test_a_forked_child_shows_its_own() -> None:
    """After a fork nothing of the parent's waits, every series counts as new, and long batches are paced."""
    rests: list[int] = []
    registry = Registry(enabled=True)
    for number in range(130):
        registry.group("train").instrument(f"metric{number}").record(1)
    stream = io.StringIO()
    console = Console(registry, stream, pace=lambda: rests.append(1))
    for _ in range(2):
        console(batch(registry))
        assert console.flush(5)
        assert len(lines(stream)) == 130
        console.reset_in_child()
    assert len(rests) >= 4
    console.close(5)


def test_a_closed_stream_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A stream that is closed loses its lines: counted, logged once, and raised nowhere."""
    registry = Registry(enabled=True)
    stream = io.StringIO()
    stream.close()
    console = Console(registry, stream)
    for value in range(3):
        registry.group("train").instrument("loss").record(value)
        console(batch(registry))
        assert not console.flush(5)
    console.close(5)
    dropped = next(found for found in registry.collect() if found.name == "tachograph.dropped")
    assert dropped.points[0].attributes == (("destination", "console"), ("reason", "rejected"))
    assert dropped.points[0].value >= 3
    assert len([record for record in caplog.records if record.message.startswith("console")]) == 1


_INTO_A_PIPE = """
import sys, time
from tachograph.exporters.batch import Batch
from tachograph.exporters.console import Console
from tachograph.recording.registry import Registry
registry = Registry(enabled=True)
console = Console(registry)
for value in range(2):
    registry.group("train").instrument("loss").record(value)
    console(Batch(registry.collect(), None, [], {}, 1))
    console.flush(5)
    sys.stdin.readline()
console.close(1)
lost = [metric for metric in registry.collect() if metric.name == "tachograph.dropped"]
sys.stderr.write(f"lost {lost[0].points[0].value if lost else 0}\\n")
sys.stderr.flush()
import os
os._exit(0)
"""


@pytest.mark.process
def test_a_broken_pipe_is_counted() -> None:
    """When the reader of our output goes away (``| head``), the program goes on, and the loss is counted."""
    with subprocess.Popen(
        [sys.executable, "-c", _INTO_A_PIPE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert "loss 0" in process.stdout.readline()
        process.stdout.close()
        process.stdin.write("\n\n")
        process.stdin.close()
        said = process.stderr.read()
        assert process.wait(30) == 0
    assert "lost 0" not in said
    assert "lost" in said
