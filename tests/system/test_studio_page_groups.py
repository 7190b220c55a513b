"""The Studio's page in a real browser: each group is a section, in which everything that was recorded has a chart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import NARROW, WIDE, Tab, tab
from hub_requests import SECOND, START, Clock, histogram, logs, metrics, number, rank
from hubs import PROTOBUF, ask, command
from programs import environment
from recorded_runs import DEFINITION, POINT, points
from recorded_runs import record as store_run
from studio import record, studio
from tachograph.hub.hub import Hub

pytest.importorskip("uvicorn")

pytestmark = pytest.mark.usefixtures("untraced_module")  # it records 120,000 points, and other files read pages, too

EVIL = "<img src=x onerror=alert(1)>\"'&"
LAYERS = 100
OPTIMIZERS = {"adam": 1.0, "sgd": 2.0, EVIL: 3.0}
SETS = 130
RANKS, STRAGGLER, LONG = 40, 33, 3000
# The README's first example, with all that a `put_metric` and a `declare` may be.
DOORS = """
import time
import tachograph

tokens = tachograph.declare("tokens", group="training", kind="counter", unit="{token}")
load = tachograph.declare("load", group="data", kind="histogram", unit="s")
add = tokens.bind(modality="text")

@tachograph.prof
def train_step(step):
    time.sleep(0.001)
    add(512)
    load.record(0.02)
    tachograph.put_metric("lr", 0.1, "optimizer")
    tachograph.put_metric("loss", 1 / (step + 1), "training")
    tachograph.put_metric("samples", "no number", "training")

