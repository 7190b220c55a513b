"""The bridge from ``logging``: warnings and worse, as log records with the rank and the trace that they belong to.

A handler of ours on the root logger would make the program's ``basicConfig()`` do nothing, so ``Logger.callHandlers``
is patched: it gets each record that the program's own levels and filters have let pass, once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from logging import WARNING, FileHandler, Handler, Logger, LogRecord, NullHandler

from tachograph.identity.masking import masked_message, masked_text, shortened
from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._values import BridgedValues
from tachograph.profiling.probe import error_type
from tachograph.recording.interrupts import pass_on
from tachograph.recording.points import AttributeValue
from tachograph.recording.switch import switch
from tachograph.recording.trace_context import current_span

_LIBRARY = "logging"
_OURS = "tachograph"  # our own logger, and the beginning of the names of our threads
_MOST = 4096  # characters of a message
_MOST_STACK = 16_384  # characters of a stack
_READ = 32_768  # characters of either that are masked
_FRAMES = 50  # of a traceback, the innermost ones
_OF_A_LINE = (10, 0.1)  # records at once, and more a second
_OF_ALL = (200, 10.0)
_LINES = 1000
_MOST_SEVERE = 24  # FATAL4


class _Allowance:
    """A number of records that may come at once, and grows with time (a token bucket).

    Args:
        at_once: the most.
        each_second: its growth.
        now: seconds, monotonic.

    Attributes:
        left_out: records that came beyond it, since the last one within it.
    """

    __slots__ = ("_at_once", "_each_second", "_left", "_since", "left_out")

    def __init__(self, at_once: int, each_second: float, now: float) -> None:
        self._at_once, self._each_second = at_once, each_second
        self._left, self._since = float(at_once), now
        self.left_out = 0

    def use(self, now: float) -> bool:
        """Use it up by one; False where nothing is left. Two threads may use the same one, as nothing is locked."""
        self._left = min(self._at_once, self._left + (now - self._since) * self._each_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RecordNotes:
    """The notes of ``logging.Logger``.

    Args:
        values: says where records go, and counts those that come too fast.
        clock: seconds, monotonic.
    """

    def __init__(self, values: BridgedValues, clock: Callable[[], float] = time.monotonic) -> None:
        self._values, self._journal, self._clock = values, values.recording.journal, clock
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._all = _Allowance(*_OF_ALL, self._clock())
        self._lines: dict[tuple[str, int], _Allowance] = {}
        self._busy: set[int] = set()

    def close(self) -> None:
        """Do nothing: the notes hold nothing of the program."""

    def call_handlers(self, logger: Logger, record: LogRecord) -> None:
        """Take a record that a handler of the program has shown."""
        if record.levelno < WARNING or not switch.on or _is_ours(record) or not _is_shown(logger, record):
            return
        if self._pid != os.getpid():  # a forked child counts anew
            self._begin()
        thread = threading.get_ident()
        if thread in self._busy:  # an object in the record logs while its text is made
            return
        try:
            self._busy.add(thread)
            self._take(record)
        finally:
            self._busy.discard(thread)

    def _take(self, record: LogRecord) -> None:
        now = self._clock()
        of_line = self._line(record, now)
        if not of_line.use(now) or not self._all.use(now):
            of_line.left_out += 1
            self._values.not_taken(_LIBRARY, "record")
            return
        said = _attributes(record)
        left_out, of_line.left_out = of_line.left_out, 0
        if left_out:
            said["tachograph.log.left_out"] = left_out
        trace_id, span_id, flags = current_span()
        at = int(record.created * 1e9)
        self._journal.record(said, at, finish=_masked, trace_id=trace_id, span_id=span_id, trace_flags=flags)

    def _line(self, record: LogRecord, now: float) -> _Allowance:
        key = (record.pathname, record.lineno)
        if key not in self._lines and len(self._lines) >= _LINES:
            key = ("", 0)  # lines beyond so many have one together
        found = self._lines.get(key)
        if found is None:
            found = self._lines.setdefault(key, _Allowance(*_OF_A_LINE, now))
        return found


def _is_ours(record: LogRecord) -> bool:
    """Tell whether a record is of our logger or of one of our threads: it would follow itself round and round."""
    name, thread = str(record.name), str(record.threadName)
    return name == _OURS or name.startswith(f"{_OURS}.") or thread.startswith(f"{_OURS} ")


def _is_shown(logger: Logger, record: LogRecord) -> bool:
    """Tell whether a handler shows a record, by the rule of ``Logger.callHandlers``.

    Some libraries log for themselves alone: into a ``NullHandler``, or into a file of their own behind a logger that
    does not propagate, as Weights & Biases does.
    """
    has_handlers = False
    current: Logger | None = logger
    while current is not None:
        hidden: tuple[type[Handler], ...] = (NullHandler,) if current.propagate else (NullHandler, FileHandler)
        for handler in current.handlers:
            has_handlers = True
            if record.levelno >= handler.level and not isinstance(handler, hidden):
                return True
        current = current.parent if current.propagate else None
    last_resort = logging.lastResort
    return not has_handlers and last_resort is not None and record.levelno >= last_resort.level


def _attributes(record: LogRecord) -> dict[str, AttributeValue]:
    """Return a record's fields.

    Source: OpenTelemetry specification, "Logs Data Model"; semantic conventions, "Exceptions in logs" and "Code".
    """
    said: dict[str, AttributeValue] = {
        "severity_number": min(13 + (record.levelno - WARNING) // 10 * 4 + min(record.levelno % 10, 3), _MOST_SEVERE),
        "severity_text": str(record.levelname),
        "body": _message(record)[:_READ],
        "otel.scope.name": str(record.name),
        "code.file.path": str(record.pathname),
        "code.function.name": record.funcName or "",
        "code.line.number": record.lineno or 0,
    }
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        told = record.exc_text or "".join(traceback.format_exception(error, limit=-_FRAMES))  # a handler may have it
        said["exception.type"] = error_type(error)
        said["exception.message"] = shortened(_text(error), _READ)
        said["exception.stacktrace"] = told[-_READ:]
    return said


def _message(record: LogRecord) -> str:
    formatted = record.__dict__.get("message")  # by the formatter of a handler: the arguments' code runs once
    if isinstance(formatted, str):
        return formatted
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - arguments that do not fit: logging's handlers have said so
        pass_on(error)
        return _text(record.msg)


def _text(of: object) -> str:
    try:
        return str(of)
    except Exception as error:  # noqa: BLE001 - the border to the program's __str__
        pass_on(error)
        return f"(the text of this {type(of).__name__} cannot be read)"


def _masked(said: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
    """Return a record's fields without the secrets in its texts; of a long one the beginning, of a stack the end."""
    found = dict(said)
    body = masked_text(str(said["body"]))
    found["body"] = body if len(body) <= _MOST else f"{body[: _MOST - 1]}…"
    if "exception.message" in said:
        message, kind = str(said["exception.message"]), str(said["exception.type"])
        found["exception.message"] = masked_message(message, _MOST, kind)
        stack = masked_text(str(said["exception.stacktrace"]))
        found["exception.stacktrace"] = stack if len(stack) <= _MOST_STACK else f"…{stack[1 - _MOST_STACK :]}"
    return found


class LoggingInstrumentor(BridgeInstrumentor):
    """Record warnings and errors of ``logging`` as OpenTelemetry log records.

    Each record has its logger, line, exception and current span; secrets in texts are masked. Records go to Tachograph
    hubs, to the logger provider that you pass, and to destinations for which you ask for logs by name
    (OTEL_LOGS_EXPORTER, ``start(logs=…)``). Of one line of the program the first ten records are sent, then one every
    ten seconds; of all lines the first two hundred, then ten per second. The others are counted, and the next record of
    the same line has their number.
    """

    library = _LIBRARY

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: it is Python's own."""
        return ()

    def notes(self, values: BridgedValues) -> RecordNotes:  # noqa: D102 - as the base class says
        return RecordNotes(values)
