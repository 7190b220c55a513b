"""The JSON-lines file: OTLP requests that anything that reads OTLP JSON can take back."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from examples import examples
from servers import wait_until
from tachograph.exporters import _append_file as append_file
from tachograph.exporters._append_file import AppendFile
from tachograph.exporters.batch import Batch
from tachograph.exporters.jsonl import JsonLines
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry


def lines(path: Path) -> list[Any]:
    """Return the file's lines, parsed."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def batch(registry: Registry, spans: list[Any] | None = None) -> Batch:
    """Return a batch of what was recorded."""
    return Batch(registry.collect(), None, spans or [], {"service.name": "s"}, time.time_ns())


def test_metrics_are_one_request_a_line(tmp_path: Path) -> None:
    """Each collection appends a line; numbers, enumerations and infinities are as OTLP's JSON has them."""
    registry = Registry()
    group = registry.group("train")
    group.instrument("loss").record(math.nan)
    group.instrument("save.success").record(2**60)
    group.instrument("fetch.duration").record(3)
    destination = JsonLines(tmp_path / "a" / "b.jsonl", registry)
    destination(batch(registry))
    destination(batch(registry))
    assert destination.flush(5)
    destination.close(1)
    first, second = lines(tmp_path / "a" / "b.jsonl")
    assert first["resourceMetrics"][0]["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "s"}}
    ]
    (scope,) = (found for found in first["resourceMetrics"][0]["scopeMetrics"] if found["scope"]["name"] == "train")
    metrics = {metric["name"]: metric for metric in scope["metrics"]}
    assert metrics["loss"]["gauge"]["dataPoints"][0]["asDouble"] == "NaN"
    assert metrics["save.success"]["sum"]["aggregationTemporality"] == 2
    assert metrics["save.success"]["sum"]["dataPoints"][0]["asInt"] == str(2**60)
    assert metrics["fetch.duration"]["histogram"]["dataPoints"][0]["count"] == "1"
    assert [scope["scope"]["name"] for scope in second["resourceMetrics"][0]["scopeMetrics"]]


def test_spans_have_hexadecimal_identifiers(tmp_path: Path) -> None:
    """Spans are lines of their own, and their identifiers can be searched for as every other tool shows them."""
    registry = Registry()
    queue = SpanQueue(registry)
    provider = TracerProvider(
        resource=Resource({"service.name": "s"}), id_generator=IdGenerator(), shutdown_on_exit=False
    )
    provider.add_span_processor(queue)
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("outer") as outer, tracer.start_as_current_span("inner"):
        pass
    provider.shutdown()
    destination = JsonLines(tmp_path / "b.jsonl", registry)
    destination(Batch([], None, queue.drain(), {}, 0))
    destination.close(5)
    (line,) = lines(tmp_path / "b.jsonl")
    spans = [span for scope in line["resourceSpans"][0]["scopeSpans"] for span in scope["spans"]]
    inner, found = spans
    context = outer.get_span_context()
    assert (found["traceId"], found["spanId"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert inner["parentSpanId"] == found["spanId"]
    assert found["name"] == "outer"


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a.success", "a.duration"]),
            st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.just(math.nan), st.booleans()),
            st.dictionaries(
                st.text(min_size=1, max_size=3), st.one_of(st.text(), st.integers(), st.booleans()), max_size=2
            ),
        ),
        max_size=8,
    )
)
def test_a_line_holds_what_the_protobuf_message_holds(recorded: list[tuple[str, Any, dict[str, Any]]]) -> None:
    """Reading a line back with protobuf's own JSON parser gives the request that was written."""
    from tachograph.exporters.otlp.encoding import MetricsEncoder

    registry = Registry()
    registry.group("g").instrument("plain").record(0.5)
    for name, value, attributes in recorded:
        registry.group("g").instrument(name).record(value, attributes)
    text, encoder = JsonText(lambda: None), MetricsEncoder("there", registry, pace=lambda: None)
    requests = [request for request, _ in encoder.messages(batch(registry))]
    assert requests
    for request in requests:
        line = text.line(request)
        assert line.count(b"\n") == 1
        again = json_format.Parse(line.decode(), ExportMetricsServiceRequest())
        assert again.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """The file is 0600, and folders made for it are 0700; a folder that was there stays as it is."""
    tmp_path.chmod(0o755)
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(tmp_path / "a" / "b" / "c.jsonl", registry)
    destination(batch(registry))
    destination.close(5)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    assert modes == [0o755, 0o700, 0o700]
    assert (tmp_path / "a" / "b" / "c.jsonl").stat().st_mode & 0o777 == 0o600


def test_it_appends(tmp_path: Path) -> None:
    """What the file held before is kept."""
    path = tmp_path / "c.jsonl"
    path.write_text('{"before":1}\n')
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(path, registry)
    destination(batch(registry))
    destination.close(5)
    assert lines(path)[0] == {"before": 1}
    assert len(lines(path)) == 2


def rejected(registry: Registry) -> float:
    """Return how many points were rejected."""
    return sum(
        point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint) and point.attributes == (("destination", "jsonl"), ("reason", "rejected"))
    )


