"""Faults of a run, as the Studio's API tells it: each fault once, with its place; of a good run nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hub_requests import START, Clock, logs, metrics, number, rank
from recorded_runs import points, record
from tachograph.hub.hub import Hub
from tachograph.identity.program import StartMarks, note_status
from tachograph.studio._api import Api, Question

SECOND = 1_000_000_000


def faults(store: Path, run: str = "run", now: int = START + 10 * SECOND) -> dict[str, Any]:
    """Return the answer of the API."""
    scope = {"path": f"/api/runs/{run}/faults", "query_string": b""}
    return Api(store, "", lambda: now, lambda: False).ask(Question(scope))


def started(store: Path, **marks: Any) -> Hub:
    """Return a hub of a run, whose job ended with a status where one is given."""
    clock = marks.pop("clock", lambda: START)
    if "status" not in marks:
        return Hub(store, run="run", clock=clock)
    folder = store / "marks"
    folder.mkdir(parents=True)
    note_status(folder, marks["status"])
    return Hub(store, run="run", clock=clock, started=StartMarks(folder))


def failed(kind: str, message: str = "") -> list[tuple[str, Mapping[str, Any]]]:
    """Return the events of a process that ends with an exception."""
    told = {"exception.type": kind, "exception.message": message}
    return [
        ("tachograph.process.start", {}),
        ("tachograph.process.failure", told),
        ("tachograph.process.end", {"reason": "exception"}),
    ]


def test_nothing_is_said_of_a_run_that_went_well(tmp_path: Path) -> None:
    """A run without a fault has none; the exception of a process that its job took no notice of is none."""
    hub = started(tmp_path, status=0)
    hub.receive_logs(logs(rank(0), *failed("ValueError"), *points([1.0, 2.0])))
    hub.job_ended()
    hub.close()
    assert faults(tmp_path) | {"now": 0} == {"now": 0, "faults": [], "more": {}, "losses": [], "goodput": None}


def test_the_process_that_failed_first_leads_to_its_last_point(tmp_path: Path) -> None:
    """The first exception has the exit code, the whole message, its rank, and the last point of the loss there."""
    hub = started(tmp_path, status=3)
    hub.receive_logs(
        logs(
            rank(1),
            *points([1.0, 2.0, 0.5], "train/loss"),
            *points([1.0] * 9, "lr"),
            *failed("ValueError", "one\ntwo"),
            stream="a",
        )
    )
    hub.receive_logs(logs(rank(0), *failed("RuntimeError", "gone"), stream="b", time=START + SECOND))
    hub.job_ended()
    hub.close()
    first, other = faults(tmp_path)["faults"]
    assert (first["title"], first["detail"], first["rank"]) == (
        "Failed (exit code 3); rank 1 failed first: ValueError",
        "one\ntwo",
        1,
    )
    assert {**first["place"], "time": 0} == {
        "metric": "train/loss",
        "group": "",
        "kind": "",
        "rank": 1,
        "x": 2.0,
        "time": 0,
    }
    assert (other["title"], other["rank"]) == ("Rank 0 failed: RuntimeError", 0)


@pytest.mark.parametrize(
    ("message", "titles"),
    [
        (
            "rank 1 (pid 7) was killed by SIGKILL",
            ["Failed (exit code 1); rank 1 failed first: killed by SIGKILL", "Rank 0 failed: RuntimeError"],
        ),
        ("rank 0 (pid 100) ended with exit code 1", ["Failed (exit code 1); rank 0 failed: RuntimeError"]),
        (
            "rank 1 (pid 7) ended with exit code 9",
            ["Failed (exit code 1); rank 1 failed first: exit code 9", "Rank 0 failed: RuntimeError"],
        ),
    ],
)
def test_torchrun_tells_of_ranks_that_cannot(tmp_path: Path, message: str, titles: list[str]) -> None:
    """A rank that ended without an exception failed first; torchrun's exception repeats none that a rank reported."""
    hub = started(tmp_path, status=1)
    hub.receive_logs(logs(rank(0), *failed("RuntimeError", "gone"), stream="a"))
    agent = {**rank(0, **{"dl.role": "agent", "service.instance.id": "agent"})}
    del agent["dl.rank"]
    hub.receive_logs(logs(agent, *failed("ChildFailedError", message), stream="b"))
    hub.job_ended()
    hub.close()
    assert [each["title"] for each in faults(tmp_path)["faults"]] == titles


def test_a_killed_job_without_an_exception(tmp_path: Path) -> None:
    """The signal is named, and leads to the last point; a rank that fell silent is lost."""
    hub = started(tmp_path, status=-9)
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {}), *points([1.0, 2.0])))
    hub.job_ended()
    hub.close()
    ended, lost = faults(tmp_path)["faults"]
    assert (ended["kind"], ended["title"], ended["place"]["x"]) == ("ended", "Killed (SIGKILL)", 1.0)
    assert (lost["kind"], lost["title"], lost["rank"]) == ("lost", "No longer reporting: rank 0", 0)


def test_the_first_value_of_each_curve_that_is_not_finite(tmp_path: Path) -> None:
    """A metric is one fault: its first such value, with step and rank, how many there are, and the other ranks."""
    record(tmp_path, "run", *points([1.0, 2.0, math.inf, 3.0, math.nan]), *points([1.0], "fine"))
    record(tmp_path, "run", *points([1.0, 2.0, 3.0, math.nan, math.nan]), number=3)
    (fault,) = faults(tmp_path)["faults"]
    assert fault["title"] == "loss: first +Inf at step 2 on rank 0"
    assert fault["detail"] == "4 values are not finite; first NaN at step 4; also rank 3"
    assert (fault["place"]["metric"], fault["place"]["rank"], fault["place"]["x"]) == ("loss", 0, 2.0)


