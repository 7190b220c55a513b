"""The bridge from logging: warnings and worse as log records, bounded, without secrets, and nothing of ours to see."""

from __future__ import annotations

import inspect
import io
import logging
import queue
import threading
from collections.abc import Iterator
from logging.handlers import BufferingHandler, QueueHandler
from pathlib import Path
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


class Private:
    """A logger of a library, whose records go where its handlers say."""

    def __init__(self, *handlers: logging.Handler, propagate: bool) -> None:
        self.logger = logging.getLogger("of.a.library")
        self.logger.handlers[:] = handlers
        self.logger.propagate = propagate

    def __enter__(self) -> logging.Logger:
        return self.logger

    def __exit__(self, *_: object) -> None:
        for handler in self.logger.handlers:
            handler.close()
        self.logger.handlers.clear()
        self.logger.propagate = True


def test_records_that_the_program_does_not_show_are_left_out(bridged: Bridged, tmp_path: Path) -> None:
    """A library that logs for itself alone: nowhere, into a file of its own, or below the level of each handler."""
    with Private(logging.NullHandler(), propagate=False) as log:
        log.error("nowhere")
    with Private(logging.NullHandler(), logging.FileHandler(tmp_path / "debug.log"), propagate=False) as log:
        log.error("into a file of its own")
    with Private(logging.StreamHandler(io.StringIO()), propagate=False) as log:
        log.handlers[0].setLevel(logging.ERROR)
        log.warning("too unimportant")
        log.error("shown")
    with Private(logging.FileHandler(tmp_path / "train.log"), propagate=True) as log:
        log.error("into the file of the program")
    with Private(logging.NullHandler(), propagate=True) as log:
        log.error("by the handlers of the root logger")  # pytest has one
    assert bridged.bodies() == ["shown", "into the file of the program", "by the handlers of the root logger"]


def test_the_last_resort_shows_records_that_have_no_handler(
    bridged: Bridged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program without any set-up of logging sees warnings on stderr, and they are recorded."""
    with Private(propagate=False) as log:
        log.warning("on stderr")
        monkeypatch.setattr(logging, "lastResort", None)
        log.warning("nowhere")
    assert bridged.bodies() == ["on stderr"]
    assert "on stderr" in capsys.readouterr().err


class Counted:
    """An object that counts how often its text is made."""

    def __init__(self) -> None:
        self.calls = 0

    def __str__(self) -> str:
        self.calls += 1
        return f"text {self.calls}"


@pytest.mark.parametrize("handler", [logging.StreamHandler(io.StringIO()), QueueHandler(queue.SimpleQueue())])
def test_the_text_of_an_argument_is_made_once(bridged: Bridged, handler: logging.Handler) -> None:
    """Recording a message runs no code of the program again: the record has the text that the handler wrote."""
    argument = Counted()
    with Private(handler, propagate=False) as log:
        log.warning("loss %s", argument)
    assert bridged.bodies() == ["loss text 1"]
    assert argument.calls == 1


def test_the_message_of_a_data_loaders_worker_comes_first(bridged: Bridged, log: logging.Logger) -> None:
    """The message of an exception that holds a traceback begins with the exception at its end."""
    calls = '  File "a.py", line 1, in f\n' * 1000
    head = "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):"
    text = f"{head}\n{calls}KeyError: 7"
    log.warning("z", exc_info=KeyError(type("Shown", (str,), {"__repr__": str.__str__})(text)))
    (failed,) = bridged.records()
    assert failed["exception.message"].startswith("7\nCaught KeyError in DataLoader worker process 0.\n")


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
    log.handlers[:] = [BufferingHandler(100)]  # which makes no text
    log.error("number %d", "x")
    log.error(Hostile())
    log.error("%s", Hostile())
    log.error("failed", exc_info=ArithmeticError(Hostile()))
    log.handle(logging.makeLogRecord({"levelno": 40, "levelname": None, "msg": "made", "lineno": None}))
    assert bridged.bodies() == [
        "number %d",
        "(the text of this Hostile cannot be read)",
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
    assert caplog.messages == ["logging: not recorded because they were logged too fast: record: 4790"]


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