for step in range(50):
    train_step(step)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve runs of groups, of attributes, of samples, of losses, and of a real program."""
    folder = tmp_path_factory.mktemp("groups")
    store = folder / "store"
    layers = [each for at in range(LAYERS) for each in points([at, at + 1.0], f"layer.{at}.norm", group="model")]
    scale = {"group": "train", "x_units": "epoch"}
    curves = [
        *layers,
        *((DEFINITION, {"metric": name, **scale}) for name in ("accuracy", "recall")),
        *points([0.5, 0.75], "accuracy", group="train"),
        *points([0.25, 0.5], "recall", group="train"),
        *points([1e6, 2e6], "tokens", group="train"),
        *points([3.0, 2.0], "validLoss", group="train"),
        *points([4.0, 3.0], "loss", group="train"),
        *points([1.0], "lossless", group="alone"),
        *points([1.0], "free"),
    ]
    for at in (0, 1):
        store_run(store, "groups", *curves, number=at)
    sets = [
        each
        for name, by in OPTIMIZERS.items()
        for each in points([by, by], group="train", attributes={"optimizer": name})
    ]
    several = [each for uid in range(SETS) for each in points([float(uid)], "reward", attributes={"uid": uid})]
    store_run(store, "attributes", *sets, *several)
    own = [(DEFINITION, {"metric": name, "group": "axes"}) for name in ("m0", "m1", "m2", "m3", "m4", "near")]
    for name, about in {"percent": {"scale": "share", "units": "%"}, "c": {"scale": "heat", "units": "Cel"}}.items():
        own.append((DEFINITION, {"metric": name, "group": "axes", **about}))
    tops = {**{f"m{place}": 10.0**place for place in range(5)}, "near": -2.5, "percent": 99.0, "c": 60.0}
    own += [each for name, top in tops.items() for each in points([0.0, top], name, group="axes")]
    store_run(store, "axes", *own)
    for at in (0, 1):
        both = [each for name in ("adam", "sgd") for each in points([1.0 + at], attributes={"optimizer": name, "k": 2})]
        store_run(store, "attributes of ranks", *both, number=at)
    for at in range(RANKS):
        nan = [float("nan")] if at == STRAGGLER else []
        steps = (DEFINITION, {"metric": "steps", "progress": True, "upper": 20.0})
        warm = (DEFINITION, {"metric": "warm-up", "progress": True, "upper": 3.0})
        loops = [warm, *points([3.0], "warm-up"), steps, *points([4.0 if at == STRAGGLER else 8.0 + at % 3], "steps")]
        values = [*(1 / (x + 1) + of_rank(at) for x in range(9)), *nan]
        store_run(store, "ranks", *loops, *points(values), number=at)
        store_run(store, "long", *points([10 * at + x % 7 for x in range(LONG + at)]), number=at)
    _sampled(store)
    _lossy(store)
    store_run(store, "events", ("checkpoint", {"step": 7}))
    store_run(store, "nothing", ("tachograph.process.start", {}), ("tachograph.process.end", {"reason": "exit"}))
    record(folder, "doors", DOORS)
    with_machine = environment(folder, TACHOGRAPH_SYSTEM_METRICS="true")
    for name, program in (("silent", [sys.executable, "-c", "print('nothing is recorded')"]), ("shell", ["true"])):
        line = [sys.executable, "-m", "tachograph", "run", "--quiet", "--run-id", name, "--port", "0", "--", *program]
        subprocess.run(line, cwd=folder, env=with_machine, timeout=60, check=True)
    with studio(folder) as served:
        yield served.url


def _sampled(store: Path) -> None:
    """Record a counter and a histogram, each with three samples ten seconds apart, and what a machine counts."""
    clock = Clock()
    hub = Hub(store, run="samples", clock=clock)
    for turn in range(3):
        now = START + turn * 10 * SECOND
        told: dict[str, Any] = {"kind": "counter", "time": now}
        sent = [
            number("tokens", 1000 * (turn + 1), unit="{token}", attributes={"modality": "text"}, **told),
            histogram("load", (turn + 1, 0, turn + 1), total=4.0 * (turn + 1), time=now),
            number("system.cpu.time", 5 * turn, unit="s", attributes={"cpu.mode": "user"}, **told),
        ]
        hub.receive_metrics(metrics(rank(0, run="samples"), *sent, scope="training"))
        hub.tick()
        clock.forward(10)
    hub.close()


def _lossy(store: Path) -> None:
    """Record a run of two ranks that dropped values, and of one whose points never came."""
    hub = Hub(store, run="lossy", clock=lambda: START)
    for at in (0, 1):
        dropped = {"queue_full": 600, "no_number": 17} if at else {"queue_full": 600}
        sent = [
            number("tachograph.dropped", many, kind="counter", attributes={"reason": reason, "destination": "otlp"})
            for reason, many in dropped.items()
        ]
        hub.receive_metrics(metrics(rank(at, run="lossy"), *sent, scope="tachograph"))
    hub.receive_logs(logs(rank(2, run="lossy"), *points([1.0, 2.0]), seqs=[3, 6]))
    hub.close()


def of_rank(number: int) -> float:
    """Return how much the values of a rank are above those of rank 0."""
    return 5.0 if number == STRAGGLER else number / 100


def sections(page: Tab) -> dict[str, list[str]]:
    """Return the titles of the charts of each section that is not folded up, in the page's order."""
    return {
        str(each.get_attribute("aria-label")): each.locator("h3").all_inner_texts()
        for each in page.page.locator("section.group").all()
    }


def test_a_group_is_a_section_and_the_loss_comes_first(page: Tab) -> None:
    """Metrics of a MetricGroup share a chart, others have one each; losses come first, and single numbers are text."""
    page.open("/#/run/groups").loaded("loss")
    assert list(sections(page)) == ["Key metrics", "train", "model"]
    assert sections(page)["Key metrics"] == ["loss"]
    assert sections(page)["train"] == ["train", "tokens"]
    assert page.page.locator(".values").inner_text().split() == ["Values", "alone/lossless", "1", "free", "1"]
    assert sections(page)["model"] == [f"layer.{at}.norm" for at in range(LAYERS)]
    found = page.loaded("train", "tokens", "loss")
    assert {each["metric"] for each in found["train"]["curves"]} == {"accuracy", "recall"}
    assert {each["metric"] for each in found["tokens"]["curves"]} == {"tokens"}
    assert (found["train"]["x"]["units"], found["tokens"]["x"]["units"]) == ("epoch", "")
    (axis,) = found["loss"]["y"]
    assert found["loss"]["scales"][axis["key"]][1] < 10  # not that of the millions of tokens


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_of_many_charts_only_those_in_view_are_fetched(browser: Any, url: str, size: tuple[int, int]) -> None:
    """Of a hundred metrics of a group the page asks for those near the window; the others come as it is scrolled."""
    with tab(browser, url, size=size) as page:
        page.open("/#/run/groups").loaded("loss")
        page.page.wait_for_timeout(500)
        asked = sum("/curves" in each for each in page.asked)
        assert asked < 30
        assert len(page.drawn()) == LAYERS + 3
        last = page.card(f"layer.{LAYERS - 1}.norm")
        last.scroll_into_view_if_needed()
        drawn = page.loaded(f"layer.{LAYERS - 1}.norm")[f"layer.{LAYERS - 1}.norm"]["curves"]
        assert [(each["rank"], each["y"]) for each in drawn] == [(at, [LAYERS - 1, LAYERS]) for at in (0, 1)]
        assert sum("/curves" in each for each in page.asked) < asked + 60
        box = last.locator(".u-over").bounding_box()
        assert box["width"] > 200
        assert box["height"] > 90
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.shoot(f"groups-{size[0]}", full=False)
        assert page.complaints == []


