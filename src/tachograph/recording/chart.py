"""A metric's chart, its x axis and its y axis, and the definitions that a metric of an execution has had of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, TypeVar

from tachograph.recording.interrupts import pass_on
from tachograph.recording.naming import check_name
from tachograph.recording.points import AttributeValue
from tachograph.recording.values import Number, Pending, is_finite, read, shown

# The codes of UCUM (tables 1, 2 and 4) that telemetry has a use for: any other unit is a word for people.
_UCUM = frozenset(
    [
        "1",
        "%",
        "s",
        "ms",
        "us",
        "ns",
        "min",
        "h",
        "d",
        "wk",
        "mo",
        "a",
        "By",
        "KiBy",
        "MiBy",
        "GiBy",
        "TiBy",
        "kBy",
        "KBy",
        "MBy",
        "GBy",
        "TBy",
        "bit",
        "m",
        "mm",
        "um",
        "nm",
        "km",
        "g",
        "mg",
        "kg",
        "t",
        "K",
        "Cel",
        "A",
        "mA",
        "V",
        "mV",
        "W",
        "mW",
        "kW",
        "J",
        "kJ",
        "N",
        "Pa",
        "Hz",
        "kHz",
        "MHz",
        "GHz",
        "mol",
        "rad",
        "deg",
        "dB",
    ]
)
_OUTSIDE_ANNOTATION = re.compile(r"[^!-z|~]+")  # UCUM, §2.2: printable ASCII, no braces
_ANNOTATION = re.compile(r"\{[!-z|~]+\}")


def number(value: object, what: str) -> Number:
    """Return a number that the program gave, of Python, NumPy or torch (one element).

    Raises:
        TypeError: it is a bool, a string, None, or anything else that is no number here and now.
    """
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        raise TypeError(f"{what} must be a number, not the bool {shown(value)}: pass 0 or 1 instead")
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}: {shown(value)}")
    try:
        found = read(value)
    except TypeError as error:
        raise TypeError(f"{what} must be a number: {error}") from None
    if isinstance(found, Pending):
        raise TypeError(
            f"{what} must be a number in host memory, not on {getattr(value, 'device', 'a device')}: pass .item()"
        )
    return found


def finite(value: object, what: str) -> float:
    """Return a finite number that the program gave, as a float.

    Raises:
        TypeError: as :func:`number`; or it raises when it is read as one.
        ValueError: it is NaN or infinite, or beyond the range of floats.
    """
    try:
        found = number(value, what)
        if is_finite(found):
            return float(found)
    except TypeError:
        raise
    except (OverflowError, ValueError) as error:  # Fraction(10**400), Decimal("sNaN")
        pass_on(error)
    except Exception as error:
        pass_on(error)
        raise TypeError(f"{what} must be a number: {shown(value)} raised {type(error).__name__}") from error
    raise ValueError(f"{what} must be finite: {shown(value)}")


def _check_axis(of: str, units: object, lower: object, upper: object) -> tuple[float | None, float | None]:
    if units is not None and not isinstance(units, str):
        raise TypeError(f"the units of {of} must be a string, not {type(units).__name__}: {units!r:.100}")
    low = None if lower is None else finite(lower, f"the lower bound of {of}")
    high = None if upper is None else finite(upper, f"the upper bound of {of}")
    if low is not None and high is not None and low >= high:
        raise ValueError(f"the lower bound of {of} must be below its upper bound: lower={low:g}, upper={high:g}")
    return low, high


@dataclass(frozen=True)
class MetricGroup:
    """A chart: metrics of one group share it and its x-axis.

    Args:
        name: the group's name, also used as the instrumentation scope of its gauges.
        units: the unit of the x-axis, such as ``epoch``.
        lower: the lower bound of the x-axis.
        upper: the upper bound of the x-axis.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the name is empty or too long, a bound is not finite, or ``lower`` is not below ``upper``.
    """

    name: str
    _: KW_ONLY
    units: str | None = None
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        if not check_name(self.name, "the name of a MetricGroup"):
            raise ValueError("the name of a MetricGroup must not be empty")
        low, high = _check_axis(f"MetricGroup {self.name!r}", self.units, self.lower, self.upper)
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)

    @property
    def open(self) -> bool:
        """Whether this names the group only, and another definition configures its axis."""
        return self.units is None and self.lower is None and self.upper is None


@dataclass(frozen=True)
class MetricScale:
    """A y-axis. Metrics of a group whose scales have the same name share it; without a name it belongs to one metric.

    Args:
        name: the name of the axis within its group.
        units: the unit of the values, such as ``%``. A UCUM unit becomes the gauge's unit, any other an annotation
            (``{epoch}``).
        progress: show the metric as a progress bar.
        lower: the lower bound of the axis.
        upper: the upper bound of the axis.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the name is empty or too long, a bound is not finite, or ``lower`` is not below ``upper``.
    """

    name: str | None = None
    _: KW_ONLY
    units: str | None = None
    progress: bool = False
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not check_name(self.name, "the name of a MetricScale"):
            raise ValueError("the name of a MetricScale must not be empty: omit it for a custom x-axis")
        if not isinstance(self.progress, bool):
            raise TypeError(f"progress must be a bool, not {type(self.progress).__name__}: {self.progress!r:.100}")
        of = "a MetricScale" if self.name is None else f"MetricScale {self.name!r}"
        low, high = _check_axis(of, self.units, self.lower, self.upper)
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)

    @property
    def open(self) -> bool:
        """Whether this names the axis only, and another definition configures it."""
        return self == MetricScale(self.name)


def unit_of(units: str | None) -> str | None:
    """Return the units of an axis as an instrument's unit: as they are where they are UCUM, else as an annotation."""
    if not units or all(part in _UCUM or _ANNOTATION.fullmatch(part) for part in units.split("/")):
        return units
    inner = _OUTSIDE_ANNOTATION.sub("_", units.strip().strip("{}"))
    return f"{{{inner}}}"


