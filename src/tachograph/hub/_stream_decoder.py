"""The decoder of a metric stream: one process's OTLP points of one instrument, into series."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    DataPointFlags,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    SummaryDataPoint,
)

from tachograph.hub._series import MOST_BOUNDS, HubSeries, MemoryBudget, Shape
from tachograph.hub._spread import HubSpread, width
from tachograph.recording.exponential import FINEST, ExponentialBuckets, ExponentialHistogram
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import Attributes
from tachograph.recording.summary import Exemplar
from tachograph.runs.buckets import Buckets
from tachograph.runs.recorded import plain_attributes
from tachograph.runs.spread import MOST_BUCKETS, check, joined, trimmed

NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_ALIASES = 64  # spellings that are kept, beside four of each series
AHEAD = 60 * 10**9  # nanoseconds that a sender's clock may be ahead of the hub's
MOST_BYTES = 16_384  # of one series' attributes
BESIDE = "tachograph.beside"  # in the metadata of a metric
_EXEMPLARS = 64  # of one point that are kept, the last ones

# Makes the series for attributes, or returns why there is none.
MakeSeries = Callable[[Attributes], "HubSeries | Reason"]
# A point: its series, its start and its time in nanoseconds (0 where it has none), its value; a text says why it has no
# value, and is empty where that is no fault.
Point = tuple[Any, int, int, Any]


def is_beside(metric: Metric) -> bool:
    """Tell whether the values of a metric are also in another one of the same name: our own client's are."""
    return any(each.key == BESIDE and each.value.bool_value for each in metric.metadata)


def shape_of(of_data: Any, data: str) -> Shape:
    """Return the shape of a metric's data; ``data`` is the name of their field in the metric."""
    if data == "gauge":
        return "gauge"
    if data == "sum":
        return "counter" if of_data.is_monotonic else "sum"
    return "histogram"


