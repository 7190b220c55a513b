"""Wait counters: the time that a program waits, by reason."""

from __future__ import annotations

import time
from types import TracebackType

from tachograph.recording import registry
from tachograph.recording.own_metrics import TORCH_MONITOR, WAIT_DURATION
from tachograph.recording.registry import Registry


class _WaitCounterTracker:
    """A context manager that measures one wait."""

    __slots__ = ("_key", "_since")

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        waited(self._key, time.perf_counter() - self._since)


class _WaitCounter:
    """Measure how long the program waits for one reason, as the histogram ``torch.wait.duration`` in seconds.

    Args:
        key: the reason; the histogram's attribute ``name``.
    """

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        if not isinstance(key, str):
            raise TypeError(f"the key of a _WaitCounter must be a string, not {type(key).__name__}: {key!r:.100}")
        self._key = key

    def guard(self) -> _WaitCounterTracker:
        """Return a context manager that measures its block as one wait."""
        return _WaitCounterTracker(self._key)


def waited(key: str, seconds: float, into: Registry = registry.default) -> None:
    """Record one wait of the program."""
    group = into.group(TORCH_MONITOR)
    group.own(WAIT_DURATION).record(seconds, {"name": key})
