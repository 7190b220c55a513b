"""Write the pages of docs that are made from the code, and the figures of docs/performance.md.

``python scripts/pages.py`` makes the commands with their options, the settings, the names that bridges patch, and the
interfaces of packages from the code, and the figures from the results of benches in bench/results.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import performance

from tachograph.cli import parsers
from tachograph.instrumentation.bridges._libraries import LIBRARIES
from tachograph.pipeline.settings_table import SECTIONS, SettingRow

DOCS = Path(__file__).resolve().parents[1] / "docs"
SOURCE = DOCS.parent / "src" / "tachograph"

_CLI = """# Commands

<!-- Made by `python scripts/pages.py`; do not edit it here. -->

`tachograph COMMAND --help` prints the same. Exit codes: 0 for success, 1 if a part of the work failed (also for an
unknown run of `tachograph runs delete`), 2 for wrong usage (an unknown option or run, an unreadable store), and 3 if
`tachograph diagnose` finds a hang or a critical problem. The exit code of `tachograph run` is the job's. Durations
are written as `30s`, `5m`, `12h`, or `30d`; a bare number means seconds.
"""
_SETTINGS = """# Settings

<!-- Made by `python scripts/pages.py`; do not edit it here. -->

Set environment variables, or pass keyword arguments to `tachograph.start()`, which win over the variables. An empty
variable counts as unset. `TACHOGRAPH_*` variables that are `true` or `false` also accept `1` and `0`. A wrong value is
a `ValueError` that names the variable and the allowed values. Under `tachograph run` it is logged instead, and the
program continues.

`start()` returns a [`Pipeline`](api.md#tachographpipeline): a context manager with `flush(timeout)`,
`shutdown(timeout)`, `metrics_url`, and `hub_url`. Until `start()` is called, values stay in memory, or go to the
OpenTelemetry providers that the program has set up.
"""
_PATCHED = """# Patched names

<!-- Made by `python scripts/pages.py`; do not edit it here. -->

The names of other libraries that [bridges](bridges.md) patch, with the versions that were tested. Most of them are
private. If a version does not have a name, one line is logged, and the library works without that bridge.

| library | tested versions | names |
|---|---|---|
"""


def cli() -> str:
    """Return the page of the commands."""
    parts = [_CLI]
    for words, parser in parsers():
        if parser.epilog and "COMMAND --help" in parser.epilog:  # a group: its commands follow
            summary = (parser.description or "").partition("\n")[0]
            parts.append(f"## `{words}`\n\n{_sentence(summary)}\n")
            continue
        level = "##" if words.count(" ") == 1 else "###"
        parts += [f"{level} `{words}`\n\n{_sentence(parser.description or '')}\n", *_options(parser)]
        if parser.epilog:
            parts.append(f"{_sentence(parser.epilog)}\n")
    return "\n".join([*parts, "Next: [settings](settings.md) · [runs](runs.md) · [the hub](hub.md)\n"])


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [_row(action) for action in _actions(parser)]
    if rows:
        yield "| option | |\n|---|---|\n" + "".join(rows)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse lists them nowhere else
        hidden = action.help == argparse.SUPPRESS or "--help" in action.option_strings
        if not hidden and not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield action


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
    return re.sub(r"(?<![\w`])((?:TACHOGRAPH|OTEL|INFLUXDB)_[A-Z_]+|<[A-Za-z][\w-]*>)(?![\w`])", r"`\1`", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    text = _marked(text.strip())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "?")) else ".")


def settings() -> str:
    """Return the page of the settings."""
    parts = [_SETTINGS]
    for title, rows in SECTIONS.items():
        lines = "".join(_setting(row) for row in rows)
        parts.append(
            f"## {title}\n\n| variable | argument | values | default | effect |\n|---|---|---|---|---|\n{lines}"
        )
    return "\n".join([*parts, "Next: [commands](cli.md) · [exporters](exporters.md) · [API](api.md)\n"])


def _setting(row: SettingRow) -> str:
    values = row.values if isinstance(row.values, str) else _codes(row.values)
    cells = (_codes(row.variables), _codes(row.arguments), values, row.default, row.description)
    return "".join(f"| {_cell(cell)} " for cell in cells) + "|\n"


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def patched() -> str:
    """Return the page of the patched names."""
    rows = []
    for name, library in sorted(LIBRARIES.items()):
        names = ", ".join(f"`{patch.module}.{patch.path}`" for patch in library.names) or "handlers of its own"
        tried = library.oldest if library.oldest == library.newest else f"{library.oldest} to {library.newest}"
        rows.append(f"| `{name}`: {library.package} | {tried} | {names} |\n")
    return (
        _PATCHED
        + "".join(rows)
        + "\nNext: [instrumentation without code changes](zero-code.md) · [bridges](bridges.md)\n"
    )


_INTERFACES = """# Interfaces of packages

<!-- Made by `python scripts/pages.py`; do not edit it here. -->

The names that other packages of Tachograph may import, by package. A test forbids every other import of these packages.
Packages that are not listed are still imported by module. For users, only the names in the [API](../api.md) are stable.
"""
_WITH_INTERFACE = ("runs", "diagnosis", "studio", "hub")


def interfaces() -> str:
    """Return the page of the packages' interfaces."""
    parts = [_INTERFACES]
    for package in _WITH_INTERFACE:
        names = vars(import_module(f"tachograph.{package}"))["_NAMES"]
        parts.append(f"\n## tachograph.{package}\n\n| name | module | |\n|---|---|---|\n")
        for module in sorted(names):
            described = _descriptions(SOURCE / package / f"{module}.py")
            parts.extend(f"| `{name}` | `{module}` | {described.get(name, '')} |\n" for name in names[module])
    return "".join([*parts, "\nNext: [architecture](architecture.md) · [contributing](../contributing.md)\n"])


def _descriptions(path: Path) -> dict[str, str]:
    """Return the first sentence about each class and function of a module."""
    return {
        node.name: _cell(_as_markdown((ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }


def _as_markdown(docstring: str) -> str:
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring).replace("``", "`")


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "settings.md": settings,
    "patched.md": patched,
    "design/interfaces.md": interfaces,
    **performance.FILES,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"docs/{name}: written\n")
