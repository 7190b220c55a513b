"""Processes: who is lost, whose series go, and how much is kept at most."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hub_requests import START, Clock, histogram, logs, metrics, number, only, rank, shown
from tachograph.hub._series import Limits
from tachograph.hub.hub import Hub
from tachograph.studio.overview import Overview

BEGIN, END = ("tachograph.process.start", {}), ("tachograph.process.end", {"reason": "exit"})


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Hub:
    """Return a hub on an empty store."""
    return Hub(tmp_path, run="run", clock=clock)


def export(hub: Hub, clock: Clock, number_: int, times: int, **others: object) -> None:
    """Send one gauge a second."""
    for _ in range(times):
        clock.forward(1)
        hub.receive_metrics(metrics(rank(number_, **others), number("loss", 0.5, time=clock.now)))
        hub.tick()


def test_a_silent_process_is_lost(hub: Hub, clock: Clock) -> None:
    """A process that began and falls silent is listed with its last export, and the others are not."""
    for each in (0, 1):
        hub.receive_logs(logs(rank(each), BEGIN, stream=f"s{each}"))
        export(hub, clock, each, 3)
    export(hub, clock, 1, 2)
    assert hub.summary()["lost"] == []
    export(hub, clock, 1, 3)
    (lost,) = hub.summary()["lost"]
    assert (lost["rank"], lost["role"], lost["pid"]) == (0, "trainer", 100)
    assert lost["last_export"].startswith("2026-09-21T14:13:23")
    _, page = hub.page()
    assert only(page, "tachograph_process_lost_total", dl_rank="0") == 1
    assert only(page, "tachograph_process_lost_total", dl_rank="1") == 0
    assert only(page, "tachograph_process_last_export_seconds", dl_rank="0") == START / 1e9 + 3
    hub.close()


def test_an_orderly_end_is_no_loss(hub: Hub, clock: Clock) -> None:
    """A process that said that it ends, or never said that it begins, is not lost."""
    hub.receive_logs(logs(rank(0), BEGIN))
    export(hub, clock, 0, 3)
    export(hub, clock, 1, 3)
    hub.receive_logs(logs(rank(0), END, first=2))
    clock.forward(60)
    hub.tick()
    assert hub.summary(at_the_end=True)["lost"] == []
    hub.close()


def test_at_the_end_everything_that_did_not_end_is_lost(hub: Hub, clock: Clock) -> None:
    """A rank killed just before the job's end is lost, though it has not been silent for long."""
    hub.receive_logs(logs(rank(0), BEGIN))
    export(hub, clock, 0, 1)
    assert hub.summary()["lost"] == []
    assert [each["rank"] for each in hub.summary(at_the_end=True)["lost"]] == [0]
    hub.close()


def test_who_comes_back_with_another_pid_was_lost(hub: Hub, clock: Clock) -> None:
    """A rank that starts anew without having ended was lost; one that had ended was not, if we hear of it late."""
    for each in (0, 1):
        hub.receive_logs(logs(rank(each), BEGIN, stream=f"s{each}"))
        export(hub, clock, each, 1)
        export(hub, clock, each, 1, pid=500 + each, restart=1)
    assert [each["pid"] for each in hub.summary()["lost"]] == [100, 101]
    hub.receive_logs(logs(rank(1), END, stream="s1", first=2))
    assert [each["pid"] for each in hub.summary()["lost"]] == [100]
    _, page = hub.page()
    assert only(page, "target_info", dl_rank="0", process_pid="500") == 1
    hub.close()


def test_late_data_of_a_replaced_process(hub: Hub) -> None:
    """What a replaced process sent comes late: it counts, and does not take the newer one's place."""
    for each, pid in ((0, 1), (1, 2)):
        point = number("steps", 5 + each, kind="counter", start=START + 10 * each, time=START + 10 * each + 5)
        hub.receive_metrics(metrics(rank(0, pid=pid, restart=each), point))
    late = number("steps", 8, kind="counter", start=START, time=START + 9)
    hub.receive_metrics(metrics(rank(0, pid=1), late))
    _, page = hub.page()
    assert only(page, "steps_total") == 14
    assert only(page, "target_info", process_pid="2") == 1
    hub.close()


def test_who_is_heard_again_is_not_lost(hub: Hub, clock: Clock) -> None:
    """A process that was stopped and goes on is off the list; that it was lost stays counted."""
    hub.receive_logs(logs(rank(0), BEGIN))
    export(hub, clock, 0, 3)
    clock.forward(30)
    hub.tick()
    assert len(hub.summary()["lost"]) == 1
    export(hub, clock, 0, 1)
    assert hub.summary()["lost"] == []
    assert only(hub.page()[1], "tachograph_process_lost_total") == 1
    hub.close()