def test_curves_that_differ_in_attributes_alone_are_told_apart(page: Tab) -> None:
    """Legend and pointer name a curve's attributes, each set has its colour, and one can be hidden."""
    curves = page.open("/#/run/attributes").loaded("loss")["loss"]["curves"]
    assert [(each["label"], each["y"]) for each in curves] == [
        ('{optimizer="adam"}', [1, 1]),
        ('{optimizer="sgd"}', [2, 2]),
        ('{optimizer="<img src=x onerror=alert(1)>\\"\'&"}', [3, 3]),
    ]
    assert len({each["colour"] for each in curves}) == 3
    card = page.card("loss")
    assert card.locator(".legend .name").all_inner_texts() == [each["label"] for each in curves]
    over = card.locator(".u-over")
    over.hover(position={"x": 20, "y": over.bounding_box()["height"] - 10})  # near the least value
    page.until(card.locator(".hover").is_visible, "box")
    assert card.locator(".hover th").all_inner_texts() == [each["label"] for each in curves]  # the nearest first
    card.get_by_role("button", name='{optimizer="sgd"}').click()
    page.until(lambda: {each["y"][0] for each in page.drawn()["loss"]["curves"]} == {1, 3}, "two curves")
    assert page.page.locator("img").count() == 1  # the brand's


def test_attributes_are_beside_the_rank(page: Tab) -> None:
    """Curves of several ranks are named by both, not by an attribute that all have; a colour is one set of them."""
    curves = page.open("/#/run/attributes%20of%20ranks").loaded("loss")["loss"]["curves"]
    assert [(each["label"], each["rank"], each["y"]) for each in curves] == [
        (f'{{optimizer="{name}"}} rank {at}', at, [1 + at]) for name in ("adam", "sgd") for at in (0, 1)
    ]
    assert [each["colour"] for each in curves] == [curves[place]["colour"] for place in (0, 0, 2, 2)]
    assert curves[0]["colour"] != curves[2]["colour"]


def test_of_very_many_sets_of_attributes_the_newest_are_drawn_and_it_says_so(page: Tab) -> None:
    """No more than a hundred curves of a metric and rank are drawn, and the chart says of how many."""
    curves = page.open("/#/run/attributes").loaded("reward")["reward"]["curves"]
    assert {each["y"][0] for each in curves} == set(range(SETS - 100, SETS))
    assert f"the newest 100 of {SETS} curves" in page.card("reward").inner_text()


