"""The words of docstrings: the noun of the field comes first, and no question word stands in its place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from places import PACKAGE, ROOT

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source, and runs none of it

# Rooms whose docstrings still have such words.
_ROOMS_TO_BE_WRITTEN: set[str] = set()
_WORDS = "what|whatever|who|whoever|whom|whose|somebody|someone|something|nobody|anybody"
_IN_PLACE_OF_A_NOUN = re.compile(rf"(?:{_WORDS})\b", re.IGNORECASE)
# "Return what was read": a relative pronoun behind a noun ("a span whose end is known") is fine.
_AS_AN_OBJECT = re.compile(r"\b(?:what|whatever|whoever|somebody|nobody|anybody)\b", re.IGNORECASE)
# At the start of a sentence, a heading or a cell: "What leaves when", "Where a name is missing". A question may.
_AT_A_START = re.compile(r"\b(?:What|Whatever|Who|Whoever|Whose|Where|Wherever)\b(?![^.\n]*\?)")
_WRITTEN = ("*.md", "docs/*.md", "docs/upstream/*.md", "deploy/**/*", "collector-config/*", "examples/*", "src/**/*")
_TEXTS = {".md", ".py", ".yml", ".yaml", ".json", ".js", ".css", ".html", ".sh", ".ipynb"}
_ELSEWHERE = re.compile(r"\b(?:HAZARDS|DESIGN|STYLE)\b|\bshared/")


def first_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield line number and first line of each docstring in a module's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring.splitlines()[0]


def without_a_noun(line: str) -> bool:
    """Tell whether a first line begins with a question word, or has one as its subject or object."""
    return bool(_IN_PLACE_OF_A_NOUN.match(line) or _AS_AN_OBJECT.search(line))


def test_first_lines_name_their_thing() -> None:
    """No first line of a docstring says "what …" or "somebody" where the field has a noun."""
    found = [
        f"{path.relative_to(root)}:{number}: {line}"
        for root in (PACKAGE, ROOT / "bench")
        for path in sorted(root.rglob("*.py"))
        if root != PACKAGE or path.relative_to(root).parts[0] not in _ROOMS_TO_BE_WRITTEN
        for number, line in first_lines(path.read_text())
        if without_a_noun(line)
    ]
    assert found == []


def test_no_sentence_begins_with_a_question_word() -> None:
    """No heading, sentence or message of pages, code, rules or the Studio begins with "what", "who" or "where"."""
    paths = {path for pattern in _WRITTEN for path in ROOT.glob(pattern) if path.suffix in _TEXTS}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(paths)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _AT_A_START.search(line)
    ]
    assert found == []


def test_no_comment_needs_a_file_of_another_place() -> None:
    """Code and its comments name no document that does not come with this repository."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for root in (PACKAGE, ROOT / "bench")
        for path in sorted(root.rglob("*.py"))
        if root != PACKAGE or path.relative_to(root).parts[0] not in _ROOMS_TO_BE_WRITTEN
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _ELSEWHERE.search(line)
    ]
    assert found == []


def test_rooms_to_be_written_exist() -> None:
    """A room that is renamed or gone does not stay in the list of those that are left out."""
    assert {name for name in _ROOMS_TO_BE_WRITTEN if not (PACKAGE / name).is_dir()} == set()


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("What a line holds.", True),
        ("Whatever the server says.", True),
        ("Somebody else's providers.", True),
        ("Return what was read.", True),
        ("Fields of a line.", False),
        ("Return the bytes read.", False),
        ("Restore every function whose wrapper is still in place.", False),
        ("Close every window, somewhat late.", False),
    ],
)
def test_the_rule_itself(line: str, refused: bool) -> None:
    """Question words are refused where a noun belongs, relative pronouns are not."""
    assert [without_a_noun(found) for _, found in first_lines(f'"""{line}"""')] == [refused]
