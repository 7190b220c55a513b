"""Every ``tachograph …`` command in the pages, in ``deploy`` and in the examples is one that the program accepts."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT
from tachograph.cli import parsers
from tachograph.cli.run import read_options

PARSERS = dict(parsers())
WRITTEN = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*", "collector-config/*", "examples/*", "Makefile", "scripts/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
    and path.name != "CHANGELOG.md"
    and path.suffix not in {".json", ".png", ".svg", ".pyc"}
    and "_build" not in path.parts
)
_CONTROL = re.compile(r"[;&|<>()]+")


def code_of(text: str) -> Iterator[str]:
    """Yield the commands of console blocks, scripts and units."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        found = re.search(r"(?:^|\$ |\$\(|exec |command: |ExecStart=\S*/|do |; |-m )(tachograph [a-z].*)", line.strip())
        if found and "`" not in line and not re.match(r"tachograph \w+ \w+:", found[1]):  # what a script prints
            yield found[1]


def prose_of(text: str) -> Iterator[str]:
    """Yield the commands between backquotes, which may leave out arguments."""
    return iter(re.findall(r"(?<!`)`(tachograph [a-z][^`\n]*)`(?!`)", text))


def words_of(command: str) -> list[str]:
    """Return the words of a command up to the end of the shell's simple command; empty if it cannot be split."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if _CONTROL.fullmatch(word) or word.startswith(("2>", "$(")):
                break
            words.append(word)
    except ValueError:  # prose with an apostrophe
        return []
    return words


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of a command line and the words for it.

    Raises:
        LookupError: there is no such command.
    """
    for length in (3, 2):
        name = " ".join(words[:length])
        if name in PARSERS and not (name in ("tachograph runs", "tachograph init") and len(words) > length):
            return PARSERS[name], words[length:]
    raise LookupError(f"there is no command {' '.join(words[:3])!r}")


def refusal_of_code(words: list[str]) -> str:
    """Return why a command line is refused; empty if it is accepted. Variables stand for a number."""
    words = [re.sub(r"\$\{?\w+\}?", "1", word) for word in words]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            if words[1] == "run":
                read_options(words[2:])
            else:
                parser, rest = parser_of(words)
                parser.parse_intermixed_args(rest)
    except LookupError as error:
        return str(error)
    except SystemExit as ended:
        return errors.getvalue().strip().splitlines()[-1] if ended.code else ""
    return ""


def refusal_of_prose(words: list[str]) -> str:
    """Return which name of a command or of an option does not exist; empty if all do."""
    try:
        parser, rest = parser_of([word for word in words if not word.startswith("[")] or words)
    except LookupError as error:
        return str(error)
    options = {option for action in parser._actions for option in action.option_strings}
    own = rest[: rest.index("--")] if "--" in rest else rest
    unknown = [word for word in (each.strip("[]").partition("=")[0] for each in own) if word.startswith("--")]
    return ", ".join(f"there is no option {word}" for word in unknown if word not in options)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_written_down_are_accepted(path: Path) -> None:
    """Each command of a code block parses, and each command and option that the text names exists."""
    text = path.read_text(encoding="utf-8", errors="replace")
    code = {command: refusal_of_code(words_of(command)) for command in code_of(text) if words_of(command)[2:]}
    prose = {command: refusal_of_prose(words_of(command)) for command in prose_of(text) if words_of(command)[1:]}
    assert {command: why for command, why in {**code, **prose}.items() if why} == {}
