"""Text that is written in slices: its lines are encoded slice by slice, with a rest in between."""

from __future__ import annotations

import time
from collections.abc import Callable

from tachograph.recording.gil_yield import SLICE


class SlicedText:
    """The lines of a page.

    Args:
        rest: called between slices, to let other threads run; None to write without a rest.
        most_bytes: after so many nothing is kept that is written; None for no limit.
        work: seconds between two rests.

    Attributes:
        lines: those that are not encoded yet.
        omitted: how many were not kept.
    """

    def __init__(
        self, rest: Callable[[], None] | None = None, most_bytes: int | None = None, work: float = SLICE
    ) -> None:
        self.lines: list[str] = []
        self.omitted = 0
        self._rest = rest
        self._work = work
        self._left = most_bytes
        self._chunks: list[bytes] = []
        self._began = time.perf_counter()

    def done(self, end: bytes = b"") -> bytes:
        """Return everything written, and behind it ``end``, which is always kept."""
        self._encode()
        return b"".join((*self._chunks, end))

    def _encode(self) -> None:
        chunk = "".join(self.lines).encode()
        if self._left is not None and len(chunk) > self._left:
            kept = chunk.rfind(b"\n", 0, self._left) + 1  # lines that come later are left out, too: a page has one end
            self.omitted += chunk.count(b"\n", kept)
            chunk, self._left = chunk[:kept], 0
        if self._left:
            self._left -= len(chunk)
        self._chunks.append(chunk)
        self.lines.clear()

    @property
    def is_full(self) -> bool:
        """Whether nothing is kept any more that is written."""
        return self._left == 0

    def breathe(self) -> None:
        """Rest, where the slice is over."""
        if self._rest is not None and time.perf_counter() - self._began > self._work:
            self._encode()
            self._rest()
            self._began = time.perf_counter()
