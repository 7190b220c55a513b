"""Runs compared in a browser: each metric in one chart, coloured by a value, live; metrics found and arranged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from browser import Tab, tab
from hub_requests import logs, rank
from many_runs import sweep
from recorded_runs import DEFINITION, points, record
from studio import Alone, alone
from tachograph.hub.hub import Hub

SIZES = {"wide": (1440, 900), "middle": (1024, 800), "phone": (390, 844)}
ODD = '<b onclick=x>&amp;"run" 🦊'
# Contrast as WCAG 2.2 has it ("Contrast (Minimum)", relative luminance), of what a canvas makes of a colour.
CONTRASTS = """colours => {
  const canvas = document.createElement("canvas"); canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const surface = luminance(getComputedStyle(document.documentElement).getPropertyValue("--surface"));
  return colours.map(luminance).map((each) => (Math.max(each, surface) + 0.05) / (Math.min(each, surface) + 0.05));
}"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a sweep, a run of a strange name, and one with thirty metrics in ten groups."""
    folder = tmp_path_factory.mktemp("store")
    sweep(folder, 14)
    record(folder, ODD, *points([2.0, 1.0], "loss"))
    told = [(DEFINITION, {"metric": f"m{at}", "group": f"g{at // 3}"}) for at in range(30)]
    drawn = [each for at in range(30) for each in points([1.0, float(at)], f"m{at}", group=f"g{at // 3}")]
    record(folder, "many", *told, *drawn)
    return folder


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Alone]:
    """Return a Studio over it."""
    with alone(store) as found:
        yield found


def address(*names: str, **more: str) -> str:
    """Return the address of a comparison."""
    chosen = quote(",".join(quote(name, safe="") for name in names), safe="")
    return f"/#/compare?runs={chosen}" + "".join(f"&{key}={quote(value, safe='')}" for key, value in more.items())


def compared(page: Tab, many: int) -> dict[str, Any]:
    """Wait until each chart has a line for each run, and return the charts."""
    charts = page.drawn

    def there() -> bool:
        return all(len(charts()[title]["curves"]) == many for title in ("loss", "accuracy"))

    page.until(lambda: {"loss", "accuracy"} <= set(charts()) and there(), "the lines")
    return charts()


TWELVE = [f"sweep-{number:05}" for number in range(12)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True])
def test_twelve_runs_are_told_apart(browser: Any, served: Alone, size: str, dark: bool) -> None:
    """A line each, in a colour of its own or of a value, all with a contrast of 3:1; the page fits its window."""
    with tab(browser, served.url, size=SIZES[size], dark=dark) as page:
        page.open(address(*TWELVE))
        drawn = compared(page, 12)
        by_run = [curve["colour"] for curve in drawn["loss"]["curves"]]
        assert len(set(by_run)) == 12
        assert {curve["lane"] for curve in drawn["loss"]["curves"]} == set(TWELVE)
        assert {"lr 0.0001 · model small"} <= {curve["label"] for curve in drawn["loss"]["curves"]}
        page.shoot(f"compare-{size}-{'dark' if dark else 'light'}")
        page.page.get_by_label("Color by").select_option("config.lr")
        page.until(lambda: [curve["colour"] for curve in page.drawn()["loss"]["curves"]] != by_run, "other colors")
        by_value = [curve["colour"] for curve in page.drawn()["loss"]["curves"]]
        assert len(set(by_value)) == 12
        page.page.get_by_label("Color by").select_option("config.model")
        page.until(lambda: len({curve["colour"] for curve in page.drawn()["loss"]["curves"]}) == 2, "colours by name")
        assert min(page.page.evaluate(CONTRASTS, by_run + by_value)) >= 3
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.shoot(f"compare-{size}-{'dark' if dark else 'light'}-model")
        assert page.complaints == []


def test_only_keys_that_differ_are_shown_until_all_are_wanted(browser: Any, served: Alone) -> None:
    """The configuration is a column a run; the same value in all of them is only counted."""
    with tab(browser, served.url, size=SIZES["wide"]) as page:
        page.open(address(*TWELVE[:3]))
        keys = page.page.locator(".differences tbody th")
        page.until(lambda: keys.all_inner_texts() == ["lr", "model", "seed"], "the keys that differ")
        assert "1 key has the same value in all of them." in page.text()
        page.page.get_by_role("button", name="all keys").click()
        page.until(lambda: keys.all_inner_texts() == ["lr", "model", "optimizer", "seed"], "all keys")
        page.page.go_back()
        page.until(lambda: keys.count() == 3, "as before")


