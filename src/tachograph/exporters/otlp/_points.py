"""One instrument's points as bytes of an OTLP ``Metric``. Source: OpenTelemetry specification, "Metrics Data Model".

Everything of a series that stays the same (its attributes) or of an instrument (name, unit, description, boundaries) is
encoded once; an export packs times and numbers, which have a fixed length, and puts all of it together. Field numbers
are those of ``opentelemetry/proto/metrics/v1/metrics.proto``, the form is that of "Protocol Buffers: Encoding".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from operator import is_not, ne, or_
from struct import Struct
from typing import NamedTuple, cast

from tachograph.exporters._spreads import Spread
from tachograph.exporters.otlp._message import DATA, METRIC, Form, Lose, Part, metric_head, scope_head
from tachograph.exporters.otlp.values import encoded_attributes, varint
from tachograph.recording.exponential import ExponentialBuckets
from tachograph.recording.interrupts import pass_on
from tachograph.recording.own_metrics import EXPORT_DURATION, OWN_GROUP
from tachograph.recording.points import Attributes, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.summary import Exemplar, ValueSummary
from tachograph.recording.values import as_float, fits_int64

BESIDE = "tachograph.beside"  # metadata of a message whose values are also in the explicit histogram of its name

# The tag of a field is its number times 8, and 0 for a varint, 1 for eight bytes, 2 for a length and so many bytes.
_POINT = b"\x0a"  # data_points, 1 of each kind
_DELTA, _CUMULATIVE = b"\x10\x01", b"\x10\x02"  # aggregation_temporality, 2
_MONOTONIC = b"\x18\x01"  # Sum.is_monotonic, 3
_IS_BESIDE = b"\x62\x17\x0a\x11" + BESIDE.encode() + b"\x12\x02\x10\x01"  # Metric.metadata, 12: one KeyValue, true
_BESIDE_END = _DELTA + _IS_BESIDE
_START, TIME = 0x11, 0x19  # 2 and 3, of every kind of point
# NumberDataPoint: as_double is 4, as_int 6, attributes 7.
DOUBLE, _INT = Struct("<BQBd").pack, Struct("<BQBq").pack
_DOUBLE_SINCE, _INT_SINCE = Struct("<BQBQBd").pack, Struct("<BQBQBq").pack
AS_DOUBLE, _AS_INT = 0x21, 0x31
_NUMBER_BYTES, _SINCE_BYTES = 18, 27  # time and value, and start
# HistogramDataPoint and ExponentialHistogramDataPoint: count is 4, sum 5; both have exemplars, attributes and extremes.
_COUNT, _SUM_OF = 0x21, 0x29
_LEAST, _GREATEST = 0x59, 0x61  # of explicit buckets: 11 and 12
_EXTREME = Struct("<Bd").pack
_SINCE = Struct("<BQB").pack  # start, and the tag of the time
_EXEMPLAR = Struct("<BBBQBd2s8s2s16s").pack  # time 2, as_double 3, span_id 4, trace_id 5
_EXEMPLAR_BYTES = 46


class MetricTemplate:
    """The constant parts of an instrument and its series, and its points as bytes; used by one thread at a time.

    Args:
        metric: the instrument.
        is_delta: sums and histograms are differences; else they are cumulative.

    Attributes:
        scope: the beginning of the message of its scope.
    """

    __slots__ = (
        *("_boundaries", "_is_histogram", "_is_sum", "_layout", "_name", "_series"),
        *("_alone", "_beside", "_exponential", "_form", "_sent", "scope"),
    )

    def __init__(self, metric: MetricPoints, *, is_delta: bool) -> None:
        self.scope = scope_head(metric.scope)
        self._name, self._is_sum = metric.name, metric.kind == "counter"
        head = metric_head(metric.name, metric.description, metric.unit)
        temporality = _DELTA if is_delta else _CUMULATIVE
        if metric.kind == "gauge":
            self._form = Form(head, DATA["gauge"])
        elif metric.kind == "counter":
            self._form = Form(head, DATA["sum"], temporality + _MONOTONIC)
        else:
            self._form = Form(head, DATA["histogram"], temporality)
            self._exponential = Form(head, DATA["exponential_histogram"], temporality)
            self._beside = Form(head, DATA["exponential_histogram"], _DELTA, _IS_BESIDE)
        self._is_histogram = metric.kind == "histogram"
        self._series: dict[int, tuple[bytes, bytes, bytes, Attributes]] = {}
        self._alone: tuple[bytes, bytes, Attributes | None] = b"", b"", None
        self._boundaries: tuple[float, ...] | None = None
        self._layout = _layout(())
        self._sent: Sequence[object] = ()

    def news(self, metric: MetricPoints, *, whole: bool) -> MetricPoints | None:
        """Return the instrument with the points that have changed since the last call; None where none has.

        Args:
            metric: the instrument, as it was collected now.
            whole: return all of them.
        """
        before = self._sent
        if self._is_histogram:  # a summary is another one as soon as it has another value
            histograms = cast("Sequence[HistogramPoint]", metric.points)
            self._sent = states = [point.summary for point in histograms]
            ended = [point.interval is not None and not point.interval.is_empty for point in histograms]
            is_new: Iterable[bool] = map(or_, ended, map(is_not, states, before))
            is_same = states == before and True not in ended
        else:
            self._sent = metric.points
            is_new = map(ne, metric.points, before)
            is_same = metric.points == before  # mostly the same objects
        if whole or len(self._sent) != len(before):  # else those of a series are at the same place
            return metric
        return None if is_same else metric._replace(points=list(compress(metric.points, is_new)))

    def _constants(self, attributes: Attributes, many: int) -> tuple[bytes, bytes, bytes, Attributes]:
        """Return the constant bytes of a series, and its attributes.

        Of a number: the beginning of its point, that of one with a start, and the attributes. Of a histogram: the
        attributes of a point with exponential buckets, nothing, and those of one with explicit ones. They are found by
        their address, which they keep as long as they are kept here. If a source makes them anew
        each time, the old ones go.
        """
        found = self._series.get(id(attributes))
        if found is None:
            if len(self._series) > 2 * many + _SPARE:
                self._series.clear()
            if self._is_histogram:
                found = (
                    encoded_attributes(attributes, b"\x0a"),
                    b"",
                    encoded_attributes(attributes, b"\x4a"),
                    attributes,
                )
            else:
                tail = encoded_attributes(attributes, b"\x3a")
                found = (
                    _before_number(len(tail), _NUMBER_BYTES),
                    _before_number(len(tail), _SINCE_BYTES),
                    tail,
                    attributes,
                )
            self._series[id(attributes)] = found
        return found

    def numbers(self, points: Sequence[NumberPoint], now: int, lose: Lose, many: int) -> Part:
        """Return points of a gauge or a counter.

        Args:
            points: some of the instrument's.
            now: when they were collected, in nanoseconds since the epoch: the time of those that have none of their
                own.
            lose: called with a number of points that cannot be encoded, and the reason: one never costs another.
            many: how many points the instrument has.
        """
        found: list[bytes] = []
        lost = 0
        for point in points:
            has_start = self._is_sum or bool(point.time_unix_nano)
            try:
                before, since, after, _ = self._constants(point.attributes, many)
                found += since if has_start else before, packed_number(point, now, has_start=has_start), after
            except Exception as error:  # noqa: BLE001 - any attribute's __str__ may fail
                pass_on(error)
                lost += 1
                lose(1, f"{self._name}: {type(error).__name__}: {error}")
        return Part(self.scope, ((self._form, found),), len(points) - lost)

    def alone(self, metric: MetricPoints, now: int) -> tuple[bytes, bytes, bytes] | None:
        """Return the whole message with the only point of a gauge or a counter; None where :meth:`numbers` has to.

        Most metrics have one series, and no message changes its length then.
        """
        try:
            (point,) = cast("tuple[NumberPoint]", metric.points)
            attributes, value, _, time = point
            if time:
                return None
            before, after, of = self._alone
            if of is not attributes:
                tail = encoded_attributes(attributes, b"\x3a")
                numbers = _SINCE_BYTES if self._is_sum else _NUMBER_BYTES
                head = _before_number(len(tail), numbers)
                before = self._form.begin(len(head) + numbers + len(tail)) + head
                after = tail + self._form.end
                self._alone = before, after, attributes
            if value.__class__ is float and not self._is_sum:
                return before, DOUBLE(TIME, now, AS_DOUBLE, value), after
            return before, packed_number(point, now, has_start=self._is_sum), after
        except Exception as error:  # noqa: BLE001 - numbers() says it
            pass_on(error)
            return None

    def histogram_alone(self, point: HistogramPoint, now: int) -> list[bytes] | None:
        """Return the whole message with the only point of a histogram; None where :meth:`histograms` has to."""
        try:
            found = self._histogram(point, now, self._constants(point.attributes, 1)[2])
            return [self._form.begin(len(found)), found, self._form.end]
        except Exception as error:  # noqa: BLE001 - histograms() says it
            pass_on(error)
            return None

    def beside_alone(self, point: HistogramPoint, spread: Spread, now: int, lose: Lose) -> list[bytes]:
        """Return the whole message beside that of :meth:`histogram_alone`; none where it cannot be encoded."""
        try:
            found = _exponential(None, spread, now, self._constants(point.attributes, 1)[0])
            return [self._beside.begin(len(found)), found, self._beside.end]
        except Exception as error:  # noqa: BLE001 - exponentials() says it
            pass_on(error)
            return self.exponentials([(point, spread)], now, lose, 1, beside=True).complete()

    def histograms(self, points: Sequence[HistogramPoint], now: int, lose: Lose, many: int) -> Part:
        """Return points of a histogram with their explicit buckets; the rest is as in :meth:`numbers`."""
        found: list[bytes] = []
        for point in points:
            attributes = point.attributes
            try:
                _, _, tail, _ = self._series.get(id(attributes)) or self._constants(attributes, many)
                found.append(self._histogram(point, now, tail))
            except Exception as error:  # noqa: BLE001 - see above
                pass_on(error)
                lose(1, f"{self._name}: {type(error).__name__}: {error}")
        return Part(self.scope, ((self._form, found),), len(found))

    def _histogram(self, point: HistogramPoint, now: int, attributes: bytes) -> bytes:
        boundaries, summary = point.boundaries, point.summary
        if boundaries is not self._boundaries:
            self._boundaries, self._layout = boundaries, _layout(boundaries)
        pack, before, after = self._layout
        count, total = summary.count, as_float(summary.total.value())
        start = point.start_unix_nano
        if boundaries:
            packed = pack(_START, start, TIME, now, _COUNT, count, _SUM_OF, total, before, *summary.buckets, after)
        else:
            packed = pack(_START, start, TIME, now, _COUNT, count, _SUM_OF, total)
        low, high = summary.minimum, summary.maximum
        # Of a difference they are not always known.
        least = _EXTREME(_LEAST, low) if count and low == low else b""  # noqa: PLR0124 - not for NaN
        greatest = _EXTREME(_GREATEST, high) if count and high == high else b""  # noqa: PLR0124
        exemplars = _exemplars(0x42, point.exemplars) if point.exemplars else b""
        return delimited(packed, exemplars, attributes, least, greatest)

    def exponentials(
        self, spreads: Sequence[tuple[HistogramPoint, Spread]], now: int, lose: Lose, many: int, *, beside: bool
    ) -> Part:
        """Return points of a histogram with exponential buckets; the rest is as in :meth:`numbers`.

        Args:
            spreads: some of the instrument's, each with its values.
            now: as above.
            lose: as above.
            many: as above.
            beside: the values are also in the explicit histogram of the same name: only quantiles come from these.
        """
        found: list[bytes] = []
        for point, spread in spreads:
            attributes = point.attributes
            try:
                encoded = self._constants(attributes, many)[0]
                found.append(_exponential(None if beside else point, spread, now, encoded))
            except Exception as error:  # noqa: BLE001 - see above
                pass_on(error)
                lose(1, f"{self._name}: {type(error).__name__}: {error}")
        return Part(self.scope, ((self._beside if beside else self._exponential, found),), len(found))


def is_echo(scope: str, name: str) -> bool:
    """Tell whether exporting alone gives a metric new values: sent as news, they would be the reason for the next."""
    return scope == OWN_GROUP and name == EXPORT_DURATION.name


def number_frame(named: tuple[str, str, str], attributes: Attributes) -> tuple[bytes, bytes]:
    """Return the message of a gauge with one point, before its time and value, and after them.

    Args:
        named: name, description and unit.
        attributes: of the point.
    """
    tail = encoded_attributes(attributes, b"\x3a")
    head = _before_number(len(tail), _NUMBER_BYTES)
    return Form(metric_head(*named), DATA["gauge"]).begin(len(head) + _NUMBER_BYTES + len(tail)) + head, tail


def beside_frame(named: tuple[str, str, str], attributes: Attributes) -> tuple[bytes, bytes]:
    """Return the constant parts of the message beside an explicit histogram's, for :func:`beside_message`.

    Args:
        named: name, description and unit.
        attributes: of the point.
    """
    return metric_head(*named) + DATA["exponential_histogram"], encoded_attributes(attributes, b"\x0a")


def beside_message(frame: tuple[bytes, bytes], spread: Spread, now: int) -> tuple[bytes, bytes, bytes]:
    """Return the whole message beside an explicit histogram's, in pieces.

    Args:
        frame: of :func:`beside_frame`.
        spread: the values.
        now: when they were collected, in nanoseconds since the epoch.
    """
    head, attributes = frame
    point = _exponential(None, spread, now, attributes)
    head += varint(len(point) + len(_DELTA))
    return METRIC + varint(len(head) + len(point) + len(_BESIDE_END)) + head, point, _BESIDE_END


def histogram_frame(
    named: tuple[str, str, str], attributes: Attributes, boundaries: tuple[float, ...], start: int
) -> bytes:
    """Return the message of a cumulative histogram with one point, before the part of :func:`packed_histogram`.

    Args:
        named: name, description and unit.
        attributes: of the point.
        boundaries: of its buckets.
        start: when it began, in nanoseconds since the epoch.
    """
    tail = encoded_attributes(attributes, b"\x4a") + _SINCE(_START, start, TIME)
    numbers = histogram_layout(boundaries).size - len(_CUMULATIVE)
    head = _before_number(len(tail), numbers)
    form = Form(metric_head(*named), DATA["histogram"], _CUMULATIVE)
    return form.begin(len(head) + len(tail) + numbers) + head + tail


class HistogramLayout(NamedTuple):
    """The layout behind :func:`histogram_frame`: time, count and sum of a point, its buckets and extremes.

    Attributes:
        pack: takes what :func:`packed_histograms` gives it.
        size: the bytes that it returns.
        before: those before the counts of the buckets.
        after: those behind them, with the bounds, up to the least value.
    """

    pack: Callable[..., bytes]
    size: int
    before: bytes
    after: bytes


@lru_cache(64)
def histogram_layout(boundaries: tuple[float, ...]) -> HistogramLayout:
    """Return the layout for the boundaries of buckets."""
    _, before, after = _bucket_layout(boundaries)
    after += bytes((_LEAST,))
    counts = len(boundaries) + 1 if boundaries else 0
    struct = Struct(f"<QBQBd{len(before)}s{counts}Q{len(after)}sdBd{len(_CUMULATIVE)}s")
    return HistogramLayout(struct.pack, struct.size, before, after)


def packed_histograms(
    frames: Iterable[bytes], layouts: Iterable[HistogramLayout], summaries: Iterable[ValueSummary], now: int
) -> list[bytes]:
    """Return whole messages, in pieces: each :func:`histogram_frame` with the fields behind it.

    Args:
        frames: of the messages.
        layouts: of what is behind them.
        summaries: of at least one value each.
        now: when they were collected, in nanoseconds since the epoch.
    """
    found: list[bytes] = []
    for frame, (pack, _, before, after), summary in zip(frames, layouts, summaries, strict=True):
        integers, floats, lost = summary.total
        numbers = pack(  # no tuple of them is made for it: that takes a third of the time
            now,
            _COUNT,
            summary.count,
            _SUM_OF,
            as_float(summary.total.value()) if integers else floats + lost,
            before,
            *summary.buckets,
            after,
            summary.minimum,
            _GREATEST,
            summary.maximum,
            _CUMULATIVE,
        )
        found += frame, numbers
    return found


_SPARE = 64  # series whose attributes are kept though they may be gone


@lru_cache(1024)
def _before_number(attributes: int, numbers: int) -> bytes:
    return _POINT + varint(attributes + numbers)


@lru_cache(64)
def _layout(boundaries: tuple[float, ...]) -> tuple[Callable[..., bytes], bytes, bytes]:
    """Return the packer of a histogram's numbers, and the bytes before and after its counts."""
    struct, before, after = _bucket_layout(boundaries)
    return struct.pack, before, after