@pytest.mark.parametrize("size", [WIDE, (1024, 800), NARROW], ids=["wide", "middle", "narrow"])
def test_axes_leave_room_for_the_curves(browser: Any, url: str, size: tuple[int, int]) -> None:
    """Metrics without a scale share an axis where they agree, and else have a chart each; a chart has two axes."""
    with tab(browser, url, size=size) as page:
        page.open("/#/run/axes")
        page.until(lambda: len(page.drawn()) == 5, "each axis that has no place")
        for title in page.drawn():
            page.card(title).scroll_into_view_if_needed()
            page.loaded(title)
        found = page.drawn()
        names = {title: [curve["metric"] for curve in chart["curves"]] for title, chart in found.items()}
        assert names == {"axes": ["m0", "m1", "near", "percent"], "m2": ["m2"], "m3": ["m3"], "m4": ["m4"], "c": ["c"]}
        tops = [found["axes"]["scales"][axis["key"]][1] for axis in found["axes"]["y"]]
        assert tops == pytest.approx([10, 100], rel=0.1)
        for title, chart in found.items():
            card = page.card(title)
            assert card.locator(".u-axis").count() == 1 + len(chart["y"])
            plot, whole = card.locator(".u-over").bounding_box(), card.bounding_box()
            assert plot["width"] >= 0.75 * whole["width"], title
        said = page.card("axes").locator(".note").inner_text()
        assert "share (%) →" in said  # a card of a group has no room for the names of two axes
        page.shoot(f"axes-{size[0]}")
        assert page.complaints == []


def test_many_ranks_are_their_median_with_a_band(browser: Any, url: str) -> None:
    """A line of the median, in a band of extremes that name their ranks; each rank by itself is a key away."""
    with tab(browser, url, dark=True) as page:
        found = page.open("/#/run/ranks").loaded("loss")["loss"]
        (line,) = found["curves"]
        assert (line["rank"], line["x"]) == (None, list(range(9)))
        base = [1 / (x + 1) for x in range(9)]
        assert line["y"] == pytest.approx([each + (of_rank(19) + of_rank(20)) / 2 for each in base])
        assert line["band"]["min"] == pytest.approx(base)
        assert line["band"]["max"] == pytest.approx([each + 5 for each in base])
        assert (set(line["extremes"]["min"]), set(line["extremes"]["max"])) == ({0}, {STRAGGLER})
        assert line["nonfinite"] == [[9, "NaN"]]
        card = page.card("loss")
        said = card.locator(".note").inner_text()
        assert "median of 40 ranks" in said
        assert "not a finite number" in said
        assert found["scales"]["ymetric:loss"][1] > 6  # the straggler is in sight
        card.locator(".u-over").hover()
        assert "(rank 33)" in card.locator(".hover").inner_text()
        page.shoot("ranks")
        card.get_by_role("button", name="ranks").click()
        page.until(lambda: len(page.drawn()["loss"]["curves"]) == RANKS, "each rank")
        card.focus()
        page.page.keyboard.press("a")
        page.until(lambda: len(page.drawn()["loss"]["curves"]) == 1, "the median again")
        assert page.complaints == []


def test_a_loop_of_many_ranks_is_one_bar(page: Tab) -> None:
    """The bar is as far as the slowest rank, with a tick for each place; a loop that all have done is a name."""
    page.open("/#/run/ranks").loaded("loss")
    bar, done = page.page.locator(".progress .bar").all()
    assert bar.locator(".name").inner_text() == "steps · 40 ranks"
    assert "4 of 20 · 20 %" in bar.inner_text()
    assert "rank 33 is last, rank 38 at 10" in bar.inner_text()
    assert bar.locator(".track b").count() == 4  # 4, 8, 9 and 10 of 20
    assert done.inner_text().split("\n") == ["warm-up · 40 ranks", "3/3 ✓"]
    assert page.page.locator(".progress").bounding_box()["height"] < 90
    page.shoot("progress")


def test_ranks_that_were_thinned_apart_have_a_band_of_their_stretches(page: Tab) -> None:
    """Where ranks have other x, each stretch has the mean of each rank; nothing is out of the band."""
    (line,) = page.open("/#/run/long").loaded("loss")["loss"]["curves"]
    assert len(line["x"]) <= 600
    assert line["x"] == sorted(line["x"])
    low, high = line["band"]["min"], line["band"]["max"]
    assert all(least <= middle <= most for least, middle, most in zip(low, line["y"], high, strict=True))
    assert (min(low), max(high)) == (0, 10 * (RANKS - 1) + 6)


