"""``tachograph runs list`` with columns by choice: what a run was made of and what came of it, sorted as one asks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import SECOND, START, logs, rank
from many_runs import sweep
from recorded_runs import points, record
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.identity.launch import Launch
from tachograph.recording.journal import CONFIG, SUMMARY
from tachograph.runs.columns import RUN_FACTS, choose_runs

DAY = 86_400 * SECOND
PLACE = {"good": (0.1, 0.75), "best": (0.01, 0.91), "worst": (1.0, math.nan)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with three runs of a sweep, the oldest first, one without results, and one that is broken."""
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path))
    for day, (name, (lr, accuracy)) in enumerate(PLACE.items()):
        told = [
            (CONFIG, {CONFIG: {"lr": lr, "optim.betas": [0.9, 0.999]}}),
            (SUMMARY, {SUMMARY: {"accuracy": accuracy}}),
        ]
        hub = Hub(tmp_path, run=name, clock=lambda day=day: START + day * DAY)
        hub.launched(Launch(1, "node-7", {"git.commit": "0a1b2c", "argv": ["train.py"]}, ("sweep",), "A try."))
        for number in (0, 1):
            hub.receive_logs(
                logs(rank(number, run=name, **{"service.name": "train"}), *told, *points([1.0]), stream=f"s{number}")
            )
        hub.close()
    record(tmp_path, "plain", *points([1.0] * 1500), day=4)
    tmp_path.joinpath("runs", "broken.db").write_bytes(b"this is no database" * 1000)
    return tmp_path


def listed(*arguments: str) -> int:
    """Run the command and return its exit code."""
    return main(["runs", "list", *arguments])


