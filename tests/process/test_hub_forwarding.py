"""Forwarding: another receiver gets all that the hub gets, and never slows or stops it."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from curves import Bench
from hub_requests import exponential, metrics, rank
from hubs import JSON, PROTOBUF, ask, command, points, request, serving
from programs import run
from receivers import dropped, receiving, silent
from scripted import Fast, counts, scripted
from servers import free_port, wait_until
from tachograph.cli import main
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.otlp.settings import Signal
from tachograph.hub._request import SENDER
from tachograph.hub.forwarding import Forwarding, items
from tachograph.metric import Metric, MetricGroup
from tachograph.pipeline.event_feed import apart
from tachograph.recording.journal import LOG, packed_event
from tachograph.recording.logged_points import POINT, packed
from tachograph.recording.packed_points import PACKED, PackedPoints
from tachograph.recording.registry import Registry
from tachograph.runs.recorded import FAILURE, plain_attributes


def spans(count: int) -> ExportTraceServiceRequest:
    """Return a request with some spans."""
    made = ExportTraceServiceRequest()
    scope = made.resource_spans.add().scope_spans.add()
    for _ in range(count):
        scope.spans.add(name="s", trace_id=b"t" * 16, span_id=b"s" * 8)
    return made


def events(url: str) -> int:
    """Return how many events a hub says that it has."""
    return int(json.loads(ask(url, "/healthz").body)["log_records"])


def logs(count: int) -> ExportLogsServiceRequest:
    """Return a request with some log records."""
    made = ExportLogsServiceRequest()
    scope = made.resource_logs.add().scope_logs.add()
    for i in range(count):
        scope.log_records.add(time_unix_nano=i + 1).body.int_value = i
    return made


def forward(forwarding: Forwarding, signal: Signal, message: Message) -> None:
    """Forward a message."""
    forwarding(signal, message.SerializeToString(), message)


def test_everything_is_passed_on_as_it_is(tmp_path: Path) -> None:
    """All signals arrive at the other receiver, in order, as protobuf with gzip, whatever form they came in."""
    sent = request(1.0, 2.0)
    with receiving() as there:
        forwarding = Forwarding(there.url.removesuffix("/v1/metrics"), Registry(), {})
        with serving(tmp_path, forwarding=forwarding) as hub:
            assert ask(hub.url, "/v1/metrics", sent.SerializeToString(), content_type=PROTOBUF).status == 200
            line = JsonText(lambda: None).line(sent)
            assert ask(hub.url, "/v1/metrics", line, content_type=JSON).status == 200
            assert ask(hub.url, "/v1/logs", logs(1).SerializeToString(), content_type=PROTOBUF).status == 200
            assert ask(hub.url, "/v1/traces", spans(1).SerializeToString(), content_type=PROTOBUF).status == 200
            assert ask(hub.url, "/v1/traces", b"\xff", content_type=PROTOBUF).status == 400
            assert forwarding.flush(10)
        forwarding.close(1)
    assert [path for path, _, _ in there.requests] == ["/v1/metrics", "/v1/metrics", "/v1/logs", "/v1/traces"]
    assert {headers["Content-Type"] for _, headers, _ in there.requests} == {PROTOBUF}
    bodies = [gzip.decompress(body) for _, _, body in there.requests]
    assert [ExportMetricsServiceRequest.FromString(body) for body in bodies[:2]] == [sent, sent]
    assert ExportLogsServiceRequest.FromString(bodies[2]) == logs(1)
    assert ExportTraceServiceRequest.FromString(bodies[3]) == spans(1)


def test_a_receiver_that_is_no_hub_gets_a_record_a_point(tmp_path: Path) -> None:
    """A Metric's packed points are the records that it would have logged; broken and other packed ones are left out."""
    bench = Bench()
    metric = Metric("loss", group=MetricGroup("train"), throttle=None, execution=bench)
    for step in range(20):
        metric.record(float("nan") if step == 7 else step / 7, at=step if step < 15 else step - 15)
    found = bench.journal.drain(pack=packed)
    (exact,) = [event for event in found if event.name == PACKED and event.attributes.get("branch", 0) == 0]
    broken = exact._replace(attributes={**exact.attributes, "x": b"\0" * 7}, seq=500)
    other = {key: value for key, value in exact.attributes.items() if key != "execution"}
    found += [broken, exact._replace(attributes=other, seq=600)]
    ((sent, _),) = log_requests(found, rank(0), lambda *_: None, lambda: None)
    with receiving() as there:
        forwarding = Forwarding(there.url.removesuffix("/v1/metrics"), Registry(), {})
        with serving(tmp_path, forwarding=forwarding) as hub:
            assert ask(hub.url, "/v1/logs", sent.SerializeToString(), content_type=PROTOBUF).status == 200
            assert forwarding.flush(10)
        forwarding.close(1)
    ((_, _, body),) = there.requests
    (resource,) = ExportLogsServiceRequest.FromString(gzip.decompress(body)).resource_logs
    records = [record for record in resource.scope_logs[0].log_records if record.event_name == "tachograph.metric"]
    told = [dict(plain_attributes(record.attributes)) for record in records]
    assert {record.event_name for record in resource.scope_logs[0].log_records} == {POINT, "tachograph.definition"}
    assert [(each["x"], str(each["value"]), each["branch"]) for each in told] == [
        (float(step if step < 15 else step - 15), str(float("nan") if step == 7 else step / 7), int(step >= 15))
        for step in range(20)
    ]
    assert {(each["metric"], each["group"], each["tachograph.stream"]) for each in told} == {
        ("loss", "train", bench.journal.stream)
    }
    assert len({each["tachograph.seq"] for each in told}) == 20
    times = [record.time_unix_nano for record in records]
    assert times == sorted(times)
    assert times[0] > 0


