"""The page of a node: every process's series as on its own page, and durations across ranks."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Renderer
from tachograph.exporters.prometheus.sliced_text import SlicedText
from tachograph.hub._series import HubInstrument, HubSeries, Labels
from tachograph.hub.processes import LiveProcess
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Total, ValueSummary
from tachograph.runs.buckets import Buckets
from tachograph.runs.spread import joined

_READ = 200  # series that are read while the lock is held
_REST = 0.0001  # seconds between slices of the rendering: enough for whoever waits for the interpreter
_WORK = 0.002  # seconds of such a slice: no training waits here
_SLICE = 64  # groups that are read at once
_TIMES = {"s", "ms", "us", "ns", "min", "h"}
_WITHOUT = {"dl_rank", "service_instance_id"}  # labels that tell one rank's series from another's
_MEANS, _SLOWEST = "_by_rank", "_slowest_rank"
_QUANTILES = {"_by_rank_p50": 0.5, "_by_rank_p99": 0.99}
_GAUGES = {
    _MEANS: "the mean of each rank, across ranks",
    "_by_rank_p50": "the median of each rank, across ranks",
    "_by_rank_p99": "the 99th percentile of each rank, across ranks",
    _SLOWEST: "the rank with the longest mean",
}
_Read = tuple[float, int, tuple[ExponentialHistogram, ...]]  # a rank's mean, the rank, and how its values spread
_Key = tuple[str, str, str, Labels]


class Rendered(NamedTuple):
    """A page, and how many of its lines were left out."""

    body: bytes
    omitted: int


class NodePage:
    """The page of a node.

    Args:
        registry: where metrics that cannot be shown are counted.
        lock: held while series change.
        most_bytes: of a page: lines beyond are left out.
    """

    def __init__(self, registry: Registry, lock: threading.Lock, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = lock
        self._renderer = Renderer(registry)

    def render(
        self,
        instruments: Iterable[HubInstrument],
        processes: Iterable[LiveProcess],
        others: Sequence[MetricPoints],
        form: Format,
        left_out: AbstractSet[Any] = frozenset(),
        *,
        over: AbstractSet[LiveProcess] = frozenset(),
    ) -> Rendered:
        """Return the page, as :meth:`tachograph.exporters.prometheus.page.Renderer.render` does.

        It rests often: the thread that receives waits for the interpreter.

        Args:
            instruments: those of all processes.
            processes: each has a line of ``target_info``.
            others: further metrics, labels complete.
            form: the text format.
            left_out: runs whose series are not on it.
            over: processes that ended a while ago: their gauges are not on it, as they would say what no longer is.
                Counters and histograms stay, so that no sum over ranks goes back.
        """
        text = SlicedText(partial(time.sleep, _REST), self._most_bytes, _WORK)
        metrics = [*self._read(instruments, text.breathe, left_out, over), *others]
        resources = [(dict(process.labels), process.resource) for process in processes]
        body = self._renderer.render(text, form, [metric for metric in metrics if metric.points], (), resources)
        return Rendered(body, text.omitted)

    def _read(
        self,
        instruments: Iterable[HubInstrument],
        breathe: Callable[[], None],
        left_out: AbstractSet[Any],
        over: AbstractSet[LiveProcess],
    ) -> Iterator[MetricPoints]:
        """Yield the instruments' points; the lock is held for slices."""
        with self._lock:
            of_all = [(of, list(of.series)) for of in instruments]
        for of, listed in of_all:
            if left_out:
                listed = [each for each in listed if each.owner.run not in left_out]  # noqa: PLW2901
            if over and of.kind == "gauge":
                listed = [each for each in listed if each.owner not in over]  # noqa: PLW2901
            points: list[Any] = []
            for start in range(0, len(listed), _READ):
                part = listed[start : start + _READ]
                with self._lock:  # pairs are all that the renderer needs, and are made in a sixth of a point's time
                    pairs: list[tuple[Any, Any]] = [
                        (series.labels, series.value if series.before is None else series.shown()) for series in part
                    ]
                breathe()
                if of.kind == "histogram":
                    shown = zip(part, pairs, strict=True)
                    points += [_histogram(series, value) for series, (_, value) in shown if value is not None]
                else:
                    points += [pair for pair in pairs if pair[1] is not None]
            yield MetricPoints(of.scope, of.name, of.unit, of.kind, of.description, points)


def _histogram(series: HubSeries, value: Buckets) -> HistogramPoint:
    summary = ValueSummary(value.count, Total(0, value.total), math.nan, math.nan, value.counts)
    return HistogramPoint(series.labels, summary, value.bounds, 0, series.exemplars)


def is_duration(name: str, unit: str) -> bool:
    """Tell whether a histogram holds durations: by its unit, or else by its name."""
    return unit in _TIMES or "duration" in name or "latency" in name


