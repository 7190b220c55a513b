"""The job of ``tachograph run``: a child process with our standard streams, to which our signals are passed on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from tachograph.cli._signal_witness import SENT, WINDOW, SignalWitness

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
_LIKE_A_NEW_PROCESS = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores
_AS_WELL_TWICE = {signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT}


def run_job(
    command: Sequence[str],
    environ: Mapping[str, str],
    look: Callable[[], object] = lambda: None,
    say: Callable[[str], object] = lambda _: None,
) -> int:
    """Run a command to its end and return its exit code; negative for the number of the signal that ended it.

    Only in the main thread, with no other thread running: signals are taken synchronously, so that their sender
    is known. A signal of the terminal has reached the job already, and so has one to its process or control group:
    see :mod:`tachograph.cli._signal_witness`. A signal to this process alone is passed on, after a moment.

    Args:
        command: a program, looked for on PATH, and its arguments.
        environ: its environment.
        look: called now and then, while the job runs; where it fails it is called again later.
        say: told in a line, once, that it failed.

    Returns:
        127 where there is no such program, 126 where it cannot be run.
    """
    taken = {number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, taken | {signal.SIGCHLD})
    inherited = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, the exit code of a child is lost
    witness = SignalWitness(taken - _AS_WELL_TWICE, taken)
    try:
        try:
            if inherited is signal.SIG_IGN:
                pid = _fork(command, environ, before)
            else:
                pid = os.posix_spawnp(
                    command[0], list(command), dict(environ), setsigmask=before, setsigdef=_LIKE_A_NEW_PROCESS
                )
        except FileNotFoundError:
            return NOT_FOUND
        except OSError:
            return NOT_EXECUTABLE
        return _Job(pid, taken, witness, look, say).until_end()
    finally:
        witness.close()
        while signal.sigtimedwait(taken | {signal.SIGCHLD}, 0) is not None:  # those that came too late are not for us
            pass
        if inherited is not None:  # None: a handler that was not set from Python
            signal.signal(signal.SIGCHLD, inherited)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(command: Sequence[str], environ: Mapping[str, str], mask: Iterable[int]) -> int:
    """Start a job that ignores SIGCHLD, as it would without us: that cannot be asked of ``posix_spawn``."""
    pid = os.fork()
    return pid or _become(command, environ, mask)


def _become(command: Sequence[str], environ: Mapping[str, str], mask: Iterable[int]) -> NoReturn:
    code = NOT_EXECUTABLE
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for number in _LIKE_A_NEW_PROCESS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 - no shell, on purpose
    except FileNotFoundError:
        code = NOT_FOUND
    finally:
        os._exit(code)


class _Job:
    """A job that runs: signals are passed on to it, and the hub beside it is looked after."""

    def __init__(
        self,
        pid: int,
        taken: set[signal.Signals],
        witness: SignalWitness,
        look: Callable[[], object],
        say: Callable[[str], object],
    ) -> None:
        self._pid = pid
        self._taken = taken | {signal.SIGCHLD}
        self._witness = witness
        self._look = look
        self._say = say
        self._said = False
        self._held: dict[tuple[int, int], float] = {}  # signals and their senders, and when the first of them came

    def until_end(self) -> int:
        """Wait for its end, and return its exit code; negative for the number of the signal that ended it."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            found = signal.sigtimedwait(self._taken, self._patience())
            if found is None or found.si_signo == signal.SIGCHLD:
                self._look_after()
            elif found.si_code <= SENT and found.si_signo not in _AS_WELL_TWICE:
                self._held.setdefault((found.si_signo, found.si_pid), time.monotonic())
            else:
                self._control(found.si_signo, sent=found.si_code <= SENT)
            self._pass_on_held()

    def _patience(self) -> float:
        first = min(self._held.values(), default=None)
        return _LOOK if first is None else min(_LOOK, max(0.0, first + WINDOW - time.monotonic()))

    def _look_after(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the border to the job: it goes on, whatever is wrong with the hub
            if not self._said:
                self._said = True
                self._say(f"cannot check on the hub, trying again while the job continues: {error}")

    def _control(self, number: int, *, sent: bool) -> None:
        if sent:
            self._pass_on(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _pass_on_held(self) -> None:
        """Pass on signals that have waited long enough, unless the job has got them with all others of its group."""
        for (number, sender), came in list(self._held.items()):
            if time.monotonic() >= came + WINDOW:
                del self._held[number, sender]
                if not (self._witness.saw(number, sender, came - WINDOW) and self._is_in_our_group()):
                    self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # under sudo it is another user's
            os.kill(self._pid, number)

    def _is_in_our_group(self) -> bool:
        try:
            return os.getpgid(self._pid) == os.getpgid(0)
        except OSError:
            return False