class StreamDecoder:
    """The series of one process and instrument, found by the bytes of their attributes on the wire.

    Args:
        shape: of its points.
        make: makes a new series.
        budget: of the memory for more buckets.

    Attributes:
        ahead: number of points that were ahead of the hub's clock.
    """

    __slots__ = ("_budget", "_by_bytes", "_make", "ahead", "by_attributes", "shape")

    def __init__(self, shape: Shape, make: MakeSeries, budget: MemoryBudget) -> None:
        self.shape = shape
        self._make = make
        self._budget = budget
        self.ahead = 0
        self._by_bytes: dict[tuple[bytes, ...], HubSeries] = {}
        self.by_attributes: dict[str, HubSeries] = {}

    def take(self, of_data: Any, data: str, writer: Hashable, now: int) -> dict[Reason, int]:
        """Take the points of a metric, and return the number of rejected ones by reason.

        A point more than a minute ahead of the hub's clock takes the hub's time, so that the points after it still
        count once the sender's clock is set right.

        Args:
            of_data: the metric's data.
            data: the name of their field in the metric.
            writer: the start of the process.
            now: the hub's clock in nanoseconds.
        """
        delta = getattr(of_data, "aggregation_temporality", 0) == AGGREGATION_TEMPORALITY_DELTA
        return self.take_points(self._decoded(of_data, data, writer, now, delta=delta), writer, now, delta=delta)

    def _decoded(self, of_data: Any, data: str, writer: Hashable, now: int, *, delta: bool) -> Iterator[Point]:
        # Those of exponential histograms are read by the method, which also keeps their buckets.
        read = _READ.get(data) or partial(self._read_exponential, writer=writer, now=now, delta=delta)
        for point in of_data.data_points:
            series = self._series_of(point)
            if isinstance(series, str):
                yield series, 0, 0, series
            else:
                yield series, point.start_time_unix_nano, point.time_unix_nano, read(point, series)

    def take_points(self, points: Iterable[Point], writer: Hashable, now: int, *, delta: bool) -> dict[Reason, int]:
        """Take points that have been read; the rest is as for :meth:`take`.

        Args:
            points: in their order.
            writer: as above.
            now: as above.
            delta: they are differences.
        """
        cumulative = self.shape in ("counter", "histogram")
        latest = now + AHEAD
        rejected: dict[Reason, int] = {}
        for series, start, sent, value in points:
            reason: Any = value if value.__class__ is str else None
            if value.__class__ is Buckets and len(value.bounds) > series.bounds:
                if self._budget.add_buckets(len(value.bounds) - series.bounds):
                    series.bounds = len(value.bounds)
                else:
                    reason = "cardinality"
            if reason is not None:
                if reason:
                    rejected[reason] = rejected.get(reason, 0) + 1
                continue
            series.seen = now
            time, ahead = sent or now, None
            if time > latest:
                self.ahead += 1
                ahead = now
            if delta:
                series.delta(writer, start, time, value, ahead)
            elif cumulative:
                series.cumulative(start, ahead or time, value)
            else:
                series.latest(ahead or time, value, now)
        return rejected

    def known(self, of_data: Any) -> list[HubSeries] | None:
        """Return the series of a metric's points; None where one has none."""
        keys = map(_key, of_data.data_points)
        series = [self._by_bytes.get(key) for key in keys]
        return None if None in series else series  # type: ignore[return-value]

    def take_beside(self, of_data: Any, writer: Hashable, now: int) -> dict[Reason, int]:
        """Take exponential histograms whose values are also in the explicit ones of the same name: for quantiles alone.

        Args and result: as for :meth:`take`.
        """
        delta = of_data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        rejected: dict[Reason, int] = {}
        for point in of_data.data_points:
            series = self._series_of(point)
            reason = series if isinstance(series, str) else self._spread(point, series, writer, now, delta=delta)
            if reason is not None:
                rejected[reason] = rejected.get(reason, 0) + 1
        return rejected

    def _read_exponential(
        self, point: ExponentialHistogramDataPoint, series: HubSeries, *, writer: Hashable, now: int, delta: bool
    ) -> Any:
        value = _without_bounds(point, series)
        if value.__class__ is Buckets:
            value = self._spread(point, series, writer, now, delta=delta) or value
        return value

    def _spread(
        self, point: ExponentialHistogramDataPoint, series: HubSeries, writer: Hashable, now: int, *, delta: bool
    ) -> Reason | None:
        """Take the buckets of a point; return why not where they are refused."""
        histogram = _exponential(point)
        if isinstance(histogram, str):
            return histogram
        if not histogram.total:
            return None
        spread = series.spread or HubSpread()
        buckets = max(spread.width, width(histogram))
        if buckets > series.buckets:
            if not self._budget.add_buckets(buckets - series.buckets):
                return "cardinality"
            series.buckets = buckets
        series.spread = spread
        series.seen = now
        start = point.start_time_unix_nano
        time = point.time_unix_nano or now
        is_ahead = time > now + AHEAD
        if delta:
            is_new = spread.delta(writer, start, time, histogram, is_ahead=is_ahead)
        else:
            is_new = spread.cumulative(start, now if is_ahead else time, histogram)
        series.unsaved = series.unsaved or is_new
        return None

    def _series_of(self, point: Any) -> HubSeries | Reason:
        key = _key(point)
        series = self._by_bytes.get(key)
        return series or self._new_series(key, point.attributes)

    def _new_series(self, key: tuple[bytes, ...], attributes: Iterable[KeyValue]) -> HubSeries | Reason:
        if sum(map(len, key)) > MOST_BYTES:
            return "cardinality"
        series = self.add(plain_attributes(attributes))
        if isinstance(series, str):
            return series
        if len(self._by_bytes) > 4 * len(self.by_attributes) + _ALIASES:
            self._by_bytes.clear()
        self._by_bytes[key] = series
        return series

    def add(self, attributes: Attributes) -> HubSeries | Reason:
        """Return the series with these attributes, new where there was none; the reason where it is refused."""
        name = canonical(attributes)
        series = self.by_attributes.get(name)
        if series is not None:
            return series
        new_series = self._make(attributes)
        if not isinstance(new_series, str):
            self.by_attributes[name] = new_series
        return new_series

    def series(self) -> list[HubSeries]:
        """Return all series."""
        return list(self.by_attributes.values())

    def remove(self, gone: set[HubSeries]) -> None:
        """Remove series."""
        self.by_attributes = {name: each for name, each in self.by_attributes.items() if each not in gone}
        self._by_bytes = {key: each for key, each in self._by_bytes.items() if each not in gone}