@pytest.mark.usefixtures("store")
def test_columns_by_choice(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts, keys of the configuration, of the results and of the program; a dash where a run has none."""
    columns = "id, program,config.lr,config.optim.betas,summary.accuracy,program.git.commit,tags,points,notes"
    assert listed("--columns", columns, "--sort", "start") == 0
    head, *rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell] for row in (head, *rows)]
    assert cells[0] == ["ID", "PROGRAM", *columns.split(",")[2:6], "TAGS", "POINTS", "NOTES"]
    told = ["0a1b2c", "sweep", "2", "A try."]
    assert cells[1:4] == [
        ["good", "train", "0.1", "0.9, 0.999", "0.75", *told],
        ["best", "train", "0.01", "0.9, 0.999", "0.91", *told],
        ["worst", "train", "1", "0.9, 0.999", "nan", *told],
    ]
    assert ["plain", "-", "-", "-", "-", "-", "-", "1,500", "-"] in cells
    assert ["broken", "-", "-", "-", "-", "-", "-", "0", "-"] in cells


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        (["--sort", "summary.accuracy"], ["good", "best", "broken", "plain", "worst"]),
        (["--sort", "summary.accuracy", "--reverse"], ["best", "good", "broken", "plain", "worst"]),
        (["--sort", "lr"], ["best", "good", "worst", "broken", "plain"]),
        (["--sort", "id", "--tag", "sweep"], ["best", "good", "worst"]),
        (["--tag", "sweep"], ["worst", "best", "good"]),
        (["--reverse", "--tag", "sweep"], ["good", "best", "worst"]),
        (["--sort", "points", "--reverse", "--columns", "id,points"], ["plain", "worst", "best", "good", "broken"]),
    ],
)
def test_sorted_by_any_column(arguments: list[str], order: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Shown or not; runs without a value, and NaN, come last whichever way it goes."""
    assert listed(*arguments) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == order


@pytest.mark.usefixtures("store")
def test_a_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers are numbers, NaN a string, times ISO 8601; without --columns every fact is there."""
    assert listed("--json", "--columns", "id,summary.accuracy,start,tags", "--tag", "sweep") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[2] == {"id": "good", "summary.accuracy": 0.75, "start": found[2]["start"], "tags": ["sweep"]}
    assert found[2]["start"].startswith("2026-09-21T14:13:20.000+00:00")
    assert [each["summary.accuracy"] for each in found] == ["NaN", 0.91, 0.75]
    assert listed("--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(tuple(each) == RUN_FACTS for each in found)
    assert {each["id"]: "not a database" in each["problem"] for each in found}["broken"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--columns", "id,config.lrr"], "no run has the column 'config.lrr': did you mean 'config.lr'?"),
        (["--sort", "pionts"], "no run has the column 'pionts': did you mean 'points'?"),
        (["--columns", "path"], "no run has the column 'path': "),
    ],
)
def test_an_unknown_column(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named with the nearest one, in a line."""
    assert listed(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"tachograph runs list: {why}")
    assert said.err.count("\n") == 1


def test_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store without runs says so, whatever columns are asked for; JSON has no line."""
    assert listed("--store", str(tmp_path), "--columns", "id,config.lr") == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
    assert listed("--store", str(tmp_path), "--columns", "id", "--json") == 0
    assert capsys.readouterr().out == ""


VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.booleans()


@given(st.lists(VALUES, max_size=8), st.booleans())
def test_whatever_a_key_holds_it_sorts(values: list[object], reverse: bool) -> None:
    """Numbers before texts, both in order, the rest at the end; no run is lost or doubled."""
    example = runs.Summary("", Path(), 0, 0, 0, 0, 0, 0, False, "")
    listed_ = [example._replace(id=str(place), problem=value) for place, value in enumerate(values)]  # type: ignore[arg-type]
    found = [row["problem"] for _, row in choose_runs(listed_, ["problem"], sort="problem", reverse=reverse)]
    assert sorted(map(repr, found)) == sorted(map(repr, values))
    missing = [value is None or (isinstance(value, float) and math.isnan(value)) for value in found]
    assert missing == sorted(missing)
    there = [value for value, gone in zip(found, missing, strict=True) if not gone]
    numbers = [value for value in there if not isinstance(value, str)]
    texts = [value for value in there if isinstance(value, str)]
    assert there == ([*texts, *numbers] if reverse else [*numbers, *texts])
    assert numbers == sorted(numbers, reverse=reverse)
    assert texts == sorted(texts, reverse=reverse)


def test_a_filter_chooses_runs_by_any_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the Studio's table is filtered by, the command's list is, too; a mistake is pointed at."""
    sweep(tmp_path, 6)

    def listed(*options: str) -> tuple[int, str, str]:
        code = main(["runs", "list", "--store", str(tmp_path), *options])
        return code, *capsys.readouterr()

    code, said, _ = listed("--filter", "best < 0.5 tag:even state:failed", "--columns", "id,last.loss,summary.best")
    assert (code, said.split()) == (0, ["ID", "last.loss", "summary.best", "sweep-00004", "1.1", "0.2"])
    code, _, said = listed("--filter", "lr > big")
    assert code == 2
    assert said.endswith("expected a number after '>', not 'big'\n  lr > big\n       ^\n")
    code, _, said = listed("--filter", "bst > 1")
    assert (code, "did you mean 'best'?" in said) == (2, True)


@pytest.fixture(params=["XXX-05:30", "XXX+08", "UTC0"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Set the local zone: five and a half hours before UTC, eight hours after it, or UTC; return its offset."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)  # POSIX gives hours that are added to local time: tzset(3)
        time.tzset()
        yield {"XXX-05:30": "+05:30", "XXX+08": "-08:00", "UTC0": "+00:00"}[request.param]
    time.tzset()


@pytest.mark.usefixtures("store")
def test_a_time_of_the_table_is_one_of_the_filter(zone: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables show local times, and the filter takes a time without a zone as local: a shown time finds its run."""
    began = datetime.fromisoformat("2026-09-21T14:13:20+00:00").astimezone()
    assert began.isoformat().endswith(zone)
    shown = began.strftime("%Y-%m-%d %H:%M:%S%z")
    assert listed("--columns", "id,start", "--tag", "sweep") == 0
    head, *rows = (line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (head, rows[-1]) == (["ID", "START"], ["good", shown])
    assert listed() == 0
    head_line, *lines = capsys.readouterr().out.splitlines()
    assert "UTC" not in head_line
    assert sum(shown in line for line in lines) == 1
    assert main(["runs", "show", "good"]) == 0
    assert f"from {shown} to " in capsys.readouterr().out
    given = began.replace(tzinfo=None).isoformat()
    for filtered, ids in (
        (f"start = {given}", ["good"]),
        (f"start > {given} tag:sweep", ["worst", "best"]),
        ("start = 2026-09-21T14:13:20Z", ["good"]),
        (f"start = {given}{zone}", ["good"]),
        ("start = 2026-09-21T16:13:20+02:00", ["good"]),
    ):
        assert listed("--filter", filtered, "--columns", "id") == 0
        assert capsys.readouterr().out.split() == ["ID", *ids]


@pytest.mark.usefixtures("store", "zone")
def test_times_for_programs_are_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    """In each zone of the machine ``--json`` has the same time, with its offset."""
    assert listed("--json", "--columns", "id,start", "--filter", "id:good") == 0
    assert json.loads(capsys.readouterr().out)["start"] == "2026-09-21T14:13:20.000+00:00"
