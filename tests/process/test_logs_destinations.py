"""Where events go besides OTLP: JSON lines, the console, exporters of the user's own and of the SDK."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult

from programs import events, run
from tachograph.exporters.batch import Batch
from tachograph.exporters.console import Console
from tachograph.exporters.jsonl import JsonLines
from tachograph.pipeline.destinations import Route, given
from tachograph.pipeline.event_feed import EVENTS_PER_BATCH, EventFeed
from tachograph.recording.journal import Journal
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry


def batch_of(journal: Journal) -> Batch:
    """Return what the journal holds as a batch."""
    return Batch([], None, [], {"service.name": "s"}, time.time_ns(), journal.drain())


def dropped(registry: Registry) -> dict[tuple[str, str], float]:
    """Return what was dropped, by reason and destination."""
    return {
        (str(found["reason"]), str(found["destination"])): point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint) and (found := dict(point.attributes))
    }


def test_json_lines_hold_events(tmp_path: Path) -> None:
    """A line holds up to 500 events, as OTLP's JSON has them."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    for number in range(501):
        journal.append("e", 10**18 + number, {"n": number, "x": 0.5}, trace_id=5, span_id=6, trace_flags=1)
    destination = JsonLines(tmp_path / "a.jsonl", registry)
    destination(batch_of(journal))
    destination.close(5)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2
    found = events(tmp_path / "a.jsonl")
    assert [record["attributes"]["n"] for record in found] == list(range(501))
    assert found[3]["timeUnixNano"] == str(10**18 + 3)
    assert (found[0]["traceId"], found[0]["spanId"], found[0]["flags"]) == ("0" * 31 + "5", "0" * 15 + "6", 1)
    assert found[0]["attributes"]["tachograph.stream"] == journal.stream


def test_the_console_shows_one_line_an_event() -> None:
    """The event's own time, its name, its data sorted, and its span; a line break in it breaks no line."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    at = 1_800_000_000_123_000_000
    journal.append("torch.monitor.Stat", at, {"loss.mean": 0.5, "loss.count": 2.0})
    journal.append("epoch\nend", at, {"phase": "eval"}, trace_id=10, span_id=11, trace_flags=1)
    journal.append("late", 2**63, {})
    stream = io.StringIO()
    console = Console(registry, stream)
    console(batch_of(journal))
    assert console.flush(5)
    console.close(1)
    stamp = "2027-01-15T08:00:00.123Z [tachograph] event"
    assert stream.getvalue().splitlines() == [
        f"{stamp} torch.monitor.Stat{{loss.count=2.0,loss.mean=0.5}}",
        f'{stamp} epoch\\nend{{phase="eval"}} trace={10:032x} span={11:016x}',
        "2262-04-11T23:47:16.854Z [tachograph] event late",
    ]


def test_an_exporter_of_the_users_own_gets_the_events() -> None:
    """A callable that is named for logs gets batches whose events are those that were logged, in its own thread."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    received: list[tuple[Batch, int]] = []
    route = given(lambda batch: received.append((batch, threading.get_ident())), registry, events=True)
    journal.append("e", 1, {"n": 1})
    route.destination(batch_of(journal))
    assert route.destination.flush(5)
    route.destination.close(1)
    ((batch, thread),) = received
    assert [(event.name, event.attributes) for event in batch.events] == [("e", {"n": 1})]
    assert thread != threading.get_ident()


class Kept(LogRecordExporter):
    """An exporter of the SDK that keeps what it gets, and says what it is told to."""

    def __init__(self, result: LogRecordExportResult = LogRecordExportResult.SUCCESS) -> None:
        self.records: list[ReadableLogRecord] = []
        self.calls: list[str] = []
        self.result = result

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Keep it."""
        self.records += batch
        return self.result

    def shutdown(self) -> None:
        """Say that it was asked."""
        self.calls.append("shutdown")

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        """Say that it was asked."""
        self.calls.append("flush")
        return timeout_millis > 0


def test_an_exporter_of_the_sdk_gets_records() -> None:
    """A LogRecordExporter gets each event with name, times, trace, data and resource; one that fails is counted."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    journal.append("e", 77, {"a": 2**80, "b": "\ud800", "c": [1, 2.5]}, trace_id=5, span_id=6, trace_flags=1)
    journal.append("f", 78, {})
    exporter = Kept()
    route = given(exporter, registry, events=True)
    route.destination(batch_of(journal))
    assert route.destination.flush(5)
    route.destination.close(1)
    first, second = (found.log_record for found in exporter.records)
    assert (first.event_name, first.timestamp, first.trace_id, first.span_id) == ("e", 77, 5, 6)
    assert dict(first.attributes or {}) == {
        "a": str(2**80),
        "b": "?",
        "c": [1, 2.5],
        "tachograph.schema": 1,
        "tachograph.stream": journal.stream,
        "tachograph.seq": 1,
    }
    assert (second.trace_id, second.span_id) == (0, 0)
    assert exporter.calls == ["flush", "shutdown"]
    assert exporter.records[0].resource.attributes == {"service.name": "s"}
    exporter.result = LogRecordExportResult.FAILURE
    route = given(exporter, registry, events=True)
    journal.append("g", 1, {})
    route.destination(batch_of(journal))
    assert not route.destination.flush(5)
    route.destination.close(1)
    assert dropped(registry)["rejected", "Kept"] == 1


class Broken:
    """A destination that fails at once."""

    def __call__(self, batch: Batch) -> None:
        """Fail."""
        raise ValueError(f"it cannot take {len(batch.events)}")

    def flush(self, _timeout: float) -> bool:
        """Say that all is well."""
        return True

    def close(self, _timeout: float) -> None:
        """Do nothing."""

    def reset_in_child(self) -> None:
        """Do nothing."""