def test_a_value_is_drawn_against_another(browser: Any, served: Alone) -> None:
    """A point a run, named and a link to it, on axes that may be logarithmic; all by keyboard."""
    with tab(browser, served.url, size=SIZES["wide"]) as page:
        page.open(address(*TWELVE))
        points_ = page.page.locator(".scatter svg a")
        page.until(lambda: points_.count() == 12, "the points")
        assert points_.first.get_attribute("aria-label") == "sweep-00000: lr 0.0001, best 1"
        assert page.page.get_by_label("Logarithmic across").get_attribute("aria-pressed") == "true"  # it spans 86 times
        at = "[...document.querySelectorAll('.scatter circle')].map((each) => Number(each.getAttribute('cx')))"
        places = page.page.evaluate(at)
        steps = [after - before for before, after in itertools.pairwise(places)]
        assert max(steps) - min(steps) < 1e-6 * max(steps)
        page.page.get_by_label("Logarithmic across").press("Enter")
        page.until(lambda: page.page.evaluate(at) != places, "a linear axis")
        page.page.get_by_label("Upwards", exact=True).select_option("last.loss")
        page.until(lambda: "loss 1.1" in (points_.first.get_attribute("aria-label") or ""), "another value")
        points_.nth(3).press("Enter")
        page.until(lambda: page.page.url.endswith("#/run/sweep-00003"), "the run")


def test_a_run_that_goes_on_stays_live(browser: Any, tmp_path: Path) -> None:
    """Its line grows by the points that are new, a resumed run's by its new branch; a chosen colour stays."""
    sweep(tmp_path, 2)
    hub = Hub(tmp_path, run="live")
    told = points([5.0, 4.0, 3.0, 2.5, 2.0, 1.5], "loss")
    who = rank(0, run="live")
    hub.receive_logs(logs(who, *told[:2], stream="s"))
    hub.tick()
    try:
        with alone(tmp_path) as studio, tab(browser, studio.url) as page:
            page.open(address("live", "sweep-00001", colour="config.lr"))

            def lengths() -> dict[str, int]:
                return {each["lane"]: len(each["x"]) for each in page.drawn()["loss"]["curves"]}

            page.until(lambda: "loss" in page.drawn() and lengths() == {"live": 2, "sweep-00001": 20}, "both")
            hub.receive_logs(logs(who, *told, stream="s"))
            hub.tick()
            page.until(lambda: lengths() == {"live": 6, "sweep-00001": 20}, "what came later")
            assert page.page.get_by_label("Color by").input_value() == "config.lr"
            assert [each for each in page.asked if "/runs/live/curves" in each and "metric=loss" in each][1:] == []
            again = [(name, {**about, "branch": 1}) for name, about in points([2.25, 2.125], "loss")]
            hub.receive_logs(logs(who, *again, stream="s", first=1 + len(told)))
            hub.receive_logs(logs(rank(1, run="live"), *points([9.0], "loss"), stream="other"))
            hub.tick()

            def starts() -> set[float]:
                return {each["y"][0] for each in page.drawn()["loss"]["curves"]}

            page.until(lambda: {2.25, 7.0} <= starts(), "a new branch, and the median of a new rank")
            many = len(page.asked)
            page.page.get_by_label("Smoothing").fill("0.5")

            def resumed() -> list[float]:
                return next((each["y"] for each in page.drawn()["loss"]["curves"] if each["y"][0] == 2.25), [])

            average = [2.25, (2.25 / 4 + 2.125 / 2) / (3 / 4)]
            page.until(lambda: resumed() == [pytest.approx(each) for each in average], "the average")
            hub.receive_logs(logs(who, (again[0][0], {**again[0][1], "x": 2.0}), stream="s", first=9))
            hub.tick()
            page.until(lambda: len(resumed()) == 3, "the average of the point that is new")
            assert not any("/curves" in each for each in page.asked[many:])
            assert page.complaints == []
    finally:
        hub.close()


def test_a_zoom_asks_only_for_what_is_finer(browser: Any, store: Path, served: Alone) -> None:
    """Runs whose points are all there are not asked again; one that was thinned is, until each point of it is there."""
    record(store, "long", *points([math.sin(x / 99) for x in range(5000)], "loss"))
    with tab(browser, served.url, size=SIZES["wide"]) as page:
        page.open(address("sweep-00001", "sweep-00002", "long"))
        page.until(lambda: len(page.loaded("loss")["loss"]["curves"]) == 3, "the lines")

        def asked() -> list[str]:
            return [
                each.split("/runs/")[1].split("/")[0] for each in page.asked if "/curves" in each and "low=" in each
            ]

        def long() -> dict[str, Any]:
            return next(each for each in page.drawn()["loss"]["curves"] if each["lane"] == "long")

        assert not long()["exact"]
        page.drag("loss", 0.3, 0.5)
        page.until(lambda: long()["exact"], "each point")
        assert asked() == ["long"]
        shown = page.page.url
        page.drag("loss", 0.4, 0.6)
        page.until(lambda: page.page.url != shown, "the zoom in the address")
        page.page.wait_for_timeout(500)
        assert long()["exact"]
        assert asked() == ["long"]
        assert page.complaints == []