def test_a_metric_that_is_not_finite_is_told_from_others_of_its_name(tmp_path: Path) -> None:
    """Its group is named if another group has the name, and attributes if they tell curves of one rank apart."""
    odd, even = [1.0, math.nan], [1.0, 2.0]
    splits = [{"split": split, "optimizer": "adam"} for split in ("train", "val")]
    own = [
        each
        for values, split in zip((even, odd), splits, strict=True)
        for each in points(values, "f1", attributes=split)
    ]
    record(tmp_path, "run", *points(odd, "loss", group="val"), *points(even, "loss", group="train"), *own)
    record(tmp_path, "run", *points([1.0, 2.0, math.inf], "loss", group="train"), number=3)
    assert sorted(each["title"] for each in faults(tmp_path)["faults"]) == [
        'f1 {split="val"}: first NaN at step 1 on rank 0',
        "train/loss: first +Inf at step 2 on rank 3",
        "val/loss: first NaN at step 1 on rank 0",
    ]


def test_a_restart_says_how_the_attempt_before_ended(tmp_path: Path) -> None:
    """It names the ranks that began again, and leads to the first point since."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(
        logs(rank(0), *points([1.0, 2.0]), *failed("ValueError", "a bad batch"), stream="a", time=START - SECOND)
    )
    clock.forward(60)
    again = [("tachograph.process.start", {}), *points([5.0]), ("tachograph.process.end", {"reason": "exit"})]
    hub.receive_logs(logs(rank(0, pid=900, restart=1), *again, stream="b", time=clock.now))
    hub.close()
    (fault,) = faults(tmp_path, now=clock.now)["faults"]
    assert (fault["kind"], fault["title"]) == ("restart", "Restart 1: rank 0 started again")
    assert fault["detail"] == "previous attempt: rank 0 failed: ValueError: a bad batch"
    assert fault["place"]["time"] >= clock.now


def test_a_hang_that_lasts_is_told_as_one(tmp_path: Path) -> None:
    """While the run goes on it stands still; it stood still once it is over, or the run."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    told = {"hang.number": 1, "hang.grade": "hang", "hang.text": "rank 1 stands", "hang.began": START}
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {}), ("tachograph.hang", told)))
    hub.tick()
    (fault,) = faults(tmp_path, now=clock.now)["faults"]
    assert fault["title"] == "The job hangs"
    over = ("tachograph.hang", {**told, "hang.ended": START + 7 * SECOND})
    hub.receive_logs(logs(rank(0), over, first=3))
    hub.close()
    assert "The job hung for 7 s" in [each["title"] for each in faults(tmp_path, now=clock.now)["faults"]]


def test_losses_are_told_by_reason_and_destination(tmp_path: Path) -> None:
    """Dropped points are one fault a reason and destination, explained."""
    hub = started(tmp_path)
    told = {"reason": "queue_full", "destination": "otlp"}
    hub.receive_metrics(
        metrics(rank(0), number("tachograph.dropped", 1200, kind="counter", attributes=told), scope="tachograph")
    )
    hub.close()
    answer = faults(tmp_path)
    (fault,) = answer["faults"]
    assert (fault["kind"], fault["title"]) == ("dropped", "1\u202f200 points dropped: queue_full (otlp)")
    assert fault["detail"].startswith("The queue is full")
    assert answer["losses"][0]["points"] == 1200


def stalled(store: Path, silent: float, pause: float = 1.0, *, heard: bool = True) -> list[str]:
    """Return what is said of a run whose points came with a pause between them, so many seconds after the last one."""
    clock = Clock()
    hub = Hub(store, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {}), stream="a"))
    for step in range(5):
        clock.forward(pause)
        sent = ("tachograph.metric", {"metric": "loss", "x": float(step), "value": 1.0})
        hub.receive_logs(logs(rank(0), sent, stream="a", first=2 + step, time=clock.now))
    clock.forward(silent)
    if heard:
        hub.receive_metrics(metrics(rank(0), number("up", 1.0)))
    hub.tick()
    try:
        return [each["title"] for each in faults(store, now=clock.now)["faults"] if each["kind"] == "stalled"]
    finally:
        hub.close()


def test_a_stall_is_told_where_it_is_sure(tmp_path: Path) -> None:
    """A rank that is heard and has recorded nothing for ten of its longest pauses is stalled; else nothing is said."""
    assert stalled(tmp_path / "a", 600) == ["Stalled: no new point for 10 min, although rank 0 is still reporting"]
    assert stalled(tmp_path / "b", 100) == []
    assert stalled(tmp_path / "c", 600, pause=90) == []
    assert stalled(tmp_path / "d", 600, heard=False) == []


def test_the_answer_is_bounded(tmp_path: Path) -> None:
    """Of five hundred metrics with NaN twenty are told, and how many more there are."""
    record(tmp_path, "run", *(each for name in range(500) for each in points([math.nan], f"m{name}")))
    answer = faults(tmp_path)
    assert len(answer["faults"]) == 20
    assert answer["more"] == {"nonfinite": 480}
