"""What a run holds, as it is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tachograph.recording.points import AttributeValue


class Process(NamedTuple):
    """A process of a run: all of its starts.

    Attributes:
        instance: its ``service.instance.id``.
        rank: None where it has none.
        starts: how many times it was started.
        first_export: nanoseconds since the epoch.
        last_export: the same.
        ended: how its last start ended; empty where it did not say.
        resource: what it said of itself.
    """

    instance: str
    rank: int | None
    role: str
    pid: int
    starts: int
    first_export: int
    last_export: int
    ended: str
    resource: Mapping[str, AttributeValue]


class Curve(NamedTuple):
    """One metric in one start of a process and one task.

    Attributes:
        group: the chart that it is in; empty for none.
        execution: number of the task; 0 for the process.
        stream: the start of the process: random, and the same for all that it recorded.
        definition: what was said of the metric last: group, scale, units, bounds.
        number: in the file.
    """

    metric: str
    group: str
    rank: int | None
    execution: int
    stream: str
    definition: Mapping[str, AttributeValue]
    number: int

    @property
    def units(self) -> str:
        """The units of the values; empty where nobody has named them."""
        return str(self.definition.get("units", ""))


class RecordedMetric(NamedTuple):
    """A metric of a run, over all its processes; extremes are of finite values, None where there are none.

    Attributes:
        points: how many there are.
        branches: how often x begins again, over all curves.
        nonfinite: how many values are NaN or infinite.
        definition: what was said of it last.
    """

    name: str
    group: str
    units: str
    ranks: tuple[int | None, ...]
    branches: int
    points: int
    x0: float
    x1: float
    min: float | None
    max: float | None
    nonfinite: int
    definition: Mapping[str, AttributeValue]


class Point(NamedTuple):
    """A point of the journal, bit for bit as it was recorded.

    Attributes:
        rank: of the process; None where it has none.
        execution: number of the task; 0 for the process.
        branch: goes up where x goes back.
        time_unix_nano: when the value was recorded.
        more: what else the point says: of a throttled interval ``min``, ``min_x``, ``max``, ``max_x``, ``count``.
        stream: the start of the process.
        seq: its number among all that this start logged.
    """

    metric: str
    group: str
    units: str
    rank: int | None
    execution: int
    branch: int
    x: float
    time_unix_nano: int
    value: float
    more: Mapping[str, int | float]
    stream: str
    seq: int

    @property
    def min(self) -> float:
        """The smallest finite value of the point's interval; the value itself where it stands for no other."""
        return self.more.get("min", self.value)

    @property
    def max(self) -> float:
        """The largest finite value of the point's interval; the value itself where it stands for no other."""
        return self.more.get("max", self.value)


def metric_of(name: str, curves: Sequence[Curve], about: Sequence[tuple[Any, ...]]) -> RecordedMetric:
    """Return a metric from its curves.

    Args:
        name: of the metric.
        curves: at least one, the oldest first.
        about: of each curve that has points: branches, points, x0, x1, min, max and what is not finite.
    """
    newest = next((each for each in reversed(curves) if each.definition), curves[-1])
    branches, points, x0, x1, low, high, nonfinite = zip(*about, strict=True) if about else ((),) * 7
    ranks = tuple(dict.fromkeys(each.rank for each in curves))
    return RecordedMetric(
        name,
        newest.group,
        newest.units,
        ranks,
        sum(branches),
        sum(points),
        min(x0, default=0.0),
        max(x1, default=0.0),
        min((each for each in low if each is not None), default=None),
        max((each for each in high if each is not None), default=None),
        sum(nonfinite),
        newest.definition,
    )
