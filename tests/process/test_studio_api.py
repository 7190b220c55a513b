"""The Studio's API: what a page reads of runs, from the files of a real hub."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tachograph.runs
from hub_requests import START, logs, metrics, number, rank
from hubs import ask, serving
from recorded_runs import DEFINITION, points, record, spoil
from studio import Studio, studio
from studio import record as run_for_real
from tachograph.hub.hub import Hub
from tachograph.runs.store import run_path

EVIL = "<img src=x onerror=alert(1)>'\"; DROP TABLE block;--/../../é😀\n%2F?#&"
RUN = f"the run {EVIL}"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Studio, Path]]:
    """Serve a store with a run of the documents' own example."""
    folder = tmp_path_factory.mktemp("real")
    run_for_real(folder, "example/1")
    with studio(folder) as served:
        yield served, folder / "store"


def charts(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a run's charts by group; those without one by metric."""
    return {each["group"] or each["metrics"][0]["metric"]: each for each in found["charts"]}


def test_the_list_says_how_each_run_stands(real: tuple[Studio, Path]) -> None:
    """A run that ended in an orderly way is finished, with what there is of it; an idle hub's own is not listed."""
    found = real[0].ask("runs")
    (run,) = found["runs"]
    assert found["run"] == "default"
    assert (run["id"], run["program"], run["state"], run["ranks"]) == ("example/1", "program", "finished", 0)
    assert (run["processes"], run["restarts"], run["damage"]) == (1, 0, [])
    assert run["points"] == sum(each.points for each in tachograph.runs.open("example/1", real[1]).metrics())
    assert 0 < run["seconds"] < 60
    assert run["started"] <= run["last"] <= found["now"]


def test_a_run_has_the_charts_that_its_program_defined(real: tuple[Studio, Path]) -> None:
    """A group is a chart with its x axis; scales have units and bounds; a metric without a group has its own chart."""
    found = real[0].ask("runs", "example/1")
    assert set(charts(found)) == {"training", "loops", "raw"}
    training = charts(found)["training"]
    assert training["x"] == {"units": "epoch", "lower": 0, "upper": 3}
    scales = {each["name"]: each for each in training["scales"]}
    assert (scales["loss"]["units"], scales["loss"]["lower"], scales["loss"]["upper"]) == ("nats", 0, None)
    assert (scales["share"]["units"], scales["share"]["lower"], scales["share"]["upper"]) == ("%", 0, 100)
    (curve,) = charts(found)["raw"]["metrics"][0]["curves"]
    assert (curve["points"], curve["x0"], curve["x1"], curve["min"], curve["max"]) == (30, 0, 29, 0, 14.5)
    assert curve["task"].endswith("train")
    assert curve["nonfinite"] == 0
    (process,) = found["processes"]
    assert (process["ended"], process["lost"], process["starts"], process["rank"]) == ("exit", False, 1, None)


def test_a_loop_says_how_far_it_is(real: tuple[Studio, Path]) -> None:
    """Progress has items done, their number, the rate and the time to go."""
    (bar,) = real[0].ask("runs", "example/1")["progress"]
    assert (bar["metric"], bar["group"], bar["count"], bar["total"], bar["done"]) == ("epochs", "loops", 3, 3, True)
    assert bar["eta"] == 0
    assert bar["rate"] > 0


def test_a_profiled_function_has_calls_percentiles_and_failures(real: tuple[Studio, Path]) -> None:
    """Calls and failures are exact, and the percentiles lie where the histogram's buckets allow."""
    functions = {each["function"].rpartition(".")[2]: each for each in real[0].ask("runs", "example/1")["functions"]}
    step = functions["step"]
    assert (step["calls"], step["failures"]) == (30, {"ValueError": 3})
    assert 0 < step["p50"] <= step["p99"] < 0.1
    assert 0 < step["mean"] < 0.1


def test_few_points_are_drawn_as_they_are(real: tuple[Studio, Path]) -> None:
    """Where there is room for all, a curve is its points bit for bit."""
    (line,) = real[0].ask("runs", "example/1", "curves", metric="raw")["curves"]
    recorded = list(tachograph.runs.open("example/1", real[1]).points("raw"))
    assert line["exact"]
    assert list(zip(line["x"], line["y"], strict=True)) == [(point.x, point.value) for point in recorded]
    assert line["seq"] == max(point.seq for point in recorded)
    assert line["points"] == 30


def test_a_throttled_curve_has_its_extremes_and_what_is_not_finite(real: tuple[Studio, Path]) -> None:
    """Every drawn value was recorded, no interval's extreme is missing, and NaN is told of where it was."""
    (line,) = real[0].ask("runs", "example/1", "curves", metric="loss", group="training")["curves"]
    drawn = set(zip(line["x"], line["y"], strict=True))
    assert drawn <= {(e + p / 10, math.exp(-(e + p / 10))) for e in range(3) for p in range(10)}
    for point in tachograph.runs.open("example/1", real[1]).points("loss"):
        assert point.min in line["y"]
        assert point.max in line["y"]
    assert line["x"] == sorted(line["x"])
    assert {kind for _, kind in line["nonfinite"]} == {"NaN"}


def test_events_come_in_order_and_in_parts(real: tuple[Studio, Path]) -> None:
    """Reading goes on behind the last number that was read; a name picks some."""
    first = real[0].ask("runs", "example/1", "events", limit=1)
    rest = real[0].ask("runs", "example/1", "events", after=first["events"][0]["number"])
    assert (first["more"], rest["more"]) == (True, False)
    assert first["events"][0]["name"] == "tachograph.process.start"
    (end,) = real[0].ask("runs", "example/1", "events", name="tachograph.process.end")["events"]
    assert end == rest["events"][-1]
    assert end["attributes"] == {"reason": "exit"}


def test_series_have_samples(real: tuple[Studio, Path]) -> None:
    """A histogram's samples are counts, sums, quantiles and extremes, all others' are values."""
    found = real[0].ask("runs", "example/1")
    kinds = {each["series"]: each["kind"] for each in found["series"]}
    told = real[0].ask("runs", "example/1", "samples", series=list(kinds))["samples"]
    assert {each["series"] for each in told} == set(kinds)
    for each in told:
        is_histogram = kinds[each["series"]] == "histogram"
        keys = ("count", "total", "p50", "p90", "p99", "min", "max") if is_histogram else ("value",)
        assert set(each) == {"series", "time", *keys, *(("error", "joined") if is_histogram else ())}
        assert all(len(each[key]) == len(each["time"]) for key in keys)
    step = next(each for each in found["series"] if each["attributes"].get("error.type") == "ValueError")
    (calls,) = (each for each in told if each["series"] == step["series"])
    assert calls["value"][-1] == 3


def test_a_run_that_there_is_not_is_said_in_words(real: tuple[Studio, Path]) -> None:
    """Unknown runs, metrics, ranks and paths answer 404 with a sentence, and name what is near."""
    served = real[0]
    for parts, query, words in [
        (("runs", "exmple/1"), {}, "did you mean 'example/1'"),
        (("runs", "example/1", "curves"), {"metric": "los"}, "no metric 'los'"),
        (("runs", "example/1", "curves"), {"metric": "loss", "group": ""}, "without a group"),
        (("runs", "example/1", "curves"), {"metric": "loss", "rank": 7}, "no points of rank 7"),
        (("runs", "example/1", "nothing"), {}, "/api/runs"),
        (("runs", "nothing", "live"), {}, "there is no run"),
    ]:
        answer = served.answer(*parts, **query)
        assert answer.status == 404
        assert words in json.loads(answer.body)["error"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("curves", {}),
        ("curves", {"metric": "loss", "pairs": 20_001}),
        ("curves", {"metric": "loss", "pairs": "-1"}),
        ("curves", {"metric": "loss", "pairs": "9" * 5000}),
        ("curves", {"metric": "loss", "low": "nan"}),
        ("curves", {"metric": "loss", "high": "x"}),
        ("curves", {"metric": "loss", "rank": "first"}),
        ("samples", {"series": list(range(501))}),
        ("samples", {"series": list(range(3000))}),
        ("samples", {"series": "1 OR 1=1"}),
        ("events", {"after": "now"}),
        ("events", {"limit": 10_001}),
    ],
)
def test_what_cannot_be_asked_is_said_in_words(real: tuple[Studio, Path], path: str, query: dict[str, Any]) -> None:
    """A question beyond the bounds, or that makes no sense, answers 400 with a sentence."""
    answer = real[0].answer("runs", "example/1", path, **query)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]