def _key(point: Any) -> tuple[bytes, ...]:
    attributes = point.attributes
    return tuple(map(KeyValue.SerializeToString, attributes[:])) if attributes else ()


def canonical(attributes: Attributes) -> str:
    """Return attributes as JSON: the same text for the same attributes; 1, 1.0 and true differ."""
    return json.dumps(attributes, separators=(",", ":")) if attributes else "[]"


def read_back(text: str) -> Attributes:
    """Return the attributes of a :func:`canonical` text."""
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in json.loads(text))


def _number(point: NumberDataPoint, series: HubSeries) -> Any:
    kind = point.WhichOneof("value")
    if kind is None or (point.flags and point.flags & NO_VALUE):
        return "" if point.flags & NO_VALUE else "no_value"
    value = point.as_double if kind == "as_double" else point.as_int
    return value if series.shape == "gauge" else summable(value, series.shape)


def summable(value: float, shape: Shape) -> float | Reason:
    """Return the value of a sum or a counter; why not, where it cannot be added."""
    if value - value:  # neither NaN nor an infinity can be added to
        return "nonfinite"
    if value < 0 and shape == "counter":
        return "negative"
    return value


def _histogram(point: HistogramDataPoint, series: HubSeries) -> Any:
    if point.flags and point.flags & NO_VALUE:
        return ""
    total = point.sum
    if total - total:
        return "nonfinite"
    of_counts, of_bounds = point.bucket_counts, point.explicit_bounds  # each is made anew when it is asked for
    if len(of_bounds) > MOST_BOUNDS or len(of_counts) > MOST_BOUNDS + 1:
        return "too_large"
    exemplars = point.exemplars
    if exemplars:
        series.exemplars = tuple(map(_exemplar, exemplars[-_EXEMPLARS:]))
    if len(of_counts) < 2:  # noqa: PLR2004 - one bucket has no bound: it is the count
        return Buckets(point.count, total, (), ()) if not of_bounds else "malformed"
    counts, bounds = tuple(of_counts[:]), tuple(of_bounds[:])  # a slice is a list: quicker than to go over them
    known = series.value if series.value is not None else series.before
    is_known = known is not None and known.bounds == bounds
    if len(counts) != len(bounds) + 1 or not (is_known or _ascending(bounds)):
        return "malformed"
    bounds = known.bounds if is_known else bounds
    return Buckets(sum(counts), total, counts, bounds)


def _ascending(bounds: tuple[float, ...]) -> bool:
    return all(map(math.isfinite, bounds)) and all(map(float.__lt__, bounds, bounds[1:]))


def _without_bounds(point: ExponentialHistogramDataPoint | SummaryDataPoint, series: HubSeries) -> Any:  # noqa: ARG001
    if point.flags & NO_VALUE:
        return ""
    total = point.sum
    return "nonfinite" if total - total else Buckets(point.count, total, (), ())


def _exponential(point: ExponentialHistogramDataPoint) -> ExponentialHistogram | Reason:
    """Return the buckets of a point, at the scale that is kept; why not, where they are none of floats.

    Values that are as near to zero as its threshold count as zero.
    """
    sides = point.positive, point.negative
    if max(len(side.bucket_counts) for side in sides) > MOST_BUCKETS:
        return "too_large"
    low = point.min if point.HasField("min") and math.isfinite(point.min) else math.nan
    high = point.max if point.HasField("max") and math.isfinite(point.max) else math.nan
    if low > high:
        low = high = math.nan
    positive, negative = (trimmed(ExponentialBuckets(side.offset, tuple(side.bucket_counts[:]))) for side in sides)
    histogram = ExponentialHistogram(point.scale, point.zero_count, positive, negative, low, high)
    try:
        check(histogram)
    except ValueError:
        return "malformed"
    return joined((histogram.at_scale(min(histogram.scale, FINEST)),))


def _exemplar(found: Any) -> Exemplar:
    value = float(found.as_double if found.WhichOneof("value") == "as_double" else found.as_int)
    trace, span = int.from_bytes(found.trace_id[:16], "big"), int.from_bytes(found.span_id[:8], "big")
    return Exemplar(value, found.time_unix_nano, trace, span)


_READ: dict[str, Callable[[Any, HubSeries], Any]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "summary": _without_bounds,
}
