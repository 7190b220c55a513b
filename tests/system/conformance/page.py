"""Write docs/conformance.md, the table of what arrives by which way out: ``python tests/system/conformance/page.py``.

Each cell is what ``test_conformance.py`` holds it to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cells import note_of, word_of
from rows import Row
from table import SECTIONS
from ways import WAYS, WayName

PAGE = Path(__file__).resolve().parents[3] / "docs" / "conformance.md"

_HEAD = """# Conformance: every documented behaviour, by every way out

Each cell is a test on a real process (`tests/system/conformance`), and this page
is made from the tests by `python tests/system/conformance/page.py`.

- **✓**: it arrives exactly: values, counts, attributes, types; sums of floats within 1e-12.
- **counted**: it does not, and what is missing is counted, as the note says.
- **n/a**: it does not concern this way out; the note says why.
- **later**: it should, and does not yet.

A number leads to a [note](#notes). The ways out:

"""


def page() -> str:
    """Return the page."""
    notes: dict[str, int] = {}
    parts = [_HEAD + "".join(f"- **{way.title}**: {way.says}.\n" for way in WAYS.values())]
    head = "| behaviour | " + " | ".join(way.title for way in WAYS.values()) + " |\n"
    rule = "|---" * (len(WAYS) + 1) + "|\n"
    for section in SECTIONS:
        lines = [
            "| " + " | ".join([row.says.replace("|", "\\|"), *(_cell(row, way, notes) for way in WAYS)]) + " |\n"
            for row in section.rows
        ]
        parts.append(f"## {section.title}\n\n{head}{rule}{''.join(lines)}")
    parts.append("## Notes\n\n" + "".join(f"{number}. {note}\n" for note, number in notes.items()))
    parts.append("On: [reliability](reliability.md) · [ways out](exporters.md) · [concepts](concepts.md)\n")
    return "\n".join(parts)


def _cell(row: Row, way: WayName, notes: dict[str, int]) -> str:
    note = note_of(row, way)
    number = notes.setdefault(note, len(notes) + 1) if note else 0
    return word_of(row, way) + (f" ({number})" if number else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: written\n")
