"""Files with the schema of another version are refused one by one; and what the schema tells apart."""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub_requests import Clock, logs, metrics, number, only, rank
from recorded_runs import DEFINITION, POINT, points, record
from studio import studio
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.runs.annotations import annotate, change_of
from tachograph.runs.store import Store, StoreError, path_of

PRE_RELEASE = "the file has schema version {}, written by a pre-release version of Tachograph"


def made(path: Path, version: int) -> bytes:
    """Make a file of a version before the first release, and return its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE process (id INTEGER PRIMARY KEY, instance TEXT, resource BLOB)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    return path.read_bytes()


@pytest.mark.parametrize("version", range(1, 7))
def test_a_pre_release_file_is_refused_alone(version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is listed with one sentence, cannot be opened, changed or continued, and no byte of it changes."""
    record(tmp_path, "good", *points([1.0]))
    path = path_of(tmp_path, "old")
    before = made(path, version)
    why = PRE_RELEASE.format(version)
    assert {each.id: each.problem for each in runs.list(tmp_path)} == {"good": "", "old": why}
    for refused in (
        lambda: runs.open("old", tmp_path),
        lambda: annotate(path, change_of(add=["tag"])),
        lambda: Hub(tmp_path, run="old"),
    ):
        with pytest.raises(StoreError) as caught:
            refused()
        assert (caught.value.strerror, caught.value.filename) == (why, str(path))
    assert main(["runs", "show", "old", "--store", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"tachograph runs show: {path}: {why}\n"
    assert path.read_bytes() == before


def test_the_studio_shows_the_others(tmp_path: Path) -> None:
    """A file of another version is listed with the reason, and the others are there."""
    record(tmp_path / "store", "good", *points([1.0]))
    made(path_of(tmp_path / "store", "old"), 6)
    with studio(tmp_path) as served:
        listed = {each["id"]: each["damage"] for each in served.ask("runs")["runs"]}
        assert listed == {"good": [], "old": [PRE_RELEASE.format(6)]}
        assert served.answer("runs", "old").status == 409


def test_a_hub_that_begins_again_goes_on_with_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A hub that finds a file of another version says so in a line, and puts the other runs back on its page."""
    clock = Clock()
    clock.now = time.time_ns()
    hub = Hub(tmp_path, clock=clock)
    hub.receive_metrics(metrics(rank(0, run="good"), number("loss", 0.5, time=clock.now)))
    hub.close()
    made(path_of(tmp_path, "old"), 6)
    with caplog.at_level(logging.WARNING, "tachograph"):
        hub = Hub(tmp_path, clock=clock)
    assert only(hub.page()[1], "loss") == 0.5
    (said,) = caplog.messages
    assert said.startswith("cannot store the run old")
    assert f"{PRE_RELEASE.format(6)}: '{path_of(tmp_path, 'old')}'" in said
    hub.close()


def test_a_database_of_another_program_is_not_touched(tmp_path: Path) -> None:
    """A file without our application_id is no run, whatever its version."""
    path = path_of(tmp_path, "theirs")
    before = made(path, 0)
    why = "the file is an SQLite database, but not one of a Tachograph run"
    assert [each.problem for each in runs.list(tmp_path)] == [why]
    with pytest.raises(StoreError, match=why):
        Store(tmp_path, "theirs")
    assert path.read_bytes() == before


def test_a_file_tells_what_it_is(tmp_path: Path) -> None:
    """Its header has the number of the schema, and TACH as the application's."""
    Store(tmp_path, "run").close()
    header = path_of(tmp_path, "run").read_bytes()[:100]
    assert (header[60:64], header[68:72]) == ((7).to_bytes(4, "big"), b"TACH")


def test_several_hubs_begin_a_file_together(tmp_path: Path) -> None:
    """Hubs that make one file at the same time do not disturb each other."""
    hubs: list[Hub] = []
    threads = [threading.Thread(target=lambda: hubs.append(Hub(tmp_path, run="run"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for first, hub in enumerate(hubs, 1):
        hub.receive_logs(logs(rank(0, run="run"), ("e", {}), first=first))
    for hub in hubs:
        hub.close()
    assert len(hubs) == 4
    assert len(list(runs.open("run", tmp_path).events())) == 4


def test_groups_and_attributes_are_curves_of_their_own(tmp_path: Path) -> None:
    """A metric of two groups is two metrics, and each set of attributes a curve; a restart adds to the same."""
    sent = [
        *points([1.0, 2.0], group="train"),
        *points([3.0], group="validation"),
        *points([4.0, 5.0, 6.0], group="validation", attributes={"fold": 1}),
    ]
    record(tmp_path, "run", *sent)
    found = runs.open("run", tmp_path)
    curves = [(each.group, dict(each.attributes)) for each in found.curves("loss")]
    assert curves == [("train", {}), ("validation", {}), ("validation", {"fold": 1})]
    assert [(each.group, each.points) for each in found.metrics()] == [("train", 2), ("validation", 4)]
    assert [point.value for point in found.points("loss")] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_group_that_is_named_later_takes_the_first_points(tmp_path: Path) -> None:
    """The points of a Metric that is told its group after them are in that group, definition and all."""
    hub = Hub(tmp_path, run="run")
    hub.receive_logs(logs(rank(0), (DEFINITION, {"metric": "loss", "units": "nat"}), *points([1.0, 2.0])))
    hub.receive_logs(logs(rank(0), (DEFINITION, {"metric": "loss", "group": "train", "units": "nat"}), first=4))
    hub.receive_logs(logs(rank(0), *points([3.0], group="train"), first=5))
    hub.close()
    found = runs.open("run", tmp_path)
    (curve,) = found.curves("loss")
    assert (curve.group, curve.units) == ("train", "nat")
    assert [point.value for point in found.points("loss")] == [1.0, 2.0, 3.0]
    assert len(found.definitions()) == 1


def test_points_without_a_group_are_in_that_of_their_definition(tmp_path: Path) -> None:
    """A point may leave its group to the definition of its metric."""
    record(tmp_path, "run", (DEFINITION, {"metric": "loss", "group": "train", "units": "nat"}), *points([1.0, 2.0]))
    (curve,) = runs.open("run", tmp_path).curves()
    assert (curve.group, curve.units) == ("train", "nat")


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", [1, 2], {"deep": 1}])
def test_a_point_whose_attributes_json_cannot_hold_stays_an_event(tmp_path: Path, value: Any) -> None:
    """What a curve could not give back as it came is kept as it came."""
    record(tmp_path, "run", (POINT, {"metric": "loss", "x": 1.0, "value": 2.0, "attributes": {"what": value}}))
    found = runs.open("run", tmp_path)
    assert found.curves() == []
    assert [event.name for event in found.events()] == [POINT]