def test_a_full_disk_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing can be written, the points are counted, the reason is logged once, and nobody is disturbed."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("NOT TESTED: this system has no /dev/full to stand for a full disk")
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(full, registry)
    for _ in range(3):
        destination(batch(registry))
    assert not destination.flush(5)
    destination.close(1)
    assert rejected(registry) >= 3
    assert len([record for record in caplog.records if "No space left" in record.getMessage()]) == 1


def test_a_line_that_does_not_fit_leaves_no_part(tmp_path: Path) -> None:
    """A line is written whole or not at all, so the file stays readable when space runs out in its middle."""
    resource = pytest.importorskip("resource")
    import signal

    registry = Registry()
    group = registry.group("g")
    group.instrument("loss").record(1)
    path = tmp_path / "c.jsonl"
    destination = JsonLines(path, registry)
    destination(batch(registry))
    assert destination.flush(5)
    size = path.stat().st_size
    for number in range(200):
        group.instrument(f"m{number}").record(number)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, limits[1]))
    try:
        destination(batch(registry))
        assert not destination.flush(5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.stat().st_size == size
    destination(batch(registry))
    destination.close(5)
    assert len(lines(path)) == 2
    assert path.stat().st_size > size


def _locked(path: Path) -> bool:
    """Tell whether somebody has the file open for appending."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_several_append_to_one_file_and_each_says_that_it_is_in_use(tmp_path: Path) -> None:
    """Whoever appends keeps others from deleting the file, until the last has closed it, and nobody from appending."""
    path = tmp_path / "c.jsonl"
    one, two = AppendFile(path), AppendFile(path)
    for number in range(3):
        one.append(b"one %d\n" % number)
        two.append(b"two %d\n" % number)
    assert _locked(path)
    one.close()
    assert _locked(path)
    two.close()
    assert not _locked(path)
    assert sorted(path.read_text().splitlines()) == [f"{who} {n}" for who in ("one", "two") for n in range(3)]


@pytest.mark.process
def test_a_child_does_not_hold_its_parents_file(tmp_path: Path, untraced: None) -> None:
    """A forked child lets go of the file, so that only the parent says it is in use, and can append for itself."""
    assert untraced is None
    path = tmp_path / "c.jsonl"
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(path, registry)
    destination(batch(registry))
    assert destination.flush(5)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        destination.reset_in_child()
        os.read(reading, 1)
        destination(batch(registry))
        os._exit(not (destination.flush(5) and len(lines(path)) == 2))
    os.close(reading)
    time.sleep(0.5)
    assert _locked(path)
    destination.close(5)
    wait_until(lambda: not _locked(path))
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_locks_it_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no locks is no reason to write nothing."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(append_file.fcntl, "flock", flock)
    file = AppendFile(tmp_path / "c.jsonl")
    file.append(b"x\n")
    file.close()
    assert (tmp_path / "c.jsonl").read_bytes() == b"x\n"


@pytest.mark.parametrize("deleted", [False, True])
def test_it_waits_until_nobody_is_about_to_delete_the_file(tmp_path: Path, *, deleted: bool) -> None:
    """What comes while ``tachograph resend --delete`` has the file is written afterwards, to it or to a new one."""
    path = tmp_path / "c.jsonl"
    path.write_text("{}\n")
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(path, registry)
    with path.open("rb") as replayed:
        fcntl.flock(replayed, fcntl.LOCK_EX)
        destination(batch(registry))
        assert not destination.flush(0.3)
        assert path.read_text() == "{}\n"
        if deleted:
            path.unlink()
    assert destination.flush(10)
    destination.close(5)
    assert len(lines(path)) == 2 - deleted
    assert rejected(registry) == 0


def test_a_pipe_has_an_end(tmp_path: Path) -> None:
    """What appends to a pipe is not its reader: where nobody reads any more, that is an error."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = AppendFile(path)
    file.append(b"x\n")
    assert os.read(reading, 9) == b"x\n"
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        file.append(b"y\n")
    file.close()


def test_a_file_that_is_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What comes after the file, or its folder, was deleted is in a new one, and that is said once."""
    path = tmp_path / "out" / "c.jsonl"
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(path, registry)
    for _ in range(3):
        destination(batch(registry))
        assert destination.flush(5)
        assert len(lines(path)) == 1
        shutil.rmtree(path.parent)
    destination.close(1)
    assert caplog.text.count("was deleted while being written") == 1


@pytest.mark.parametrize("size", [0, 100])
def test_a_file_that_is_cut(tmp_path: Path, size: int) -> None:
    """What comes after the file was cut in the middle of a line is no part of that line."""
    path = tmp_path / "c.jsonl"
    registry = Registry()
    registry.group("g").instrument("loss").record(1)
    destination = JsonLines(path, registry)
    for _ in range(2):
        destination(batch(registry))
        assert destination.flush(5)
        os.truncate(path, size)
    destination(batch(registry))
    destination.close(5)
    assert "resourceMetrics" in json.loads(path.read_text().splitlines()[-1])
