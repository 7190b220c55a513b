"""Tokens that the program logs by ``log({"tokens": n})``: a sum that the anatomy of steps reads on its timer.

The door sums them up, and the room ``diagnosis`` shows them; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable

TOKENS = "tokens"  # the key, without a group


class LoggedTokens:
    """The tokens of this process."""

    def __init__(self) -> None:
        self._sum: Callable[[], int | None] | None = None

    def summed_by(self, total: Callable[[], int | None]) -> None:
        """Have ``total`` called for the sum so far; it returns None before the first one was logged."""
        self._sum = total

    def total(self) -> int | None:
        """Return the sum so far; None where none was logged."""
        return None if self._sum is None else self._sum()


logged_tokens = LoggedTokens()
