"""Write docs/conformance.md: which documented behavior works with which destination.

Run ``python tests/system/conformance/page.py``. ``test_conformance.py`` tests each cell.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cells import note_of, word_of
from rows import Row
from table import SECTIONS
from ways import WAYS, WayName

PAGE = Path(__file__).resolve().parents[3] / "docs" / "conformance.md"

_HEAD = """# Conformance: every documented behavior with every destination

This page shows which recorded data reaches which destination. Each cell of the tables is a test with a real process, in
`tests/system/conformance`. The page is generated from these tests with `python tests/system/conformance/page.py`.

- **✓**: the data arrives exactly: values, counts, attributes and types. Sums of floats agree within 1e-12.
- **counted**: the data does not arrive; the loss is counted as described in the note.
- **n/a**: the behavior does not apply to this destination; the note says why.
- **later**: not supported yet.

Numbers in parentheses refer to the [notes](#notes). The destinations are:

"""


def page() -> str:
    """Return the page."""
    notes: dict[str, int] = {}
    parts = [_HEAD + "".join(f"- **{way.title}**: {way.says}.\n" for way in WAYS.values())]
    head = "| behavior | " + " | ".join(way.title for way in WAYS.values()) + " |\n"
    rule = "|---" * (len(WAYS) + 1) + "|\n"
    for section in SECTIONS:
        lines = [
            "| " + " | ".join([row.says.replace("|", "\\|"), *(_cell(row, way, notes) for way in WAYS)]) + " |\n"
            for row in section.rows
        ]
        parts.append(f"## {section.title}\n\n{head}{rule}{''.join(lines)}")
    parts.append("## Notes\n\n" + "".join(f"{number}. {note}\n" for note, number in notes.items()))
    parts.append("See also: [reliability](reliability.md) · [exporters](exporters.md) · [concepts](concepts.md)\n")
    return "\n".join(parts)


def _cell(row: Row, way: WayName, notes: dict[str, int]) -> str:
    note = note_of(row, way)
    number = notes.setdefault(note, len(notes) + 1) if note else 0
    return word_of(row, way) + (f" ({number})" if number else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: written\n")
