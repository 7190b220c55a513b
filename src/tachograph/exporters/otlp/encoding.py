"""Metrics as OTLP requests: protobuf messages, built directly from the registry's points.

Requests are of bounded size, and between slices of points the encoder rests, since it shares the interpreter with a
program that trains. What one series holds can only cost that series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics

from tachograph.exporters._deltas import ClosedWindowReader, Deltas, Left, leave, left
from tachograph.exporters._spreads import Spread, Spreads, completed
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp._points import BYTES_PER_REQUEST, Lose, exponential_message, metric_message
from tachograph.exporters.otlp.settings import AGGREGATIONS, Aggregation, Temporality
from tachograph.exporters.otlp.values import OUT_OF_MEMORY, add_attributes, has_memory, scope_and_schema
from tachograph.recording.exponential import BUCKETS, SDK_BUCKETS, ExponentialHistogram
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import Kind
from tachograph.recording.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry

POINTS_PER_REQUEST = 1000
_SLICE = 16
_AS_DELTAS: frozenset[Kind] = frozenset({"counter", "histogram"})


class MetricsEncoder:
    """Turns batches into OTLP requests.

    Args:
        destination: whose losses are counted.
        registry: where they are counted.
        windows: whether each closed window of a Stat is a point; else there is one of the last window.
        temporality: what the registry's sums and histograms are sent as, ``lowmemory`` as deltas, all of them being
            synchronous. What SDK instruments hold leaves as it was collected.
        points_per_request: at which a request is complete.
        aggregation: of the registry's histograms, but those of Stats, whose windows keep no single values.
        beside: tells whether the receiver takes the exponential histograms of intervals, too, beside explicit ones: our
            own hub does; None where it never does.
        receiver: its address, where the next encoder for the same one goes on with what this one has not sent.
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
        deltas, spreads = left(registry, self._receiver)
        self._deltas = self._new_deltas() if deltas is None else deltas
        self._spreads = self._new_spreads() if spreads is None else spreads

    def _new_deltas(self) -> Deltas | None:
        return Deltas(_AS_DELTAS) if self._is_delta else None

    def _new_spreads(self) -> Spreads:
        whole = self._in_place and not self._is_delta
        return Spreads(whole=whole, most=SDK_BUCKETS if self._in_place else BUCKETS)

    def forget(self) -> None:
        """Start deltas and windows anew, as a forked child does, whose registry is empty."""
        self._deltas, self._spreads = self._new_deltas(), self._new_spreads()
        if self._windows is not None:
            self._windows.forget()

    def close(self) -> None:
        """Ask for no more windows, and leave the last points to the next one."""
        if self._windows is not None:
            self._windows.close()
        if self._receiver[0]:
            leave(self._registry, self._receiver, Left(self._deltas, self._spreads))

    def requests(self, batch: Batch) -> Iterator[tuple[ExportMetricsServiceRequest, int]]:
        """Yield the requests that carry a batch's metrics, each with its number of points.

        Points that tell of quantiles alone are not counted: their values are in others.
        """
        if self._in_place or self._beside is not None:
            self._spreads.add(batch.metrics, self._pace)
        sent, enough = 0, has_memory()
        filling: _Filling | None = None
        for scope, metric, beside in self._metrics(batch) if enough else ():
            size = metric.ByteSize() + (0 if beside is None else beside.ByteSize())
            if filling is not None and (filling.points >= self._limit or filling.size + size > BYTES_PER_REQUEST):
                yield filling.request, filling.points
                sent += filling.points
                filling, enough = None, has_memory()
                if not enough:
                    break
            if filling is None:
                filling = _Filling(batch.resource)
            filling.add(scope, metric, beside, size)
        if filling is not None and filling.points:
            yield filling.request, filling.points
        if not enough:
            self._lose(_points_of(batch) - sent, OUT_OF_MEMORY)

    def _metrics(self, batch: Batch) -> Iterator[tuple[ScopeMetrics, Metric, Metric | None]]:
        since_rest = 0
        scope, name = ScopeMetrics(), None
        metrics: Iterable[MetricPoints] = batch.metrics
        now = batch.time_unix_nano
        if self._windows is not None:
            now = self._windows.time_of(batch.metrics, now)
            metrics = self._windows.read(batch.metrics, now, self._pace)
        self._spreads.end(now)
        for metric in metrics:
            if metric.scope != name:
                name = metric.scope
                described, schema_url = scope_and_schema(name)
                scope = ScopeMetrics(scope=described, schema_url=schema_url)
            for start in range(0, len(metric.points), _SLICE):
                points = metric.points[start : start + _SLICE]
                for message, beside in self._messages(metric, points, now):
                    yield scope, message, beside
                since_rest += len(points)
                if since_rest >= _SLICE:
                    since_rest = 0
                    self._pace()
        if batch.sdk is not None:
            from tachograph.exporters.otlp._sdk_metrics import encoded_sdk_metrics

            for scope, message in encoded_sdk_metrics(batch.sdk, self._lose):
                yield scope, message, None
                self._pace()

    def _messages(
        self, metric: MetricPoints, points: Sequence[NumberPoint | HistogramPoint], now: int
    ) -> Iterator[tuple[Metric, Metric | None]]:
        """Yield the messages for some points of an instrument, each with the one that goes beside it."""
        spreads = self._spreads
        beside = self._beside is not None and self._beside()
        if metric.kind != "histogram" or not (self._in_place or beside):
            yield self._message(metric, points, now, self._lose), None
            return
        if self._in_place:
            explicit, placed = self._placed(metric, points, now)
            if explicit:
                yield self._message(metric, explicit, now, self._lose), None
            if placed:
                yield exponential_message(metric, placed, now, self._lose, is_delta=self._is_delta), None
            return
        refused: list[int] = []

        def lose(count: int, why: str) -> None:
            refused.append(count)
            self._lose(count, why)

        message = self._message(metric, points, now, lose)
        found = [
            (point, spread)
            for point in points
            if isinstance(point, HistogramPoint) and (spread := spreads.read(metric, point)) is not None
        ]
        again = _counted_already if refused else self._lose
        yield message, exponential_message(metric, found, now, again, is_delta=True, beside=True) if found else None

    def _placed(
        self, metric: MetricPoints, points: Sequence[NumberPoint | HistogramPoint], now: int
    ) -> tuple[Sequence[NumberPoint | HistogramPoint], list[tuple[HistogramPoint, Spread]]]:
        """Return the points that leave as they are, and those that leave with exponential buckets in their place."""
        explicit: list[NumberPoint | HistogramPoint] = []
        placed: list[tuple[HistogramPoint, Spread]] = []
        for point in points:
            if not isinstance(point, HistogramPoint) or not self._spreads.knows(metric, point):
                explicit.append(point)
            elif self._deltas is None or point.interval is not None:  # a difference comes with its interval
                shown = point if self._deltas is None else self._deltas.since(metric, point, now)
                if isinstance(shown, HistogramPoint):
                    spread = self._spreads.read(metric, point) or Spread(0, ExponentialHistogram())
                    whole = completed(spread.histogram, shown, SDK_BUCKETS)
                    placed.append((shown, Spread(shown.start_unix_nano, whole)))
        return explicit, placed

    def _message(
        self, metric: MetricPoints, points: Sequence[NumberPoint | HistogramPoint], now: int, lose: Lose
    ) -> Metric:
        deltas = self._deltas
        if deltas is None or metric.kind not in deltas.kinds:
            return metric_message(metric, points, now, lose)
        found = [deltas.since(metric, point, now) for point in points]
        added = [point for point in found if point is not None]
        return metric_message(metric, added, now, lose, is_delta=True)

    def _lose(self, points: int, why: str) -> None:
        self._registry.count_dropped("encoding", self._destination, points)
        message = "%s: a series was left out (further ones are counted): %s"
        self._log_once("encoding", message, self._destination, why)


