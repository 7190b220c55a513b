"""Marks of the processes of a job that have started: a file each, which its hub takes away when it hears of it.

``tachograph run`` makes the folder and names it in ``TACHOGRAPH_STARTED``; a process that becomes part of the job puts
its mark there before anything of ours can fail (``launching/bootstrap``). The marks that are left in the end are of
processes of which nothing ever arrived.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tachograph.identity.environment import clean, text

FOLDER = "TACHOGRAPH_STARTED"
_DESCRIBED = 5  # of those that are left
_LONGEST = 1024  # bytes that are read of a mark


def mark_start(environ: Mapping[str, str], rank: object, program: str) -> None:
    """Note that this process has started; where that cannot be written it goes without."""
    path = _path(environ)
    if path is not None:
        with contextlib.suppress(OSError):
            path.write_text(f"{'' if rank is None else rank}\n{program}", encoding="utf-8", errors="replace")


def unmark_start(environ: Mapping[str, str]) -> None:
    """Take the mark back: this process is no part of the job, or not yet."""
    path = _path(environ)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def _path(environ: Mapping[str, str]) -> Path | None:
    folder = text(environ, FOLDER)
    return Path(folder, str(os.getpid())) if folder else None


class StartMarks:
    """The marks in a folder, as the hub sees them.

    Args:
        folder: of :data:`FOLDER`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def heard(self, pid: int) -> None:
        """Take away the mark of a process that has reported."""
        with contextlib.suppress(OSError):
            (self._folder / str(pid)).unlink()

    def left(self) -> dict[str, Any]:
        """Return how many processes have not reported, and the rank, if any, the program and the pid of the first."""
        try:
            pids = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
        except OSError:
            return {"processes": 0, "first": []}
        return {"processes": len(pids), "first": [self._described(pid) for pid in islice(pids, _DESCRIBED)]}

    def _described(self, pid: int) -> dict[str, Any]:
        rank, program = "", ""
        with contextlib.suppress(OSError), (self._folder / str(pid)).open("rb") as file:
            rank, _, program = file.read(_LONGEST).decode(errors="replace").partition("\n")
        shown = "".join(letter if letter.isprintable() else "?" for letter in clean(program))
        return {"pid": pid, "rank": int(rank) if rank.isdecimal() else None, "program": shown[:80]}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
