"""The bridge from tqdm: how far loops are, and the values that they show behind their bars."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import calls
from tachograph.instrumentation.bridges._values import BridgedValues
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.values import Number, Pending

_LIBRARY = "tqdm"
_MOST_BARS = 32
_WAIT = 10**9  # nanoseconds
_TRIES = 5


class _Shown(NamedTuple):
    """A value that a bar shows, until it is taken.

    Attributes:
        value: a number.
        rounding: see :meth:`BridgedValues.scalar`.
        at: its time, nanoseconds.
        pid: of the process: a forked child takes none of its parent's.
    """

    value: Number | Pending
    rounding: float
    at: int
    pid: int


class BarNotes:
    """The notes of tqdm's bars. No call of an iteration is patched: collections look at the bars that there are.

    Args:
        values: where they go.
        wait: nanoseconds for which a value waits for that of another library.
    """

    def __init__(self, values: BridgedValues, wait: int = _WAIT) -> None:
        self._values, self._wait = values, wait
        self._start = time.time_ns()
        self._origin = values.origin(_LIBRARY, "", "")
        self._shown: dict[str, _Shown] = {}
        registry = values.recording.registry
        self._sources, self._early = registry.group(_LIBRARY).sources, registry.early
        self._sources.append(self.points)
        self._early.append(self.take_old)
        atexit.register(self.take_all)

    def close(self) -> None:
        """Look at no bar any more."""
        self._sources.remove(self.points)
        self._early.remove(self.take_old)
        atexit.unregister(self.take_all)
        self.take_all()

    def set_postfix(
        self, bar: Any, ordered_dict: Mapping[str, Any] | None = None, refresh: bool = True, **more: Any
    ) -> None:
        """Take the numbers of a postfix, also those that the program has formatted; x is their count.

        Each waits for the next one of its name, or for a second: a program may log the same value with a library right
        after it has shown it, and then that one counts, with its step and all its digits.
        """
        del refresh
        if _is_ours(bar):
            return
        for key, shown in {**dict(ordered_dict or {}), **more}.items():
            value, rounding = _number(shown)
            if value is None or self._inside(key, value):
                continue
            number = self._values.number(_LIBRARY, key, value)
            if number is not None:
                before = self._shown.pop(key, None)
                self._shown[key] = _Shown(number, rounding, time.time_ns(), os.getpid())
                self._take(key, before)

    def _take(self, key: str, shown: _Shown | None) -> None:
        if shown is not None and shown.pid == os.getpid():
            value, rounding, at, _ = shown
            self._values.scalar(self._origin, key, value, time_unix_nano=at, rounding=rounding)

    def take_old(self, _pace: object = None) -> None:
        """Take the values that have waited for a second."""
        old = time.time_ns() - self._wait
        for key, shown in list(self._shown.items()):
            if shown.at <= old:
                self._take(key, self._shown.pop(key, None))

    def take_all(self) -> None:
        """Take all values that wait: the process ends."""
        while self._shown:
            self._take(*self._shown.popitem())

    def _inside(self, key: str, value: object) -> bool:
        if calls.outermost is None:
            return False
        return self._values.passed_over(_LIBRARY, key, value, lambda: self._values.scalar(self._origin, key, value))

    def points(self) -> Iterator[MetricPoints]:
        """Yield the items that each open bar has done and has in all, by its position: 0 is the outermost loop."""
        done, total = [], []
        for bar in _bars()[:_MOST_BARS]:
            attributes = (("position", abs(bar.pos)),)
            if isinstance(bar.n, int | float) and isfinite(bar.n):
                done.append(NumberPoint(attributes, bar.n, self._start))
            if isinstance(bar.total, int | float) and isfinite(bar.total):
                total.append(NumberPoint(attributes, bar.total, self._start))
        for name, found, text in (
            ("done", done, "Finished items of a loop."),
            ("total", total, "All items of a loop."),
        ):
            if found:
                yield MetricPoints(_LIBRARY, f"progress.{name}", "{item}", "gauge", text, [*found])


def _bars() -> list[Any]:
    """Return the bars that are open, outermost first; one of ours is recorded already."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)  # none, while another thread imports it
    for _ in range(_TRIES):
        try:
            bars = [] if tqdm is None else list(tqdm._instances)  # noqa: SLF001 - there is no other list
        except RuntimeError:  # another thread opens or closes one
            continue
        shown = {abs(bar.pos): bar for bar in bars if not _is_ours(bar) and isinstance(getattr(bar, "pos", None), int)}
        return [shown[position] for position in sorted(shown)]
    return []


def _is_ours(bar: Any) -> bool:
    return type(bar).__module__.startswith("tachograph.")


def _number(shown: Any) -> tuple[Any, float]:
    """Return a value of a postfix, read from its text where it is one, and its rounding; None where that is no number.

    The rounding is a little more than half of the last digit's unit.
    """
    if not isinstance(shown, str):
        return shown, 0.0
    try:
        value = float(shown)
    except ValueError:
        return None, 0.0
    digits, _, exponent = shown.lower().partition("e")
    return value, 0.501 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])) if isfinite(value) else 0.0


class TqdmInstrumentor(BridgeInstrumentor):
    """Record the progress of tqdm bars, and the values of ``set_postfix`` as curves."""

    library = _LIBRARY

    def notes(self, values: BridgedValues) -> BarNotes:  # noqa: D102 - as the base class says
        return BarNotes(values)
