"""Intervals: the exponential histograms of a registry's distributions, from one reading to the next.

A cumulative histogram of a long run is as coarse as its worst value made it; one of an interval is spoilt by the values
of that interval alone. Each reader gets every value that is counted in exactly one of its intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph.recording.exponential import ExponentialCounts, ExponentialHistogram

NOTHING = ExponentialHistogram()
_made: Any = tuple.__new__  # a named tuple in half of the time: each interval makes some


class IntervalReader:
    """One reader of intervals, used by one thread at a time.

    Attributes:
        readings: how many it has finished. The values of one that it did not finish come again in the next.
    """

    __slots__ = ("readings",)

    def __init__(self) -> None:
        self.readings = 0

    def finish(self) -> None:
        """Finish a reading: its intervals are in good hands, and do not come again."""
        self.readings += 1


class Intervals:
    """The readers of a registry's distributions.

    Attributes:
        kept: the distributions count; not before the first reader.
        readers: the open ones. To change them, another tuple is put in its place.
    """

    __slots__ = ("kept", "readers")

    def __init__(self) -> None:
        self.kept = False
        self.readers: tuple[IntervalReader, ...] = ()

    def open(self) -> IntervalReader:
        """Return a new reader, whose first interval begins where the last one of any reader ended."""
        made = IntervalReader()
        self.readers = (*self.readers, made)
        self.kept = True
        return made

    def close(self, reader: IntervalReader, *, goes_on: bool) -> None:
        """Close a reader.

        Args:
            reader: of this registry.
            goes_on: values are counted for a later reader; else no more, where there is no other one now.
        """
        self.readers = tuple(other for other in self.readers if other is not reader)
        self.kept = self.kept and (goes_on or bool(self.readers))

    def reset(self) -> None:
        """Forget the readers, as a forked child does: they are its parent's. Values are counted as before."""
        self.readers = ()


NEVER = Intervals()  # no distribution of these counts


class _Share(NamedTuple):
    """The part of one reader: the values that it took in a reading of its own, and those that have come since."""

    reading: int = -1
    taken: ExponentialHistogram = NOTHING
    waiting: ExponentialHistogram = NOTHING


NO_COUNTS = ExponentialCounts()
Known = tuple[ExponentialCounts, ExponentialHistogram]  # counts whose histogram is there already, and that


class Counted(NamedTuple):
    """Values that a distribution has counted for its readers. Never changed once made."""

    now: ExponentialCounts = NO_COUNTS
    shares: Mapping[IntervalReader, _Share] = {}

    def plus(self, ordered: object) -> Counted:
        """Return it with more values, ascending, at least one."""
        return Counted(self.now.plus(ordered), self.shares)

    def is_read_by(self, reader: IntervalReader) -> bool:
        """Tell whether a reader has them all, by a reading that it has finished."""
        share = self.shares.get(reader)
        is_finished = share is not None and share.waiting is NOTHING and share.reading < reader.readings
        return is_finished and self.now is NO_COUNTS

    def read(
        self, reader: IntervalReader, intervals: Intervals, known: Known | None = None
    ) -> tuple[ExponentialHistogram, Counted]:
        """Return a reader's interval, which ends here, and the values that are left for the others."""
        if self.now is NO_COUNTS:
            ended = NOTHING
        else:
            ended = known[1] if known is not None and known[0] is self.now else self.now.histogram()
        mine = self.shares.get(reader)
        if intervals.readers == (reader,) and (mine is None or (mine[2] is NOTHING and mine[0] < reader.readings)):
            share = _made(_Share, (reader.readings, ended, NOTHING))  # as below, for most programs
            return ended, _made(Counted, (NO_COUNTS, {reader: share}))
        shares: dict[IntervalReader, _Share] = {}
        for each in intervals.readers:
            share = self.shares.get(each, _Share())
            waiting = ended if share.waiting is NOTHING else share.waiting.plus(ended)
            if each is not reader:
                shares[each] = share._replace(waiting=waiting)
                continue
            found = waiting if share.reading < reader.readings else share.taken.plus(waiting)
            shares[each] = _Share(reader.readings, found)
        return shares[reader].taken if reader in shares else NOTHING, Counted(shares=shares)
