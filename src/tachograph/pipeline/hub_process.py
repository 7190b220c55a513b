"""The hub of a job or a program: a process of its own, started before it and again where it dies, ended after it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tachograph.identity.environment import system_text
from tachograph.identity.program import STARTED_AS_HUB, interpreter

STARTS_WITHIN = 60.0  # seconds: it takes one, but many on a machine that is busy with other jobs
ENDS_WITHIN = 10.0  # seconds, beside the time that it lingers
LINGERS_BY_ITSELF = 30.0
RESTARTS = 5
_BACK_OFF = 0.2
_LONGEST = _BACK_OFF * 2**RESTARTS
_POLL = 0.005
_MOST_HANGS = 30
_IN_BACKGROUND = ("/bin/sh", "-c", '"$@" &', "sh")


class HubProcess:
    """A running ``tachograph hub``; it ends by itself where this process dies.

    Args:
        arguments: of ``tachograph hub``, without ``--announce`` and ``--parent``.
        environ: its environment.
        detached: it is started by a shell that ends at once, so that it is no child of this process.
        command: of ``tachograph hub``; by default with this process's interpreter.
        spawn: starts a process, as :func:`os.posix_spawn`.
        clock: seconds, monotonic: for the times between starts.

    Attributes:
        pid: of the hub; None while there is none, 0 where it is not known yet.
        url: of the hub.
        page: the address of the run's page.
        store: the file of the run.
        run: its id.
        hangs: lines that it has said of hangs, the last few; :meth:`look_after` reads them.

    Raises:
        ImportError: a package cannot be imported that comes with this one; the message names it.
        RuntimeError: it could not start for another reason; the message says why.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        detached: bool = False,
        command: Sequence[str] | None = None,
        spawn: Callable[..., int] = os.posix_spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn, self._clock = spawn, clock
        own = (interpreter(), "-X", "utf8", "-m", "tachograph", "hub") if command is None else command
        self._command = [*own, *map(system_text, arguments), "--parent", str(os.getpid())]
        self._environ = {**environ, STARTED_AS_HUB: "1"}
        self._detached = detached
        self.pid: int | None = None
        self.hangs: deque[str] = deque(maxlen=_MOST_HANGS)
        self._restarts = 0
        self._due: float | None = None
        self._buffered = b""
        self._start()
        try:
            said = self._read(STARTS_WITHIN)
        except BaseException:  # an interrupt: it would stay until this process ends
            self._kill(0.0)
            raise
        if "url" not in said:
            why = f"the hub did not start within {STARTS_WITHIN:g} s" if self.runs else "the hub exited during startup"
            self._kill()
            if said.get("lacks"):
                raise ImportError(said["error"], name=said["lacks"])
            raise RuntimeError(said.get("error") or why)
        self.url: str = said["url"]
        if self._detached:
            self.pid = int(said.get("pid", 0))
        self.store: str = said.get("store", "")
        self.run: str = said.get("run", "")
        self.page = f"{self.url}/#/run/{quote(self.run, safe='')}"  # as the page's route.js reads it
        port = self.url.rpartition(":")[2].rstrip("/")
        self._command += ["--port", port]  # the last one counts: where it starts again, the job knows only this port

    def _start(self) -> None:
        with contextlib.ExitStack() as passed, contextlib.ExitStack() as kept:
            null = os.open(os.devnull, os.O_RDWR)
            passed.callback(os.close, null)
            read, write = os.pipe()
            passed.callback(os.close, write)
            kept.callback(os.close, read)
            # The copy in the child is a fresh descriptor, as only that is inherited; signals as a new process has them.
            target = max(read, write, null, 9) + 1
            line = [*(_IN_BACKGROUND if self._detached else ()), *self._command, "--announce", str(target)]
            pid = self._spawn(
                line[0],
                line,
                self._environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, write, target),  # first: it may be a standard one, where those were closed
                    *((os.POSIX_SPAWN_DUP2, null, standard) for standard in range(3)),
                ],
                # The terminal's signals are not for it. And a session has its own share of the CPU on Linux
                # (sched_autogroup): else 60 processes that start or end at once would leave the hub none.
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD],
            )
            kept.pop_all()
        self._pipe, self._buffered = read, b""
        self.pid = pid
        if self._detached:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self.pid = 0

    @property
    def runs(self) -> bool:
        """Whether there is one."""
        return self.pid is not None and not self._reaped()

    def look_after(self) -> None:
        """Start it again where it has died, on the same port and store; a few times, and later each time.

        Raises:
            OSError: it cannot be started now; it will be tried again.
        """
        if self.pid is not None and not self._reaped():
            self._hear()
            return
        now = self._clock()
        if self.pid is not None:
            self.pid = None
            os.close(self._pipe)
            if self._restarts < RESTARTS:
                self._due = now + _BACK_OFF * 2**self._restarts
                self._restarts += 1
        if self._due is not None and now >= self._due:
            self._due = now + _LONGEST
            self._start()
            self._due = None

    def _hear(self) -> None:
        """Read its lines so far: see :attr:`hangs`. Its last one is left to :meth:`end`."""
        while b"\n" in self._buffered or select.select([self._pipe], [], [], 0)[0]:
            said = self._read(0.0)
            if "points" in said or not said:
                self._buffered = (json.dumps(said).encode() + b"\n" if said else b"") + self._buffered
                return
            if self._detached and self.pid == 0:
                self.pid = int(said.get("pid", 0))
            if "hang" in said:
                self.hangs.append(str(said["hang"]))

    def _reaped(self) -> bool:
        if self._detached:  # its end of the pipe is closed
            end = select.poll()
            end.register(self._pipe, 0)
            return bool(end.poll(0))
        try:
            return self.pid is None or os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True

    def end(self, linger: float | None, on_linger: Callable[[float], bool] = lambda _: True) -> dict[str, Any]:
        """Ask it to end and wait for that; return its summary, empty where it gives none.

        An interrupt while the hub lingers ends the wait, but not the summary.

        Args:
            linger: the seconds that it was asked to stay; None: as it likes.
            on_linger: called with the seconds when the hub begins to wait for a last scrape; False ends the wait.
        """
        if self.pid is None:
            return {}
        self.ask_to_end()
        deadline = time.monotonic() + ENDS_WITHIN + (LINGERS_BY_ITSELF if linger is None else linger)
        message: dict[str, Any] = {}
        lingers = False
        try:
            while "points" not in message and time.monotonic() < deadline:
                try:
                    message = self._read(deadline - time.monotonic())
                    if "lingers" in message:
                        lingers = True  # first: an interrupt may come during the call
                        if not on_linger(float(message["lingers"])):
                            self.ask_to_end()
                except KeyboardInterrupt:
                    if not lingers:
                        raise
                    self.ask_to_end()
                    message = {"interrupted": True}
                if not message:
                    break
        finally:
            self._kill()
        return message if "points" in message else {}

    def ask_to_end(self) -> None:
        """Send it SIGTERM: it ends once it has taken the last exports, and asked again at once. This does not wait."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid == 0:  # only it knows its number
            self.pid = int(self._read(1.0).get("pid", 0))
        if self.pid and self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; tell whether it has ended."""
        deadline = time.monotonic() + seconds
        while self.runs:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def close(self) -> None:
        """Have no more to do with it: it ends when it is asked to, or this process ends."""
        if self.pid is not None:
            self.pid = None
            os.close(self._pipe)

    def _kill(self, patience: float = 1.0) -> None:
        """End it; where it has said its last words it gets a moment to end by itself."""
        if self.pid is None:
            return
        if not self.wait(patience):
            self._signal(signal.SIGKILL)
            if not self._detached:
                with contextlib.suppress(ChildProcessError):  # reaped where SIGCHLD is ignored
                    os.waitpid(self.pid, 0)
        self.close()

    def _read(self, timeout: float) -> dict[str, Any]:
        """Return its next line, within ``timeout`` seconds; empty where it has closed its end."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffered:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            some = os.read(self._pipe, 65536) if ready else b""
            if not some:
                return {}
            self._buffered += some
        line, _, self._buffered = self._buffered.partition(b"\n")
        try:
            said = json.loads(line)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}