def _bucket_layout(boundaries: tuple[float, ...]) -> tuple[Struct, bytes, bytes]:
    fixed = "<BQBQBQBd"
    if not boundaries:
        return Struct(fixed), b"", b""
    counts = len(boundaries) + 1
    before = b"\x32" + varint(8 * counts)  # bucket_counts, 6
    after = b"\x3a" + varint(8 * len(boundaries)) + Struct(f"<{len(boundaries)}d").pack(*boundaries)  # its bounds, 7
    return Struct(f"{fixed}{len(before)}s{counts}Q{len(after)}s"), before, after


def packed_number(point: NumberPoint, now: int, *, has_start: bool) -> bytes:
    """Return the times and the value of a point."""
    _, value, start, time = point
    if fits_int64(value):
        number, tag, packs = int(value), _AS_INT, (_INT, _INT_SINCE)
    else:
        number, tag, packs = as_float(value), AS_DOUBLE, (DOUBLE, _DOUBLE_SINCE)  # type: ignore[assignment]
    if has_start:
        return packs[1](_START, start, TIME, time or now, tag, number)
    return packs[0](TIME, now, tag, number)


def delimited(*parts: bytes) -> bytes:
    """Return the parts of a point as one of a metric's points."""
    return b"".join((_POINT, varint(sum(map(len, parts))), *parts))