@pytest.mark.parametrize("name", [FAILURE, LOG])
def test_messages_of_the_program_are_for_hubs_alone(name: str) -> None:
    """A receiver that is no hub of ours gets no exception and no record of its logging; the other records stay."""
    sent = logs(2)
    record = sent.resource_logs[0].scope_logs[0].log_records.add(time_unix_nano=9, event_name=name)
    record.attributes.add(key="exception.message").value.string_value = "boom"
    forwarding = Forwarding("http://127.0.0.1:9", Registry(enabled=True), {})
    assert forwarding.adapt("logs", sent)
    assert items("logs", sent) == 2
    assert b"boom" not in sent.SerializeToString()
    assert not forwarding.adapt("logs", sent)
    forwarding.close(0)


def test_all_curves_leave_a_record_a_point_where_that_is_asked_for() -> None:
    """Points of gauges and of ``log()`` are records as the program itself would send them; a cell left out is none."""
    columns = array("q", [5, 6]), array("d", [0.0, 1.0]), array("d", [0.5, math.nan, 1.5, 2.5])
    rows = PackedPoints(("loss", "lr"), "train", (("a", 1),), "", 2, *columns, {"left_out": bytes([0, 0, 0, 1])})
    intervals = {
        "min": array("d", [0.5, -1.0]),
        "max": array("d", [0.5, 9.0]),
        **{name: array("q", values) for name, values in {"count": [1, 7], "nonfinite": [0, 1]}.items()},
    }
    gauge = PackedPoints(("load",), "", (), "", 0, *columns[:2], array("d", [0.5, 3.0]), intervals)
    broken = gauge._replace(times=array("q", [5]))
    sent = [packed_event(each, 10 * place, "s") for place, each in enumerate((rows, gauge, broken), 1)]
    wanted = [
        {**dict(event.attributes), "tachograph.seq": event.seq}
        for each, whole in zip((rows, gauge), sent, strict=False)
        for event in apart(each, whole)
    ]
    for curves, expected in (("all", wanted), ("", [])):
        ((request, _),) = log_requests(sent, rank(0), lambda *_: None, lambda: None)
        forwarding = Forwarding("http://127.0.0.1:9", Registry(), {"TACHOGRAPH_CURVES": curves})
        assert forwarding.adapt("logs", request)
        forwarding.close(0)
        records = [record for one in request.resource_logs for scope in one.scope_logs for record in scope.log_records]
        found = [dict(plain_attributes(record.attributes)) for record in records]
        assert [repr(sorted(point(each).items())) for each in found] == [
            repr(sorted(point(each).items())) for each in expected
        ]


