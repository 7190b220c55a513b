"""One look at a run's file: everything that is read in it is of one moment."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from tachograph.runs.file import RunFile

_STEPS = 20_000  # of SQLite's virtual machine between two questions: some milliseconds


class Abandoned(Exception):  # noqa: N818 - nobody's fault
    """Nobody waits for what was being read any more."""


class Look:
    """Reads a file as it was at the first query; see :func:`look`.

    Args:
        file: notes what cannot be read.
        connection: of a snapshot.
        abandoned: whether to stop reading.
    """

    def __init__(self, file: RunFile, connection: sqlite3.Connection, abandoned: Callable[[], bool]) -> None:
        self.file = file
        self._connection = connection
        self._abandoned = abandoned

    def rows(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield what a query finds; where the file is damaged, what it has found until then.

        Raises:
            Abandoned: see there.
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
