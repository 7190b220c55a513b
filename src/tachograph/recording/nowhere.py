"""Where metrics record while nothing is recorded in this process, and what comes too late."""

from __future__ import annotations

from collections import deque
from math import inf

from tachograph.recording.curve import Curve
from tachograph.recording.last_value import LastValue
from tachograph.recording.losses import Losses


class _Nowhere(Curve):
    """Takes everything, and keeps nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.buffer = deque(maxlen=0)
        self.due = inf
        self.gauge = LastValue(Losses(""))
        self.late = False
        self.last = self.shown = 0.0
        self.start, self.until = 0.0, -inf


NOWHERE: Curve = _Nowhere()
