"""Witness of signals: a process that tells one that was sent to us alone from one that the job has got, too.

The end of a job is rarely asked of one process: ``kill -TERM -- -GROUP``, ``timeout``, a shell's ``kill %1`` mean the
process group, systemd and ``scancel`` the control group. The data of a signal do not say so. But a process
beside the job, in the same groups, gets the signals of the groups, and no others: those that it has seen are not passed
on. This module is its program, too: Python reads it on stdin, so that its command line has no name of ours, which a
``pkill -f`` would find.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import time

WINDOW = 0.1  # seconds within which a sender sends to all of a group
# siginfo_t's si_code of a process's signal; a terminal's is positive, and reaches the whole foreground group anyway.
SENT = 0
_REPORT = struct.Struct("=iqd")  # the signal, its sender, and when (monotonic, which all processes share)
_MOST = 64 * 1024
_ALIVE = 1.0  # seconds between two looks whether its starter lives


class SignalWitness:
    """A process that does nothing but get signals; where it cannot be had, nothing was ever seen.

    Args:
        numbers: the signals that it looks for.
        blocked: those, and the others that it is to live through.
    """

    def __init__(self, numbers: set[signal.Signals], blocked: set[signal.Signals]) -> None:
        self._pid: int | None = None
        self._pipe: int | None = None
        self._seen: dict[tuple[int, int], float] = {}
        with contextlib.suppress(OSError, RuntimeError):
            self._start(numbers, blocked)

    def _start(self, numbers: set[signal.Signals], blocked: set[signal.Signals]) -> None:
        from tachograph.identity.program import interpreter  # the witness's own program finds no package

        python = interpreter()
        self._pipe, write = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._pid = os.posix_spawn(
                python,
                [python, "-I", "-S", "-", *(str(int(number)) for number in (os.getpid(), *sorted(numbers)))],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, write, 1),
                    (os.POSIX_SPAWN_OPEN, 0, __file__, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsigmask=blocked,
                setsigdef=[signal.SIGCHLD],
            )
        finally:
            os.close(write)

    def saw(self, number: int, sender: int, since: float) -> bool:
        """Tell whether a process has sent a signal to others of the group, too.

        Args:
            number: of the signal.
            sender: the process's id.
            since: seconds (monotonic).
        """
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                reports = os.read(self._pipe, _MOST)
                for seen, process, when in _REPORT.iter_unpack(reports[: len(reports) // _REPORT.size * _REPORT.size]):
                    self._seen[seen, process] = when
        self._seen = {key: when for key, when in self._seen.items() if when >= since}
        return (number, sender) in self._seen

    def close(self) -> None:
        """End it."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = None


def _look_out(parent: int, numbers: set[int]) -> None:
    """Write down which process has sent which signal, as long as the process that has started this one lives."""
    while os.getppid() == parent:
        found = signal.sigtimedwait(numbers, _ALIVE)
        if found is not None and found.si_code <= SENT:
            os.write(1, _REPORT.pack(found.si_signo, found.si_pid, time.monotonic()))


if __name__ == "__main__":
    _look_out(int(sys.argv[1]), set(map(int, sys.argv[2:])))
