"""What processes and series are called in the store."""

from __future__ import annotations

import json
import sqlite3

from tachograph.hub._series import Series
from tachograph.hub.processes import Process

_PROCESS = "INSERT OR IGNORE INTO process (instance, resource) VALUES (?, ?)"
_SERIES = (
    "INSERT OR IGNORE INTO series (process, scope, name, unit, shape, attributes, description)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SERIES_ROW = (
    "SELECT id FROM series WHERE process = ? AND scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
)


class Numbers:
    """The numbers of processes and series, new ones where they have none: these hold once they are committed.

    Args:
        connection: lent by :meth:`tachograph.runs.store.Store.transaction`, for that transaction.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._new: dict[Process | Series, int] = {}

    def process(self, process: Process) -> int:
        """Return the number of a process."""
        row = process.row or self._new.get(process)
        if row is None:
            self.connection.execute(_PROCESS, (process.instance, json.dumps(dict(process.resource))))
            ((row,),) = self.connection.execute("SELECT id FROM process WHERE instance = ?", (process.instance,))
            self._new[process] = row
        return row

    def series(self, series: Series) -> int:
        """Return the number of a series."""
        row = series.row or self._new.get(series)
        if row is None:
            of = series.instrument
            key = (self.process(series.owner), of.scope, of.name, of.unit, series.shape, series.attributes)
            self.connection.execute(_SERIES, (*key, of.description))
            ((row,),) = self.connection.execute(_SERIES_ROW, key)
            self._new[series] = row
        return row

    def committed(self) -> None:
        """Let the new ones hold."""
        for each, row in self._new.items():
            each.row = row
