"""The bridge from logging: warnings and worse as log records, bounded, without secrets, and nothing of ours to see."""

from __future__ import annotations

import inspect
import io
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.instrumentation._given_providers import Recording
from tachograph.instrumentation.bridges._libraries import LIBRARIES
from tachograph.instrumentation.bridges._patches import Patches
from tachograph.instrumentation.bridges._values import BridgedValues
from tachograph.instrumentation.bridges.logging import RecordNotes
from tachograph.recording.journal import LOG, Journal
from tachograph.recording.registry import Registry

ORIGINAL = logging.Logger.callHandlers


class Bridged:
    """The bridge with a registry, a journal and a clock of its own."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.journal = Journal(self.registry)
        self.now = 0.0
        self.errors: list[Exception] = []
        self.values = BridgedValues(Recording(self.registry, self.journal))
        self.notes = RecordNotes(self.values, lambda: self.now)
        self.patches = Patches(LIBRARIES["logging"], self.notes, self.errors.append)

    def records(self) -> list[dict[str, Any]]:
        """Return the attributes of the records that have come since the last call."""
        events = self.journal.drain_records()
        assert all(event.name == LOG and event.stream == f"{self.journal.stream}.log" for event in events)
        return [dict(event.attributes) for event in events]

    def bodies(self) -> list[str]:
        """Return their texts."""
        return [record["body"] for record in self.records()]

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """Return a counter of our own, by the values of its attributes in the order of their names."""
        return {
            tuple(str(value) for _, value in sorted(point.attributes)): point.value
            for metric in self.registry.collect()
            if metric.name == name
            for point in metric.points
        }


@pytest.fixture
def bridged() -> Iterator[Bridged]:
    """Have logging bridged, until the end of the test."""
    made = Bridged()
    yield made
    made.patches.close()
    made.values.reset()  # nothing is left to be said at the end of the process
    assert logging.Logger.callHandlers is ORIGINAL
    assert not made.errors


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """Have a logger whose only handler writes into a text."""
    found = logging.getLogger("of.the.program")
    found.propagate = False
    found.addHandler(logging.StreamHandler(io.StringIO()))
    yield found
    found.handlers.clear()
    found.filters.clear()
    found.setLevel(logging.NOTSET)
    found.disabled = False


def test_warnings_and_worse_are_records(bridged: Bridged, log: logging.Logger) -> None:
    """With severity, text, logger and line; what the program's levels and filters hold back is none."""
    log.setLevel(logging.DEBUG)
    handlers = [*log.handlers], [*logging.getLogger().handlers]
    log.info("not this")
    log.warning("loss is %s", 0.5)
    log.error("worse")
    log.critical("worst")
    log.log(33, "in between")
    log.log(99, "beyond")
    log.addFilter(lambda record: "hidden" not in record.msg)
    log.warning("hidden")
    log.setLevel(logging.ERROR)
    log.warning("below the level")
    log.disabled = True
    log.error("disabled")
    found = bridged.records()
    assert [(each["severity_number"], each["severity_text"], each["body"]) for each in found] == [
        (13, "WARNING", "loss is 0.5"),
        (17, "ERROR", "worse"),
        (21, "CRITICAL", "worst"),
        (16, "Level 33", "in between"),
        (24, "Level 99", "beyond"),
    ]
    assert {(each["otel.scope.name"], each["code.function.name"]) for each in found} == {
        ("of.the.program", "test_warnings_and_worse_are_records")
    }
    assert {each["code.file.path"] for each in found} == {__file__}
    assert handlers == ([*log.handlers], [*logging.getLogger().handlers])


def test_exceptions_have_type_message_and_stack(bridged: Bridged, log: logging.Logger) -> None:
    """By the semantic conventions, with its cause; without one there is nothing of it."""
    try:
        try:
            int("x")
        except ValueError as error:
            raise threading.BrokenBarrierError("token=abcdef") from error
    except threading.BrokenBarrierError:
        log.exception("failed")
    log.error("no exception", exc_info=(None, None, None))
    failed, without = bridged.records()
    assert (failed["exception.type"], failed["exception.message"]) == ("threading.BrokenBarrierError", "token=***")
    assert "ValueError: invalid literal" in failed["exception.stacktrace"]
    assert "abcdef" not in failed["exception.stacktrace"]
    assert not [key for key in without if key.startswith("exception.")]


def test_texts_are_bounded_and_have_no_secrets(bridged: Bridged, log: logging.Logger) -> None:
    """Masked as other texts are; of a long message the beginning is kept, of a long stack the end."""
    log.warning("to %s with api_key=%s", "https://user:pw@host/x", "s3cret")
    log.warning("x" * 10**6)
    error = ValueError("y" * 10**6)
    log.warning("z", exc_info=error)
    masked, long, failed = bridged.records()
    assert masked["body"] == "to https://***@host/x with api_key=***"
    assert long["body"] == "x" * 4095 + "…"
    assert len(failed["exception.message"]) == 4096
    assert (len(failed["exception.stacktrace"]), failed["exception.stacktrace"][0]) == (16_384, "…")


