"""The runs of a store, as a list: state and size of each."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.runs.blocks import Sample
from tachograph.runs.buckets import HistogramValues, shown
from tachograph.runs.catalogue import Stamp, Stamps, UnknownRunError, id_of, located, points_in, stamp_of
from tachograph.runs.ending import Ending, described, ending
from tachograph.runs.file import Abandoned, Look, RunFile, look
from tachograph.runs.file_lock import in_use
from tachograph.runs.members import (
    NODE,
    SECOND,
    Member,
    MemberStart,
    display_name,
    job_name,
    mapping,
    members,
    rank_of,
    tags,
)
from tachograph.runs.outline import outline
from tachograph.runs.queries import (
    StoredBlock,
    read_blocks,
    read_first_event_time,
    read_last_block,
    read_launch_span,
    read_samples_of_block,
    read_series,
)
from tachograph.runs.recorded import BEGIN, thinned_curves
from tachograph.runs.store import StoreError
from tachograph.studio.charts import Drawn, finite, newest

_FIRST_EVENTS = 1000  # the begin of a process is one of them
_AGE = 1.0  # seconds after which a run that goes on is read again, though its file is as it was
_SETTLED = 100_000_000  # nanoseconds: within them a file may change twice, and keep its time and size


class RunEntry(NamedTuple):
    """A run as it was last read.

    Attributes:
        stamp: of its files, then.
        entry: of the list of runs.
        columns: of the table of runs, by name; empty where they are not asked for.
        settled: it is read again only once its stamp changes.
        read: seconds of the monotonic clock.
    """

    stamp: Stamp
    entry: dict[str, Any]
    columns: dict[str, Any]
    settled: bool
    read: float


class Overview:
    """Lists runs; may be asked from several threads at once.

    A run is read again where its files have changed, and once a second while it goes on: all others cost a look at the
    store's folder. An entry that is read again, and is as it was, stays the same object.

    Args:
        folder: the store.
        clock: nanoseconds since the epoch.
        abandoned: asked now and then whether to stop.
        outlined: read the columns of the table of runs, too.

    Attributes:
        version: a number that grows with each change of any run.
        unread: number of runs that were not read for want of time.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], int], abandoned: Callable[[], bool], *, outlined: bool = False
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._abandoned = abandoned
        self._outlined = outlined
        self._stamps = Stamps(folder)
        self._known: dict[str, RunEntry] = {}  # by the names of their files
        self._heard: dict[str, RunEntry] = {}  # those of them that have received anything, or whose job has ended
        self._lock = threading.Lock()
        self.version = 0
        self.unread = 0

    def runs(self) -> list[dict[str, Any]]:
        """Return every run that has received anything, or whose job has ended, the newest first.

        Raises:
            Abandoned: reading was to stop.
            StoreError: the store cannot be read.
        """
        found = [each.entry for each in self.entries()]
        return sorted(found, key=lambda each: (each["started"], each["id"]), reverse=True)

    def entries(self, within: float | None = None) -> list[RunEntry]:
        """Return the runs as :meth:`runs` does, in no order.

        Args:
            within: seconds after which no further run is read, so that some may be missing or not up to date; those
                that go on come first, then new ones, the newest first.

        Raises:
            Abandoned: reading was to stop.
            StoreError: the store cannot be read.
        """
        if not self._lock.acquire(blocking=within is None or not self._known, timeout=-1):
            return list(self._heard.values())  # another thread is reading them
        try:
            self._refresh(within)
        finally:
            self._lock.release()
        return list(self._heard.values())

    def named(self, names: Iterable[str]) -> tuple[list[tuple[Path, RunEntry]], list[dict[str, str]]]:
        """Return runs by their ids with their files, in order, and those that are gone: ``{"run": …, "near": …}``.

        Raises:
            Abandoned: reading was to stop.
            StoreError: the store cannot be read.
        """
        found, gone = [], []
        with self._lock:
            for name in names:
                try:
                    path = located(name, self._folder)
                except UnknownRunError as error:
                    gone.append({"run": name, "near": error.near})
                    continue
                known = self._known.get(path.name)
                if self._is_due(known, stamp_of(path), time.monotonic(), 0.0):
                    self._take(path)
                found.append((path, self._known[path.name]))
        return found, gone

    def _take(self, path: Path) -> None:
        before, now = self._known.get(path.name), self._read(path)
        if before is not None and (before.entry, before.columns) == (now.entry, now.columns):
            now = now._replace(entry=before.entry, columns=before.columns)
        else:
            self.version += 1
        self._known[path.name] = now
        if (
            any(now.entry[each] for each in ("processes", "points", "damage"))
            or now.entry["ended"]["status"] is not None
        ):
            self._heard[path.name] = now
        else:
            self._heard.pop(path.name, None)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._heard.pop(name, None)
        self.version += 1

    def _refresh(self, within: float | None) -> None:
        began = time.monotonic()
        stamps = self._stamps.read()
        for name in self._known.keys() - stamps.keys():
            self._forget(name)
        due = [name for name, stamp in stamps.items() if self._is_due(self._known.get(name), stamp, began, within)]
        due.sort(key=lambda name: (name in self._known, stamps[name]), reverse=True)
        self.unread = 0
        for place, name in enumerate(due):
            if within is not None and time.monotonic() - began > within:
                self.unread = sum(each not in self._known for each in due[place:])
                return
            self._take(self._folder / "runs" / name)

    @staticmethod
    def _is_due(known: RunEntry | None, stamp: Stamp, now: float, within: float | None) -> bool:
        if known is None or known.stamp != stamp:
            return True
        return not known.settled and (within is None or now - known.read > _AGE)

    def _read(self, path: Path) -> RunEntry:
        if self._abandoned():
            raise Abandoned
        began = time.monotonic()
        written, stamp = in_use(path), stamp_of(path)
        columns: dict[str, Any] = {}
        try:
            file = RunFile(path, looking=True)
            with look(file, self._abandoned) as reading:
                entry = about(reading, id_of(path), members(reading), self._clock(), written=written)
                if self._outlined:
                    columns = {**outline(reading), **_facts(entry)}
            if file.changed:
                return self._read(path)
            entry["damage"] = file.damage
        except (StoreError, sqlite3.Error) as error:
            why = str(error.strerror) if isinstance(error, StoreError) else f"cannot read the file: {error}"
            entry = _unreadable(path, why)
            columns = _facts(entry)
        unchanged = stamp == stamp_of(path) and all(self._clock() - changed > _SETTLED for changed, _ in stamp)
        return RunEntry(stamp, entry, columns, unchanged and entry["state"] != "running", began)


