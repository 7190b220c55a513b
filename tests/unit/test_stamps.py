"""The stamps of a store's runs: each change is seen at the next look, and an unchanged folder costs nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from many_runs import sweep
from tachograph.runs.annotations import annotate, change_of
from tachograph.runs.catalogue import delete, paths_in, stamp_of
from tachograph.runs.stamps import WHOLE, StampChanges, Stamps
from tachograph.runs.store import path_of

NOTHING = StampChanges([], [])


def settled(folder: Path) -> None:
    """Make a folder look as if nothing had changed in it for a while."""
    before = time.time() - 60
    os.utime(folder / "runs", (before, before))


def test_each_change_is_seen(tmp_path: Path) -> None:
    """A new run, one that is tagged, one that is being written, and one that is deleted."""
    names = sweep(tmp_path, 3)
    stamps = Stamps(tmp_path)
    assert sorted(stamps.renew().changed) == [path_of(tmp_path, name) for name in names]
    settled(tmp_path)
    assert stamps.renew() == NOTHING
    tagged = path_of(tmp_path, names[1])
    annotate(tagged, change_of(add=["chosen"]))
    assert stamps.renew() == StampChanges([tagged], [])
    settled(tmp_path)
    assert stamps.renew() == NOTHING
    log = tagged.with_name(f"{tagged.name}-wal")
    for content in ("begun", "written on"):  # the second does not change the folder
        log.write_text(content)
        assert stamps.renew() == StampChanges([tagged], [])
        settled(tmp_path)
        assert stamps.renew() == NOTHING
    log.unlink()
    assert stamps.renew() == StampChanges([tagged], [])
    gone = path_of(tmp_path, names[0])
    assert delete(gone)
    assert stamps.renew() == StampChanges([], [gone])
    assert stamps.known == {path: stamp_of(path) for path in paths_in(tmp_path)}


def test_a_file_that_is_written_over_is_seen_a_little_later(tmp_path: Path) -> None:
    """Which no hub does, and which does not change the folder: each file is looked at every ten seconds."""
    (name,) = sweep(tmp_path, 1)
    seconds = [0.0]
    stamps = Stamps(tmp_path, lambda: seconds[0])
    settled(tmp_path)
    stamps.renew()
    path = path_of(tmp_path, name)
    path.write_bytes(path.read_bytes() + b"\0" * 4096)
    seconds[0] = WHOLE - 1
    assert stamps.renew() == NOTHING
    seconds[0] = WHOLE
    assert stamps.renew() == StampChanges([path], [])


def test_a_folder_that_has_just_changed_is_looked_at_whole(tmp_path: Path) -> None:
    """A change within the grain of its time would not be seen by that."""
    (name,) = sweep(tmp_path, 1)
    stamps = Stamps(tmp_path)
    stamps.renew()
    changed = (tmp_path / "runs").stat().st_mtime_ns
    path = path_of(tmp_path, name)
    path.write_bytes(path.read_bytes() + b"\0" * 4096)
    assert (tmp_path / "runs").stat().st_mtime_ns == changed
    assert stamps.renew() == StampChanges([path], [])


def test_a_store_without_runs_has_no_stamps(tmp_path: Path) -> None:
    """Its folder may come later, and go again."""
    stamps = Stamps(tmp_path)
    assert stamps.renew() == NOTHING
    (name,) = sweep(tmp_path, 1)
    path = path_of(tmp_path, name)
    assert stamps.renew() == StampChanges([path], [])
    path.unlink()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert stamps.renew() == StampChanges([], [path])