class Hostile:
    """An object whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no")


class Talking:
    """An object that logs while its text is made."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def __str__(self) -> str:
        self._log.warning("inner %s", self)
        return "text"


def test_hostile_records_cost_nothing(bridged: Bridged, log: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    """Arguments that do not fit, texts that cannot be had, an object that logs: each is a record, none an error."""
    log.handlers[:] = [logging.NullHandler()]
    log.error("number %d", "x")
    log.error(Hostile())
    log.error("%s", Hostile())
    log.error("failed", exc_info=ArithmeticError(Hostile()))
    log.handle(logging.makeLogRecord({"levelno": 40, "levelname": None, "msg": "made", "lineno": None}))
    assert bridged.bodies() == [
        "number %d",
        "(the text of this Hostile cannot be had)",
        "%s",
        "failed",
        "made",
    ]
    log.error(Talking(log))
    assert bridged.bodies() == ["text"]
    assert capfd.readouterr() == ("", "")


def test_a_line_that_repeats_is_limited(bridged: Bridged, log: logging.Logger) -> None:
    """Ten at once, then one every ten seconds, with the number of those before it; all are counted."""

    def warn() -> None:
        log.warning("again")

    for _ in range(25):
        warn()
    log.warning("another line")
    assert bridged.bodies() == ["again"] * 10 + ["another line"]
    bridged.now = 10.0
    warn()
    warn()
    (found,) = bridged.records()
    assert found["tachograph.log.left_out"] == 15
    assert bridged.counted("tachograph.bridge.not_taken") == {("record", "logging"): 16}


def test_many_lines_are_limited(bridged: Bridged, log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """Of all lines two hundred come at once, then ten a second; the number of the others is said at the end."""

    def from_line(number: int) -> None:
        log.handle(logging.makeLogRecord({"levelno": 30, "name": log.name, "pathname": "x.py", "lineno": number}))

    for number in range(300):
        from_line(number)
    assert len(bridged.records()) == 200
    bridged.now = 1.0
    for number in range(300, 5000):
        from_line(number)
    assert len(bridged.records()) == 10
    assert bridged.counted("tachograph.bridge.not_taken") == {("record", "logging"): 4790}
    caplog.clear()
    bridged.values.say_not_taken()
    assert caplog.messages == ["logging: not taken, as they came too fast: record: 4790"]


def test_records_that_wait_are_bounded(bridged: Bridged) -> None:
    """The newest 256 stay, the others are counted as dropped, and their numbers are missing."""
    for number in range(300):
        bridged.journal.record({"body": str(number)}, 1, finish=lambda said: said)
    events = bridged.journal.drain_records()
    assert [event.attributes["body"] for event in events] == [str(number) for number in range(44, 300)]
    assert (events[0].seq, events[-1].seq) == (45, 300)
    assert bridged.counted("tachograph.dropped") == {("journal", "queue_full"): 44}


def test_our_own_log_is_left_out(bridged: Bridged, log: logging.Logger) -> None:
    """Neither our loggers nor our threads are recorded: a failing delivery would go round and round."""
    logging.getLogger("tachograph").warning("ours")
    logging.getLogger("tachograph.hub").warning("ours")
    logging.getLogger("tachographer").warning("theirs")
    thread = threading.Thread(target=log.warning, args=("of a thread of ours",), name="tachograph timer")
    thread.start()
    thread.join()
    assert bridged.bodies() == ["theirs"]


def test_two_threads_log_at_once(bridged: Bridged, log: logging.Logger) -> None:
    """Every record is taken or counted."""

    def many() -> None:
        for _ in range(500):
            log.warning("again")

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = len(bridged.records())
    assert 10 <= taken <= 13
    assert bridged.counted("tachograph.bridge.not_taken") == {("record", "logging"): 2000 - taken}


class Intercepting(logging.Handler):
    """The handler of loguru's documentation: it looks for the caller by walking up, past the file of logging."""

    callers: list[str]

    def emit(self, _record: logging.LogRecord) -> None:
        """Find the caller."""
        frame: Any = inspect.currentframe()
        depth = 0
        while frame and (depth == 0 or frame.f_code.co_filename == logging.__file__):
            frame, depth = frame.f_back, depth + 1
        self.callers.append(frame.f_code.co_name)


def test_handlers_that_look_for_the_caller_find_it(bridged: Bridged, log: logging.Logger) -> None:
    """No frame of ours is between the program's call and its handler, as far as a walk up the stack tells."""
    handler = Intercepting()
    handler.callers = []
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG)
    log.debug("fine")
    log.warning("not so fine")
    assert handler.callers == ["test_handlers_that_look_for_the_caller_find_it"] * 2
    assert bridged.bodies() == ["not so fine"]
