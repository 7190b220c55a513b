"""The packages of the design: which there are, what each may import, and that no imports form a cycle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from places import PACKAGE

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source, and runs none of it

# From the bottom up: a package imports itself, and of the packages above it in this table those that it names.
LAYERS: dict[str, tuple[str, ...]] = {
    "recording": (),
    "identity": ("recording",),
    "profiling": ("recording", "identity"),
    "hardware": ("recording", "identity"),
    "elastic": ("recording", "identity", "profiling", "hardware"),
    "monitor": ("recording", "identity", "profiling", "hardware"),
    "metric": ("recording", "identity", "profiling", "hardware"),
    "logger": ("recording", "identity", "profiling", "hardware"),
    # the value types of the doors
    "exporters": ("recording", "identity", "elastic", "monitor", "logger"),
    "pipeline": ("recording", "identity", "profiling", "hardware", "elastic", "monitor", "logger", "exporters"),
    "runs": ("recording", "identity"),
    # the rank's side: recording and identity; the hub's side: runs
    "diagnosis": ("recording", "identity", "runs"),
    "instrumentation": (
        *("recording", "identity", "profiling", "elastic", "monitor", "metric", "exporters", "pipeline", "diagnosis"),
    ),
    "integrations": ("identity", "metric", "pipeline", "instrumentation"),
    "studio": ("recording", "identity", "exporters", "runs", "diagnosis"),
    "hub": ("recording", "identity", "hardware", "exporters", "runs", "diagnosis", "studio"),
    "_pyinstaller": (),  # asked by PyInstaller alone
    "cli": (
        *("recording", "identity", "hardware", "metric", "logger", "exporters", "pipeline", "instrumentation", "runs"),
        *("diagnosis", "studio", "hub"),
    ),
}
# The files at the root, and the rooms that they import; everybody may read the version.
FILES = {
    "": (*LAYERS, "otel", "testing"),  # what users type: each name is loaded at its first use
    "__main__": ("cli",),
    "otel": ("exporters",),
    "testing": ("recording",),
    "version": (),
}
# Packages that others still import by submodule. All others are used through the names that their interface offers.
OPEN = {
    *("recording", "identity", "profiling", "hardware", "elastic", "monitor", "metric", "logger", "exporters"),
    *("pipeline", "instrumentation", "integrations", "_pyinstaller", "testing", "version"),
}
# Each is a callback of another trainer, by the name that its users look for.
CALLBACKS = {"TachographCallback": ["integrations.ray", "integrations.transformers"]}


def modules() -> dict[str, Path]:
    """Return every module of the package by its name below ``tachograph``."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").strip("."): path
        for path in PACKAGE.rglob("*.py")
    }


MODULES = modules()


@cache
def tree(module: str) -> ast.Module:
    """Return the code of a module, read once."""
    return ast.parse(MODULES[module].read_text())