def test_nothing_can_be_changed(real: tuple[Studio, Path]) -> None:
    """Below /api and /static there is only reading."""
    for path in ("/api/runs", "/static/index.html"):
        assert ask(real[0].url, path, b"{}").status == 405
        assert ask(real[0].url, path, method="DELETE").status == 405


def test_names_are_data(tmp_path: Path) -> None:
    """A run, a metric and a group of whatever characters come back as they are."""
    sent = [("tachograph.definition", {"metric": EVIL, "group": EVIL, "scale": EVIL, "x_units": EVIL})]
    record(tmp_path, RUN, *sent, *points([1.0, 2.0], EVIL, group=EVIL), (EVIL, {EVIL: EVIL}))
    with serving(tmp_path) as hub:
        served = Studio(hub.url)
        (run,) = served.ask("runs")["runs"]
        assert run["id"] == RUN
        found = served.ask("runs", RUN)
        (chart,) = found["charts"]
        assert (chart["group"], chart["x"]["units"], chart["scales"][0]["name"]) == (EVIL, EVIL, EVIL)
        assert chart["metrics"][0]["metric"] == EVIL
        (line,) = served.ask("runs", RUN, "curves", metric=EVIL, group=EVIL)["curves"]
        assert line["y"] == [1, 2]
        (event,) = served.ask("runs", RUN, "events", name=EVIL)["events"]
        assert event["attributes"] == {EVIL: EVIL}


