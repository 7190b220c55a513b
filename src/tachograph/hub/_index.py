"""The index in memory: runs, their processes, instruments and series, as long as they live."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterable
from math import isfinite
from pathlib import Path

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tachograph.exporters.prometheus.text import label_value
from tachograph.hub._layouts import Layouts
from tachograph.hub._page import ByRank
from tachograph.hub._run import LiveRun, opened
from tachograph.hub._series import MOST_NAME, MOST_RESOURCE, HubInstrument, HubSeries, Labels, Limits, MemoryBudget
from tachograph.hub._stream_decoder import StreamDecoder, canonical, read_back
from tachograph.hub.processes import Incarnation, LiveProcess, LostProcess, StreamKey, free_instance, instance_of
from tachograph.identity.resource import SERIES_KEYS, series_labels
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import Kind, prometheus_label
from tachograph.recording.own_metrics import DROPPED, Reason
from tachograph.recording.points import Attributes, AttributeValue
from tachograph.runs.catalogue import left_behind
from tachograph.runs.file_system import warn_of_network
from tachograph.runs.members import INTERVALS, SECOND
from tachograph.runs.open_stores import OpenStores
from tachograph.runs.recorded import plain_attributes
from tachograph.runs.store import Store, StoreError, folder_of, make_folder

_DROPPED = DROPPED[:2]
_RESOURCES = 4096  # spellings of resources that are kept
_MOST_LOST = 1000
_MOST_NAMES = 1000
_MOST_DESCRIPTION = 4096  # characters that are kept
_SLICE = 500  # series that are looked at while the lock is held
_TRIES = 8  # files at a time
_ILLEGIBLE = (ValueError, TypeError, LookupError)

_log = logging.getLogger("tachograph")


class Index:
    """The series of all senders. Hold the hub's lock while you call a method, unless it takes the lock itself.

    Args:
        folder: the store.
        run: the run that is the hub's own, opened at once; None for a hub that has none.
        nameless: the run that senders belong to which name none.
        limits: of the memory that series take.
        time_to_live: nanoseconds that a series is kept after its last point.
        open_stores: bounds how many files are open at once.

    Attributes:
        instruments: by scope, name, unit and kind, in the order in which they came.
        series: all of them.
        dismissed: how many processes had to leave the page for new ones.
        own: the run of that name; None where there is none.
    """

    def __init__(
        self,
        folder: Path,
        run: str | None,
        *,
        nameless: str,
        limits: Limits,
        time_to_live: int,
        open_stores: OpenStores | None = None,
    ) -> None:
        warn_of_network(folder)
        self._folder = folder
        self._limits = limits
        self._budget = MemoryBudget(limits)
        self._full = 0
        self.dismissed = 0
        self._time_to_live = time_to_live
        self._open_stores = open_stores or OpenStores()
        self._nameless = nameless
        self._runs: dict[str, LiveRun] = {}
        self.names: dict[str, None] = {}
        self.own: LiveRun | None = None
        self._machine = LiveRun("", None)  # no run, and never stored: of a hub that has none of its own
        if run is None:
            make_folder(folder_of(folder))
        else:
            self.own = self._runs[run] = LiveRun(run, Store(folder, run, self._open_stores))
            self.names[run] = None
        self.instruments: dict[tuple[str, str, str, Kind], HubInstrument] = {}
        self.series: dict[HubSeries, None] = {}
        self.by_rank = ByRank()
        self._lost_before: list[LostProcess] = []
        self._log_once = LogOnce()
        self._losses: dict[HubSeries, None] = {}  # the counters of what processes have dropped
        self._dropped_before = 0
        self._senders: dict[bytes, tuple[LiveProcess, Incarnation]] = {}
        self._labels: dict[Labels, str] = {}

    def processes(self) -> list[LiveProcess]:
        """Return all processes."""
        return [process for run in (*self._runs.values(), self._machine) for process in run.processes.values()]

    def check(self, now: int, since: int) -> None:
        """Find processes that are lost, and runs that are over.

        Args:
            now: nanoseconds of the hub's clock.
            since: the time from which exports could arrive, the same.
        """
        for process in self.processes():
            process.check(now, since)
        for run in self._runs.values():
            run.check(now, since)

    def left_out(self, scraper: str | None, now: int, since: int) -> frozenset[LiveRun]:
        """Return the runs that are not on the page: all but the hub's own one; where there is none, those not live.

        Args:
            scraper: names it; see :meth:`LiveRun.is_shown`.
            now: nanoseconds of the hub's clock.
            since: the time from which exports could arrive, the same.
        """
        if self.own is not None:
            return frozenset(run for run in self._runs.values() if run is not self.own)
        for run in self._runs.values():
            run.check(now, since)
        return frozenset(run for run in self._runs.values() if not run.is_shown(scraper, now))

    def stored(self) -> list[LiveRun]:
        """Return the runs that have a file."""
        return [run for run in list(self._runs.values()) if run.store is not None]

    def run(self, name: str) -> LiveRun:
        """Return a run, opened where it was not."""
        found = self._runs.get(name)
        if found is None:
            found = self._runs[name] = opened(self._folder, name, self._open_stores)
            if len(self.names) < _MOST_NAMES:
                self.names[name] = None
        return found

    def restart(self, run: LiveRun) -> None:
        """Forget what is known of a run, as its file was deleted, and begin it anew in another file."""
        processes = list(run.processes.values())
        self._remove(
            [series for process in processes for stream in process.streams.values() for series in stream.series()]
        )
        for process in processes:
            self._dismiss(process)
        again = self._runs[run.name] = opened(self._folder, run.name, self._open_stores)
        again.launch = run.launch
        again.launch_unsaved = run.launch is not None
        if run is self.own:
            self.own = again

    def open_missing(self, lock: threading.Lock) -> None:
        """Try the files of runs that are kept in memory only again, a few: the disk was full, say, and is not now.

        The lock is held for slices.
        """
        with lock:
            missing = sorted((run for run in self._runs.values() if run.store is None), key=lambda run: run.tried)
        for run in missing[:_TRIES]:
            try:
                store = Store(self._folder, run.name, self._open_stores)
            except StoreError:
                run.tried += 1
                continue
            with lock:
                is_here = self._runs.get(run.name) is run
                if is_here:
                    run.keep_in(store)
            if is_here:
                _log.warning("the run %s is now stored in its file", run.name)
            else:
                store.close()

    def sender(
        self, resource: Resource, now: int, *, machine: bool = False
    ) -> tuple[LiveProcess, Incarnation] | Reason:
        """Return a sender's process and start, and note that it was heard; where there is no room, return the reason.

        Args:
            resource: of the sender.
            now: nanoseconds of the hub's clock.
            machine: it is the hub's own machine, which belongs to no run where the hub has none.
        """
        key = resource.SerializeToString()
        found = self._senders.get(key)
        if found is None:
            if len(key) > MOST_RESOURCE:
                return "too_large"
            attributes = dict(plain_attributes(resource.attributes))
            process = self._process(attributes, now, machine=machine)
            if process is None:
                return "cardinality"
            attributes["service.instance.id"] = process.instance
            found = process, process.incarnation(attributes, now)
            if len(self._senders) >= _RESOURCES:
                self._senders.clear()
            self._senders[key] = found
        process, incarnation = found
        incarnation.heard(now)
        if incarnation.lost and incarnation is process.current:
            incarnation.lost = False  # the count of lost starts stays: a counter does not go back
        return found

    def layouts(self, resource: Resource) -> Layouts | None:
        """Return the layouts of a sender; None where it is new. The lock may be held or not."""
        found = self._senders.get(resource.SerializeToString())
        return None if found is None else found[0].layouts

    def _process(self, attributes: dict[str, AttributeValue], now: int, *, machine: bool = False) -> LiveProcess | None:
        name = str(attributes.get("dl.run.id") or self._nameless)
        known = self._machine if machine and self.own is None else self._runs.get(name)
        instance = instance_of(attributes)
        if known is not None:
            instance = free_instance(known.processes, instance, attributes)
        process = None if known is None else known.processes.get(instance)
        if process is None:
            if len(self._labels) >= self._limits.processes and not self._make_room(now):
                return None
            run = self.run(name) if known is None else known
            process = self._admit(run, instance, attributes)
            if run.history is not None:
                try:
                    self._restore(run, process)
                except StoreError as error:
                    _log.warning("cannot restore a process of run %s, starting from zero: %s", run.name, error)
        process.heard = True
        return process

    def _make_room(self, now: int) -> bool:
        """Dismiss processes that have ended or fallen silent, the oldest first; False where all go on.

        A sixteenth of them goes at once, and after a failure nobody looks for a second: there may be a crowd.
        """
        if now < self._full:
            return False
        over = [
            process
            for process in self.processes()
            if (process.current is None or process.current.is_over(now)) and not process.is_unsaved()
        ]
        over.sort(key=lambda process: (process.current is not None and not process.current.ended, process.last_export))
        gone = over[: max(1, self._limits.processes // 16)]
        self._remove([series for process in gone for stream in process.streams.values() for series in stream.series()])
        for process in gone:
            self._dismiss(process)
        self.dismissed += len(gone)
        self._full = 0 if gone else now + SECOND
        return bool(gone)

    def _admit(self, run: LiveRun, instance: str, attributes: dict[str, AttributeValue]) -> LiveProcess:
        labels = tuple(sorted(series_labels(attributes, SERIES_KEYS).items()))
        if self._labels.setdefault(labels, instance) != instance:  # two that the labels do not tell apart
            labels = tuple(sorted((*labels, ("service_instance_id", instance))))
            self._labels[labels] = instance
        process = run.processes[instance] = LiveProcess(instance, attributes, labels, run)
        return process

    def stream(self, process: LiveProcess, key: StreamKey, description: str) -> StreamDecoder:
        """Return the stream of a metric, new if the process has none yet."""
        if key in process.streams:
            return process.streams[key]
        scope, name, unit, shape = key
        kind: Kind = "gauge" if shape == "sum" else shape

        def make(attributes: Attributes) -> HubSeries | Reason:
            if (
                not all(map(_is_legal, (name, *(key for key, _ in attributes))))
                or max(len(scope), len(unit)) > MOST_NAME
            ):
                return "illegal_name"
            of = self.instruments.get((scope, name, unit, kind))
            if of is None:
                of = HubInstrument(scope, name, unit, kind, description[:_MOST_DESCRIPTION])
            labels = _labels(process.labels, attributes)
            series = HubSeries(of, shape, labels, owner=process, attributes=canonical(attributes))
            if not self._budget.add(series.text()):
                return "cardinality"
            self.instruments[scope, name, unit, kind] = of
            process.streams[key] = stream  # not before: a stream without series would keep its process for ever
            return self._new_series(process, of, series)

        stream = StreamDecoder(shape, make, self._budget)
        return stream

    def _new_series(self, process: LiveProcess, of: HubInstrument, series: HubSeries) -> HubSeries:
        of.series[series] = self.series[series] = None
        if (of.scope, of.name) == _DROPPED:
            self._losses[series] = None
        if process.forgotten:
            self._recall(series)
        self.by_rank.add(series, process.rank)
        return series

    def _recall(self, series: HubSeries) -> None:
        """Let a series go on where the store says that it was, however long ago it was sent."""
        run: LiveRun = series.owner.run
        try:
            found = run.history.state(series) if run.history is not None else None
            if found is not None:
                series.restore(found.data, row=found.number, seen=found.seen)
        except (StoreError, *_ILLEGIBLE) as error:
            message = "cannot restore a series of run %s, starting from zero (further warnings are suppressed): %s"
            self._log_once("anew", message, run.name, error)

    def restore(self, now: int) -> None:
        """Put the series of the hub's own run back on the page as they were; where there is none, of runs of late.

        Not of those that another hub writes: none of their processes would be heard here, and all would be lost.
        """
        since = now - self._time_to_live
        if self.own is not None:
            self._restore_run(self.own, since)
            return
        for name in left_behind(self._folder, since):
            run = self.run(name)
            try:
                self._restore_run(run, since)
            except StoreError as error:
                _log.warning("cannot restore the run %s: %s", run.name, error)

    def _restore_run(self, run: LiveRun, since: int) -> None:
        if run.history is None or run.store is None or run.store.shared:
            return
        for instance in run.history.instances(since):
            attributes = run.history.resource(instance)
            if attributes is not None and instance not in run.processes:
                self._restore(run, self._admit(run, instance, attributes))

    def _restore(self, run: LiveRun, process: LiveProcess) -> None:
        if run.history is None:
            return
        run.history.restore(process)
        if not process.row:
            return
        found = run.history.states(process, self._time_to_live)
        restored = 0
        try:
            for scope, name, unit, shape, attributes, about, row, seen, data in found:
                series = self.stream(process, (scope, name, unit, shape), about).add(read_back(attributes))
                if not isinstance(series, str):
                    restored += 1
                    series.restore(data, row=row, seen=seen)
                    self.by_rank.add(series, process.rank)
        except _ILLEGIBLE as error:
            process.forgotten = True
            raise StoreError(errno.EIO, f"the state of a series is invalid: {error}", run.name) from error
        process.forgotten = run.history.count(process) > restored

    def expire(self, now: int, lock: threading.Lock) -> None:
        """Let go of series that were not sent for the time to live, and of processes and runs that have none left.

        The lock is held for slices.
        """
        with lock:
            everything = list(self.series)
        for start in range(0, len(everything), _SLICE):
            with lock:
                some = everything[start : start + _SLICE]
                self._remove([series for series in some if self._is_over(series.seen, series.owner, now)])
        closing = []
        with lock:
            for process in self.processes():
                if not process.streams and self._is_over(process.last_export, process, now):
                    self._dismiss(process)
            for name, run in list(self._runs.items()):
                if not run.processes and run is not self.own:
                    closing.append(self._runs.pop(name))
        for run in closing:
            run.close()

    def _is_over(self, seen: int, process: LiveProcess, now: int) -> bool:
        return now - seen > max(self._time_to_live, INTERVALS * process.interval)

    def _remove(self, gone: Iterable[HubSeries]) -> None:
        by_lane: dict[tuple[LiveProcess, StreamKey], set[HubSeries]] = {}
        for series in gone:
            of = series.instrument
            if series in self._losses:
                del self._losses[series]
                self._dropped_before += _counted(series)
            del self.series[series], of.series[series]
            self._budget.remove(series.text(), series.bounds + series.buckets)
            if series.row:
                series.owner.forgotten = True
            if not of.series:
                del self.instruments[of.scope, of.name, of.unit, of.kind]
            self.by_rank.remove(series)
            by_lane.setdefault((series.owner, (of.scope, of.name, of.unit, series.shape)), set()).add(series)
        for process in {process for process, _ in by_lane}:
            process.layouts = Layouts()  # a request that is being read keeps the old ones
        for (process, key), some in by_lane.items():
            stream = process.streams[key]
            stream.remove(some)
            if not stream.by_attributes:
                del process.streams[key]

    def _dismiss(self, process: LiveProcess) -> None:
        if self._is_told(process):
            self._lost_before = [*self._lost_before, *process.lost()][-_MOST_LOST:]
        del process.run.processes[process.instance]
        del self._labels[process.labels]
        self._senders.clear()

    def lost(self, *, at_the_end: bool = False) -> list[LostProcess]:
        """Return the starts that are lost: of the hub's own run, or where there is none of processes that were heard.

        Args:
            at_the_end: nothing more will come, so that whatever has not ended is lost.
        """
        told = [process for process in self.processes() if self._is_told(process)]
        return [*self._lost_before, *(each for process in told for each in process.lost(at_the_end=at_the_end))]

    def _is_told(self, process: LiveProcess) -> bool:
        return process.heard if self.own is None else process.run is self.own

    def dropped(self) -> int:
        """Return how much the processes say that they dropped, those that are gone included."""
        return self._dropped_before + sum(map(_counted, self._losses))

    def close(self) -> None:
        """Close every run's file."""
        for run in self._runs.values():
            run.close()


def _counted(series: HubSeries) -> int:
    """Return a counter's value; 0 for all else that may have its name, and beyond the range of floats."""
    shown = series.shown() if series.shape == "counter" else None
    return 0 if shown is None or not isfinite(shown) else int(shown)


def _is_legal(name: str) -> bool:
    """Tell whether a page may hold a name or a key: for an empty one or a NUL, Prometheus 3 refuses all of the page."""
    return 0 < len(name) <= MOST_NAME and "\0" not in name


def _labels(of_process: Labels, attributes: Attributes) -> Labels:
    """Return a series' labels: its own, and those of its process that it has not itself in classic names.

    An empty label is none, and does not hide that of the process.
    """
    shared = dict(of_process)
    own = [(key, label_value(value)) for key, value in attributes]
    own = [(key, value) for key, value in own if value or prometheus_label(key) not in shared]
    taken = {prometheus_label(key) for key, _ in own}
    return tuple(sorted([*own, *(pair for pair in of_process if pair[0] not in taken)]))
