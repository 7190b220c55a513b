"""The page of a node: every process's series as on its own page, and durations across ranks."""

from __future__ import annotations

import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

from tachograph.exporters.prometheus.conflicts import Conflicts
from tachograph.exporters.prometheus.family import TARGET_INFO, Family, families
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import DESTINATION
from tachograph.exporters.prometheus.sheet import Sheet
from tachograph.exporters.prometheus.text import (
    SCOPE_LABEL,
    boundary,
    label_names,
    label_text,
    number,
    sample,
    sum_is_counter,
)
from tachograph.hub._series import HubInstrument, HubSeries, Labels, Shape
from tachograph.hub.processes import LiveProcess
from tachograph.recording.naming import KINDS
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar
from tachograph.recording.values import Number
from tachograph.runs.buckets import Buckets

_PAIRS = 2**17  # labels whose text is kept: those of 200,000 series repeat each other
_READ = 200  # series that are read while the lock is held
_LOOK = 16  # series between two looks at the clock
_REST = 0.0001  # seconds between slices of the rendering: enough for whoever waits for the interpreter
_SLICE = 64  # groups that are read at once
_TIMES = {"s", "ms", "us", "ns", "min", "h"}
_WITHOUT = {"dl_rank", "service_instance_id"}  # what tells one rank's series from another's
_Key = tuple[str, str, str, Labels]


class PageRow(NamedTuple):
    """The constant parts of a series' lines.

    Attributes:
        labels: all labels, as they stand between the braces.
        start: of a number the line up to the value; of a histogram that of a bucket up to the bound.
        total: of a histogram the line of its sum up to the value.
        values: the same of its count.
    """

    labels: str
    start: str
    total: str = ""
    values: str = ""


def row(name: str, scope: str, labels: Labels, form: Format, *, is_histogram: bool) -> PageRow:
    """Return the row of a series in the family ``name``."""
    text = _text(scope, labels, form.utf8, "le" if is_histogram else "")
    if not is_histogram:
        return PageRow(text, sample(name, text))
    bucket = sample(name + "_bucket", f'{text},le=""' if text else 'le=""').removesuffix('"} ')
    return PageRow(text, bucket, sample(name + "_sum", text), sample(name + "_count", text))


def number_line(of: PageRow, value: Number) -> str:
    """Return the line of a gauge or a counter."""
    return f"{of.start}{number(value)}\n"


def histogram_lines(of: PageRow, value: Buckets, exemplars: Iterable[Exemplar], form: Format) -> str:
    """Return the lines of a histogram."""
    counts: list[object] = [*value.at_most(), value.count]
    if form.openmetrics:
        for exemplar in sorted(exemplars, key=lambda exemplar: exemplar.time_unix_nano):
            place = bisect_left(value.bounds, exemplar.value)
            ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
            when = exemplar.time_unix_nano / 1e9
            counted = value.count if place == len(value.bounds) else value.at_most()[place]
            counts[place] = f"{counted} # {{{ids}}} {number(exemplar.value)} {when:.3f}"
    start = of.start
    bounds = _bounds(value.bounds, form.openmetrics)
    lines = [f'{start}{bound}"}} {count}\n' for bound, count in zip(bounds, counts, strict=True)]
    if not form.openmetrics or sum_is_counter(value.total, value.bounds):
        lines.append(f"{of.total}{number(value.total)}\n{of.values}{value.count}\n")
    return "".join(lines)


@lru_cache(maxsize=1024)
def _bounds(bounds: tuple[float, ...], openmetrics: bool) -> tuple[str, ...]:
    return (*(boundary(bound, openmetrics=openmetrics) for bound in bounds), "+Inf")