class _Member:
    """One rank's series, its count and sum at the last two marks, and how its values spread between these."""

    __slots__ = ("before", "newer", "older", "rank", "series")

    def __init__(self, series: HubSeries, rank: int) -> None:
        self.series = series
        self.rank = rank
        self.older = self.newer = series.sums()  # values that a hub finds stored when it begins anew are history
        self.before: tuple[ExponentialHistogram, ...] = ()

    def read(self) -> _Read | None:
        """Return the mean since the older mark, the rank, and how the values spread; None where there are none."""
        count, total = self.series.sums()
        values = count - self.older[0]
        if values <= 0:
            return None
        spread = () if self.series.spread is None else (*self.before, *self.series.spread.stretch())
        return (total - self.older[1]) / values, self.rank, spread

    def mark(self) -> None:
        self.older, self.newer = self.newer, self.series.sums()
        if self.series.spread is not None:
            self.before = self.series.spread.mark()


class ByRank:
    """The durations of each histogram across ranks.

    A rank's duration is the mean of all that it measured since the mark before the last one: marks are made every ten
    seconds, so that is between the last ten and the last twenty seconds. From these come gauges, a set for each
    combination of the other labels:

    - ``<name>_by_rank`` in the histogram's unit, with ``aggregation`` = ``min``, ``median`` and ``max``;
    - ``<name>_by_rank_p50`` and ``<name>_by_rank_p99``, the same of each rank's median and 99th percentile, of ranks
      whose exponential histograms came: names of their own, so that no query for the means finds them;
    - ``<name>_slowest_rank``, whose value is the rank of the longest mean, the lowest one of several.

    A rank that measured nothing in this time is left out.
    """

    def __init__(self) -> None:
        self._groups: dict[_Key, dict[HubSeries, _Member]] = {}

    def add(self, series: HubSeries, rank: int | None) -> None:
        """Add a rank's series, from its present state on, where it is a histogram of durations."""
        instrument = series.instrument
        if rank is None or series.shape != "histogram" or not is_duration(instrument.name, instrument.unit):
            return
        self._groups.setdefault(_key(series), {})[series] = _Member(series, rank)

    def remove(self, series: HubSeries) -> None:
        """Remove a series, where it is one of them."""
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

    def metrics(self, lock: threading.Lock, left_out: AbstractSet[Any] = frozenset()) -> list[MetricPoints]:
        """Return the gauges, but of runs that are ``left_out``; the lock is held for slices."""
        gauges_of: dict[tuple[str, str, str], dict[str, list[NumberPoint]]] = {}
        for groups in self._slices(lock):
            with lock:
                read = [
                    (key, [each.read() for each in members.values() if each.series.owner.run not in left_out])
                    for key, members in groups
                ]
            for (scope, name, unit, labels), all_ranks in read:
                ranks = [each for each in all_ranks if each is not None]
                if not ranks:
                    continue
                gauges = gauges_of.setdefault((scope, name, unit), {})
                slowest = max((mean, -rank) for mean, rank, _ in ranks)[1]
                gauges.setdefault(_SLOWEST, []).append(NumberPoint(labels, -slowest, 0))
                for suffix, values in _of_ranks(ranks):
                    gauges.setdefault(suffix, []).extend(_aggregated(labels, values))
        return [
            MetricPoints(scope, name + suffix, "" if suffix == _SLOWEST else unit, "gauge", f"{name}: {what}.", points)
            for (scope, name, unit), gauges in gauges_of.items()
            for suffix, what in _GAUGES.items()
            if (points := gauges.get(suffix))
        ]

    def _slices(self, lock: threading.Lock) -> Iterator[list[tuple[_Key, dict[HubSeries, _Member]]]]:
        with lock:
            groups = list(self._groups.items())
        remaining = iter(groups)
        while some := list(islice(remaining, _SLICE)):
            yield some


def _of_ranks(ranks: Sequence[_Read]) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield the gauges of a combination of labels by their suffix, each with a value of each rank that has one."""
    yield _MEANS, [mean for mean, _, _ in ranks]
    spreads = [joined(parts) for _, _, parts in ranks if parts]
    if spreads:
        quantiles = [spread.quantiles(list(_QUANTILES.values())) for spread in spreads]
        yield from zip(_QUANTILES, zip(*quantiles, strict=True), strict=True)
        time.sleep(_REST)


def _aggregated(labels: Labels, values: Sequence[float]) -> Iterator[NumberPoint]:
    for name, value in (("max", max(values)), ("median", statistics.median(values)), ("min", min(values))):
        yield NumberPoint(tuple(sorted((*labels, ("aggregation", name)))), value, 0)


def _key(series: HubSeries) -> _Key:
    instrument = series.instrument
    labels = tuple(pair for pair in series.labels if pair[0] not in _WITHOUT)
    return instrument.scope, instrument.name, instrument.unit, labels
