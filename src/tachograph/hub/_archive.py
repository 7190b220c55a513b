"""The hub's memory on its way into the store: states, samples and processes, in slices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from tachograph.hub._history import changes
from tachograph.hub._index import Index
from tachograph.hub._run import LiveRun
from tachograph.hub._series import HubSeries
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry
from tachograph.runs import StoreError

_SLICE = 100  # series in one transaction, and read while the lock is held

_log = logging.getLogger("tachograph")


class Archive:
    """Saves the hub's memory in the store. Call it from one thread at a time.

    Args:
        index: the hub's memory.
        lock: held while that changes; taken for slices.
        registry: where errors are counted (``store``).

    Attributes:
        deleted: files that were deleted while the hub was writing them.
    """

    def __init__(self, index: Index, lock: threading.Lock, registry: Registry) -> None:
        self._index = index
        self._lock = lock
        self._registry = registry
        self._log_once = LogOnce()
        self.deleted: dict[str, None] = {}

    def save(self, *, everything: bool, at_the_end: bool = False) -> None:
        """Save the changes.

        Args:
            everything: all changes; else only states that a sender will not send again.
            at_the_end: sample all series that have changed since their last sample.
        """
        with self._lock:
            known = list(self._index.series)
            changed = (
                series
                for series in known
                if (series.unsaved and (everything or series.restarted)) or (at_the_end and series.unsampled)
            )
            by_run = _by_run(series for series in changed if series.owner.run.store)
            runs = self._index.stored() if everything else [run for run, _ in by_run.values()]
        for run in runs:  # one after the other, as only so many files are open at once
            if everything:
                self._save_processes(run)
                self.guarded(run.save_launch)
            left = iter(by_run.get(run.name, (run, []))[1])
            while part := list(islice(left, _SLICE)):
                with self._lock:
                    found = changes(part, at_the_end=at_the_end)
                self.guarded(lambda run=run, found=found: run.history.save(found))  # type: ignore[misc]

    def _save_processes(self, run: LiveRun) -> None:
        with self._lock:
            found = []
            for process in run.processes.values():
                starts = [each for each in process.incarnations.values() if each.unsaved]
                if starts or process.unsaved:
                    found.append((process, starts))
                    process.unsaved = False
                    for each in starts:
                        each.unsaved = False
        history = run.history
        if found and history is not None:
            self.guarded(lambda: history.save_processes(found))

    def restart_deleted(self) -> None:
        """Store runs whose file was deleted in new files; what comes from now on is in them."""
        for run in self._index.stored():
            store = run.store
            if store is None or not store.is_deleted():
                continue
            _log.warning("the file %s was deleted while the hub was writing it; continuing in a new file", store.path)
            self.deleted[str(store.path)] = None
            run.close()  # first: SQLite deletes the log next to the path when the last connection is closed
            with self._lock:
                self._index.restart(run)

    def guarded(self, work: Callable[[], Any]) -> None:
        """Call ``work`` on a store; its errors are counted, and logged once."""
        try:
            work()
        except StoreError as error:
            self._registry.count_error("store")
            self._log_once(
                "store",
                "the hub cannot write to its store (further warnings are suppressed; see tachograph_errors_total "
                "on /metrics): %s",
                error,
            )


def _by_run(found: Iterable[HubSeries]) -> dict[str, tuple[LiveRun, list[HubSeries]]]:
    by_run: dict[str, tuple[LiveRun, list[HubSeries]]] = {}
    for series in found:
        run: LiveRun = series.owner.run
        by_run.setdefault(run.name, (run, []))[1].append(series)
    return by_run
