"""A file that is appended to, for its owner's eyes only."""

from __future__ import annotations

import os
from pathlib import Path


class AppendFile:
    """Appends pieces to a file, each whole or not at all.

    The file is made by the first piece, readable by its owner alone, and so are the folders that it needs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def append(self, piece: bytes) -> None:
        """Write a piece at the end; raises OSError where it does not fit, and leaves no part of it."""
        if self._file is None:
            self._file = _open(self.path)
        before = os.fstat(self._file).st_size
        written = 0
        try:
            while written < len(piece):
                written += os.write(self._file, piece[written:])
        except OSError:
            if written and os.fstat(self._file).st_size == before + written:
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        """Close the file; a later piece opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int:
    for folder in reversed(path.absolute().parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
