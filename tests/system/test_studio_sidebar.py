"""The list of runs beside the charts: labels, the best run, several at once, a filter, and how it folds up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser import NARROW, Tab, tab
from recorded_runs import points, record
from studio import Alone, alone

LOSSES = {"first": 0.5, "second": 0.2, "third": 0.9}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """Serve three runs that differ in their learning rate and their loss."""
    folder = tmp_path_factory.mktemp("store")
    for place, (name, loss) in enumerate(LOSSES.items()):
        config = ("tachograph.config", {"tachograph.config": {"lr": 0.1 * (place + 1), "model": "small"}})
        record(folder, name, config, *points([2.0, loss], "loss"), *points([0.1, 0.9], "accuracy"))
    with alone(folder) as found:
        yield found


@pytest.fixture
def page(browser: Any, served: Alone) -> Iterator[Tab]:
    """Open a tab; the browser may complain of nothing."""
    with tab(browser, served.url) as found:
        yield found
    assert found.complaints == []


def labels(page: Tab) -> list[str]:
    """Return what each listed run is called."""
    return list(page.page.locator(".side-name").all_inner_texts())


def colors(page: Tab) -> list[str]:
    """Return the colors of the drawn runs."""
    return sorted(
        page.page.locator(".side-run .swatch").evaluate_all("all => all.map((each) => each.style.background)")
    )


def test_runs_are_told_apart_by_what_differs(page: Tab) -> None:
    """A label has the keys that differ and no others; the run that is seen is ticked, and the least loss has a star."""
    page.open("/#/run/first").loaded("loss")
    page.until(lambda: len(labels(page)) == 3, "the list")
    assert sorted(labels(page)) == ["lr 0.1", "lr 0.2", "lr 0.3"]
    ticked = page.page.locator(".side-run.chosen .side-name").all_inner_texts()
    assert ticked == ["lr 0.1"]
    starred = [each for each in page.page.locator(".side-run").all_inner_texts() if "★" in each]
    assert len(starred) == 1
    assert "0.2 ★" in starred[0].replace("\n", " ")


def test_several_runs_are_ticked_and_drawn_together(page: Tab) -> None:
    """A tick draws the run beside the other one, in its own color; without it, the other has its page again."""
    page.open("/#/run/first").loaded("loss")
    page.until(lambda: len(labels(page)) == 3, "the list")
    before = colors(page)
    page.page.get_by_role("checkbox", name="Show second").check()
    page.until(lambda: len(page.drawn().get("loss", {"curves": []})["curves"]) == 2, "both runs")
    assert colors(page) == before
    assert {each["label"] for each in page.drawn()["loss"]["curves"]} == {"lr 0.1", "lr 0.2"}
    assert not page.page.locator(".compared-cards .legend").first.is_visible()
    page.page.get_by_role("checkbox", name="Show first").uncheck()
    page.until(lambda: "#/run/second" in page.page.url, "the page of the other run")
    page.page.go_back()
    page.until(lambda: "#/compare" in page.page.url, "both again")


def test_a_filter_shortens_the_list(page: Tab) -> None:
    """The filter is that of the table; one that cannot be read is explained."""
    page.open("/#/run/first").loaded("loss")
    page.until(lambda: len(labels(page)) == 3, "the list")
    field = page.page.get_by_label("Filter runs")
    field.fill("lr > 0.15")
    page.until(lambda: len(labels(page)) == 2, "two runs")
    field.fill("lr >")
    page.until(lambda: page.page.locator(".side-words").inner_text(), "a reason")


def test_it_folds_up_and_stays_so(page: Tab) -> None:
    """Folded up, the charts have its room, also after a reload; a button brings it back."""
    page.open("/#/run/first").loaded("loss")
    page.until(lambda: len(labels(page)) == 3, "the list")
    page.page.get_by_role("button", name="Fold the list of runs up").click()
    assert not page.page.locator("#sidebar").is_visible()
    page.page.reload()
    page.loaded("loss")
    opener = page.page.locator("#unfold")
    page.until(opener.is_visible, "the button")
    assert not page.page.locator("#sidebar").is_visible()
    opener.click()
    assert page.page.locator("#sidebar").is_visible()


def test_on_a_phone_it_is_a_drawer(browser: Any, served: Alone) -> None:
    """It begins folded up there, and lies over the charts; nothing is wider than the window."""
    with tab(browser, served.url, size=NARROW) as page:
        page.open("/#/run/first").loaded("loss")
        opener = page.page.locator("#unfold")
        page.until(opener.is_visible, "the button")
        opener.click()
        assert page.page.locator("#sidebar").is_visible()
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.shoot("sidebar-phone", full=False)
        assert page.complaints == []
