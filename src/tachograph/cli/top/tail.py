"""The newest points of a curve."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

KEPT = 64  # points, of which a sparkline shows as many as there is room for


class Tail:
    """The newest points of one curve, those of its newest branch last.

    Attributes:
        values: of the points, the newest last; NaN and infinities where they were recorded.
        x: of the newest point; None before there is one.
        branch: of the newest point.
        seq: the number of the newest record that is in it.
    """

    __slots__ = ("branch", "seq", "values", "x")

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=KEPT)
        self.x: float | None = None
        self.branch = self.seq = 0

    def clear(self) -> None:
        """Forget all points."""
        self.values.clear()
        self.x = None
        self.branch = self.seq = 0

    def add(self, points: Iterable[tuple[float, float]], *, branch: int, seq: int = 0) -> None:
        """Add points of a branch, x and value of each, in recording order; those of an older branch are none."""
        if branch < self.branch:
            return
        self.branch = branch
        if newest := list(points)[-KEPT:]:
            self.values.extend([value for _, value in newest])
            self.x = newest[-1][0]
        self.seq = max(self.seq, seq)

    @property
    def value(self) -> float | None:
        """The newest value; None before there is one."""
        return self.values[-1] if self.values else None