Look = TypeVar("Look", MetricGroup, MetricScale)


class Definition(NamedTuple):
    """A definition of a metric. A group or scale that is only named, or None, leaves its looks open."""

    key: str
    group: MetricGroup | None
    scale: MetricScale | None

    def attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes of the definition in the journal, without those that were left open."""
        group, scale = self.group, self.scale
        found: dict[str, AttributeValue | None] = {"metric": self.key}
        if group is not None:
            found |= {"group": group.name, "x_units": group.units, "x_lower": group.lower, "x_upper": group.upper}
        if scale is not None:
            found |= {"scale": scale.name, "units": scale.units, "lower": scale.lower, "upper": scale.upper}
            found["progress"] = scale.progress or None
        return {key: value for key, value in found.items() if value is not None}


class Definitions:
    """The definitions of one execution. Scale names are scoped to their group; a nameless scale is the metric's own."""

    def __init__(self) -> None:
        self._said: dict[str, Definition] = {}
        self._groups: dict[str, MetricGroup] = {}
        self._scales: dict[tuple[str, str], MetricScale] = {}
        self._known: dict[str, Definition] = {}  # as said, with the looks that others of the group and the scale have
        # The metrics whose group or scale it is; one that has moved on may still be among them.
        self._in_group: dict[str, dict[str, None]] = {}
        self._on_scale: dict[tuple[str, str], dict[str, None]] = {}

    def check(self, wanted: Definition) -> Definition:
        """Return the definition of a metric that results from those that are known and this one.

        Raises:
            ValueError: the metric has another group or scale already, or its group or scale looks different already.
        """
        key = wanted.key
        said = self._said.get(key, Definition(key, None, None))
        group = self._group(key, said.group, wanted.group)
        name = _one_name(key, "scale", said.scale, wanted.scale)
        places = [_place(key, said.group, None if said.scale is None else said.scale.name), _place(key, group, name)]
        known = [*(self._scales.get(place) for place in places), said.scale, wanted.scale]
        if all(scale is None for scale in known):
            return Definition(key, group, None)
        what = f"the scale of Metric {key!r}" if name is None else f"MetricScale {name!r}"
        return Definition(key, group, _one_look(what, [replace(scale, name=name) for scale in known if scale]))

    def _group(self, key: str, said: MetricGroup | None, wanted: MetricGroup | None) -> MetricGroup | None:
        name = _one_name(key, "group", said, wanted)
        if name is None:
            return None
        known = self._groups.get(name), said, wanted
        return _one_look(f"MetricGroup {name!r}", [group for group in known if group])

    def add(self, wanted: Definition) -> list[Definition]:
        """Add the definition of a metric that records, and return each definition that is new or has changed.

        Raises:
            ValueError: as :meth:`check`.
        """
        found = self._said[wanted.key] = self.check(wanted)
        concerned: dict[str, None] = {}
        if found.group is not None:
            members = self._in_group.setdefault(found.group.name, {})
            members[found.key] = None
            if self._groups.get(found.group.name) != found.group:
                self._groups[found.group.name] = found.group
                concerned |= members
        if found.scale is not None:
            place = _place(found.key, found.group, found.scale.name)
            members = self._on_scale.setdefault(place, {})
            members[found.key] = None
            if self._scales.get(place) != found.scale:
                self._scales[place] = found.scale
                concerned |= members
        concerned[found.key] = None
        return [known for key in concerned if (known := self._look_again(key)) is not None]

    def _look_again(self, key: str) -> Definition | None:
        """Return the definition of a metric where it is another one than before."""
        known = self.check(self._said[key])
        if self._known.get(key) == known:
            return None
        self._known[key] = known
        return known

    def known(self, key: str) -> Definition:
        """Return the definition of a metric that records, with the looks that others of its group and scale have."""
        return self._known[key]

    def all(self) -> list[Definition]:
        """Return every definition, each with the looks that other metrics of its group and scale have."""
        return list(self._known.values())


def _place(key: str, group: MetricGroup | None, scale: str | None) -> tuple[str, str]:
    return ("metric", key) if scale is None else (f"group {group.name}" if group else "", scale)


def _one_name(key: str, what: str, said: MetricGroup | MetricScale | None, wanted: Any) -> str | None:
    names = [found.name for found in (said, wanted) if found is not None and found.name is not None]
    if len(set(names)) > 1:
        raise ValueError(
            f"Metric {key!r} already has the {what} {names[0]!r}, not {names[1]!r}: within one execution, use the same "
            f"{what} for a key"
        )
    return names[0] if names else None


def _one_look(what: str, known: Sequence[Look]) -> Look:
    configured = [found for found in known if not found.open]
    for found in configured[1:]:
        if found != configured[0]:
            raise ValueError(
                f"{what} is already defined as {configured[0]}, not {found}: "
                "define it once, and pass that object or its name everywhere else"
            )
    return configured[0] if configured else known[-1]
