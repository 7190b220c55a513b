"""A program in a terminal of its own: what its screen shows, what is typed, how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from programs import environment

# A session's leader that opens a terminal has it as the one whose Ctrl-C reaches it: tty(4).
_PROGRAM = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
from tachograph.cli import main
sys.exit(main(sys.argv[1:]))
"""
# All that a screen may be told, and nothing else: ECMA-48 and xterm's private modes.
_TOLD = re.compile(
    r"(?P<style>\x1b\[[0-9;]*m)|(?P<home>\x1b\[H)|(?P<clear>\x1b\[[JK])|(?P<mode>\x1b\[\?(?:1049|25)[hl])"
    r"|(?P<line>\r*\n)|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
)

_BEGUN = re.compile(r"(\x1b(\[[0-9;?]*)?|\r+|)")  # of which the rest is on its way


class Terminal:
    """A terminal with a program in it.

    Attributes:
        process: the program.
        alternate: whether the alternate screen is shown.
        cursor: whether the cursor is.
    """

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.alternate = False
        self.cursor = True
        self._descriptor = descriptor
        self._said = b""
        self._lines: list[str] = [""]
        self._row = 0

    @property
    def screen(self) -> str:
        """What the screen shows."""
        return "\n".join(self._lines)

    def wait(self, *wanted: str, absent: str = "", timeout: float = 20.0) -> str:
        """Return the screen once it shows all of some texts, and not ``absent``."""
        deadline = time.monotonic() + timeout
        while not all(each in self.screen for each in wanted) or (absent and absent in self.screen):
            assert time.monotonic() < deadline, f"{wanted} is not shown:\n{self.screen}"
            self._read(0.2)
        return self.screen

    def press(self, typed: bytes) -> None:
        """Type something."""
        os.write(self._descriptor, typed)

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal another size."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def echoes(self) -> bool:
        """Tell whether the terminal shows what is typed, as it does for a shell."""
        return bool(termios.tcgetattr(self._descriptor)[3] & termios.ECHO)

    def end(self) -> int:
        """Return the program's exit code once it has ended and all that it said is read."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.screen
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode

    def _read(self, timeout: float) -> bool:
        if not select.select([self._descriptor], [], [], timeout)[0]:
            return False
        with suppress(OSError):  # nobody has it open any more
            self._said += os.read(self._descriptor, 1 << 16)
        try:
            text = self._said.decode()
        except UnicodeDecodeError as error:  # the rest of a character is on its way
            text = self._said[: error.start].decode()
        end = 0
        for told in _TOLD.finditer(text):
            if told.start() != end:
                break
            self._take(told)
            end = told.end()
        left = text[end:]
        assert _BEGUN.fullmatch(left), f"what no terminal should be told: {left[:40]!r}"
        self._said = self._said[len(text[:end].encode()) :]
        return bool(end)

    def _take(self, told: re.Match[str]) -> None:
        kind, said = str(told.lastgroup), told.group()
        if kind == "mode":
            self.alternate = said == "\x1b[?1049h" if "1049" in said else self.alternate
            self.cursor = said == "\x1b[?25h" if "25h" in said or "25l" in said else self.cursor
            if "1049" in said:
                self._lines, self._row = [""], 0
        elif kind == "home":
            self._row = 0
            self._overwrite()
        elif kind == "line":
            self._row += 1
            self._overwrite()
        elif kind == "text":
            self._lines[self._row] += said
        elif said == "\x1b[J":
            del self._lines[self._row + 1 :]

    def _overwrite(self) -> None:
        self._lines += [""] * (self._row + 1 - len(self._lines))
        self._lines[self._row] = ""


@contextmanager
def terminal(folder: Path, *arguments: str, columns: int = 130, lines: int = 40, **more: str) -> Iterator[Terminal]:
    """Run ``tachograph`` in a terminal, with its store in ``folder``."""
    ours, its = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    set_up = {"TERM": "xterm-256color", "PYTHONUTF8": "1", **more}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        env=environment(folder, **set_up),
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    try:
        with process:
            try:
                yield Terminal(process, ours)
            finally:
                if process.poll() is None:
                    process.kill()
    finally:
        os.close(ours)
