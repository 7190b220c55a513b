"""The Studio's charts in a real browser: their axes, their smoothing, and what is marked in them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from browser import Tab, tab
from hub_requests import SECOND, START, logs, rank
from recorded_runs import DEFINITION, POINT, points, record
from studio import record as record_program
from studio import studio
from tachograph.hub.hub import Hub
from tachograph.runs.recorded import BEGIN

pytest.importorskip("uvicorn")

COUNT, SPIKE = 400, 200
LONG = 30_000
RANKS, STRAGGLER = 12, 7
BEFORE = 40  # seconds between the begin of the process and its first values
EVENTS = {100: "checkpoint", 300: "loader.error"}  # by the second after the start

STEPS = """
import tachograph
from tachograph.logger import MetricsLogger

logger = MetricsLogger()
for step in range(4):
    tachograph.log({"loss": 1 / (step + 1)}, step=step)
    tachograph.put_metric("accuracy", step / 4)
    logger.log("train", {"step": str(step)}, {"speed": 100.0 + step})
"""
PINCH = """() => {
  const over = document.querySelector(".card .u-over");
  const { left, top, width } = over.getBoundingClientRect();
  const send = (name, pointerId, part) => over.dispatchEvent(new PointerEvent(name, {
    pointerType: "touch", pointerId, clientX: left + part * width, clientY: top + 50, bubbles: true }));
  send("pointerdown", 1, 0.4);
  send("pointerdown", 2, 0.6);
  send("pointermove", 1, 0.2);
  send("pointermove", 2, 0.8);
  send("pointerup", 1, 0.2);
  send("pointerup", 2, 0.8);
}"""


def loss(at: int) -> float:
    """Return the loss of a step."""
    return 900.0 if at == SPIKE else 2.0 + math.sin(at / 9) / 2


def of_rank(at: int, x: int) -> float:
    """Return a value of a rank: those of all but one are alike, and the last rank ends highest."""
    return 1.0 + 0.01 * at + (2.0 if at == STRAGGLER and x < 29 else 0.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a run with values each second, half an epoch apart, and one of many points."""
    folder = tmp_path_factory.mktemp("charts")
    store = folder / "store"
    hub = Hub(store, run="run", clock=lambda: START)
    hub.receive_logs(logs(rank(0, run="run"), (BEGIN, {}), stream="lives", time=START - BEFORE * SECOND))
    sent = [(DEFINITION, {"metric": name, "group": name, "x_units": "epoch"}) for name in ("loss", "signed", "other")]
    for at in range(COUNT):
        told = {"loss": loss(at), "signed": at - 50.0, "other": 1.0 * at}
        sent += [(POINT, {"metric": name, "group": name, "x": at / 2, "value": told[name]}) for name in told]
        if at in EVENTS:
            sent.append((EVENTS[at], {"step": at}))
    hub.receive_logs(logs(rank(0, run="run"), *sent, apart=SECOND // 3))
    hub.close()
    hub = Hub(store, run="long", clock=lambda: START)
    hub.receive_logs(logs(rank(0, run="long"), *points([float(at % 100) for at in range(LONG)], "wave"), apart=SECOND))
    hub.close()
    record(store, "flat", *points([900.0 if at == SPIKE else 1.0 for at in range(COUNT)], "flat"))
    record_program(folder, "steps", STEPS)
    for at in range(RANKS):
        record(store, "ranks", *points([of_rank(at, x) for x in range(30)], "wait"), number=at)
        two = [each for name in "ab" for each in points([of_rank(at, x) for x in range(9)], name, group="pair")]
        record(store, "pair", *((DEFINITION, {"metric": name, "group": "pair"}) for name in "ab"), *two, number=at)
    with studio(folder) as served:
        yield served.url


def ends(page: Tab, title: str, axis: str = "x") -> list[float]:
    """Return the ends of an axis."""
    found: list[float] = page.drawn()[title]["scales"][axis]
    return found


def test_x_is_chosen_for_all_charts_and_is_in_the_address(page: Tab) -> None:
    """The number of the value, the time since the start, that of day, or the metric's own x; a reload keeps it."""
    found = page.open("/#/run/run").loaded("loss", "signed", "other")
    assert found["loss"]["along"] == "own epoch"
    assert ends(page, "loss") == [0, (COUNT - 1) / 2]
    chooser = page.page.get_by_label("X axis of all charts")
    for choice, least, greatest in (
        ("step", 0, COUNT - 1),
        ("relative", BEFORE + 1, BEFORE + COUNT + 1),
        ("wall", START / SECOND + 1, START / SECOND + COUNT + 1),
    ):
        chooser.select_option(choice)
        page.until(lambda choice=choice: all(page.drawn()[each]["along"] == choice for each in found), choice)
        for title in found:
            assert ends(page, title) == pytest.approx([least, greatest], abs=3), (choice, title)
        assert f"x={choice}" in page.page.url
    page.page.reload()
    assert page.loaded("loss")["loss"]["along"] == "wall"


def test_zoom_and_crosshair_go_along_in_charts_with_the_same_x(page: Tab) -> None:
    """One is dragged over, all that have its x show that part; the back button and a reload know it."""
    page.open("/#/run/run").loaded("loss", "other")
    page.drag("loss", 0.25, 0.5)
    low, high = page.until(lambda: page.drawn()["other"]["zoom"], "zoom of the other chart")
    assert [low, high] == pytest.approx([50, 100], abs=3)
    page.until(lambda: ends(page, "other") == [low, high] == ends(page, "loss"), "the same ends")
    page.card("loss").locator(".u-over").hover(position={"x": 80, "y": 40})
    page.until(page.card("other").locator(".hover-line").is_visible, "a crosshair in the other chart")
    page.page.reload()
    assert page.loaded("other")["other"]["zoom"] == [low, high]
    page.page.go_back()
    page.until(lambda: page.drawn()["other"]["zoom"] is None, "no zoom any more")


def test_y_is_linear_logarithmic_without_outliers_or_by_hand(page: Tab) -> None:
    """A spike does not flatten the rest where it is left out, and is marked; values that are not above 0 are said."""
    page.open("/#/run/run").loaded("loss", "signed")
    card = page.card("loss")
    (axis,) = page.drawn()["loss"]["y"]
    assert ends(page, "loss", axis["key"])[1] > 900
    card.get_by_label("More of loss").click()
    card.get_by_role("button", name="without outliers").click()
    page.until(lambda: ends(page, "loss", axis["key"])[1] < 10, "a robust range")
    assert "beyond the axis" in card.inner_text()
    card.get_by_label("highest").fill("2.25")
    card.get_by_label("highest").press("Enter")
    page.until(lambda: ends(page, "loss", axis["key"])[1] == 2.25, "a range by hand")
    page.page.keyboard.press("Escape")
    assert not card.locator(".menu-box button").count()
    signed = page.card("signed")
    signed.get_by_role("button", name="log", exact=True).click()
    page.until(lambda: "51 values are not above 0" in signed.inner_text(), "words about the values")
    page.page.reload()
    page.loaded("loss", "signed")
    assert ends(page, "loss", axis["key"])[1] == 2.25
    assert page.drawn()["signed"]["log"]


def test_an_outlier_among_equal_values_is_left_out(page: Tab) -> None:
    """The range without outliers is that of most values, if these are all equal, too."""
    page.open("/#/run/flat").loaded("flat")
    card = page.card("flat")
    (axis,) = page.drawn()["flat"]["y"]
    assert ends(page, "flat", axis["key"])[1] > 900
    card.get_by_label("More of flat").click()
    card.get_by_role("button", name="without outliers").click()
    page.until(lambda: ends(page, "flat", axis["key"]) == pytest.approx([0.9, 1.1]), "a range around the value")
    assert "beyond the axis" in card.inner_text()
    card.get_by_role("button", name="log", exact=True).click()
    page.until(lambda: ends(page, "flat", axis["key"])[1] < 20, "a logarithmic range around the value")
    page.shoot("outlier-among-equal-values")


def test_charts_over_steps_are_one_whoever_recorded_them(page: Tab) -> None:
    """Charts of log(), of put_metric() and of MetricsLogger are zoomed together, and point at the same step.

    Ticks are whole steps, however few there are.
    """
    found = page.open("/#/run/steps").loaded("loss", "accuracy", "speed")
    titles = ("loss", "accuracy", "speed")
    assert {found[title]["along"] for title in titles} == {"step"}
    assert [found[title]["ticks"] for title in titles] == [["0", "1", "2", "3"]] * len(titles)
    page.card("speed").locator(".u-over").hover(position={"x": 80, "y": 40})
    page.until(page.card("loss").locator(".hover-line").is_visible, "a crosshair in the other chart")
    page.drag("speed", 0.25, 0.9)
    page.until(lambda: all(page.drawn()[title]["zoom"] for title in titles), "a zoom of all charts")
    (zoom,) = {tuple(page.drawn()[title]["zoom"]) for title in titles}
    assert zoom == pytest.approx((0.75, 2.7), abs=0.1)
    page.shoot("charts-over-steps")


def test_y_is_zoomed_by_a_drag_upwards(page: Tab) -> None:
    """The part that was dragged over is what the axis shows, of this chart alone."""
    page.open("/#/run/run").loaded("other", "loss")
    over = page.card("other").locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    (axis,) = page.drawn()["other"]["y"]
    low, high = ends(page, "other", axis["key"])
    page.page.mouse.move(box["x"] + 100, box["y"] + box["height"] * 0.25)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 102, box["y"] + box["height"] * 0.75, steps=5)
    page.page.mouse.up()
    expected = [low + (high - low) / 4, high - (high - low) / 4]
    page.until(lambda: ends(page, "other", axis["key"]) == pytest.approx(expected, rel=0.05), "a part of y")
    assert page.drawn()["other"]["zoom"] is None
    page.card("other").get_by_role("button", name="Reset").click()
    page.until(lambda: ends(page, "other", axis["key"]) == [low, high], "all of it")


def test_two_fingers_zoom(browser: Any, url: str) -> None:
    """Fingers that move apart on a telephone show less of x, and two taps all of it."""
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    try:
        page = Tab(context.new_page(), url)
        page.open("/#/run/run").loaded("loss")
        over = page.card("loss").locator(".u-over")
        over.scroll_into_view_if_needed()
        page.page.evaluate(PINCH)
        zoom = page.until(lambda: page.drawn()["loss"]["zoom"], "a zoom")
        middle, width = (COUNT - 1) / 4, (COUNT - 1) / 2
        assert zoom == pytest.approx([middle - width / 6, middle + width / 6], rel=0.05)
        over.tap()
        over.tap()
        page.until(lambda: page.drawn()["loss"]["zoom"] is None, "all of it")
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        context.close()


def test_keys_zoom_and_move(page: Tab) -> None:
    """Plus and minus show less and more, < and > what is before and behind."""
    page.open("/#/run/run").loaded("loss")
    page.card("loss").focus()
    page.page.keyboard.press("+")
    low, high = page.until(lambda: page.drawn()["loss"]["zoom"], "a zoom")
    page.page.keyboard.press(">")
    page.until(lambda: page.drawn()["loss"]["zoom"] == [low + (high - low) / 2, high + (high - low) / 2], "moved")
    page.page.keyboard.press("<")
    page.page.keyboard.press("-")
    page.until(lambda: page.drawn()["loss"]["zoom"] is None, "all of it")


def moving_average(values: list[float], weight: float) -> list[float]:
    """Return the exponential moving average at each value, without the pull of its start towards zero."""
    total = mass = 0.0
    averages = []
    for value in values:
        total = weight * total + (1 - weight) * value
        mass = weight * mass + (1 - weight)
        averages.append(total / mass)
    return averages


@pytest.mark.parametrize("x", ["own", "relative"])
def test_a_zoom_shows_the_moving_average_of_all_points(page: Tab, x: str) -> None:
    """From afar the means of a thinned curve are averaged; near, what came before the zoom counts as well."""
    whole = moving_average([float(at % 100) for at in range(LONG)], 0.99)
    page.open(f"/#/run/long?smooth=0.99&x={x}").loaded("wave")
    page.page.reload()
    (far,) = page.loaded("wave")["wave"]["curves"]
    assert not far["exact"]
    steady = slice(len(far["y"]) // 10, None)
    assert far["y"][steady] == pytest.approx([49.5] * len(far["y"][steady]), abs=25)
    page.drag("wave", 0.5, 0.52)
    (near,) = page.until(lambda: (now := page.drawn()["wave"]["curves"])[0]["exact"] and now, "detail")
    low, high = page.drawn()["wave"]["scales"]["x"]
    begin = far["x"][0]
    seen = {round(at - begin): y for at, y in zip(near["x"], near["y"], strict=True) if low <= at <= high}
    assert len(seen) > 500
    assert seen == {at: pytest.approx(whole[at], abs=0.1) for at in seen}
    assert "smooth=0.99" in page.page.url


def test_the_median_of_ranks_is_smoothed_once(page: Tab) -> None:
    """The line of many ranks is the moving average of their median."""
    page.open("/#/run/ranks").loaded("wait")
    (raw,) = page.drawn()["wait"]["curves"]
    page.page.get_by_label("Smoothing").fill("0.5")
    (smooth,) = page.until(lambda: (now := page.drawn()["wait"]["curves"])[0]["y"] != raw["y"] and now, "smoothing")
    assert smooth["y"] == pytest.approx(moving_average(raw["y"], 0.5))


def test_events_are_lines_through_the_charts(page: Tab) -> None:
    """Along each x an event is where the run was when it happened, faults in their colour; hovering says it."""
    page.open("/#/run/run").loaded("loss")
    marks = page.until(lambda: page.drawn()["loss"]["marks"], "marks")
    found = {each["name"]: each for each in marks}
    assert {name: found[name]["bad"] for name in EVENTS.values()} == {"checkpoint": False, "loader.error": True}
    for at, name in EVENTS.items():
        assert found[name]["x"] == pytest.approx(at / 2, abs=2)
    over = page.card("loss").locator(".u-over")
    over.hover(position={"x": over.bounding_box()["width"] * found["loader.error"]["x"] / ((COUNT - 1) / 2), "y": 30})
    page.until(lambda: "loader.error" in page.card("loss").locator(".hover").inner_text(), "words about the event")
    page.page.get_by_label("X axis of all charts").select_option("relative")
    page.until(lambda: page.drawn()["loss"]["along"] == "relative", "time")
    drawn = page.drawn()["loss"]
    seconds = {each["name"]: each["x"] for each in drawn["marks"]}
    for at, name in EVENTS.items():
        assert seconds[name] == pytest.approx(drawn["curves"][0]["x"][at], abs=1.1), "the value of that second"


def kept(page: Tab, title: str, kind: str) -> bytes:
    """Return the file that a chart's menu has the browser keep."""
    card = page.card(title)
    card.get_by_label(f"More of {title}").click()
    with page.page.expect_download() as download:
        card.get_by_role("button", name=kind, exact=True).click()
    assert download.value.suggested_filename == f"{title}.{kind.lower()}"
    return Path(download.value.path()).read_bytes()


def test_a_chart_is_kept_as_a_picture_or_as_text(page: Tab) -> None:
    """PNG and SVG have what the chart has, and CSV the points that are seen, exactly."""
    page.open("/#/run/run").loaded("loss")
    page.drag("loss", 0.25, 0.5)
    low, high = page.until(lambda: page.drawn()["loss"]["zoom"], "a zoom")
    png = kept(page, "loss", "PNG")
    assert png.startswith(b"\x89PNG")
    svg = ET.fromstring(kept(page, "loss", "SVG"))  # noqa: S314 - the page's own
    texts = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"loss", "epoch"} <= set(texts)
    assert sum(low <= float(each) <= high for each in texts if each and each.isdecimal()) >= 2  # ticks of x
    assert any(len(each.get("d", "")) > 500 for each in svg.iter("{http://www.w3.org/2000/svg}path"))
    head, *rows = csv.reader(io.StringIO(kept(page, "loss", "CSV").decode()))
    assert head == ["epoch", "loss"]
    expected = [(at / 2, loss(at)) for at in range(COUNT) if low <= at / 2 <= high]
    assert [(float(x), float(y)) for x, y in rows] == expected


def test_a_chart_takes_the_whole_screen(page: Tab) -> None:
    """The plot is as high as the screen allows; Escape returns to the page."""
    page.open("/#/run/run").loaded("loss")
    page.card("loss").focus()
    before = page.card("loss").locator(".plot").bounding_box()["height"]
    page.page.keyboard.press("f")
    page.until(lambda: page.card("loss").locator(".plot").bounding_box()["height"] > 2 * before, "the whole screen")
    page.page.keyboard.press("f")
    page.until(lambda: page.card("loss").locator(".plot").bounding_box()["height"] == before, "the page again")


def test_a_heat_map_has_a_row_each_rank(page: Tab) -> None:
    """Sorted by deviation the straggler is first, by the last value the rank with the greatest; the address knows."""
    page.open("/#/run/ranks").loaded("wait")
    card = page.card("wait")
    card.get_by_role("button", name="heat map", exact=True).click()
    rows = page.until(lambda: page.drawn()["wait"]["heat"], "rows")
    assert rows[0] == STRAGGLER
    assert sorted(rows) == list(range(RANKS))
    assert f"rank {STRAGGLER} is furthest from the median" in card.inner_text()
    map_ = card.locator("canvas.heat-map")
    assert f"first is rank {STRAGGLER}" in map_.get_attribute("aria-label")
    map_.hover(position={"x": 120, "y": 5})
    page.until(lambda: f"rank {STRAGGLER} ·" in card.locator(".heat-hover").inner_text(), "the value under the pointer")
    card.get_by_label("More of wait").click()
    card.get_by_role("button", name="by the last value").click()
    page.until(lambda: page.drawn()["wait"]["heat"][0] == RANKS - 1, "another order")
    page.page.reload()
    page.until(lambda: page.drawn().get("wait"), "the chart again")
    page.until(lambda: (page.drawn()["wait"]["heat"] or [None])[0] == RANKS - 1, "the same order again")
    page.card("wait").focus()
    page.page.keyboard.press("h")
    page.until(lambda: page.drawn()["wait"]["heat"] is None, "lines")
    assert page.card("wait").locator(".u-over").is_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_line_can_be_told_from_its_ground(browser: Any, url: str, *, dark: bool) -> None:
    """The colours of curves, of axes' words and of faults have a contrast of 3:1 at least to a card's surface."""
    with tab(browser, url, dark=dark) as page:
        page.open("/#/run/run").loaded("loss")
        found = page.page.evaluate("import('/static/theme.js').then(({ colours }) => colours())")
        for name in [*found["curves"], found["quiet"], found["bad"]]:
            assert contrast(name, found["surface"]) >= 3, (name, found["surface"])


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours: WCAG 2.2, 1.4.11."""

    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (1024, 2), (1440, 3)])
def test_charts_have_the_room(browser: Any, url: str, width: int, columns: int) -> None:
    """Charts begin at 140 px below a head of one line, in as many columns as there is room for, each mostly plot."""
    with tab(browser, url, size=(width, 900)) as page:
        page.open("/#/run/run").loaded("loss", "signed", "other")
        found = page.page.evaluate("""() => [...document.querySelectorAll(".card")].map((card) => {
          const [box, plot] = [card, card.querySelector(".u-over")].map((each) => each.getBoundingClientRect());
          return [box.left, box.top, plot.width / box.width];
        })""")
        assert len({left for left, _, _ in found}) == columns
        assert min(part for _, _, part in found) >= 0.75
        if width >= 1440:
            assert page.page.locator(".top").bounding_box()["height"] == pytest.approx(44, abs=1)
            assert min(top for _, top, _ in found) <= 140
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.shoot(f"charts-{width}")


def test_the_metric_of_a_heat_map_is_chosen_in_the_legend(page: Tab) -> None:
    """Of a chart with two the first one is seen, and said, until it is switched off."""
    page.open("/#/run/pair?y./pair=heat:rank").until(lambda: (page.drawn().get("pair") or {}).get("heat"), "rows")
    card = page.card("pair")
    assert card.locator(".heat-scale").inner_text().startswith("a: ")
    card.locator(".legend .entry").first.click()
    page.until(lambda: card.locator(".heat-scale").inner_text().startswith("b: "), "the other metric")
