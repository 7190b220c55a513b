"""Values and events recorded after the last export of the process: they are counted, and said on stderr.

Exit handlers that were registered before ``import tachograph`` come after ours, as CPython calls the last one first.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tachograph.exporters.standard_streams import Unfailing
from tachograph.recording.accumulators import LastValue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tachograph.recording.accumulators import Accumulator
    from tachograph.recording.journal import Journal
    from tachograph.recording.registry import Registry

_PATIENCE = 0.1


class Unheard:
    """A count of everything recorded since this was made, said once the program's last exit handler has run.

    As nothing is called then, it waits in ``sys.__interactivehook__``, which is of use only when a process begins, and
    speaks when that goes: CPython empties it first of all, with every module still there (``finalize_modules`` in
    Python/pylifecycle.c). No other thread runs by then, and may have left any lock held: nothing here takes one.

    Args:
        registry: where values are recorded; None where nothing would have delivered them.
        journal: where events wait; None where nothing would have.
    """

    def __init__(self, registry: Registry | None, journal: Journal | None) -> None:
        self._registry, self._journal = registry, journal
        self._process, self._write = os.getpid(), Unfailing(2, patience=_PATIENCE).write
        self._waited = 0 if journal is None else len(journal)
        self._marks = {id(series): _mark(series) for series in self._series()}
        sys.__interactivehook__ = self

    def _series(self) -> Iterator[Accumulator]:
        return iter(()) if self._registry is None else self._registry.series()

    def __call__(self) -> None:
        """Do nothing: no interactive session begins any more."""

    def counted(self) -> tuple[int, int]:
        """Return how many values and events came, of those that an export would have shown: of a gauge the last one."""
        values = 0
        for series in self._series():
            before, now = self._marks.get(id(series)), _mark(series)
            if isinstance(series, LastValue):
                values += now is not before
            elif isinstance(now, int):
                values += now - (before if isinstance(before, int) else 0)
        return values, 0 if self._journal is None else max(len(self._journal) - self._waited, 0)

    def __del__(self) -> None:
        """Say it."""
        try:
            values, events = self.counted() if os.getpid() == self._process else (0, 0)
            lost = " and ".join([_counted(n, what) for n, what in ((values, "value"), (events, "event")) if n])
            if lost and sys.__stderr__ is not None and sys.__stderr__.fileno() == 2:  # noqa: PLR2004 - else it is a file's
                self._write(
                    f"tachograph: {lost} recorded after the last export are lost, of daemon threads or exit handlers "
                    "that were registered before 'import tachograph': these run after it, so import it first\n".encode()
                )
        except Exception:  # noqa: BLE001, S110 - another reference has kept it, and modules are gone by now
            pass


def _mark(series: Accumulator) -> object:
    if isinstance(series, LastValue):
        series.fold()
        return series.value()
    return series.recorded()


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
