"""The standard streams of a command: descriptors that are open, and a stderr that neither fails nor waits for long."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from pathlib import Path
from typing import Any

PATIENCE = 3.0  # seconds for which a line waits for a reader that does not read


def hold_descriptors() -> None:
    """Open the null device on those of the descriptors 0, 1 and 2 that are closed.

    Else the next socket or file would have such a number, and get in it all that is printed. No child inherits what is
    opened here: it has those descriptors closed that this process was given closed.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free: this one
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # as Python has it where the descriptor was closed
            stream = Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115 - for good
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def never_fail() -> None:
    """Let stderr drop text that cannot be written: to a full disk, to no reader, to one that does not read.

    A stream that was put in the place of the process's own stays.
    """
    own = sys.__stderr__
    if own is not None and sys.stderr is own:
        raw: Any = Unfailing(2)  # without a buffer, as Python's own with ``-u``
        sys.stderr = io.TextIOWrapper(raw, own.encoding, _ENCODABLE, write_through=True)


def encode_any_text() -> None:
    """Let stdout and stderr take characters that their encoding lacks: ``…`` becomes ``...``, others are escaped.

    In a C locale, or with PYTHONIOENCODING, stdout would refuse a help text or the name of a run.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ENCODABLE)


def _encodable(error: UnicodeError) -> tuple[str, int]:
    """Return the characters that an encoding lacks as ASCII, and the place behind them, as an error handler."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from unicodedata import normalize  # few commands need it

    encodable = ""
    for character in error.object[error.start : error.end]:
        alike = normalize("NFKD", character)
        encodable += alike if alike.isascii() else character.encode("ascii", "backslashreplace").decode()
    return encodable, error.end


_ENCODABLE = "tachograph.encodable"
codecs.register_error(_ENCODABLE, _encodable)


class Unfailing(io.RawIOBase):
    """A stream to a descriptor that is always written to: text that it does not take within a moment is dropped.

    Args:
        descriptor: stays open.
        patience: seconds for which one write waits, but the one after it not, if that was in vain.
    """

    def __init__(self, descriptor: int, *, patience: float = PATIENCE) -> None:
        self._descriptor = descriptor
        self._patience = patience
        self._waits = patience
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write as much as is taken, and return the length of all of it."""
        left = memoryview(data)
        try:
            while left and self._ready.poll(self._waits * 1000):
                self._waits = self._patience
                # A pipe that is ready has room for so much: pipe(7), "PIPE_BUF".
                left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]
        except OSError:
            return len(data)
        if left:
            self._waits = 0.0
        return len(data)
