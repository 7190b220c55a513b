"""The replay of a distribution: folded values are handed on one by one, to receivers that aggregate by themselves."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tachograph.recording.accumulators import FOLD_WAIT, Distribution
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import Attributes
from tachograph.recording.values import Number, as_float, fits_int64

RATE = 2000  # values a second for one metric: a synchronous SDK instrument takes 4 - 8 us a value
BURST_SECONDS = 10.0
_CHUNKS = 64
_SLICE = 100

RecordValue = Callable[[Number, Mapping[str, Any]], None]


def ignore(chunk: Sequence[Number]) -> None:
    """Do nothing: the tap of a distribution that is replayed no more. A None would meet folds that call it."""


class TappedDistribution:
    """A distribution that is tapped, and the number of its values that are accounted for."""

    __slots__ = ("accounted", "attributes", "chunks", "distribution", "settled", "tap")

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution
        self.attributes: dict[str, Any] = {}
        self.accounted = 0
        self.settled = False
        # Each chunk comes with the count after it, so that a chunk which never came shows as a gap in the counts.
        self.chunks: deque[tuple[Sequence[Number], int]] = deque(maxlen=_CHUNKS)
        append, spread = self.chunks.append, distribution.summary

        def tap(chunk: Sequence[Number]) -> None:
            append((chunk, spread().count))

        self.tap = tap

    def leave(self) -> None:
        """Take the tap off; the values accounted for are remembered, for a replay that watches it later."""
        if self.distribution.tap is self.tap:
            self.distribution.tap = ignore

    def take(self, lost: Counter[Reason], pace: Callable[[], None]) -> list[Number]:
        """Return the values that came since the last time and can be replayed; count the others in ``lost``."""
        values: list[Number] = []
        while self.chunks:
            chunk, count = self.chunks.popleft()
            finite = [value for value in chunk if value - value == 0]
            gap = count - len(finite) - self.accounted
            if gap < 0:  # given up already, in a fold that was between adding up and calling the tap
                lost["replay_late"] += max(count - self.accounted, 0)
            else:
                lost["replay_rate" if self.settled else "replay_late"] += gap
                accepted = [value for value in finite if value >= 0]
                lost["replay_negative"] += len(finite) - len(accepted)
                values += accepted
            self.accounted = max(self.accounted, count)
            self.settled = True
            pace()
        if not self.settled:
            count = self.distribution.summary().count
            lost["replay_late"] += max(count - self.accounted, 0)
            self.accounted = max(self.accounted, count)
            self.settled = True
        return values


class ValueReplay:
    """The values of one metric, on their way into one synchronous histogram.

    ``exact`` becomes true with the first value that was not replayed: from then on the histogram is a sample, and the
    exact count and sum have to be published beside it.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.exact = False
        self._clock = clock
        self._sources: dict[int, TappedDistribution] = {}
        self._allowed = float(RATE)
        self._refilled = clock()

    def watch(
        self,
        distribution: Distribution,
        attributes: Attributes,
        tapped: TappedDistribution | None = None,
        *,
        arrived: int = 0,
    ) -> None:
        """Replay the values that ``distribution`` folds from now on, or since it was ``tapped``, with these attributes.

        Args:
            distribution: whose values are replayed.
            attributes: of its series.
            tapped: the tap that it has already.
            arrived: the number of its values that have arrived by another way.
        """
        source = self._sources.get(id(distribution))
        if source is None:
            source = self._sources.setdefault(id(distribution), tapped or TappedDistribution(distribution))
            source.attributes = dict(attributes)
            source.accounted = arrived
        if distribution.tap is not source.tap:
            source.settled = False
            if distribution.tap is None:  # new, or reset since
                source.accounted = arrived
            distribution.tap = source.tap

    def leave(self) -> None:
        """Take the taps off."""
        for source in self._sources.values():
            source.leave()

    def forget(self) -> None:
        """Forget every distribution, as a forked child does."""
        self._sources = {}

    def drain(self, record: RecordValue, pace: Callable[[], None], deadline: float | None = None) -> Counter[Reason]:
        """Hand over the values that came since the last time; return how many could not be, by reason.

        ``replay_rate``: more than 2,000 values a second (an evenly spaced sample is replayed); ``replay_late``: folded
        before the distribution was watched; ``replay_negative``: below zero, which histograms do not take.

        Args:
            record: takes one value and its attributes.
            pace: called between slices of less than a millisecond.
            deadline: on the clock; then everything is replayed that can be until there, whatever the rate.
        """
        lost: Counter[Reason] = Counter()
        backlog: list[tuple[dict[str, Any], list[Number]]] = []
        for source in list(self._sources.values()):
            source.distribution.fold(wait=FOLD_WAIT)
            values = source.take(lost, pace)
            if values:
                backlog.append((source.attributes, values))
        total = sum(len(values) for _, values in backlog)
        now = self._clock()
        self._allowed = min(self._allowed + (now - self._refilled) * RATE, BURST_SECONDS * RATE)
        self._refilled = now
        wanted = min(total, int(self._allowed)) if deadline is None else total
        replayed = self._hand_over(_spaced(backlog, total, wanted), record, pace, deadline)
        self._allowed = max(self._allowed - replayed, 0.0)
        lost["replay_rate"] += total - replayed
        self.exact = self.exact or lost.total() > 0
        return lost

    def _hand_over(
        self,
        backlog: list[tuple[dict[str, Any], list[Number]]],
        record: RecordValue,
        pace: Callable[[], None],
        deadline: float | None,
    ) -> int:
        replayed = 0
        for attributes, values in backlog:
            for start in range(0, len(values), _SLICE):
                if deadline is not None and self._clock() >= deadline:
                    return replayed
                for value in values[start : start + _SLICE]:
                    record(value if isinstance(value, float) or fits_int64(value) else as_float(value), attributes)
                    replayed += 1
                pace()
        return replayed


def _spaced(
    backlog: list[tuple[dict[str, Any], list[Number]]], total: int, wanted: int
) -> list[tuple[dict[str, Any], list[Number]]]:
    """Return ``wanted`` of the ``total`` values, evenly spaced, so that the sample has the shape of the whole."""
    if wanted >= total:
        return backlog
    spaced: list[tuple[dict[str, Any], list[Number]]] = []
    before = 0
    for attributes, values in backlog:
        after = before + len(values)
        share = after * wanted // total - before * wanted // total
        spaced.append((attributes, [values[index * len(values) // share] for index in range(share)]))
        before = after
    return spaced
