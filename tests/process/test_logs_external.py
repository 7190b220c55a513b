"""A LoggerProvider of the program's own: events leave through it, off the thread that logs."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadWriteLogRecord

from programs import events, run
from tachograph.exporters.batch import Batch
from tachograph.exporters.log_emitter import into_provider
from tachograph.recording.journal import Journal
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

OWN = """
import time
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
class Printed(LogRecordExporter):
    def export(self, batch):
        for found in batch:
            record, scope = found.log_record, found.instrumentation_scope
            n, seq = (record.attributes[key] for key in ("n", "tachograph.seq"))
            print(scope.name, record.event_name, n, seq, flush=True)
        return LogRecordExportResult.SUCCESS
    def shutdown(self):
        pass
    def force_flush(self, timeout_millis=10000):
        return True
provider = LoggerProvider()
provider.add_log_record_processor(BatchLogRecordProcessor(Printed()))
_logs.set_logger_provider(provider)
import tachograph
from tachograph.recording import journal
log = lambda n: journal.default.append("e", time.time_ns(), {"n": n})
"""


@pytest.mark.parametrize(
    "end", ["", "assert pipeline.flush()", "import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"]
)
def test_events_leave_through_the_programs_own_provider(tmp_path: Path, end: str) -> None:
    """With its processors and exporters, each event once, in order, in the last moment too, and not by our OTLP."""
    done = run(
        tmp_path,
        OWN + 'pipeline = tachograph.start(metrics="none")\nfor n in range(300): log(n)\n' + end,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_TRACES_EXPORTER="none",
    )
    assert done.stdout.splitlines() == [f"tachograph e {number} {number + 1}" for number in range(300)], done.stderr
    assert done.returncode == (-15 if "SIGTERM" in end else 0)


def test_logs_that_are_named_in_the_call_leave_by_us(tmp_path: Path) -> None:
    """``start(logs=…)`` is an explicit wish: then they go there, and not through the program's provider."""
    done = run(tmp_path, OWN + 'tachograph.start(metrics="none", logs="jsonl", jsonl="out.jsonl")\nlog(7)')
    assert done.stdout == ""
    assert [record["attributes"]["n"] for record in events(tmp_path / "out.jsonl")] == [7]


def test_we_make_no_global_provider(tmp_path: Path) -> None:
    """With an exporter for logs the process has no LoggerProvider afterwards: its ``logging`` is not ours."""
    done = run(
        tmp_path,
        """
import tachograph
from opentelemetry import _logs
tachograph.start(metrics="none", logs="jsonl", jsonl="out.jsonl")
print(type(_logs.get_logger_provider()).__name__)
""",
    )
    assert done.stdout.strip() == "ProxyLoggerProvider", done.stderr


def test_a_provider_that_is_named_later_is_loaded_by_the_program(tmp_path: Path) -> None:
    """A look for providers loads none, and one that the program sets then is joined."""
    done = run(
        tmp_path,
        """
import os, time
import tachograph
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider
from tachograph.recording import journal
pipeline = tachograph.start(metrics="none")
os.environ["OTEL_PYTHON_LOGGER_PROVIDER"] = "sdk_logger_provider"
for _ in range(3):
    pipeline.look_for_providers()
print(_logs._internal._LOGGER_PROVIDER)
class Told(LoggerProvider):
    def get_logger(self, *arguments, **more):
        print("joined")
        return super().get_logger(*arguments, **more)
_logs.set_logger_provider(Told())
pipeline.look_for_providers()
journal.default.append("e", time.time_ns(), {"n": 1})
assert pipeline.flush()
""",
    )
    assert done.stdout.split() == ["None", "joined"], done.stderr


class Kept(LogRecordProcessor):
    """Keeps what it gets, and the thread; refuses every second record."""

    def __init__(self) -> None:
        self.records: list[ReadWriteLogRecord] = []
        self.threads: set[int] = set()
        self.flushed = 0

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Keep it, or fail."""
        self.threads.add(threading.get_ident())
        if log_record.log_record.event_name == "bad":
            raise ValueError("no")
        self.records.append(log_record)

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Say that it was asked."""
        self.flushed += timeout_millis > 0
        return True


def test_each_record_is_emitted_with_its_own_trace_in_a_thread_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Trace, times and data are the event's; a processor that fails costs that event alone, counted and said once."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    provider, kept = LoggerProvider(shutdown_on_exit=False), Kept()
    provider.add_log_record_processor(kept)
    emitter = into_provider(provider, registry)
    journal.append("good", 77, {"big": 2**70, "text": "\ud800"}, trace_id=5, span_id=6, trace_flags=1)
    journal.append("bad", 78, {})
    journal.append("bad", 79, {})
    journal.append("good", 80, {})
    emitter(Batch([], None, [], {}, 0, journal.drain()))
    assert emitter.flush(5)
    emitter.close(1)
    first, second = (found.log_record for found in kept.records)
    assert (first.timestamp, first.trace_id, first.span_id) == (77, 5, 6)
    assert first.attributes is not None
    assert (first.attributes["big"], first.attributes["text"]) == (str(2**70), "?")
    assert (second.timestamp, second.trace_id) == (80, 0)
    assert threading.get_ident() not in kept.threads
    assert kept.flushed == 1
    lost = [
        (dict(point.attributes)["reason"], point.value)
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint)
    ]
    assert lost == [("rejected", 2)]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    provider.shutdown()
