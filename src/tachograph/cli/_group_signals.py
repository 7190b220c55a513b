"""Tell a signal that was sent to this process alone from one that was sent to its whole group.

``kill -TERM -- -GROUP``, ``timeout`` and a shell's ``kill %1`` signal a process group; systemd and ``scancel`` signal a
control group. The job is in these groups, too, so it must not get the signal again from us. A signal does not say to
whom it was sent. Therefore a small process in the same groups reports the signals that it gets: a signal that it got,
too, was sent to a group.

This module is also the program of that process. Python reads it on stdin, so that the command line does not contain
our name and ``pkill -f`` does not find the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import time

WINDOW = 0.1  # seconds within which a signal reaches all processes of a group
# siginfo_t's si_code of a process's signal; a terminal's is positive, and reaches the whole foreground group anyway.
SENT_BY_PROCESS = 0
_REPORT = struct.Struct("=iqd")  # the signal, its sender, and when (monotonic, which all processes share)
_MOST_READ = 64 * 1024 // _REPORT.size * _REPORT.size  # bytes: a pipe holds no more, and only whole reports
_PARENT_CHECK = 1.0  # seconds between two checks whether the parent is alive


class GroupSignals:
    """The signals that were sent to the process's groups; none if the reporting process cannot be started.

    Args:
        reported: the signals to report.
        survived: the signals that must not end the reporting process.
    """

    def __init__(self, reported: set[signal.Signals], survived: set[signal.Signals]) -> None:
        self._pipe: int | None = None
        self._pid: int | None = None
        self._times: dict[tuple[int, int], float] = {}  # of the latest report, by signal and sender
        with contextlib.suppress(OSError, RuntimeError):
            self._pipe, write_end = os.pipe()
            os.set_blocking(self._pipe, False)
            try:
                self._pid = _start_reporter(reported, survived, write_end)
            finally:
                os.close(write_end)

    def contain(self, number: int, sender: int, since: float) -> bool:
        """Tell whether a process sent a signal to the group, after a time in seconds (monotonic)."""
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                for reported, process, when in _REPORT.iter_unpack(os.read(self._pipe, _MOST_READ)):
                    self._times[reported, process] = when
        self._times = {key: when for key, when in self._times.items() if when >= since}
        return (number, sender) in self._times

    def close(self) -> None:
        """End the reporting process."""
        if self._pipe is not None:
            os.close(self._pipe)
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def _start_reporter(reported: set[signal.Signals], survived: set[signal.Signals], write_end: int) -> int:
    from tachograph.identity.program import interpreter  # the reporter runs this file without our package

    python = interpreter()
    return os.posix_spawn(
        python,
        [python, "-I", "-S", "-", *(str(int(number)) for number in (os.getpid(), *sorted(reported)))],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, write_end, 1),
            (os.POSIX_SPAWN_OPEN, 0, __file__, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsigmask=survived,
        setsigdef=[signal.SIGCHLD],
    )


def _report_signals(parent: int, numbers: set[int]) -> None:
    """Write a report about each signal from a process, as long as the parent is alive."""
    while os.getppid() == parent:
        received = signal.sigtimedwait(numbers, _PARENT_CHECK)
        if received is not None and received.si_code <= SENT_BY_PROCESS:
            os.write(1, _REPORT.pack(received.si_signo, received.si_pid, time.monotonic()))


if __name__ == "__main__":
    _report_signals(int(sys.argv[1]), set(map(int, sys.argv[2:])))
