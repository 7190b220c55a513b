"""The expected data of a documented behavior: exact values, and how to compare them with what arrived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from arrived import Arrived, Distribution, Logged, Page, Series, equal, same
from tachograph.recording.naming import Kind

SUMS = 1e-12  # relative; the documented tolerance for sums of floats
Sort = Literal["metric", "event", "record", "curve", "handed", "windows"]


def _attributes(mapping: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in mapping.items()))


class Expected(Protocol):
    """Data that has to arrive, or must not arrive."""

    @property
    def sort(self) -> Sort:
        """The kind of data, which determines which destinations can carry it."""

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message for each difference."""


@dataclass(frozen=True)
class _Metric:
    sort: ClassVar[Sort] = "metric"
    kind: ClassVar[Kind]

    scope: str
    name: str

    def _series(self, unit: str, attributes: Mapping[str, Any]) -> Series:
        return Series(self.scope, self.name, self.kind, unit, _attributes(attributes))


@dataclass(frozen=True)
class Gauge(_Metric):
    """A gauge with its last value; a ``value`` of None accepts any number."""

    kind: ClassVar[Kind] = "gauge"
    value: int | float | None
    unit: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if the number is missing or different."""
        series = self._series(self.unit, self.attributes)
        found = arrived.number(series)
        if found is None:
            yield f"{arrived.key(series)} is missing; similar: {arrived.near(series)}"
            return
        wanted = float(self.value) if isinstance(arrived, Page) and self.value is not None else self.value
        if wanted is not None and not equal(found, wanted, within=SUMS):
            yield f"{arrived.key(series)} is {found!r}, not {wanted!r}"


@dataclass(frozen=True)
class Counter(Gauge):
    """A counter with its sum."""

    kind: ClassVar[Kind] = "counter"


@dataclass(frozen=True)
class Histogram(_Metric):
    """A histogram: exact count and sum, and minimum, maximum and buckets if the destination has them.

    What is None is not known to the row, such as how long a function took.
    """

    kind: ClassVar[Kind] = "histogram"
    count: int
    total: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    at_most: Mapping[float, int] | None = None

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message for each part that differs."""
        series = self._series(self.unit, self.attributes)
        found = arrived.distribution(series)
        if found is None:
            yield f"{arrived.key(series)} is missing; similar: {arrived.near(series)}"
            return
        for part in Distribution._fields:
            wanted, had = getattr(self, part), getattr(found, part)
            if wanted is None or (had is None and part not in {"count", "total"}):
                continue
            right = wanted.items() <= had.items() if part == "at_most" else equal(had, wanted, within=SUMS)
            if not right:
                yield f"the {part} of {arrived.key(series)} is {had!r}, not {wanted!r}"


@dataclass(frozen=True)
class Nothing:
    """No metric in a scope, or none with a given name."""

    sort: ClassVar[Sort] = "metric"
    scope: str
    name: str = ""

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if such a metric exists."""
        if not arrived.numbers and not arrived.handed:
            yield "nothing arrived at all"
        found = {name for name in arrived.names(self.scope) if not self.name or name == self.name}
        if found:
            yield f"{self.scope!r} has {sorted(found)}, and should have none"


@dataclass(frozen=True)
class Lost:
    """A number of items counted as lost. Rows share a process, so totals are compared (:func:`cells.totals`).

    Attributes:
        reason: of ``tachograph.dropped``, or the place of ``tachograph.errors``.
    """

    sort: ClassVar[Sort] = "metric"
    reason: str
    count: int
    counter: Literal["tachograph.dropped", "tachograph.errors"] = "tachograph.dropped"

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if a different number was counted."""
        found = arrived.counted(
            self.counter, "reason" if self.counter == "tachograph.dropped" else "where", self.reason
        )
        if found != self.count:
            yield f"{self.counter} has {found} of {self.reason!r}, not {self.count}"


def nonfinite(metric: str, count: int) -> Counter:
    """Return the expected count of values of a metric that are NaN or infinite."""
    return Counter("tachograph", "tachograph.nonfinite", count, "{value}", {"metric": metric})


@dataclass(frozen=True)
class Happened:
    """One event of this name that has these attributes, of the same types.

    Attributes:
        times: how many there are.
        time_unix_nano: when it happened; None where the row cannot know it.
    """

    name: str
    attributes: Mapping[str, Any]
    times: int = 1
    time_unix_nano: int | None = None

    @property
    def sort(self) -> Sort:
        """``event`` for the torch.monitor API, ``record`` for the log records of other APIs."""
        return "record" if self.name.startswith("tachograph.") else "event"

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if there are more or fewer."""
        found = [event for event in arrived.events if self._is(event)]
        if len(found) != self.times:
            near = [dict(event.attributes) for event in arrived.events if event.name == self.name][-3:]
            yield f"{len(found)} events {self.name!r} with {dict(self.attributes)}, not {self.times}; such as {near}"
        for event in found:
            if self.time_unix_nano not in (None, event.time_unix_nano):
                yield f"{self.name!r} is of {event.time_unix_nano}, not {self.time_unix_nano}"

    def _is(self, event: Logged) -> bool:
        return event.name == self.name and all(
            key in event.attributes and same(event.attributes[key], value) for key, value in self.attributes.items()
        )


@dataclass(frozen=True)
class Curve:
    """The points of a metric in order: (x, value), or only values if x is the time."""

    sort: ClassVar[Sort] = "curve"
    group: str
    metric: str
    points: Sequence[Any]

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if the points differ."""
        pairs = [
            (event.attributes["x"], event.attributes["value"])
            for event in arrived.events
            if event.name == "tachograph.metric"
            and (event.attributes.get("group", ""), event.attributes["metric"]) == (self.group, self.metric)
        ]
        found = pairs if self.points and isinstance(self.points[0], tuple) else [value for _, value in pairs]
        if len(found) != len(self.points) or not all(map(_alike, found, self.points)):
            yield f"the curve {self.metric!r} is {found}, not {list(self.points)}"


def _alike(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return all(map(equal, found, wanted))
    return equal(found, wanted)


@dataclass(frozen=True)
class Handed:
    """The values that a torchelastic handler got for a name, exactly as they were passed.

    Attributes:
        values: in order; as many Nones as there are values that the row cannot know.
    """

    sort: ClassVar[Sort] = "handed"
    group: str
    name: str
    values: Sequence[Any]

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if the values differ."""
        found = arrived.handed.get((self.group, self.name), [])
        if len(found) != len(self.values) or not all(
            wanted is None or same(had, wanted) for had, wanted in zip(found, self.values, strict=False)
        ):
            yield f"the handler was given {found} as {self.group!r} {self.name!r}, not {list(self.values)}"


@dataclass(frozen=True)
class Windows:
    """The value of a gauge for each closed window, as separate points."""

    sort: ClassVar[Sort] = "windows"
    scope: str
    name: str
    values: Sequence[float]

    def problems(self, arrived: Arrived) -> Iterator[str]:
        """Yield a message if the points differ."""
        found = arrived.points.get((self.scope, self.name, ()), {})
        ordered = [found[time] for time in sorted(found)]
        if ordered != list(self.values):
            yield f"the windows of {self.name!r} are {ordered}, not {list(self.values)}"