def test_lost_processes_are_remembered(tmp_path: Path, clock: Clock) -> None:
    """A hub that begins on the same store knows who was lost."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), BEGIN))
    export(hub, clock, 0, 3)
    clock.forward(30)
    hub.tick()
    hub.close()
    hub = Hub(tmp_path, run="run", clock=clock)
    assert [each["rank"] for each in hub.summary()["lost"]] == [0]
    assert only(hub.page()[1], "tachograph_process_lost_total") == 1
    hub.close()


def test_series_of_an_ended_process_disappear(hub: Hub, clock: Clock) -> None:
    """After the time to live an ended process is off the page; one that lives stays, less what it no longer sends."""
    hub.receive_metrics(metrics(rank(0), number("loss", 0.5), histogram("step", [1, 0, 0])))
    hub.receive_metrics(metrics(rank(1), number("old", 0.5)))
    for _ in range(18):
        clock.forward(20)
        hub.receive_metrics(metrics(rank(1), number("loss", 0.5, time=clock.now)))
        hub.tick()
    _, page = hub.page()
    assert [dict(labels)["dl_rank"] for labels in shown(page, "loss")] == ["1"]
    assert not shown(page, "old")
    assert len(shown(page, "target_info")) == 1
    assert b"step" not in page
    hub.close()


def test_a_long_interval_is_no_end(hub: Hub, clock: Clock) -> None:
    """The series of a process that exports every ten minutes stay on the page."""
    for _ in range(4):
        hub.receive_metrics(metrics(rank(0), number("loss", 0.5, time=clock.now)))
        clock.forward(600)
        hub.receive_metrics(metrics(rank(0), number("loss", 0.5, time=clock.now)))
        hub.tick()
        clock.forward(590)
        hub.tick()
        assert shown(hub.page()[1], "loss")
        clock.forward(10)
    hub.close()


def test_the_number_of_series_is_limited(tmp_path: Path) -> None:
    """Points of series beyond the limit are rejected and counted; those that are there go on."""
    hub = Hub(tmp_path, run="run", limits=Limits(series=10))
    sent = [number("n", index, attributes={"i": str(index)}) for index in range(15)]
    assert hub.receive_metrics(metrics(rank(0), *sent)).items == 5
    assert hub.receive_metrics(metrics(rank(0), *sent[:10])).items == 0
    _, page = hub.page()
    assert len(shown(page, "n")) == 10
    assert only(page, "tachograph_dropped_total", reason="cardinality") == 5
    assert hub.summary()["dropped"] == 5
    hub.close()


def test_memory_of_churning_series_is_bounded(tmp_path: Path, clock: Clock) -> None:
    """Runs, processes and series that come and go leave nothing behind in memory."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for turn in range(30):
        names = [number(f"n{turn}.{index}", 1, attributes={"i": str(index)}) for index in range(20)]
        hub.receive_metrics(metrics(rank(turn, run=f"run{turn % 7}"), *names))
        clock.forward(100)
        hub.tick()
    index = hub._index
    assert len(index.series) <= 100
    assert len(index.instruments) <= 100
    assert len(index.processes()) <= 5
    assert len(index.stored()) <= 6
    hub.close()


def test_two_processes_with_the_same_labels(hub: Hub) -> None:
    """Where rank, role and run do not tell two processes apart, the second one's instance id does."""
    for name in ("a", "b"):
        hub.receive_metrics(metrics({"service.name": name, "host.name": "h"}, number("loss", 0.5)))
    found = shown(hub.page()[1], "loss")
    assert sorted("service_instance_id" in dict(labels) for labels in found) == [False, True]
    hub.close()


def test_the_summary(hub: Hub, tmp_path: Path) -> None:
    """At its end a hub says what it received, what the processes dropped, and where it is stored."""
    dropped = number("tachograph.dropped", 3, kind="counter", unit="{item}")
    hub.receive_metrics(metrics(rank(0), dropped, scope="tachograph"))
    hub.receive_metrics(metrics(rank(0), number("loss", 0.5), number("acc", 0.5)))
    hub.receive_logs(logs(rank(0), ("e", {})))
    summary = hub.summary()
    assert summary["run"] == "run"
    assert (summary["data_points"], summary["log_records"], summary["dropped"]) == (3, 1, 3)
    assert summary["store"] == str(tmp_path / "runs" / "run.db")
    hub.close()
    hub.close()
    hub.tick()


def test_the_hub_that_shows_a_run_later_is_not_its_program(tmp_path: Path, clock: Clock) -> None:
    """Name, start and duration in the list are the job's, though a later hub has added metrics of its own node."""
    with contextlib.closing(Hub(tmp_path, run="a-run", clock=clock)) as hub:
        for seconds in (0, 30):
            clock.forward(seconds)
            hub.receive_metrics(metrics({**rank(0), "service.name": "train"}, number("loss", 1.0, time=clock.now)))
    clock.forward(3600)
    with contextlib.closing(Hub(tmp_path, run="a-run", clock=clock)) as hub:
        node = {"service.instance.id": "node", "dl.role": "node", "dl.run.id": "a-run", "service.name": "tachograph"}
        hub.receive_metrics(metrics(node, number("system.cpu.time", 1.0, time=clock.now)))
    (entry,) = Overview(tmp_path, clock, lambda: False).runs()
    assert (entry["program"], entry["seconds"]) == ("train", 30)