@pytest.mark.parametrize("name", ["../../../etc/passwd", "..", ".", "", "a\0b", "x" * 5000, "%00", "/", "a/b/../c"])
def test_no_name_becomes_a_path(tmp_path: Path, name: str) -> None:
    """A run's id never leads out of the store: what is no run is not found."""
    with serving(tmp_path / "store") as hub:
        answer = ask(hub.url, f"/api/runs/{quote(name, safe='')}")
        assert answer.status == 404
        assert b"error" in answer.body


def test_a_run_with_a_very_long_id_can_be_read(tmp_path: Path) -> None:
    """The file's name has only the beginning of an over-long id; by what the list says it is found."""
    record(tmp_path, "r" * 3000, *points([1.0]))
    with serving(tmp_path) as hub:
        (run,) = Studio(hub.url).ask("runs")["runs"]
        assert Studio(hub.url).ask("runs", run["id"])["run"]["points"] == 1


def test_a_broken_file_is_told_of_and_the_others_are_there(tmp_path: Path) -> None:
    """Damage and newer versions are words in the list; what can be read of a damaged run is read."""
    for name in ("good", "damaged", "newer", "torn"):
        record(tmp_path, name, *points([float(x) for x in range(3000)]))
    run_path(tmp_path, "damaged").write_bytes(b"\0" * 9000)
    with sqlite3.connect(run_path(tmp_path, "newer")) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert spoil(run_path(tmp_path, "torn"), lambda page: page[0] == 13 and b"CREATE " not in page)  # leaves of tables
    with serving(tmp_path) as hub:
        served = Studio(hub.url)
        runs = {run["id"]: run for run in served.ask("runs")["runs"]}
        assert set(runs) == {"good", "damaged", "newer", "torn"}
        assert [name for name, run in runs.items() if not run["damage"]] == ["good"]
        assert "newer Tachograph" in runs["newer"]["damage"][0]
        for name in ("damaged", "newer"):
            answer = served.answer("runs", name)
            assert answer.status == 409
            assert f"cannot read the run '{name}'" in json.loads(answer.body)["error"]
        torn = served.ask("runs", "torn")
        assert torn["damage"]
        assert torn["run"]["damage"]
        assert served.ask("runs", "good", "curves", metric="loss")["curves"][0]["points"] == 3000


