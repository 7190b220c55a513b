"""The Studio's page in a real browser: what it draws is what was recorded, and it does not fall over."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tachograph.runs
from browser import NARROW, WIDE, Tab, tab
from recorded_runs import DEFINITION, POINT, points, spoil
from recorded_runs import record as store_run
from studio import record, studio
from tachograph.hub.hub import Hub
from tachograph.identity.launch import Launch
from tachograph.recording.journal import CONFIG, SUMMARY
from tachograph.runs.store import run_path

pytest.importorskip("uvicorn")

# The documents' own example: two metrics in a group, scales, at=epoch, progress with a key and a group, throttles. The
# documents say `import coflux as cf`.
EXAMPLE = """
import math, random, time
import tachograph as cf

group = cf.MetricGroup("training", units="epoch")

loss = cf.Metric("loss", group=group, scale=cf.MetricScale(units=""))
accuracy = cf.Metric("accuracy", group=group, scale=cf.MetricScale(units="%", lower=0, upper=100))

metric = cf.Metric("fast_metric", throttle=100)
exact = cf.Metric("exact_metric", throttle=None)

random.seed(8)

@cf.prof
def run_epoch(epoch):
    for step in range(25):
        at = epoch + step / 25
        exact.record(math.nan if (epoch, step) == (4, 7) else 2.4 * math.exp(-at / 9) + random.gauss(0, 0.05), at=at)
        metric.record(abs(random.gauss(1, 0.3)) + (7 if (epoch, step) == (11, 3) else 0), at=at)
    return 2.4 * math.exp(-epoch / 9) + 0.1, 97 * (1 - math.exp(-epoch / 6))

@cf.task()
def train(epochs):
    for epoch in range(epochs):
        loss_val, acc_val = run_epoch(epoch)
        loss.record(loss_val, at=epoch)
        accuracy.record(acc_val, at=epoch)
        time.sleep(0.05)

@cf.task()
def process_batch(items):
    for item in cf.progress(items, key="items_processed", group="processing"):
        time.sleep(0.001)

train(30)
process_batch(range(40))
"""
RUN = "example"
SEED = 2**62 + 1
EVIL = "<img src=x onerror=alert(1)>'\"; DROP TABLE block;--/../../é😀%2F?#&"
SHELL_EVIL = EVIL.replace("'", "'\\''")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve a store with a real run of the documents' own example, and others that were put there."""
    folder = tmp_path_factory.mktemp("page")
    record(folder, RUN, EXAMPLE)
    store = folder / "store"
    store_run(store, EVIL, *points([1.0, 2.0], EVIL, group=EVIL), day=1)
    big = [math.sin(x / 4000) + (9 if x == 31_234 else 0) for x in range(50_000)]
    store_run(store, "big", *points(big, "wave", group="waves"), day=2)
    for number in range(3):
        definition = (DEFINITION, {"metric": "loss", "group": "training", "scale": "own", "units": "nats"})
        resumed = points([4.0 - number, 3.0, 2.0, math.inf], branch=0) + points([3.5, 1.5], branch=1)
        store_run(store, "ranks", definition, *resumed, number=number, day=3)
    told = {"lr": 0.1, "model.name": EVIL, "betas": [0.9, 0.999], "limit": math.inf, "seed": SEED, "none": None}
    store_run(store, "told", (CONFIG, {CONFIG: told}), (SUMMARY, {SUMMARY: {"best": 0.75}}), day=6)
    about = {"argv": ["python", "train.py", "--name", EVIL], "git.dirty": True, "host": "node-7"}
    launched = Hub(store, run="told")
    launched.launched(Launch(1, "node-7", about, ("baseline", "<b>"), f"A try.\n{EVIL}"))
    launched.close()
    store_run(store, "nothing", (DEFINITION, {"metric": "promised"}), day=4)
    interval = {"count": 9, "min": 0.5, "max": 4.0, "nonfinite": 3, "nan_x": 3.5, "posinf_x": 3.25, "neginf_x": 3.75}
    store_run(
        store, "odd", *points([1.0, 2.0, 3.0]), (POINT, {"metric": "loss", "x": 4.0, "value": 4.0, **interval}), day=7
    )
    for begin in (0, 1, 2):  # each a block of its own; the pages of the first are overwritten
        store_run(store, "broken", *points([begin + 0.123456789] * 2000, "wave", group="waves"), number=begin, day=5)
    assert spoil(run_path(store, "broken"), lambda content: content.count(struct.pack("<d", 0.123456789)) > 100)
    with studio(folder) as served:
        yield served.url, store


