"""Our log: one line a message, also with names of the program's in it, and one message for trouble that repeats.

Writing a message never raises into the program, no matter what its streams and handlers do.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Hashable

from tachograph.recording.interrupts import pass_on

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST = 1000  # things that one log remembers


class OneLine(logging.Filter):
    """A filter that makes a message one line that stderr can show, and names its source if no handler does.

    It escapes control characters, because a name with a line end would forge a line of the log, and all characters
    that stderr cannot encode: on a strict ASCII stream, logging would print its own traceback instead of the message.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: every record is logged."""
        try:
            message = record.getMessage()
        except Exception as error:  # noqa: BLE001 - the border to the program: the __str__ of its exceptions may raise
            pass_on(error)
            record.args = tuple(_readable(argument) for argument in record.args or ())
            message = record.getMessage()
        # On stderr, through logging.lastResort, nothing else names the logger.
        source = "" if log.hasHandlers() else "tachograph: "
        printable = source + _encodable(_CONTROL.sub(_escaped, message))
        if printable != message:
            record.msg = printable
            record.args = ()
        return True


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _readable(argument: object) -> object:
    """Return an argument of a message, or the name of its type if it has no text."""
    try:
        str(argument)
    except Exception as error:  # noqa: BLE001 - see OneLine.filter
        pass_on(error)
        return f"{type(argument).__name__} (its text cannot be read)"
    return argument


def _encodable(message: str) -> str:
    """Return a message as it is, or in ASCII if stderr would refuse one of its characters."""
    try:
        message.encode(sys.stderr.encoding, sys.stderr.errors or "strict")
    except UnicodeEncodeError:
        return message.encode("ascii", "backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - no stderr, or an object of the program that has no encoding
        pass_on(error)
    return message


def _handle(record: logging.LogRecord) -> None:
    """Pass a record to the handlers; an exception of theirs, or of their streams, ends here.

    ``logging`` catches most of these exceptions, but reports them on stderr: if that is closed, the report raises.
    """
    try:
        logging.Logger.handle(log, record)
    except Exception as error:  # noqa: BLE001 - the border to the program's handlers and streams
        pass_on(error)


log = logging.getLogger("tachograph")
log.addFilter(OneLine())
log.handle = _handle  # type: ignore[method-assign] # the program may have made this logger before us


def warn_deprecated(message: str) -> None:
    """Issue a ``FutureWarning`` for the caller's caller; raise it only where the program has asked for errors.

    ``warnings`` writes to stderr and lets most exceptions of the stream pass, such as the one of a closed stream.
    """
    try:
        warnings.warn(message, FutureWarning, stacklevel=3)
    except FutureWarning:  # python -W error
        raise
    except Exception as error:  # noqa: BLE001 - the border to the program's stderr and its warnings.showwarning
        pass_on(error)


class LogOnce:
    """A log for trouble that comes back: the first time of each kind is logged, while the caller counts every time."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[Hashable, object] = {}

    def __call__(
        self, kind: Hashable, message: str, *args: object, level: int = logging.WARNING, exc_info: object = None
    ) -> None:
        """Log a message unless its kind was logged before; two threads at once log it once.

        Args:
            kind: of trouble; beyond 1,000 of them, no further one is logged.
            message: as for :meth:`logging.Logger.log`, as all that follows.
            *args: for the message.
            level: of the record.
            exc_info: of the record.
        """
        mine = object()
        if len(self._said) < _MOST and self._said.setdefault(kind, mine) is mine:
            log.log(level, message, *args, exc_info=exc_info)  # type: ignore[arg-type] # as logging takes it
