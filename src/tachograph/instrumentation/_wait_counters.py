"""WaitCounters: how long torch itself waits, where it counts that from Python.

torch's modules have imported the class before anybody could replace it, so its two methods are wrapped instead: a
counter is made and entered through them wherever it is used.
"""

from __future__ import annotations

import logging
import time
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from tachograph.monitor.wait_counter import waited
from tachograph.recording import registry
from tachograph.recording.registry import Registry

_log = logging.getLogger("tachograph")


class WaitCounters:
    """Measures every ``torch.monitor._WaitCounter`` that is made from now on; see :func:`~.wait_counter.waited`.

    Args:
        monitor: the module ``torch.monitor``.
        into: where it is recorded.
    """

    def __init__(self, monitor: ModuleType | Any, into: Registry = registry.default) -> None:
        self._class: Any = getattr(monitor, "_WaitCounter", None)
        self._keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        if self._class is None:
            _log.warning("this torch has no WaitCounters: nothing is measured")
            return
        self._init = init = self._class.__dict__["__init__"]
        self._guard = guard = self._class.__dict__["guard"]
        keys = self._keys

        @wraps(init)
        def remembering(counter: Any, key: str) -> None:
            init(counter, key)
            keys[counter] = key

        @wraps(guard)
        def measuring(counter: Any) -> Any:
            key = keys.get(counter)
            tracker = guard(counter)
            return tracker if key is None else _Wait(key, tracker, into)

        self._class.__init__ = remembering
        self._class.guard = measuring

    def close(self) -> None:
        """Leave the class as it was."""
        if self._class is not None:
            self._class.__init__ = self._init
            self._class.guard = self._guard
            self._class = None


class _Wait:
    """torch's own context manager, and a clock."""

    __slots__ = ("_into", "_key", "_since", "_tracker")

    def __init__(self, key: str, tracker: Any, into: Registry) -> None:
        self._key, self._into = key, into
        self._tracker = tracker
        self._since: float | None = None

    def __enter__(self) -> Any:
        entered = self._tracker.__enter__()
        self._since = time.perf_counter()
        return entered

    def __exit__(self, *error: object) -> Any:
        since, self._since = self._since, None
        if since is not None:
            try:
                waited(self._key, time.perf_counter() - since, self._into)
            except Exception:  # noqa: BLE001 - the border to torch's own code
                self._into.count_error("torch.wait.duration")
        return self._tracker.__exit__(*error)
