"""``tachograph.runs`` and ``tachograph runs``: what was recorded is found, told and, if asked for, deleted."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

import tachograph
from hub_requests import START, logs, rank
from programs import environment
from recorded_runs import DEFINITION, points, record
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.runs.store import run_path

DAY = 86_400 * 10**9


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with a run, which is the one that the environment names."""
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path))
    about = {"metric": "loss", "group": "training", "units": "nats", "x_units": "step"}
    sent = points([3.0, math.nan, 1.0, math.inf], group="training", branch=0)
    record(tmp_path, "a/run", (DEFINITION, about), *sent, ("checkpoint", {"step": 3}))
    record(tmp_path, "a/run", *points([0.5], "lr"), number=1)
    return tmp_path


def run(*arguments: str) -> int:
    """Run the command and return its exit code."""
    return main(["runs", *arguments])


def test_runs_are_an_attribute_of_the_package(store: Path) -> None:
    """``import tachograph`` is all that it takes."""
    assert [each.id for each in tachograph.runs.list()] == ["a/run"]
    assert tachograph.runs.open("a/run").path == run_path(store, "a/run")


def test_a_list_has_what_is_there(store: Path) -> None:
    """Runs are listed with start, processes, points, events and size, the oldest first."""
    record(store, "later", *points([1.0]), day=1)
    first, second = runs.list()
    assert (first.id, first.start, first.processes, first.points, first.events) == ("a/run", START, 2, 5, 1)
    assert (second.id, second.start, second.last, second.in_use) == ("later", START + DAY, START + DAY, False)
    assert first.size >= run_path(store, "a/run").stat().st_size > 0
    assert first.problem == ""


def test_a_run_tells_of_itself(store: Path) -> None:
    """Processes, metrics with their definitions, events and points of a run are read back."""
    found = runs.open("a/run", store)
    assert [(each.rank, each.role, each.pid, each.starts) for each in found.processes()] == [
        (0, "trainer", 100, 1),
        (1, "trainer", 101, 1),
    ]
    loss, lr = found.metrics()
    assert (loss.name, loss.group, loss.units, loss.points, loss.nonfinite) == ("loss", "training", "nats", 4, 2)
    assert (loss.min, loss.max, loss.x0, loss.x1) == (1.0, 3.0, 0.0, 3.0)
    assert loss.definition["x_units"] == "step"
    assert (lr.name, lr.group, lr.units, lr.ranks) == ("lr", "", "", (1,))
    assert [(each.name, dict(each.attributes)["step"]) for each in found.events()] == [("checkpoint", 3)]
    assert list(found.events("other")) == []
    assert [each.value for each in found.points(rank=1)] == [0.5]
    assert [(each.min, each.max) for each in found.points("lr")] == [(0.5, 0.5)]
    assert repr(found) == "<tachograph run 'a/run'>"


def test_what_there_is_not(store: Path) -> None:
    """Asking for a run, a metric or a rank that there is not is an error that names what there is, at once."""
    with pytest.raises(LookupError, match=r"no run 'a/rum' .* did you mean 'a/run'"):
        runs.open("a/rum")
    with pytest.raises(LookupError, match=r"no run 'x' .* there are none"):
        runs.open("x", store / "empty")
    found = runs.open("a/run")
    with pytest.raises(LookupError, match="no metric 'los': did you mean 'loss'"):
        found.points("los")
    with pytest.raises(LookupError, match="no metric 'zzz': its metrics are 'loss', 'lr'"):
        found.points("zzz")
    with pytest.raises(LookupError, match="no points of rank 7; its ranks are 0, 1"):
        found.points(rank=7)
    with pytest.raises(ValueError, match="above 0"):
        found.thinned("loss", pairs=0)


def test_a_run_is_read_while_it_is_written(store: Path) -> None:
    """What a hub has taken can be read at once, and a reader in the middle sees what there was when it began."""
    hub = Hub(store, run="live")
    hub.receive_logs(logs(rank(0, run="live"), *points(range(2000))))
    found = runs.open("live", store)
    reading = found.points("loss")
    assert next(reading).value == 0.0
    hub.receive_logs(logs(rank(0, run="live"), *points([5.0] * 3000), first=2001))
    hub.tick()
    assert sum(1 for _ in reading) == 1999
    assert sum(1 for _ in found.points("loss")) == 5000
    assert [each.in_use for each in runs.list() if each.id == "live"] == [True]
    hub.close()


