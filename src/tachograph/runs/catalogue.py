"""The runs of a store: listed, located and deleted."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from tachograph.identity.resource import store as default_store
from tachograph.identity.run_id import file_safe
from tachograph.runs.ending import Ending, find_ending
from tachograph.runs.file import RunFile, look
from tachograph.runs.file_lock import Claim, is_in_use
from tachograph.runs.members import read_display_name, read_extent, read_members, read_tags
from tachograph.runs.run import Run
from tachograph.runs.store import SUFFIX, StoreError, run_path

_NANO = 1_000_000_000
_LIST = "list the runs with 'tachograph runs list'"


class UnknownRunError(LookupError):
    """There is no such run.

    Args:
        name: the id that was asked for.
        folder: the store.
        known: the ids of the runs that there are.

    Attributes:
        near: the id that may have been meant; empty where none is like it.
    """

    def __init__(self, name: str, folder: Path, known: Collection[str]) -> None:
        begin = max((each for each in known if name and each.startswith(name)), default="")  # ids end with a time
        self.near = begin or next(iter(get_close_matches(name, known, n=1)), "")
        hint = f"did you mean {self.near!r}?" if self.near else _LIST if known else "there are none"
        super().__init__(f"there is no run {name!r:.200} in {folder}: {hint}")


class Summary(NamedTuple):
    """The summary of a run, available without reading its points.

    Attributes:
        size: bytes on disk.
        start: when its first process started, in nanoseconds since the epoch; without a process, when
            ``tachograph run`` started.
        last: when the run last received data of its job, in nanoseconds since the epoch; without a process, when the
            job ended.
        events: number of events, without points.
        in_use: whether a hub is writing it.
        problem: why the run cannot be read; empty if it can.
        tags: sorted.
        name: the display name; empty if there is none.
        ended: how it ended.
    """

    id: str
    path: Path
    size: int
    start: int
    last: int
    processes: int
    points: int
    events: int
    in_use: bool
    problem: str
    tags: tuple[str, ...] = ()
    name: str = ""
    ended: Ending = Ending("unknown")


def list_runs(store: str | os.PathLike[str] | None = None) -> list[Summary]:
    """List the runs of a store, oldest first.

    Args:
        store: the store's folder (default: TACHOGRAPH_STORE).

    Raises:
        StoreError: the store cannot be read; an ``OSError``. A run that cannot be read is listed with its ``problem``.
    """
    found = [_summary(path) for path in paths_in(_folder(store))]
    found = [each for each in found if each.size or each.path.exists()]  # others were deleted meanwhile
    return sorted(found, key=lambda each: (each.start, each.id))


def open_run(name: str, store: str | os.PathLike[str] | None = None) -> Run:
    """Open a run for reading.

    Args:
        name: its id.
        store: the store's folder (default: TACHOGRAPH_STORE).

    Raises:
        LookupError: there is no such run; the message suggests a similar id.
        StoreError: its file is damaged or was written by a newer version; an ``OSError``.
    """
    return Run(name, find_run(name, _folder(store)))


def find_run(name: str, folder: Path) -> Path:
    """Return the file of a run.

    Args:
        name: its id.
        folder: the store.

    Raises:
        UnknownRunError: there is no such run; a ``LookupError``, whose message names the nearest one.
        StoreError: the store cannot be read.
    """
    path = run_path(folder, name)
    if path.is_file():
        return path
    paths = {run_id_of(each): each for each in paths_in(folder)}
    if name in paths:  # the file's name, and so the catalogue, has only the beginning of an over-long id
        return paths[name]
    raise UnknownRunError(name, folder, paths)


def runs_to_prune(
    runs: Sequence[Summary], now: int, *, older: float | None = None, keep: int | None = None, size: int | None = None
) -> list[Summary]:
    """Return the runs to delete, the oldest first; never one that is in use.

    Args:
        runs: all runs of the store.
        now: nanoseconds since the epoch.
        older: seconds; runs that received nothing for longer are deleted.
        keep: number of the newest runs; all others are deleted.
        size: bytes; the oldest are deleted until the others take no more.
    """
    gone = set()
    total = 0
    for place, each in enumerate(sorted(runs, key=lambda each: each.last, reverse=True)):
        total += each.size
        old = older is not None and each.last < now - older * _NANO
        if old or (keep is not None and place >= keep) or (size is not None and total > size):
            gone.add(each.path)
    return [each for each in runs if each.path in gone and not each.in_use]


def delete_run_files(path: Path) -> bool:
    """Delete the file of a run, and those beside it; False where a hub writes it.

    Raises:
        FileNotFoundError: it was deleted already.
        OSError: it cannot be deleted.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "the run has already been deleted", str(path))
    try:
        claim = Claim(path, alone=True)
    except BlockingIOError:
        return False
    try:
        there = path.exists()
        for each in (*run_files(path), claim.path):
            each.unlink(missing_ok=True)
    finally:
        claim.release()
    if not there:
        raise FileNotFoundError(errno.ENOENT, "the run has already been deleted", str(path))
    return True


def _folder(store: str | os.PathLike[str] | None) -> Path:
    return default_store(os.environ) if store is None else Path(store)


def paths_in(folder: Path) -> list[Path]:
    """Return the files of a store's runs; none where nothing has been stored there yet.

    Raises:
        StoreError: the store cannot be read.
    """
    runs = folder / "runs"
    try:
        return sorted(each for each in runs.iterdir() if each.name.endswith(SUFFIX))  # glob() would hide errors
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(error.errno, f"cannot read the store: {error.strerror}", str(runs)) from error


