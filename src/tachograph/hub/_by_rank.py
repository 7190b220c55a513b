"""Durations across ranks: four series instead of one for each rank."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from itertools import islice

from tachograph.hub._series import Labels, Series
from tachograph.recording.points import MetricPoints, NumberPoint

_SLICE = 64  # groups that are read at once
_TIMES = {"s", "ms", "us", "ns", "min", "h"}
_WITHOUT = {"dl_rank", "service_instance_id"}  # what tells one rank's series from another's


def is_duration(name: str, unit: str) -> bool:
    """Tell whether a histogram holds durations: by its unit, or else by its name."""
    return unit in _TIMES or "duration" in name or "latency" in name


class _Member:
    """One rank's series, and its count and sum at the last two marks."""

    __slots__ = ("newer", "older", "rank", "series")

    def __init__(self, series: Series, rank: int) -> None:
        self.series = series
        self.rank = rank
        self.older = self.newer = series.sums()  # what a hub that begins anew finds stored is history

    def mean(self) -> float | None:
        count, total = self.series.sums()
        values = count - self.older[0]
        return (total - self.older[1]) / values if values > 0 else None

    def mark(self) -> None:
        self.older, self.newer = self.newer, self.series.sums()


_Key = tuple[str, str, str, Labels]


class ByRank:
    """What each histogram of durations says across ranks.

    A rank's duration is the mean of what it measured since the mark before the last one: marks are made every ten
    seconds, so that is between the last ten and the last twenty seconds. From these come two gauges, a set for each
    combination of the other labels:

    - ``<name>_by_rank`` in the histogram's unit, with ``aggregation`` = ``min``, ``median`` and ``max``;
    - ``<name>_slowest_rank``, whose value is the rank of the longest mean, the lowest one of several.

    A rank that measured nothing in this time is left out.
    """

    def __init__(self) -> None:
        self._groups: dict[_Key, dict[Series, _Member]] = {}

    def add(self, series: Series, rank: int | None) -> None:
        """Count in a rank's series as it is now, where it is a histogram of durations."""
        instrument = series.instrument
        if rank is None or series.shape != "histogram" or not is_duration(instrument.name, instrument.unit):
            return
        self._groups.setdefault(_key(series), {})[series] = _Member(series, rank)

    def remove(self, series: Series) -> None:
        """Count out a series, where it was in."""
        key = _key(series)
        members = self._groups.get(key)
        if members is not None:
            members.pop(series, None)
            if not members:
                del self._groups[key]

    def mark(self, lock: threading.Lock) -> None:
        """Begin a new stretch of time; the lock is held for slices."""
        for groups in self._slices(lock):
            with lock:
                for _, members in groups:
                    for member in members.values():
                        member.mark()

    def metrics(self, lock: threading.Lock) -> list[MetricPoints]:
        """Return the gauges; the lock is held for slices."""
        found: dict[tuple[str, str, str], tuple[list[NumberPoint], list[NumberPoint]]] = {}
        for groups in self._slices(lock):
            with lock:
                means = [(key, [(each.mean(), -each.rank) for each in members.values()]) for key, members in groups]
            for (scope, name, unit, labels), all_ranks in means:
                ranks = [(mean, rank) for mean, rank in all_ranks if mean is not None]
                if ranks:
                    durations, slowest = found.setdefault((scope, name, unit), ([], []))
                    durations += _aggregated(labels, [mean for mean, _ in ranks])
                    slowest.append(NumberPoint(labels, -max(ranks)[1], 0))
        listed = []
        for (scope, name, unit), (durations, slowest) in found.items():
            across = f"{name}: the mean of each rank, across ranks."
            listed.append(MetricPoints(scope, f"{name}_by_rank", unit, "gauge", across, durations))
            longest = f"{name}: the rank with the longest mean."
            listed.append(MetricPoints(scope, f"{name}_slowest_rank", "", "gauge", longest, slowest))
        return listed

    def _slices(self, lock: threading.Lock) -> Iterator[list[tuple[_Key, dict[Series, _Member]]]]:
        with lock:
            groups = list(self._groups.items())
        left = iter(groups)
        while found := list(islice(left, _SLICE)):
            yield found


def _aggregated(labels: Labels, means: list[float]) -> Iterator[NumberPoint]:
    for name, value in (("max", max(means)), ("median", statistics.median(means)), ("min", min(means))):
        yield NumberPoint(tuple(sorted((*labels, ("aggregation", name)))), value, 0)


def _key(series: Series) -> _Key:
    instrument = series.instrument
    labels = tuple(pair for pair in series.labels if pair[0] not in _WITHOUT)
    return instrument.scope, instrument.name, instrument.unit, labels
