"""Differences: what one reader has not seen yet of a registry that is cumulative and resets nothing.

Source: OpenTelemetry specification, "Metrics Data Model", "Temporality".
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tachograph.recording.forking import at_fork
from tachograph.recording.naming import Kind
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint, identity
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Total, ValueSummary
from tachograph.recording.values import Number


@dataclass(slots=True)
class _Seen:
    time_unix_nano: int
    state: Number | ValueSummary


class Deltas:
    """What one reader has seen of each series, so that it can be told only what is new since.

    Args:
        kinds: the kinds of instruments that the reader wants as differences; gauges have none.
    """

    def __init__(self, kinds: frozenset[Kind]) -> None:
        self.kinds = kinds
        self._seen: dict[tuple[object, ...], _Seen] = {}

    def since(
        self, metric: MetricPoints, point: NumberPoint | HistogramPoint, now: int
    ) -> NumberPoint | HistogramPoint | None:
        """Return what was added since this series last had a point, its start being that time; None for nothing.

        The minimum and maximum of the interval are known only where they are those of the whole time, too; else they
        are NaN.
        """
        # The start, too: two sources of one metric may have a series of the same attributes.
        key = (metric.scope, metric.name, metric.unit, metric.kind, identity(point.attributes), point.start_unix_nano)
        before = self._seen.get(key)
        found: NumberPoint | HistogramPoint | None = point
        if before is not None:
            found = _difference(point, before)
        if found is not None:
            state = point.value if isinstance(point, NumberPoint) else point.summary
            self._seen[key] = _Seen(now, state)
        return found

    def forget(self) -> None:
        """Forget what was seen, as a forked child does."""
        self._seen = {}

    def leave(self, registry: Registry, receiver: str) -> None:
        """Leave what was seen to the next reader for the same receiver: this one has ended, and the process goes on."""
        _left.setdefault(registry, {})[receiver] = self


_left: WeakKeyDictionary[Registry, dict[str, Deltas]] = WeakKeyDictionary()


def resumed(registry: Registry, receiver: str, kinds: frozenset[Kind]) -> Deltas:
    """Return what the last reader for this receiver has seen: a ``shutdown()`` and a ``start()`` send nothing twice."""
    found = _left.get(registry, {}).pop(receiver, None)
    return found if found is not None and found.kinds == kinds else Deltas(kinds)


at_fork("otlp_differences", in_child=_left.clear)


def _difference(point: NumberPoint | HistogramPoint, before: _Seen) -> NumberPoint | HistogramPoint | None:
    start = before.time_unix_nano
    if isinstance(point, NumberPoint):
        if isinstance(before.state, ValueSummary) or point.value == before.state:
            return None
        if point.value < before.state:  # it began anew
            return point
        return NumberPoint(point.attributes, point.value - before.state, start)
    if not isinstance(before.state, ValueSummary) or point.summary.count == before.state.count:
        return None
    if point.summary.count < before.state.count:
        return point
    return point._replace(
        summary=_added(point.summary, before.state),
        start_unix_nano=start,
        exemplars=tuple(seen for seen in point.exemplars if seen.time_unix_nano > start),
    )


def _added(now: ValueSummary, before: ValueSummary) -> ValueSummary:
    nan = float("nan")
    total = Total(now.total.integers - before.total.integers, now.total.floats, now.total.lost)
    return ValueSummary(
        now.count - before.count,
        total.plus(-before.total.floats).plus(-before.total.lost),
        now.minimum if now.minimum < before.minimum else nan,
        now.maximum if now.maximum > before.maximum else nan,
        tuple(map(int.__sub__, now.at_most, before.at_most)),
        now.nonfinite - before.nonfinite,
    )
