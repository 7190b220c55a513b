"""Processes as the machine shows them: proc(5), read without a permission but that of the same user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
MOST_CHILDREN = 64  # of a process, that are looked at
_ERROR_FILE, _MOST_ENVIRONMENT = "TORCHELASTIC_ERROR_FILE=", 1 << 21


class ProcessLook(NamedTuple):
    """A process at one moment.

    Attributes:
        state: a letter, as in proc(5): R runs, S sleeps, D waits for a disk, T is stopped, t is traced, Z has ended.
        cpu: seconds of the processor so far, of all its threads.
        start: its start, in ticks since the boot: tells it from a later process of the same number.
        moved: bytes that it has read and written so far; None where that may not be seen.
        waits_in: the function of the kernel that it waits in; empty for none, and where that may not be seen.
    """

    pid: int
    name: str
    state: str
    cpu: float
    start: str
    moved: int | None
    waits_in: str


class Processes:
    """The processes of this machine.

    Args:
        proc: where they are shown.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def start(self, pid: int) -> str:
        """Return the start of a process; empty where there is none, or it may not be seen, or it has ended."""
        fields = self._fields(pid)
        return "" if not fields or fields[1] in ("Z", "X") else fields[20]

    def look(self, pid: int) -> ProcessLook | None:
        """Return a process; None where there is none, or it may not be seen."""
        fields = self._fields(pid)
        if not fields:
            return None
        waits_in = self._read(pid, "wchan").strip("0")
        moved = [int(line.split()[1]) for line in self._read(pid, "io").splitlines() if line[:6] in _MOVED]
        cpu = (int(fields[12]) + int(fields[13])) / TICKS
        return ProcessLook(pid, fields[0], fields[1], cpu, fields[20], sum(moved) if moved else None, waits_in)

    def children(self, pid: int) -> Iterator[ProcessLook]:
        """Yield the descendants of a process, as many as are looked at."""
        waiting, seen = [pid], 0
        while waiting and seen < MOST_CHILDREN:
            for child in self._children(waiting.pop()):
                found = self.look(child)
                if found is not None and found.state not in ("Z", "X"):
                    seen += 1
                    waiting.append(child)
                    yield found

    def error_file(self, pid: int) -> Path | None:
        """Return the file that torchrun has given a process for its exception; None where that may not be seen."""
        begun_with = self._read(pid, "environ", _MOST_ENVIRONMENT).split("\0")
        path = next((each[len(_ERROR_FILE) :] for each in begun_with if each.startswith(_ERROR_FILE)), "")
        try:
            return (self._proc / str(pid) / "cwd").readlink() / path if path else None
        except OSError:
            return None

    def _children(self, pid: int) -> list[int]:
        """Return the children that any thread of a process has started."""
        try:
            threads = [each.name for each in (self._proc / str(pid) / "task").iterdir()]
        except OSError:
            return []
        return [int(each) for thread in threads for each in self._read(pid, f"task/{thread}/children").split()]

    def _fields(self, pid: int) -> list[str]:
        """Return the name and the fields behind it; empty where there is no such process, or it may not be seen."""
        name, closing, rest = self._read(pid, "stat").rpartition(")")  # the name may hold anything
        return [name.partition("(")[2], *rest.split()] if closing else []

    def _read(self, pid: int, what: str, most: int = 1 << 16) -> str:
        try:
            with (self._proc / str(pid) / what).open("rb", buffering=0) as file:
                return (file.read(most) or b"").decode(errors="replace")
        except OSError:
            return ""


_MOVED = ("rchar:", "wchar:")
