"""Whose hub: one of a job has its run on the page, one that stands alone every run that is live."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hub_requests import Clock, histogram, logs, metrics, number, only, rank, shown
from tachograph import runs
from tachograph.hub.hub import Hub
from tachograph.runs.store import StoreError, run_path

BEGIN, END = ("tachograph.process.start", {}), ("tachograph.process.end", {"reason": "exit"})


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at now: which runs a hub takes over depends on when their files were written."""
    made = Clock()
    made.now = time.time_ns()
    return made


def begin(hub: Hub, run: str, *, of: int = 0) -> None:
    """Let a rank of a run say that it begins."""
    hub.receive_logs(logs(rank(of, run=run), BEGIN, stream=f"{run}-{of}"))


def end(hub: Hub, run: str, *, of: int = 0) -> None:
    """Let it say that it ends."""
    hub.receive_logs(logs(rank(of, run=run), END, stream=f"{run}-{of}", first=2))


def export(hub: Hub, clock: Clock, times: int, *names: str) -> None:
    """Let rank 0 of some runs send a gauge, a counter and a duration a second."""
    for _ in range(times):
        clock.forward(1)
        for run in names:
            steps = number("steps", 5, kind="counter", time=clock.now)
            sent = [number("loss", 0.5, time=clock.now), steps, histogram("step", [1, 0, 0], total=0.5, time=clock.now)]
            hub.receive_metrics(metrics(rank(0, run=run), *sent))
        hub.tick()


def on_page(hub: Hub, scraper: str = "") -> set[str]:
    """Return the runs on a page, which has all of each, or nothing."""
    page = hub.page(scraper=scraper)[1]
    names = ("loss", "steps_total", "target_info", "tachograph_process_last_export_seconds", "step_seconds_count")
    found = [{dict(labels)["dl_run_id"] for labels in shown(page, name)} for name in names]
    assert all(one == found[0] for one in found), found
    return found[0]


def test_a_hub_of_a_job_shows_its_run_alone(tmp_path: Path, clock: Clock) -> None:
    """What others send there is stored in their own runs, and neither on its page nor in its last words."""
    hub = Hub(tmp_path, run="own", clock=clock)
    for run in ("own", "other"):
        begin(hub, run)
    export(hub, clock, 12, "own", "other")
    assert on_page(hub) == {"own"}
    page = hub.page()[1]
    assert {dict(labels)["dl_run_id"] for labels in shown(page, "step_by_rank_seconds")} <= {"own"}
    assert [each["rank"] for each in hub.summary(at_the_end=True)["lost"]] == [0]
    end(hub, "own")
    assert hub.summary(at_the_end=True)["lost"] == []
    hub.close()
    assert {each.id: each.events for each in runs.list(tmp_path)} == {"own": 2, "other": 1}
    assert [each.name for each in runs.open("other", tmp_path).series()] == ["loss", "step", "steps"]


def test_a_hub_of_a_job_leaves_other_runs_alone_when_it_begins(tmp_path: Path, clock: Clock) -> None:
    """The run of a job that has just ended is not in use by the next one's hub: it can be pruned."""
    first = Hub(tmp_path, run="first", clock=clock)
    export(first, clock, 3, "first")
    first.close()
    second = Hub(tmp_path, run="second", clock=clock)
    assert {each.id: each.in_use for each in runs.list(tmp_path)} == {"first": False, "second": True}
    second.close()


def test_a_hub_that_stands_alone_has_every_live_run(tmp_path: Path, clock: Clock) -> None:
    """Each run is on the page as long as a process of it is live, and a rank that has ended with it."""
    hub = Hub(tmp_path, clock=clock)
    for run in ("a", "b"):
        begin(hub, run)
        begin(hub, run, of=1)
    export(hub, clock, 3, "a", "b")
    assert on_page(hub) == {"a", "b"}
    end(hub, "a", of=1)
    export(hub, clock, 100, "a", "b")
    assert on_page(hub) == {"a", "b"}
    end(hub, "a")
    end(hub, "b", of=1)
    export(hub, clock, 61, "b")
    assert on_page(hub) == {"b"}
    hub.close()


