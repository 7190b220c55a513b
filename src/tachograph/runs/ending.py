"""How a run has ended: its state, the exit code or the signal of its job, and the process that failed first."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from tachograph.identity.program import signal_name
from tachograph.runs.file import Look
from tachograph.runs.members import NODE, Member
from tachograph.runs.queries import read_failures

State = Literal["running", "finished", "failed", "killed", "lost", "unknown"]
_KILLED = {"sigterm": signal.SIGTERM, "sigint": signal.SIGINT}  # reasons of process ends
_FEW = 4
_LINE = 200  # characters of a message in one line
# How a launcher reports the end of a process that it started: see tachograph/pipeline/_failure.py.
_REPORTED_END = re.compile(
    r"(rank|process) (\d+) \(pid (\d+)\) (?:was (killed by \w+)|ended with (exit code \d+(?:: .*)?))", re.DOTALL
)
# The messages of gloo, NCCL, a TCPStore and sockets in a process whose peer has ended before.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection was likely closed|remote process exiting", re.IGNORECASE
)
_ENDED_FIRST = "ended before the others without an exception"


class Failure(NamedTuple):
    """A process that failed, and its exception.

    Attributes:
        rank: None if it has none.
        role: empty if it has none.
        time_unix_nano: when the process reported it, by its own clock.
        type: the exception's type; empty if it is not known or the process ended without an exception.
        message: the exception's message, at most 2,000 characters, with secrets masked; may be empty. For a process
            that ended without an exception, how it ended: ``exit code 3``, ``killed by SIGKILL``.
    """

    rank: int | None
    role: str
    pid: int
    time_unix_nano: int
    type: str
    message: str

    @property
    def process(self) -> str:
        """The name of the process: ``rank 1`` or its role; empty for the program itself and its launcher."""
        return "" if self.role == "agent" else _named(self.rank, self.role)

    def __str__(self) -> str:
        said = " ".join(self.message.split())
        said = said if len(said) <= _LINE else f"{said[: _LINE - 1]}…"
        return ": ".join(filter(None, (self.type, said))) or "an exception"


class Ending(NamedTuple):
    """How a run ended; as text, a clause such as ``failed with exit code 1; rank 1 failed first: ValueError: …``.

    Attributes:
        state: ``running`` while one of its processes reports; ``finished``; ``failed``; ``killed`` by a signal;
            ``lost``: a process stopped reporting without announcing its end; ``unknown``: its programs do not announce
            their end.
        status: the exit code of the job, or the negative number of the signal that killed it; None if it is not known
            because ``tachograph run`` did not start the job or was killed itself.
        signal: the name of the signal; empty if there was none.
        failure: the process that failed first in the last attempt; None if no process reported an exception.
        lost: the names of the first few processes that stopped reporting.
    """

    state: State
    status: int | None = None
    signal: str = ""
    failure: Failure | None = None
    lost: tuple[str, ...] = ()

    @property
    def brief(self) -> str:
        """The state, with the exit code or the signal: ``failed (exit code 3)``, ``killed (SIGKILL)``."""
        if self.state == "failed" and self.status is not None:
            return f"failed (exit code {self.status})"
        return f"killed ({self.signal})" if self.state == "killed" else self.state

    def __str__(self) -> str:
        failure = self.failure
        if self.state == "failed":
            said = "failed" if self.status is None else f"failed with exit code {self.status}"
            if failure is None:
                return said
            who = f"; {failure.process} failed first" if failure.process else ""
            return f"{said}{who}: {failure}"
        if self.state == "killed":
            return f"killed by {self.signal}"
        if self.state == "lost" and self.lost:
            return f"lost: {', '.join(self.lost)} stopped reporting"
        return self.state


def ending(look: Look, found: Sequence[Member], now: int, *, written: bool) -> Ending:
    """Return how a run has ended.

    The exit code of its job decides, where ``tachograph run`` has started it. Otherwise the run goes on while a process
    of the job is heard, and then torchrun's own process decides, where there is one: a rank that was killed and started
    again has not failed. Else a process that ended with an exception makes it failed; a rank that died of SIGTERM or
    SIGINT makes it killed (where there are no ranks, any process does), and a process that fell silent makes it lost.

    Args:
        look: at its file.
        found: its processes.
        now: nanoseconds since the epoch.
        written: a hub has the file open.
    """
    job = [one for one in found if one.role != NODE]
    failures = _failures(look, job)
    first = failures[0] if failures else None
    status = _status(look, job)
    if status is not None and status < 0:
        return Ending("killed", status, signal_name(-status), first)
    if status is not None:
        return Ending("failed" if status else "finished", status, "", first if status else None)
    if written and any(not (one.newest.ended or one.newest.lost or one.newest.silent(now)) for one in job):
        return Ending("running")
    return _by_processes(job, first, lambda one: one.lost(now, written=written))


def _by_processes(job: Sequence[Member], first: Failure | None, is_lost: Callable[[Member], bool]) -> Ending:
    """Return the end of a run whose exit code is not known, once no process is heard any more."""
    deciding = [one for one in job if one.role == "agent"] or job
    if any(one.newest.ended == "exception" for one in deciding):
        return Ending("failed", None, "", first)
    ranks = [one for one in deciding if one.rank is not None] or deciding
    lost = tuple(_named(one.rank, one.role) or "the program" for one in deciding if is_lost(one))
    killed = next((_KILLED[one.newest.ended] for one in ranks if one.newest.ended in _KILLED), None)
    if killed is not None:
        return Ending("killed", None, killed.name, first)
    if lost:
        return Ending("lost", None, "", first, lost[:_FEW])
    return Ending("finished" if any(one.newest.ended for one in deciding) else "unknown")


def _status(look: Look, job: Sequence[Member]) -> int | None:
    """Return the status of the job that ended last; None where a process has begun since, or none is known."""
    begun = max((one.newest.first for one in job), default=0)
    newest = "SELECT status FROM job_end WHERE time >= ? ORDER BY time DESC LIMIT 1"
    return next((int(status) for (status,) in look.rows(newest, begun)), None)


def _failures(look: Look, job: Sequence[Member]) -> list[Failure]:
    """Return the failures of each process's newest start, the cause first.

    A launcher names the process that ended first. If that process reported no exception, it is the cause: it was
    killed, or called ``os._exit()``. Otherwise the earliest exception is the cause, but never that of a rank that lost
    the connection to a peer as long as another rank ended before. Launchers come last.
    """
    by_start = {(one.number, one.newest.pid, one.newest.restart): one for one in job}
    raised: list[Failure] = []
    reported: list[Failure] = []
    for each in read_failures(look.rows):
        one = by_start.get((each.process, each.pid, each.restart))
        if one is None:
            continue
        failure = Failure(one.rank, one.role, each.pid, each.time, each.type, each.message)
        end = _reported_end(failure, job)
        if end is None:
            raised.append(failure)
        else:  # it is listed as that process's failure, to which the launcher's own exception adds nothing
            reported.append(end)
    known = {(each.rank, each.pid) for each in raised}
    causes = [each for each in reported if (each.rank, each.pid) not in known]
    of_ranks = [each for each in raised if each.rank is not None and each.role != "agent"]
    lost_peer = [each for each in of_ranks if _LOST_PEER.search(each.message)]
    others = [each for each in of_ranks if each not in lost_peer]
    if lost_peer and not causes and not others:
        causes = _ended_first(look, job, lost_peer)
    rest = sorted((each for each in raised if each not in of_ranks), key=lambda each: each.role == "agent")
    return [*causes, *others, *lost_peer, *rest]


def _reported_end(failure: Failure, job: Sequence[Member]) -> Failure | None:
    """Return the end of another process that a launcher's failure reports; None for a failure of the process itself."""
    found = None if failure.rank is not None else _REPORTED_END.match(failure.message)
    if found is None:
        return None
    noun = found[1]
    number = int(found[2])
    pid = int(found[3])
    member = next((one for one in job if one.newest.pid == pid and (noun == "process" or one.rank == number)), None)
    rank = number if noun == "rank" else None if member is None else member.rank
    if rank is None:
        return None  # a process without a name: the launcher's own words say more
    return Failure(rank, "" if member is None else member.role, pid, failure.time_unix_nano, "", found[4] or found[5])


