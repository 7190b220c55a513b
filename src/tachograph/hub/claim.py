"""Who uses a run's file: a lock beside it, held by each hub that writes, so that nobody deletes what is in use."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

SUFFIX = "-lock"


class Claim:
    """Says that a run's file is in use, until it is released or the process ends.

    The lock is on a file of its own: closing the database's would let go of SQLite's locks on it (fcntl(2), "Record
    locking").

    Args:
        path: the run's file.
        alone: nobody else may use it.

    Raises:
        BlockingIOError: somebody else uses it, and ``alone`` is asked for.
        OSError: the lock cannot be had; where that is because there are none, only ``alone`` fails.
    """

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self.path = path.with_name(path.name + SUFFIX)
        self._file = self._open(fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)

    def _open(self, how: int) -> int:
        while True:
            file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, how)
            except OSError:
                if how == fcntl.LOCK_SH:  # a file system without locks
                    return file
                os.close(file)
                raise
            if os.fstat(file).st_nlink:
                return file
            os.close(file)  # somebody has deleted the run in between

    def release(self) -> None:
        """Let others have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
