"""Lines of our log: one a message, whatever names and values of the program's are in it."""

from __future__ import annotations

import logging
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class OneLine(logging.Filter):
    """Escapes line ends and other control characters: a name that has them would forge a line of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: every record is logged."""
        message = record.getMessage()
        if _CONTROL.search(message):
            record.msg, record.args = _CONTROL.sub(_escaped, message), ()
        return True


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