def test_a_frame_of_points(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``to_pandas`` gives a row a point; without pandas it says what to install."""
    pytest.importorskip("pandas")
    found = runs.open("a/run", store)
    frame = found.to_pandas("loss")
    assert [repr(value) for value in frame["value"].tolist()] == ["3.0", "nan", "1.0", "inf"]
    assert frame["rank"].tolist() == [0] * 4
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.to_pandas()


def test_list_and_show(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows the runs, and one of them, in tables."""
    assert run("list") == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["RUN", "STATE", "STARTED", "DURATION", "LAST", "LOSS"]
    name, state, *_, date, clock, duration, unit, loss = line.split()
    assert (name, state, f"{duration} {unit}", loss) == ("a/run", "unknown", "0 s", "inf")
    assert datetime.fromisoformat(f"{date}T{clock}").timestamp() == START // 10**9
    assert run("show", "a/run", "--store", str(store)) == 0
    said = capsys.readouterr().out
    assert "loss    training  nats   0             1       4  0 to 3   inf    1 at 2    3 at 0           2" in said
    assert "checkpoint      1" in said
    assert run("list", "--store", str(store / "none")) == 0
    assert capsys.readouterr().out == f"no runs in {store}/none\n"


def test_show_says_what_there_is_not(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown run is one line and 2."""
    assert run("show", "a/rnu") == 2
    said = capsys.readouterr()
    assert said.err == f"tachograph runs show: there is no run 'a/rnu' in {store}: did you mean 'a/run'?\n"


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (["--keep", "1"], ["three"]),
        (["--keep", "0"], []),
        (["--older-than", "10d"], ["three"]),
        (["--max-size", "1K"], []),
        (["--max-size", "1.5G", "--keep", "2"], ["two", "three"]),
    ],
)
def test_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: list[str], left: list[str]) -> None:
    """Runs go by age, number and size, with all their files; the newest stay."""
    for name, day in (("one", 0), ("two", 1), ("three", (time.time_ns() - START) // DAY)):
        record(tmp_path, name, *points([1.0]), day=day)
    assert run("prune", *rule, "--yes", "--store", str(tmp_path)) == 0
    assert [each.id for each in runs.list(tmp_path)] == left
    assert {path.name.partition(".")[0] for path in tmp_path.joinpath("runs").iterdir()} == set(left)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"deleted {3 - len(left)} (")


def test_prune_leaves_what_a_hub_writes(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is in use stays, whatever the rules say; so does each that a standing hub goes on with."""
    standing = Hub(store)
    assert run("prune", "--keep", "0", "--yes") == 0
    assert "no runs to delete" in capsys.readouterr().out  # it was used a moment ago
    standing.close()
    hub = Hub(store, run="live")
    assert run("prune", "--keep", "0", "--yes") == 0
    assert [each.id for each in runs.list(store)] == ["live"]
    live = next(each for each in runs.list(store) if each.id == "live")
    assert live.in_use
    assert not runs.catalogue.delete_run_files(live.path)
    hub.close()
    assert run("prune", "--keep", "0", "--yes") == 0
    assert runs.list() == []
    assert run("prune", "--keep", "0") == 0
    assert capsys.readouterr().out.endswith("no runs to delete\n")


def test_prune_asks(store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes it asks; where nobody can answer, it deletes nothing."""
    assert run("prune", "--keep", "0") == 2
    assert "use --yes" in capsys.readouterr().err
    answers = io.StringIO("n\nY\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", answers)
    assert run("prune", "--keep", "0") == 2
    assert [each.id for each in runs.list(store)] == ["a/run"]
    assert run("prune", "--keep", "0") == 0
    assert runs.list(store) == []
    assert "Delete a/run? [y/N] " in capsys.readouterr().out


@pytest.mark.parametrize(
    "given", [["prune"], ["prune", "--keep", "-1"], ["prune", "--older-than", "3x"], ["prune", "--max-size", "x"], []]
)
def test_wrong_usage(given: list[str], store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that is none, and no rule at all, end with 2, and nothing goes."""
    try:
        code = run(*given)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert capsys.readouterr().err
    assert len(runs.list(store)) == 1


@pytest.mark.process
def test_reading_where_nothing_can_be_written(store: Path) -> None:
    """A run in a folder that cannot be written is read all the same."""
    folder = store / "runs"
    program = (
        "import os, sys, tachograph\n"
        "os.access = lambda *_, **__: False\n"  # root may write everywhere
        "print([point.value for point in tachograph.runs.open('a/run').points('lr')])"
    )
    before = sorted(path.name for path in folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment(store), "TACHOGRAPH_STORE": str(store)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[0.5]\n"
    assert sorted(path.name for path in folder.iterdir()) == before
