"""A real OpenTelemetry Collector with ``collector-config/local.yaml`` receives events, equal one by one."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from collectors import Collector, running
from programs import events, run
from receivers import dropped, receiving
from servers import free_port, wait_until
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings, Protocol
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

PROTOCOLS: list[Protocol] = ["http/protobuf", "grpc"]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """Run a collector for the whole file."""
    with running(tmp_path_factory.mktemp("collector")) as one:
        yield one


def of_stream(collector: Collector, stream: str) -> list[dict[str, Any]]:
    """Return the events of one stream that the collector has written."""
    found = events(collector.file) if collector.file.exists() else []
    return [record for record in found if record["attributes"].get("tachograph.stream") == stream]


@pytest.mark.otelcol
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_events_arrive_equal_one_by_one(collector: Collector, protocol: Protocol) -> None:
    """1,200 events with values of every type end up in the collector's file: all of them, each once, in order."""
    journal = Journal(Registry(enabled=True))
    values: list[Any] = [0.1 + 0.2, math.inf, True, 2**53 + 1, -(2**63), 2**70, "日本 \ud800", [1, 2], {"a": 1}, 1e-320]
    sent = []
    for number in range(1200):
        data = {"x": number, "value": values[number % len(values)]}
        sent.append((1_800_000_000_000_000_001 + number, data))
        journal.append(f"event {number % 3}", *sent[-1], trace_id=number << 64, span_id=number, trace_flags=1)
    exporter = OtlpExporter({"logs": collector.settings("logs", protocol)}, Registry())
    exporter(Batch([], None, [], {"service.name": "s"}, 0, journal.drain()))
    assert exporter.flush(20)
    exporter.close(1)
    wait_until(lambda: len(of_stream(collector, journal.stream)) >= 1200, 20, collector.server.log)
    found = of_stream(collector, journal.stream)
    assert [record["attributes"]["tachograph.seq"] for record in found] == list(range(1, 1201))
    for number, (record, (moment, data)) in enumerate(zip(found, sent, strict=True)):
        wanted = data["value"]
        wanted = "日本 ?" if isinstance(wanted, str) else str(wanted) if wanted == 2**70 else wanted
        got = record["attributes"]
        assert (type(got["value"]), got["value"], got["x"]) == (type(wanted), wanted, number)
        assert got["tachograph.schema"] == 1
        assert record["eventName"] == f"event {number % 3}"
        assert int(record["timeUnixNano"]) == moment
        if number:
            assert (record["traceId"], record["spanId"]) == (f"{number << 64:032x}", f"{number:016x}")
            assert record["flags"] == 1


@pytest.mark.otelcol
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nan_does_not_cost_a_batch(collector: Collector, protocol: Protocol) -> None:
    """NaN, which the collector's JSON has a word for, arrives as NaN, with the events beside it."""
    journal = Journal(Registry(enabled=True))
    for number in (1.5, math.nan, -math.inf):
        journal.append("e", 1, {"value": number})
    exporter = OtlpExporter({"logs": collector.settings("logs", protocol)}, Registry())
    exporter(Batch([], None, [], {}, 0, journal.drain()))
    assert exporter.flush(20)
    exporter.close(1)
    wait_until(lambda: len(of_stream(collector, journal.stream)) == 3, 20, collector.server.log)
    first, second, third = (record["attributes"]["value"] for record in of_stream(collector, journal.stream))
    assert (first, third) == (1.5, -math.inf)
    assert math.isnan(second)