@pytest.fixture
def page(browser: Any, hub: tuple[str, Path]) -> Iterator[Tab]:
    """Open a tab; the browser may complain of nothing."""
    with tab(browser, hub[0]) as found:
        yield found
    assert found.complaints == []


def recorded(store: Path, run: str, metric: str) -> list[tuple[float, float]]:
    """Return the finite points of a metric, with the extremes of throttled intervals, as they are to be drawn."""
    found = set()
    for point in tachograph.runs.open(run, store).points(metric):
        more = point.more
        found |= {(point.x, point.value), *((more[f"{end}_x"], more[end]) for end in ("min", "max") if end in more)}
    return sorted(pair for pair in found if math.isfinite(pair[1]))


def pairs(curve: dict[str, Any]) -> list[tuple[float, float]]:
    """Return what is drawn of a curve."""
    return sorted(zip(curve["x"], curve["y"], strict=True))


def test_what_is_drawn_is_what_was_recorded(page: Tab, hub: tuple[str, Path]) -> None:
    """Each series that the page draws of the documents' own example has the recorded points, and no others."""
    page.open(f"/#/run/{RUN}")
    found = page.loaded("training", "fast_metric", "exact_metric")
    for chart in ("training", "fast_metric", "exact_metric"):
        for curve in found[chart]["curves"]:
            assert pairs(curve) == recorded(hub[1], RUN, curve["metric"])
    assert {curve["metric"] for curve in found["training"]["curves"]} == {"loss", "accuracy"}
    assert max(y for _, y in pairs(found["fast_metric"]["curves"][0])) > 7  # the spike, which a throttle held back
    assert "items_processed" not in found


def test_the_configuration_and_the_summary_are_below_the_charts(page: Tab) -> None:
    """Each key of config() and of summary() is a row, its value as text, whatever is in it."""
    page.open("/#/run/told").until(lambda: "Configuration" in page.text(), "the tables")
    others = {"seed": str(SEED), "none": "null"}
    for title, expected in (
        ("Configuration 6", {"lr": "0.1", "model.name": EVIL, "betas": "[0.9, 0.999]", "limit": "Infinity", **others}),
        ("Summary 1", {"best": "0.75"}),
        ("Program 3", {"argv": f"python train.py --name '{SHELL_EVIL}'", "git.dirty": "true", "host": "node-7"}),
    ):
        section = page.page.locator("details.section").filter(
            has=page.page.get_by_role("heading", name=title, exact=True)
        )
        rows = [row.locator("th, td").all_inner_texts() for row in section.locator("tbody tr").all()]
        assert dict(rows) == expected
    assert page.page.locator(".run-notes").inner_text() == f"A try.\n{EVIL}"
    assert page.page.locator(".facts").get_by_text("<b>, baseline", exact=True).count() == 1
    page.shoot("configuration")
    page.page.goto(f"{page.url}/#/")
    page.page.get_by_label("Search runs").fill("baseline")
    page.until(lambda: page.page.locator("table.runs tbody tr").count() == 1, "the tagged run alone")
    assert page.page.locator("table.runs .chip.tag").all_inner_texts() == ["<b>", "baseline"]


def test_a_seed_of_64_bits_is_shown_and_found_digit_by_digit(page: Tab) -> None:
    """An integer beyond 2^53 is in the table as it was recorded, and the filter tells it from its neighbor."""
    page.open("/#/?columns=config.seed").until(lambda: str(SEED) in page.text(), "the seed")
    search = page.page.get_by_label("Search runs")
    for text, runs in ((f"config.seed = {SEED}", 1), (f"config.seed = {SEED - 1}", 0), (f"seed > {SEED - 1}", 1)):
        search.fill(text)
        page.until(lambda runs=runs: page.page.locator("table.runs tbody tr").count() == runs, f"{text}: {runs} runs")