def _exemplars(tag: int, exemplars: Sequence[Exemplar]) -> bytes:
    found = []
    for value, time, trace, span in exemplars:
        ids = b"\x22\x08", span.to_bytes(8, "big"), b"\x2a\x10", trace.to_bytes(16, "big")
        found.append(_EXEMPLAR(tag, _EXEMPLAR_BYTES, 0x11, time, 0x19, value, *ids))
    return b"".join(found)


_EXPONENTIAL_HEAD = Struct("<BQBQBQBBBQ").pack  # start, time, count, scale and zeros


def _exponential(point: HistogramPoint | None, spread: Spread, now: int, attributes: bytes) -> bytes:
    """Return a point with exponential buckets; one for our own hub, beside another one, has no explicit point."""
    start, (scale, zeros, positive, negative, low, high) = spread
    total = zeros + sum(positive.counts) + sum(negative.counts)
    fields = 0x30, 2 * scale if scale >= 0 else -2 * scale - 1, 0x39, zeros  # 6, of a byte at all scales, and 7
    parts = [attributes, _EXPONENTIAL_HEAD(_START, start, TIME, now, _COUNT, total, *fields)]
    if positive.counts:
        parts += b"\x42", *_buckets(positive)
    if negative.counts:
        parts += b"\x4a", *_buckets(negative)
    if point is not None:
        parts.append(_EXTREME(_SUM_OF, as_float(point.summary.total.value())))
        # Of a difference the summary does not always know them, of a part of the values the histogram does not.
        low = low if math.isnan(point.summary.minimum) else point.summary.minimum
        high = high if math.isnan(point.summary.maximum) else point.summary.maximum
        parts.append(_exemplars(0x5A, point.exemplars))
    if total and not math.isnan(low):
        parts.append(_EXTREME(0x61, low))
    if total and not math.isnan(high):
        parts.append(_EXTREME(0x69, high))
    return delimited(*parts)


def _buckets(side: ExponentialBuckets) -> tuple[bytes, ...]:
    """Return the buckets of a side, in pieces, the length before them."""
    offset, counts = side
    try:
        packed = bytes(counts)
    except ValueError:  # one is above 255
        packed = b""
    if not packed.isascii() or not packed:  # a varint of at most seven bits is the number itself
        packed = b"".join(map(varint, counts))
    at, length = varint(2 * offset if offset >= 0 else -2 * offset - 1), varint(len(packed))  # the first in zigzag
    return varint(2 + len(at) + len(length) + len(packed)), b"\x08", at, b"\x12", length, packed