@pytest.mark.otelcol
@pytest.mark.parametrize(
    "end",
    ["", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", "tachograph.shutdown()"],
)
def test_all_events_of_a_program_arrive_however_it_ends(collector: Collector, tmp_path: Path, end: str) -> None:
    """Normal end, exit(), SIGTERM and shutdown(): events that were logged in the last moment are at the collector."""
    program = f"""
import os, signal, time
import tachograph
from tachograph.recording import journal
journal.default.append("before start", time.time_ns(), {{"n": -1}})
tachograph.start(metrics="none", endpoint="http://127.0.0.1:{collector.http}")
for number in range(3000):
    journal.default.append("e", time.time_ns(), {{"n": number}})
print(journal.default.stream, flush=True)
{end}
"""
    done = run(tmp_path, program)
    stream = done.stdout.strip()
    assert len(stream) == 32, done.stderr
    wait_until(lambda: len(of_stream(collector, stream)) >= 3001, 20, collector.server.log)
    assert [record["attributes"]["n"] for record in of_stream(collector, stream)] == list(range(-1, 3000))


@pytest.mark.otelcol
def test_a_json_line_can_be_posted_as_it_is(collector: Collector, tmp_path: Path) -> None:
    """What was written to a file can be sent later: the collector takes each line, with the same numbers."""
    done = run(
        tmp_path,
        """
import time, tachograph
from tachograph.recording import journal
with tachograph.start(metrics="none", logs="jsonl", jsonl="out.jsonl"):
    for number in range(700):
        journal.default.append("e", time.time_ns(), {"n": number})
print(journal.default.stream)
""",
    )
    stream = done.stdout.strip()
    for line in (tmp_path / "out.jsonl").read_bytes().splitlines():
        request = urllib.request.Request(
            f"http://127.0.0.1:{collector.http}/v1/logs", data=line, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
    wait_until(lambda: len(of_stream(collector, stream)) >= 700, 20, collector.server.log)
    assert [record["attributes"]["n"] for record in of_stream(collector, stream)] == list(range(700))


def logs_to(url: str) -> OtlpSettings:
    """Return settings for logs over HTTP."""
    return OtlpSettings(signal="logs", protocol="http/protobuf", endpoint=url)


def test_a_request_that_is_sent_again_is_the_same() -> None:
    """After a 503 the same bytes are sent: a reader that goes by stream and number takes nothing twice."""
    journal = Journal(Registry(enabled=True))
    for number in range(3):
        journal.append("e", 1, {"n": number})
    with receiving((503, {"Retry-After": "0"}, b"")) as server:
        exporter = OtlpExporter({"logs": logs_to(server.url)}, Registry())
        exporter(Batch([], None, [], {}, 0, journal.drain()))
        assert exporter.flush(10)
        exporter.close(1)
        first, second = (body for _, _, body in server.requests)
    assert first == second


def test_what_the_receiver_refuses_is_counted() -> None:
    """A partial success says how many records were rejected: they are counted, not sent again."""
    answer = ExportLogsServiceResponse()
    answer.partial_success.rejected_log_records = 2
    registry = Registry(enabled=True)
    journal = Journal(registry)
    for _ in range(3):
        journal.append("e", 1, {})
    with receiving((200, {}, answer.SerializeToString())) as server:
        exporter = OtlpExporter({"logs": logs_to(server.url)}, registry)
        exporter(Batch([], None, [], {}, 0, journal.drain()))
        assert exporter.flush(10)
        exporter.close(1)
        assert len(server.requests) == 1
    assert dropped(registry) == {"rejected": 2}


@pytest.mark.timing
def test_a_dead_collector_adds_at_most_a_second_to_the_exit(tmp_path: Path) -> None:
    """With nobody listening and a full journal the program ends in time, as what it was, and encodes no more of it."""
    done = run(
        tmp_path,
        f"""
import atexit, time, sys
# registered first, called last
atexit.register(lambda: print(time.monotonic() - began, time.process_time() - worked, flush=True))
import tachograph
from tachograph.recording import journal
tachograph.start(metrics="none", endpoint="http://127.0.0.1:{free_port()}")
for number in range(70_000):
    journal.default.append("e", time.time_ns(), {{"n": number, "a": 0.5, "b": 0.25, "c": 0.125}})
began, worked = time.monotonic(), time.process_time()
""",
    )
    assert done.returncode == 0, done.stderr
    seconds, worked = map(float, done.stdout.split())
    assert seconds < 1.5
    assert worked < 0.2  # encoding goes on for 0.4 s where nothing stops it, and thrice as long on a busy machine