def test_axes_have_the_units_and_bounds_of_their_definitions(page: Tab) -> None:
    """The x axis has the group's units; each scale an axis of its own, and its bounds are what the axis shows."""
    chart = page.open(f"/#/run/{RUN}").loaded("training")["training"]
    assert chart["x"]["units"] == "epoch"
    loss, accuracy = chart["y"]
    assert (loss["label"], accuracy["label"]) == ("loss", "accuracy (%)")
    assert chart["scales"][accuracy["key"]] == [0, 100]
    assert chart["scales"]["x"] == [0, 29]


def test_a_value_that_is_not_finite_is_marked_where_it_happened(page: Tab) -> None:
    """A NaN is drawn at its x, and is no point of the line."""
    (curve,) = page.open(f"/#/run/{RUN}").loaded("exact_metric")["exact_metric"]["curves"]
    assert curve["nonfinite"] == [[4.28, "NaN"]]
    assert 4.28 not in curve["x"]
    assert "not a finite number" in page.card("exact_metric").inner_text()


def test_odd_values_of_an_interval_are_marked_where_each_happened(page: Tab) -> None:
    """NaN, infinity and minus infinity have marks of their own, and the pointer says which one it is at."""
    (curve,) = page.open("/#/run/odd").loaded("loss")["loss"]["curves"]
    assert sorted(curve["nonfinite"]) == [[3.25, "Infinity"], [3.5, "NaN"], [3.75, "-Infinity"]]
    marks = "\N{MULTIPLICATION SIGN} NaN, \N{LOGICAL AND} ∞, \N{LOGICAL OR} \N{MINUS SIGN}∞: not a finite number"
    assert marks in page.card("loss").inner_text()
    over = page.card("loss").locator(".u-over")
    width = over.bounding_box()["width"]
    for x, said in ((3.25, "∞"), (3.5, "NaN"), (3.75, "\N{MINUS SIGN}∞")):
        over.hover(position={"x": width * x / 4, "y": 60})
        box = page.card("loss").locator(".hover")
        page.until(lambda box=box, said=said: box.inner_text().split()[-1] == said, said)


def test_a_loop_that_is_done_is_its_name_and_count(page: Tab) -> None:
    """It takes no room for a bar; how fast it was is a look away."""
    page.open(f"/#/run/{RUN}").loaded("training")
    bar = page.page.locator(".bar")
    assert bar.inner_text().split("\n")[-1] == "40/40 ✓"
    assert re.fullmatch(r"40 of 40 · .+(/s| each) · done", bar.get_attribute("title"))
    assert not page.page.get_by_role("progressbar").is_visible()


def test_functions_have_their_durations(page: Tab) -> None:
    """The table of functions has calls, mean, p50 and p99 of what ``@prof`` measured."""
    page.open(f"/#/run/{RUN}").loaded("training")
    row = page.page.locator('[aria-label="Table of functions"] tbody tr').filter(has_text="run_epoch")
    _, rank_of, calls, failures, *durations = row.inner_text().split("\t")
    assert (rank_of, calls, failures) == ("\N{EN DASH}", "30", "0")
    assert len(durations) == 3
    assert all(each.strip().endswith("s") for each in durations)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_page_is_whole_in_light_and_dark_wide_and_narrow(
    browser: Any, hub: tuple[str, Path], size: tuple[int, int], *, dark: bool
) -> None:
    """Nothing reaches beyond the window's width; screenshots of both pages are kept in ``tests/output``."""
    name = f"{'dark' if dark else 'light'}-{size[0]}"
    with tab(browser, hub[0], size=size, dark=dark) as found:
        found.open("/")
        found.until(lambda: found.page.locator("tbody tr").count() >= 4, "list of runs")
        found.shoot(f"runs-{name}")
        found.open(f"/#/run/{RUN}").loaded("training")
        found.card("exact_metric").scroll_into_view_if_needed()  # it grows as charts above it come
        found.loaded("exact_metric")
        found.page.evaluate("scrollTo(0, 0)")
        found.page.wait_for_timeout(300)
        found.shoot(f"example-{name}")
        assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = found.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (int(background[4:].split(",")[0]) < 64) is dark
        assert found.complaints == []


