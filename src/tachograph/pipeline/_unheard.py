"""Values and events that no export has: those of a helper, those of a program that never began one, and the last ones.

They are counted, and said in a line. Exit handlers that were registered before ``import tachograph`` come after ours:
CPython calls the last one first: what these record is said on stderr when the process is almost gone.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.process import parent_process
from typing import TYPE_CHECKING

from tachograph.exporters.standard_streams import Unfailing
from tachograph.identity.program import note_helper, program_name
from tachograph.identity.rank import is_helper
from tachograph.logger.point import EVENT_NAME
from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording.accumulators import LastValue
from tachograph.recording.holders import no_rest
from tachograph.recording.log import log
from tachograph.recording.logged_points import values_of
from tachograph.recording.packed_points import LEFT_OUT
from tachograph.recording.switch import switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
                message = (
                    f"tachograph: lost {lost} recorded after the final export, by a daemon thread or an exit handler "
                    "registered before 'import tachograph'. Import tachograph before registering exit handlers.\n"
                )
                self._write(message.encode())
        except Exception:  # noqa: BLE001, S110 - another reference has kept it, and modules are gone by now
            pass


def _mark(series: Accumulator) -> object:
    if isinstance(series, LastValue):
        series.fold()
        return series.value()
    return series.recorded()


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def count_helper(
    registry: Registry = registries.default,
    journal: Journal = journals.default,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Count the values and log records of a helper, which nothing delivers; say so once a job: the process ends."""
    values, records = _waiting_values(registry, journal), len(journal.records)
    if not values + records:
        return
    registry.count_dropped("helper", "registry", values + records)
    told = [_counted(count, what) for count, what in ((values, "value"), (records, "log record")) if count]
    if note_helper(environ, values + records):
        log.warning(
            "%s recorded in a helper process (%s, pid %d), such as a data loader worker, and dropped. Set "
            "TACHOGRAPH_HELPERS=true to export from helper processes "
            "(further warnings are suppressed; see tachograph_dropped_total on /metrics)",
            f"{' and '.join(told)} {'was' if values + records == 1 else 'were'}",
            program_name(),
            os.getpid(),
        )


def say_undelivered(
    registry: Registry = registries.default,
    journal: Journal = journals.default,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Say how many values went nowhere, as the program has never asked for their delivery: the process ends.

    Not where anything has taken them: a handler of :func:`tachograph.configure`, or a collector that has read them. A
    child of multiprocessing leaves it to its parent, so that not each worker says it.
    """
    if not registry.enabled or registry.collected or not switch.on:
        return
    if is_helper(environ, os.getpid()):
        count_helper(registry, journal, environ)
        return
    elastic = sys.modules.get("tachograph.elastic")
    if (elastic is not None and elastic.has_handler()) or parent_process() is not None:
        return
    values = _waiting_values(registry, journal)
    if values:
        log.warning(
            "%s recorded but never exported. Call tachograph.start(), or run the script with "
            "`tachograph run -- python ...`.",
            f"{_counted(values, 'value')} {'was' if values == 1 else 'were'}",
        )


def has_recorded(registry: Registry, journal: Journal, *, besides: int) -> bool:
    """Tell whether the program has recorded anything yet: nothing has been delivered so far.

    Args:
        registry: of its values.
        journal: of its events.
        besides: events of ours in it.
    """
    for holder in list(journal.holders):
        holder.hand_in(0.0, everything=True, pace=no_rest)
    if len(journal) > besides or journal.records or registry.points.waiting():
        return True
    return any(series.recorded() for series in registry.series() if not isinstance(series, LastValue))


def _waiting_values(registry: Registry, journal: Journal) -> int:
    """Return how many values the program has recorded that wait for delivery.

    Those of silenced groups are not meant to leave, and the durations of tasks are none that the program has recorded.
    """
    for holder in list(journal.holders):
        holder.hand_in(0.0, everything=True, pace=no_rest)
    values = sum(series.recorded() for series in registry.series(tasks=False) if not isinstance(series, LastValue))
    for _, found in registry.points.drain(everything=True):
        points = found.packed()
        if not registry.silenced(points.group):
            left_out = points.more.get(LEFT_OUT)
            values += sum(points.more["count"]) if "count" in points.more else points.size - sum(left_out or ())
    return values + sum(1 if event[0] == EVENT_NAME else values_of(event) for event in journal.waiting())