def _points_of(batch: Batch) -> int:
    """Return how many points a batch has, those that SDK instruments hold included."""
    scopes = [scope for resource in batch.sdk.resource_metrics for scope in resource.scope_metrics] if batch.sdk else []
    theirs = [metric for scope in scopes for metric in scope.metrics]
    return sum(len(metric.points) for metric in batch.metrics) + sum(len(metric.data.data_points) for metric in theirs)


class _Filling:
    """A request that is being filled: one resource, with a message for each scope and each metric."""

    def __init__(self, resource: Mapping[str, AttributeValue]) -> None:
        self.request = ExportMetricsServiceRequest()
        self.points = self.size = 0
        self._resource = self.request.resource_metrics.add()
        add_attributes(self._resource.resource.attributes, resource.items())
        self._scopes: dict[tuple[str, bytes], ScopeMetrics] = {}
        self._from: ScopeMetrics | None = None
        self._to = ScopeMetrics()

    def add(self, scope: ScopeMetrics, metric: Metric, beside: Metric | None, size: int) -> None:
        kind = metric.WhichOneof("data") or "gauge"
        points = getattr(metric, kind).data_points
        if not points:
            return
        self.points += len(points)
        self.size += size
        if scope is not self._from:
            self._from, self._to = scope, self._scope(scope)
        _join(self._to.metrics, metric)
        if beside is not None:
            _join(self._to.metrics, beside)

    def _scope(self, scope: ScopeMetrics) -> ScopeMetrics:
        key = (scope.schema_url, scope.scope.SerializeToString(deterministic=True))
        found = self._scopes.get(key)
        if found is None:
            found = self._resource.scope_metrics.add(scope=scope.scope, schema_url=scope.schema_url)
            self._scopes[key] = found
        return found


def _join(metrics: MutableSequence[Metric], more: Metric) -> None:
    """Add a message to those of a scope; the last one of the same metric and kind takes its points."""
    kind = more.WhichOneof("data") or "gauge"
    for last in metrics[-1:-3:-1]:
        if (last.name, last.unit) != (more.name, more.unit):
            break
        if last.WhichOneof("data") == kind:
            getattr(last, kind).data_points.extend(getattr(more, kind).data_points)
            return
    metrics.append(more)


def _counted_already(_points: int, _why: str) -> None:
    """Count nothing: the explicit histogram of the same series was refused, too."""