def test_the_choice_of_colours_is_kept(page: Tab) -> None:
    """The button goes from the system's colours to light to dark, and the page remembers it."""
    page.open("/")
    button = page.page.locator("#theme")
    assert button.inner_text() == "Auto"
    button.click()
    button.click()
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.page.reload()
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_zooming_in_fetches_detail(page: Tab) -> None:
    """A long curve is thinned without losing its spike; what is dragged over comes in full, until a double-click."""
    page.open("/#/run/big")
    (whole,) = page.loaded("wave")["wave"]["curves"]
    assert not whole["exact"]
    assert len(whole["x"]) <= 4000
    assert max(whole["y"]) > 8
    page.drag("wave", 0.5, 0.512)
    found = page.until(lambda: (now := page.drawn()["wave"])["curves"][0]["exact"] and now, "detail")
    low, high = found["scales"]["x"]
    (part,) = found["curves"]
    inside = [x for x in part["x"] if low <= x <= high]
    assert inside == [float(x) for x in range(math.ceil(low), math.floor(high) + 1)]
    assert any("low=" in each and "high=" in each for each in page.asked)
    page.card("wave").locator(".u-over").dblclick()
    page.until(lambda: page.drawn()["wave"]["zoom"] is None, "reset")
    assert len(page.drawn()["wave"]["curves"][0]["x"]) == len(whole["x"])


def test_ranks_are_chosen_and_the_address_says_so(page: Tab) -> None:
    """All ranks, or some of them; who opens the address gets the same ranks."""
    page.open("/#/run/ranks")
    assert {curve["rank"] for curve in page.loaded("training")["training"]["curves"]} == {0, 1, 2}
    page.page.get_by_role("button", name="1", exact=True).click()
    page.until(lambda: {each["rank"] for each in page.drawn()["training"]["curves"]} == {1}, "rank 1 alone")
    assert page.page.url.endswith("?rank=1")
    page.page.reload()
    assert {each["rank"] for each in page.loaded("training")["training"]["curves"]} == {1}


def test_branches_of_a_resumed_run_are_strokes_of_their_own(page: Tab) -> None:
    """Each branch is a curve of its own, and the chart says that the run was resumed."""
    found = page.open("/#/run/ranks?rank=0").loaded("training")["training"]["curves"]
    assert [(curve["branch"], pairs(curve)) for curve in found] == [
        (0, [(0, 4), (1, 3), (2, 2)]),
        (1, [(0, 3.5), (1, 1.5)]),
    ]
    assert found[0]["nonfinite"] == [[3, "Infinity"]]
    assert "2 branches" in page.card("training").inner_text()


def test_a_run_is_compared_with_others(page: Tab) -> None:
    """The way leads to the table, where the run is chosen already; with another one both are in each chart."""
    page.open(f"/#/run/{RUN}").loaded("training")
    page.page.get_by_role("link", name="Compare …").click()
    page.until(lambda: page.page.get_by_label(f"Choose {RUN}").is_checked(), "the table with its run chosen")
    page.page.get_by_label("Choose ranks").check()
    page.page.get_by_role("link", name="Compare 2 runs").click()

    def runs() -> set[str]:
        return {each["lane"] for each in (page.drawn().get("loss") or {"curves": []})["curves"]}

    page.until(lambda: runs() == {RUN, "ranks"}, "the lines of both")


def test_smoothing_draws_the_moving_average(page: Tab) -> None:
    """What is drawn with smoothing 0.5 is the exponential moving average of the points."""
    page.open("/#/run/ranks?rank=0").loaded("training")
    page.page.get_by_label("Smoothing").fill("0.5")
    smooth = page.until(lambda: (y := page.drawn()["training"]["curves"][0]["y"])[1] != 3 and y, "smoothing")
    assert smooth == pytest.approx([4, (4 / 4 + 3 / 2) / (3 / 4), (4 / 8 + 3 / 4 + 2 / 2) / (7 / 8)])


