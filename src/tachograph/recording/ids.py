"""Ids: the one source of the package's numbers and random ids.

Any thread may ask for one, also a signal handler in the middle of asking, and a forked child, which repeats none of its
parent's random ids. The random state of the program stays as it has seeded it: all bits are the operating system's.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable

from tachograph.recording.forking import at_fork

# One step of the interpreter where it has its lock; without it, two threads may get one number (before CPython 3.14).
_ONE_STEP: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
_DRAWN = struct.Struct("=256Q")  # words that are drawn from the operating system at once
_words: deque[int] = deque()


class _Lock:
    """The lock of all sequences where the interpreter has none: reentrant, since a signal handler may ask, too."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.held = threading.RLock()


_lock = _Lock()


class NumberSequence:
    """Whole numbers in ascending order, each given once.

    Attributes:
        next: returns the next one.
        take: returns the first of so many in a row.

    Args:
        first: the first one.
        locked: whether to hold a lock; by default where the interpreter does not.
    """

    __slots__ = ("next", "take")

    def __init__(self, first: int = 1, *, locked: bool = not _ONE_STEP) -> None:
        numbers = itertools.count(first)
        step = numbers.__next__

        def held_step() -> int:
            with _lock.held:
                return step()

        def take(many: int) -> int:
            return list(itertools.islice(numbers, many))[0]  # noqa: RUF015 - all of them are to be taken, in one step

        def held_take(many: int) -> int:
            with _lock.held:
                return take(many)

        self.next: Callable[[], int] = held_step if locked else step
        self.take: Callable[[int], int] = held_take if locked else take


def random_hex(size: int = 16) -> str:
    """Return ``size`` random bytes in hexadecimal: an id for the start of a process, a stream, a sender."""
    return os.urandom(size).hex()


def span_id() -> int:
    """Return 64 random bits, not all of them zero."""
    try:
        return _words.popleft() or span_id()
    except IndexError:  # one system call for many: it takes longer than all else of a span
        _words.extend(_DRAWN.unpack(os.urandom(_DRAWN.size)))
        return span_id()


def trace_id() -> int:
    """Return 128 random bits, none of their halves all zero."""
    return span_id() << 64 | span_id()


def _reset_in_child() -> None:
    _lock.reset()
    _words.clear()


at_fork("ids", in_child=_reset_in_child)
