"""Calls that fail: the n-th write, fsync, open or ftruncate on the files of a folder, in any program."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
FOREVER = 2**62
_CONTROL = struct.Struct("=6q")  # struct control in failing_calls.c
_WHILE_IT_FAILS = struct.Struct("=5q")  # without the calls so far, which go on meanwhile


def compiled(folder: Path) -> Path | None:
    """Return the library to preload, made in ``folder``; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "failing_calls.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    return library


class FailingCalls:
    """Faults on the files of one folder, for the programs that are started in :attr:`environment`.

    Args:
        library: to preload.
        folder: whose files' calls are counted, and fail; it need not exist.
        control: a file beside it, which is made.

    Attributes:
        environment: for the programs.
    """

    def __init__(self, library: Path, folder: Path, control: Path) -> None:
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAILING_FOLDER": str(folder.resolve()),
            "FAILING_CONTROL": str(control),
        }

    def fail(self, error: int, *, first: int, most: int = 1, torn: bool = False) -> None:
        """Let calls fail from the ``first`` one on, the number that it has since the program began.

        Args:
            error: errno.
            first: its number; the first call has 1.
            most: so many calls fail.
            torn: half of the first one is done, where it is a write.
        """
        _WHILE_IT_FAILS.pack_into(self._control, 8, first, most, error, torn, 0)

    def fail_now(self, error: int) -> None:
        """Let all calls fail until :meth:`heal`."""
        self.fail(error, first=1, most=FOREVER)

    def heal(self) -> None:
        """Let no call fail any more."""
        _WHILE_IT_FAILS.pack_into(self._control, 8, 0, 0, 0, 0, self.hits)

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return int(_CONTROL.unpack(self._control)[0])

    @property
    def hits(self) -> int:
        """The number of calls that have failed since :meth:`fail`."""
        return int(_CONTROL.unpack(self._control)[5])
