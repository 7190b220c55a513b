"""Repeated requests, detected by the time intervals of deltas."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

APART = 2**64  # nanoseconds: OTLP's times are less
SPANS = 32  # stretches with gaps between them, a writer; beyond them the two oldest become one
WRITERS = 8  # processes that wrote one series, one after the other

Spans = list[tuple[int, int]]


class DeltaIntervals:
    """The stretches of time that one series' deltas have covered, by the process that wrote them.

    The deltas of one process do not overlap (OpenTelemetry specification, "Metrics Data Model", "Temporality"), so one
    that lies within earlier ones was sent twice; processes that follow each other may overlap.
    """

    __slots__ = ("writers",)

    def __init__(self, writers: dict[Hashable, Spans] | None = None) -> None:
        self.writers: dict[Hashable, Spans] = {} if writers is None else writers

    def add(self, writer: Hashable, start: int, time: int) -> bool:
        """Cover a stretch of nanoseconds; False where it was covered before.

        A delta without a start is identified by its end alone.
        """
        if not start or start > time:
            start = time
        spans = self.writers.get(writer)
        if spans is None:
            if len(self.writers) >= WRITERS:
                del self.writers[next(iter(self.writers))]
            self.writers[writer] = [(start, time)]
            return True
        first, last = spans[-1]
        if start == last and time > last:
            spans[-1] = (first, time)
            return True
        return _insert(spans, start, time)

    def copy(self) -> list[tuple[Hashable, Spans]]:
        """Return a copy of the stretches."""
        return [(writer, list(spans)) for writer, spans in self.writers.items()]

    @classmethod
    def restored(cls, copied: Iterable[tuple[list[Any], list[list[int]]]]) -> DeltaIntervals:
        """Return the intervals of a copy that was JSON in between, whose writers are tuples."""
        return cls({tuple(writer): [(first, last) for first, last in spans] for writer, spans in copied})


def _insert(spans: Spans, start: int, time: int) -> bool:
    if any(first <= start and time <= last for first, last in spans):
        return False
    spans.append((start, time))
    spans.sort()
    joined: Spans = []
    for first, last in spans:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    if len(joined) > SPANS:
        joined[:2] = [(joined[0][0], joined[1][1])]
    spans[:] = joined
    return True
