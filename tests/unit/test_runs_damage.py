"""A store that is damaged or from a newer version: it is said, in a line, and what can be read is still read."""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path

import pytest

from hub_requests import START
from recorded_runs import points, record, spoil
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.runs.file import RunFile
from tachograph.runs.store import StoreError, run_path
from tachograph.studio.overview import Overview


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with a run, which is the one that the environment names."""
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path))
    record(tmp_path, "a/run", *points([1.0, 2.0]))
    return tmp_path


def run(*arguments: str) -> int:
    """Run the command and return its exit code."""
    return main(["runs", *arguments])


def test_a_file_of_a_newer_version(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A newer version's file is listed with that, and not read."""
    path = run_path(store, "a/run")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    (listed,) = runs.list()
    assert "written by a newer Tachograph" in listed.problem
    with pytest.raises(OSError, match=r"newer Tachograph.*a%2Frun\.db"):
        runs.open("a/run")
    assert run("show", "a/run") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tachograph runs show: {path}: the file has schema version 99")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"this is no database" * 1000])
def test_a_file_that_is_none(store: Path, content: bytes) -> None:
    """A file that holds no run is listed with its problem beside the others, and can be pruned."""
    path = run_path(store, "broken")
    path.write_bytes(content)
    problems = {each.id: each.problem for each in runs.list()}
    assert problems["a/run"] == ""
    assert problems["broken"] == ("the file is empty" if not content else "the file is damaged: file is not a database")
    with pytest.raises(OSError, match=r"broken\.db"):
        runs.open("broken")
    assert run("prune", "--keep", "0", "--yes") == 0
    assert runs.list() == []


def test_of_a_damaged_file_the_rest_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where pages are destroyed all other points are still read, and the damage is told."""
    record(tmp_path, "run", *points([float(i) for i in range(20_000)]), ("checkpoint", {}))
    record(tmp_path, "run", *points([float(i) for i in range(500)]), number=1)
    path = run_path(tmp_path, "run")
    mark = struct.pack("<d", 7777.0)
    assert spoil(path, lambda page: mark in page) in (1, 2)  # value and x are together, the time is not
    run_ = runs.open("run", tmp_path)
    found = [each.value for each in run_.points("loss", rank=0)]
    lost = set(map(float, range(20_000))) - set(found)
    assert found == sorted(found)
    assert 7777.0 in lost
    assert len(lost) <= 2048
    assert len(run_.damage) in (1, 2)
    assert "points " in run_.damage[0]
    assert len(list(run_.points("loss", rank=1))) == 500
    assert [each.name for each in run_.events()] == ["checkpoint"]
    assert main(["runs", "export", "run", "--store", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 20_500 - len(lost)
    assert said.err.startswith(f"tachograph runs export: {path} is damaged, what can be read is exported: ")


def test_a_damaged_event(store: Path) -> None:
    """An event that is not legible is told, and the others are read."""
    record(store, "run", *[("e", {"i": i}) for i in range(3)])
    with sqlite3.connect(run_path(store, "run")) as connection:
        connection.execute("UPDATE event SET record = x'ff' WHERE seq = 2")
    connection.close()
    found = runs.open("run", store)
    assert [each.attributes["i"] for each in found.events()] == [0, 2]
    assert found.damage[0].startswith("event 2: ")


@pytest.mark.parametrize("table", ["block", "incarnation", "curve", "event"])
def test_whatever_table_is_damaged(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No damage is a traceback: each is told in a line, and the other tables are read."""
    record(tmp_path, "run", *points([float(i) for i in range(5000)]), ("checkpoint", {}))
    path = run_path(tmp_path, "run")
    with sqlite3.connect(path) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        ((size,),) = connection.execute("PRAGMA page_size")
    connection.close()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xa5" * size
    path.write_bytes(content)
    assert run("list", "--store", str(tmp_path)) == 0
    assert run("show", "run", "--store", str(tmp_path)) == 1
    assert "is damaged" in capsys.readouterr().err
    code = main(["runs", "export", "run", "--store", str(tmp_path), "--format", "jsonl"])
    assert code == (0 if table == "incarnation" else 1)
    kinds = [line.split(", ")[0] for line in capsys.readouterr().out.splitlines()]
    assert kinds.count('{"kind": "point"') == (5000 if table in ("incarnation", "event") else 0)
    assert kinds.count('{"kind": "event"') == (table != "event")


@pytest.mark.parametrize("ending", ["", "-wal", "-journal"])
def test_a_fifo_costs_its_own_run_alone(store: Path, ending: str) -> None:
    """A FIFO named like a run, or like a file beside one, is said to be no regular file; nothing waits for it."""
    path = run_path(store, "fifo")
    if ending:
        record(store, "fifo", *points([1.0]))
    odd = path.with_name(path.name + ending)
    odd.unlink(missing_ok=True)
    os.mkfifo(odd)
    problems = {each.id: each.problem for each in runs.list()}
    assert problems == {"a/run": "", "fifo": "it is not a regular file"}
    with pytest.raises(OSError, match=r"not a regular file.*fifo\.db"):
        runs.open("fifo")
    assert run("show", "fifo") == 2
    assert "a/run" in [each["id"] for each in Overview(store, lambda: START, lambda: False).runs()]
    with pytest.raises(StoreError, match="not a regular file"):
        Hub(store, run="fifo", clock=lambda: START)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, 1 AS curve, 1 AS n FROM n"


def test_an_endless_view_in_place_of_a_table_is_not_read(store: Path) -> None:
    """Only plain tables are read: a view in the place of one, which may never end, is damage that is told at once."""
    record(store, "endless", *points([1.0]))
    with sqlite3.connect(run_path(store, "endless")) as connection:
        connection.execute("DROP TABLE block")
        connection.execute(f"CREATE VIEW block AS {ENDLESS}")
    connection.close()
    problems = {each.id: each.problem for each in runs.list()}
    assert problems == {"a/run": "", "endless": "the file is damaged: 'block' is no plain table, but a view"}
    with pytest.raises(OSError, match="no plain table"):
        runs.open("endless")


def test_a_query_that_never_ends_is_stopped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query has a limit, however it is made; its rows so far are read, and the file's damage is told."""
    monkeypatch.setattr("tachograph.runs.file._MOST_STEPS", 2_000_000)
    file = RunFile(run_path(store, "a/run"))
    assert sum(1 for _ in file.rows("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"))
    assert file.damage == ["a query was canceled: the file takes too long to read"]
    assert list(file.rows("SELECT count(*) FROM process")) == [(1,)]
