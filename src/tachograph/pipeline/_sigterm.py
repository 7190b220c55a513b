"""SIGTERM: flush everything recorded, then die of the signal as ever.

torchrun sends SIGTERM to every rank when one of them dies, and a rank that sits in a collective runs no Python until it
returns. So the timer notices the signal through the wake-up descriptor (written by CPython's C handler), and a thread
beside it flushes; the process then ends with the signal's own status. A handler of the program's own is left alone: it
runs as always, and whether the process ends is its decision.

Only the main thread can put the handling back as it was found. Closed elsewhere, everything stays as it is, with
nothing left to flush, until the main thread comes by: a descriptor that CPython still writes to must not become another
file's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from tachograph.identity.import_hooks import ImportHook
from tachograph.recording import timer
from tachograph.recording.forking import at_fork

_BYTE = bytes([signal.SIGTERM])


class SigtermFlush:
    """The flush that SIGTERM calls for, from construction to :meth:`close`.

    Attributes:
        dying: SIGTERM has arrived, and ends the process as soon as everything is flushed.
        has_ended: it flushes no more, and the signal's handling may still have to be put back.

    Args:
        flush: runs in a thread of ours, bounded in time by itself; told whether the process ends right after it.

    Raises:
        ValueError: not made in the main thread of the main interpreter, where alone handlers can be set.
        RuntimeError: the interpreter is about to end, so that nothing could flush.
    """

    def __init__(self, flush: Callable[[bool], object]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("SIGTERM can be handled only in the main thread")
        _put_all_back()
        self._flush = flush
        self._turn = threading.Lock()
        self._libc = ctypes.CDLL(None)
        self._libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self._libc.signal.restype = ctypes.c_void_p
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._pid = os.getpid()
        self._closed = self._arrived = False
        self.dying = self.has_ended = False
        found = signal.getsignal(signal.SIGTERM)
        self._takes_over = found is signal.SIG_DFL
        self._chained = -1
        try:
            self._watch = timer.default.watch(self._read, self._write, self._noticed)
        except RuntimeError:
            os.close(self._read)
            os.close(self._write)
            raise
        _installed.append(self)  # first: a fork of another thread may come in between
        try:
            if self._takes_over:
                signal.signal(signal.SIGTERM, self._on_signal)
            if "trio" not in sys.modules:
                self._chained = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        except ValueError:  # the first of the two says it already
            _installed.remove(self)
            self._watch.close()
            raise
        if not _trio_hooks:
            _trio_hooks.append(ImportHook("trio", _yield_to_trio))
        send_missed()

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._arrived = self._arrived or signal.getsignal(signal.SIGTERM) == self._on_signal
        # asyncio takes the wake-up descriptor and leaves none behind: then this tells the thread. A handler
        # of the program's own may call it even after the end.
        if os.getpid() == self._pid and not self._closed:
            with contextlib.suppress(OSError):
                os.write(self._write, _BYTE)

    def _noticed(self, signals: bytes) -> None:
        if self._chained >= 0:
            with contextlib.suppress(OSError):
                os.write(self._chained, signals)
        if signal.SIGTERM in signals:
            timer.default.beside("sigterm", self._end)

    def _end(self) -> None:
        with self._turn:
            try:
                self.dying = signal.getsignal(signal.SIGTERM) == self._on_signal
                self._flush(self.dying)
            finally:
                if signal.getsignal(signal.SIGTERM) == self._on_signal:
                    self._libc.signal(signal.SIGTERM, None)
                    os.kill(self._pid, signal.SIGTERM)

    def close(self) -> None:
        """Flush no more, and put the signal's handling back as it was found.

        In another thread than the main one, the latter is left to the next one that is made or closed there: until
        then SIGTERM ends the process as ever.
        """
        if self._closed:
            return
        self._flush = _nothing
        self.has_ended = True
        _put_all_back()

    def put_back(self) -> bool:
        """Put the signal's handling back as it was found, in the main thread, and end.

        Returns:
            Whether that was possible: where another wake-up descriptor hides ours, its owner may pass on to it.
        """
        if not self._restore():
            return False
        self._closed = True
        self._watch.close()
        return True

    def reset_in_child(self) -> None:
        """After a fork: a signal to the child must not end its parent, whose pipe the child holds."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ValueError):  # not the main interpreter
            self._restore()
        for descriptor in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _restore(self) -> bool:
        if self._takes_over and signal.getsignal(signal.SIGTERM) == self._on_signal:
            # First in C: from here on a signal ends the process, and one from before is in _on_signal by the next line,
            # which runs the handlers of signals that have come.
            self._libc.signal(signal.SIGTERM, None)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self._arrived and os.getpid() == self._pid:
                _missed.append(self._pid)
        return self.release_wakeup_fd()

    def release_wakeup_fd(self) -> bool:
        """Restore the wake-up descriptor that was set before this one; SIGTERM then waits for the main thread.

        Returns:
            Whether no other descriptor hides this one.
        """
        current = signal.set_wakeup_fd(-1)
        ours = current == self._write
        restored = self._chained if ours else current
        if restored >= 0:
            with contextlib.suppress(ValueError, OSError):  # whose owner has closed it meanwhile
                signal.set_wakeup_fd(restored, warn_on_full_buffer=False)
        if ours:
            self._chained = -1
        return ours or current < 0


_installed: list[SigtermFlush] = []  # those whose handling of the signal has not been put back
_trio_hooks: list[ImportHook] = []  # one, from the first of them on
_missed: list[int] = []  # the process, where the signal came while its handling was being put back


def send_missed() -> None:
    """Send the signal again that came while its handling was put back, once everything is delivered."""
    while _missed:
        if _missed.pop() == os.getpid():
            os.kill(os.getpid(), signal.SIGTERM)


def _put_all_back() -> None:
    """Put back all handlings that wait for it, the last one first; in another than the main thread none."""
    if threading.current_thread() is threading.main_thread():
        for one in reversed(tuple(_installed)):
            if one.has_ended and one.put_back():
                _installed.remove(one)


def _yield_to_trio(_trio: object) -> None:
    """Leave the wake-up descriptor to trio, which warns at each run if another library has it.

    A thread other than the main one cannot change it.
    """
    for one in reversed(tuple(_installed)):
        with contextlib.suppress(ValueError):
            one.release_wakeup_fd()


def _nothing(_dying: bool) -> None:
    """Flush nothing: it was done at the end."""


def _after_fork_in_child() -> None:
    for one in reversed(_installed):
        one.reset_in_child()
    _installed.clear()


at_fork("sigterm", in_child=_after_fork_in_child)