def test_a_metric_without_points_has_no_curves(tmp_path: Path) -> None:
    """What was defined and never recorded is on its chart, and its curves are none."""
    record(tmp_path, "run", ("tachograph.definition", {"metric": "loss", "group": "g", "units": "nats"}))
    with serving(tmp_path) as hub:
        served = Studio(hub.url)
        (chart,) = served.ask("runs", "run")["charts"]
        named = {"metric": "loss", "scale": "metric:loss", "progress": False}
        assert chart["metrics"] == [{**named, "curves": [], "left_out": 0}]
        assert served.ask("runs", "run", "curves", metric="loss") == {"curves": []}


def test_metrics_share_a_chart_where_their_group_was_defined(tmp_path: Path) -> None:
    """Those defined with a group are one chart of it; others in the group have one each."""
    definitions = [("tachograph.definition", {"metric": name, "group": "train"}) for name in ("accuracy", "recall")]
    units = ("tachograph.definition", {"metric": "lr", "units": "1"})
    sent = [each for name in ("lr", "accuracy", "loss", "recall") for each in points([1.0], name, group="train")]
    record(tmp_path, "run", *definitions, *sent, *points([1.0], "loss", group="eval"), *points([1.0]), units)
    with serving(tmp_path) as hub:
        found = Studio(hub.url).ask("runs", "run")["charts"]
    assert [(each["group"], each["shared"], [one["metric"] for one in each["metrics"]]) for each in found] == [
        ("train", False, ["lr"]),
        ("train", True, ["accuracy", "recall"]),
        ("train", False, ["loss"]),
        ("eval", False, ["loss"]),
        ("", False, ["loss"]),
    ]
    assert [each["scales"][0]["units"] for each in found] == ["1", None, None, None, None]


def test_curves_of_many_attributes_are_listed_as_far_as_they_are_drawn(tmp_path: Path) -> None:
    """Of each metric the newest hundred in a rank are listed, with their attributes, and how many are not."""
    sent = [each for uid in range(130) for each in points([1.0], attributes={"uid": uid, "b": "x"})]
    record(tmp_path, "run", *sent)
    record(tmp_path, "run", *points([1.0]), number=1)
    with serving(tmp_path) as hub:
        served = Studio(hub.url)
        (chart,) = served.ask("runs", "run")["charts"]
        (metric,) = chart["metrics"]
        assert metric["left_out"] == 30
        listed = [each["attributes"] for each in metric["curves"]]
        assert listed == [*({"b": "x", "uid": uid} for uid in range(30, 130)), {}]
        lines = served.ask("runs", "run", "curves", metric="loss")["curves"]
        assert [each["attributes"] for each in lines] == listed


def test_losses_are_told_by_reason_and_destination(tmp_path: Path) -> None:
    """What the ranks dropped is added up, numbers that never came are missing, and each reason is explained."""
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    for at in (0, 1):
        attributes = {"reason": "queue_full", "destination": "otlp"}
        sent = [number("tachograph.dropped", 5 + at, kind="counter", attributes=attributes)]
        if at:
            sent.append(number("tachograph.dropped", 0, kind="counter", attributes={"reason": "no_number"}))
            sent.append(number("tachograph.dropped", 20, kind="counter", attributes={"reason": "of tomorrow"}))
        hub.receive_metrics(metrics(rank(at, run="run"), *sent, scope="tachograph"))
        hub.receive_logs(logs(rank(2 + at, run="run"), *points([1.0, 2.0]), stream=f"s{at}", seqs=[2, 5]))
    hub.receive_logs(logs(rank(0, run="run"), ("no number", {}), stream=""))
    hub.close()
    with serving(tmp_path) as hub_:
        found = Studio(hub_.url).ask("runs", "run")["losses"]
    assert [(each["reason"], each["destination"], each["points"], bool(each["why"])) for each in found] == [
        ("of tomorrow", "", 20, False),
        ("queue_full", "otlp", 11, True),
        ("missing", "", 6, True),
    ]