def point(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says of a point, maps as JSON text."""
    own = {"tachograph.schema", "tachograph.stream"}
    return {
        key: json.dumps(value) if isinstance(value, dict) else value for key, value in told.items() if key not in own
    }


def test_only_a_hub_of_ours_gets_exponential_histograms_beside_explicit_ones() -> None:
    """Elsewhere two kinds of one name would be an error; one that stands alone is passed on."""
    beside, alone = exponential("step", [1.0], beside=True), exponential("other", [1.0])
    request = metrics(rank(0), beside, alone)
    forwarding = Forwarding("http://127.0.0.1:9", Registry(), {})
    assert forwarding.adapt("metrics", request)
    assert not forwarding.adapt("metrics", request)
    forwarding.close(0)
    assert request == metrics(rank(0), alone)


def test_a_wrong_choice_of_curves_is_an_error() -> None:
    """A hub that forwards refuses what ``start()`` refuses."""
    with pytest.raises(ValueError, match="TACHOGRAPH_CURVES must be hub or all, not 'some'"):
        Forwarding("http://127.0.0.1:9", Registry(), {"TACHOGRAPH_CURVES": "some"})


def test_a_dead_receiver_slows_nothing(tmp_path: Path) -> None:
    """With nobody there, or somebody who never answers, the hub answers as fast as ever; the loss is counted."""
    with silent() as port:
        for where in (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{port}"):
            registry = Registry()
            forwarding = Forwarding(where, registry, {})
            with serving(tmp_path, forwarding=forwarding) as hub:
                began = time.monotonic()
                for _ in range(20):
                    body = request(1.0, 2.0, 3.0).SerializeToString()
                    assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
                assert time.monotonic() - began < 5
                assert points(hub.url) == 60
            began = time.monotonic()
            forwarding.close(0.3)
            assert time.monotonic() - began < 2
            assert dropped(registry) == {"shutdown": 60}


def test_what_waits_is_bounded() -> None:
    """Beyond its limit the oldest is dropped, and counted in points, records and spans."""
    registry = Registry()
    body = request(1.0, 2.0).SerializeToString()
    forwarding = Forwarding(f"http://127.0.0.1:{free_port()}", registry, {}, limit_bytes=3 * len(body))
    for _ in range(10):
        forwarding("metrics", body, request(1.0, 2.0))
    forwarding("logs", logs(5).SerializeToString(), logs(5))
    forwarding("traces", spans(7).SerializeToString(), spans(7))
    forwarding.close(0.1)
    found = dropped(registry)
    assert sum(found.values()) == 10 * 2 + 5 + 7
    assert found["queue_full"] >= 12


def test_what_the_other_rejects_is_counted() -> None:
    """A partial success of any signal, and a refusal, are counted as rejected."""
    metrics, log_answer, trace = (
        ExportMetricsServiceResponse(),
        ExportLogsServiceResponse(),
        ExportTraceServiceResponse(),
    )
    metrics.partial_success.rejected_data_points = 1
    log_answer.partial_success.rejected_log_records = 2
    trace.partial_success.rejected_spans = 3
    answers: list[tuple[int, dict[str, str], bytes]] = [
        (200, {}, answer.SerializeToString()) for answer in (metrics, log_answer, trace)
    ]
    registry = Registry()
    with receiving(*answers, (400, {}, b""), (200, {}, b"\xff<html>")) as there:
        forwarding = Forwarding(there.url.removesuffix("/v1/metrics"), registry, {})
        forward(forwarding, "metrics", request(1.0, 2.0))
        forward(forwarding, "logs", logs(3))
        forward(forwarding, "traces", spans(4))
        forward(forwarding, "traces", spans(4))
        forward(forwarding, "traces", spans(4))
        forwarding.flush(10)
        forwarding.close(1)
    assert dropped(registry) == {"rejected": 1 + 2 + 3 + 4}


def test_the_users_headers_go_along() -> None:
    """Headers for the other receiver come from OpenTelemetry's variable; its protocol does not count."""
    environ = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with receiving() as there:
        forwarding = Forwarding(there.url.removesuffix("/v1/metrics"), Registry(), environ)
        forward(forwarding, "metrics", request(1.0))
        assert forwarding.flush(10)
        forwarding.close(1)
    headers = {name.lower(): value for name, value in there.requests[0][1].items()}
    assert headers["authorization"] == "Bearer x"
    assert headers[SENDER] == forwarding.sender


def test_a_hub_that_forwards_to_itself_does_not_go_round_in_circles(tmp_path: Path) -> None:
    """A request that comes back is received, and not passed on again."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        forwarding = Forwarding(f"http://127.0.0.1:{port}", Registry(), {})
        hub = stack.enter_context(serving(tmp_path, forwarding=forwarding, port=port))
        assert ask(hub.url, "/v1/metrics", request(1.0).SerializeToString(), content_type=PROTOBUF).status == 200
        wait_until(lambda: points(hub.url) >= 2, 10)
        time.sleep(0.3)
        assert points(hub.url) == 2
        forwarding.close(1)


@pytest.mark.parametrize("url", ["", "localhost", "ftp://localhost", "http://", "http://localhost:x"])
def test_a_wrong_url_is_an_error(url: str) -> None:
    """What is no URL is refused before anything starts."""
    with pytest.raises(ValueError, match=r"URL|empty"):
        Forwarding(url, Registry(), {})


SPOOL = {"TACHOGRAPH_SPOOL_LIMIT": "1000000"}


def numbered(forwarding: Forwarding, *numbers: int) -> None:
    """Forward a body that the receiver of a script reads: a number a line."""
    forwarding("logs", b"\n".join(b"%d" % number for number in numbers), logs(len(numbers)))


def waiting(folder: Path) -> list[Path]:
    """Return the files in which requests wait."""
    return sorted((folder / "spool").rglob("*.spool"))


def test_ten_minutes_without_a_receiver_lose_nothing(tmp_path: Path) -> None:
    """With a share of the disk all that came meanwhile is passed on once the receiver is back, once each, in order.

    The ten minutes are those of a clock that runs 300 times as fast.
    """
    registry, port, clock = Registry(), free_port(), Fast(300)
    url = f"http://127.0.0.1:{port}"
    forwarding = Forwarding(url, registry, SPOOL, store=tmp_path, clock=clock)
    began, number = clock(), 0
    while clock() - began < 600:
        numbered(forwarding, number, number + 1)
        number += 2
        time.sleep(0.01)
    (file,) = waiting(tmp_path)
    assert file.parent == forwarding.spool_folder
    assert file.stat().st_mode & 0o777 == 0o600
    with scripted(port=port) as there:
        assert forwarding.flush(60 * 300)
        forwarding.close(5)
    assert there.numbers == list(range(number))
    assert counts(registry, "dropped") == counts(registry, "resent") == {}
    assert not forwarding.spool_folder.exists()


def test_nobodys_disk_fills_unasked(tmp_path: Path) -> None:
    """Without the variable, or with 0, nothing is kept, and what is left at the end is counted."""
    for environ in ({}, {"TACHOGRAPH_SPOOL_LIMIT": "0"}):
        registry = Registry()
        forwarding = Forwarding(f"http://127.0.0.1:{free_port()}", registry, environ, store=tmp_path)
        numbered(forwarding, 1, 2, 3)
        time.sleep(0.2)
        forwarding.close(0.2)
        assert counts(registry, "dropped") == {"shutdown": 3}
        assert list(tmp_path.iterdir()) == []


def test_what_may_arrive_twice_is_counted(tmp_path: Path) -> None:
    """A request whose answer was lost comes again, which is counted as ``tachograph.resent`` and as no loss."""
    registry = Registry()
    with scripted(["reset"]) as there:
        forwarding = Forwarding(there.url, registry, SPOOL, store=tmp_path, first_back_off=0.01)
        numbered(forwarding, 1, 2)
        assert forwarding.flush(10)
        forwarding.close(1)
    assert there.numbers == [1, 2, 1, 2]
    assert (counts(registry, "dropped"), counts(registry, "resent")) == ({}, {"forward": 2})


def test_a_wrong_share_of_the_disk_is_an_error() -> None:
    """What is no number of bytes is refused before anything starts."""
    with pytest.raises(ValueError, match="TACHOGRAPH_SPOOL_LIMIT"):
        Forwarding("http://localhost:1", Registry(), {"TACHOGRAPH_SPOOL_LIMIT": "much"})


def test_what_a_killed_hub_had_waits_for_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After SIGKILL the next hub leaves alone what the first one could not pass on; ``tachograph resend`` sends it.

    Sent twice, another hub keeps it once.
    """
    port = free_port()
    away = f"http://127.0.0.1:{port}"
    record = """
        import sys, tachograph
        with tachograph.start(metrics="none", logs="otlp", endpoint=sys.argv[1]) as pipeline:
            loss = tachograph.Metric("loss", group="g", throttle=None)
            for number in range(50):
                loss.record(number)
            assert pipeline.flush(30)
    """
    with command(tmp_path, "--forward", away, "--quiet", **SPOOL) as hub:
        done = run(tmp_path, record, hub.url)
        assert (done.returncode, done.stderr) == (0, "")
        recorded = events(hub.url)
        assert recorded >= 50
        wait_until(lambda: any(b"loss" in file.read_bytes() for file in waiting(tmp_path / "store")), 30)
        hub.process.kill()
        hub.end()
    left = waiting(tmp_path / "store")
    with serving(tmp_path / "other", port=port) as there:
        with command(tmp_path, "--forward", away, "--quiet", **SPOOL) as hub:
            assert ask(hub.url, "/v1/metrics", request(1.0).SerializeToString(), content_type=PROTOBUF).status == 200
            wait_until(lambda: points(there.url) == 1, 20)
            hub.process.terminate()
            assert hub.end() == 0
        assert waiting(tmp_path / "store") == left
        assert events(there.url) == 0
        for delete in ([], ["--delete"]):
            folder = str(tmp_path / "store" / "spool")
            assert main(["resend", folder, "--to", "otlp", "--url", there.url, *delete]) == 0
            assert events(there.url) == recorded
    assert waiting(tmp_path / "store") == []
    assert "sent" in capsys.readouterr().err


def test_points_that_are_packed_count_each() -> None:
    """A record of packed points that cannot be forwarded is so many lost points."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(event_name="checkpoint")
    packed = records.add(event_name="tachograph.points")
    packed.attributes.add(key="value").value.bytes_value = bytes(8 * 20)
    packed.attributes.add(key="time").value.bytes_value = bytes(8 * 10)
    assert items("logs", request) == 21
