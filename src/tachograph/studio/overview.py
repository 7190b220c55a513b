"""The runs of a store, as a list: state and size of each."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tachograph.runs.blocks import Block, Sample, unpack
from tachograph.runs.buckets import HistogramValues, shown
from tachograph.runs.catalogue import files_of, id_of, paths_in, points_in
from tachograph.runs.file import Abandoned, Look, RunFile, look
from tachograph.runs.file_lock import in_use
from tachograph.runs.members import NODE, SECOND, Member, job_name, mapping, members, rank_of, state, tags
from tachograph.runs.recorded import BEGIN, thinned_curves
from tachograph.runs.store import StoreError
from tachograph.studio.charts import Drawn, finite, newest

_SEEN = 4096  # runs that are remembered

_BEGUN = "SELECT min(time) FROM event WHERE name = ? AND rowid <= 1000"

Stamp = tuple[tuple[int, int], ...]


class Overview:
    """Lists runs. Entries are cached for files that no hub writes, and that have not changed since.

    Args:
        folder: the store.
        clock: nanoseconds since the epoch.
        abandoned: asked now and then whether to stop.
    """

    def __init__(self, folder: Path, clock: Callable[[], int], abandoned: Callable[[], bool]) -> None:
        self._folder = folder
        self._clock = clock
        self._abandoned = abandoned
        self._known: dict[Path, tuple[Stamp, dict[str, Any]]] = {}

    def runs(self) -> list[dict[str, Any]]:
        """Return every run that has received anything, the newest first.

        Raises:
            Abandoned: reading was to stop.
        """
        found = [self._run(path) for path in paths_in(self._folder)]
        found = [each for each in found if each["processes"] or each["points"] or each["damage"]]
        return sorted(found, key=lambda each: (each["started"], each["id"]), reverse=True)

    def _run(self, path: Path) -> dict[str, Any]:
        if self._abandoned():
            raise Abandoned
        written, stamp = in_use(path), _stamp(path)
        known = self._known.get(path)
        if known is not None and known[0] == stamp and not written:
            return known[1]
        try:
            file = RunFile(path)
            with look(file, self._abandoned) as reading:
                found = about(reading, id_of(path), members(reading), self._clock(), written=written)
            found["damage"] = file.damage
        except (StoreError, sqlite3.Error) as error:
            why = str(error.strerror) if isinstance(error, StoreError) else f"the file cannot be read: {error}"
            found = _unreadable(path, why)
        if not written and found["state"] != "live" and stamp == _stamp(path):
            if len(self._known) >= _SEEN:
                self._known.clear()
            self._known[path] = stamp, found
        return found


def about(reading: Look, name: str, found: Sequence[Member], now: int, *, written: bool) -> dict[str, Any]:
    """Return the entry of a run in the list; the caller fills in ``damage``.

    Args:
        reading: a look at its file.
        name: its id.
        found: its processes.
        now: nanoseconds since the epoch.
        written: a hub has the file open.
    """
    job = [each for each in found if each.role != NODE] or found  # a hub that shows the run later adds its own node
    times = [(start.first, start.last) for member in job for start in member.starts]
    changed = _changed(reading.file.path)
    begun = [row[0] for row in reading.rows(_BEGUN, BEGIN) if row[0]]  # before the first export
    started = min([*begun, *(first for first, _ in times)], default=changed)
    last = max((last for _, last in times), default=changed)
    return {
        "id": name,
        "program": job_name(found),
        "state": state(found, now, written=written),
        "started": started,
        "last": last,
        "seconds": max(0, last - started) / SECOND,
        "ranks": len({each.rank for each in found} - {None}),
        "processes": sum(each.role != NODE for each in found),
        "restarts": max((len(each.starts) - 1 for each in found), default=0),
        "points": points_in(reading.rows),
        "thinned": thinned_curves(reading.rows),
        "bytes": _size(reading.file.path),
        "tags": tags(reading.rows),
        "damage": [],
    }


def _unreadable(path: Path, why: str) -> dict[str, Any]:
    changed = _changed(path)
    times = {"started": changed, "last": changed, "seconds": 0}
    counts = {"ranks": 0, "processes": 0, "restarts": 0, "points": 0, "thinned": 0, "bytes": _size(path)}
    return {"id": id_of(path), "program": "", "state": "unknown", **times, **counts, "tags": [], "damage": [why]}


def _stamp(path: Path) -> Stamp:
    found = []
    for each in files_of(path)[::2]:  # the index of the log changes with every reader
        with contextlib.suppress(OSError):
            about = each.stat()
            found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)


def _size(path: Path) -> int:
    return sum(size for _, size in _stamp(path))


def _changed(path: Path) -> int:
    return max((changed for changed, _ in _stamp(path)), default=0)


DURATION, CALLS = "function.duration", "function.calls"
PARTS = 0.5, 0.99


def functions(look: Look) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return calls, mean, median and 99th percentile (seconds), and failures by type of error, of each function.

    Those of each process come first, then the same of all processes together: torchrun's own are apart. ``error`` is
    the share by which a percentile may be off; None where no bound of it is known.
    """
    durations: dict[tuple[str, int | None, str], HistogramValues] = {}
    failures: dict[tuple[str, int | None, str], Counter[str]] = {}
    for name, attributes, resource, data in look.rows(
        "SELECT name, attributes, resource, data FROM series JOIN state ON series.id = state.series"
        " JOIN process ON process.id = process WHERE name IN (?, ?) ORDER BY series.id",
        *(DURATION, CALLS),
    ):
        try:
            told: dict[str, Any] = dict(json.loads(attributes))
            amount = shown(data)
        except (ValueError, TypeError, LookupError) as error:
            look.file.note(f"a state of {name}: {error}")
            continue
        who = mapping(resource)
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
_ENDS = "SELECT form, pairs, rest, seq0, seq1 FROM block WHERE curve = ? ORDER BY {} LIMIT 1"


