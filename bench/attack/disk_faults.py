"""Faults of a disk: each begins under a running process, and ends again."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from failing_calls import FailingCalls, compiled

_TMPFS = "8m"
_LOCKING = """
import sqlite3, sys, time
file = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
file.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(60)
"""


class Unavailable(Exception):  # noqa: N818 - a finding
    """A fault cannot be made on this machine; the message says why."""


@dataclass
class Place:
    """The place of a fault.

    Args:
        folder: that the process under attack writes into.
        chance: the source of random choices.
        files: returns the files that the process writes now.
        calls: those that fail on demand.
        pid: of the process; 0 before it runs.
    """

    folder: Path
    chance: random.Random
    files: Callable[[], list[Path]]
    calls: FailingCalls | None = None
    pid: int = 0


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: of it, as ``--only`` takes it.
        strike: makes it while the block runs.
        destroys: what was written before, or just when it struck, may be gone.
        on_tmpfs: the folder is a small file system in memory.
        by_calls: it needs calls that fail on demand.
        seconds: that it lasts.
        at_least: seconds, where there is little time.
        refuses: new connections may find no answer.
        patience: seconds that senders wait for one.
    """

    name: str
    strike: Callable[[Place], AbstractContextManager[None]]
    destroys: bool = False
    on_tmpfs: bool = False
    by_calls: bool = False
    seconds: float = 1.5
    at_least: float = 1.5
    refuses: bool = False
    patience: float = 20.0


@contextmanager
def tmpfs(folder: Path) -> Iterator[Path]:
    """Mount a small file system in memory on a folder.

    Raises:
        Unavailable: mounting is not permitted.
    """
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS},mode=0700", "tachograph-attack", str(folder)]
    with contextlib.suppress(OSError):
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            try:
                yield folder
            finally:
                subprocess.run(["umount", "-l", str(folder)], check=True)
            return
    raise Unavailable("mount is not permitted: no file system that is full")


@contextmanager
def failing(folder: Path, base: Path) -> Iterator[FailingCalls]:
    """Return calls on the files of ``folder`` that fail on demand; their library is in ``base``.

    Raises:
        Unavailable: there is no C compiler.
    """
    with tempfile.TemporaryDirectory(dir=base) as name:
        library = compiled(Path(name))
        if library is None:
            raise Unavailable("no C compiler: no calls that fail")
        yield FailingCalls(library, folder, Path(name) / "control")


@contextmanager
def full(place: Place) -> Iterator[None]:
    """Fill the file system up to its last byte."""
    filler = place.folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    try:
        yield
    finally:
        filler.unlink(missing_ok=True)


def errors(number: int) -> Callable[[Place], AbstractContextManager[None]]:
    """Return a fault by which each write, fsync, open and ftruncate fails with an errno."""

    @contextmanager
    def strike(place: Place) -> Iterator[None]:
        if place.calls is None:
            raise ValueError("the calls of this place cannot fail")
        place.calls.fail_now(number)
        try:
            yield
        finally:
            place.calls.heal()

    return strike


@contextmanager
def limited_size(place: Place) -> Iterator[None]:
    """Let no file of the process grow any more: RLIMIT_FSIZE, as ``ulimit -f`` sets it."""
    largest = max((path.stat().st_size for path in place.files()), default=4096)
    with _limited(place.pid, resource.RLIMIT_FSIZE, largest):
        yield


@contextmanager
def limited_descriptors(place: Place) -> Iterator[None]:
    """Let the process open no more than one file: RLIMIT_NOFILE."""
    held = max(int(each.name) for each in Path(f"/proc/{place.pid}/fd").iterdir())
    with _limited(place.pid, resource.RLIMIT_NOFILE, held + 1):
        yield


@contextmanager
def _limited(pid: int, what: int, most: int) -> Iterator[None]:
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


@contextmanager
def deleted(place: Place) -> Iterator[None]:
    """Delete the files that are written."""
    for path in place.files():
        path.unlink(missing_ok=True)
    yield


@contextmanager
def deleted_folder(place: Place) -> Iterator[None]:
    """Delete the folder with all that is in it."""
    shutil.rmtree(place.folder)
    yield


@contextmanager
def overwritten(place: Place) -> Iterator[None]:
    """Write into the middle of the files."""
    for path in place.files():
        size = path.stat().st_size
        if size:
            at = place.chance.randrange(size)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(place.chance.randbytes(min(size - at, place.chance.choice((1, 100, 20_000)))))
    yield


@contextmanager
def truncated(place: Place) -> Iterator[None]:
    """Cut the files to a part, or to nothing."""
    for path in place.files():
        if path.stat().st_size:
            os.truncate(path, int(path.stat().st_size * place.chance.choice((0, place.chance.random()))))
    yield


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """Hold SQLite's lock in another process."""
    (path,) = (path for path in place.files() if path.name == "job.db")
    line = [sys.executable, "-c", _LOCKING, str(path)]
    reading, writing = os.pipe()
    with subprocess.Popen(line, stdout=writing) as process, os.fdopen(reading) as said:
        os.close(writing)
        said.readline()
        try:
            yield
        finally:
            process.kill()


HUB: Mapping[str, Fault] = {
    each.name: each
    for each in (
        Fault("full", full, on_tmpfs=True),
        Fault("read-only", errors(errno.EROFS), by_calls=True),
        Fault("input/output error", errors(errno.EIO), by_calls=True),
        Fault("file size limit", limited_size),
        Fault("few descriptors", limited_descriptors, refuses=True, patience=2),
        Fault("deleted", deleted, destroys=True),
        Fault("deleted folder", deleted_folder, destroys=True),
        Fault("locked", locked, seconds=30, at_least=7),  # seconds: the hub waits five of them,
    )
}
JOB: Mapping[str, Fault] = {
    each.name: each
    for each in (
        Fault("full", full, on_tmpfs=True),
        Fault("read-only", errors(errno.EROFS), by_calls=True),
        Fault("input/output error", errors(errno.EIO), by_calls=True),
        Fault("file size limit", limited_size),
        Fault("few descriptors", limited_descriptors),
        Fault("deleted", deleted, destroys=True),
        Fault("deleted folder", deleted_folder, destroys=True),
        Fault("overwritten", overwritten, destroys=True),
        Fault("truncated", truncated, destroys=True),
    )
}
