"""The job of ``tachograph run``: a child process with our standard streams, which also gets the signals sent to us."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from tachograph.cli._group_signals import SENT_BY_PROCESS, WINDOW, GroupSignals

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_FORWARDED = (
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
_HARMLESS_TWICE = {signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT}  # forwarded at once
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # a new process does not ignore them
_CHECK_EVERY = 0.5  # seconds between two checks on the hub


def run_job(
    command: Sequence[str],
    environ: Mapping[str, str],
    check_hub: Callable[[], object] = lambda: None,
    warn: Callable[[str], object] = lambda _: None,
) -> int:
    """Run a command to its end and return its exit code; negative for the number of the signal that ended it.

    Call it only in the main thread, with no other thread running: it receives signals synchronously, to know their
    senders. A signal of the terminal has reached the job already, and so has one to its process group or control group
    (see :mod:`tachograph.cli._group_signals`). A signal to this process alone is forwarded after a moment.

    Args:
        command: a program, looked for on PATH, and its arguments.
        environ: its environment.
        check_hub: called now and then while the job runs, also after it failed.
        warn: called with a line the first time that it fails.

    Returns:
        127 if there is no such program, 126 if it cannot be run.
    """
    received = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, received | {signal.SIGCHLD})
    handler_before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the exit code of a child is lost
    group_signals = GroupSignals(received - _HARMLESS_TWICE, received)
    try:
        try:
            if handler_before is signal.SIG_IGN:
                pid = os.fork() or _become_job(command, environ, mask_before)
            else:
                pid = os.posix_spawnp(
                    command[0], list(command), dict(environ), setsigmask=mask_before, setsigdef=_IGNORED_BY_PYTHON
                )
        except FileNotFoundError:
            return NOT_FOUND
        except OSError:
            return NOT_EXECUTABLE
        return _Job(pid, received, group_signals, check_hub, warn).wait()
    finally:
        group_signals.close()
        while signal.sigtimedwait(received | {signal.SIGCHLD}, 0) is not None:
            pass  # a signal that came after the job's end is not for us
        if handler_before is not None:  # None: a handler that was not set from Python
            signal.signal(signal.SIGCHLD, handler_before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


def _become_job(command: Sequence[str], environ: Mapping[str, str], mask: Iterable[int]) -> NoReturn:
    """Execute a job that ignores SIGCHLD, as it would without us; ``posix_spawn`` cannot start one."""
    code = NOT_EXECUTABLE
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 - no shell, on purpose
    except FileNotFoundError:
        code = NOT_FOUND
    finally:
        os._exit(code)


class _Job:
    """A running job."""

    def __init__(
        self,
        pid: int,
        received: set[signal.Signals],
        group_signals: GroupSignals,
        check_hub: Callable[[], object],
        warn: Callable[[str], object],
    ) -> None:
        self._pid = pid
        self._received = received | {signal.SIGCHLD}
        self._group_signals = group_signals
        self._check_hub = check_hub
        self._warn = warn
        self._has_warned = False
        self._pending: dict[tuple[int, int], float] = {}  # when the first of them came, by signal and sender

    def wait(self) -> int:
        """Wait for the job's end, and return its exit code; negative for the number of the signal that ended it."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            timeout = _CHECK_EVERY
            if self._pending:
                timeout = min(timeout, max(0.0, min(self._pending.values()) + WINDOW - time.monotonic()))
            received = signal.sigtimedwait(self._received, timeout)
            if received is None or received.si_signo == signal.SIGCHLD:
                self._check_on_hub()
            else:
                self._receive(received)
            self._forward_pending()

    def _check_on_hub(self) -> None:
        try:
            self._check_hub()
        except Exception as error:  # noqa: BLE001 - the border to the job: it goes on, whatever is wrong with the hub
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"cannot check on the hub, trying again while the job continues: {error}")

    def _receive(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        if received.si_code <= SENT_BY_PROCESS:  # the terminal's signals reach the job without us
            if number in _HARMLESS_TWICE:
                self._forward(number)
            else:
                self._pending.setdefault((number, received.si_pid), time.monotonic())
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _forward_pending(self) -> None:
        """Forward the signals that have waited long enough, unless the job got them with its group."""
        for (number, sender), came in list(self._pending.items()):
            if time.monotonic() >= came + WINDOW:
                del self._pending[number, sender]
                if not (self._group_signals.contain(number, sender, came - WINDOW) and self._is_in_our_group()):
                    self._forward(number)

    def _forward(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # under sudo it is another user's
            os.kill(self._pid, number)

    def _is_in_our_group(self) -> bool:
        try:
            return os.getpgid(self._pid) == os.getpgid(0)
        except OSError:
            return False
