"""How a run has ended: the exit code of its job decides, else what its processes said of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import SECOND, START, Clock, logs, metrics, number, rank
from places import ROOT
from run_ends import table
from tachograph import runs
from tachograph.hub.hub import Hub
from tachograph.identity.launch import Launch
from tachograph.identity.program import StartMarks, note_status, signal_name
from tachograph.runs.ending import Ending, Failure
from tachograph.runs.file import RunFile, look
from tachograph.runs.members import find_job_name, read_members
from tachograph.studio.overview import Overview

BEGIN = ("tachograph.process.start", {})


def say(hub: Hub, member: int, *ends: str, role: str = "trainer", failure: Sequence[str] = (), **who: Any) -> None:
    """Let a process begin, tell its exception, and end for a reason; without one it falls silent."""
    resource = {**rank(member, **who), "dl.role": role}
    if role == "agent":
        del resource["dl.rank"]
    stream = f"{member}{who.get('pid')}"
    hub.receive_logs(logs(resource, BEGIN, stream=stream))
    hub.receive_metrics(metrics(resource, number("loss", 1.0)))
    if failure:
        told = dict(zip(("exception.type", "exception.message"), failure, strict=False))
        hub.receive_logs(logs(resource, ("tachograph.process.failure", told), stream=f"{stream}.life"))
    for reason in ends:
        hub.receive_logs(logs(resource, ("tachograph.process.end", {"reason": reason}), stream=stream, first=2))


def ended(folder: Path, run: str = "run") -> Ending:
    """Return how the run has ended."""
    return runs.open(run, folder).ended


@pytest.mark.parametrize(
    ("said", "state", "words"),
    [
        ([("exit",), ("exit",)], "finished", "finished"),
        ([("exit",), ("exception",)], "failed", "failed"),
        ([("sigterm",), ("exception",)], "failed", "failed"),
        ([("sigterm",), ("sigterm",)], "killed", "killed by SIGTERM"),
        ([("sigint",), ()], "killed", "killed by SIGINT"),
        ([("exit",), ()], "lost", "lost: rank 1 stopped reporting"),
        ([("a reason of a later version",)], "finished", "finished"),
    ],
)
def test_processes_tell_it(tmp_path: Path, said: list[tuple[str, ...]], state: str, words: str) -> None:
    """Where no exit code is known an exception outweighs a signal, and that one silence."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    for member, reasons in enumerate(said):
        say(hub, member, *reasons)
    hub.close()
    assert (ended(tmp_path).state, str(ended(tmp_path))) == (state, words)
    (listed,) = runs.list(tmp_path)
    assert listed.ended == ended(tmp_path)


def test_torchruns_own_process_knows_better(tmp_path: Path) -> None:
    """A rank that was killed and started again has not failed; and the agent's word on the others comes last."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    say(hub, 0, "exception", failure=("ValueError", "the first attempt"))
    say(hub, 0, "exit", pid=200, restart=1)
    say(hub, 1, "exit", role="agent")
    hub.close()
    assert str(ended(tmp_path)) == "finished"
    assert runs.open("run", tmp_path).failures == []


def test_the_first_failure_of_the_last_attempt(tmp_path: Path) -> None:
    """Launchers tell what a rank has told better; of several ranks the earlier one counts."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    say(hub, 9, "exception", role="agent", failure=("ChildFailedError", "rank 1"))
    for member, time in ((0, START + 2 * SECOND), (1, START + SECOND)):
        who = rank(member)
        hub.receive_logs(logs(who, BEGIN, stream=f"s{member}"))
        told = logs(who, ("tachograph.process.failure", {"exception.type": "KeyError"}), stream=f"s{member}.life")
        told.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = time
        hub.receive_logs(told)
    hub.close()
    assert [each.rank for each in runs.open("run", tmp_path).failures] == [1, 0, None]
    assert str(ended(tmp_path)) == "failed; rank 1 failed first: KeyError"


