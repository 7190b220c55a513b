"""Connections to runs' files, and transactions on them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

BUSY = 5.0  # seconds to wait for another process that writes


def connect(path: Path, parameters: str) -> sqlite3.Connection:
    """Return a connection to a file, for any thread; transactions on it are begun by hand.

    Args:
        path: of the file.
        parameters: of the URI (SQLite, "URI Filenames").
    """
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{parameters}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY, isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block writes, or undo all of it if the block raises.

    Raises:
        sqlite3.Error: it could not be written.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back itself where the disk failed
            connection.execute("ROLLBACK")
        raise
