"""What the package imports is declared, and what is declared is used; each exception has a name and a reason."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from typing import Any

import pytest

from places import PACKAGE, ROOT

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source, and runs none of it


# The parts of the package that may import what an extra brings; all others do with the core.
FOLDERS = {
    "influxdb": ("exporters/influxdb/",),
    "hardware": ("hardware/",),
    "top": ("cli/top/",),
    "parquet": ("runs/parquet.py",),
    "tensorboard": ("cli/runs/tensorboard/",),
}
UNDECLARED = {
    "torch": "instruments a program that has it: its module is imported where torchrun runs, never by us first",
    "pandas": "is what a user who has it asks for: a run as a data frame",
    "IPython": "is there where a notebook's kernel runs, and is imported in no other process",
    "ipywidgets": "is there where a notebook's user has installed it: bars are then those of tqdm.notebook",
    "numpy": "makes charts faster where it is installed, and is not needed",
    **dict.fromkeys(
        ("accelerate", "lightning", "pytorch_lightning", "ray", "transformers"),
        "has a base class in tachograph.integrations, for programs that have the library",
    ),
    "PyInstaller": "is there where it asks for the hook, and is imported in no other process",
    "typing_extensions": "is imported by type checkers alone, which bring it",
}
NOT_IMPORTED = {
    "opentelemetry-exporter-otlp": "an empty package that brings both official exporters, which are destinations",
    "py-spy": "a program, which the hub runs where it is installed",
}
OF_THE_DEMO = "demo"  # an extra for the programs of the repository, not for the package
ALL = "all"  # an extra that names the others

Imports = dict[str, set[str]]  # files, by the module that they import


@cache
def imports() -> Imports:
    """Return every module from elsewhere that the package imports: at any level, and by its name as a text."""
    found: Imports = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for module in named(node):
                if module.partition(".")[0] not in {"tachograph", "sitecustomize", *sys.stdlib_module_names}:
                    found[module].add(path.relative_to(PACKAGE).as_posix())
    return found


def named(node: ast.AST) -> Iterator[str]:
    """Yield the modules, or the names in modules, that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if function in ("import_module", "__import__"):
            yield str(node.args[0].value)


@cache
def installed() -> dict[str, set[str]]:
    """Return the distributions that have a module, by the first part of the module's name."""
    return {name: set(found) for name, found in packages_distributions().items()}


@cache
def modules(name: str) -> frozenset[str]:
    """Return the modules in a distribution's files."""
    files = [file for file in distribution(name).files or () if file.suffix == ".py"]
    return frozenset(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)


def home(module: str) -> str:
    """Return the distribution that a module, or a name in one, comes from."""
    found = installed().get(module.partition(".")[0], set())
    if len(found) > 1:  # a namespace package: the one that has the longest part of the name as a file
        name = module
        while not any(name in modules(each) for each in found):
            name = name.rpartition(".")[0]
            assert name, f"{module} is not installed"
        found = {each for each in found if name in modules(each)}
    assert len(found) == 1, f"{module} is in {sorted(found)}"
    return canonical(*found)


def canonical(name: str) -> str:
    """Return a distribution's name as it is compared: PyPA specification, "Names and normalization"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> Any:
    """Return the table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> dict[str, list[str]]:
    """Return what the package asks for, by extra; the core's is the empty string."""
    found = project()
    return {"": found["dependencies"], **{k: v for k, v in found["optional-dependencies"].items() if k != ALL}}


def declared() -> dict[str, set[str]]:
    """Return the distributions that the package asks for, by extra."""
    return {
        extra: {canonical(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in asked}
        for extra, asked in requirements().items()
    }


def to_declare() -> Imports:
    """Return the imports that are no exception."""
    return {module: files for module, files in imports().items() if module.partition(".")[0] not in UNDECLARED}


def test_what_is_imported_is_declared() -> None:
    """Each import comes from a distribution that the core asks for, or an extra of the part of the package it is in."""
    undeclared = []
    for module, files in to_declare().items():
        asking = {extra for extra, asked in declared().items() if home(module) in asked}
        for file in files:
            allowed = {extra for extra, folders in FOLDERS.items() if file.startswith(folders)}
            if not asking & {"", *allowed}:
                undeclared.append(f"{file} imports {module}, of {home(module)}")
    assert undeclared == []


def test_what_is_declared_is_imported() -> None:
    """Each distribution that is asked for is imported, an extra's where the extra belongs, or named as an exception."""
    used: dict[str, set[str]] = defaultdict(set)
    for module, files in to_declare().items():
        used[home(module)] |= set(files)
    unused = [
        f"{name} of [{extra}]"
        for extra, asked in declared().items()
        for name in asked - set(NOT_IMPORTED)
        if extra != OF_THE_DEMO and not any(file.startswith(FOLDERS[extra]) if extra else True for file in used[name])
    ]
    assert unused == []


def test_all_is_all() -> None:
    """``pip install 'tachograph[all]'`` brings what each other extra brings, the demo's apart."""
    extras = project()["optional-dependencies"]
    (asked,) = extras[ALL]
    assert set(asked.removeprefix("tachograph[").removesuffix("]").split(",")) == set(extras) - {ALL, OF_THE_DEMO}


def test_the_exceptions_are_needed() -> None:
    """An exception that nothing needs any more goes."""
    assert set(UNDECLARED) <= {module.partition(".")[0] for module in imports()}
    assert set(NOT_IMPORTED) <= set().union(*declared().values()) - {home(module) for module in to_declare()}


def test_every_dependency_is_bounded() -> None:
    """A range has a lower bound, with which the tests pass, and an upper one, the next version that may break us."""
    unbounded = [
        each
        for extra, asked in requirements().items()
        for each in asked
        if extra != OF_THE_DEMO and not re.search(r">=\d.*,<\d", each)
    ]
    assert unbounded == []
