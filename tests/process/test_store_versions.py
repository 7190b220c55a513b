"""Stores of every version are read as they are, and continued."""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub_requests import exponential, logs, metrics, rank
from places import TESTS
from recorded_runs import DEFINITION, POINT, points, record
from studio import studio
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.runs._schema import MIGRATIONS, read_as_today
from tachograph.runs.spread import unpacked
from tachograph.runs.store import path_of

STORES = TESTS / "stores"
RUN = "version-1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store whose only run was recorded by a version with the first schema."""
    path = path_of(tmp_path / "store", RUN)
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((STORES / "version-1.sql").read_text())
        connection.execute("PRAGMA journal_mode = WAL")
    return tmp_path / "store"


def version(path: Path) -> int:
    """Return the version of a file's schema."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def digest(path: Path) -> str:
    """Return a digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def described(run: runs.Run) -> dict[str, tuple[Any, ...]]:
    """Return what there is of each metric."""
    return {each.name: (each.group, each.units, each.ranks, each.points, each.nonfinite) for each in run.metrics()}


FIRST: Mapping[str, tuple[Any, ...]] = {
    "loss": ("train", "nat", (0, 1), 80, 2),
    "accuracy": ("validation", "%", (0, 1), 8, 0),
}


def test_a_run_of_the_first_version_is_read_and_not_touched(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is listed, shown and exported, with its groups, units and points, and no byte of its file changes."""
    path = path_of(store, RUN)
    before = digest(path)
    (listed,) = runs.list(store)
    assert (listed.id, listed.problem, listed.processes) == (RUN, "", 3)
    found = runs.open(RUN, store)
    assert {name: described(found)[name] for name in FIRST} == FIRST
    loss = list(found.points("loss", rank=1))
    assert [point.x for point in loss] == list(range(40))
    assert math.isnan(loss[13].value)
    assert (loss[31].value, loss[0].attributes) == (50.0, {})
    assert [about["metric"] for about in found.definitions() if about["rank"] == 0] == [
        "accuracy",
        "epoch",
        "loss",
        "lr",
    ]
    assert main(["runs", "show", RUN, "--store", str(store)]) == 0
    assert "loss      train" in capsys.readouterr().out
    assert (digest(path), version(path)) == (before, 1)


def test_a_run_of_the_first_version_is_drawn(store: Path, tmp_path: Path) -> None:
    """The Studio has its charts, with their axes, and its points."""
    assert version(path_of(store, RUN)) == 1
    with studio(tmp_path) as served:
        found = served.ask("runs", RUN)
        (train,) = [each for each in found["charts"] if each["group"] == "train"]
        assert train["x"] == {"units": "step", "lower": 0, "upper": 40}
        assert {curve["rank"] for curve in train["metrics"][0]["curves"]} == {0, 1}
        (line,) = served.ask("runs", RUN, "curves", metric="loss", rank=0)["curves"]
        assert (line["points"], max(line["y"])) == (40, 50.0)


def test_a_run_of_the_first_version_is_continued(store: Path) -> None:
    """A hub brings the file to today's schema: what was there stays, and a restarted rank's points join it."""
    before = described(runs.open(RUN, store))
    record(store, RUN, *points([1.0, 2.0], group="train"), number=1)
    assert version(path_of(store, RUN)) == len(MIGRATIONS)
    after = described(runs.open(RUN, store))
    assert after.pop("loss") == ("train", "nat", (0, 1), 82, 2)
    assert after == {name: about for name, about in before.items() if name != "loss"}


def test_a_reader_goes_on_while_a_hub_takes_the_file_over(store: Path) -> None:
    """A run that was opened before its file gets today's schema is read afterwards, and in the middle of it."""
    found = runs.open(RUN, store)
    iterator = found.points("loss", rank=0)
    first = next(iterator)
    Hub(store, run=RUN).close()
    assert version(path_of(store, RUN)) == len(MIGRATIONS)
    assert [first.x, *(point.x for point in iterator)] == list(range(40))
    assert {name: described(found)[name] for name in FIRST} == FIRST
    assert found.damage == []


def test_several_hubs_bring_a_file_to_todays_schema_once(store: Path) -> None:
    """Hubs that open one file at the same time do not disturb each other."""
    hubs: list[Hub] = []
    threads = [threading.Thread(target=lambda: hubs.append(Hub(store, run=RUN))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for hub in hubs:
        hub.close()
    assert len(hubs) == 4
    assert {name: described(runs.open(RUN, store))[name] for name in FIRST} == FIRST


@pytest.mark.parametrize("old", range(1, len(MIGRATIONS)))
def test_a_file_of_each_version_has_the_columns_of_today(old: int, tmp_path: Path) -> None:
    """To whoever reads it, every table of today is there, with the same columns."""
    with made(tmp_path / "old.db", old) as before, made(tmp_path / "today.db", len(MIGRATIONS)) as today:
        assert read_as_today(before) == old
        tables = [name for (name,) in today.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert tables
        for table in tables:
            select = f"SELECT * FROM {table}"  # noqa: S608 - of ours
            columns = [[column[0] for column in each.execute(select).description] for each in (before, today)]
            assert columns[0] == columns[1]


def test_samples_of_a_file_of_the_first_version_have_no_spread(store: Path) -> None:
    """They are read as they are before and after a hub takes the file over; those that come then have one."""
    path, query = path_of(store, RUN), "SELECT series, time, value, total, spread FROM sample ORDER BY series, time"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN")
        assert read_as_today(connection) == 1
        before = connection.execute(query).fetchall()
    assert len(before) > 10
    assert {row[-1] for row in before} == {None}
    hub = Hub(store, run=RUN)
    now = time.time_ns()
    hub.receive_metrics(metrics(rank(0, run=RUN), exponential("step", [0.25, 0.5], time=now, start=now - 1)))
    hub.close()
    with closing(sqlite3.connect(path)) as connection:
        after = connection.execute(query).fetchall()
    (new,) = after[len(before) :]
    assert after[: len(before)] == before
    assert (new[2], unpacked(new[-1]).total) == (2.0, 2)


def made(path: Path, last: int) -> closing[sqlite3.Connection]:
    """Return a connection to an empty file of a version."""
    connection = sqlite3.connect(path)
    for script in MIGRATIONS[:last]:
        connection.executescript(script)
    connection.execute(f"PRAGMA user_version = {last}")
    return closing(connection)


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