def test_a_run_that_is_gone_says_so_and_offers_the_nearest(browser: Any, served: Alone) -> None:
    """The others are compared all the same; strange names are text."""
    with tab(browser, served.url) as page:
        page.open(address("sweep-00001", "swep-00002", ODD))
        page.until(lambda: "The run “swep-00002” is gone." in page.text(), "the notice")
        assert page.page.locator("b[onclick]").count() == 0
        page.page.locator(".notices").get_by_role("link").click()
        page.until(lambda: page.page.locator(".compared li").count() == 3, "the nearest instead")
        page.page.get_by_role("checkbox", name="Show sweep-00001").uncheck()
        page.until(lambda: page.page.locator(".compared li").count() == 2, "one less")
        page.open(address())
        page.until(lambda: "No run is chosen" in page.text(), "an empty comparison")
        assert page.complaints == []


def test_metrics_are_found_by_text_and_by_regular_expression(browser: Any, served: Alone) -> None:
    """Only charts that match are there, in the address; a name that is gone has the nearest offered."""
    with tab(browser, served.url, size=SIZES["wide"]) as page:
        page.open("/#/run/many")
        find = page.page.get_by_label("Search metrics")
        cards = page.page.locator(".card:visible h3")
        page.until(lambda: cards.count() == 10, "all groups")
        find.fill("g7")
        page.until(lambda: cards.all_inner_texts() == ["g7"], "a group")
        find.fill("/m2[0-2]$/")
        page.until(lambda: sorted(cards.all_inner_texts()) == ["g6", "g7"], "an expression")
        page.page.reload()
        page.until(lambda: sorted(cards.all_inner_texts()) == ["g6", "g7"], "the same after a reload")
        find.fill("/m[/")
        page.until(lambda: find.get_attribute("aria-invalid") == "true", "an expression that is none")
        find.fill("m299")
        page.until(lambda: "No metric is called “m299”." in page.text(), "the words")
        page.page.get_by_role("button", name="the nearest: m29").click()
        page.until(lambda: cards.all_inner_texts() == ["g9"], "the nearest")
        assert page.complaints == []


def test_sections_are_folded_pinned_and_moved(browser: Any, store: Path, served: Alone) -> None:
    """By keyboard, too; it is in the address, and kept for the program; a link wins over what is kept."""
    record(store, "other", *[(DEFINITION, {"metric": f"a{at}", "group": f"h{at % 3}"}) for at in range(6)],
           *[each for at in range(6) for each in points([1.0], f"a{at}", group=f"h{at % 3}")])  # fmt: skip
    with tab(browser, served.url, size=SIZES["wide"]) as page:
        titles = page.page.locator(".card:visible h3")
        page.open("/#/run/other")
        page.until(lambda: titles.all_inner_texts() == ["h0", "h1", "h2"], "the groups")
        page.page.get_by_role("button", name="Sections …").press("Enter")
        dialog = page.page.get_by_role("dialog", name="Sections")
        dialog.get_by_role("button", name="Pin to the top h2").press("Enter")
        dialog.get_by_role("button", name="Move down h0").press("Enter")
        dialog.get_by_role("button", name="Fold up h0").press("Enter")
        page.page.keyboard.press("Escape")
        page.until(lambda: titles.all_inner_texts() == ["h2", "h1"], "the arrangement")
        page.shoot("sections-arranged")
        link = page.page.url.removeprefix(served.url)
        page.page.get_by_role("button", name="h0").click()
        page.until(lambda: titles.all_inner_texts() == ["h2", "h1", "h0"], "unfolded")
        page.page.go_back()
        page.until(lambda: titles.all_inner_texts() == ["h2", "h1"], "folded again")
        page.open("/#/")
        page.open("/#/run/other")
        page.until(lambda: titles.all_inner_texts()[:2] == ["h2", "h1"], "kept for the program")
        page.open("/#/")
        page.open(link)
        page.until(lambda: titles.all_inner_texts() == ["h2", "h1"], "the link")
        assert page.complaints == []


def test_the_sequential_scale_keeps_the_order_of_values(browser: Any, served: Alone) -> None:
    """The larger the value, the further along the scale, on a logarithmic one where values span decades."""
    with tab(browser, served.url) as page:
        page.open(address(*TWELVE, colour="config.lr"))
        compared(page, 12)
        found = {each["lane"]: each["colour"] for each in page.drawn()["loss"]["curves"]}
        lightness = [float(found[name].removeprefix("oklch(").split(" ")[0]) for name in TWELVE]
        assert lightness == sorted(lightness, reverse=True)
        steps = [before - after for before, after in itertools.pairwise(lightness)]
        assert all(math.isclose(step, steps[0], rel_tol=0.01) for step in steps)
