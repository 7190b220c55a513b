"""The diagnosis of a run's file: at the page's head, in ``top``, by ``tachograph diagnose`` and at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hub_requests import START, Clock, logs, metrics, number, only, rank, shown
from tachograph.cli import main
from tachograph.cli._run_summary import diagnosis_lines
from tachograph.diagnosis.phases import PHASES
from tachograph.diagnosis.verdict_run import EVENT, diagnosis
from tachograph.hub.hub import Hub
from tachograph.runs.file import RunFile, look
from tachograph.studio._api import Api, Question

SECOND = 1_000_000_000
MS = 1_000_000


def totals(steps: int, phases: dict[str, float], begin: int = START, **more: Any) -> dict[str, Any]:
    """Return the totals after some steps, whose phases take milliseconds each."""
    times = [int(phases.get(name, 0) * MS) * steps for name in PHASES]
    end = begin + sum(times)
    said = {"begin": begin, "end": end, "last": end, "steps": steps, "phases": times, "rest": [0] * len(PHASES)}
    return {**said, "run_start": START - 5 * SECOND, "samples": steps * 8, **more}


def train(hub: Hub, rank_: int, phases: dict[str, float], *, pid: int = 100, first: int = 1, **more: Any) -> None:
    """Send the totals of a rank's three hundred steps, each ten."""
    counted = metrics(rank(rank_, pid=pid), number("dl.step.count", 300, kind="counter"), scope="tachograph.step")
    hub.receive_metrics(counted)
    sent = [(EVENT, totals(steps, phases, **more)) for steps in range(10, 301, 10)]
    hub.receive_logs(logs(rank(rank_, pid=pid), *sent, first=first, stream=f"s{rank_}-{pid}"))


def hub_of(store: Path) -> Hub:
    """Return a hub of a run."""
    return Hub(store, run="run", clock=Clock())


COMPUTE = {"forward": 4.0, "backward": 8.0, "optimizer": 1.0}


