"""Stacks of Python: files, lines and functions, and which of them is the program's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PYSPY = "TACHOGRAPH_PYSPY"  # the program; "none" for none
_TIMEOUT = 5.0  # seconds of py-spy: it takes 10 to 160 ms
_LIBRARIES = (
    *("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "<string>"),
    *(f"/tachograph/{room}/" for room in ("diagnosis", "elastic", "instrumentation", "metric", "monitor", "profiling")),
)
_PLUMBING = ("/selectors.py", "/threading.py", "/queue.py", "/multiprocessing/")  # whose names tell a reader nothing
DISTRIBUTED = "/torch/distributed/"
DEBUGGERS = ("/pdb.py", "/bdb.py", "/ipdb/", "/debugpy/", "/pydevd")
# An event loop without an event: such a process waits for work, not for ever.
SERVERS = ("/asyncio/", "/socketserver.py", "/uvicorn/", "/gunicorn/", "/tornado/", "/grpc/")
NETWORK = ("/ssl.py", "/socket.py", "/http/client.py", "/urllib3/", "/requests/", "/botocore/", "/fsspec/")
LOADER = "/torch/utils/data/dataloader.py"


_LINE = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


class Frame(NamedTuple):
    """A line of code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}"


Stack = tuple[Frame, ...]  # the innermost frame first


def stack_of(frames: Iterable[Sequence[Any]]) -> Stack:
    """Return a stack as a pulse has it."""
    return tuple(Frame(str(file), int(line), str(function)) for file, line, function in frames)


def stack_of_text(text: str) -> Stack:
    """Return the stack of the last exception that a traceback tells of."""
    return stack_of(_LINE.findall(text.rpartition("Traceback (most recent call last):")[2])[::-1])


def own_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of the program's own code, or else the innermost one; None of an empty stack."""
    own = (frame for frame in stack if not any(part in frame.file for part in _LIBRARIES))
    return next(own, stack[0] if stack else None)


def is_in(stack: Stack, places: Sequence[str], frames: int = 40) -> bool:
    """Tell whether one of the innermost frames is of any of these places."""
    return any(place in frame.file for frame in stack[:frames] for place in places)


def place_of(stack: Stack) -> str:
    """Return where a stack stands, in words: the program's own line, and the call that it is in."""
    own = own_frame(stack)
    if own is None:
        return "an unknown place"
    leaf = stack[0]
    plain = leaf == own or is_in(stack, (DISTRIBUTED,), 4) or is_in((leaf,), _PLUMBING)
    return str(own) if plain else f"{own} (in {leaf.function})"


class PySpy:
    """Reads the stack of another process from outside, without a stop; where py-spy is installed (extra ``doctor``).

    Args:
        program: py-spy; None for the one that is installed, empty for none.
        proc: where the kernel shows its settings.

    Attributes:
        refused: in words, why it could not read a stack the last time; empty where it could.
    """

    def __init__(self, program: str | None = None, proc: Path = Path("/proc")) -> None:
        self._program = _installed() if program is None else program
        self._scope = proc / "sys" / "kernel" / "yama" / "ptrace_scope"
        self.refused = ""

    @property
    def is_there(self) -> bool:
        """Tell whether it is installed."""
        return bool(self._program)

    def stack(self, pid: int) -> Stack | None:
        """Return the stack of the main thread of a process; None where it cannot be read."""
        if not self._program:
            return None
        command = [self._program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)  # noqa: S603 - its own program
            threads = json.loads(done.stdout) if not done.returncode else []
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.refused = type(error).__name__
            return None
        self.refused = f"{_why(done.stderr)}{self._forbidden()}" if done.returncode else ""
        main = next((each for each in threads if each.get("thread_name") == "MainThread"), next(iter(threads), None))
        return None if main is None else stack_of((f["filename"], f["line"], f["name"]) for f in main["frames"])

    def _forbidden(self) -> str:
        """Return in words that Yama lets no process read another; empty where it does, or is not in this kernel."""
        try:
            scope = self._scope.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
        return f" (kernel.yama.ptrace_scope is {scope})" if scope != "0" else ""


def _installed() -> str:
    given = os.environ.get(PYSPY, "").strip()
    if given:
        return "" if given == "none" else given
    beside = Path(sys.executable or sys.prefix).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy") or ""


def _why(said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return (lines[0] if lines else "it gave no reason")[:200]
