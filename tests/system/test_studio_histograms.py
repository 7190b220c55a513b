"""Histograms on the Studio's page in a real browser: quantiles as they were recorded, for each rank and function."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, tab
from hub_requests import SECOND, START
from recorded_runs import Recorded, points, record, record_histograms
from studio import studio
from tachograph.runs.store import run_path

pytest.importorskip("uvicorn")

STEADY = [0.2 + 0.0002 * place for place in range(100)]
SLOW = [0.03 + value for value in STEADY]
FUNCTIONS = 6


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve runs with histograms of two ranks, of one with a slow first step, of older clients, and of functions."""
    folder = tmp_path_factory.mktemp("histograms")
    store = folder / "store"
    two = [Recorded("step.duration", [values] * 3, place) for place, values in enumerate((STEADY, SLOW))]
    prof = [Recorded("function.duration", [STEADY] * 3, attributes=about(f"f{at}")) for at in range(2)]
    record_histograms(store, "ranks", *two, *prof)
    record_histograms(store, "slow", Recorded("step.duration", [[*STEADY, 30.0], *[STEADY] * 20]))
    old = [Recorded(name, [[0.2] * 10] * 3, attributes=more, exact=False) for name, more in OLD.items()]
    record_histograms(store, "old", *old)
    coarse = [[0.001 * 1.5**place for place in range(30)]] * 2
    record_histograms(store, "coarse", Recorded("step.duration", coarse, most=20))
    phases = [{"dl.step.phase": name} for name in ("forward", "backward")]
    record_histograms(
        store, "phases", *(Recorded("dl.step.phase.duration", [STEADY] * 3, attributes=one) for one in phases)
    )
    many = [Recorded("function.duration", [STEADY], attributes=about(f"f{at}")) for at in range(FUNCTIONS)]
    record_histograms(store, "functions", *many)
    record_histograms(store, "long", Recorded("step.duration", [STEADY] * 3))
    _prolong(run_path(store, "long"), 5000)
    record_histograms(store, "live", Recorded("step.duration", [STEADY] * 2))
    sets = [{"optimizer": optimizer, "model": "small"} for optimizer in ("adam", "sgd")]
    record(store, "common", *(each for one in sets for each in points([1.0, 2.0], attributes=one)))
    with sqlite3.connect(run_path(store, "common")) as connection:
        connection.execute("UPDATE block SET level = 3")
    connection.close()
    with studio(folder) as served:
        yield served.url, store


def about(function: str) -> dict[str, str]:
    """Return the attributes of a function's durations."""
    return {"code.function.name": function, "outcome": "success"}


OLD: dict[str, dict[str, str]] = {"step.duration": {}, "function.duration": about("f")}


def _prolong(path: Path, many: int) -> None:
    """Give the only series of a run more samples, ten seconds apart: the first one again and again."""
    with sqlite3.connect(path) as connection:
        ((series, value, total, spread),) = connection.execute(
            "SELECT series, value, total, spread FROM sample ORDER BY time LIMIT 1"
        )
        rows = [(series, START + at * 10 * SECOND, value, total, spread) for at in range(3, many)]
        connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()


@pytest.fixture
def page(browser: Any, hub: tuple[str, Path]) -> Iterator[Tab]:
    """Open a tab; the browser may complain of nothing."""
    with tab(browser, hub[0]) as found:
        yield found
    assert found.complaints == []


