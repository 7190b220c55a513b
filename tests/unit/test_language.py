"""The words of pages and commands: the field's terms, and none of the private vocabulary that they replace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import PACKAGE, ROOT
from tachograph.cli import parsers

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source, and runs none of it

REPLACED = re.compile(
    r"\b(?:front doors?|ways? out|counted out|last words|hang doctor|hub doctor|went nowhere|anatomy of a step)\b"
    r"|\b(?:is|are|was|were) (?:said|told)\b"
    r"|\b(?:of|by) ours\b|\bwho posts\b|\bstands? still\b|\bas it stands\b|\bis heard\b",
    re.IGNORECASE,
)
_PRIVATE_PLACES = re.compile(r"\b(?:HAZARDS|DESIGN|STYLE|LANGUAGE)\.md\b|\bshared/")


def pages() -> Iterator[Path]:
    """Yield the pages that are written by hand."""
    made = {"conformance.md", "bridges-conformance.md", "metrics.md", "launchers.md", "reliability-tables.md"}
    for pattern in ("*.md", "docs/*.md", "docs/design/*.md", "docs/upstream/*.md"):
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.name not in made)


@pytest.mark.parametrize("path", list(pages()), ids=lambda path: path.name)
def test_pages_use_the_terms_of_the_field(path: Path) -> None:
    """A page has none of the words that the field's terms have replaced."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{number}: {line.strip()}" for number, line in lines if REPLACED.search(line)] == []


def test_help_uses_the_terms_of_the_field() -> None:
    """So does the help of each command and option, which begins with a capital letter."""
    for words, parser in parsers():
        text = parser.format_help()
        assert not REPLACED.search(text), f"{words} --help: {REPLACED.search(text)}"
        for action in parser._actions:
            if action.help and action.dest not in ("help", "version") and not action.help.startswith("="):
                assert re.match(r"[A-Z'\"=]|jsonl", action.help), f"{words} --help: {action.help}"


def test_no_comment_needs_a_file_of_another_place() -> None:
    """Code and its comments name no document that does not come with this repository."""
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for root in (PACKAGE, ROOT / "bench")
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _PRIVATE_PLACES.search(line)
    ]
    assert lines == []
