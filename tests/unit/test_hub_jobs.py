"""Jobs that follow each other under one run's id: what is said of the life of the second is true."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hub_requests import Clock, logs, metrics, number, only, rank, shown
from tachograph.hub.hub import Hub
from tachograph.runs.ending import find_ending
from tachograph.runs.file import RunFile, look
from tachograph.runs.members import read_members

BEGIN, END = ("tachograph.process.start", {}), ("tachograph.process.end", {"reason": "exit"})


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


def live(hub: Hub, clock: Clock, stream: str, seconds: int = 3, *, ends: bool = True, **who: Any) -> None:
    """Let a start of rank 0 begin, export each second, and end in an orderly way."""
    begin(hub, clock, stream, **who)
    for _ in range(seconds):
        clock.forward(1)
        hub.receive_metrics(metrics(rank(0, **who), number("loss", 0.5, time=clock.now)))
        hub.tick()
    if ends:
        hub.receive_logs(logs(rank(0, **who), END, stream=stream, first=2))


def begin(hub: Hub, clock: Clock, stream: str, **who: Any) -> None:
    """Let a start of rank 0 say that it begins, now."""
    request = logs(rank(0, **who), BEGIN, stream=stream)
    request.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = clock.now
    hub.receive_logs(request)


def stands(hub: Hub, clock: Clock) -> tuple[str, list[tuple[int, int, str, bool]]]:
    """Return how the run stands by its file, and its starts: pid, restart, how it ended, whether it is lost."""
    with look(RunFile(hub.store)) as reading:
        found = read_members(reading)
        state = find_ending(reading, found, clock.now, written=True).state
    return state, [(each.pid, each.restart, each.ended, each.lost) for each in found[0].starts]


@pytest.mark.parametrize("pause", [0.5, 600])
@pytest.mark.parametrize("anew", [False, True])
def test_a_job_after_one_that_was_restarted(tmp_path: Path, clock: Clock, pause: float, anew: bool) -> None:
    """The next job begins at restart 0, where the one before had come to 1; it is not lost, but killed ones are."""
    hub = Hub(tmp_path, run="run", clock=clock)
    live(hub, clock, "a", pid=100)
    live(hub, clock, "b", pid=200, restart=1, ends=anew)
    clock.forward(pause)
    if anew:
        hub.close()
        hub = Hub(tmp_path, run="run", clock=clock)
    live(hub, clock, "c", 12, pid=300, ends=False)
    assert [each["pid"] for each in hub.summary()["lost"]] == ([] if anew else [200])
    assert only(hub.page()[1], "target_info", dl_rank="0", process_pid="300") == 1
    assert stands(hub, clock) == (
        "running",
        [(100, 0, "exit", False), (200, 1, "exit" * anew, not anew), (300, 0, "", False)],
    )
    for _ in range(60):
        clock.forward(1)
        hub.tick()
    assert [each["pid"] for each in hub.summary()["lost"]][-1] == 300
    assert only(hub.page()[1], "tachograph_process_lost_total") == (1 if anew else 2)
    assert stands(hub, clock)[0] == "lost"
    hub.close()


def test_a_program_that_says_nothing_of_its_start(tmp_path: Path, clock: Clock) -> None:
    """Whoever sends metrics only takes the place of one that has ended or is silent, and of no other."""
    hub = Hub(tmp_path, run="run", clock=clock)
    live(hub, clock, "a", pid=200, restart=1, ends=False)
    hub.receive_metrics(metrics(rank(0, pid=100), number("loss", 0.5, time=clock.now)))
    assert only(hub.page()[1], "target_info", process_pid="200") == 1
    clock.forward(30)
    hub.receive_metrics(metrics(rank(0, pid=300), number("loss", 0.5, time=clock.now)))
    assert only(hub.page()[1], "target_info", process_pid="300") == 1
    hub.close()


def test_word_of_an_earlier_start_that_comes_late(tmp_path: Path, clock: Clock) -> None:
    """A start whose beginning becomes known after the next one's does not take its place: it is lost."""
    hub = Hub(tmp_path, run="run", clock=clock)
    early = logs(rank(0, pid=100), BEGIN, stream="a")
    early.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = clock.now
    clock.forward(5)
    live(hub, clock, "b", pid=200, restart=1, ends=False)
    hub.receive_logs(early)
    assert [each["pid"] for each in hub.summary()["lost"]] == [100]
    assert only(hub.page()[1], "target_info", process_pid="200") == 1
    hub.close()


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_job_with_the_same_pid(tmp_path: Path, clock: Clock, anew: bool, ends: bool) -> None:
    """In a container the next job has the pid of the one before: it runs, and is lost when it is killed."""
    hub = Hub(tmp_path, run="run", clock=clock)
    live(hub, clock, "a", ends=ends)
    for _ in range(60):
        clock.forward(10)
        hub.tick()
    if anew:
        hub.close()
        hub = Hub(tmp_path, run="run", clock=clock)
    live(hub, clock, "b", 12, ends=False, slurm="2")
    first = [] if ends or anew else [100]  # which this hub has seen fall silent
    assert [each["pid"] for each in hub.summary()["lost"]] == first
    assert stands(hub, clock) == ("running", [(100, 0, "", False)])
    assert only(hub.page()[1], "target_info", slurm="2") == 1
    for _ in range(60):
        clock.forward(1)
        hub.tick()
    assert [each["pid"] for each in hub.summary()["lost"]] == [*first, 100]
    assert stands(hub, clock) == ("lost", [(100, 0, "", True)])
    hub.close()


