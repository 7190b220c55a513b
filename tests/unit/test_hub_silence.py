"""Series that nobody sends for a while: what was counted goes on from there, and nothing stays that nobody needs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hub_requests import START, Clock, histogram, metrics, number, only, rank, shown
from tachograph.hub._series import Limits
from tachograph.hub.hub import Hub
from tachograph.runs.store import run_path


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


def silence(hub: Hub, clock: Clock, *, start: int = 1) -> None:
    """Let seven minutes pass in which rank 0 sends a gauge, and nothing else."""
    for _ in range(42):
        clock.forward(10)
        hub.receive_metrics(metrics(rank(0), number("loss", 0.5, time=clock.now, start=start)))
        hub.tick()


def stored(folder: Path, name: str) -> list[tuple[float, float | None]]:
    """Return what the samples of a metric add up to."""
    with sqlite3.connect(run_path(folder, "run")) as connection:
        query = "SELECT sum(value), sum(total) FROM sample JOIN series ON id = series WHERE name = ?"
        found = connection.execute(query, (name,)).fetchall()
    connection.close()
    return found


@pytest.mark.parametrize("anew", [False, True])
def test_counters_go_on_after_a_silence(tmp_path: Path, clock: Clock, anew: bool) -> None:
    """A series that left the page goes on where it was, with a hub that began anew in between, too."""
    hub = Hub(tmp_path, run="run", clock=clock)
    began = clock.now
    clock.forward(1)
    sent = [
        number("sent", 100, kind="counter", delta=True, start=began, time=clock.now),
        number("calls", 12, kind="counter", start=began, time=clock.now, attributes={"of": ["a", 1, True]}),
        histogram("save", [10, 2, 0], total=6.0, start=began, time=clock.now),
    ]
    hub.receive_metrics(metrics(rank(0), *sent))
    hub.tick()
    silence(hub, clock)
    assert not shown(hub.page()[1], "calls_total")
    if anew:
        hub.close()
        hub = Hub(tmp_path, run="run", clock=clock)
        assert not shown(hub.page()[1], "calls_total")
    start = clock.now
    clock.forward(1)
    sent = [
        number("sent", 1, kind="counter", delta=True, start=start, time=clock.now),
        number("calls", 1, kind="counter", start=start, time=clock.now, attributes={"of": ["a", 1, True]}),
        number("calls", 7, kind="counter", start=start, time=clock.now, attributes={"of": "others"}),
        histogram("save", [0, 0, 1], total=3.0, start=start, time=clock.now),
    ]
    hub.receive_metrics(metrics(rank(0, pid=7, restart=1), *sent))
    _, page = hub.page()
    assert only(page, "sent_total") == 101
    assert sorted(shown(page, "calls_total").values()) == [7, 13]
    assert (only(page, "save_seconds_count"), only(page, "save_seconds_sum")) == (13, 9.0)
    hub.close()
    assert stored(tmp_path, "save") == [(13.0, 9.0)]


def test_a_state_that_is_not_legible_any_more(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Where the state of a series was spoiled meanwhile it begins anew, and the log says so once."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_metrics(metrics(rank(0), *[number(name, 5, kind="counter") for name in ("a", "b")]))
    hub.tick()
    silence(hub, clock)
    with sqlite3.connect(run_path(tmp_path, "run")) as connection:
        connection.execute("UPDATE state SET data = '[1, 2, [3], null, null, null, [0, 0, 0], 0]'")
    connection.close()
    for name in ("a", "b"):
        hub.receive_metrics(metrics(rank(0), number(name, 1, kind="counter", start=clock.now, time=clock.now + 1)))
        assert only(hub.page()[1], f"{name}_total") == 1
    assert caplog.text.count("starting from zero") == 1
    hub.close()


def test_only_series_that_may_be_known_are_looked_up(tmp_path: Path, clock: Clock) -> None:
    """The series of a process that is new, or whose series are all on the page, cost no query each."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_metrics(metrics(rank(0), number("a", 1)))
    hub.close()
    hub = Hub(tmp_path, run="run", clock=clock)
    looked: list[str] = []
    connection = hub._index.own.store._connection
    connection.set_trace_callback(looked.append)
    hub.receive_metrics(metrics(rank(0), *[number(f"n{index}", 1) for index in range(50)]))
    assert looked == []
    connection.set_trace_callback(None)
    hub.close()


def test_nothing_is_measured_before_something_came(tmp_path: Path, clock: Clock) -> None:
    """A hub that begins anew compares what ranks measure from then on, not their history."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for each, total in ((0, 1.0), (1, 500.0)):
        hub.receive_metrics(metrics(rank(each), histogram("step", [100, 0, 0], total=total)))
    hub.close()
    hub = Hub(tmp_path, run="run", clock=clock)
    assert shown(hub.page()[1], "step_seconds_count")
    assert b"step_slowest_rank" not in hub.page()[1]
    for each, total in ((0, 1.0 + 4.0), (1, 500.0 + 2.0)):
        hub.receive_metrics(metrics(rank(each), histogram("step", [102, 0, 0], total=total, time=START + 1)))
    _, page = hub.page()
    assert only(page, "step_slowest_rank") == 0
    assert only(page, "step_by_rank_seconds", aggregation="max") == 2.0
    hub.close()


def test_who_got_no_series_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    """Processes and files of runs whose series found no room, or whose metrics had no points, go after a while."""
    hub = Hub(tmp_path, run="run", clock=clock, limits=Limits(series=1))
    empty = number("empty", 1)
    del empty.gauge.data_points[:]
    for index in range(20):
        clock.forward(1)
        own = f"run{index}"
        hub.receive_metrics(metrics(rank(index, run=own), number("loss", 0.5, time=clock.now), empty))
        hub.receive_metrics(metrics(rank(0), *[number(f"n{index}.{each}", 1) for each in range(3)], empty))
    known = hub._index
    assert (len(known.series), len(known.stored())) == (1, 21)
    for _ in range(40):
        clock.forward(10)
        hub.receive_metrics(metrics(rank(0), empty))
        hub.tick()
    (process,) = known.processes()
    assert process.streams == {}
    assert [run.name for run in known.stored()] == ["run"]
    hub.close()