def test_keys_and_tables(page: Tab, hub: tuple[str, Path]) -> None:
    """Keys j and k go from chart to chart, l is for logarithms, t for numbers, arrows say values, ? lists keys."""
    page.open(f"/#/run/{RUN}").loaded("training", "fast_metric")
    press, focused = page.page.keyboard.press, "document.activeElement.getAttribute('aria-label')"
    titles = list(page.drawn())
    for key in "j" * (1 + titles.index("training")):
        press(key)
    assert page.page.evaluate(focused) == "Chart training"
    press("l")
    page.until(lambda: page.drawn()["training"]["log"], "log scale")
    press("t")
    head, *rows = page.card("training").locator("tr").all_inner_texts()
    assert head.split("\t")[1:] == ["loss", "accuracy"]
    assert len(rows) == len(recorded(hub[1], RUN, "loss"))
    assert rows[-1].split("\t") == ["0", "2.5", "0"]
    press("ArrowRight")
    assert "loss 2.5" in str(page.card("training").get_attribute("aria-description"))
    press("j")
    assert page.page.evaluate(focused) != "Chart training"
    press("k")
    assert page.page.evaluate(focused) == "Chart training"
    press("?")
    assert page.page.locator("dialog").is_visible()
    press("Escape")
    press("/")
    page.until(lambda: page.page.evaluate("document.activeElement.id") == "search", "search")
    page.page.keyboard.type("exam")
    page.until(lambda: page.page.locator("tbody tr").count() == 1, "one run found")


def test_names_are_shown_as_they_are(page: Tab) -> None:
    """Names of runs, groups and metrics full of markup are text: no element comes of them, and no script."""
    page.open("/")
    page.until(lambda: EVIL in page.text(), "the run in the list")
    page.page.get_by_role("link", name=EVIL, exact=True).click()
    (curve,) = page.loaded(EVIL)[EVIL]["curves"]
    assert (curve["metric"], pairs(curve)) == (EVIL, [(0, 1), (1, 2)])
    assert page.page.get_by_role("heading", level=1).inner_text().startswith(EVIL)
    assert page.page.locator("img").count() == 1  # the brand's
    page.card(EVIL).get_by_role("button", name="table", exact=True).click()
    assert EVIL in page.card(EVIL).inner_text()


def test_an_unknown_run_and_one_without_points_are_said_in_words(browser: Any, hub: tuple[str, Path]) -> None:
    """The page says that there is no such run, or that a metric has no points yet."""
    with tab(browser, hub[0]) as found:
        found.open(f"/#/run/{quote('no such run')}")
        found.until(lambda: "no such run" in found.text(), "words about the run")
        assert found.page.get_by_role("link", name="All runs", exact=True).count() == 1
        found.open("/#/run/nothing")
        found.until(lambda: "no points yet" in found.text(), "words about the metric")


def test_a_damaged_file_is_said_in_words(browser: Any, hub: tuple[str, Path]) -> None:
    """Of a run whose file is damaged the page shows what can be read, or why nothing can, in words."""
    with tab(browser, hub[0]) as found:
        found.open("/#/run/broken")
        found.until(lambda: "damaged" in found.text() or "cannot be" in found.text(), "words about the damage")
        found.shoot("broken")


def test_keys_act_on_the_chart_under_the_pointer(page: Tab) -> None:
    """With the pointer on a chart and the focus nowhere, l makes its axis logarithmic, and r resets its zoom."""
    page.open(f"/#/run/{RUN}").loaded("training")
    page.drag("training", 0.2, 0.6)
    page.until(lambda: page.drawn()["training"]["zoom"], "zoom")
    page.page.keyboard.press("l")
    page.until(lambda: page.drawn()["training"]["log"], "log scale")
    page.page.keyboard.press("r")
    page.until(lambda: page.drawn()["training"]["zoom"] is None, "reset")


def test_the_pointer_shows_the_nearest_values(page: Tab) -> None:
    """Over a chart there is a box with each curve's nearest value."""
    page.open(f"/#/run/{RUN}").loaded("training")
    page.card("training").locator(".u-over").hover(position={"x": 1, "y": 60})
    box = page.card("training").locator(".hover")
    page.until(box.is_visible, "box")
    assert box.inner_text().split() == ["epoch", "0", "loss", "2.5", "accuracy", "0"]