def test_a_beginning_that_comes_after_its_end(tmp_path: Path, clock: Clock) -> None:
    """Where the requests of one start change places it has ended all the same."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), END, stream="a", first=2))
    hub.receive_logs(logs(rank(0), BEGIN, stream="a"))
    clock.forward(60)
    hub.tick()
    assert hub.summary(at_the_end=True)["lost"] == []
    assert stands(hub, clock) == ("finished", [(100, 0, "exit", False)])
    hub.close()


def test_a_hub_that_is_killed_at_the_end_of_a_rank(tmp_path: Path, clock: Clock) -> None:
    """An event that says how a process ended, and that it has ended, are stored together: both or none."""
    hub = Hub(tmp_path / "store", run="run", clock=clock)
    live(hub, clock, "a", 6, ends=False)
    hub.receive_logs(logs(rank(0), END, stream="a", first=2))
    shutil.copytree(tmp_path / "store", tmp_path / "killed")  # nothing but that request is saved since: no tick came
    hub.close()
    clock.forward(3)
    hub = Hub(tmp_path / "killed", run="run", clock=clock)
    hub.receive_logs(logs(rank(0), END, stream="a", first=2))
    assert len(hub.events("run").read("tachograph.process.end")) == 1
    for _ in range(60):
        clock.forward(1)
        hub.tick()
    assert hub.summary(at_the_end=True)["lost"] == []
    assert shown(hub.page()[1], "tachograph_process_lost_total") == {
        (("dl_rank", "0"), ("dl_role", "trainer"), ("dl_run_id", "run"), ("otel_scope_name", "tachograph")): 0
    }
    assert stands(hub, clock)[0] == "finished"
    hub.close()


def test_gauges_of_a_rank_that_has_ended_leave_the_page(tmp_path: Path, clock: Clock) -> None:
    """A minute after its end, while the job goes on; counters stay, and after a restart the gauges are there again."""
    hub = Hub(tmp_path, run="run", clock=clock)

    def send(member: int, **who: Any) -> None:
        values = number("loss", 0.5), number("steps", 7, kind="counter")
        hub.receive_metrics(metrics(rank(member, **who), *values))

    def ranks(name: str) -> list[str]:
        return sorted(dict(labels)["dl_rank"] for labels in shown(hub.page()[1], name))

    for member in (0, 1):
        hub.receive_logs(logs(rank(member), BEGIN, stream=f"s{member}", time=clock()))
        send(member)
    hub.receive_logs(logs(rank(1), END, stream="s1", first=2))
    send(1)
    for _ in range(59):
        clock.forward(1)
        send(0)
        hub.tick()
    assert ranks("loss") == ["0", "1"]
    for _ in range(3):
        clock.forward(1)
        send(0)
        hub.tick()
    assert (ranks("loss"), ranks("steps_total")) == (["0"], ["0", "1"])
    hub.receive_logs(logs(rank(1, pid=300, restart=1), BEGIN, stream="s2", time=clock()))
    send(1, pid=300, restart=1)
    assert ranks("loss") == ["0", "1"]
    hub.close()


def test_an_end_that_could_not_be_stored(tmp_path: Path, clock: Clock) -> None:
    """Where the file refuses the end of a process nothing of it is stored, and it counts once it comes again."""
    hub = Hub(tmp_path, run="run", clock=clock)
    live(hub, clock, "a", 6, ends=False)
    other = sqlite3.connect(hub.store, isolation_level=None)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON incarnation BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(OSError, match="full"):
        hub.receive_logs(logs(rank(0), END, stream="a", first=2))
    other.execute("DROP TRIGGER full")
    other.close()
    assert hub.events("run").read("tachograph.process.end") == []
    assert len(hub.summary(at_the_end=True)["lost"]) == 1
    hub.receive_logs(logs(rank(0), END, stream="a", first=2))
    assert hub.summary(at_the_end=True)["lost"] == []
    hub.close()


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 30])
def test_a_rank_of_thousands_of_digits(tmp_path: Path, clock: Clock, text: str) -> None:
    """What is no number of a rank is none: the summary and the list of processes are there all the same."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs({**rank(0), "dl.rank": text}, BEGIN))
    hub.receive_metrics(metrics({**rank(0), "dl.rank": text}, number("loss", 0.5)))
    assert [each["rank"] for each in hub.summary(at_the_end=True)["lost"]] == [None]
    with look(RunFile(hub.store)) as reading:
        assert [each.rank for each in read_members(reading)] == [None]
    hub.close()
