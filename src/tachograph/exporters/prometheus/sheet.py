"""A page as it is written: lines, encoded slice by slice, with a rest in between."""

from __future__ import annotations

import time
from collections.abc import Callable

from tachograph.exporters.prometheus.family import Family
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import family_name, help_text
from tachograph.recording.gil_yield import SLICE


class Sheet:
    """The lines of a page.

    Args:
        form: the text format.
        rest: called between slices, to let other threads run; None to write without a rest.
        most_bytes: after so many nothing is kept that is written; None for no limit.

    Attributes:
        form: see above.
        lines: those that are not encoded yet.
        omitted: how many were not kept.
    """

    def __init__(self, form: Format, rest: Callable[[], None] | None, most_bytes: int | None = None) -> None:
        self.form = form
        self.lines: list[str] = []
        self.omitted = 0
        self._rest = rest
        self._left = most_bytes
        self._chunks: list[bytes] = []
        self._began = time.perf_counter()

    def done(self) -> bytes:
        """Return everything written."""
        self._encode()
        if self.form.openmetrics:
            self._chunks.append(b"# EOF\n")
        return b"".join(self._chunks)

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
        if self._rest is not None and time.perf_counter() - self._began > SLICE:
            self._encode()
            self._rest()
            self._began = time.perf_counter()

    def header(self, family: Family) -> None:
        """Write what comes before a family's series."""
        name = family_name(family.header)
        text = help_text(family.description, openmetrics=self.form.openmetrics)
        self.lines.append(f"# HELP {name} {text}\n# TYPE {name} {family.written_kind}\n")
        if self.form.openmetrics and family.unit and family.header.endswith("_" + family.unit):
            self.lines.append(f"# UNIT {name} {family.unit}\n")
