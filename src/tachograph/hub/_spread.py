"""How the values of one series spread, in any order of its exponential histograms."""

from __future__ import annotations

import base64
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from tachograph.hub._dedup import APART, DeltaIntervals
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.spread import joined, packed, since, unpacked

_PARTS = 8  # exponential histograms that wait to be joined: eight at once take a third of the time
_SEQUENCES = 4  # of cumulative exponential histograms that late points may still add to


@dataclass(slots=True)
class Packing:
    """Exponential histograms that are joined and packed when they are written, while no lock is held."""

    parts: tuple[ExponentialHistogram, ...]
    extremes: tuple[float, float] | None = None

    def packed(self) -> bytes:
        """Return them as one, see :mod:`tachograph.runs.spread`."""
        histogram = joined(self.parts)
        if self.extremes is not None:
            histogram = histogram._replace(minimum=self.extremes[0], maximum=self.extremes[1])
        return packed(histogram)


class HubSpread:
    """How the values of a histogram's series spread: each exponential histogram that came, once.

    Attributes:
        recent: parts of the values since the series' last sample, but those that came last.
        width: the most buckets of a part, for :class:`tachograph.hub._series.MemoryBudget`.
    """

    __slots__ = ("_covered", "_extremes", "_fresh", "_sequences", "_stretch", "_whole", "recent", "width")

    def __init__(self) -> None:
        self.recent: list[ExponentialHistogram] = []
        self._fresh: list[ExponentialHistogram] = []
        self._whole: list[ExponentialHistogram] = []  # since the series began
        self._stretch: list[ExponentialHistogram] = []  # since the last mark of tachograph.hub._page.ByRank
        self.width = 0
        self._extremes: tuple[float, float] | None = None
        self._covered = DeltaIntervals()
        self._sequences: dict[int, tuple[int, ExponentialHistogram]] = {}

    def delta(
        self, writer: Hashable, start: int, time: int, part: ExponentialHistogram, *, is_ahead: bool = False
    ) -> bool:
        """Add the values between ``start`` and ``time``; False where they were added before.

        Args:
            writer: the process that sent them.
            start: nanoseconds; 0 where it is not known.
            time: nanoseconds.
            part: the values.
            is_ahead: ``time`` is ahead of the hub's clock.
        """
        if is_ahead:  # as for HubSeries.delta
            start, time = start - APART, time - APART
        return self._covered.add(writer, start, time) and self._add(part, part)

    def cumulative(self, start: int, time: int, state: ExponentialHistogram) -> bool:
        """Take the state of the values since ``start``, and add those that are new; False where there is none."""
        at, known = self._sequences.get(start, (0, None))
        if known is None:
            if len(self._sequences) >= _SEQUENCES and start < min(self._sequences):
                return False
            part = state
        elif state.total > known.total:
            part = since(state, known)
        elif time > at and state.total < known.total and start == max(self._sequences):
            part = state  # it began anew without saying so
        else:
            return False
        self._sequences[start] = max(time, at), state
        if len(self._sequences) > _SEQUENCES:
            del self._sequences[min(self._sequences)]
        return self._add(part, state)

    def _add(self, part: ExponentialHistogram, known: ExponentialHistogram) -> bool:
        """Add a part, and the extremes that are known from it."""
        if not part.total:
            return False
        low, high = self._extremes or (known.minimum, known.maximum)
        self._extremes = (
            low if low <= known.minimum or math.isnan(low) else known.minimum,
            high if high >= known.maximum or math.isnan(high) else known.maximum,
        )
        self.width = max(self.width, width(part))
        self._fresh.append(part)
        if len(self._fresh) >= _PARTS:
            self._settle()
        return True

    def _settle(self) -> None:
        """Join the parts that came last, once for all three."""
        if not self._fresh:
            return
        fresh, self._fresh = joined(self._fresh), []
        for parts in (self._whole, self.recent, self._stretch):
            parts.append(fresh)
            if len(parts) > _PARTS:
                joining = parts[:]  # more may be added behind them meanwhile: Change.undo has no lock
                one = joined(joining)
                parts[: len(joining)] = [one]
                self.width = max(self.width, width(one))

    def sample(self) -> tuple[ExponentialHistogram, ...]:
        """Return the parts since the last sample, and begin the next one."""
        self._settle()
        parts = tuple(self.recent)
        self.recent = []
        return parts

    def stretch(self) -> tuple[ExponentialHistogram, ...]:
        """Return the parts since the last mark."""
        self._settle()
        return tuple(self._stretch)

    def mark(self) -> tuple[ExponentialHistogram, ...]:
        """Return the parts since the last mark, and make the next one."""
        parts = self.stretch()
        self._stretch = []
        return parts

    def snapshot(self) -> tuple[Packing, list[Any]]:
        """Return the whole, and the rest that :meth:`restored` needs; later points do not change them."""
        self._settle()
        sequences = [[start, time, Packing((state,))] for start, (time, state) in self._sequences.items()]
        recent = Packing(tuple(self.recent)) if self.recent else None
        return Packing(tuple(self._whole), self._extremes), [recent, self._covered.copy(), sequences]

    @classmethod
    def restored(cls, whole: str, rest: list[Any]) -> HubSpread:
        """Return the spread of a snapshot's JSON.

        Raises:
            ValueError, TypeError, LookupError: it is not legible.
        """
        spread = cls()
        recent, covered, sequences = rest
        spread._whole = [_unpacked(whole)]
        spread.recent = [_unpacked(recent)] if recent is not None else []
        if spread._whole[0].total:
            spread._extremes = spread._whole[0].minimum, spread._whole[0].maximum
        spread._covered = DeltaIntervals.restored(covered)
        spread._sequences = {start: (time, _unpacked(state)) for start, time, state in sequences}
        spread.width = width(spread._whole[0])
        return spread


def width(histogram: ExponentialHistogram) -> int:
    """Return the number of buckets of both sides."""
    return len(histogram.positive.counts) + len(histogram.negative.counts)


def _unpacked(text: str) -> ExponentialHistogram:
    return unpacked(base64.b64decode(text))
