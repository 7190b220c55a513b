"""The bridge from tqdm: how far loops are, and the values that they show behind their bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import calls
from tachograph.instrumentation.bridges._values import BridgedValues
from tachograph.recording.points import MetricPoints, NumberPoint

_LIBRARY = "tqdm"
_MOST_BARS = 32
_TRIES = 5


class BarNotes:
    """The notes of tqdm's bars. No call of an iteration is patched: collections look at the bars that there are.

    Args:
        values: where they go.
    """

    def __init__(self, values: BridgedValues) -> None:
        self._values = values
        self._start = time.time_ns()
        self._origin = values.origin(_LIBRARY, "", "")
        self._sources = values.recording.registry.group(_LIBRARY).sources
        self._sources.append(self.points)

    def close(self) -> None:
        """Look at no bar any more."""
        self._sources.remove(self.points)

    def set_postfix(
        self, bar: Any, ordered_dict: Mapping[str, Any] | None = None, refresh: bool = True, **more: Any
    ) -> None:
        """Take the numbers of a postfix, also those that the program has formatted; x is their count."""
        del refresh
        if _is_ours(bar):
            return
        for key, shown in {**dict(ordered_dict or {}), **more}.items():
            value = _number(shown)
            if value is not None and not self._inside(key, value):
                self._values.scalar(self._origin, key, value)

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
        for name, found, about in (("done", done, "have been done"), ("total", total, "there are")):
            if found:
                text = f"Items of a loop that {about}."
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


def _number(shown: Any) -> Any:
    """Return a value of a postfix, read from its text where it is one; None where that is no number."""
    if not isinstance(shown, str):
        return shown
    try:
        return float(shown)
    except ValueError:
        return None


class TqdmInstrumentor(BridgeInstrumentor):
    """Records how far the bars of tqdm are, and the values of ``set_postfix`` as curves."""

    library = _LIBRARY

    def notes(self, values: BridgedValues) -> BarNotes:  # noqa: D102 - as the base class says
        return BarNotes(values)
