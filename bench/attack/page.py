"""Makes docs/reliability.md of the results in ``results/``: ``python bench/attack/page.py`` (``--check``: compare)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results import FOLDER, ROOT

PAGE = ROOT / "docs" / "reliability.md"
TITLES = {
    "fuzz": "Bad input",
    "ends": "Programs that end in every way",
    "backends": "Backends that fail",
    "disks": "Disks that fail",
    "peers": "The same kills for other recorders",
}
_INTRODUCTION = """# Reliability: what was tried, how often, and what came of it

<!-- Made by `python bench/attack/page.py` of the results in bench/attack/results; do not edit it here. -->

Each attack is one command, seeded: a failure prints its seed, the commit and the command that repeats it.
`make test` runs a short piece of each.
"""


def page(folder: Path = FOLDER) -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for name, title in TITLES.items():
        file = folder / f"{name}.json"
        if file.exists():
            parts.append(_section(title, json.loads(file.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _section(title: str, found: Mapping[str, Any]) -> str:
    lines = [
        f"## {title}",
        "",
        (
            f"`{found['command']}`, seed {found['seed']}, at commit {found['commit']}, {found['date']}, "
            f"Python {found['python']}, {found['seconds']} s."
        ),
        "",
        "| attack | tried | failed | outcome |",
        "|---|--:|--:|---|",
    ]
    for row in found["rows"]:
        cells = (row["attack"], f"{row['tried']:,}", f"{row['failed']:,}", row["outcome"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the page, or compare it with ``--check``."""
    made = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