def _facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the table of runs that are no keys, under the names that ``tachograph runs list`` has."""
    found = {name: entry[name] for name in ("id", "name", "program", "state", "ranks", "restarts", "points", "last")}
    told = {"tags": tuple(entry["tags"]), "ended": entry["ended"]["brief"], "processes": entry["processes"]}
    return {**found, **told, "start": entry["started"], "duration": entry["seconds"], "size": entry["bytes"]}


def begun(reading: Look, found: Sequence[Member]) -> int:
    """Return the time since which a run's relative times are counted: its first process began, or was heard first.

    Args:
        reading: a look at its file.
        found: its processes.

    Returns:
        Nanoseconds since the epoch; 0 where it has no process.
    """
    announced = read_first_event_time(reading.rows, BEGIN, among=_FIRST_EVENTS)  # before the first export
    times = [announced, *(start.first for start in _starts(found))]
    return min((time for time in times if time), default=0)


def _starts(found: Sequence[Member]) -> list[MemberStart]:
    job = [each for each in found if each.role != NODE] or found  # a hub that shows the run later adds its own node
    return [start for member in job for start in member.starts]


def about(reading: Look, name: str, found: Sequence[Member], now: int, *, written: bool) -> dict[str, Any]:
    """Return the entry of a run in the list; the caller fills in ``damage``.

    Args:
        reading: a look at its file.
        name: its id.
        found: its processes.
        now: nanoseconds since the epoch.
        written: a hub has the file open.
    """
    changed = _changed(reading.file.path)
    launched, told = read_launch_span(reading.rows)  # without a process nothing else says when
    started = begun(reading, found) or launched or changed
    last = max((start.last for start in _starts(found)), default=told or changed)
    end = ending(reading, found, now, written=written)
    return {
        "id": name,
        "program": job_name(reading.rows, found),
        "state": end.state,
        "ended": described(end),
        "started": started,
        "last": last,
        "seconds": max(0, last - started) / SECOND,
        "ranks": len({each.rank for each in found} - {None}),
        "processes": sum(each.role != NODE for each in found),
        "restarts": max((len(each.starts) - 1 for each in found), default=0),
        "points": points_in(reading.rows),
        "thinned": thinned_curves(reading.rows),
        "bytes": _size(reading.file.path),
        "name": display_name(reading.rows),
        "tags": tags(reading.rows),
        "damage": [],
    }


def _unreadable(path: Path, why: str) -> dict[str, Any]:
    changed = _changed(path)
    times = {"started": changed, "last": changed, "seconds": 0}
    counts = {"ranks": 0, "processes": 0, "restarts": 0, "points": 0, "thinned": 0, "bytes": _size(path)}
    words = {"program": "", "state": "unknown", "ended": described(Ending("unknown")), "name": ""}
    return {"id": id_of(path), **words, **times, **counts, "tags": [], "damage": [why]}


def _size(path: Path) -> int:
    return sum(size for _, size in stamp_of(path))


def _changed(path: Path) -> int:
    return max((changed for changed, _ in stamp_of(path)), default=0)


DURATION, CALLS = "function.duration", "function.calls"
PARTS = 0.5, 0.99


def functions(look: Look) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return calls, mean, median and 99th percentile (seconds), and failures by type of error, of each function.

    Those of each process come first, then the same of all processes together: torchrun's own are apart. ``error`` is
    the share by which a percentile may be off; None where no bound of it is known.
    """
    durations: dict[tuple[str, int | None, str], HistogramValues] = {}
    failures: dict[tuple[str, int | None, str], Counter[str]] = {}
    for series in read_series(look.rows, DURATION, CALLS, with_state=True):
        if series.state is None:
            continue
        try:
            told: dict[str, Any] = dict(json.loads(series.attributes))
            amount = shown(series.state)
        except (ValueError, TypeError, LookupError) as error:
            look.file.note(f"a state of {series.name}: {error}")
            continue
        who = mapping(series.resource)
        key = str(told.get("code.function.name", "")), rank_of(who), str(who.get("dl.role", ""))
        if isinstance(amount, HistogramValues):
            durations[key] = durations[key].plus(amount) if key in durations else amount
        elif told.get("outcome") == "failure" and amount is not None:
            failures.setdefault(key, Counter())[str(told.get("error.type", ""))] += int(amount)
    joined: dict[tuple[str, int | None, str], HistogramValues] = {}
    failed: dict[tuple[str, int | None, str], Counter[str]] = {}
    for (function, rank, role), found in durations.items():
        key = function, None, "agent" if role == "agent" else ""
        joined[key] = joined[key].plus(found) if key in joined else found
        failed.setdefault(key, Counter()).update(failures.get((function, rank, role), {}))
    return (
        [_function(key, found, failures.get(key, {})) for key, found in durations.items()],
        [_function(key, found, failed[key]) for key, found in joined.items()],
    )


