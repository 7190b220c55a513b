"""Records of ``logging`` under ``tachograph run``: with rank and trace in our hub, elsewhere only where asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import tachograph
from launches import base, events, run_program
from programs import run
from receivers import receiving
from tachograph.recording.journal import LOG

PROGRAM = """
import logging, os, sys

logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
log = logging.getLogger("model")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
for _ in range(30):
    log.warning("again, token=abcdef")
with trace.get_tracer("t").start_as_current_span("s") as span:
    print(f"{span.get_span_context().trace_id:032x}")
    log.error("in a span")
log.info("not this")
child = os.fork()
if not child:
    log.warning("of a helper")
    os._exit(0)
os.waitpid(child, 0)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
print(len(logging.getLogger().handlers), len(log.handlers))
sys.exit(3)
"""


def test_records_have_rank_and_trace(tmp_path: Path) -> None:
    """In order, masked, limited; a helper's are none; the program's output and exit code are as without us."""
    options = ("--run-id", "job", "--port", "0", "--linger", "0")
    done = run_program(tmp_path, PROGRAM, options=options, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    alone = run(tmp_path, PROGRAM)
    assert done.returncode == alone.returncode == 3
    # The warning goes where the program logs to.
    said = "WARNING tachograph logging: not recorded because they were logged too fast: record: 20\n"
    lines, without = done.stdout.replace(said, "").splitlines(), alone.stdout.splitlines()
    assert [line for line in lines if len(line) != 32] == [line for line in without if len(line) != 32]
    found = tachograph.runs.open("job", tmp_path / "store")
    records = list(found.events(LOG))
    texts = ["again, token=***"] * 10 + ["in a span", "failed"]
    assert [record.attributes["body"] for record in records] == texts
    assert {found.ranks[record.stream] for record in records} == {1}
    (trace,) = (line for line in lines if len(line) == 32)
    assert [f"{record.trace_id:032x}" for record in records if record.trace_id] == [trace]
    assert records[-1].attributes["exception.type"] == "ZeroDivisionError"
    (left_out,) = found.series("tachograph.bridge.not_taken")
    assert (left_out.value, left_out.attributes) == (20, {"library": "logging", "kind": "record"})
    assert said in done.stdout


@pytest.mark.parametrize("asked", [{}, {"OTEL_LOGS_EXPORTER": "otlp"}])
def test_elsewhere_only_where_logs_are_asked_for(tmp_path: Path, asked: dict[str, str]) -> None:
    """A receiver that is no hub of ours gets no text of the program's, unless OTEL_LOGS_EXPORTER names an exporter."""
    program = "import logging; logging.warning('private'); import tachograph; tachograph.put_metric('a', 1)"
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=("--no-hub", "--endpoint", base(receiver)), **asked)
    assert done.returncode == 0, done.stderr
    assert [event.name for event in events(receiver) if event.name == LOG] == [LOG] * len(asked)
    assert any(b"private" in body for _, _, body in receiver.requests) is bool(asked)


def test_given_logger_providers_get_records(tmp_path: Path) -> None:
    """By hand, with a provider of the program's own; after the end there are none, and logging is as it was."""
    done = run(
        tmp_path,
        """
        import logging
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
        from tachograph.instrumentation import LoggingInstrumentor
        from tachograph.instrumentation._given_providers import given_providers

        original = logging.Logger.callHandlers
        exporter, provider = InMemoryLogRecordExporter(), LoggerProvider()
        provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        LoggingInstrumentor().instrument(logger_provider=provider)
        logging.warning("a %s", "b")
        LoggingInstrumentor().uninstrument()
        logging.warning("later")
        given_providers.close()
        for found in exporter.get_finished_logs():
            print(found.log_record.severity_number.name, found.log_record.body)
        print(logging.Logger.callHandlers is original)
        """,
    )
    assert done.stdout.splitlines() == ["WARN a b", "True"], done.stderr
