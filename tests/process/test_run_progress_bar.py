"""Lines of ``tachograph run`` below a progress bar of the job, which leaves the cursor at its end."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from programs import environment

COLUMNS = 40
BAR = "\r 45%|####"


def lines_of(written: str) -> list[str]:
    """Return the lines of a screen with forty columns, which wraps as xterm does."""
    lines, column = [""], 0
    for letter in written:
        if letter == "\r":
            column = 0
        elif letter == "\n":
            lines.append("")
        else:
            if column == COLUMNS:
                lines.append("")
                column = 0
            lines[-1] = lines[-1][:column].ljust(column) + letter + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def in_terminal(folder: Path, program: str) -> list[str]:
    """Run a program under ``tachograph run`` in a terminal, and return what the screen shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "tachograph", "run", "--port", "0", "--linger", "0", "--", sys.executable, "-c"]
    process = subprocess.Popen([*command, program], env=environment(folder), stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    with process, suppress(OSError):  # the terminal is gone once nobody has it
        while part := os.read(ours, 4096):
            written += part
    os.close(ours)
    assert process.returncode == 0
    return lines_of(written.decode())


@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_last_lines_begin_below_the_bar(tmp_path: Path, ending: str) -> None:
    """A bar that was left unfinished stays on its line, and no empty line follows one that has ended."""
    screen = in_terminal(tmp_path, f"import sys; sys.stderr.write({BAR + ending!r})")
    place = screen.index(BAR.strip("\r"))
    assert screen[place + 1].startswith("tachograph: finished: recorded 0 points")
