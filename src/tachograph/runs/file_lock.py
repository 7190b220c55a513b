"""The lock beside a run's file: each hub that writes holds it, so that no file in use is deleted."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

SUFFIX = "-lock"
_LOOK_AGAIN = 0.001  # seconds
_LOOKS, _MANY_LOOKS = 3, 100  # tries in which a mere look at the lock ends; the second, on a busy machine, too


class Claim:
    """Claims a run's file, until it is released or the process ends.

    The lock is on a file of its own: closing the database's would release SQLite's locks on it (fcntl(2), "Record
    locking").

    Args:
        path: the run's file.
        alone: no other process may use it.
        make: make the lock's file where there is none.
        sleep: waits between two looks at the lock.

    Attributes:
        shared: another process used it already. Of two that begin at once, one sees the other.

    Raises:
        BlockingIOError: another process uses it, and ``alone`` is asked for.
        OSError: the lock cannot be had; on a file system without locks, only with ``alone``.
    """

    def __init__(
        self, path: Path, *, alone: bool = False, make: bool = True, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._sleep = sleep
        self._flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        self.path = path.with_name(path.name + SUFFIX)
        self.shared = False
        self._file = self._open(alone=alone)

    def _open(self, *, alone: bool) -> int:
        while True:
            file = os.open(self.path, self._flags, 0o600)
            try:
                self.shared = not self._is_ours_alone(file, _LOOKS if alone else _MANY_LOOKS)
                if not alone:
                    fcntl.flock(file, fcntl.LOCK_SH)
                elif self.shared:
                    raise BlockingIOError(f"{self.path} is locked")
            except OSError:
                if not alone:  # a file system without locks
                    return file
                os.close(file)
                raise
            if os.fstat(file).st_nlink:
                return file
            os.close(file)  # the run was deleted in between

    def _is_ours_alone(self, file: int, looks: int) -> bool:
        """Lock a file against all others; False where another process holds the lock, and not only to look."""
        for look in range(looks):
            if look:
                self._sleep(_LOOK_AGAIN)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return True
        return False

    def release(self) -> None:
        """Release the claim."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_in_use(path: Path, *, sleep: Callable[[float], object] = time.sleep) -> bool:
    """Tell whether a hub writes a run's file; ``sleep`` waits between two looks at the lock. Nothing is changed."""
    try:
        Claim(path, alone=True, make=False, sleep=sleep).release()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
