"""What an API request asks for: its path and its query, with bounds."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from math import isfinite
from typing import Any
from urllib.parse import parse_qs, unquote

from tachograph.studio._answer import Refused

MOST_PARTS = 2000  # of a query


class Question:
    """A request, parsed.

    Args:
        scope: of ASGI.

    Attributes:
        path: the parts of the path behind ``/api``, decoded: a part may hold a slash.

    Raises:
        Refused: the query has too many parts.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        raw = scope.get("raw_path") or scope["path"].encode()
        self.path = [unquote(part) for part in raw.decode("latin-1").partition("?")[0].split("/")[2:]]
        try:
            query = scope.get("query_string", b"").decode("latin-1")
            self._query = parse_qs(query, keep_blank_values=True, max_num_fields=MOST_PARTS)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, f"a query has at most {MOST_PARTS} parts") from None

    def text(self, name: str) -> str | None:
        """Return what the query says of a name; None where it says nothing."""
        return next(iter(self._query.get(name, ())), None)

    def texts(self, name: str) -> list[str]:
        """Return everything that it says of a name."""
        return self._query.get(name, [])

    def number(self, name: str, default: float) -> float:
        """Return a finite number; ``default`` where the query has none.

        Raises:
            Refused: it is no number.
        """
        given = self.text(name)
        try:
            found = float(given) if given else default
        except ValueError:
            found = float("nan")
        if given and not isfinite(found):
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is a finite number, not {given!r:.100}")
        return found

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a whole number within bounds.

        Raises:
            Refused: it is none.
        """
        given = self.text(name)
        return default if not given else _whole(name, given, least, most)

    def rank(self) -> int | None:
        """Return the rank that is asked for; None for all.

        Raises:
            Refused: it is no number.
        """
        given = self.text("rank")
        return None if not given else _whole("rank", given, 0, 2**63 - 1)

    def wholes(self, name: str, *, most: int) -> list[int]:
        """Return whole numbers, each once.

        Raises:
            Refused: one is none, or there are more than ``most``.
        """
        found = list(dict.fromkeys(_whole(name, given, 0, 2**63 - 1) for given in self.texts(name)))
        if len(found) > most:
            raise Refused(HTTPStatus.BAD_REQUEST, f"at most {most} {name} at once, not {len(found)}")
        return found


def _whole(name: str, given: str, least: int, most: int) -> int:
    if given.isascii() and given.isdecimal() and len(given) < 20 and least <= int(given) <= most:  # noqa: PLR2004
        return int(given)
    raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is a whole number from {least} to {most}, not {given!r:.100}")
