"""The stamps of a store's runs: each change is seen at the next reading, and an unchanged folder costs nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from many_runs import sweep
from tachograph.runs.annotations import annotate, change_of
from tachograph.runs.catalogue import Stamps, delete, paths_in, stamp_of
from tachograph.runs.store import path_of


def settled(folder: Path) -> None:
    """Make a folder look as if nothing had changed in it for a while."""
    before = time.time() - 60
    os.utime(folder / "runs", (before, before))


def stamps_of(folder: Path) -> dict[str, object]:
    """Return the stamps as they are, read one by one."""
    return {path.name: stamp_of(path) for path in paths_in(folder)}


def test_each_change_is_seen(tmp_path: Path) -> None:
    """A new run, one that is tagged, one that is being written, and one that is deleted."""
    names = sweep(tmp_path, 3)
    stamps = Stamps(tmp_path)
    assert stamps.read() == stamps_of(tmp_path)
    assert len(stamps.read()) == 3
    settled(tmp_path)
    tagged = path_of(tmp_path, names[1])
    before = stamps.read()[tagged.name]
    annotate(tagged, change_of(add=["chosen"]))
    assert stamps.read()[tagged.name] != before
    settled(tmp_path)
    log = tagged.with_name(f"{tagged.name}-wal")
    for content in ("begun", "written on"):  # the second does not change the folder
        log.write_text(content)
        assert stamps.read() == stamps_of(tmp_path)
        settled(tmp_path)
        stamps.read()
    log.unlink()
    assert stamps.read() == stamps_of(tmp_path)
    assert delete(path_of(tmp_path, names[0]))
    assert stamps.read() == stamps_of(tmp_path)
    assert len(stamps.read()) == 2


def test_an_unchanged_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no run is written, the store is not listed again."""
    sweep(tmp_path, 2)
    settled(tmp_path)
    stamps = Stamps(tmp_path)
    first = dict(stamps.read())
    monkeypatch.setattr(os, "scandir", None)
    assert stamps.read() == first


def test_a_change_right_after_a_reading_is_seen(tmp_path: Path) -> None:
    """A folder may change again without another time: where it has just changed it is read again."""
    stamps = Stamps(tmp_path)
    assert stamps.read() == {}
    (first,) = sweep(tmp_path, 1)
    folder = (tmp_path / "runs").stat().st_mtime_ns
    assert list(stamps.read()) == [path_of(tmp_path, first).name]
    path_of(tmp_path, "second").write_bytes(b"")
    os.utime(tmp_path / "runs", ns=(folder, folder))
    assert len(stamps.read()) == 2