def _function(key: tuple[str, int | None, str], found: HistogramValues, failures: Mapping[str, int]) -> dict[str, Any]:
    name, rank, role = key
    about = {"function": name, "rank": rank, "role": role, "calls": found.count, "failures": dict(failures)}
    middle, high = found.quantiles(PARTS)
    numbers = {"mean": found.mean, "p50": middle, "p99": high, "error": found.error(PARTS)}
    return {**about, **{key: finite(value) for key, value in numbers.items()}}


MOST_BARS = 3  # of one loop in one process: it may be nested in itself


def progress(look: Look, drawn: Iterable[Drawn]) -> list[dict[str, Any]]:
    """Return each progress bar: items done, total, items a second, and seconds to go.

    Of repeated loops only the newest few are returned. A loop records all of these itself. For a metric whose scale has
    ``progress`` the total is the scale's upper bound, and the rate is that since its first point.
    """
    bars = newest((each for each in drawn if each.number and each.about.get("progress")), MOST_BARS)
    return [bar for each in bars for bar in _bar(look, each)]


def _bar(look: Look, each: Drawn) -> list[dict[str, Any]]:
    samples = _samples(look, read_last_block(look.rows, each.number))
    if not samples:
        return []
    last = samples[-1]
    more = last.more
    total = finite(more.get("total", each.about.get("upper")))
    rate, eta = finite(more.get("rate")), finite(more.get("eta"))
    if rate is None:
        rate = _rate(_samples(look, next(read_blocks(look.rows, each.number), None)), last)
    left = None if total is None else max(total - last.value, 0)
    if eta is None and left is not None and rate:
        eta = finite(left / rate)
    named = {"metric": each.metric, "group": each.group, "rank": each.rank, "execution": each.execution}
    numbers = {"count": last.value, "total": total, "rate": rate, "eta": eta}
    done = left is not None and left <= 0
    return [{**named, "curve": each.number, "task": each.about.get("task"), **numbers, "done": done}]


def _samples(look: Look, block: StoredBlock | None) -> list[Sample]:
    return [] if block is None else read_samples_of_block(look.file, block)


def _rate(first_samples: Sequence[Sample], last: Sample) -> float | None:
    if not first_samples:
        return None
    first = first_samples[0]
    if last.time_unix_nano <= first.time_unix_nano:
        return None
    rate = finite((last.value - first.value) / ((last.time_unix_nano - first.time_unix_nano) / 1e9))
    return rate if rate is not None and rate > 0 else None
