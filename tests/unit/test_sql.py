"""Only the package ``runs`` knows SQL: the others use its typed queries and its writer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import PACKAGE

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source, and runs none of it

_STATEMENT = re.compile(r"\s*(SELECT|INSERT|REPLACE|UPDATE|DELETE|CREATE|DROP|ALTER|PRAGMA|WITH|BEGIN|FROM)\s")
_CALLS = {"execute", "executemany", "executescript"}


def statements(source: str) -> Iterator[str]:
    """Yield the SQL statements in a module, and its calls that execute one, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _STATEMENT.match(node.value):
            yield f"{node.lineno}: {node.value:.60}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
            yield f"{node.lineno}: .{node.func.attr}()"


def modules() -> list[Path]:
    """Return the modules of all packages but ``runs``."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "runs"]


def test_only_the_package_runs_has_sql() -> None:
    """No module of another package has a statement, or executes one."""
    found = [
        f"{path.relative_to(PACKAGE)}:{statement}" for path in modules() for statement in statements(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'rows("SELECT id FROM curve WHERE metric = ?", metric)',
        'rows("SELECT max(rowid) FROM event")',
        'rows(f"SELECT {columns} FROM event")',
        'store.write("INSERT OR REPLACE INTO tag VALUES (?)", tags)',
        'A = "UPDATE process SET resource = ?"',
        'A = "DELETE FROM block WHERE id = ?"',
        'A = "PRAGMA user_version"',
        "connection.execute(statement)",
        "connection.executemany(A, rows)",
    ],
)
def test_statements_are_found(source: str) -> None:
    """Each form of a statement is noticed."""
    assert list(statements(source))


@pytest.mark.parametrize("source", ['case = "DELETE"', 'help("Select a run.")', 'method = "UPDATE"'])
def test_other_texts_are_no_statements(source: str) -> None:
    """HTTP methods and words in sentences are no SQL."""
    assert not list(statements(source))
