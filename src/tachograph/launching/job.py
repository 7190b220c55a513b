"""The job itself: a child process with our stdin, stdout and stderr, that gets the signals which we get."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_LOOK = 0.5  # seconds between looks at the hub

# siginfo_t's si_code: of what a process sent; a terminal's is positive, and reaches the whole foreground group anyway.
_SENT = 0


def run_job(command: Sequence[str], environ: Mapping[str, str], look: Callable[[], object] = lambda: None) -> int:
    """Run a command to its end and return its exit code; 128 + n where signal n ended it.

    Only in the main thread, with no other thread running: signals are taken synchronously, so that it is known who
    sent them. What the terminal sends, the job has already; what was sent to this process alone is passed on.

    Args:
        command: a program, looked for on PATH, and its arguments.
        environ: its environment.
        look: called now and then, while the job runs.

    Returns:
        127 where there is no such program, 126 where it cannot be run.
    """
    taken = {number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN} | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    try:
        pid = os.posix_spawnp(
            command[0], list(command), dict(environ), setsigmask=before, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
        return _until_end(pid, taken, look)
    except FileNotFoundError:
        return NOT_FOUND
    except OSError:
        return NOT_EXECUTABLE
    finally:
        while signal.sigtimedwait(taken, 0) is not None:  # what came too late for the job is not for us
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _until_end(pid: int, taken: set[signal.Signals], look: Callable[[], object]) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        found = signal.sigtimedwait(taken, _LOOK)
        if found is None or found.si_signo == signal.SIGCHLD:
            look()
        else:
            _pass_on(pid, found.si_signo, sent=found.si_code <= _SENT)


def _pass_on(pid: int, number: int, *, sent: bool) -> None:
    if sent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    if number == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