class Good(Broken):
    """One that takes events, in batches that are bounded."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __call__(self, batch: Batch) -> None:
        """Note their numbers."""
        self.received.extend(event.seq for event in batch.events)
        assert len(batch.events) <= EVENTS_PER_BATCH


def test_one_destination_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Every other route gets every event, the failure is counted by destination and said once."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    good = Good()
    feed = EventFeed(journal, registry)
    for number in range(5000):
        journal.append("e", number, {})
    routes = [Route(Broken(), events=True), Route(good, events=True), Route(Broken())]
    assert feed.deliver(routes, {})
    assert good.received == list(range(1, 5001))
    assert dropped(registry) == {("encoding", "Broken"): 5000}
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_events_that_cannot_be_made_hide_none_behind_them() -> None:
    """However many fail in a row, what comes after them is delivered."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    good = Good()
    for number in range(700):
        journal.append("e", number, (int, "none") if number < 695 else {})
    assert EventFeed(journal, registry).deliver([Route(good, events=True)], {})
    assert good.received == list(range(696, 701))
    assert dropped(registry) == {("encoding", "journal"): 695}


def test_a_deadline_leaves_events_where_they_are() -> None:
    """What cannot be handed over in time stays in the journal; at the end of the process it is counted."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    feed = EventFeed(journal, registry)
    for number in range(10):
        journal.append("e", number, {})
    assert not feed.deliver([Route(Broken(), events=True)], {}, time.monotonic() - 1)
    assert len(journal) == 10
    feed.close(exiting=False)
    assert len(journal) == 10
    feed.close(exiting=True)
    assert dropped(registry) == {("shutdown", "journal"): 10}


def test_who_holds_something_speaks_before_the_end(tmp_path: Path) -> None:
    """What is logged by ``last_words``, at a normal end and at SIGTERM, leaves too; one that raises stops no other."""
    for end in ("", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"):
        done = run(
            tmp_path,
            f"""
import os, signal, time
import tachograph
from tachograph.recording import journal
def fail(timeout):
    raise ValueError(timeout)
journal.default.last_words += [fail, lambda timeout: journal.default.append("last", 1, {{"in time": 0 < timeout <= 1}})]
tachograph.start(metrics="none", logs="jsonl", jsonl="out.jsonl")
{end}
""",
        )
        assert done.returncode in (0, -15)
        assert "lost events that were not logged yet" in done.stderr
        (record,) = events(tmp_path / "out.jsonl")
        assert record["attributes"]["in time"] is True
        (tmp_path / "out.jsonl").unlink()


def test_events_wait_for_a_start_and_between_two(tmp_path: Path) -> None:
    """Events from before the first start(), between two of them, and after the last leave with the next one, once."""
    done = run(
        tmp_path,
        """
import time
import tachograph
from tachograph.recording import journal
log = lambda n: journal.default.append("e", time.time_ns(), {"n": n})
start = lambda: tachograph.start(metrics="none", logs="jsonl", jsonl="out.jsonl")
log(0)
with start():
    log(1)
log(2)
start()
log(3)
time.sleep(1.5)
log(4)
""",
    )
    assert done.returncode == 0, done.stderr
    found = events(tmp_path / "out.jsonl")
    assert [record["attributes"]["n"] for record in found] == [0, 1, 2, 3, 4]
    assert [record["attributes"]["tachograph.seq"] for record in found] == [1, 2, 3, 4, 5]


def test_without_a_destination_nothing_is_kept_and_nothing_counts_as_lost(tmp_path: Path) -> None:
    """Where a pipeline serves metrics alone, events take no memory, and are no losses on the page."""
    done = run(
        tmp_path,
        """
import time, urllib.request
import tachograph
from tachograph.recording import journal
pipeline = tachograph.start(prometheus_port=0)
for number in range(70_000):
    journal.default.append("e", 0, {})
print(len(journal.default))
print("dropped" in urllib.request.urlopen(pipeline.metrics_url).read().decode())
""",
    )
    assert done.stdout.split() == ["0", "False"], done.stderr


def test_a_wrong_name_says_what_is_allowed(tmp_path: Path) -> None:
    """An exporter that logs have not is a ValueError that names those that they have."""
    done = run(tmp_path, "import tachograph\ntachograph.start()", OTEL_LOGS_EXPORTER="prometheus")
    assert "OTEL_LOGS_EXPORTER" in done.stderr
    assert "otlp, console, jsonl, influxdb, tensorboard, none" in done.stderr


def test_bursts_are_bounded_and_counted(tmp_path: Path) -> None:
    """More events than the journal holds: each was delivered, was dropped, or waits for the next ``start()``."""
    done = run(
        tmp_path,
        """
import threading, time
import tachograph
from tachograph.recording import journal, registry
tachograph.start(metrics="none", logs="jsonl", jsonl="out.jsonl")  # else points of metrics are among what is dropped
def log():
    for number in range(25_000):
        journal.default.append("e", number, {"n": number})
threads = [threading.Thread(target=log) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tachograph.shutdown(30)
def accounted_for():
    dropped = [found for found in registry.default.collect() if found.name == "tachograph.dropped"]
    return sum(point.value for metric in dropped for point in metric.points) + len(journal.default)
before = None
while before != accounted_for():  # a batch that a thread had in its hand at the end is counted when it is encoded
    before = accounted_for()
    time.sleep(1)
print(before)
""",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = events(tmp_path / "out.jsonl")
    numbers = [record["attributes"]["tachograph.seq"] for record in found]
    assert len(set(numbers)) == len(numbers)
    assert len(numbers) + int(done.stdout) == 100_000
    assert int(done.stdout) > 0
