"""Threads that do one job after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tachograph.exporters.influxdb._losses import CLIENT, NAME, Losses

_AFTER_A_BUG = 1.0

_log = logging.getLogger("tachograph")

Job = Callable[[], None]


class Crew:
    """Daemon threads, begun anew where they are gone.

    Args:
        size: how many.
        prepare: called by each thread first.
        wait: waits for a job and returns it; None at the end.
        losses: is told what went wrong.
    """

    def __init__(self, size: int, prepare: Callable[[], None], wait: Callable[[], Job | None], losses: Losses) -> None:
        self._size, self._prepare, self._wait, self._losses = size, prepare, wait, losses
        self._threads: list[threading.Thread] = []
        self._prepared = False

    def start(self) -> bool:
        """Begin, and tell whether there is a thread: none starts while the interpreter shuts down."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while len(self._threads) < self._size:
            thread = threading.Thread(target=self._work, name=f"tachograph {NAME}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # since CPython 3.12
                break
            self._threads.append(thread)
        return bool(self._threads)

    def forget(self) -> None:
        """Have no threads: those of the parent process are none of this one's."""
        self._threads = []
        self._prepared = False

    def is_preparing(self) -> bool:
        """Tell whether none of the threads is prepared yet."""
        return not self._prepared and any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - a broken installation shall cost the program nothing
            self._losses.blame(CLIENT, str(error))
        self._prepared = True
        while (job := self._wait()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001, PERF203 - the thread shall live on
                self._losses.blame("bug", f"a bug in tachograph: {type(error).__name__}: {error}")
                _log.debug(NAME, exc_info=True)
                time.sleep(_AFTER_A_BUG)
