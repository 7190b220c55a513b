"""Losses of a series: values that were not recorded, counted and logged once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import log
from tachograph.recording.values import Number, Pending, read


def losses_of(records: Sequence[SeriesLosses]) -> list[SeriesLosses]:
    """Return those records that have counted any: each collection looks at all of them."""
    return [of for of in records if of.nonfinite or of.no_number or of.attribute or of.overflow or of.negative]


class SeriesLosses:
    """The counts of a series' losses: values that are no number or beyond the limit, non-finite ones, attributes.

    Args:
        name: of the metric.
        unread: called with 1 for each value that is no number, where :attr:`no_number` is not exported.
    """

    __slots__ = ("_unread", "attribute", "name", "negative", "no_number", "nonfinite", "overflow")

    def __init__(self, name: str, unread: Callable[[int], None] | None = None) -> None:
        self.name = name
        self._unread = unread
        self.forget()

    def forget(self) -> None:
        """Begin to count anew, in place: recorders hold on to this record."""
        self.attribute = 0
        self.no_number = 0
        self.overflow = 0
        self.negative = 0
        self.nonfinite = 0

    def put_aside(self) -> tuple[int, ...]:
        """Return the counts for :meth:`put_back`, and begin anew."""
        before = self.attribute, self.no_number, self.overflow, self.negative, self.nonfinite
        self.forget()
        return before

    def put_back(self, before: tuple[int, ...]) -> None:
        """Restore the values that were put aside."""
        self.attribute, self.no_number, self.overflow, self.negative, self.nonfinite = before

    def read(self, value: object) -> Number | Pending | None:
        """Return ``value`` as a number; any other object is counted, and said once."""
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - the border to user code: any object's __float__ or item() may fail
            pass_on(error)
            self._count_unread(error)
            return None

    def arrived(self, pending: Pending) -> Number | None:
        """Return a value that has come from its device; one that cannot be read is counted, and said once."""
        try:
            return pending.value()
        except Exception as error:  # noqa: BLE001 - the border to a device: a value that it has lost costs no other
            pass_on(error)
            self._count_unread(error)
            return None

    def _count_unread(self, error: Exception) -> None:
        if not self.no_number:
            message = (
                "%s: dropped a value: %s (further warnings are suppressed; see tachograph_dropped_total on /metrics)"
            )
            log.warning(message, self.name, error)
        self.no_number += 1
        if self._unread is not None:
            self._unread(1)

    def leave_out(self, key: str, error: Exception) -> None:
        """Count an attribute whose own code raised when it was read."""
        if not self.attribute:
            message = (
                "%r: dropped attribute %r because reading it raised %s "
                "(further warnings are suppressed; see tachograph_dropped_total on /metrics)"
            )
            log.warning(message, self.name, key, type(error).__name__)
        self.attribute += 1

    def refuse_negative(self, count: int) -> None:
        """Count values that would have made a counter go backwards."""
        if count and not self.negative:
            message = (
                "%s: dropped a negative value of a counter (further warnings are suppressed; see "
                "tachograph_dropped_total on /metrics)"
            )
            log.warning(message, self.name)
        self.negative += count
