"""Columns of a collection as bytes of OTLP messages: one message a series, its constant parts encoded once.

An export packs times and numbers, which have a fixed length, and puts them between those parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import add
from struct import Struct
from typing import Any

from tachograph.exporters._spreads import Spread, Spreads
from tachograph.exporters.otlp._message import Lose, Part, Whole, scope_head
from tachograph.exporters.otlp._points import (
    AS_DOUBLE,
    DOUBLE,
    TIME,
    MetricTemplate,
    beside_frame,
    beside_message,
    histogram_frame,
    histogram_layout,
    number_frame,
    packed_histograms,
    packed_number,
)
from tachograph.recording.columns import Column, GaugeColumn, HistogramColumn, Rows
from tachograph.recording.interrupts import pass_on
from tachograph.recording.intervals import NOTHING
from tachograph.recording.points import HistogramPoint, NumberPoint
from tachograph.recording.summary import ValueSummary
from tachograph.recording.values import Number

_GAUGES, _HISTOGRAMS = 128, 64  # between two rests
_LONG = 2048  # bytes of a series' constant parts: one that has more is a part of its own
_WHOLE = Whole()

Frame = tuple[bytes, bytes]  # the constant parts of a message, before its numbers and after them
_NONE: Frame = b"", b""


class _Frames:
    """The constant parts of a column's messages.

    Args:
        rows: of the column.
        before: those of the last collection, most of whose series are the same ones.
        frame: returns the parts of a series, by its place.

    Attributes:
        rows: see above.
        said: the descriptions, by place: a later declaration may bring one.
        found: the parts, by place.
        failed: why a series cannot be encoded, by place.
        long: the places of those that leave by themselves.
    """

    def __init__(self, rows: Rows[Any], before: _Frames | None, frame: Callable[[int], Frame]) -> None:
        self.rows = rows
        self.said = [_description(rows, place) for place in range(len(rows))]
        known: dict[tuple[object, ...], Frame] = {}
        if before is not None:
            of = zip(before.rows.series, before.said, before.rows.starts, strict=True)
            known = dict(zip(of, before.found, strict=True))
        self.found: list[Frame] = []
        self.failed: dict[int, str] = {}
        self.long: list[int] = []
        for place, series in enumerate(rows.series):
            parts = known.get((series, self.said[place], rows.starts[place]), _NONE)
            try:
                parts = frame(place) if parts is _NONE else parts
            except Exception as error:  # noqa: BLE001 - any attribute's __str__ may fail
                pass_on(error)
                self.failed[place] = f"{rows.metrics[place].name}: {type(error).__name__}: {error}"
            self.found.append(parts)
            if sum(map(len, parts)) > _LONG:
                self.long.append(place)

    def chosen(self, wanted: list[bool], lose: Lose, size: int) -> Iterator[list[int]]:
        """Yield the places that are wanted, in slices of a size; those of long messages, and of lost ones, apart."""
        for place in [*self.failed, *self.long]:
            if wanted[place]:
                wanted[place] = False
                if place in self.failed:
                    lose(1, self.failed[place])
                else:
                    yield [place]
        places = list(compress(range(len(wanted)), wanted))
        for start in range(0, len(places), size):
            yield places[start : start + size]


def _part(scope: bytes, content: list[bytes], points: int) -> Part:
    return Part(scope, ((_WHOLE, [b"".join(content)]),), points)


class NumberRun:
    """The messages of gauges with one point each, one behind the other.

    If they come together again, all of them are packed at once: that takes a third of the time.

    Args:
        frames: the parts of each around its time and value, of :func:`number_frame`.
    """

    __slots__ = ("_fields", "_frames", "_is_new", "_pack")

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames, self._is_new = frames, True
        self._fields: list[Any] = []
        self._pack: Callable[..., bytes] | None = None

    def packed(self, values: Sequence[Number], now: int) -> bytes:
        """Return the messages, with a value each."""
        numbers: Iterable[bytes]
        if set(map(type, values)) != {float}:
            numbers = [packed_number(NumberPoint((), value, 0), now, has_start=False) for value in values]
        elif self._is_new:
            self._is_new = False
            numbers = map(DOUBLE, repeat(TIME), repeat(now), repeat(AS_DOUBLE), values)
        else:
            pack, fields = self._pack or self._prepared(), self._fields
            fields[2::5], fields[4::5] = repeat(now, len(values)), values
            return pack(*fields)
        together = zip(self._frames, numbers, strict=True)
        return b"".join([part for (head, tail), number in together for part in (head, number, tail)])

    def _prepared(self) -> Callable[..., bytes]:
        heads, tails = zip(*self._frames, strict=True)
        between = [heads[0], *map(add, tails, heads[1:])]
        fields = [field for part in between for field in (part, TIME, 0, AS_DOUBLE, 0.0)]
        self._fields = [*fields, tails[-1]]
        self._pack = Struct("<" + "".join([f"{len(part)}sBQBd" for part in between]) + f"{len(tails[-1])}s").pack
        return self._pack


class GaugeMessages:
    """The messages of a column of gauges, from one collection to the next.

    Args:
        rows: the gauges.
        scope: the beginning of their scope's message.
        before: those of the last collection; None for none.
    """

    def __init__(self, rows: Rows[Any], scope: bytes, before: GaugeMessages | None) -> None:
        self._scope = scope

        def frame(place: int) -> Frame:
            return number_frame(_named(rows, place), rows.attributes[place])

        self.frames: _Frames = _Frames(rows, None if before is None else before.frames, frame)
        known = {} if before is None else dict(zip(before.frames.rows.series, before.sent, strict=True))
        self.sent: list[Number | None] = [known.get(series) for series in rows.series]
        self._runs: dict[int, tuple[list[int], NumberRun]] = {}  # by the first place of each

    def parts(self, column: GaugeColumn, now: int, lose: Lose, *, whole: bool) -> Iterator[Part]:
        """Yield the messages.

        Args:
            column: their values.
            now: when they were collected, in nanoseconds since the epoch.
            lose: called with a number of points that cannot be encoded, and the reason.
            whole: of all; else only of those with another value than in the last collection.
        """
        values, before, frames = column.values, self.sent, self.frames.found
        self.sent = values
        if whole:
            wanted = [value is not None for value in values]
        elif values == before:  # mostly they are the same objects
            return
        else:
            wanted = [value is not None and value != old for value, old in zip(values, before, strict=True)]
        for places in self.frames.chosen(wanted, lose, _GAUGES):
            known = self._runs.get(places[0])
            if known is None or known[0] != places:
                known = self._runs[places[0]] = places, NumberRun([frames[place] for place in places])
            found = known[1].packed([values[place] for place in places], now)  # type: ignore[misc]
            yield _part(self._scope, [found], len(places))


class HistogramMessages:
    """The messages of a column of histograms, from one collection to the next: explicit buckets, all cumulative.

    Args:
        rows: the histograms.
        scope: as above.
        before: as above.
        spreads: those of the same receiver.
    """

    def __init__(self, rows: Rows[Any], scope: bytes, before: HistogramMessages | None, spreads: Spreads) -> None:
        self._scope, self._spreads = scope, spreads
        self._layouts = [histogram_layout(series.boundaries) for series in rows.series]

        def frame(place: int) -> Frame:
            named, boundaries = _named(rows, place), rows.series[place].boundaries
            return histogram_frame(named, rows.attributes[place], boundaries, rows.starts[place]), b""

        self.frames: _Frames = _Frames(rows, None if before is None else before.frames, frame)
        self._heads = [head for head, _ in self.frames.found]
        known = {} if before is None else dict(zip(before.frames.rows.series, before.sent, strict=True))
        self.sent: list[ValueSummary | None] = [known.get(series) for series in rows.series]
        taken = [] if spreads.is_empty() else [spreads.take(rows.key(place)) for place in range(len(rows))]
        self._waiting = {place: spread for place, spread in enumerate(taken) if spread is not None}
        self._besides: dict[int, Frame] = {}
        self._templates: dict[int, MetricTemplate] = {}  # of those that have more to say

    def join(self, column: HistogramColumn, pace: Callable[[], None]) -> None:
        """Join the intervals of a collection to those that wait: none is lost where encoding fails."""
        starts, waiting = column.rows.starts, self._waiting
        for number, (place, interval) in enumerate(column.intervals.items()):
            if interval is not None and interval is not NOTHING:
                waiting[place] = self._spreads.joined(waiting.get(place), starts[place], interval)
            if number % _HISTOGRAMS == _HISTOGRAMS - 1:
                pace()

    def give_back(self) -> None:
        """Leave the intervals that wait to the spreads."""
        while self._waiting:
            place, spread = self._waiting.popitem()
            self._spreads.give_back(self.frames.rows.key(place), spread)

    def parts(self, column: HistogramColumn, now: int, lose: Lose, *, whole: bool, beside: bool) -> Iterator[Part]:
        """Yield the messages: as above, but that those with an interval that waits are new, too.

        Args:
            column: as above.
            now: as above.
            lose: as above.
            whole: as above.
            beside: yield the exponential histograms of intervals, too.
        """
        rows, summaries, before = column.rows, column.summaries, self.sent
        self.sent = list(summaries)
        waiting = self._waiting if beside else {}
        if whole:
            wanted = [summary.count + summary.nonfinite > 0 for summary in summaries]
        else:  # a summary is another one as soon as it has another value
            wanted = [new is not old and bool(new.added) for new, old in zip(summaries, before, strict=True)]
            for place in waiting:
                wanted[place] = bool(summaries[place].added)
        for places in self.frames.chosen(wanted, lose, _HISTOGRAMS):
            content, lost = self._explicit(column, places, now, lose)
            for place in places if waiting else ():
                if place in waiting and place not in lost:
                    content += self._beside(rows, place, waiting.pop(place), now, lose)
            yield _part(self._scope, content, len(places) - len(lost))

    def _explicit(
        self, column: HistogramColumn, places: Sequence[int], now: int, lose: Lose
    ) -> tuple[list[bytes], list[int]]:
        """Return the messages of explicit buckets, in pieces, and the places of those that cannot be encoded."""
        series, summaries = column.rows.series, column.summaries
        # With exemplars, or without extremes, a message has another length.
        others = [place for place in places if series[place].exemplars or not summaries[place].count]
        if not others:
            try:
                return self._packed(column, places, now), []
            except Exception as error:  # noqa: BLE001 - one never costs another
                pass_on(error)
        content: list[bytes] = []
        lost: list[int] = []
        for place in places:
            pieces = self._one(column, place, now, lose)
            content += pieces
            if not pieces:
                lost.append(place)
        return content, lost

    def _packed(self, column: HistogramColumn, places: Sequence[int], now: int) -> list[bytes]:
        of = [self._heads[place] for place in places], [self._layouts[place] for place in places]
        return packed_histograms(*of, [column.summaries[place] for place in places], now)

    def _one(self, column: HistogramColumn, place: int, now: int, lose: Lose) -> list[bytes]:
        """Return the message of one, in pieces, or nothing where it cannot be encoded."""
        try:
            if column.summaries[place].count and not column.rows.series[place].exemplars:
                return self._packed(column, [place], now)
        except Exception as error:  # noqa: BLE001 - the template says it
            pass_on(error)
        point = column.point(place)
        return self._template(column, place, point).histograms([point], now, lose, 1).complete()

    def _beside(self, rows: Rows[Any], place: int, spread: Spread, now: int, lose: Lose) -> Sequence[bytes]:
        try:
            frame = self._besides.get(place)
            if frame is None:
                frame = self._besides[place] = beside_frame(_named(rows, place), rows.attributes[place])
            return beside_message(frame, spread, now)
        except Exception as error:  # noqa: BLE001 - one never costs another
            pass_on(error)
            lose(1, f"{rows.metrics[place].name}: {type(error).__name__}: {error}")
            return ()

    def _template(self, column: HistogramColumn, place: int, point: HistogramPoint) -> MetricTemplate:
        found = self._templates.get(place)
        if found is None:
            found = self._templates[place] = MetricTemplate(column.rows.metric(place, point), is_delta=False)
        return found


def _named(rows: Rows[Any], place: int) -> tuple[str, str, str]:
    """Return the name, the description and the unit of a row."""
    of = rows.metrics[place]
    return of.name, _description(rows, place), of.unit


def _description(rows: Rows[Any], place: int) -> str:
    of = rows.metrics[place]
    return of.description or of.recorded


class ColumnMessages:
    """The messages of all columns, from one collection to the next.

    Args:
        spreads: those of the same receiver.
    """

    def __init__(self, spreads: Spreads) -> None:
        self._spreads = spreads
        self._gauges: dict[str, GaugeMessages] = {}
        self._histograms: dict[str, HistogramMessages] = {}

    def begin(self, columns: Sequence[Column], pace: Callable[[], None], *, joins: bool) -> None:
        """Begin with a collection: a column that it has not is forgotten.

        Args:
            columns: of the collection.
            pace: called between slices.
            joins: intervals are joined to those that wait.
        """
        gauges, self._gauges = self._gauges, {}
        histograms, self._histograms = self._histograms, {}
        for column in columns:
            scope, rows = column.rows.scope, column.rows
            if isinstance(column, GaugeColumn):
                known = gauges.get(scope)
                if known is None or known.frames.rows is not rows:
                    known = GaugeMessages(rows, scope_head(scope), known)
                self._gauges[scope] = known
                continue
            other = histograms.pop(scope, None)
            if other is None or other.frames.rows is not rows:
                if other is not None:
                    other.give_back()
                other = HistogramMessages(rows, scope_head(scope), other, self._spreads)
            self._histograms[scope] = other
            if joins:
                other.join(column, pace)
        for gone in histograms.values():
            gone.give_back()

    def give_back(self) -> None:
        """Leave the intervals to the spreads that wait to be sent."""
        for of in self._histograms.values():
            of.give_back()

    def parts(self, columns: Sequence[Column], now: int, lose: Lose, *, whole: bool, beside: bool) -> Iterator[Part]:
        """Yield the messages: see :meth:`GaugeMessages.parts` and :meth:`HistogramMessages.parts`."""
        for column in columns:
            if isinstance(column, GaugeColumn):
                yield from self._gauges[column.rows.scope].parts(column, now, lose, whole=whole)
            else:
                of = self._histograms[column.rows.scope]
                yield from of.parts(column, now, lose, whole=whole, beside=beside)
