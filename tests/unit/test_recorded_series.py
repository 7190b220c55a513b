"""Histograms and counters of a run, read back: their values, quantiles and rates, in Python, as text and in exports."""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import SECOND, START, Clock, metrics, number, rank
from recorded_runs import BOUNDS, Recorded, points, record, record_histograms, spread_of
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.runs.buckets import Buckets, HistogramValues
from tachograph.runs.store import run_path

STEP = {"code.function.name": "step"}
FIRST, SECOND_INTERVAL = [0.0104] * 98 + [0.5, 2.0], [0.0104, 0.0208, 0.0312]


def buckets_of(values: list[float]) -> Buckets:
    """Return the counts of values by bounds."""
    counts = [sum(low < value <= high for value in values) for low, high in zip((0, *BOUNDS), BOUNDS, strict=False)]
    return Buckets(len(values), sum(values), (*counts, len(values) - sum(counts)), BOUNDS)


def counted(store: Path, *totals: float) -> None:
    """Record a counter of a rank, and a gauge without a curve, a sample in ten seconds."""
    clock = Clock()
    hub = Hub(store, run="run", clock=clock)
    for total in totals:
        tokens = number("tokens", total, kind="counter", time=clock.now, attributes={"modality": "text"})
        load = number("load", total / 2, time=clock.now)
        hub.receive_metrics(metrics(rank(1), tokens, load, scope="training"))
        hub.tick()
        clock.forward(10)
    hub.close()


@given(st.lists(st.floats(0.0011, 9.9), min_size=1, max_size=60), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_as_near_as_it_says(values: list[float], part: float) -> None:
    """From explicit buckets, too, a quantile is no farther from the value of its rank than the stated error."""
    found = HistogramValues(len(values), sum(values), None, buckets_of(values))
    true = sorted(values)[max(0, math.ceil(part * len(values)) - 1)]
    (told,), error = found.quantiles([part]), found.error([part])
    assert abs(told / true - 1) <= error * (1 + 1e-9) + 1e-9


@given(st.lists(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), min_size=1, max_size=5))
def test_joined_values_have_the_quantiles_of_all(parts: list[list[float]]) -> None:
    """However values are divided between processes, their quantiles together are those of all, within 2.2 %."""
    first, *others = [HistogramValues(len(each), sum(each), spread_of(each), buckets_of(each)) for each in parts]
    for each in others:
        first = first.plus(each)
    every = sorted(value for each in parts for value in each)
    assert (first.count, first.minimum, first.maximum) == (len(every), every[0], every[-1])
    assert first.error([0.5]) <= 0.022
    place = (len(every) - 1) / 2
    middle = (every[math.floor(place)] + every[math.ceil(place)]) / 2
    assert first.quantile(0.5) == pytest.approx(middle, rel=0.022)


def test_what_few_values_tell_is_not_said_of_all() -> None:
    """Where most values came without an exponential histogram, quantiles are those of the explicit buckets."""
    old, new = [2.0] * 98, [0.01] * 2
    found = HistogramValues(98, 196.0, None, buckets_of(old)).plus(
        HistogramValues(2, 0.02, spread_of(new), buckets_of(new))
    )
    assert found.quantile(0.5) > 1
    assert found.error([0.5]) > 0.1
    alone = HistogramValues(98, 196.0).plus(HistogramValues(2, 0.02, spread_of(new)))
    assert math.isnan(alone.quantile(0.5))


def test_a_histogram_has_its_intervals(tmp_path: Path) -> None:
    """Each sample has count, sum, extremes and quantiles of its own values; the series those of all since the start."""
    record_histograms(tmp_path, "run", Recorded("step.duration", [FIRST, SECOND_INTERVAL], attributes=STEP))
    run = runs.open("run", tmp_path)
    one, two = run.intervals("step.duration", rank=0)
    assert (one.count, one.total, one.minimum, one.maximum) == (100, pytest.approx(sum(FIRST)), 0.0104, 2.0)
    assert one.quantile(0.5) == pytest.approx(0.0104, rel=0.022)
    assert (two.count, two.minimum, two.maximum) == (3, 0.0104, 0.0312)
    assert [two.quantile(part) for part in (0.5, 1)] == [pytest.approx(0.0208, rel=0.022), 0.0312]
    assert two.time_unix_nano == START + 10 * SECOND
    (series,) = run.series("step.duration")
    assert isinstance(series.value, HistogramValues)
    assert (series.value.count, series.value.maximum, series.attributes, series.rank) == (103, 2.0, STEP, 0)


def test_a_counter_has_its_totals_and_rates(tmp_path: Path) -> None:
    """Each sample has the total, and what it has risen by in a second since the sample before."""
    counted(tmp_path, 100, 300, 350)
    run = runs.open("run", tmp_path)
    assert [(each.value, each.rate) for each in run.readings("tokens")] == [(100, None), (300, 20.0), (350, 5.0)]
    assert [(each.value, each.rate) for each in run.readings("load")] == [(50, None), (150, None), (175, None)]
    assert [(each.name, each.kind, each.value, each.rank) for each in run.series()] == [
        ("load", "gauge", 175.0, 1),
        ("tokens", "counter", 350, 1),
    ]


