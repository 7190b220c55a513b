"""Metrics as OTLP requests: bytes, put together from templates of each series and the numbers of a collection.

Requests are of bounded size, and between slices of points the encoder rests, since it shares the interpreter with a
program that trains. A series with an odd value costs that series alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, cast

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tachograph.exporters._deltas import ClosedWindowReader, Deltas, Left, leave, left
from tachograph.exporters._spreads import Spread, Spreads, completed
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp._columns import ColumnMessages
from tachograph.exporters.otlp._message import BYTES_PER_REQUEST, Form, Part, Whole
from tachograph.exporters.otlp._points import MetricTemplate, is_echo
from tachograph.exporters.otlp.settings import AGGREGATIONS, Aggregation, Temporality
from tachograph.exporters.otlp.values import OUT_OF_MEMORY, has_memory, resource_bytes, varint
from tachograph.recording.columns import Column, HistogramColumn, others_of
from tachograph.recording.exponential import BUCKETS, SDK_BUCKETS, ExponentialHistogram
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import Kind
from tachograph.recording.own_metrics import HARDWARE_GROUP, OWN_GROUP
from tachograph.recording.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

POINTS_PER_REQUEST = 1000
_HEARD_EVERY = 2_000_000_000  # ns: an idle process is heard so often; a hub takes it for lost after five seconds
_ECHOES_EVERY = 10_000_000_000  # ns: our own metrics are not asked more often
_OF_THE_BACKGROUND = {OWN_GROUP, HARDWARE_GROUP}  # values that the program does not record
_SLICE = 16  # points between two rests; of a gauge three count as one
_AS_DELTAS: frozenset[Kind] = frozenset({"counter", "histogram"})


class MetricsEncoder:
    """Turns batches into OTLP requests.

    Args:
        destination: whose losses are counted.
        registry: where they are counted.
        windows: whether each closed window of a Stat is a point; else there is one of the last window.
        temporality: what the registry's sums and histograms are sent as, ``lowmemory`` as deltas, all of them being
            synchronous. Points of SDK instruments leave as they were collected.
        points_per_request: at which a request is complete.
        aggregation: of the registry's histograms, but those of Stats, whose windows keep no single values.
        beside: tells whether the receiver takes the exponential histograms of intervals, too, beside explicit ones: our
            own hub does; None where it never does.
        receiver: its address, where the next encoder for the same one goes on with what this one has not sent.
        is_whole: asked once a collection, tells whether all of it is sent, else only the series that have changed since
            the last one, by more than exporting: a receiver that says so does without the rest for a while. None for
            all, as by default, where nothing needs to be known of the last one.
        pace: called between slices of points; by default a :class:`tachograph.recording.gil_yield.GilYield`.
        sdk: batches may hold what SDK instruments hold, too: its encoder is loaded now, not at the first of them, which
            may be the process's end.
    """

    def __init__(
        self,
        destination: str,
        registry: Registry,
        *,
        windows: bool = False,
        temporality: Temporality = "cumulative",
        aggregation: Aggregation = AGGREGATIONS[0],
        beside: Callable[[], bool] | None = None,
        points_per_request: int = POINTS_PER_REQUEST,
        receiver: str = "",
        is_whole: Callable[[], bool | None] | None = None,
        pace: Callable[[], None] | None = None,
        sdk: bool = True,
    ) -> None:
        if sdk:
            import tachograph.exporters.otlp._sdk_metrics  # noqa: F401
        self._destination = destination
        self._registry = registry
        self._limit = points_per_request
        self._pace = pace or GilYield()
        self._log_once = LogOnce()
        self._windows = ClosedWindowReader(registry, destination) if windows else None
        self._beside = beside
        self._in_place, self._is_delta = aggregation != AGGREGATIONS[0], temporality != "cumulative"
        self._receiver = receiver, self._in_place, self._is_delta
        self._is_whole, self._is_complete = is_whole, False
        self._sends_all, self._saw_news = True, False
        self._echoed = self._heard = 0  # when echoes, and anything, were last sent, in nanoseconds since the epoch
        self._templates: dict[tuple[str, ...], MetricTemplate] = {}
        deltas, spreads = left(registry, self._receiver)
        self._deltas = self._new_deltas() if deltas is None else deltas
        self._spreads = self._new_spreads() if spreads is None else spreads
        self._columns = ColumnMessages(self._spreads)

    def _new_deltas(self) -> Deltas | None:
        return Deltas(_AS_DELTAS) if self._is_delta else None

    def _new_spreads(self) -> Spreads:
        whole = self._in_place and not self._is_delta
        return Spreads(whole=whole, most=SDK_BUCKETS if self._in_place else BUCKETS)

    @property
    def had_news(self) -> bool | None:
        """Whether the last collection had new values of the program's; None where all are sent each time."""
        return None if self._sends_all else self._saw_news

    def forget(self) -> None:
        """Start deltas and windows anew, as a forked child does, whose registry is empty."""
        self._deltas, self._spreads = self._new_deltas(), self._new_spreads()
        self._columns = ColumnMessages(self._spreads)
        if self._windows is not None:
            self._windows.forget()

    def close(self) -> None:
        """Ask for no more windows, and leave the last points to the next one."""
        if self._windows is not None:
            self._windows.close()
        if self._receiver[0]:
            self._columns.give_back()
            leave(self._registry, self._receiver, Left(self._deltas, self._spreads))

    def requests(self, batch: Batch) -> Iterator[tuple[bytes, int]]:
        """Yield the encoded requests that carry a batch's metrics, each with its number of points.

        Points that tell of quantiles alone are not counted: their values are in others.
        """
        columns, others = others_of(batch.metrics)
        if self._in_place or self._is_delta:
            columns, others = (), batch.metrics
        joins = self._in_place or self._beside is not None
        self._spreads.begin(came=any(isinstance(column, HistogramColumn) and column.is_read for column in columns))
        if joins:
            self._spreads.add(others, self._pace)
        if batch.metrics:
            self._columns.begin(columns, self._pace, joins=joins)
        sent, enough = 0, has_memory()
        filling: _Filling | None = None
        theirs = self._sdk_parts(batch.sdk) if batch.sdk is not None else ()
        for part in chain(self._parts(batch, columns, others), theirs) if enough else ():
            size = part.size()
            if filling is not None and (filling.points >= self._limit or filling.size + size > BYTES_PER_REQUEST):
                yield filling.request(), filling.points
                sent += filling.points
                filling, enough = None, has_memory()
                if not enough:
                    break
            if filling is None:
                filling = _Filling(batch.resource)
            filling.add(part, size)
        if filling is not None and filling.points:
            self._heard = batch.time_unix_nano
            yield filling.request(), filling.points
        if not enough:
            self._lose(_points_of(batch) - sent, OUT_OF_MEMORY)

    def messages(self, batch: Batch) -> Iterator[tuple[ExportMetricsServiceRequest, int]]:
        """Yield the requests as messages, for a receiver that takes no bytes."""
        for request, points in self.requests(batch):
            yield ExportMetricsServiceRequest.FromString(request), points

    def _parts(self, batch: Batch, columns: Sequence[Column], others: Sequence[MetricPoints]) -> Iterator[Part]:
        asked = self._is_whole() if self._is_whole is not None and batch.metrics else None
        whole = asked is not False or not self._is_complete
        echoes = self._echo(batch, whole=whole)
        metrics, now = self._collected(batch, others)
        self._is_complete = self._is_complete and not batch.metrics
        beside = self._beside is not None and self._beside()
        self._sends_all = asked is None
        self._saw_news = (whole and self._saw_news) or batch.sdk is not None  # one that is whole does not tell
        for part in self._columns.parts(columns, now, self._lose, whole=whole, beside=beside):
            self._saw_news = self._saw_news or not whole
            yield part
            self._pace()
        before, after = self._templates, dict[tuple[str, ...], MetricTemplate]()
        single: list[bytes] = []  # messages of metrics with one point each, which cost little together
        scope, points, load = b"", 0, 0
        for metric in metrics:
            key = metric[:5]
            template = before.get(key) or after.get(key) or MetricTemplate(metric, is_delta=self._is_delta)
            after[key] = template
            if asked is not None:
                news = self._news_of(metric, template, whole=whole, echoes=echoes)
                if news is None:
                    continue
                metric = news  # noqa: PLW2901 - the part of it that is sent
            if single and (load >= 3 * _SLICE or template.scope is not scope or len(metric.points) > 1):
                yield Part(scope, ((Whole(), single),), points)
                self._pace()
                single, points, load = [], 0, 0
            if len(metric.points) > 1:
                yield from self._several(metric, template, now)
                continue
            scope = template.scope
            if metric.kind == "gauge" and (found := template.alone(metric, now)):
                single += found
                points, load = points + 1, load + 1
                continue
            pieces, more = self._alone(metric, template, now)
            single += pieces
            points, load = points + more, load + 3
        if single:
            yield Part(scope, ((Whole(), single),), points)
        if batch.metrics:
            self._templates = after  # one that is collected no more is forgotten
            self._is_complete = True

    def _news_of(
        self, metric: MetricPoints, template: MetricTemplate, *, whole: bool, echoes: bool
    ) -> MetricPoints | None:
        """Return the news of an instrument, for our own hub; None where there are none."""
        if is_echo(metric.scope, metric.name):
            return metric if echoes else None
        news = template.news(metric, whole=whole)
        if news is not None and not whole and metric.scope not in _OF_THE_BACKGROUND:
            self._saw_news = True
        return news

    def _echo(self, batch: Batch, *, whole: bool) -> bool:
        """Tell whether values that come of exporting alone are sent: with all, at times, and as a sign of life."""
        now = batch.time_unix_nano
        due = whole or abs(now - self._heard) >= _HEARD_EVERY or abs(now - self._echoed) >= _ECHOES_EVERY
        if due and batch.metrics:
            self._echoed = now
        return due

    def _sdk_parts(self, sdk: MetricsData) -> Iterator[Part]:
        from tachograph.exporters.otlp._sdk_metrics import encoded_sdk_metrics

        for part in encoded_sdk_metrics(sdk, self._lose):
            yield part
            self._pace()

    def _collected(self, batch: Batch, others: Sequence[MetricPoints]) -> tuple[Iterable[MetricPoints], int]:
        """Return the metrics of a batch without columns, those of windows with all their news, and their time."""
        metrics: Iterable[MetricPoints] = others
        now = batch.time_unix_nano
        if self._windows is not None:
            now = self._windows.time_of(others, now) if batch.metrics else now
            metrics = self._windows.read(others, now, self._pace)
        self._spreads.end(now)
        return metrics, now

    def _alone(self, metric: MetricPoints, template: MetricTemplate, now: int) -> tuple[Sequence[bytes], int]:
        """Return the messages of an instrument with one point, or none, and the number of points."""
        kind, deltas = metric.kind, self._deltas
        if metric.points and kind == "counter" and deltas is None:
            found = template.alone(metric, now)
            if found is not None:
                return found, 1
        elif metric.points and kind == "histogram" and deltas is None and not self._in_place:
            point = cast("HistogramPoint", metric.points[0])
            pieces = template.histogram_alone(point, now)
            if pieces is not None:
                if self._beside is not None and self._beside() and (spread := self._spreads.read(metric, point)):
                    pieces += template.beside_alone(point, spread, now, self._lose)
                return pieces, 1
        parts = list(self._part(metric, template, metric.points, now))
        return [piece for part in parts for piece in part.complete()], sum(part.points for part in parts)

    def _several(self, metric: MetricPoints, template: MetricTemplate, now: int) -> Iterator[Part]:
        since_rest = 0
        for start in range(0, len(metric.points), _SLICE):
            points = metric.points[start : start + _SLICE]
            yield from self._part(metric, template, points, now)
            since_rest += len(points)
            if since_rest >= _SLICE:
                since_rest = 0
                self._pace()

    def _part(
        self,
        metric: MetricPoints,
        template: MetricTemplate,
        points: Sequence[NumberPoint | HistogramPoint],
        now: int,
    ) -> Iterator[Part]:
        """Yield some points of an instrument, encoded."""
        many = len(metric.points)
        if metric.kind != "histogram":
            numbers = cast("Sequence[NumberPoint]", self._news(metric, points, now))
            yield template.numbers(numbers, now, self._lose, many)
            return
        histograms = cast("Sequence[HistogramPoint]", points)
        if self._in_place:
            explicit, placed = self._placed(metric, histograms, now)
            if explicit:
                histograms = cast("Sequence[HistogramPoint]", self._news(metric, explicit, now))
                yield template.histograms(histograms, now, self._lose, many)
            if placed:
                yield template.exponentials(placed, now, self._lose, many, beside=False)
            return
        refused: list[int] = []

        def lose(count: int, why: str) -> None:
            refused.append(count)
            self._lose(count, why)

        news = cast("Sequence[HistogramPoint]", self._news(metric, histograms, now))
        part = template.histograms(news, now, lose, many)
        if self._beside is not None and self._beside():
            read = self._spreads.read
            spreads = [(point, spread) for point in histograms if (spread := read(metric, point)) is not None]
            again = _counted_already if refused else self._lose
            more = template.exponentials(spreads, now, again, many, beside=True)
            part = part._replace(content=part.content + more.content)
        yield part

    def _placed(
        self, metric: MetricPoints, points: Sequence[HistogramPoint], now: int
    ) -> tuple[Sequence[HistogramPoint], list[tuple[HistogramPoint, Spread]]]:
        """Return the points that leave as they are, and those that leave with exponential buckets in their place."""
        explicit: list[HistogramPoint] = []
        placed: list[tuple[HistogramPoint, Spread]] = []
        for point in points:
            if not self._spreads.knows(metric, point):
                explicit.append(point)
            elif self._deltas is None or point.interval is not None:  # a difference comes with its interval
                shown = point if self._deltas is None else self._deltas.since(metric, point, now)
                if isinstance(shown, HistogramPoint):
                    spread = self._spreads.read(metric, point) or Spread(0, ExponentialHistogram())
                    whole = completed(spread.histogram, shown, SDK_BUCKETS)
                    placed.append((shown, Spread(shown.start_unix_nano, whole)))
        return explicit, placed

    def _news(
        self, metric: MetricPoints, points: Sequence[NumberPoint | HistogramPoint], now: int
    ) -> Sequence[NumberPoint | HistogramPoint]:
        """Return points as they are sent: differences, where they are sent as deltas."""
        deltas = self._deltas
        if deltas is None or metric.kind not in deltas.kinds:
            return points
        found = [deltas.since(metric, point, now) for point in points]
        return [point for point in found if point is not None]

    def _lose(self, points: int, why: str) -> None:
        self._registry.count_dropped("encoding", self._destination, points)
        message = (
            "%s: a series was dropped (further warnings are suppressed; see tachograph_dropped_total on /metrics): %s"
        )
        self._log_once("encoding", message, self._destination, why)


