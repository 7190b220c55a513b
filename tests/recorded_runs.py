"""Runs in a store, as hubs leave them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric

from hub_requests import SECOND, START, Clock, histogram, logs, metrics, rank
from tachograph.exporters.otlp.values import add_attributes
from tachograph.hub.hub import Hub
from tachograph.recording.exponential import BUCKETS, ExponentialCounts, ExponentialHistogram

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"


def points(values: Sequence[float], metric: str = "loss", **more: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return points as a Metric logs them, one after the other."""
    return [(POINT, {"metric": metric, "x": float(x), "value": value, **more}) for x, value in enumerate(values)]


def record(
    store: Path, run: str, *sent: tuple[str, Mapping[str, Any]], number: int = 0, day: int = 0, apart: int = 1
) -> None:
    """Record a run of one rank, on a day after the first one; again, to add the points of another rank to it.

    Its events are so many nanoseconds apart.
    """
    hub = Hub(store, run=run, clock=lambda: START + day * 86_400 * SECOND)
    hub.receive_logs(logs(rank(number, run=run), *sent, stream=f"{run}-{number}", apart=apart))
    hub.close()


BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def spread_of(values: Sequence[float], most: int = BUCKETS) -> ExponentialHistogram:
    """Return the exponential histogram of some values."""
    return ExponentialCounts(most).plus(sorted(values)).histogram()


class Recorded(NamedTuple):
    """A histogram of durations of one rank.

    Attributes:
        intervals: the values of each sample, ten seconds apart.
        exact: with exponential histograms; False for a client without them.
        most: buckets of these.
    """

    name: str
    intervals: Sequence[Sequence[float]]
    rank: int = 0
    attributes: Mapping[str, Any] = MappingProxyType({})
    scope: str = "training"
    exact: bool = True
    most: int = BUCKETS


def record_histograms(store: Path, run: str, *recorded: Recorded) -> None:
    """Record histograms of several ranks through a hub, their samples ten seconds apart."""
    clock = Clock()
    hub = Hub(store, run=run, clock=clock)
    for turn in range(max(len(each.intervals) for each in recorded)):
        for each in recorded:
            values = [value for some in each.intervals[: turn + 1] for value in some]
            counts = [0] * (len(BOUNDS) + 1)
            for value in values:
                counts[bisect_left(BOUNDS, value)] += 1
            about: dict[str, Any] = {"bounds": BOUNDS, "attributes": each.attributes, "time": clock.now}
            sent = [histogram(each.name, counts, total=sum(values), **about)]
            if each.exact and each.intervals[turn : turn + 1]:
                sent.append(_beside(each, each.intervals[turn], clock.now))
            hub.receive_metrics(metrics(rank(each.rank, run=run), *sent, scope=each.scope))
        hub.tick()
        clock.forward(10)
    hub.close()


def _beside(recorded: Recorded, values: Sequence[float], now: int) -> Metric:
    """Return how the values of an interval spread, as a client of ours sends it beside the explicit buckets."""
    found = spread_of(values, recorded.most)
    metric = Metric(name=recorded.name, unit="s", description=f"About {recorded.name}.")
    add_attributes(metric.metadata, [("tachograph.beside", True)])
    metric.exponential_histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    point = metric.exponential_histogram.data_points.add(
        start_time_unix_nano=now - 10 * SECOND, time_unix_nano=now, count=found.total, scale=found.scale
    )
    point.min, point.max, point.zero_count = found.minimum, found.maximum, found.zeros
    for side, buckets in ((point.positive, found.positive), (point.negative, found.negative)):
        side.offset = buckets.offset
        side.bucket_counts.extend(buckets.counts)
    add_attributes(point.attributes, recorded.attributes.items())
    return metric


def spoil(path: Path, wanted: Callable[[bytes], bool]) -> int:
    """Overwrite each page of a database, but the first, that is wanted; return how many there were."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")  # SQLite, "Database File Format", 1.3.2
    found = [at for at in range(size, len(content), size) if wanted(bytes(content[at : at + size]))]
    for at in found:
        content[at : at + size] = b"\xa5" * size
    path.write_bytes(content)
    return len(found)