def test_a_zoom_has_the_points_of_its_window_and_one_beyond_on_each_side(tmp_path: Path) -> None:
    """Between low and high every point is there once there is room, and the line runs on at both edges."""
    record(tmp_path, "run", *points([math.sin(x) for x in range(20_000)]))
    with serving(tmp_path) as hub:
        served = Studio(hub.url)
        (whole,) = served.ask("runs", "run", "curves", metric="loss", pairs=100)["curves"]
        assert not whole["exact"]
        assert len(whole["x"]) <= 200
        assert (whole["points"], max(whole["y"])) == (20_000, max(math.sin(x) for x in range(20_000)))
        (part,) = served.ask("runs", "run", "curves", metric="loss", low=5000.5, high=5100)["curves"]
        assert part["exact"]
        assert part["x"] == [float(x) for x in range(5000, 5102)]
        assert (part["seq"], part["points"]) == (whole["seq"], 100)
        (beyond,) = served.ask("runs", "run", "curves", metric="loss", low=30_000)["curves"]
        assert beyond["x"] == [19_999]


def test_branches_and_ranks_are_lines_of_their_own(tmp_path: Path) -> None:
    """Each branch of each rank is a line; one rank can be picked, and a restart is another start, a stream is none."""
    record(tmp_path, "run", *points([1.0, 2.0]), *points([3.0], branch=1))
    record(tmp_path, "run", *points([5.0, float("inf")]), number=1)
    hub = Hub(tmp_path, run="run", clock=lambda: START)
    hub.receive_logs(logs(rank(1, run="run"), *points([7.0], "rate"), stream="run-1.packed"))
    hub.receive_logs(logs(rank(1, run="run", restart=1, pid=7), *points([8.0], "rate"), stream="again.packed"))
    hub.receive_logs(logs(rank(1, run="run", restart=1, pid=7), *points([6.0], branch=1), stream="again"))
    hub.close()
    with serving(tmp_path) as hub_:
        served = Studio(hub_.url)
        lines = served.ask("runs", "run", "curves", metric="loss")["curves"]
        found = [(line["rank"], line["start"], line["branch"], line["y"]) for line in lines]
        assert found == [(0, 0, 0, [1, 2]), (0, 0, 1, [3]), (1, 0, 0, [5]), (1, 1, 1, [6])]
        assert lines[2]["nonfinite"] == [[1, "Infinity"]]
        picked = served.ask("runs", "run", "curves", metric="loss", rank=1)["curves"]
        assert [line["rank"] for line in picked] == [1, 1]
        beside = served.ask("runs", "run", "curves", metric="rate")["curves"]
        assert [(line["start"], line["y"]) for line in beside] == [(0, [7]), (1, [8])]
        assert served.ask("runs", "run")["run"]["restarts"] == 1


def test_repeated_loops_are_one_metric(tmp_path: Path) -> None:
    """A loop that is run ten thousand times is one metric, of which the newest hundred are there, and three bars."""
    sent = []
    for place in range(1, 301):
        name = "steps" if place == 1 else f"steps#{place}"
        sent.append(("tachograph.definition", {"metric": name, "progress": True, "units": "item", "lower": 0.0}))
        sent += points([float(place)], name, total=300, rate=2.0, eta=float(300 - place))
    record(tmp_path, "run", *sent)
    with serving(tmp_path) as hub:
        found = Studio(hub.url).ask("runs", "run")
        (chart,) = found["charts"]
        (metric,) = chart["metrics"]
        assert metric["metric"] == "steps"
        assert len(metric["curves"]) == 100
        assert [bar["count"] for bar in found["progress"]] == [298, 299, 300]
        lines = Studio(hub.url).ask("runs", "run", "curves", metric="steps")["curves"]
        assert [line["y"] for line in lines] == [[place] for place in range(201, 301)]


def test_a_metric_with_a_progress_scale_has_a_bar(tmp_path: Path) -> None:
    """Its total is the upper bound of its scale; rate and time to go follow from its points."""
    record(
        tmp_path,
        "run",
        ("tachograph.definition", {"metric": "loss", "progress": True, "upper": 10.0}),
        *points([0.0, 1.0, 2.0, 4.0]),
    )
    with serving(tmp_path) as hub:
        (bar,) = Studio(hub.url).ask("runs", "run")["progress"]
        assert (bar["count"], bar["total"], bar["done"]) == (4, 10, False)
        assert bar["eta"] == pytest.approx(6 / bar["rate"])