def test_the_last_values_of_a_run_reach_each_scraper_once(tmp_path: Path, clock: Clock) -> None:
    """The final metrics may come after the word of the end; a scraper that comes late finds the run for a minute."""
    hub = Hub(tmp_path, clock=clock)
    begin(hub, "a")
    export(hub, clock, 3, "a")
    end(hub, "a")
    assert on_page(hub, "prometheus") == {"a"}
    export(hub, clock, 1, "a")
    assert on_page(hub, "prometheus") == {"a"}
    export(hub, clock, 14)
    assert on_page(hub, "prometheus") == {"a"}
    export(hub, clock, 15)
    assert on_page(hub, "prometheus") == set()
    assert on_page(hub, "curl") == {"a"}
    assert on_page(hub, "curl") == set()
    export(hub, clock, 31)
    assert on_page(hub, "late") == set()
    hub.close()


def test_a_lost_run_is_there_for_a_minute(tmp_path: Path, clock: Clock) -> None:
    """An alert that looks for lost processes sees it in several scrapes; a minute after that it is gone."""
    hub = Hub(tmp_path, clock=clock)
    begin(hub, "a")
    export(hub, clock, 3, "a")
    export(hub, clock, 10)
    for _ in range(3):
        assert only(hub.page(scraper="prometheus")[1], "tachograph_process_lost_total") == 1
        export(hub, clock, 15)
    export(hub, clock, 15)
    assert on_page(hub, "prometheus") == set()
    hub.close()


def test_a_run_that_comes_back_is_live_again(tmp_path: Path, clock: Clock) -> None:
    """A job under the id of one that has ended is on the page, with counters that go on, and so are its last values."""
    hub = Hub(tmp_path, clock=clock)
    begin(hub, "a")
    export(hub, clock, 3, "a")
    end(hub, "a")
    export(hub, clock, 70)
    assert on_page(hub, "prometheus") == set()
    again = rank(0, run="a", pid=7)
    steps = number("steps", 2, kind="counter", start=clock.now, time=clock.now + 1)
    hub.receive_logs(logs(again, BEGIN, stream="again"))
    hub.receive_metrics(metrics(again, steps))
    assert only(hub.page(scraper="prometheus")[1], "steps_total") == 7
    hub.receive_logs(logs(again, END, stream="again", first=2))
    clock.forward(5)
    assert only(hub.page(scraper="prometheus")[1], "steps_total") == 7
    assert not shown(hub.page(scraper="prometheus")[1], "steps_total")
    hub.close()


def test_after_a_new_start_of_the_hub(tmp_path: Path, clock: Clock) -> None:
    """A hub that stands alone and is started again has the runs that were live, and not those that had ended."""
    hub = Hub(tmp_path, clock=clock)
    for run in ("ended", "live"):
        begin(hub, run)
    export(hub, clock, 3, "ended", "live")
    end(hub, "ended")
    export(hub, clock, 61, "live")
    hub.close()
    clock.forward(30)
    hub = Hub(tmp_path, clock=clock)
    assert on_page(hub) == {"live"}
    export(hub, clock, 3, "live")
    assert on_page(hub) == {"live"}
    hub.close()


def test_a_hub_that_stands_alone_opens_no_run(tmp_path: Path, clock: Clock) -> None:
    """Its store has the runs of senders alone; what names none is in the one for that; its machine is in none."""
    hub = Hub(tmp_path, nameless="nobody", clock=clock)
    machine = {"service.instance.id": "m", "dl.role": "node", "host.name": "h"}
    for _ in range(400):
        clock.forward(1)
        hub.receive_metrics(metrics(machine, number("system.cpu.time", 3.0, kind="counter", time=clock.now)), own=True)
        hub.tick()
    assert only(hub.page()[1], "system_cpu_time_total", dl_role="node") == 3
    assert list(tmp_path.rglob("*.db*")) == []
    assert (hub.summary()["runs"], hub.kept()["events"]) == ([], 0)
    unnamed = {key: value for key, value in rank(0).items() if key != "dl.run.id"}
    hub.receive_metrics(metrics(unnamed, number("loss", 0.5, time=clock.now)))
    hub.close()
    assert list(tmp_path.rglob("*.db")) == [run_path(tmp_path, "nobody")]


def test_a_store_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    """A hub without a run of its own does not wait for the first sender to find that out."""
    tmp_path.joinpath("file").touch()
    with pytest.raises(StoreError, match="cannot write to the store"):
        Hub(tmp_path / "file" / "store")
