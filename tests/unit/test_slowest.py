"""The table by which the longest tests begin first names tests that there are."""

from __future__ import annotations

from places import TESTS


def test_each_line_names_a_test_or_a_file() -> None:
    """Seconds, and then a test or a file of today: a test that was renamed takes its line along."""
    files = {path.name: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    lines = (TESTS / "slowest.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        seconds, name = line.split(" ")
        assert float(seconds) > 0
        file, _, test = name.partition("::")
        assert file in files, name
        assert f"def {test.partition('[')[0]}(" in files[file] or not test, name