def imported(module: str, *, by_name: bool = True) -> set[str]:
    """Return the modules of the package that a module imports anywhere in its code, by their names in strings, too."""
    names = {name for node in ast.walk(tree(module)) for name in _names(node)}
    if by_name:
        names |= {name for node in ast.walk(tree(module)) for name in _named(node)}
    return {other for name in names if (other := _home(name)) is not None} - {module}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _named(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a call such as ``import_module("tachograph.hub")`` names."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"import_module", "__import__"}:
        for argument in node.args[:1]:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def _home(name: str) -> str | None:
    """Return the module behind a dotted name, which may be that of something in it."""
    package, _, inner = name.partition(".")
    if package != "tachograph":
        return None
    while inner and inner not in MODULES:
        inner = inner.rpartition(".")[0]
    return inner


def room(module: str) -> str:
    """Return the room that a module is in, or the file at the root that it is."""
    return module.partition(".")[0]


def test_every_module_is_in_a_room() -> None:
    """The tree has the rooms of the table and the files at the root, and nothing else."""
    assert {room(module) for module in MODULES} == {*LAYERS, *FILES}
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == {
        *("__init__.py", "__main__.py", "otel.py", "py.typed", "testing.py", "version.py")
    }


def test_the_table_goes_down() -> None:
    """No room of the table may import one below it."""
    order = list(LAYERS)
    assert [
        (one, other) for one, may in LAYERS.items() for other in may if order.index(other) >= order.index(one)
    ] == []


def test_rooms_import_what_they_may() -> None:
    """No module imports of another room than its own may, in a function or by name neither."""
    may = LAYERS | FILES
    found = {
        (module, other)
        for module in MODULES
        for other in imported(module)
        if other != "version" and room(other) != room(module) and room(other) not in may[room(module)]
    }
    assert found == set()


def test_plumbing_stays_in_its_room() -> None:
    """A module whose name begins with an underscore is imported by its own room alone."""
    found = [
        f"{module} -> {other}"
        for module in MODULES
        for other in imported(module)
        if room(other) != room(module) and any(part.startswith("_") for part in other.split(".")) and module
    ]
    assert found == []


def test_a_room_says_what_it_is() -> None:
    """Each room's face has a docstring."""
    silent = [name for name in LAYERS if not ast.get_docstring(tree(name))]
    assert silent == []


def test_an_open_room_names_the_modules_that_others_use() -> None:
    """A module of an open package that another one imports is named in the docstring of its package."""
    faces = {name: ast.get_docstring(tree(name)) or "" for name in LAYERS}
    unnamed = {
        other
        for module in MODULES
        for other in imported(module)
        if room(other) in OPEN & faces.keys() and room(other) != room(module) and "." in other and module
        if not re.search(rf"[`.]{other.rpartition('.')[2]}`", faces[room(other)])
    }
    assert unnamed == set()


def test_packages_are_used_through_their_interfaces() -> None:
    """No module imports a submodule of another package, unless that package is still open."""
    found = [
        f"{module} -> {other}"
        for module in MODULES
        for other in imported(module)
        if room(other) not in OPEN and room(other) != room(module) and "." in other and module
    ]
    assert found == []


@pytest.mark.parametrize("package", sorted(set(LAYERS) - OPEN - {"cli"}))
def test_an_interface_offers_what_it_declares(package: str) -> None:
    """The names for type checkers are those that are loaded at their first use, and each is there."""
    declared = {
        alias.asname or alias.name
        for node in ast.walk(tree(package))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"tachograph.{package}.")
        for alias in node.names
    }
    interface = import_module(f"tachograph.{package}")
    offered = {name for names in interface._NAMES.values() for name in names}
    assert declared - offered == set(getattr(interface, "_ALIASES", ()))
    assert offered <= declared
    assert [name for name in declared if getattr(interface, name, None) is None] == []


def test_nothing_is_imported_in_a_circle() -> None:
    """The modules can be put into an order in which each imports only what comes before it."""
    graph = {module: {other for other in imported(module) if other} for module in MODULES if module}
    TopologicalSorter(graph).prepare()


def test_no_room_leads_back_to_itself() -> None:
    """Rooms, too, can be put into an order."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        graph.setdefault(room(module), set()).update(room(other) for other in imported(module) if other)
    TopologicalSorter({one: others - {one} for one, others in graph.items() if one}).prepare()


def test_imports_are_absolute() -> None:
    """Every import names the package, so that the tests above see it."""
    relative = [
        module
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_no_two_public_classes_share_a_name() -> None:
    """A class that others may use, by a module without an underscore or by an import from another room, has its own."""
    crossing = {
        name
        for module in MODULES
        for node in ast.walk(tree(module))
        for name in _names(node)
        if (home := _home(name)) and room(home) != room(module)
    }
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        plumbing = any(part.startswith("_") for part in module.split("."))
        for node in tree(module).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if not plumbing or f"tachograph.{module}.{node.name}" in crossing:
                homes.setdefault(node.name, []).append(module)
    assert {name: sorted(found) for name, found in homes.items() if len(found) > 1} == CALLBACKS
