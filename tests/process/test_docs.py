"""What the pages in docs/ show works as it stands there, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from places import ROOT
from test_readme import ends_well

PAGES = sorted((ROOT / "docs").glob("**/*.md"))
PROGRAMS = [
    pytest.param(program, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, program in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_python_runs_as_it_is(program: str, tmp_path: Path) -> None:
    """Each Python block is a program that ends well and complains about nothing."""
    ends_well(program, tmp_path)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to another file of this checkout, and to a heading of it, has a target."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, link


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
