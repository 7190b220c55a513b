"""A Stat: summary statistics of added values, window by window."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from operator import index
from typing import Any, cast

from tachograph.monitor import _windows as all_windows
from tachograph.monitor._windows import Windows
from tachograph.monitor.stat_window import UNLIMITED, Aggregation, StatWindow
from tachograph.recording.interrupts import pass_on
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.named_functions import NamedFunctions
from tachograph.recording.naming import check_boundaries, check_name
from tachograph.recording.summary import CHUNK
from tachograph.recording.values import Number, Pending, read

_MILLISECOND = timedelta(milliseconds=1)
_NANO_A_MILLISECOND = 1_000_000


class _Life:
    """Lives as long as a Stat or its ``add``; after both it logs the values that are left."""

    __slots__ = ("_losses", "_windows", "window")

    def __init__(self, window: StatWindow, windows: Windows, losses: SeriesLosses) -> None:
        self.window = window
        self._windows = windows
        self._losses = losses

    def make_room(self) -> None:
        self.window.make_room()
        self._windows.events.hand_out()

    def count(self) -> int:
        found = self.window.count()
        self._windows.events.hand_out()
        return found

    def values(self) -> dict[Aggregation, float]:
        found = self.window.values()
        self._windows.events.hand_out()
        return found

    def read(self, value: object) -> Number | Pending | None:
        try:
            return read(value)
        except TypeError as error:
            raise TypeError(f"Stat {self._losses.name!r}: {error}") from None
        except Exception as error:  # noqa: BLE001 - the border to user code: any object's __float__ or item() may fail
            pass_on(error)
            return self._losses.read(value)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():  # then all is logged already, and modules are being taken apart
            self._windows.end(self.window)


class Stat:
    """Summary statistics of values over windows of a fixed size.

    Windows close at multiples of their size on the wall clock, so that the windows of all processes line up. A window
    closes even if it received no values. It is then logged as an event ``torch.monitor.Stat`` and exported as the
    gauges ``<name>.<aggregation>`` and as one cumulative histogram ``<name>``. Values in an open window are logged when
    the Stat is destroyed and at exit. Two Stats can share a name: each has its own windows and events, the gauges show
    the window that closed last, and sums add up.

    Args:
        name: 1 to 1,024 characters.
        aggregations: the summary values of each window.
        window_size: at least 1 ms, in whole milliseconds; a float is in seconds.
        max_samples: the number of values at which a window closes early; further values are dropped and counted until
            the next window.
        boundaries: upper bounds of the histogram's buckets, finite and ascending; by default there are no buckets.
        unit: the UCUM unit of the values, such as ``s`` or ``By``.
        windows: closes the windows with its clock.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the window is below 1 ms, ``max_samples`` is below 1, boundaries do not ascend, the name is empty or
            too long, or another Stat of this name has other boundaries or another unit.
    """

    __slots__ = {
        "__weakref__": "",
        "_definition": "",
        "_life": "",
        "_name": "",
        "add": """Add one value to the open window.

        Values are numbers of Python, NumPy or torch (one element). NaN and infinities are part of ``COUNT`` and
        ``VALUE`` only. ``add`` is a plain function in an attribute, so you can write ``add = stat.add`` before
        the loop.

        Raises:
            TypeError: the value is not a number.
        """,
    }
    add: Callable[[float], None]

    def __init__(
        self,
        name: str,
        aggregations: Iterable[Aggregation],
        window_size: timedelta | float,
        max_samples: int = UNLIMITED,
        *,
        boundaries: Sequence[float] | None = None,
        unit: str | None = None,
        windows: Windows | None = None,
    ) -> None:
        windows = all_windows.default if windows is None else windows
        self._name = check_name(name, "metric name")
        wanted = _checked_aggregations(name, aggregations)
        size = window_nanoseconds(f"Stat {name!r}", window_size)
        samples = _checked_samples(name, max_samples)
        if unit is not None and not isinstance(unit, str):
            raise TypeError(f"the unit of Stat {name!r} must be a string, not {type(unit).__name__}: {unit!r:.100}")
        bounds = None if boundaries is None else check_boundaries(boundaries, f"Stat {name!r}")
        series = windows.series(name, unit, bounds)
        losses = SeriesLosses(name, windows.unread)
        window = StatWindow(
            name,
            wanted,
            samples,
            series.boundaries,
            series.history,
            entry=windows.events.entry,
            enter=windows.events.enter,
            capped=windows.capped,
            overflowed=windows.overflowed,
            arrived=losses.arrived,
            clock=windows.clock,
        )
        self._life = life = _Life(window, windows, losses)
        self._definition = (name, [asked.name for asked in wanted], size // _NANO_A_MILLISECOND, samples, bounds, unit)
        add = _adder(life) if samples >= UNLIMITED else _capped_adder(life)
        _set_add(self, adders.add(add, *self._definition))
        windows.open(window, size, series)

    @property
    def name(self) -> str:
        """The name of the Stat."""
        return self._name

    @property
    def count(self) -> int:
        """The number of values in the open window; it returns to 0 when the window is logged."""
        return self._life.count()

    def get(self) -> dict[Aggregation, float]:
        """Return the aggregations of the last closed window.

        The values are zero before the first window closes and after an empty one. If a window has no finite values, its
        mean, minimum, maximum, percentiles and standard deviation are NaN.
        """
        return self._life.values()

    def __getstate__(self) -> dict[str, Any]:
        """Return its definition; a copy, in any process, has windows of its own."""
        return {"definition": self._definition, "attributes": getattr(self, "__dict__", {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a Stat of that definition."""
        name, aggregations, milliseconds, samples, boundaries, unit = state["definition"]
        asked = [Aggregation[each] for each in aggregations]
        size = milliseconds * _MILLISECOND
        Stat.__init__(self, name, asked, size, samples, boundaries=boundaries, unit=unit)
        for attribute, value in state["attributes"].items():  # a subclass has some
            setattr(self, attribute, value)

    def __repr__(self) -> str:
        return f"<tachograph.monitor.Stat {self._name!r}>"


