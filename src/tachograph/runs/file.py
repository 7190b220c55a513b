"""The file of a run, opened for reading: of any version, beside a hub that writes it, and as far as damage allows."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tachograph.runs._schema import MIGRATIONS, read_as_today
from tachograph.runs.store import StoreError

_BUSY = 5.0  # seconds to wait for a hub that restores the file


class RunFile:
    """A run's file.

    Args:
        path: of the file.

    Attributes:
        damage: descriptions of the parts that could not be read so far, one line each.

    Raises:
        StoreError: it is no file of a run, or of a newer version; an ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[str] = []
        try:
            with self.snapshot() as connection:
                version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.DatabaseError as error:
            what = "cannot be read" if isinstance(error, sqlite3.OperationalError) else "is damaged"
            raise StoreError(errno.EIO, f"the file {what}: {error}", str(path)) from error
        if version > len(MIGRATIONS):
            why = f"the file has schema version {version}: a newer Tachograph wrote it, read it with that one"
            raise StoreError(errno.EPROTO, why, str(path))
        if not version:
            raise StoreError(errno.EPROTO, "the file is empty", str(path))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection that sees the file as it is now, without later writes.

        Raises:
            sqlite3.DatabaseError: it is damaged.
        """
        # Without a folder that can be written there is no memory to share with a writer (SQLite, "WAL", "Read-Only").
        how = "mode=rw" if os.access(self.path.parent, os.W_OK) else "mode=ro&immutable=1"
        name = f"file:{quote(str(self.path.absolute()))}?{how}"
        connection = sqlite3.connect(name, uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("BEGIN")
            read_as_today(connection)
            connection.execute("PRAGMA query_only = ON")
            yield connection
        finally:
            connection.close()

    def rows(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; where the file is damaged, those up to the damage."""
        try:
            with self.snapshot() as connection:
                yield from connection.execute(statement, values)
        except sqlite3.DatabaseError as error:
            self.note(str(error))

    def note(self, damage: str) -> None:
        """Note damage, once."""
        if damage not in self.damage:
            self.damage.append(damage)


_STEPS = 20_000  # of SQLite's virtual machine between two questions: some milliseconds


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

    def rows(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; where the file is damaged, those up to the damage.

        Raises:
            Abandoned: reading was to stop.
        """
        try:
            yield from self._connection.execute(statement, values)
        except sqlite3.DatabaseError as error:
            if self._abandoned():
                raise Abandoned from error
            self.file.note(str(error))


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
        connection.set_progress_handler(abandoned, _STEPS)
        yield Look(file, connection, abandoned)