def test_a_starved_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each way to look at a run has the verdict: the page, the command, whose code is 3, and the last lines."""
    hub = hub_of(tmp_path)
    for each in range(2):
        train(hub, each, {**COMPUTE, "data_wait": 20.0}, workers=0)
    hub.tick()
    scope = {"path": "/api/runs/run/faults", "query_string": b""}
    answer = Api(tmp_path, "", lambda: START + SECOND, lambda: False).ask(Question(scope))
    (fault,) = [each for each in answer["faults"] if each["kind"] == "slow"]
    assert fault["title"] == "61% of the step is spent waiting for data on every rank"
    assert "num_workers=0" in fault["detail"]
    said = hub.kept()["diagnosis"]
    hub.close()
    assert [line.partition(" (")[0] for line in diagnosis_lines(said)] == [fault["title"]]
    assert main(["diagnose", "run", "--store", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert out.startswith(f"run run\n\ncritical: {fault['title']} (20 ms of 33 ms per step; num_workers=0")
    table = [line.split() for line in out.splitlines() if "33.0 ms" in line]
    assert [(row[0], row[4], row[6]) for row in table] == [("0", "20.0", "61%"), ("1", "20.0", "61%")]
    assert "goodput" in out.splitlines()[-1]
    assert main(["diagnose", "--store", str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["name"] == "input_bound"


@pytest.mark.parametrize(("step", "lines"), [(0.4, 0), (0.7, 1)])
def test_the_goodput_of_a_short_run_is_not_printed(tmp_path: Path, step: float, lines: int) -> None:
    """The last lines of a run have its goodput from three minutes on."""
    hub = hub_of(tmp_path)
    train(hub, 0, {"forward": step * 1000})
    hub.tick()
    diagnosis_data = hub.kept()["diagnosis"]
    hub.close()
    wall = sum(value for name, value in diagnosis_data["goodput"].items() if name != "line")
    assert wall == pytest.approx(300 * step, abs=10)
    assert [line.startswith("goodput ") for line in diagnosis_lines(diagnosis_data)] == [True] * lines


def test_a_run_that_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing against it, and the code is 0; a run without steps says so."""
    hub = hub_of(tmp_path)
    train(hub, 0, COMPUTE)
    hub.close()
    assert main(["diagnose", "run", "--store", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no problem found in its steps" in out
    assert "goodput " in out
    other = Hub(tmp_path, run="other", clock=Clock())
    other.receive_metrics(metrics(rank(0, run="other"), number("loss", 1.0)))
    other.close()
    assert main(["diagnose", "other", "--store", str(tmp_path)]) == 0
    assert "no training steps" in capsys.readouterr().out
    assert main(["diagnose", "none", "--store", str(tmp_path)]) == 2


def test_a_straggler_is_found_in_the_file(tmp_path: Path) -> None:
    """The totals of all ranks are compared, and each has its score."""
    hub = hub_of(tmp_path)
    train(hub, 0, {**COMPUTE, "backward": 18.0})
    train(hub, 1, {**COMPUTE, "forward": 14.0})
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        found = diagnosis(reading, 0, recent=False)
    assert [(each.name, each.ranks) for each in found.verdicts] == [("straggler", (1,))]
    assert found.scores[1] > 0.4
    assert found.scores[0] < 0


def test_a_slow_beginning_is_no_verdict(tmp_path: Path) -> None:
    """A first epoch that reads from a cold disk does not speak against the run."""
    hub = hub_of(tmp_path)
    hub.receive_metrics(metrics(rank(0), number("dl.step.count", 300, kind="counter"), scope="tachograph.step"))
    place, slow = PHASES.index("data_wait"), 2000 * MS
    sent = []
    for steps in range(10, 301, 10):
        said = totals(steps, COMPUTE)
        said["phases"][place] = slow
        sent.append((EVENT, said))
    hub.receive_logs(logs(rank(0), *sent))
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        assert diagnosis(reading, 0, recent=False).verdicts == []


def test_goodput_of_restarts(tmp_path: Path) -> None:
    """Attempts of a process are taken together: what was done twice is lost, and the pause between them is restart."""
    hub = hub_of(tmp_path)
    took = sum(COMPUTE.values()) * 300 / 1000
    train(hub, 0, COMPUTE, pid=100, saved=2 * SECOND)
    train(hub, 0, COMPUTE, pid=200, begin=START + 10 * SECOND)
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        found = diagnosis(reading, 0, recent=False).goodput
    assert found is not None
    assert found.seconds["startup"] == pytest.approx(5)
    assert found.seconds["restart"] == pytest.approx(10 - took)
    assert found.seconds["lost"] == pytest.approx(took - 2)
    assert found.seconds["productive"] == pytest.approx(took + 2)


@pytest.mark.parametrize(("reason", "restart", "lost"), [("exit", 0, False), ("exit", 1, True), ("sigterm", 0, True)])
def test_programs_one_after_the_other_lose_nothing(tmp_path: Path, reason: str, restart: int, lost: bool) -> None:
    """One that came to its own end is not done again by the next one of its run; a launcher's restart does it again."""
    hub = hub_of(tmp_path)
    took = sum(COMPUTE.values()) * 300 / 1000
    train(hub, 0, COMPUTE, pid=100)
    hub.receive_logs(logs(rank(0, pid=100), ("tachograph.process.end", {"reason": reason}), first=31, stream="s0-100"))
    train(hub, 0, COMPUTE, pid=200, begin=START + 10 * SECOND)
    begun = logs(rank(0, pid=200, restart=restart), ("tachograph.process.start", {}), first=31, stream="s0-200")
    hub.receive_logs(begun)
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        found = diagnosis(reading, 0, recent=False).goodput
    assert found is not None
    assert found.seconds["lost"] == pytest.approx(took * lost)
    assert found.seconds["productive"] == pytest.approx(took * (2 - lost))
    assert found.seconds["restart" if lost else "startup"] == pytest.approx(10 - took + 5 * (not lost))


def test_foreign_events_spoil_nothing(tmp_path: Path) -> None:
    """An event of the name that has not our numbers is left out."""
    hub = hub_of(tmp_path)
    train(hub, 0, COMPUTE)
    hub.receive_logs(logs(rank(0), (EVENT, {"steps": "many"}), (EVENT, {"steps": 5, "phases": [1]}), stream="odd"))
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        assert diagnosis(reading, 0, recent=True).goodput is not None


def test_the_page_of_metrics(tmp_path: Path) -> None:
    """The hub compares ranks, and shows each rank's score, the straggler and the run's goodput while it goes on."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {}), stream="b0"))
    hub.receive_logs(logs(rank(1), ("tachograph.process.start", {}), stream="b1"))
    train(hub, 0, {**COMPUTE, "backward": 18.0})
    train(hub, 1, {**COMPUTE, "forward": 14.0})
    clock.forward(1)
    hub.tick()
    clock.forward(10)
    hub.tick()
    page = hub.page()[1]
    hub.close()
    assert only(page, "dl_step_straggler_ratio", dl_rank="1") > 0.4
    assert only(page, "tachograph_verdict", dl_rank="1", verdict="straggler") == 2
    assert only(page, "dl_goodput_seconds", dl_rank="0", category="startup") == pytest.approx(5)
    assert len(shown(page, "dl_goodput_seconds")) == 9


def test_ranks_are_compared_over_the_same_steps(tmp_path: Path) -> None:
    """Ranks tell their totals at different steps of theirs: a short run's straggler is found all the same."""
    hub = hub_of(tmp_path)
    for each, phases, at in (
        (0, {**COMPUTE, "backward": 18.0}, (14, 33, 45, 60)),
        (1, {**COMPUTE, "forward": 14.0}, (24, 35, 50, 61)),
    ):
        counted = metrics(rank(each), number("dl.step.count", 60, kind="counter"), scope="tachograph.step")
        hub.receive_metrics(counted)
        warm = {"warm.phases": totals(10, phases)["phases"], "warm.compiled": 0}
        hub.receive_logs(logs(rank(each), *((EVENT, totals(steps, phases, **warm)) for steps in at), stream=f"s{each}"))
    hub.close()
    with look(RunFile(tmp_path / "runs" / "run.db")) as reading:
        found = diagnosis(reading, 0, recent=False)
    assert [(each.name, each.ranks) for each in found.verdicts] == [("straggler", (1,))]