def _points_of(batch: Batch) -> int:
    """Return how many points a batch has, those that SDK instruments hold included."""
    scopes = [scope for resource in batch.sdk.resource_metrics for scope in resource.scope_metrics] if batch.sdk else []
    theirs = [metric for scope in scopes for metric in scope.metrics]
    return sum(len(metric.points) for metric in batch.metrics) + sum(len(metric.data.data_points) for metric in theirs)


class _Filling:
    """A request that is being filled: one resource, with the points of each metric by scope."""

    def __init__(self, resource: Mapping[str, AttributeValue]) -> None:
        self.points = self.size = 0
        self._resource = resource_bytes(resource)
        self._scopes: dict[bytes, dict[Form | Whole, list[bytes]]] = {}

    def add(self, part: Part, size: int) -> None:
        """Add points, which take so many bytes at most, to those of the same metric."""
        self.points += part.points
        self.size += size
        if not part.points:
            return
        forms = self._scopes.get(part.scope)
        if forms is None:
            forms = self._scopes[part.scope] = {}
        for form, pieces in part.content:
            if pieces:
                forms.setdefault(form, []).extend(pieces)

    def request(self) -> bytes:
        """Return the request."""
        found = [b"\x0a", varint(len(self._resource)), self._resource]  # ResourceMetrics.resource, 1
        for scope, forms in self._scopes.items():
            metrics = [scope]
            for form, pieces in forms.items():
                metrics.append(form.begin(sum(map(len, pieces))))
                metrics += pieces
                metrics.append(form.end)
            found += b"\x12", varint(sum(map(len, metrics)))  # scope_metrics, 2
            found += metrics
        length = varint(sum(map(len, found)))
        return b"".join((b"\x0a", length, *found))  # ExportMetricsServiceRequest.resource_metrics, 1


def _counted_already(_points: int, _why: str) -> None:
    """Count nothing: the explicit histogram of the same series was refused, too."""