def test_a_killed_rank_is_the_cause(tmp_path: Path) -> None:
    """A rank that was killed says nothing; torchrun tells it, before the exceptions of those that lost it."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    say(hub, 0, "exception", failure=("RuntimeError", "Connection reset by peer"))
    say(hub, 9, "exception", role="agent", failure=("ChildFailedError", "rank 1 (pid 7) was killed by SIGABRT"))
    hub.close()
    assert str(ended(tmp_path)) == "failed; rank 1 failed first: killed by SIGABRT"


LOST = ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:30442.")


@pytest.mark.parametrize(
    ("launcher", "report", "expected"),
    [
        ("agent", ("ChildFailedError", "rank 1 (pid 101) ended with exit code 3"), "exit code 3"),
        ("agent", ("ChildFailedError", "rank 1 (pid 101) was killed by SIGSEGV"), "killed by SIGSEGV"),
        ("", ("ProcessExitedException", "process 1 (pid 101) ended with exit code 3"), "exit code 3"),
        # Both ended within one of the agent's polls, and torch names the lowest rank then.
        (
            "agent",
            ("ChildFailedError", "rank 0 (pid 100) ended with exit code 1"),
            "ended before the others without an exception",
        ),
        ("", ("RuntimeError", "a launcher of another library"), "ended before the others without an exception"),
    ],
)
def test_a_rank_that_reports_no_exception_is_the_cause(
    tmp_path: Path, launcher: str, report: tuple[str, str], expected: str
) -> None:
    """Rank 1 calls ``os._exit()`` or is killed: rank 0, which lost its connection to it, never failed first."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    say(hub, 1, pid=101)
    clock.forward(1)
    say(hub, 0, pid=100)
    lost = logs(
        rank(0, pid=100),
        ("tachograph.process.failure", dict(zip(("exception.type", "exception.message"), LOST, strict=True))),
        stream="0.life",
        time=clock() + SECOND,
    )
    hub.receive_logs(lost)
    hub.receive_logs(
        logs(rank(0, pid=100), ("tachograph.process.end", {"reason": "exception"}), stream="0100", first=2)
    )
    agent = {**rank(0, pid=99, **{"dl.role": launcher, "service.instance.id": "launcher"})}
    del agent["dl.rank"]
    hub.receive_logs(logs(agent, BEGIN, stream="launcher"))
    told = dict(zip(("exception.type", "exception.message"), report, strict=True))
    hub.receive_logs(
        logs(agent, ("tachograph.process.failure", told), stream="launcher.life", time=clock() + 2 * SECOND)
    )
    hub.receive_logs(logs(agent, ("tachograph.process.end", {"reason": "exception"}), stream="launcher", first=2))
    clock.forward(600)
    hub.tick()
    hub.close()
    assert str(ended(tmp_path)) == f"failed; rank 1 failed first: {expected}"
    found = runs.open("run", tmp_path).failures
    assert [each.rank for each in found[:2]] == [1, 0]


def test_a_lost_connection_is_a_consequence(tmp_path: Path) -> None:
    """The exception of another rank comes first, though its clock is ahead; a rank that ends well later does not."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    say(hub, 0, "exception", failure=LOST)
    clock.forward(10)
    say(hub, 2, "exit")
    assert str(ended(tmp_path)).startswith("failed; rank 0 failed first: RuntimeError")
    told = {"exception.type": "ValueError", "exception.message": "boom"}
    hub.receive_logs(logs(rank(1), BEGIN, stream="s1"))
    hub.receive_logs(logs(rank(1), ("tachograph.process.failure", told), stream="s1.life", time=START + 60 * SECOND))
    assert str(ended(tmp_path)) == "failed; rank 1 failed first: ValueError: boom"
    hub.close()


def test_a_start_that_begins_anew_has_not_failed_yet(tmp_path: Path) -> None:
    """In a container the next job has the pid of the one before: its exception is not told of this one."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    say(hub, 0, "exception", failure=("ValueError", "boom"))
    assert str(ended(tmp_path)) == "failed; rank 0 failed first: ValueError: boom"
    hub.receive_logs(logs(rank(0), BEGIN, stream="next"))
    assert ended(tmp_path).failure is None
    hub.close()


@given(status=st.integers(-64, 255))
def test_the_exit_code_of_the_job_decides(tmp_path_factory: pytest.TempPathFactory, status: int) -> None:
    """Whatever its processes said: 0 is finished, others are failed, and those of signals killed."""
    folder = tmp_path_factory.mktemp("ends")
    note_status(folder, status)
    hub = Hub(folder, run="run", clock=lambda: START, started=StartMarks(folder))
    say(hub, 0, "exception", failure=("ValueError", "boom"))
    say(hub, 1)
    hub.job_ended()
    kept = hub.kept()["ended"]
    hub.close()
    found = ended(folder)
    assert found.status == status
    assert (kept["state"], kept["brief"]) == (found.state, found.brief)
    if status < 0:
        assert (found.state, found.brief) == ("killed", f"killed ({signal_name(-status)})")
    else:
        assert found.state == ("failed" if status else "finished")
        assert (found.failure is not None) is bool(status)


