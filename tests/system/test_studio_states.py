"""Each state of the Studio's page: where its charts begin, in how many columns, and that anybody can use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from browser import Tab, tab
from page_states import PATHS, served_states

pytest.importorskip("uvicorn")

SIZES = {1440: (1440, 900), 1024: (1024, 768), 390: (390, 844)}
COLUMNS = {1440: 3, 1024: 2, 390: 1}
TOP, LINE = 140, 36  # pixels above the first chart, and of a line of faults
# A chart that is drawn says that the page is; a page without one has this.
THERE = {"empty": ".run-title", "gone": ".empty h1", "no-metric": ".find button", "runs": "tbody tr", "week": ".tile"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a run for each state."""
    with served_states(tmp_path_factory.mktemp("states")) as found:
        yield found


def shown(page: Tab, state: str) -> None:
    """Open a state, and wait until it is there."""
    page.open(PATHS[state])
    there = page.page.locator(THERE.get(state, ".card canvas, .card svg, .scatter svg")).first
    page.until(there.is_visible, state)


def columns(page: Tab) -> int:
    """Return how many cards of a section are beside each other."""
    tops = page.page.evaluate("[...document.querySelectorAll('.grid .card')].map((card) => card.offsetTop)")
    return sum(top == tops[0] for top in tops)


@pytest.mark.parametrize("width", SIZES)
def test_charts_begin_near_the_top(browser: Any, url: str, width: int) -> None:
    """Three columns of them at 1440, two at 1024, one at 390, from 140 px on; faults take a line more at most."""
    with tab(browser, url, size=SIZES[width]) as page:
        for state, limit in (("many", TOP), ("crash", TOP + LINE), ("ranks", TOP)):
            shown(page, state)
            top = page.page.locator(".card").first.bounding_box()["y"]
            assert top <= limit + (60 if width == 390 else 0), (state, top)
            assert page.page.evaluate("document.documentElement.scrollWidth") <= width
            if width == 1440:
                assert page.page.locator(".top").bounding_box()["height"] <= 45
            if state == "many":
                assert columns(page) == COLUMNS[width]


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", SIZES)
def test_axe_finds_no_violation(browser: Any, url: str, width: int, *, dark: bool) -> None:
    """In no state at any width, light or dark, with what unfolds unfolded; the console says nothing of scripts."""
    axe = Axe()
    found = {}
    for state in PATHS:
        with tab(browser, url, size=SIZES[width], dark=dark) as page:
            shown(page, state)
            page.page.evaluate("for (const each of document.querySelectorAll('details:not(.menu)')) each.open = true")
            for button in page.page.locator(".card button", has_text="table").all()[:1]:
                button.click()
            page.page.wait_for_timeout(300)
            for each in axe.run(page.page).response["violations"]:
                where = [node["target"] for node in each["nodes"][:3]]
                found.setdefault(each["id"], []).append((state, each["impact"], where))
            assert [each for each in page.complaints if "404" not in each or state != "gone"] == []
    assert not found, found
