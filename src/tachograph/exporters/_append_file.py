"""A file that is appended to, for its owner's eyes only."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Literal

from tachograph.exporters.delivery import Retry


class AppendFile:
    """Appends pieces to a file, each whole or not at all.

    The file is made by the first piece, readable by its owner alone, and so are the folders that it needs. While it is
    open it is locked, where its file system has locks, but not against others that append to it or read it:
    ``tachograph resend --delete`` sees that it is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._left: tuple[int, int] | None = None  # its size and time; None where a piece may be torn

    def is_new(self) -> bool:
        """Tell whether nothing is in it yet; it is opened where it was not.

        Raises:
            OSError, Retry: as :meth:`append`.
        """
        return os.fstat(self._opened()).st_size == 0

    def fate(self) -> Literal["", "deleted", "cut", "changed"]:
        """Return the change that others have made since the last piece; it is cut, too, where that one is torn.

        Some file systems set a time late, NFS above all: then it is changed, and nobody has done anything.
        """
        if self._file is None:
            return ""
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            return ""
        if not found.st_nlink:
            return "deleted"
        if self._left is None or found.st_size < self._left[0]:
            return "cut"
        return "" if self._left == (found.st_size, found.st_mtime_ns) else "changed"

    def ends_with(self, end: bytes) -> bool:
        """Tell whether its last bytes are these, or there are none; True where it cannot be read."""
        file = self._opened()
        try:
            size = os.fstat(file).st_size
            return not size or os.pread(file, len(end), max(0, size - len(end))) == end
        except OSError:
            return True

    def append(self, piece: bytes) -> None:
        """Write a piece at the end.

        Raises:
            OSError: it does not fit, and no part of it is left.
            Retry: ``tachograph resend --delete`` is about to delete the file.
        """
        file = self._opened()
        before = os.fstat(file).st_size
        written = 0
        try:
            while written < len(piece):
                written += os.write(file, piece[written:])
        except OSError:
            if written:
                self._left = None
            if written and os.fstat(file).st_size == before + written:
                os.ftruncate(file, before)
                self._note(file)
            raise
        self._note(file)

    def _opened(self) -> int:
        if self._file is None:
            self._file = _open(self.path)
            self._note(self._file)
        return self._file

    def _note(self, file: int) -> None:
        found = os.fstat(file)
        self._left = found.st_size, found.st_mtime_ns

    def close(self) -> None:
        """Close the file; a later piece opens it again.

        After a fork each process closes its own: the lock is held until both have.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int:
    for folder in reversed(path.absolute().parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    # NFS locks only what can be read, too; a pipe that its writer can read has no end.
    access = os.O_WRONLY if path.exists() and not path.is_file() else os.O_RDWR
    while True:
        file = os.open(path, access | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise Retry(None, f"{path}: in use by 'tachograph resend --delete'") from None
        except OSError:  # a file system without locks
            return file
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # deleted in this moment
