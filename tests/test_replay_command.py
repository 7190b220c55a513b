"""``tachograph replay``: a spool, a JSON-lines file or an exported run, to any exporter."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

import programs
from influx_points import event, events
from servers import free_port, influxdb1, influxql
from tachograph.cli import main
from tachograph.influxdb.spool import Spool
from tachograph.influxdb.spooling import keep

_WHO = {"dl.rank": 1}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the commands see no setting of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "INFLUXDB_", "TACHOGRAPH_")) and name != "TACHOGRAPH_TEST_BIN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path / "store"))


def spooled(folder: Path, start: int = 0, stop: int = 100) -> Path:
    """Leave points behind as a process that has ended does, and return the folder."""
    spool = Spool(folder, 2**30, lambda *_: None, lambda: None)
    keep(events(start, stop), _WHO, spool.append)
    spool.close()
    return folder


def test_a_spool_arrives_in_influxdb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every point of a folder's files arrives; nothing is deleted."""
    folder = spooled(tmp_path / "spool")
    with influxdb1(tmp_path / "data") as base:
        assert main(["replay", str(folder), "--to", "influxdb", "--host", base]) == 0
        (series,) = influxql(base, 'SELECT COUNT("loss"), COUNT("s") FROM "train"')
        assert series["values"] == [[0, 100, 100]]
    said = capsys.readouterr()
    assert "100 events of 1 files sent" in said.err
    assert said.out == ""
    assert len(list(folder.iterdir())) == 1


def test_files_are_deleted_where_that_is_asked_for(tmp_path: Path) -> None:
    """With --delete a file goes once everything in it has arrived."""
    folder = spooled(tmp_path / "spool")
    out = tmp_path / "out.jsonl"
    assert main(["replay", str(folder), "--to", "jsonl", "--output", str(out), "--delete"]) == 0
    assert list(folder.iterdir()) == []
    found = programs.events(out)
    assert [int(each["attributes"]["tachograph.seq"]) for each in found] == list(range(100))
    assert found[7]["attributes"]["tachograph.fields"] == {"loss": 1.0, "n": 7, "s": "no 7"}


def test_nothing_is_deleted_that_did_not_arrive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody takes the points the exit code is 1, a line says so, and the file stays."""
    folder = spooled(tmp_path / "spool", 0, 3)
    line = ["replay", str(folder), "--to", "influxdb", "--host", f"http://127.0.0.1:{free_port()}"]
    assert main([*line, "--delete", "--timeout", "0.5"]) == 1
    assert "not everything has arrived" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1


def test_what_the_exporter_jsonl_wrote_is_replayed(tmp_path: Path) -> None:
    """A file of ``start(logs="jsonl")`` is sent with its NaN; its metrics are left out, and said."""
    journal = tmp_path / "journal.jsonl"
    program = f"""
        import tachograph
        with tachograph.start(metrics="jsonl", logs="jsonl", jsonl={str(journal)!r}):
            metric = tachograph.Metric("loss", group="training", throttle=None)
            for at, value in enumerate((0.5, float("nan"), 0.25)):
                metric.record(value, at=at)
    """
    assert programs.run(tmp_path, program).returncode == 0
    out = tmp_path / "out.jsonl"
    assert main(["replay", str(journal), "--to", "jsonl", "--output", str(out)]) == 0
    points = [each["attributes"] for each in programs.events(out) if each["eventName"] == "tachograph.metric"]
    assert [point["x"] for point in points] == [0.0, 1.0, 2.0]
    assert math.isnan(points[1]["value"])
    assert len(programs.events(out)) == len(programs.events(journal))


def test_an_exported_run_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Points and events of ``tachograph export --format jsonl`` are sent; a line that is neither is said."""
    at = 1_700_000_000_000_000_000
    point = {"kind": "point", "metric": "loss", "group": "g", "units": "", "rank": 2, "execution": 0, "branch": 0}
    lines = [
        {**point, "x": 1.0, "time_unix_nano": at, "value": "NaN", "stream": "ab", "seq": 1},
        {"kind": "event", "rank": None, "name": "saved", "time_unix_nano": at, "attributes": {"path": "p"}, "seq": 2},
        {"kind": "definition", "metric": "loss"},
        {"what": "is this"},
    ]
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out.jsonl"
    assert main(["replay", str(file), "--to", "jsonl", "--output", str(out)]) == 1
    first, second = programs.events(out)
    assert (first["eventName"], second["eventName"]) == ("tachograph.metric", "saved")
    assert math.isnan(first["attributes"]["value"])
    said = capsys.readouterr().err
    assert "1 lines cannot be read" in said
    assert "1 metrics, spans and definitions left out" in said


def test_the_console_shows_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--to console prints a line for each event."""
    assert main(["replay", str(spooled(tmp_path / "spool", 0, 3)), "--to", "console"]) == 0
    assert capfd.readouterr().out.count("tachograph.point") == 3


def test_a_file_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a living process sends itself is not sent twice."""
    spool = Spool(tmp_path / "spool", 2**30, lambda *_: None, lambda: None)
    keep([event(1)], {}, spool.append)
    assert main(["replay", str(tmp_path / "spool"), "--to", "console"]) == 1
    assert "a running process uses it" in capsys.readouterr().err
    spool.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["missing", "--to", "console"], "No such file"),
        ([".", "--to", "console"], "there are no *.jsonl files"),
        (["spool", "--to", "influxdb"], "INFLUXDB_HOST"),
        (["spool", "--to", "influxdb", "--host", "h", "--port", "x"], "port"),
        (["spool", "--to", "jsonl"], "--output"),
        (["spool", "--to", "otlp", "--endpoint", "nonsense"], "URL"),
    ],
)
def test_wrong_usage_is_said(
    more: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends with 2 and one line."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if more[0] == "." else tmp_path)
    if more[0] == "spool":
        spooled(tmp_path / "spool", 0, 1)
    assert main(["replay", *more]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert len(said.splitlines()) == 1
