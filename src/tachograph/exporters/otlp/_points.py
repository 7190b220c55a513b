"""One instrument's points as an OTLP ``Metric`` message. Source: OpenTelemetry specification, "Metrics Data Model"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
)

from tachograph.exporters._spreads import Spread
from tachograph.exporters.otlp.values import add_attributes, text
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.recording.interrupts import pass_on
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.values import as_float, fits_int64

BYTES_PER_REQUEST = 2**20  # receivers take 4 MiB over gRPC: what is long shall not cost what is beside it
BESIDE = "tachograph.beside"  # metadata of a message whose values are also in the explicit histogram of its name

Lose = Callable[[int, str], None]


def metric_message(
    metric: MetricPoints,
    points: Sequence[NumberPoint | HistogramPoint],
    now: int,
    lose: Lose,
    *,
    is_delta: bool = False,
) -> Metric:
    """Return the message for some points of an instrument.

    Args:
        metric: the instrument.
        points: those of its points that the message shall hold.
        now: when they were collected, in nanoseconds since the epoch: the time of those that have none of their own.
        lose: called with a number of points that cannot be encoded, and the reason.
        is_delta: the points are differences; else they are cumulative.
    """
    temporality = AGGREGATION_TEMPORALITY_DELTA if is_delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    message = Metric(name=text(metric.name), unit=text(metric.unit), description=text(metric.description))
    if metric.kind == "gauge":
        message.gauge.SetInParent()
    elif metric.kind == "counter":
        message.sum.is_monotonic = True
        message.sum.aggregation_temporality = temporality
    else:
        message.histogram.aggregation_temporality = temporality
    for point in points:
        why = _add(message, point, now)
        if why:
            lose(1, f"{metric.name}: {why}")
    return message


def _add(message: Metric, point: NumberPoint | HistogramPoint, now: int) -> str:
    """Add a point, or return why it cannot be encoded: one series never costs another."""
    try:
        if isinstance(point, HistogramPoint):
            message.histogram.data_points.append(_histogram(point, now))
        else:
            _add_number(message, point, now)
    except Exception as error:  # noqa: BLE001 - any attribute's __str__ may fail, and protobuf has its own errors
        pass_on(error)
        return f"{type(error).__name__}: {error}"
    return ""


def _add_number(message: Metric, point: NumberPoint, now: int) -> None:
    points = message.sum.data_points if message.HasField("sum") else message.gauge.data_points
    added = points.add(time_unix_nano=point.time_unix_nano or now)
    try:
        if fits_int64(point.value):
            added.as_int = int(point.value)
        else:
            added.as_double = as_float(point.value)
        if message.HasField("sum") or point.time_unix_nano:
            added.start_time_unix_nano = point.start_unix_nano
        add_attributes(added.attributes, point.attributes)
    except Exception as error:
        pass_on(error)
        del points[-1]
        raise


def _histogram(point: HistogramPoint, now: int) -> HistogramDataPoint:
    spread = point.summary
    buckets: list[int] = []
    if point.boundaries:
        at_most = (*spread.at_most, spread.count)
        buckets = [at_most[0], *map(int.__sub__, at_most[1:], at_most)]
    message = HistogramDataPoint(
        time_unix_nano=now,
        start_time_unix_nano=point.start_unix_nano,
        count=spread.count,
        sum=as_float(spread.total.value()),
        bucket_counts=buckets,
        explicit_bounds=point.boundaries,
    )
    if spread.count and not math.isnan(spread.minimum):  # of a difference it is not always known
        message.min = spread.minimum
    if spread.count and not math.isnan(spread.maximum):
        message.max = spread.maximum
    add_attributes(message.attributes, point.attributes)
    _add_exemplars(message, point)
    return message


def _add_exemplars(message: HistogramDataPoint | ExponentialHistogramDataPoint, point: HistogramPoint) -> None:
    for exemplar in point.exemplars:
        message.exemplars.add(
            time_unix_nano=exemplar.time_unix_nano,
            as_double=exemplar.value,
            trace_id=exemplar.trace_id.to_bytes(16, "big"),
            span_id=exemplar.span_id.to_bytes(8, "big"),
        )


def exponential_message(
    metric: MetricPoints,
    spreads: Sequence[tuple[HistogramPoint, Spread]],
    now: int,
    lose: Lose,
    *,
    is_delta: bool,
    beside: bool = False,
) -> Metric:
    """Return the message for some points of a histogram, with exponential buckets.

    Args:
        metric: the instrument.
        spreads: those of its points that the message shall hold, each with its values.
        now: when they were collected, in nanoseconds since the epoch.
        lose: called with a number of points that cannot be encoded, and the reason.
        is_delta: the points are differences; else they are cumulative.
        beside: the values are also in the explicit histogram of the same name: only quantiles come from these.
    """
    message = Metric(name=text(metric.name), unit=text(metric.unit), description=text(metric.description))
    data = message.exponential_histogram
    data.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA if is_delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    if beside:
        message.metadata.add(key=BESIDE).value.bool_value = True
    for point, spread in spreads:
        why = _add_spread(message, point, spread, now, beside=beside)
        if why:
            lose(1, f"{metric.name}: {why}")
    return message


def _add_spread(message: Metric, point: HistogramPoint, spread: Spread, now: int, *, beside: bool) -> str:
    """Add a point, or return why it cannot be encoded."""
    try:
        made = _exponential(point, spread.histogram, beside=beside)
        made.start_time_unix_nano, made.time_unix_nano = spread.start_unix_nano, now
        message.exponential_histogram.data_points.append(made)
    except Exception as error:  # noqa: BLE001 - as in _add()
        pass_on(error)
        return f"{type(error).__name__}: {error}"
    return ""


def _exponential(
    point: HistogramPoint, histogram: ExponentialHistogram, *, beside: bool
) -> ExponentialHistogramDataPoint:
    positive, negative = histogram.positive, histogram.negative
    made = ExponentialHistogramDataPoint(count=histogram.total, scale=histogram.scale, zero_count=histogram.zeros)
    if positive.counts:
        made.positive.offset = positive.offset
        made.positive.bucket_counts.extend(positive.counts)
    if negative.counts:
        made.negative.offset = negative.offset
        made.negative.bucket_counts.extend(negative.counts)
    low, high = histogram.minimum, histogram.maximum
    if not beside:
        made.sum = as_float(point.summary.total.value())
        # Of a difference the summary does not always know them, of a part of the values the histogram does not.
        low = low if math.isnan(point.summary.minimum) else point.summary.minimum
        high = high if math.isnan(point.summary.maximum) else point.summary.maximum
        _add_exemplars(made, point)
    if histogram.total and not math.isnan(low):
        made.min = low
    if histogram.total and not math.isnan(high):
        made.max = high
    add_attributes(made.attributes, point.attributes)
    return made
