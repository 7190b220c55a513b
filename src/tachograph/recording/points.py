"""Points: the plain tuples that a collection returns, and that every reader turns into its own form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple, cast

from tachograph.recording.accumulators import FOLD_WAIT, Distribution
from tachograph.recording.closed_windows import Windowed
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.recording.interrupts import pass_on
from tachograph.recording.intervals import IntervalReader
from tachograph.recording.naming import Kind
from tachograph.recording.summary import Exemplar, ValueSummary
from tachograph.recording.values import Number, fits_int64, shown, unwrapped

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes = tuple[tuple[str, AttributeValue], ...]
OVERFLOW: Attributes = (("otel.metric.overflow", True),)


class NumberPoint(NamedTuple):
    """The state of one series of a gauge or a counter: at the collection, unless it has a time of its own."""

    attributes: Attributes
    value: Number
    start_unix_nano: int
    time_unix_nano: int = 0


class HistogramPoint(NamedTuple):
    """The state of one series of a histogram; ``summary.buckets`` belong to ``boundaries``.

    ``interval`` holds the values since the last collection of the same reader; None where no reader asked for them, or
    they come with the next one.
    """

    attributes: Attributes
    summary: ValueSummary
    boundaries: tuple[float, ...]
    start_unix_nano: int
    exemplars: tuple[Exemplar, ...]
    interval: ExponentialHistogram | None = None

    def exemplars_by_bucket(self) -> dict[int, Exemplar]:
        """Return the newest exemplar of each bucket that has one, by the bucket's index; the last one is ``+Inf``."""
        newest = sorted(self.exemplars, key=lambda exemplar: exemplar.time_unix_nano)
        return {bisect_left(self.boundaries, exemplar.value): exemplar for exemplar in newest}


class MetricPoints(NamedTuple):
    """One instrument as it is at a collection; cumulative. ``scope`` is the metric group.

    A gauge of windows has one point, that of the last window that has closed; ``windows`` are all of them, for a
    :class:`tachograph.exporters._deltas.ClosedWindowReader`.
    """

    scope: str
    name: str
    unit: str
    kind: Kind
    description: str
    points: Sequence[NumberPoint | HistogramPoint]
    windows: Windowed | None = None

    def without_intervals(self) -> MetricPoints:
        """Return it as it stands until the next interval of a reader ends."""
        if self.kind != "histogram":
            return self
        histograms = cast("Sequence[HistogramPoint]", self.points)
        return self._replace(points=[point._replace(interval=None) for point in histograms])


# A named tuple's own class takes three times as long, and a collection makes one a series: these take all its fields.
number_point = cast("Callable[[tuple[Attributes, Number, int, int]], NumberPoint]", partial(tuple.__new__, NumberPoint))


def attributes_key(
    attributes: Mapping[str, object], leave_out: Callable[[str, Exception], object] | None = None
) -> Attributes:
    """Return attributes in their sorted, hashable form: copies, with nothing of the program's own classes in them.

    Args:
        attributes: as the program gave them.
        leave_out: called for each whose own code raises, with its key and the exception; by default that is raised.

    Raises:
        TypeError: it is no mapping, a key is no string, or a value is nothing that OpenTelemetry takes.
        ValueError: a key is empty.
    """
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be a mapping, not {type(attributes).__name__}: {attributes!r:.100}")
    found: list[tuple[str, AttributeValue]] = []
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise TypeError(f"an attribute's key must be a string, not {type(key).__name__}: {shown(key)}")
        name = str.__str__(key)  # a subclass may have a hash of its own
        if not name:
            raise ValueError("an attribute's key must not be empty")
        if value.__class__ in _PLAIN:  # no code of an attribute's own: only a signal handler raises here
            found.append((encodable(name), _attribute_value(name, value)))
            continue
        try:
            found.append((encodable(name), _attribute_value(name, value)))
        except TypeError:
            raise
        except Exception as error:
            pass_on(error)
            if leave_out is None:
                raise
            leave_out(name, error)
    return tuple(sorted(found, key=_by_key))


_by_key = itemgetter(0)
_PLAIN = frozenset((str, bool, int, float))


def _attribute_value(key: str, value: object) -> AttributeValue:
    if isinstance(value, str):
        return encodable(str.__str__(value))
    if isinstance(value, bool):
        return value
    if isinstance(value, int):  # OTLP carries 64 bits
        whole = int.__int__(value)
        return whole if fits_int64(whole) else str(whole)
    if isinstance(value, float):
        return float.__float__(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return _attribute_value(key, unwrapped(value))
    if isinstance(value, list | tuple) and all(isinstance(part, str | bool | int | float) for part in value):
        return tuple(_attribute_value(key, part) for part in value)  # type: ignore[return-value]
    raise TypeError(
        f"attribute {key!r:.100} must be a string, bool, int, float or a sequence of them, "
        f"not {type(value).__name__}: {shown(value)}"
    )


def encodable(text: str) -> str:
    """Return ``text`` with lone surrogates replaced, which UTF-8 cannot carry: they would lose a whole OTLP batch."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def identity(attributes: Attributes) -> tuple[object, ...]:
    """Return a key that keeps 1, 1.0 and True apart, which a dict does not."""
    for _, value in attributes:
        if value.__class__ is not str:
            return tuple((key, type(value), repr(value)) for key, value in attributes)
    return attributes  # most have text alone, which a dict keeps apart


SeriesKey = tuple[object, ...]


def series_key(metric: MetricPoints, point: NumberPoint | HistogramPoint) -> SeriesKey:
    """Return a key for a series among all of a collection.

    Its start is a part of it: two sources of one metric may have a series of the same attributes.
    """
    named = metric.scope, metric.name, metric.unit, metric.kind
    return series_key_of(named, point.attributes, point.start_unix_nano)


def series_key_of(named: tuple[str, str, str, Kind], attributes: Attributes, start: int) -> SeriesKey:
    """Return :func:`series_key` of its parts, the first four in one."""
    return (*named, identity(attributes), start)


def histogram_point(
    attributes: Attributes, parts: Iterable[Distribution], reader: IntervalReader | None = None
) -> HistogramPoint | None:
    """Return the point of one or several distributions with the same boundaries; None where they hold nothing.

    Args:
        attributes: of the series.
        parts: what it is made of.
        reader: whose intervals end here.
    """
    found: ValueSummary | None = None
    start = 0
    exemplars: dict[int, Exemplar] = {}
    boundaries: tuple[float, ...] = ()
    interval: ExponentialHistogram | None = None
    for part in parts:
        more, ended = (part.summary(), None) if reader is None else part.read(reader, FOLD_WAIT)
        if not more.added:
            continue
        exemplars.update(part.exemplars or {})
        if ended is not None:
            interval = ended if interval is None else interval.plus(ended)
        if found is None:
            found, start, boundaries = more, part.start_unix_nano, part.boundaries
            continue
        start = min(start, part.start_unix_nano)
        found = found.plus(more)
    if found is None:
        return None
    shown = tuple(exemplars[key] for key in sorted(exemplars))
    return HistogramPoint(attributes, found, boundaries, start, shown, interval)
