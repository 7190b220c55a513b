"""The page of a node: every process's series, with the names and labels that its own page would have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from tachograph.exporters.prometheus.conflicts import Conflicts
from tachograph.exporters.prometheus.family import TARGET_INFO, Family, families
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import DESTINATION
from tachograph.exporters.prometheus.sheet import Sheet
from tachograph.exporters.prometheus.text import label_names, label_text, sample
from tachograph.hub._rows import histogram_lines, number_line, row
from tachograph.hub._series import Instrument, Series, Shape
from tachograph.hub.processes import Process
from tachograph.recording.naming import KINDS
from tachograph.recording.points import HistogramPoint, MetricPoints
from tachograph.recording.registry import Registry
from tachograph.runs.buckets import Buckets

_READ = 200  # series that are read while the lock is held
_LOOK = 16  # series between two looks at the clock
_REST = 0.0001  # seconds between slices of the rendering: enough for whoever waits for the interpreter


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
        instruments: Iterable[Instrument],
        processes: Iterable[Process],
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

    def _read(self, instruments: Iterable[Instrument]) -> list[MetricPoints]:
        """Return the series and their values in the place of points; the lock is held for slices."""
        with self._lock:
            of_all = [(of, list(of.series)) for of in instruments]
        left = (series for _, listed in of_all for series in listed)
        pairs: list[tuple[Series, Any]] = []
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
    of = Instrument(metric.scope, metric.name, metric.unit, metric.kind, metric.description)
    shape: Shape = KINDS[KINDS.index(metric.kind)]
    points: list[Any] = []
    for point in metric.points:
        series = Series(of, shape, tuple((key, str(value)) for key, value in point.attributes))
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

    def targets(self, family: Family, processes: Iterable[Process]) -> None:
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