def test_a_frame_of_each_kind(tmp_path: Path) -> None:
    """to_pandas() finds whatever has the name: points of a curve first, then a histogram, then a counter."""
    pytest.importorskip("pandas")
    record(tmp_path, "run", *points([3.0, 2.0], "tokens", group="training"), number=1)
    counted(tmp_path, 100, 300)
    record_histograms(
        tmp_path, "run", Recorded("step.duration", [FIRST]), Recorded("old.duration", [FIRST], exact=False)
    )
    run = runs.open("run", tmp_path)
    assert list(run.to_pandas("tokens")["value"]) == [3.0, 2.0]
    assert run.kinds("tokens") == ["curve", "counter"]
    totals = run.to_pandas("tokens", kind="counter")
    assert list(totals["total"]) == [100, 300]
    assert totals["rate"][1] == 20
    assert totals["time"][1].value == START + 10 * SECOND
    (step,) = run.to_pandas("step.duration").to_dict("records")
    assert (step["count"], step["min"], step["max"]) == (100, 0.0104, 2.0)
    assert [step[key] for key in ("p50", "p90")] == pytest.approx([0.0104] * 2, rel=0.022)
    (old,) = run.to_pandas("old.duration").to_dict("records")
    assert old["count"] == 100
    assert old["p50"] is None or math.isnan(old["p50"])
    assert set(run.to_pandas(kind="histogram")["metric"]) == {"step.duration", "old.duration"}
    with pytest.raises(ValueError, match="one of curve, histogram, counter, gauge, not 'metric'"):
        run.to_pandas(kind="metric")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"name": "tokins"}, "no metric 'tokins': did you mean 'tokens'?"),
        ({"name": "tokens", "rank": 0}, "no points of rank 0; its ranks are 1"),
        ({"name": "tokens", "kind": "curve"}, "has 'tokens' as a counter, not as a curve"),
        ({"name": "tokens", "kind": "histogram"}, "has 'tokens' as a counter, not as a histogram"),
    ],
)
def test_what_there_is_not_is_said(tmp_path: Path, asked: dict[str, object], why: str) -> None:
    """The message names the nearest metric, the ranks that there are, or what the metric is instead."""
    counted(tmp_path, 100)
    with pytest.raises(LookupError, match=r"the run 'run' ha[sn]") as raised:
        runs.open("run", tmp_path).table(**asked)  # type: ignore[arg-type]
    assert why in str(raised.value)


def test_exports_have_their_own_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CSV has the columns of the kind, JSON lines everything of a run, each line with its kind."""
    record_histograms(tmp_path, "run", Recorded("step.duration", [FIRST, SECOND_INTERVAL], attributes=STEP))
    counted(tmp_path, 100, 300)
    record(tmp_path, "run", *points([1.0]), number=1)
    export = ["runs", "export", "run", "--store", str(tmp_path)]
    assert main([*export, "--metric", "step.duration"]) == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["count"], first["max"], json.loads(first["attributes"])) == ("100", "2.0", STEP)
    assert float(second["p50"]) == pytest.approx(0.0208, rel=0.022)
    assert main([*export, "--kind", "counter"]) == 0
    totals = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(each["total"], each["rate"]) for each in totals] == [("100.0", ""), ("300.0", "20.0")]
    assert main([*export, "--format", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["point", "histogram", "histogram", "counter", "counter", *["gauge"] * 2]
    assert (lines[1]["sum"], lines[1]["attributes"]) == (pytest.approx(sum(FIRST)), STEP)
    assert main([*export, "--metric", "loss", "--metric", "tokens"]) == 2
    assert "different columns" in capsys.readouterr().err
    assert main([*export, "--metric", "loss", "--metric", "tokens", "--format", "jsonl"]) == 0
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["point", *["counter"] * 2]


def test_a_run_is_shown_with_its_histograms_and_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``runs show`` has count, quantiles and their error over all ranks, totals of counters, and what was thinned."""
    both = [Recorded("step.duration", [FIRST], place, STEP) for place in (0, 1)]
    record_histograms(tmp_path, "run", *both, Recorded("old", [[0.02] * 9], exact=False))
    counted(tmp_path, 1000)
    record(tmp_path, "run", *points([1.0, 2.0]), number=1)
    assert main(["runs", "show", "run", "--store", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "thinned" not in shown
    cells = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert cells["step.duration"][1:5] == ["training", "s", "0,1", "200"]
    assert float(cells["step.duration"][6]) == pytest.approx(0.0104, rel=0.022)
    assert cells["step.duration"][8] == "2"
    assert float(cells["step.duration"][9]) <= 2.2
    assert cells["old"][-2:] == ["-", "rough"]
    assert cells["tokens"][3:] == ["1", "1,000", "modality=text"]
    with sqlite3.connect(run_path(tmp_path, "run")) as connection:
        connection.execute("UPDATE block SET level = 3")
    connection.close()
    assert main(["runs", "show", "run", "--store", str(tmp_path)]) == 0
    assert "1 curve is thinned" in capsys.readouterr().out


def test_damaged_samples_are_told_and_the_others_are_read(tmp_path: Path) -> None:
    """Of a damaged exponential histogram count and sum are there, and the damage is noted."""
    record_histograms(tmp_path, "run", Recorded("step.duration", [FIRST, SECOND_INTERVAL]))
    with sqlite3.connect(run_path(tmp_path, "run")) as connection:
        connection.execute("UPDATE sample SET spread = x'0102' WHERE time = ?", (START,))
        connection.execute("UPDATE state SET data = '[1]'")
    connection.close()
    run = runs.open("run", tmp_path)
    one, two = run.intervals("step.duration")
    assert (one.count, math.isnan(one.quantile(0.5)), two.maximum) == (100, True, 0.0312)
    assert run.series()[0].value is None
    assert len(run.damage) == 2
