"""The tables of the tests that take longest and of those whose programs are traced name tests that there are."""

from __future__ import annotations

from places import TESTS


def test_each_line_names_a_test_or_a_file() -> None:
    """Seconds, and then a test or a file of today: a test that was renamed takes its line along."""
    for line in _lines("slowest.txt"):
        seconds, name = line.split(" ")
        assert float(seconds) > 0
        file, _, test = name.partition("::")
        assert _is_there(file, test), name


def test_each_traced_program_is_of_a_test() -> None:
    """A test of today: programs of one that was renamed are traced no longer, and their lines count as unrun."""
    for name in _lines("traced.txt"):
        assert _is_there(*name.split("::")), name


def _lines(table: str) -> list[str]:
    lines = (TESTS / table).read_text(encoding="utf-8").splitlines()
    assert lines
    return lines


def _is_there(file: str, test: str = "") -> bool:
    (path,) = TESTS.rglob(file)
    return not test or f"def {test.partition('[')[0]}(" in path.read_text(encoding="utf-8")
