"""Our log: one line a message, also with names of the program's in it, and one message for trouble that repeats."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST = 1000  # things that one log remembers


class OneLine(logging.Filter):
    """A filter that escapes line ends and other control characters: a name with them would forge a line of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: every record is logged."""
        message = record.getMessage()
        if _CONTROL.search(message):
            record.msg, record.args = _CONTROL.sub(_escaped, message), ()
        return True


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


log = logging.getLogger("tachograph")
log.addFilter(OneLine())


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