def test_a_histogram_is_its_median_with_a_band(page: Tab) -> None:
    """Each rank has p50 within 2.2 %, p99 and exact extremes beside it, and its rate; in a colour of its own."""
    curves = page.open("/#/run/ranks").loaded("step.duration")["step.duration"]["curves"]
    told = {(each["metric"], each["rank"]): each for each in curves}
    assert [each["label"] for each in curves] == [f"{of} rank {at}" for of in ("p50", "a second") for at in (0, 1)]
    for at, values in enumerate((STEADY, SLOW)):
        curve = told["p50", at]
        assert curve["y"] == pytest.approx([(values[49] + values[50]) / 2] * 3, rel=0.022)
        assert curve["band"]["p99"] == pytest.approx([values[98]] * 3, rel=0.022)
        assert (curve["band"]["min"], curve["band"]["max"]) == ([values[0]] * 3, [values[-1]] * 3)
        assert told["a second", at]["y"] == [10, 10]
    assert min(told["p50", 1]["y"]) >= 0.23
    assert told["p50", 0]["colour"] == told["a second", 0]["colour"] != told["p50", 1]["colour"]
    card = page.card("step.duration")
    assert "±" not in card.inner_text()
    over = card.locator(".u-over")
    over.hover(position={"x": over.bounding_box()["width"] / 2, "y": 60})  # three samples: the second
    page.until(card.locator(".hover").is_visible, "box")
    assert "ms p99 22" in " ".join(card.locator(".hover table").inner_text().split())
    card.get_by_role("button", name="table").click()
    heads = card.locator(".table-behind thead th").all_inner_texts()
    assert heads[1:6] == [f"{of} rank 0" for of in ("p50", "p90", "p99", "min", "max")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_band_is_painted(browser: Any, hub: tuple[str, Path], *, dark: bool) -> None:
    """Between p50 and p99 the canvas has another colour than where nothing is; screenshots are kept."""
    with tab(browser, hub[0], dark=dark) as page:
        page.open("/#/run/slow").loaded("step.duration")
        page.page.wait_for_timeout(300)
        page.shoot(f"histogram-{'dark' if dark else 'light'}")
        found = page.page.evaluate(
            """() => {
                const canvas = document.querySelector(".card canvas");
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const counts = new Map();
                for (let at = 0; at < data.length; at += 4) {
                    if (!data[at + 3]) continue;
                    const key = data.slice(at, at + 4).join();
                    counts.set(key, (counts.get(key) ?? 0) + 1);
                }
                return Math.max(...counts.values()) / (data.length / 4);
            }"""
        )
        assert found > 0.05
        assert page.complaints == []


def test_a_slow_first_step_spoils_its_own_interval_alone(page: Tab) -> None:
    """The axis is as high as the other intervals need, the card says that something is beyond it, the band has it."""
    chart = page.open("/#/run/slow").loaded("step.duration")["step.duration"]
    (curve,) = (each for each in chart["curves"] if each["metric"] == "p50")
    assert curve["band"]["max"][0] == 30.0
    assert curve["y"] == pytest.approx([0.21] * 21, rel=0.022)
    assert chart["scales"]["y0"][1] < 0.5
    assert "beyond the axis" in page.card("step.duration").inner_text()


def test_older_clients_have_their_mean_and_a_word_on_percentiles(page: Tab) -> None:
    """Without exponential histograms the mean is drawn, and the table says by how much its percentiles may be off."""
    curves = page.open("/#/run/old").loaded("step.duration")["step.duration"]["curves"]
    assert [each["label"] for each in curves] == ["mean", "a second"]
    assert curves[0]["y"] == pytest.approx([0.2] * 3)
    heading = page.page.locator("section[aria-label=Functions] h2")
    assert heading.inner_text() in ("Functions p50 and p99 ± 148 %", "Functions p50 and p99 ± 149 %")  # 148.5
    page.open("/#/run/ranks").loaded("step.duration")
    assert heading.inner_text().strip() == "Functions"


def test_phases_have_no_rate_of_their_own(page: Tab) -> None:
    """Each phase is there once a step: the chart of the steps has the rate."""
    curves = page.open("/#/run/phases").loaded("dl.step.phase.duration")["dl.step.phase.duration"]["curves"]
    assert [each["label"] for each in curves] == [f'{{dl.step.phase="{of}"}}' for of in ("forward", "backward")]


def test_coarse_quantiles_say_so(page: Tab) -> None:
    """Where the buckets of an interval are too wide for 2.2 %, the chart says by how much quantiles may be off."""
    page.open("/#/run/coarse").loaded("step.duration")
    assert "quantiles ± 41 %" in page.card("step.duration").inner_text()


def test_each_function_has_a_chart(page: Tab) -> None:
    """Durations of functions are below their table, one chart each; those of many functions are folded up."""
    found = page.open("/#/run/ranks").loaded("f0", "f1")
    assert [each["label"] for each in found["f0"]["curves"]] == ["p50", "a second"]
    assert found["f0"]["curves"][0]["y"] == pytest.approx([0.21] * 3, rel=0.022)
    row = page.page.locator("section[aria-label=Functions] tbody tr").filter(has_text="f0").inner_text().split("\t")
    assert float(row[5].removesuffix(" ms")) == pytest.approx(210, rel=0.022)
    page.open("/#/run/functions").until(lambda: "Durations of functions" in page.text(), "the section")
    section = page.page.locator("details").filter(has_text="Durations of functions")
    assert section.get_attribute("open") is None
    section.locator("summary").first.click()
    page.card(f"f{FUNCTIONS - 1}").scroll_into_view_if_needed()
    page.loaded(f"f{FUNCTIONS - 1}")


def test_very_many_samples_are_drawn_as_fewer_until_one_zooms_in(page: Tab) -> None:
    """No more than two thousand points are fetched, which the card says; a part of them in full."""
    chart = page.open("/#/run/long").loaded("step.duration")["step.duration"]
    curve = chart["curves"][0]
    assert len(curve["x"]) == 1667
    assert not curve["exact"]
    assert "3 intervals a point" in page.card("step.duration").inner_text()
    page.drag("step.duration", 0.5, 0.6)

    def detailed() -> list[float] | None:
        found = page.drawn()["step.duration"]["curves"]
        return found[0]["x"] if found and found[0]["exact"] else None

    xs = page.until(detailed, "detail")
    assert {round(late - early) for early, late in pairwise(xs)} == {10}


def test_samples_that_are_here_are_not_asked_for_again(page: Tab, hub: tuple[str, Path]) -> None:
    """What a run gets while its page is open is put behind what is drawn already."""
    page.open("/#/run/live").loaded("step.duration")
    record_histograms(hub[1], "live", Recorded("step.duration", [STEADY, STEADY, SLOW, SLOW]))

    def grown() -> Any:
        curves = page.drawn()["step.duration"]["curves"]
        return curves if curves and len(curves[0]["x"]) == 4 else None

    median, rate = page.until(grown, "new samples", within=40)
    assert median["y"] == pytest.approx([0.21, 0.21, 0.24, 0.24], rel=0.022)
    assert median["band"]["max"][-1] == SLOW[-1]
    assert rate["y"] == [10, 10, 10]
    asked = [each for each in page.asked if "/samples" in each]
    assert "low=" not in asked[0]
    assert f"low={START + 10 * SECOND}"[:15] in asked[-1]


def test_what_all_curves_have_and_what_was_thinned_is_said(page: Tab) -> None:
    """Attributes that are common to a chart's curves are beside its title; the head says that some are thinned."""
    page.open("/#/run/common").loaded("loss")
    card = page.card("loss")
    assert '{model="small"}' in card.locator("header").inner_text()
    assert card.locator(".legend .name").all_inner_texts() == ['{optimizer="adam"}', '{optimizer="sgd"}']
    assert "2 curves are thinned" in page.text()
    page.open("/#/run/ranks").loaded("step.duration")
    assert "thinned" not in page.text()


def test_a_heat_map_shows_how_values_spread(page: Tab) -> None:
    """A row for each bucket, of all ranks, the greatest at the top; it follows a zoom, and the address knows it."""
    page.open("/#/run/ranks").loaded("step.duration")
    card = page.card("step.duration")
    card.get_by_role("button", name="heat map", exact=True).click()
    rows = page.until(lambda: page.drawn()["step.duration"]["heat"], "rows")
    bounds = [float(row.removesuffix(" ms")) for row in rows]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 205
    assert 240 < bounds[0] < 250
    assert "% of the values at a time" in card.inner_text()
    map_ = card.locator("canvas.heat-map")
    assert map_.get_attribute("aria-label") == "Heat map of step.duration: its values over time"
    map_.hover(position={"x": 90, "y": 5})
    hovered = page.until(lambda: card.locator(".heat-hover").inner_text(), "the count under the pointer")
    assert hovered.startswith(f"{rows[0]} ·")
    page.open("/#/run/ranks?rank=0").until(lambda: page.drawn().get("step.duration"), "one rank")
    assert page.drawn()["step.duration"]["heat"] is None
    card.get_by_role("button", name="heat map", exact=True).click()

    def of_rank_0() -> Any:
        heat = page.drawn()["step.duration"]["heat"]  # of all ranks until the one rank's values have come
        return heat if heat and float(heat[0].removesuffix(" ms")) < 225 else None

    of_one = page.until(of_rank_0, "its rows")
    page.page.reload()
    assert page.until(lambda: (page.drawn().get("step.duration") or {}).get("heat"), "the same again") == of_one
    card.get_by_label("More of step.duration").click()
    assert card.get_by_role("group", name="Heat map").get_by_role("button").all_inner_texts() == [
        "none",
        "of all values",
    ]