def _text(scope: str, labels: Labels, utf8: bool, reserved: str) -> str:
    pairs = [_pair(SCOPE_LABEL, scope, utf8, reserved), *[_pair(key, value, utf8, reserved) for key, value in labels]]
    found = dict(filter(None, pairs))
    if len(found) < len(pairs) - pairs.count(None):  # two keys that become one label share it
        own = label_names(labels, utf8=utf8, reserved=reserved)
        return label_text({**label_names(((SCOPE_LABEL, scope),), utf8=True), **own})
    return ",".join([found[name] for name in sorted(found)])


@lru_cache(maxsize=_PAIRS)
def _pair(key: str, value: str, utf8: bool, reserved: str) -> tuple[str, str] | None:
    """Return a label's name and its text; None where it is empty."""
    for name, text in label_names(((key, value),), utf8=utf8, reserved=reserved).items():
        return name, label_text({name: text})
    return None


class Rendered(NamedTuple):
    """A page, and how many of its lines were left out."""

    body: bytes
    omitted: int


class NodePage:
    """Renders the page of a node.

    Args:
        registry: where is counted what cannot be shown.
        lock: held while series change.
        most_bytes: of a page: what would be beyond is left out.
    """

    def __init__(self, registry: Registry, lock: threading.Lock, *, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lock = lock
        self.conflicts = Conflicts(registry, DESTINATION, "/metrics")

    def render(
        self,
        instruments: Iterable[HubInstrument],
        processes: Iterable[LiveProcess],
        others: Sequence[MetricPoints],
        form: Format,
    ) -> Rendered:
        """Return the page. Several threads may render at once.

        Series that would be written twice, and metrics whose name another kind of metric has already, are left out
        after the first: each is counted once (``tachograph.dropped``, reason ``name_conflict``).

        Args:
            instruments: what all processes sent.
            processes: each has a line of ``target_info``.
            others: further metrics, labels complete.
            form: the text format.
        """
        metrics = [*self._read(instruments), *map(_as_series, others)]
        shown = [metric for metric in metrics if metric.points]
        rendering = _Rendering(self, form)
        target, found = families(shown, (), form, self.conflicts, rendering.breathe)
        rendering.targets(target, processes)
        for family in found:
            rendering.family(family)
        return Rendered(rendering.done(), rendering.omitted)

    def _read(self, instruments: Iterable[HubInstrument]) -> list[MetricPoints]:
        """Return the series and their values in the place of points; the lock is held for slices."""
        with self._lock:
            of_all = [(of, list(of.series)) for of in instruments]
        left = (series for _, listed in of_all for series in listed)
        pairs: list[tuple[HubSeries, Any]] = []
        while some := list(islice(left, _READ)):
            with self._lock:
                pairs += [(series, series.shown()) for series in some]
        found, read = [], iter(pairs)
        for of, listed in of_all:
            points: list[Any] = [pair for pair in islice(read, len(listed)) if pair[1] is not None]
            found.append(MetricPoints(of.scope, of.name, of.unit, of.kind, of.description, points))
        return found


def _as_series(metric: MetricPoints) -> MetricPoints:
    """Return a metric whose points are series and their values, as those of the processes are."""
    of = HubInstrument(metric.scope, metric.name, metric.unit, metric.kind, metric.description)
    shape: Shape = KINDS[KINDS.index(metric.kind)]
    points: list[Any] = []
    for point in metric.points:
        series = HubSeries(of, shape, tuple((key, str(value)) for key, value in point.attributes))
        if isinstance(point, HistogramPoint):
            at_most = (*point.summary.at_most, point.summary.count)
            counts = (at_most[0], *map(int.__sub__, at_most[1:], at_most))
            total = float(point.summary.total.value())
            points.append((series, Buckets(point.summary.count, total, counts, point.boundaries)))
        else:
            points.append((series, point.value))
    return metric._replace(points=points)


class _Rendering(Sheet):
    """One page on its way. It rests often: the thread that receives waits for the interpreter."""

    def __init__(self, page: NodePage, form: Format) -> None:
        super().__init__(form, partial(time.sleep, _REST), page.most_bytes)
        self._page = page
        self._key = form[::2]

    def targets(self, family: Family, processes: Iterable[LiveProcess]) -> None:
        """Write ``target_info``, a line for each process."""
        utf8, written = self.form.utf8, False
        for process in processes:
            if not written:
                written = True
                self.header(family)
            own = label_names(sorted(process.resource.items()), utf8=utf8)
            self.lines.append(f"{sample(TARGET_INFO, label_text({**dict(process.labels), **own}))}1\n")

    def family(self, family: Family) -> None:
        """Write a family: its header and its series."""
        self.header(family)
        seen: set[str] = set()
        is_histogram = family.kind == "histogram"
        for metric in family.metrics:
            points: Sequence[Any] = metric.points
            for index, (series, value) in enumerate(points):
                if not index % _LOOK:
                    self.breathe()
                    if self.is_full:
                        self.omitted += len(points) - index
                        break
                found = series.rows.get(self._key)
                if found is None:
                    found = row(family.name, metric.scope, series.labels, self.form, is_histogram=is_histogram)
                    series.rows[self._key] = found
                if found.labels in seen:
                    self._page.conflicts.duplicate(family.name, found.labels, (metric[:4], series.labels))
                    continue
                seen.add(found.labels)
                if is_histogram:
                    self.lines.append(histogram_lines(found, value, series.exemplars, self.form))
                else:
                    self.lines.append(number_line(found, value))


def is_duration(name: str, unit: str) -> bool:
    """Tell whether a histogram holds durations: by its unit, or else by its name."""
    return unit in _TIMES or "duration" in name or "latency" in name


class _Member:
    """One rank's series, and its count and sum at the last two marks."""

    __slots__ = ("newer", "older", "rank", "series")

    def __init__(self, series: HubSeries, rank: int) -> None:
        self.series = series
        self.rank = rank
        self.older = self.newer = series.sums()  # what a hub that begins anew finds stored is history

    def mean(self) -> float | None:
        count, total = self.series.sums()
        values = count - self.older[0]
        return (total - self.older[1]) / values if values > 0 else None

    def mark(self) -> None:
        self.older, self.newer = self.newer, self.series.sums()


class ByRank:
    """The durations of each histogram across ranks.

    A rank's duration is the mean of what it measured since the mark before the last one: marks are made every ten
    seconds, so that is between the last ten and the last twenty seconds. From these come two gauges, a set for each
    combination of the other labels:

    - ``<name>_by_rank`` in the histogram's unit, with ``aggregation`` = ``min``, ``median`` and ``max``;
    - ``<name>_slowest_rank``, whose value is the rank of the longest mean, the lowest one of several.

    A rank that measured nothing in this time is left out.
    """

    def __init__(self) -> None:
        self._groups: dict[_Key, dict[HubSeries, _Member]] = {}

    def add(self, series: HubSeries, rank: int | None) -> None:
        """Count in a rank's series as it is now, where it is a histogram of durations."""
        instrument = series.instrument
        if rank is None or series.shape != "histogram" or not is_duration(instrument.name, instrument.unit):
            return
        self._groups.setdefault(_key(series), {})[series] = _Member(series, rank)

    def remove(self, series: HubSeries) -> None:
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

    def _slices(self, lock: threading.Lock) -> Iterator[list[tuple[_Key, dict[HubSeries, _Member]]]]:
        with lock:
            groups = list(self._groups.items())
        left = iter(groups)
        while found := list(islice(left, _SLICE)):
            yield found


def _aggregated(labels: Labels, means: list[float]) -> Iterator[NumberPoint]:
    for name, value in (("max", max(means)), ("median", statistics.median(means)), ("min", min(means))):
        yield NumberPoint(tuple(sorted((*labels, ("aggregation", name)))), value, 0)


def _key(series: HubSeries) -> _Key:
    instrument = series.instrument
    labels = tuple(pair for pair in series.labels if pair[0] not in _WITHOUT)
    return instrument.scope, instrument.name, instrument.unit, labels
