"""``tachograph runs export``: whatever was recorded comes out of it, in order, bit for bit."""

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
from pyarrow import parquet as pyarrow_parquet

from curves import Bench
from examples import examples
from hub_requests import START, rank
from programs import environment
from recorded_runs import DEFINITION, Recorded, points, record, record_histograms
from tachograph.cli import main
from tachograph.exporters.otlp.logs import log_requests
from tachograph.hub.hub import Hub
from tachograph.identity.extra import install_command
from tachograph.metric import Metric
from tachograph.recording.logged_points import RUN_START, packed
from tachograph.recording.packed_points import PACKED

ABOUT = {"metric": "loss", "group": "training", "units": "nats"}


def export(store: Path, *arguments: str, run: str = "run") -> int:
    """Run the command and return its exit code."""
    return main(["runs", "export", run, "--store", str(store), *arguments])


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    return list(csv.DictReader(io.StringIO(text)))


@settings(max_examples=examples(25), deadline=None)
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


def test_several_runs_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row has its run, in the order of the arguments; a run without one of the metrics is named, and left out."""
    record(tmp_path, "one", *points([1.0, 2.0], "a"), *points([3.0], "b"))
    record(tmp_path, "two", *points([4.0], "a"), ("e", {}))
    both = ["two", "one", "--store", str(tmp_path), "--metric", "b", "--metric", "a"]
    assert main(["runs", "export", *both, "two"]) == 0
    said = capsys.readouterr()
    rows = [(row["run"], row["metric"], row["value"]) for row in table(said.out)]
    assert rows == [("two", "a", "4.0"), ("one", "b", "3.0"), ("one", "a", "1.0"), ("one", "a", "2.0")]
    assert said.err == "tachograph runs export: the run 'two' has no metric 'b': did you mean 'a'?\n"
    assert main(["runs", "export", *both, "--format", "jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["run"], line["metric"], str(line["value"])) for line in found] == rows
    assert main(["runs", "export", "one", "two", "--store", str(tmp_path), "--format", "jsonl"]) == 0
    kinds = [(line["run"], line["kind"]) for line in map(json.loads, capsys.readouterr().out.splitlines())]
    assert kinds == [("one", "point")] * 3 + [("two", "point"), ("two", "event")]
    assert main(["runs", "export", *both, "--metric", "zzz"]) == 2
    assert capsys.readouterr().err == "tachograph runs export: the run 'two' has no metric 'zzz': did you mean 'a'?\n"


@settings(max_examples=examples(20), deadline=None)
@given(values=st.lists(st.floats(), min_size=1, max_size=30), more=st.integers(0, 2**62))
def test_parquet_reads_back_what_was_recorded(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], more: int
) -> None:
    """Values bit for bit, NaN and infinities as floats, empty cells as nulls, times as timestamps too."""
    store = tmp_path_factory.mktemp("store")
    record(store, "run", (DEFINITION, ABOUT), *points(values), *points([0.5], "other", count=9, min=-1.0, max=more))
    record(store, "next", *points([1.5]))
    out = store / "out.parquet"
    assert (
        main(["runs", "export", "run", "next", "--store", str(store), "--format", "parquet", "--output", str(out)]) == 0
    )
    found = pyarrow_parquet.read_table(out).to_pylist()
    told = [(row["run"], row["metric"], row["x"], repr(row["value"])) for row in found]
    wanted = [("run", "loss", float(x), repr(value)) for x, value in enumerate(values)]
    assert told == [*wanted, ("run", "other", 0.0, "0.5"), ("next", "loss", 0.0, "1.5")]
    first, other = found[0], found[-2]
    assert (first["units"], first["rank"], first["count"], first["min"]) == ("nats", 0, None, None)
    assert (other["count"], other["min"], other["max"]) == (9, -1.0, float(more))
    assert first["time"].value == first["time_unix_nano"] == START + 2


def test_parquet_of_histograms_and_in_pieces(tmp_path: Path) -> None:
    """Every kind has its columns; many rows are written in groups, without the whole table in memory."""
    record_histograms(tmp_path, "run", Recorded("step", [[0.01, 0.02], [0.5]]))
    record(tmp_path, "long", *points([1 / (i + 1) for i in range(70_000)]))
    out = tmp_path / "out.parquet"
    assert export(tmp_path, "--kind", "histogram", "--format", "parquet", "--output", str(out)) == 0
    rows = [row for row in pyarrow_parquet.read_table(out).to_pylist() if row["metric"] == "step"]
    assert [(row["count"], row["max"]) for row in rows] == [(2, 0.02), (1, 0.5)]
    assert export(tmp_path, "--format", "parquet", "--output", str(out), run="long") == 0
    file = pyarrow_parquet.ParquetFile(out)
    assert (file.num_row_groups, file.metadata.num_rows) == (2, 70_000)


def test_parquet_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says how to get it, and the file that is there stays as it is."""
    record(tmp_path, "run", *points([1.0]))
    out = tmp_path / "out.parquet"
    out.write_text("earlier")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert export(tmp_path, "--format", "parquet", "--output", str(out)) == 2
    assert capsys.readouterr().err == f"tachograph runs export: Parquet needs pyarrow: {install_command('parquet')}\n"
    assert out.read_text() == "earlier"


def test_every_point_has_its_time_since_the_run_began(tmp_path: Path) -> None:
    """Packed on its way or not, ``elapsed`` is the same: the time of the point since the run's start."""
    bench = Bench()
    metrics = [Metric(name, throttle=None, execution=bench) for name in ("packed", "few")]
    for place, metric in enumerate(metrics):
        for step in range(2 if place else 9):
            bench.now += 0.125
            metric.record(step, at=step)
    sent = bench.journal.drain(pack=packed)
    assert [event.attributes["metric"] for event in sent if event.name == PACKED] == [("packed",)]
    bench.journal.append("tachograph.process.start", 0, {"run_start": RUN_START})
    begin = bench.journal.drain()[0]
    hub = Hub(tmp_path, run="run")
    for request, _ in log_requests([begin, *sent], rank(0), lambda *_: None, lambda: None):
        hub.receive_logs(type(request).FromString(request.SerializeToString()))
    hub.close()
    assert export(tmp_path, "--output", str(tmp_path / "out.csv")) == 0
    rows = table((tmp_path / "out.csv").read_text())
    assert [row["metric"] for row in rows] == ["few"] * 2 + ["packed"] * 9
    assert [float(row["elapsed"]) for row in rows] == [(int(row["time_unix_nano"]) - RUN_START) / 1e9 for row in rows]


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
    assert said.err == f"tachograph runs export: {why.format(store=tmp_path)}\n"


@pytest.mark.process
def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    """``tachograph runs export … | head`` ends without a word."""
    record(tmp_path, "run", *points([0.5] * 20_000))
    line = [sys.executable, "-m", "tachograph", "runs", "export", "run", "--store", str(tmp_path)]
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
    for name, count in (("small", 1_500), ("large", 15_000)):
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
