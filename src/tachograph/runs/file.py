"""The file of a run, opened for reading: of any version, beside a hub that writes it, and as far as damage allows."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tachograph.runs._sqlite import connect
from tachograph.runs.file_lock import in_use
from tachograph.runs.store import StoreError, check_regular, check_schema

_TRIES, _PAUSE = 10, 0.01  # to look at a file that a hub opens or closes, and seconds between two of them
_WITHOUT_LOG = "mode=ro&immutable=1"
_WITHOUT_INDEX = "immutable=1&mode=ro"  # the same, of a file that has a log
_NO_INDEX = "ignoring its write-ahead log, which has no index (-shm); a hub that continues the run recovers it"
_CHANGED = "it changed while it was read; read it again"


class RunFile:
    """A run's file.

    Args:
        path: of the file.
        looking: create and change no file, whether the run is finished, live, or left by a hub that was killed. For
            short reads: a hub that begins to write a finished run disturbs them (see ``changed``).

    Attributes:
        damage: descriptions of the parts that could not be read so far, one line each.
        changed: the file was written during the last look at it, which is to be done again.

    Raises:
        StoreError: it is no file of a run, or has another schema; an ``OSError``.
    """

    def __init__(self, path: Path, *, looking: bool = False) -> None:
        self.path = path
        self.damage: list[str] = []
        self.changed = False
        self._looking = looking
        try:
            with self.snapshot():
                pass
        except sqlite3.DatabaseError as error:
            what = "cannot be read" if isinstance(error, sqlite3.OperationalError) else "is damaged"
            why = _refused(path) or str(error)
            raise StoreError(errno.EIO, f"the file {what}: {why}", str(path)) from error

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection that sees the file as it is now, without later writes.

        Raises:
            sqlite3.DatabaseError: it is damaged.
            StoreError: it is no regular file; an ``OSError``.
        """
        check_regular(self.path)
        # Without a folder that can be written there is no memory to share with a writer (SQLite, "WAL", "Read-Only").
        looks = self._looking or not os.access(self.path.parent, os.W_OK)
        before: tuple[int, int, int] | None = None
        try:
            connection, before = self._looked_at() if looks else (self._connected("mode=rw"), None)
            try:
                yield connection
            finally:
                connection.close()
        finally:
            after = self._state()
            self.changed = before is not None and after is not None and before != after
            if self.changed:
                self.note(_CHANGED)

    def _looked_at(self) -> tuple[sqlite3.Connection, tuple[int, int, int] | None]:
        """Return a connection for a look, and the state of the file before it; None where no writer disturbs it."""
        for attempt in range(_TRIES):
            is_last = attempt == _TRIES - 1
            how, is_disturbed = self._how()
            if how == _WITHOUT_INDEX and not is_last:
                time.sleep(_PAUSE)
                continue
            before = self._state() if is_disturbed else None
            try:
                connection = self._connected(how)
            except sqlite3.DatabaseError:
                # A hub that opens or closes the file just now: the index of the log is not ready, or gone already.
                if is_last or (how == _WITHOUT_LOG and before == self._state()):
                    raise
                time.sleep(_PAUSE)
            else:
                if how == _WITHOUT_INDEX:
                    self.note(_NO_INDEX)
                return connection, before
        raise AssertionError  # the last attempt returns or raises

    def _connected(self, how: str) -> sqlite3.Connection:
        connection = connect(self.path, how)
        try:
            connection.execute("BEGIN")
            check_schema(connection, self.path)
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _how(self) -> tuple[str, bool]:
        """Return the parameters with which SQLite looks at the file, and whether a hub that begins to write disturbs.

        SQLite reads a log without writing where its index is beside it: through that index while a hub holds it, else
        through one that it makes in memory (SQLite, "WAL", "Read-Only Databases"; "URI Filenames").
        """
        log, index = (self.path.with_name(self.path.name + ending) for ending in ("-wal", "-shm"))
        if not _size(log):
            return _WITHOUT_LOG, True
        if not index.exists():
            return _WITHOUT_INDEX, True
        return "mode=ro&readonly_shm=1", not in_use(self.path)

    def _state(self) -> tuple[int, int, int] | None:
        """Return inode, size and time of the file, which change once a log is taken over into it; None for no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def rows(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; where the file is damaged, those up to the damage."""
        try:
            with look(self) as reading:
                yield from reading.rows(statement, *values)
        except sqlite3.DatabaseError as error:
            self.note(str(error))

    def note(self, damage: str) -> None:
        """Note damage, once."""
        if damage not in self.damage:
            self.damage.append(damage)


def numbered(statement: str, values: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
    """Return the values of a query as sqlite3 takes them: by their numbers where the statement has those (``?1``).

    A sequence for those is deprecated from Python 3.12 on, and an error in 3.14: "sqlite3", "How to use placeholders".
    """
    return {str(number): value for number, value in enumerate(values, 1)} if "?1" in statement else values


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _refused(path: Path) -> str:
    """Return why the system does not open a file, which SQLite does not say; empty where it does open it."""
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        return str(error.strerror)


_STEPS = 20_000  # of SQLite's virtual machine between two questions: some milliseconds
_MOST_STEPS = 4_000_000_000  # of one query: about a minute of computing; the largest files take a tenth of it
_TOO_LONG = "a query was canceled: the file takes too long to read"


class Abandoned(Exception):  # noqa: N818 - no error
    """The reading was given up: its answer is not needed any more."""


class Look:
    """Reads a file as it was at the first query; see :func:`look`.

    Args:
        file: notes damage.
        connection: of a snapshot.
        abandoned: tells whether to stop reading.
    """

    def __init__(self, file: RunFile, connection: sqlite3.Connection, abandoned: Callable[[], bool]) -> None:
        self.file = file
        self._connection = connection
        self._abandoned = abandoned
        self._steps = 0
        connection.set_progress_handler(self._is_to_stop, _STEPS)

    def _is_to_stop(self) -> bool:
        self._steps += _STEPS
        return self._steps > _MOST_STEPS or self._abandoned()

    def rows(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; where the file is damaged, those up to the damage.

        Raises:
            Abandoned: reading was to stop.
        """
        self._steps = 0
        try:
            yield from self._connection.execute(statement, numbered(statement, values))
        except sqlite3.DatabaseError as error:
            if self._abandoned():
                raise Abandoned from error
            self.file.note(_TOO_LONG if self._steps > _MOST_STEPS else str(error))


@contextlib.contextmanager
def look(file: RunFile, abandoned: Callable[[], bool] = lambda: False) -> Iterator[Look]:
    """Lend a look at a file.

    Args:
        file: the run's.
        abandoned: asked now and then while a query runs; then reading ends with :class:`Abandoned`.

    Raises:
        sqlite3.DatabaseError: the file cannot be opened any more.
    """
    with file.snapshot() as connection:
        yield Look(file, connection, abandoned)
