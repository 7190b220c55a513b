"""A token, and texts that must not show it."""

from __future__ import annotations

import base64
import re
from urllib.parse import quote

_LONG = 8  # no word of a message is a token of so many characters; a shorter one may be part of a word


def basic(token: str) -> str:
    """Return the header for a user and a password."""
    return f"Basic {base64.b64encode(token.encode()).decode()}"


class Secret:
    """Takes a token out of texts.

    Args:
        token: what must not be shown, and the password alone where it is a user and a password; empty for nothing.
    """

    def __init__(self, token: str) -> None:
        spelled = {basic(token).removeprefix("Basic ")} if token else set()
        for part in {token, token.partition(":")[2]} - {""}:
            spelled |= {part, quote(part, safe=""), repr(part)[1:-1], repr(part.encode("latin-1", "replace"))[2:-1]}
        longest_first = sorted(spelled, key=len, reverse=True)
        self._found = re.compile("|".join(map(_pattern, longest_first))) if spelled else None

    def hidden(self, text: str) -> str:
        """Return a text without the token, however an exception or an answer spells it."""
        return text if self._found is None else self._found.sub("…", text)


def _pattern(spelling: str) -> str:
    pattern = re.escape(spelling)
    return pattern if len(spelling) >= _LONG else rf"(?<![^\W_]){pattern}(?![^\W_])"
