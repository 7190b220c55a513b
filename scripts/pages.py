"""Write docs/cli.md and docs/patched.md, and the figures of docs/performance.md.

``python scripts/pages.py``: the commands with their options, and the names of others that bridges patch, are made from
the code, so that they say what is there; the figures from what benches left in bench/results.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import performance

from tachograph.cli import commands
from tachograph.instrumentation.bridges._libraries import LIBRARIES

DOCS = Path(__file__).resolve().parents[1] / "docs"

_CLI = """# Commands

<!-- Made by `python scripts/pages.py`; do not edit it here. -->

`tachograph COMMAND --help` says the same. An exit code of 2 stands for wrong usage, 1 for a command that failed;
that of `tachograph run` is the job's.
"""
_PATCHED = """# Names that are patched

<!-- Made by `python scripts/pages.py`; do not edit it here. -->

The names of other libraries that [bridges](bridges.md) patch, with the versions that they were tried with. Most
of them are private. One that a version lacks is a line in the log, and the library works as without a bridge.

| library | versions | names |
|---|---|---|
"""


def cli() -> str:
    """Return the page of the commands."""
    parts = [_CLI]
    for name, (module, line) in commands().items():
        parser = import_module(module)._parser()  # noqa: SLF001 - the command's own, as it runs with it
        parts += [f"## `tachograph {name}`\n\n{_sentence(parser.description or line)}\n", *_options(parser)]
        for sub, of_sub, about in _subcommands(parser):
            parts += [f"### `tachograph {name} {sub}`\n\n{_sentence(about)}\n", *_options(of_sub)]
        if parser.epilog:
            parts.append(f"{_sentence(parser.epilog)}\n")
    return "\n".join([*parts, "On: [settings](settings.md) · [runs](runs.md) · [the hub](hub.md)\n"])


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [_row(action) for action in _actions(parser)]
    if rows:
        yield "| option | |\n|---|---|\n" + "".join(rows)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse lists them nowhere else
        hidden = action.help == argparse.SUPPRESS or "--help" in action.option_strings
        if not hidden and not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield action


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
            for name, sub in action.choices.items():
                yield name, sub, about.get(name, "")


def _row(action: argparse.Action) -> str:
    named = action.metavar or action.dest.upper()
    value = " ".join(named) if isinstance(named, tuple) else str(named)
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if action.option_strings:
        text = ", ".join(f"`{option}{'' if action.nargs == 0 else ' ' + value}`" for option in action.option_strings)
    else:
        text = f"`{value}`"
    said = (action.help or "") % {**vars(action), "prog": "tachograph"}
    return f"| {_cell(text)} | {_cell(_marked(said))} |\n"


def _marked(text: str) -> str:
    """Return a text with its variables, and words in angle brackets, as code."""
    return re.sub(r"(?<![\w`])((?:TACHOGRAPH|OTEL|INFLUXDB)_[A-Z_]+|<[^>]+>)(?![\w`])", r"`\1`", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    text = _marked(text.strip())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "?")) else ".")


def patched() -> str:
    """Return the page of the patched names."""
    rows = []
    for name, library in sorted(LIBRARIES.items()):
        names = ", ".join(f"`{patch.module}.{patch.path}`" for patch in library.names) or "handlers of its own"
        tried = library.oldest if library.oldest == library.newest else f"{library.oldest} to {library.newest}"
        rows.append(f"| `{name}`: {library.package} | {tried} | {names} |\n")
    return _PATCHED + "".join(rows) + "\nOn: [how zero code gets in](zero-code.md) · [bridges](bridges.md)\n"


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli, "patched.md": patched, **performance.FILES}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"docs/{name}: written\n")
