"""A progress bar on the terminal, drawn by tqdm; imported only where there is a terminal."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Protocol

_WIDTH, _HEIGHT = 80, 24
SHORTEST = 0.1  # seconds between two drawings


class Bar(Protocol):
    """What is drawn."""

    def draw(self, done: int) -> None:
        """Show how many items are done."""

    def close(self, done: int) -> None:
        """Show it for the last time."""


def on_terminal() -> bool:
    """Tell whether somebody sees the bar: stderr is a terminal, and of a node's ranks this is the first."""
    if os.environ.get("LOCAL_RANK", "0").strip() not in {"", "0"}:
        return False
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, as under pythonw; or closed
        return False


class TerminalBar:
    """A bar of tqdm's.

    Args:
        title: stands before it.
        total: items; None where nobody knows.
        stays: whether it is left on the terminal in the end.
        file: where it is drawn; by default stderr.

    Raises:
        ImportError: tqdm is not installed.
    """

    def __init__(self, title: str, total: int | None, *, stays: bool = True, file: Any = None) -> None:
        width: dict[str, Any] = {"dynamic_ncols": True} if _has_width(file) else {"ncols": _WIDTH, "nrows": _HEIGHT}
        self._bar = _tqdm()(total=total, desc=title, leave=stays, file=file, mininterval=SHORTEST, miniters=1, **width)

    def draw(self, done: int) -> None:
        """Show how many items are done."""
        self._bar.update(done - self._bar.n)

    def close(self, done: int) -> None:
        """Show it for the last time."""
        self.draw(done)
        self._bar.close()


def _has_width(file: Any) -> bool:
    """Tell whether a terminal knows how wide it is: many that programs make say 0, and tqdm then draws nothing."""
    try:
        return os.get_terminal_size((file or sys.stderr).fileno()).columns > 0
    except (OSError, ValueError, AttributeError):
        return False


_classes: list[Any] = []


def _tqdm() -> Any:
    if not _classes:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

        class Tqdm(tqdm):  # type: ignore[type-arg,misc,unused-ignore]
            """Without the thread that watches slow bars, and without a lock that other processes share."""

            monitor_interval = 0

        Tqdm.set_lock(threading.RLock())
        _classes.append(Tqdm)
    return _classes[0]
