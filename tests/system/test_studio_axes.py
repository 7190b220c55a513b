"""The axes of the Studio's charts, in a real browser: they have a width, and ticks that tell values apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from browser import Tab, tab
from recorded_runs import DEFINITION, POINT, record
from studio import studio

pytest.importorskip("uvicorn")

TIME_NS = 1.7e18
BESIDE = TIME_NS + 256  # the next number that a double can be


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a run whose metrics have an x of nanoseconds since 1970, or values that hardly differ."""
    folder = tmp_path_factory.mktemp("axes")
    wrong = (DEFINITION, {"metric": "count", "progress": True, "upper": 10.0})
    sent = {
        "one": [(TIME_NS, 2.0), (TIME_NS, math.nan)],
        "two": [(TIME_NS, 2.0), (BESIDE, 3.0)],
        "count": [(0.0, 1.0), (1.0, math.nan)],
    }
    sent["large"] = [(0.0, TIME_NS), (1.0, BESIDE)]
    points = [(POINT, {"metric": name, "x": x, "value": y}) for name, some in sent.items() for x, y in some]
    record(folder / "store", "run", wrong, *points)
    with studio(folder) as served:
        yield served.url


@pytest.fixture(scope="module")
def modules(browser: Any, url: str) -> Iterator[Tab]:
    """Open one tab for the functions of the page's modules."""
    with tab(browser, url) as found:
        yield found.open()
    assert found.complaints == []


def called(page: Tab, module: str, name: str, *arguments: Any) -> Any:
    """Return what a function of one of the page's modules returns."""
    given = ", ".join(json.dumps(each) for each in arguments)
    return page.page.evaluate(f"import('/static/{module}.js').then((module) => module.{name}({given}))")


@pytest.mark.parametrize(
    ("splits", "labels"),
    [
        ([1_000_000, 1_000_100, 1_000_200, 1_000_300], ["1e6", "1.0001e6", "1.0002e6", "1.0003e6"]),
        ([2_500_000, 2_500_500, 2_501_000], ["2.5e6", "2.5005e6", "2.501e6"]),
        ([1_000_000, 1_000_250, 1_000_500], ["1e6", "1.00025e6", "1.0005e6"]),
        ([1_234_567_890, None, 1_234_567_891], ["1.23456789e9", "", "1.234567891e9"]),
        ([0, 5_000_000, 10_000_000], ["0", "5e6", "1e7"]),
        ([-2_000_000, -1_999_999], ["\u22122e6", "\u22121.999999e6"]),
        ([0.0001, 0.00011, 0.00012], ["1e-4", "1.1e-4", "1.2e-4"]),
        ([0, 0.25, 0.5, 0.75], ["0", "0.25", "0.50", "0.75"]),
        ([0.1, 0.2, 0.30000000000000004], ["0.1", "0.2", "0.3"]),
        ([0.5, 0.500000000001], ["0.500000000000", "0.500000000001"]),
        ([0, 1000, 2000], ["0", "1\u202f000", "2\u202f000"]),
        ([7], ["7"]),
        ([1_234_567], ["1.2346e6"]),
    ],
)
def test_ticks_have_the_digits_of_their_distance(modules: Tab, splits: list[float | None], labels: list[str]) -> None:
    """However far from zero a chart is zoomed to, no two ticks read the same."""
    assert called(modules, "format", "ticks", splits) == labels


@pytest.mark.parametrize(
    ("values", "bounds", "ends"),
    [
        ([5, 10], {"upper": 1}, [0.1, 1]),
        ([1, 5], {"lower": 10}, [10, 100]),
        ([1, 5], {"lower": 10, "upper": 2}, [10, 100]),
        ([1, 5], {"lower": 10, "upper": 1000}, [10, 1000]),
        ([2, 5], {"lower": 1}, [1, 10]),
        ([2, 50], {"upper": 100}, [2, 100]),
        ([2, 50], {"lower": 0, "upper": -1}, [2, 100]),
        (None, {"upper": 0.5}, [0.05, 0.5]),
        ([1e308, 1.7e308], {}, [1e308, 1.7e308]),
    ],
)
def test_a_logarithmic_axis_goes_up(
    modules: Tab, values: list[float] | None, bounds: dict[str, float], ends: list[float]
) -> None:
    """Bounds that no value is within hold all the same, and the axis is neither inverted nor without a height."""
    assert called(modules, "extent", "ofY", values, bounds, True) == pytest.approx(ends)


@pytest.mark.parametrize(
    "found", [[TIME_NS, TIME_NS], [TIME_NS, BESIDE], [0, 0], [-1e300, -1e300], [-1.7e308, 1.7e308]]
)
def test_every_axis_has_a_width(modules: Tab, found: list[float]) -> None:
    """Between the ends of an axis there are many numbers, and their distance is one."""
    for low, high in (
        called(modules, "extent", "ofX", found, {}),
        called(modules, "extent", "ofX", found, {"time": True}),
        called(modules, "extent", "ofY", found, {}, False),
        called(modules, "extent", "ofY", found, {"lower": found[0], "upper": found[1]}, False),
    ):
        assert max(abs(low), abs(high)) * 1e-13 < high - low < math.inf
        assert low <= max(found[0], -8e307)
        assert high >= min(found[1], 8e307)


@pytest.mark.parametrize("apart", [0.0, 0.04, 5.0])
def test_an_axis_of_time_is_wide_enough_for_its_ticks(modules: Tab, apart: float) -> None:
    """Samples of two ranks that came at nearly the same time are in the middle of a minute."""
    begin = 1.7e9
    low, high = called(modules, "extent", "ofX", [begin, begin + apart], {"time": True})
    assert (low, high) == pytest.approx((begin + apart / 2 - 30, begin + apart / 2 + 30), abs=1e-3, rel=0)
    assert called(modules, "extent", "ofX", [begin, begin + 6], {"time": True}) == [begin, begin + 6]


def test_numbers_that_hardly_differ_are_drawn(page: Tab) -> None:
    """A point at a time in nanoseconds, and two beside each other, are charts; the page does not look for ticks."""
    charts = page.open("/#/run/run").loaded("one", "two", "large")
    for title, x in (("one", TIME_NS), ("two", BESIDE)):
        low, high = charts[title]["scales"]["x"]
        assert low < x < high
    (key,) = (axis["key"] for axis in charts["large"]["y"])
    page.until(lambda: page.drawn()["large"]["scales"][key][0] is not None, "an axis")
    low, high = page.drawn()["large"]["scales"][key]
    assert low < TIME_NS < high
    page.drag("one", 0.4999, 0.5001)
    page.drag("two", 0.2, 0.8)
    page.until(lambda: page.drawn()["two"]["zoom"], "a zoom")


def test_a_bar_whose_value_is_no_number_has_no_share(page: Tab) -> None:
    """It says NaN of how many, and is drawn as one of which nobody knows how far it is."""
    page.open("/#/run/run")
    bar = page.page.locator(".progress .bar")
    page.until(bar.count, "a bar")
    assert "NaN of 10" in bar.inner_text()
    assert "%" not in bar.inner_text()
    assert "unknown" in bar.get_attribute("class").split()