_COARSE = 100_000_000  # nanoseconds
Stamp = tuple[tuple[int, int], ...]  # of a run's file and of its log: time in nanoseconds, and size


def read_stamp(path: Path) -> Stamp:
    """Return times and sizes of a run's file and its log: those of them that there are."""
    return _stamp_of(run_files(path)[::2])  # the index of the log changes with every reader


class Stamps:
    """The stamps of a store's runs, by the names of their files.

    SQLite creates and deletes a log next to a run's file, so the folder's time changes when a hub begins or ends to
    write a run. While that time stays the same, only the runs that have a log are looked at.

    Args:
        folder: the store.
    """

    def __init__(self, folder: Path) -> None:
        self._runs = folder / "runs"
        self._folder_time = 0
        self._stamps: dict[str, Stamp] = {}
        self._with_log: list[str] = []

    def read(self) -> Mapping[str, Stamp]:
        """Return the stamps as they are now.

        Raises:
            StoreError: the store cannot be read.
        """
        now = time.time_ns()
        try:
            folder_time = self._runs.stat().st_mtime_ns
            if folder_time != self._folder_time:
                self._read_all()
        except FileNotFoundError:
            self._stamps, self._with_log, folder_time = {}, [], 0
        except OSError as error:
            raise StoreError(error.errno, f"cannot read the store: {error.strerror}", str(self._runs)) from error
        self._stamps.update({name: read_stamp(self._runs / name) for name in self._with_log})
        # The clock of a file system is coarse: the folder may change again without another time.
        self._folder_time = folder_time if folder_time < now - _COARSE else 0
        return self._stamps

    def _read_all(self) -> None:
        with os.scandir(self._runs) as entries:
            files = {entry.name: entry for entry in entries}
        names = [name for name in files if name.endswith(SUFFIX)]
        self._with_log = [name for name in names if f"{name}-wal" in files]
        self._stamps = {name: _stamp_of([files[name]]) for name in names}


def _stamp_of(files: Iterable[Path | os.DirEntry[str]]) -> Stamp:
    found = []
    for each in files:
        try:
            about = each.stat()
        except OSError:  # it was deleted meanwhile
            continue
        found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)


def check_store(folder: Path) -> Path:
    """Return a store that is to be read.

    Raises:
        StoreError: it does not exist, is no folder, or cannot be read.
    """
    if not folder.is_dir():
        if folder.exists():
            raise StoreError(errno.ENOTDIR, "the store is not a folder", str(folder))
        raise StoreError(errno.ENOENT, "the store does not exist", str(folder))
    paths_in(folder)
    return folder


def run_id_of(path: Path) -> str:
    """Return the id of the run in a file."""
    return unquote(path.name.removesuffix(SUFFIX))


def run_files(path: Path) -> list[Path]:
    """Return the files of a run, the database last; not all of them need exist."""
    return [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "")]


def _summary(path: Path) -> Summary:
    size, changed = _size(path), _written(path)
    start, last, processes, points, events = changed, changed, 0, 0, 0
    problem = name = ""
    named: tuple[str, ...] = ()
    written, end = is_in_use(path), Ending("unknown")
    try:
        file = RunFile(path, looking=True)
        start, last, processes = read_extent(file.rows, changed)
        points, events = count_points(file.rows), count_events(file.rows)
        named, name = tuple(read_tags(file.rows)), read_display_name(file.rows)
        with look(file) as reading:
            end = find_ending(reading, read_members(reading), time.time_ns(), written=written)
        problem = "; ".join(file.damage)
    except StoreError as error:
        problem = str(error.strerror)
    except sqlite3.DatabaseError as error:
        problem = str(error)
    return Summary(
        run_id_of(path), path, size, start, last, processes, points, events, written, problem, named, name, end
    )


def _size(path: Path) -> int:
    found = 0
    for each in run_files(path):
        with contextlib.suppress(OSError):
            found += each.stat().st_size
    return found


def count_points(rows: Callable[[str], Iterable[Sequence[Any]]]) -> int:
    """Return the number of points in a run: of all its curves, as they are stored and drawn.

    Args:
        rows: returns the rows of a query.
    """
    return sum(found or 0 for (found,) in rows("SELECT sum(n) FROM block"))


def count_events(rows: Callable[[str], Iterable[Sequence[Any]]]) -> int:
    """Return the number of events in a run, those apart that are points of curves; see :func:`count_points`."""
    return sum(found for (found,) in rows("SELECT count(*) FROM event"))


def count_user_events(rows: Callable[[str], Iterable[Sequence[Any]]]) -> int:
    """Return the number of events in a run, without those that Tachograph itself records, such as a process's start."""
    return sum(found for (found,) in rows("SELECT count(*) FROM event WHERE name NOT LIKE 'tachograph.%'"))


def find_unfinished_runs(folder: Path, since: int) -> list[str]:
    """Return the runs of a store that were written recently, and that no other hub writes.

    Args:
        folder: the store.
        since: nanoseconds since the epoch.
    """
    paths = sorted(folder.joinpath("runs").glob("*" + SUFFIX))
    names = [_name_of(path) for path in paths if _written(path) >= since and not is_in_use(path)]
    return [name for name in names if name is not None]


def _name_of(path: Path) -> str | None:
    """Return the run's id in a file's name; None where it was too long for one."""
    name = unquote(path.stem)
    return name if file_safe(name) == path.stem else None


def _written(path: Path) -> int:
    """Return the time at which a run's file, or its log, was last written: nanoseconds since the epoch."""
    return max((changed for changed, _ in read_stamp(path)), default=0)