def _ended_first(look: Look, job: Sequence[Member], lost_peer: Sequence[Failure]) -> list[Failure]:
    """Return the rank that ended before others lost their connection to it; none where no such rank is known."""
    since = min(each.time_unix_nano for each in lost_peer)
    is_over = _status(look, job) is not None
    failed = {(each.rank, each.pid) for each in lost_peer}
    gone = []
    for one in job:
        newest = one.newest
        is_gone = newest.ended == "exit" or (not newest.ended and (newest.lost or is_over))
        if one.rank is not None and is_gone and newest.last < since and (one.rank, newest.pid) not in failed:
            gone.append(one)
    # One that fell silent was killed or called os._exit(); one that ended well only ended early.
    gone.sort(key=lambda one: (bool(one.newest.ended), one.newest.last))
    return [Failure(one.rank, one.role, one.newest.pid, one.newest.last, "", _ENDED_FIRST) for one in gone[:1]]


def failures(look: Look, found: Sequence[Member]) -> list[Failure]:
    """Return the processes that failed in the last attempt of a run, the first one first, and launchers last."""
    return _failures(look, [one for one in found if one.role != NODE])


def described(end: Ending) -> dict[str, Any]:
    """Return an ending for JSON: in words, briefly, and its parts."""
    failure = None if end.failure is None else {**end.failure._asdict(), "process": end.failure.process}
    parts = {"status": end.status, "signal": end.signal, "failure": failure, "lost": list(end.lost)}
    return {"state": end.state, "words": str(end), "brief": end.brief, **parts}


def _named(rank: int | None, role: str) -> str:
    return role if rank is None else f"rank {rank}"