WRONG = ("10", True, ["a"], math.nan, math.inf, -math.inf, 7)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_definition_that_says_nonsense_is_no_harm(tmp_path: Path, wrong: Any) -> None:
    """Any program may send a definition: bounds that are no finite numbers and units that are no text are left out."""
    keys = ("units", "x_units", "lower", "upper", "x_lower", "x_upper", "scale", "task")
    definition = {"metric": "loss", "progress": True, **dict.fromkeys(keys, wrong)}
    sent = points([1.0, 2.0], total=wrong if isinstance(wrong, float) else 5, rate=math.nan, eta=math.inf)
    record(tmp_path, "run", (DEFINITION, definition), *sent)
    record(tmp_path, "run", (DEFINITION, {**definition, "progress": wrong}), *points([1.0]), number=1)
    bound = 7 if wrong == 7 else None
    text = wrong if wrong == "10" else None
    with serving(tmp_path) as hub:
        found = Studio(hub.url).ask("runs", "run")
        (chart,) = found["charts"]
        assert chart["x"] == {"units": text, "lower": bound, "upper": bound}
        (scale,) = chart["scales"]
        assert scale == {"scale": scale["scale"], "name": text, "units": text, "lower": bound, "upper": bound}
        for curve in chart["metrics"][0]["curves"]:
            assert curve["task"] == text
        (bar, *_) = found["progress"]
        assert (bar["count"], bar["total"]) == (2, None if isinstance(wrong, float) else 5)
        assert len(found["progress"]) == (2 if wrong is True else 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bar_whose_last_value_is_no_number_is_told(tmp_path: Path, value: float) -> None:
    """It has no rate and no time to go; its count is spelled out."""
    definition = ("tachograph.definition", {"metric": "loss", "progress": True, "upper": 10.0})
    record(tmp_path, "run", definition, *points([0.0, value]))
    with serving(tmp_path) as hub:
        (bar,) = Studio(hub.url).ask("runs", "run")["progress"]
        spelled = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        assert (bar["count"], bar["total"], bar["rate"], bar["eta"]) == (spelled, 10, None, None)


def ended(store: Path, name: str, *ends: tuple[int, str, str]) -> None:
    """Record a run whose processes have each announced themselves and ended so; rank, role and reason."""
    hub = Hub(store, run=name, clock=lambda: START)
    for number_, role, reason in ends:
        who = {**rank(number_, run=name), "dl.role": role}
        last = [("tachograph.process.end", {"reason": reason})] if reason else []
        hub.receive_logs(logs(who, ("tachograph.process.start", {}), *last, stream=f"{name}{number_}"))
        hub.receive_metrics(metrics(who, number("loss", 1.0)))
    hub.close()


def test_a_run_stands_as_its_processes_ended(tmp_path: Path) -> None:
    """An exception fails a run, silence loses it, and torchrun's own process knows better than the ranks."""
    ended(tmp_path, "finished", (0, "trainer", "exit"), (1, "trainer", "exit"))
    ended(tmp_path, "failed", (0, "trainer", "exit"), (1, "trainer", "exception"))
    ended(tmp_path, "lost", (0, "trainer", "exit"), (1, "trainer", ""))
    ended(tmp_path, "rescued", (0, "trainer", ""), (1, "agent", "exit"))
    ended(tmp_path, "doomed", (0, "trainer", "exit"), (1, "agent", "exception"))
    with serving(tmp_path) as hub:
        found = {run["id"]: run["state"] for run in Studio(hub.url).ask("runs")["runs"]}
        named = {"finished": "finished", "failed": "failed", "lost": "lost", "rescued": "finished", "doomed": "failed"}
        assert found == named
        processes = Studio(hub.url).ask("runs", "lost")["processes"]
        assert [each["lost"] for each in processes] == [False, True]
