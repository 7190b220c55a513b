"""Two hubs on one store: each lets the other's runs alone."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from hub_requests import Clock, logs, metrics, number, only, rank, shown
from tachograph.hub.hub import Hub
from tachograph.runs.file_lock import Claim, is_in_use
from tachograph.runs.store import run_path

BEGIN, END = ("tachograph.process.start", {}), ("tachograph.process.end", {"reason": "exit"})
FIRST: dict[str, Any] = rank(0, run="first")


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at now: which runs a hub takes over depends on when their files were written."""
    made = Clock()
    made.now = time.time_ns()
    return made


@pytest.fixture
def first(tmp_path: Path, clock: Clock) -> Hub:
    """Return a hub with a run of one rank, which has said that it began and has exported a while."""
    hub = Hub(tmp_path, run="first", clock=clock)
    hub.receive_logs(logs(FIRST, BEGIN))
    export(hub, clock, 12)
    return hub


def export(hub: Hub, clock: Clock, times: int, *others: Hub) -> None:
    """Send one gauge a second to a hub, and let time pass for others."""
    for _ in range(times):
        clock.forward(1)
        hub.receive_metrics(metrics(FIRST, number("loss", 0.5, time=clock.now)))
        for each in (hub, *others):
            each.tick()


def starts(folder: Path) -> list[tuple[Any, ...]]:
    """Return what the first run's file says of starts: how they ended, and whether they are lost."""
    with sqlite3.connect(run_path(folder, "first")) as connection:
        found = connection.execute("SELECT ended, lost, times_lost FROM incarnation JOIN process ON id = process")
        listed = found.fetchall()
    connection.close()
    return listed


def test_a_second_hub_takes_nothing_of_a_live_one(tmp_path: Path, clock: Clock, first: Hub) -> None:
    """The run of a hub that lives is not on the page of one that starts beside it, and nobody of it is lost there."""
    second = Hub(tmp_path, run="second", clock=clock)
    export(first, clock, 60, second)
    _, page = second.page()
    assert not shown(page, "loss")
    assert not shown(page, "tachograph_process_lost_total")
    assert second.summary(at_the_end=True)["lost"] == first.summary()["lost"] == []
    assert second.summary()["runs"] == ["second"]
    first.receive_logs(logs(FIRST, END, first=2))
    first.close()
    for _ in range(60):
        clock.forward(1)
        second.tick()
    second.close()
    assert starts(tmp_path) == [("exit", 0, 0)]


def test_two_hubs_of_one_run(tmp_path: Path, clock: Clock, first: Hub) -> None:
    """Of a run that another hub writes a second one shows what it hears itself, which goes on where it was."""
    first.receive_metrics(metrics(rank(1, run="first"), number("steps", 5, kind="counter", start=1, time=clock.now)))
    export(first, clock, 6)
    second = Hub(tmp_path, run="first", clock=clock)
    export(first, clock, 60, second)
    assert second.summary(at_the_end=True)["lost"] == []
    assert not shown(second.page()[1], "loss")
    second.receive_metrics(metrics(rank(1, run="first"), number("steps", 7, kind="counter", start=9, time=clock.now)))
    assert only(second.page()[1], "steps_total") == 12
    second.close()
    first.close()
    assert (0, 0) in {(lost, times) for _, lost, times in starts(tmp_path)}
    assert not any(lost for _, lost, _ in starts(tmp_path))


def test_a_hub_that_was_killed_leaves_its_runs_to_the_next(tmp_path: Path, clock: Clock, first: Hub) -> None:
    """Of a run that nobody writes any more the next hub finds the lost ranks, and says so if the run is its own."""
    first._index.own.store._claim.release()  # as the end of its process does
    other = Hub(tmp_path, clock=clock)
    own = Hub(tmp_path, clock=clock)
    assert shown(other.page()[1], "loss")
    assert not shown(own.page()[1], "loss")
    for _ in range(60):
        clock.forward(1)
        other.tick()
    assert only(other.page()[1], "tachograph_process_lost_total") == 1
    assert other.summary(at_the_end=True)["lost"] == []
    other.close()
    assert starts(tmp_path) == [("", 1, 1)]
    again = Hub(tmp_path, run="first", clock=clock)
    assert [each["rank"] for each in again.summary()["lost"]] == [0]
    again.close()
    own.close()
    first.close()


def test_while_no_hub_listened_nobody_was_silent(tmp_path: Path, clock: Clock, first: Hub) -> None:
    """A rank that lives is not lost because its hub was away; one that does not come back is, after a while."""
    first.close()
    clock.forward(100)
    hub = Hub(tmp_path, run="first", clock=clock)
    hub.tick()
    export(hub, clock, 5)
    assert only(hub.page()[1], "tachograph_process_lost_total") == 0
    hub.close()
    hub = Hub(tmp_path, run="first", clock=clock)
    for _ in range(8 * 60):
        clock.forward(1)
        hub.tick()
    assert [each["rank"] for each in hub.summary()["lost"]] == [0]
    hub.close()


def test_who_merely_looks_is_not_in_the_way(tmp_path: Path) -> None:
    """Whoever asks whether a run is in use does not make others believe that it is."""
    path = tmp_path / "run.db"
    looks: list[Claim] = []

    def sleep(_: float) -> None:
        if looks:
            looks.pop().release()

    looks.append(Claim(path, alone=True))
    assert not is_in_use(path, sleep=sleep)
    looks.append(Claim(path, alone=True))
    first = Claim(path, sleep=sleep)
    assert looks == []
    assert is_in_use(path)
    second = Claim(path)
    assert (first.shared, second.shared) == (False, True)
    first.release()
    assert is_in_use(path)
    second.release()
    assert not is_in_use(path)