def test_counters_and_histograms_are_charts_of_their_group(page: Tab) -> None:
    """A counter is drawn as its total and its rate, a histogram as its mean and its rate, unfolded."""
    found = page.open("/#/run/samples").loaded("tokens", "load")
    assert sections(page) == {"training": ["tokens", "load"]}
    tokens = {each["label"]: each for each in found["tokens"]["curves"]}
    assert tokens['total {modality="text"}']["y"] == [1000, 2000, 3000]
    assert tokens['a second {modality="text"}']["y"] == [100, 100]
    assert [each["label"] for each in found["tokens"]["y"]] == ["token", "token/s"]
    load = {each["label"]: each for each in found["load"]["curves"]}
    assert load["mean"]["y"] == [2, 2, 2]
    assert load["a second"]["y"] == [0.2, 0.2]
    assert "recorded no metrics" not in page.text()


def test_what_a_machine_counts_is_folded_up_and_has_its_rate_alone(page: Tab) -> None:
    """The machine's series are below all that the program recorded; their totals since the machine started are not."""
    page.open("/#/run/samples").loaded("tokens")
    page.page.locator("summary").filter(has_text="System and GPUs").click()
    page.card("system.cpu.time").scroll_into_view_if_needed()
    (curve,) = page.loaded("system.cpu.time")["system.cpu.time"]["curves"]
    assert (curve["label"], curve["y"]) == ("user", [0.5, 0.5])


def test_what_was_lost_is_said_by_reason(page: Tab) -> None:
    """The losses of all ranks and gaps in the numbers are in the page's head; unfolded, each reason is explained."""
    page.open("/#/run/lossy")
    losses = page.page.locator(".losses")
    page.until(losses.count, "losses")
    page.page.locator(".faults > summary").click()
    assert (
        losses.inner_text()
        == "Lost: 1\u202f221 points \u2013 queue_full (otlp) 1\u202f200, no_number (otlp) 17, missing 4"
    )
    losses.locator("summary").click()
    rows = [row.locator("th, td").all_inner_texts() for row in losses.locator("tbody tr").all()]
    assert [row[:3] for row in rows] == [
        ["queue_full", "otlp", "1\u202f200"],
        ["no_number", "otlp", "17"],
        ["missing", "\u2013", "4"],
    ]
    assert "The queue is full" in rows[0][3]
    page.shoot("losses", full=False)


def test_a_program_of_every_kind_of_value_has_them_in_sections(page: Tab) -> None:
    """The README's first example and its kind: a section a group, the loss first, no word of nothing recorded."""
    page.open("/#/run/doors").loaded("loss", "tokens")
    assert next(iter(sections(page).items())) == ("training", ["loss", "tokens"])
    assert sections(page)["data"] == ["load"]
    assert "optimizer/lr" in page.page.locator(".values").inner_text()
    assert next(iter(page.drawn())) == "loss"
    assert "train_step" in page.page.locator("section[aria-label=Functions]").inner_text()
    assert "no metrics" not in page.text().lower()
    page.page.locator(".faults > summary").click()
    assert "no_number (registry) 50" in page.text()


@pytest.mark.parametrize(("run", "empty"), [("nothing", True), ("events", False), ("lossy", False)])
def test_nothing_recorded_is_said_where_that_is_so(page: Tab, run: str, *, empty: bool) -> None:
    """A run whose processes only began and ended has recorded no metrics; of any other the page does not say so."""
    page.open(f"/#/run/{run}").until(lambda: "Duration" in page.text(), "the run's head")
    page.page.wait_for_timeout(700)
    assert ("This run has recorded no metrics" in page.text()) is empty


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ("silent", "This run has recorded no metrics. Call tachograph.log("),
        ("shell", "No Python process of this run reported to Tachograph."),
    ],
)
def test_a_real_run_without_metrics_says_why(page: Tab, run: str, reason: str) -> None:
    """The page of a program that records nothing, and of a command without Python, has the reason above the machine."""
    page.open(f"/#/run/{run}").until(lambda: "Memory" in page.text(), "the machine")
    page.until(lambda: reason in page.text(), reason)
    page.shoot(f"empty-{run}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("loss", 0), ("Loss", 0), ("val_loss", 1), ("trainLoss", 1), ("eval/loss.mean", 1), ("loss-2", 1)),
        *(("lossless", 2), ("glossy", 2), ("accuracy", 2), ("", 2), ("блюз loss", 1)),
    ],
)
def test_a_loss_is_known_by_a_word_of_its_name(page: Tab, name: str, expected: int) -> None:
    """Words end at what is no letter or digit, and where a small letter is followed by a large one."""
    page.open("/")
    rank_of = "name => import('/static/groups.js').then((module) => module.lossRank(name))"
    assert page.page.evaluate(rank_of, name) == expected


