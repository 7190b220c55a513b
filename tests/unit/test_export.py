"""``tachograph export``: whatever was recorded comes out of it, in order, bit for bit."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import environment
from recorded_runs import DEFINITION, points, record
from tachograph.cli import main

ABOUT = {"metric": "loss", "group": "training", "units": "nats"}


def export(store: Path, *arguments: str, run: str = "run") -> int:
    """Run the command and return its exit code."""
    return main(["export", run, "--store", str(store), *arguments])


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    return list(csv.DictReader(io.StringIO(text)))


@settings(max_examples=25, deadline=None)
@given(values=st.lists(st.floats(), min_size=1, max_size=40), xs=st.lists(st.integers(-5, 5), min_size=1))
def test_what_was_recorded_comes_back(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], xs: list[int]
) -> None:
    """Both formats give every point back, in order, bit for bit."""
    store = tmp_path_factory.mktemp("store")
    sent = [("tachograph.metric", {"metric": "m", "x": xs[i % len(xs)] / 3, "value": v}) for i, v in enumerate(values)]
    record(store, "run", *sent)
    assert export(store, "--output", str(store / "out.csv")) == 0
    assert export(store, "--format", "jsonl", "--output", str(store / "out.jsonl")) == 0
    wanted = [(repr(said["x"]), repr(said["value"])) for _, said in sent]
    assert [(row["x"], row["value"]) for row in table((store / "out.csv").read_text())] == wanted
    found = [json.loads(line) for line in (store / "out.jsonl").read_text().splitlines()]
    assert [(repr(line["x"]), repr(float(line["value"]))) for line in found] == wanted


def test_a_table_of_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CSV has a row a point, with all that is known of it; what is not finite is spelled."""
    record(tmp_path, "run", (DEFINITION, ABOUT), *points([1.5, math.nan, math.inf, -math.inf], branch=2))
    record(tmp_path, "run", *points([1.0], min=0.5, min_x=-1.0, max=2.0, max_x=-0.5, count=9, elapsed=0.25), number=3)
    assert export(tmp_path) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = table(said.out)
    assert [row["value"] for row in found] == ["1.5", "nan", "inf", "-inf", "1.0"]
    assert list(found[0].items())[:10] == [
        ("metric", "loss"),
        ("group", "training"),
        ("units", "nats"),
        ("rank", "0"),
        ("execution", "0"),
        ("branch", "2"),
        ("x", "0.0"),
        ("time_unix_nano", "1790000000000000002"),
        ("value", "1.5"),
        ("min", ""),
    ]
    last = {key: found[4][key] for key in ("rank", "min", "min_x", "max", "max_x", "count", "elapsed", "seq")}
    assert list(last.values()) == ["3", "0.5", "-1.0", "2.0", "-0.5", "9", "0.25", "1"]


def test_lines_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines have definitions, points and events, each with its rank; NaN is a string, as JSON has none."""
    event = ("checkpoint", {"took": math.nan, "names": ["a", "é"], "step": 3})
    record(tmp_path, "run", (DEFINITION, ABOUT), *points([math.inf], note=0.5), event, number=2)
    assert export(tmp_path, "--format", "jsonl") == 0
    definition, point, event_ = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (definition["kind"], definition["units"], definition["rank"]) == ("definition", "nats", 2)
    assert (point["kind"], point["value"], point["note"], point["rank"]) == ("point", "Infinity", 0.5, 2)
    assert (event_["kind"], event_["name"], event_["rank"], event_["seq"]) == ("event", "checkpoint", 2, 3)
    assert event_["attributes"]["took"] == "NaN"
    assert event_["attributes"]["names"] == ["a", "é"]


def test_some_metrics_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --metric there are only its points, of several in the order in which they were named."""
    record(tmp_path, "run", *points([1.0], "a"), *points([2.0], "b"), *points([3.0], "c"), ("e", {}))
    assert export(tmp_path, "--metric", "c", "--metric", "a", "--format", "jsonl") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["kind"], line["value"]) for line in found] == [("point", 3.0), ("point", 1.0)]


@pytest.mark.parametrize(
    ("run", "more", "why"),
    [
        ("rum", (), "there is no run 'rum' in {store}: did you mean 'run'?"),
        ("run", ("--metric", "loos"), "the run 'run' has no metric 'loos': did you mean 'loss'?"),
        ("run", ("--output", "{store}/no/file"), "{store}/no/file: No such file or directory"),
        ("broken", (), "{store}/runs/broken.db: the file is damaged: file is not a database"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, run: str, more: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be exported is said in one line, and nothing is written."""
    record(tmp_path, "run", *points([1.0]))
    tmp_path.joinpath("runs", "broken.db").write_bytes(b"this is no database" * 1000)
    code = export(tmp_path, *(each.format(store=tmp_path) for each in more), run=run)
    said = capsys.readouterr()
    assert code == (1 if "--output" in more else 2)
    assert said.out == ""
    assert said.err == f"tachograph export: {why.format(store=tmp_path)}\n"


@pytest.mark.process
def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    """``tachograph export … | head`` ends without a word."""
    record(tmp_path, "run", *points([0.5] * 20_000))
    line = [sys.executable, "-m", "tachograph", "export", "run", "--store", str(tmp_path)]
    with subprocess.Popen(
        line, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as exporting:
        assert exporting.stdout is not None
        assert exporting.stderr is not None
        assert exporting.stdout.readline().startswith("metric,")
        exporting.stdout.close()
        assert exporting.stderr.read() == ""
        assert exporting.wait(30) == 1


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    """A run is exported block by block: ten times the points take no more memory."""
    peaks = []
    for name, count in (("small", 3_000), ("large", 30_000)):
        record(tmp_path, name, *points([1 / (i + 1) for i in range(count)], elapsed=0.5))
        tracemalloc.start()
        assert export(tmp_path, "--output", os.devnull, run=name) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2**20


def test_no_cell_of_text_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that a spreadsheet would run begins with an apostrophe; numbers and JSON lines stay as they are."""
    about = {"metric": '=HYPERLINK("http://x")', "group": "@SUM(A1)", "units": "-1+2"}
    record(tmp_path, "run", (DEFINITION, about), *points([-1.5], metric=about["metric"], group=about["group"]))
    assert export(tmp_path) == 0
    [row] = table(capsys.readouterr().out)
    assert (row["metric"], row["group"]) == ("'" + about["metric"], "'" + about["group"])
    assert row["units"] in ("", "'" + about["units"])
    assert row["value"] == "-1.5"
    assert export(tmp_path, "--format", "jsonl") == 0
    assert any(json.loads(line).get("metric") == about["metric"] for line in capsys.readouterr().out.splitlines())