def progress(look: Look, drawn: Iterable[Drawn]) -> list[dict[str, Any]]:
    """Return each progress bar: items done, total, items a second, and seconds to go.

    Of repeated loops only the newest few are returned. A loop records all of these itself. For a metric whose scale has
    ``progress`` the total is the scale's upper bound, and the rate is that since its first point.
    """
    bars = newest((each for each in drawn if each.number and each.about.get("progress")), MOST_BARS)
    return [bar for each in bars for bar in _bar(look, each)]


def _bar(look: Look, each: Drawn) -> list[dict[str, Any]]:
    last = _sample(look, each.number, "seq0 DESC", -1)
    if last is None:
        return []
    more = last.more
    total = finite(more.get("total", each.about.get("upper")))
    rate, eta = finite(more.get("rate")), finite(more.get("eta"))
    if rate is None:
        rate = _rate(_sample(look, each.number, "seq0", 0), last)
    left = None if total is None else max(total - last.value, 0)
    if eta is None and left is not None and rate:
        eta = finite(left / rate)
    named = {"metric": each.metric, "group": each.group, "rank": each.rank, "execution": each.execution}
    numbers = {"count": last.value, "total": total, "rate": rate, "eta": eta}
    done = left is not None and left <= 0
    return [{**named, "curve": each.number, "task": each.about.get("task"), **numbers, "done": done}]


def _sample(look: Look, curve: int, order: str, place: int) -> Sample | None:
    row = next(look.rows(_ENDS.format(order), curve), None)
    if row is None:
        return None
    form, pairs, rest, seq0, seq1 = row
    try:
        return list(unpack(Block(form, pairs, rest)))[place]
    except (ValueError, LookupError) as error:
        look.file.note(f"points {seq0} to {seq1} of a stream: {error}")
        return None


def _rate(first: Sample | None, last: Sample) -> float | None:
    if first is None or last.time_unix_nano <= first.time_unix_nano:
        return None
    rate = finite((last.value - first.value) / ((last.time_unix_nano - first.time_unix_nano) / 1e9))
    return rate if rate is not None and rate > 0 else None