# Not by assignment: a subclass may have a method of this name, which calls this one.
_set_add = cast("Any", Stat).__dict__["add"].__set__


def _add_again(*definition: Any) -> Callable[[float], None]:
    stat = Stat.__new__(Stat)
    stat.__setstate__({"definition": definition, "attributes": {}})
    return stat.add


adders = NamedFunctions(__name__, "adders")
adders.make = _add_again


def _adder(life: _Life) -> Callable[[float], None]:
    buffer = life.window.buffer
    border = life.read
    make_room = life.make_room  # keeps the Stat's life as long as this function is held
    plain, chunk = float, CHUNK  # a variable of the function around it is read faster than a global

    def add(v: Any) -> None:
        if v.__class__ is not plain and v.__class__ is not int:
            v = border(v)
            if v is None:
                return
        buffer.append(v)  # CPython makes this one instruction; a bound append is a call
        if len(buffer) >= chunk:
            make_room()

    return add


def _capped_adder(life: _Life) -> Callable[[float], None]:
    buffer = life.window.buffer
    border = life.read
    make_room = life.make_room
    plain, threshold = float, life.window.threshold

    def add(v: Any) -> None:
        if v.__class__ is not plain and v.__class__ is not int:
            v = border(v)
            if v is None:
                return
        buffer.append(v)
        if len(buffer) >= threshold[0]:
            make_room()

    return add


def _checked_aggregations(name: str, aggregations: Iterable[Aggregation]) -> list[Aggregation]:
    if isinstance(aggregations, str | bytes) or not isinstance(aggregations, Iterable):
        raise TypeError(
            f"the aggregations of Stat {name!r} must be a sequence of Aggregation, such as [Aggregation.MEAN], "
            f"not {type(aggregations).__name__}: {aggregations!r:.100}"
        )
    wanted = list(dict.fromkeys(aggregations))
    for asked in wanted:
        if not isinstance(asked, Aggregation):
            raise TypeError(
                f"the aggregations of Stat {name!r} must be members of tachograph.monitor.Aggregation, "
                f"not {type(asked).__name__}: {asked!r:.100}{_member_hint(asked)}"
            )
    return wanted


def _member_hint(asked: object) -> str:
    """Return which member a string or a number most likely stands for; empty if it is none's name."""
    name = asked.upper() if isinstance(asked, str) else ""
    return f"; use Aggregation.{name}" if name in Aggregation.__members__ else ""


def window_nanoseconds(of: str, window_size: object) -> int:
    """Return the size of a window in nanoseconds: a timedelta or a float of seconds, in whole milliseconds.

    Args:
        of: the object with that window, for the message.
        window_size: the program's argument.

    Raises:
        TypeError: it is neither a timedelta nor a float.
        ValueError: it is below 1 ms, or not finite.
    """
    if isinstance(window_size, float):
        if not math.isfinite(window_size):
            raise ValueError(f"the window of {of} must be finite: {window_size!r}")
        milliseconds = int(window_size * 1000 + 1e-6)  # 0.29 is 290 ms, although 0.29 * 1000 is a little less
    elif isinstance(window_size, timedelta):
        milliseconds = window_size // _MILLISECOND
    else:
        is_count = isinstance(window_size, int) and not isinstance(window_size, bool)
        hint = f"; write timedelta(seconds={window_size}) or {window_size}.0" if is_count else ""
        raise TypeError(
            f"the window of {of} must be a timedelta, or a float of seconds, "
            f"not {type(window_size).__name__}: {window_size!r:.100}{hint}"
        )
    if milliseconds < 1:
        raise ValueError(f"the window of {of} must be at least 1 ms: {window_size!r}")
    return milliseconds * _NANO_A_MILLISECOND


def _checked_samples(name: str, max_samples: object) -> int:
    try:
        samples = index(cast("Any", max_samples))
    except TypeError:
        raise TypeError(
            f"max_samples of Stat {name!r} must be an int, not {type(max_samples).__name__}: {max_samples!r:.100}"
        ) from None
    if samples < 1:
        raise ValueError(f"max_samples of Stat {name!r} must be at least 1: {max_samples!r}")
    return min(samples, UNLIMITED)
