"""A page as it is written: lines, encoded slice by slice, with a rest in between."""

from __future__ import annotations

import time
from collections.abc import Callable

from tachograph.pace import SLICE
from tachograph.prometheus.family import Family
from tachograph.prometheus.format import Format
from tachograph.prometheus.text import family_name, help_text


class Sheet:
    """The lines of a page.

    Args:
        form: the text format.
        rest: called between slices, to let other threads run; None to write without a rest.

    Attributes:
        form: see above.
        lines: those that are not encoded yet.
    """

    def __init__(self, form: Format, rest: Callable[[], None] | None) -> None:
        self.form = form
        self.lines: list[str] = []
        self._rest = rest
        self._chunks: list[bytes] = []
        self._began = time.perf_counter()

    def done(self) -> bytes:
        """Return everything written."""
        if self.form.openmetrics:
            self.lines.append("# EOF\n")
        self._encode()
        return b"".join(self._chunks)

    def _encode(self) -> None:
        self._chunks.append("".join(self.lines).encode())
        self.lines.clear()

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