def test_a_chart_moves_when_its_group_is_defined(browser: Any, tmp_path: Path) -> None:
    """A metric that turns out to be of a MetricGroup goes to the group's chart, live, which stays as it was set."""
    with command(tmp_path, "--run-id", "run") as hub, tab(browser, hub.url) as page:

        def send(first: int, *sent: tuple[str, dict[str, Any]]) -> None:
            body = logs(rank(0, run="run"), *sent, stream="start", first=first).SerializeToString()
            assert ask(hub.url, "/v1/logs", body, Content_Type=PROTOBUF).status == 200

        def at(x: float, metric: str) -> tuple[str, dict[str, Any]]:
            return POINT, {"metric": metric, "group": "training", "x": x, "value": x}

        send(1, at(0, "loss"), at(0, "lr"))
        page.open("/#/run/run").loaded("loss", "lr")
        assert sections(page) == {"training": ["loss", "lr"]}
        send(3, (DEFINITION, {"metric": "loss", "group": "training", "x_units": "epoch"}), at(1, "loss"), at(1, "lr"))
        page.until(lambda: sections(page) == {"training": ["training", "lr"]}, "the group's chart")
        page.until(lambda: [each["y"] for each in page.drawn()["training"]["curves"]] == [[0, 1]], "its curve")
        page.until(lambda: [each["y"] for each in page.drawn()["lr"]["curves"]] == [[0, 1]], "the other's")
        send(6, at(2, "loss"), at(2, "new"))
        page.until(lambda: [each["y"] for each in page.drawn()["training"]["curves"]] == [[0, 1, 2]], "a live point")
        page.until(lambda: sections(page) == {"training": ["training", "lr", "new"]}, "a new metric")
        log = page.card("training").get_by_role("button", name="log")
        log.click()
        send(8, (DEFINITION, {"metric": "lr", "group": "training", "x_units": "epoch"}), at(3, "lr"), at(3, "loss"))
        page.until(lambda: sections(page) == {"training": ["training", "new"]}, "one more metric in the group")
        both = {"loss": [0, 1, 2, 3], "lr": [0, 1, 3]}
        page.until(lambda: {each["metric"]: each["y"] for each in page.drawn()["training"]["curves"]} == both, "both")
        assert log.get_attribute("aria-pressed") == "true"  # as its reader has set it
        assert page.complaints == []
        hub.process.terminate()
        hub.end()


def test_points_that_no_chart_shows_do_not_keep_the_page_asking(browser: Any, tmp_path: Path) -> None:
    """Live points of a folded section, or of a set of attributes that is left out, are no reason to look again."""
    with command(tmp_path, "--run-id", "run") as hub, tab(browser, hub.url) as page:

        def send(first: int, *sent: tuple[str, dict[str, Any]]) -> int:
            body = logs(rank(0, run="run"), *sent, stream="start", first=first).SerializeToString()
            assert ask(hub.url, "/v1/logs", body, Content_Type=PROTOBUF).status == 200
            return first + len(sent)

        def at(x: float, metric: str, **more: Any) -> tuple[str, dict[str, Any]]:
            return POINT, {"metric": metric, "x": x, "value": x, **more}

        sets = [at(0, "reward", attributes={"uid": uid}) for uid in range(SETS)]
        first = send(1, at(0, "loss"), at(0, "torchrun.state", group="torchelastic"), *sets)
        page.open("/#/run/run").loaded("loss")
        looks = []
        for x in range(1, 14):
            state = at(x, "torchrun.state", group="torchelastic")
            first = send(first, at(x, "loss"), state, at(x, "reward", attributes={"uid": 0}))
            page.until(lambda x=x: page.drawn()["loss"]["curves"][0]["y"] == list(range(x + 1)), "a live point")
            looks.append(sum(each.endswith("/api/runs/run") for each in page.asked))
        assert looks[-1] - looks[2] <= 2  # it looks every ten seconds anyway
        assert page.complaints == []
        hub.process.terminate()
        hub.end()
