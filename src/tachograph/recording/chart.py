"""What a metric's chart looks like: its x axis and its y axis."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass

from tachograph.recording.naming import check_name
from tachograph.recording.values import Number, Pending, is_finite, read, shown

# The codes of UCUM (tables 1, 2 and 4) that telemetry has a use for: what is not among them is a word for people.
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
        raise TypeError(f"{what} must be a number, not the bool {shown(value)}: write 0 or 1 if you mean that")
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}: {shown(value)}")
    try:
        found = read(value)
    except TypeError as error:
        raise TypeError(f"{what} must be a number: {error}") from None
    if isinstance(found, Pending):
        raise TypeError(f"{what} must be a number of the host, not one on {getattr(value, 'device', 'a device')}")
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
    except (OverflowError, ValueError):  # Fraction(10**400), Decimal("sNaN")
        pass
    except Exception as error:
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
    """Metrics that share a chart, and its x axis.

    Args:
        name: of the group; the instrumentation scope of its gauges.
        units: of the x axis, such as ``epoch``.
        lower: bound of the x axis.
        upper: bound of the x axis.

    Raises:
        TypeError: an argument is of another type.
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
        """Whether it only names the group: another definition may say what its axis looks like."""
        return self.units is None and self.lower is None and self.upper is None


@dataclass(frozen=True)
class MetricScale:
    """A y axis. Metrics of one group whose scales have the same name share it; without a name it is the metric's own.

    Args:
        name: of the axis, within its group.
        units: of the values, such as ``%``; UCUM units become the gauge's unit, others an annotation (``{epoch}``).
        progress: show the metric as a progress bar.
        lower: bound of the axis.
        upper: bound of the axis.

    Raises:
        TypeError: an argument is of another type.
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
            raise ValueError(
                "the name of a MetricScale must not be empty: leave it out for an axis of the metric's own"
            )
        if not isinstance(self.progress, bool):
            raise TypeError(f"progress must be a bool, not {type(self.progress).__name__}: {self.progress!r:.100}")
        of = "a MetricScale" if self.name is None else f"MetricScale {self.name!r}"
        low, high = _check_axis(of, self.units, self.lower, self.upper)
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)

    @property
    def open(self) -> bool:
        """Whether it only names the axis: another definition may say what it looks like."""
        return self == MetricScale(self.name)


def unit_of(units: str | None) -> str | None:
    """Return the units of an axis as an instrument's unit: as they are where they are UCUM, else as an annotation."""
    if not units or all(part in _UCUM or _ANNOTATION.fullmatch(part) for part in units.split("/")):
        return units
    inner = _OUTSIDE_ANNOTATION.sub("_", units.strip().strip("{}"))
    return f"{{{inner}}}"
