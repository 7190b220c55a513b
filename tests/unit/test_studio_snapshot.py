"""The typed snapshot of a run: from a store and over HTTP it is the same, with the newest points and events."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hub_requests import logs, rank
from hubs import serving
from recorded_runs import DEFINITION, points, record
from tachograph.cli.hub_client import HubClient, RefusedError, UnavailableError
from tachograph.hub.hub import Hub
from tachograph.studio.snapshot import Ask, RunReader, answers_from_store


def answers_from_hub(url: str) -> Ask:
    """Return a function that answers questions over HTTP."""
    client = HubClient(url)

    def ask(path: str, **query: Any) -> Any:
        return client.get(f"/api{path}", **query)

    return ask


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a run of two ranks: one started over, the other has values that are not finite."""
    hub = Hub(tmp_path, run="a/run")
    first = points([float(x) for x in range(1000)], branch=0)
    again = [(name, {**point, "x": point["x"] + 500, "branch": 1}) for name, point in points([0.25, math.nan, 0.75])]
    loop = {"metric": "epochs", "progress": True, "upper": math.inf}
    hub.receive_logs(logs(rank(0, run="a/run"), *first, *again, stream="a"))
    hub.receive_logs(logs(rank(1, run="a/run"), (DEFINITION, loop), *points([1.0, math.inf], "epochs"), stream="b"))
    hub.receive_logs(
        logs(rank(1, run="a/run"), *((f"event {number}", {"value": number}) for number in range(50)), stream="c")
    )
    hub.close()
    return tmp_path


@pytest.mark.process
def test_a_hub_and_a_store_give_the_same_snapshot(store: Path) -> None:
    """Everything but the moment is the same, numbers that JSON cannot write included."""
    stored = RunReader(answers_from_store(store), "a/run")
    with serving(store) as hub:
        served = RunReader(answers_from_hub(hub.url), "a/run")
        snapshots = [repr(reader.read_snapshot()).partition("RunStatus")[2] for reader in (stored, served)]
        assert snapshots[0] == snapshots[1]
        curves = [curve.curve for metric in stored.read_snapshot().metrics for curve in metric.curves]
        found = [repr(list(reader.read_newest_points(curves, 10))) for reader in (stored, served)]
        assert found[0] == found[1]
        assert stored.read_newest_events(0, 10) == served.read_newest_events(0, 10)
    (bar,) = stored.read_snapshot().progress
    assert bar.completed == math.inf


def test_the_newest_points_are_those_of_the_newest_branch(store: Path) -> None:
    """Points before the last start over are left out, however many are asked for; others are cut to the newest."""
    reader = RunReader(answers_from_store(store), "a/run")
    (metric,) = reader.read_snapshot().metrics
    (curve,) = metric.curves
    (all_points,) = reader.read_newest_points([curve.curve], 1000)
    assert (all_points.branch, all_points.x) == (1, [500.0, 501.0, 502.0])
    assert (all_points.y[0], all_points.y[2]) == (0.25, 0.75)
    assert math.isnan(all_points.y[1])
    (newest,) = reader.read_newest_points([curve.curve], 1)
    assert (newest.x, newest.y) == ([502.0], [0.75])
    assert list(reader.read_newest_points([999], 10)) == []


def test_newest_events_follow_the_last_known_one(store: Path) -> None:
    """Of the events after a number the newest are read; after the last one there is none."""
    reader = RunReader(answers_from_store(store), "a/run")
    newest = reader.read_newest_events(0, 3)
    assert [event.name for event in newest] == ["event 47", "event 48", "event 49"]
    assert [event.name for event in reader.read_newest_events(newest[1].number, 3)] == ["event 49"]
    assert reader.read_newest_events(newest[-1].number, 3) == []


@pytest.mark.process
def test_a_client_says_why_there_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown run, a missing token and a hub that is away are different errors; no proxy is asked for any."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    record(tmp_path, "job", *points([1.0]))
    with serving(tmp_path, token="a-token") as hub:  # noqa: S106 - of a test's own hub
        with pytest.raises(RefusedError, match="set TACHOGRAPH_HUB_TOKEN"):
            HubClient(hub.url).get("/api/runs")
        monkeypatch.setenv("TACHOGRAPH_HUB_TOKEN", "a-token")
        client = HubClient(hub.url)
        assert [run["id"] for run in client.get("/api/runs")["runs"]] == ["job"]
        with pytest.raises(RefusedError, match="did you mean 'job'"):
            client.get("/api/runs/jib")
    with pytest.raises(UnavailableError, match="does not answer: Connection refused"):
        client.get("/api/runs")
