"""One registry of names: what pages, dashboards, rules and collector files say, the code makes."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_reference_is_what_the_code_says() -> None:
    """docs/metrics.md is as ``python scripts/reference.py`` makes it now."""
    page = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["page"]
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page()
