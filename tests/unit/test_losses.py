"""Losses of a run: the points that are not in its file, by reason and destination, in one number everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hub_requests import SECOND, START, logs, metrics, number, rank
from recorded_runs import points
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.recording.own_metrics import REASONS
from tachograph.runs.losses import MISSING, Loss, describe_losses


def dropped(points: float, reason: str, destination: str, kind: str = "counter") -> Any:
    """Return the count of a reason, as a process sends it."""
    attributes = {"reason": reason, "destination": destination}
    return number("tachograph.dropped", points, kind=kind, unit="{item}", attributes=attributes)


def test_a_run_says_what_it_has_lost(tmp_path: Path) -> None:
    """The counts of all ranks are added by reason and destination; one that lacks an attribute is not lost."""
    hub = Hub(tmp_path, run="run")
    for place in range(2):
        counts = [dropped(1200, "queue_full", "journal"), dropped(34, "no_number", "registry")]
        counts.append(dropped(7, "attribute", "registry"))
        hub.receive_metrics(metrics(rank(place), *counts, scope="tachograph"))
    hub.close()
    found = runs.open("run", tmp_path).losses
    assert found == [Loss("queue_full", "journal", 2400), Loss("no_number", "registry", 68)]
    assert found[0].why == REASONS["queue_full"]


def test_gaps_in_the_numbers_are_losses_that_no_process_has_counted(tmp_path: Path) -> None:
    """Of ten points that never came a process has counted four as dropped: six are missing."""
    hub = Hub(tmp_path, run="run")
    hub.receive_logs(logs(rank(0), *points([0.5] * 3), stream="s", seqs=[1, 7, 13]))
    counts = [dropped(4, "queue_full", "journal"), dropped(99, "no_number", "registry")]
    hub.receive_metrics(metrics(rank(0), *counts, scope="tachograph"))
    hub.receive_logs(logs(rank(1), *points([0.5] * 2), stream="whole"))
    hub.close()
    found = runs.open("run", tmp_path).losses
    assert found == [Loss("no_number", "registry", 99), Loss(MISSING, "", 6), Loss("queue_full", "journal", 4)]


@pytest.mark.parametrize(
    "sent",
    [
        [dropped(float("nan"), "queue_full", "journal")],
        [dropped(7, "queue_full", "journal", kind="gauge")],
        [number("tachograph.dropped", 1.7e308, kind="counter", start=start, time=start + 1) for start in (1, 5)],
    ],
    ids=["NaN", "gauge", "overflow"],
)
def test_what_others_send_by_our_name_is_no_error(tmp_path: Path, sent: list[Any]) -> None:
    """The losses of a run can be read whatever a foreign program calls ``tachograph.dropped``."""
    hub = Hub(tmp_path, run="run")
    hub.receive_metrics(metrics(rank(0), *sent, scope="tachograph"))
    hub.close()
    assert runs.open("run", tmp_path).losses == []


def test_a_hub_says_what_is_in_its_files(tmp_path: Path) -> None:
    """Points and events are those that every reader counts; data points are none; a rejection of its own is a loss."""
    hub = Hub(tmp_path, run="run", clock=lambda: START + SECOND)
    hub.receive_logs(logs(rank(0), *points([0.5] * 40), ("e", {}), stream="s"))
    hub.receive_metrics(metrics(rank(0), number("a", 1.0), number("", 1.0), dropped(3, "unreachable", "otlp")))
    hub.receive_metrics(metrics(rank(0), dropped(3, "unreachable", "otlp"), scope="tachograph"))
    kept, summary = hub.kept(), hub.summary()
    hub.close()
    (listed,) = runs.list(tmp_path)
    assert (kept["points"], kept["events"]) == (listed.points, listed.events) == (40, 1)
    assert sum(each.points for each in runs.open("run", tmp_path).metrics()) == 40
    assert (summary["data_points"], summary["log_records"]) == (4, 41)
    assert kept["losses"] == [
        {"reason": "unreachable", "destination": "otlp", "points": 3},
        {"reason": "illegal_name", "destination": "hub", "points": 1},
    ]


def test_runs_show_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``runs show`` has a line for each reason, with what it means; a run without losses has none."""
    hub = Hub(tmp_path, run="run")
    hub.receive_metrics(metrics(rank(0), dropped(1234, "queue_full", "journal"), scope="tachograph"))
    hub.close()
    Hub(tmp_path, run="whole").close()
    assert main(["runs", "show", "run", "--store", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("LOST"))
    assert lines[place + 1].split(maxsplit=3) == ["queue_full", "journal", "1,234", REASONS["queue_full"]]
    main(["runs", "show", "whole", "--store", str(tmp_path)])
    assert "LOST" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], ""),
        ([Loss("missing", "", 1)], "1 point: missing 1"),
        (
            [Loss("queue_full", "journal", 1200), Loss("no_number", "", 34)],
            "1,234 points: queue_full 1,200, no_number 34",
        ),
    ],
)
def test_losses_in_words(found: list[Loss], said: str) -> None:
    """They are said as one number of points, and that of each reason with its destination."""
    assert describe_losses(found) == said