def test_a_run_that_goes_on_is_running(tmp_path: Path) -> None:
    """The next job of the same run: the exit code of the one before is not its own."""
    clock = Clock()
    note_status(tmp_path, 3)
    hub = Hub(tmp_path, run="run", clock=clock, started=StartMarks(tmp_path))
    say(hub, 0, "exception", failure=("ValueError", "boom"))
    hub.job_ended()
    assert ended(tmp_path).brief == "failed (exit code 3)"
    clock.forward(10)
    say(hub, 0, "exit", pid=300)
    assert ended(tmp_path) == Ending("finished")
    hub.close()


@pytest.mark.parametrize("wrong", ["", "three", "3 3", "9" * 5000])
def test_a_status_that_is_none_is_not_known(tmp_path: Path, wrong: str) -> None:
    """A job may write anything into the folder of the marks."""
    (tmp_path / "status").write_text(wrong)
    hub = Hub(tmp_path, run="run", clock=lambda: START, started=StartMarks(tmp_path))
    say(hub, 0, "exit")
    hub.job_ended()
    hub.close()
    assert ended(tmp_path) == Ending("finished")


def test_only_the_own_run_is_counted_at_the_end(tmp_path: Path) -> None:
    """The store may have other runs, and the hub may hold them: the last line of ``run`` is about its own."""
    other = Hub(tmp_path, run="other", clock=lambda: START)
    other.receive_logs(logs(rank(0, run="other"), ("e", {}), ("e", {}), stream="o"))
    other.close()
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    hub.receive_logs(logs(rank(0, run="other"), ("e", {}), stream="p"))
    hub.receive_logs(logs(rank(0), ("e", {}), stream="s"))
    assert hub.kept()["events"] == 1
    hub.close()


def test_a_long_message_is_a_line(tmp_path: Path) -> None:
    """What a sender does not bound the hub does; in words it is one line of 200 characters."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    say(hub, 0, "exception", failure=("E" * 1000, "a\n" * 5000))
    hub.close()
    failure = ended(tmp_path).failure
    assert failure is not None
    assert (len(failure.type), len(failure.message)) == (200, 2000)
    assert "\n" not in str(failure)
    assert str(Failure(None, "", 1, 1, "", "")) == "an exception"


def test_the_documents_have_the_table_of_ends() -> None:
    """Each of its rows is tried in ``tests/system/test_run_ends.py``."""
    assert table() in (ROOT / "docs" / "runs.md").read_text()


NODE = {"service.name": "tachograph", "service.instance.id": "n", "dl.run.id": "run", "dl.role": "node"}


@pytest.mark.parametrize(
    ("argv", "named", "expected"),
    [
        (["torchrun", "--nproc-per-node", "2", "train.py"], "", "train"),
        (["/usr/bin/python3", "-m", "pkg.trainer", "--lr", "1"], "", "pkg.trainer"),
        (["python", "-c", "pass"], "", "python"),
        (["accelerate", "launch", "train.py"], "train", "train"),
        ([], "train", "train"),
        ([], "", ""),
    ],
)
def test_the_program_is_the_jobs(tmp_path: Path, argv: list[str], named: str, expected: str) -> None:
    """A run goes by the name of a process of the job, else of its command: never by the hub's own name."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    if argv:
        hub.launched(Launch(START, "here", {"argv": argv}, (), ""))
    hub.receive_metrics(metrics(NODE, number("system.cpu.utilization", 0.5)), own=True)
    if named:
        hub.receive_metrics(metrics(rank(0, **{"service.name": named}), number("loss", 0.5)))
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        assert find_job_name(reading.rows, read_members(reading)) == expected


def test_a_job_that_never_reported_is_on_the_page(tmp_path: Path) -> None:
    """Where it was killed before its first export, too: with its name, and how it ended."""
    note_status(tmp_path, -9)
    hub = Hub(tmp_path, run="run", clock=lambda: START, started=StartMarks(tmp_path))
    hub.launched(Launch(START, "here", {"argv": ["python", "train.py"]}, (), ""))
    assert Overview(tmp_path, lambda: START, lambda: False).runs() == []
    hub.job_ended()
    hub.close()
    (entry,) = Overview(tmp_path, lambda: START, lambda: False).runs()
    assert (entry["program"], entry["ended"]["words"]) == ("train", "killed by SIGKILL")
    assert (entry["started"], entry["last"]) == (START, START)  # whenever the file is opened
