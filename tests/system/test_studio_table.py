"""The table of runs in a browser: found, sorted, grouped and chosen, by pointer and by keyboard, all in the address."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, tab
from many_runs import sweep
from recorded_runs import points, record
from studio import Alone, alone
from tachograph import runs
from tachograph.runs.store import run_path

MANY = 300
ODD = '<img src=x onerror=alert(1)> "weird" 🦊/' + "long" * 12
SIZES = {"wide": (1440, 900), "middle": (1024, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """Return a Studio that may write, over a sweep and a run of a strange name."""
    folder = tmp_path_factory.mktemp("store")
    sweep(folder, MANY)
    record(folder, ODD, *points([3.0, float("nan")], "loss"), day=-3)
    with alone(folder, "--write") as found:
        found.folder = folder  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def page(browser: Any, served: Alone) -> Iterator[Tab]:
    """Return a tab with the table, read to its end; at the end of a test the console has no error."""
    with tab(browser, served.url, size=SIZES["wide"]) as found:
        table(found)
        yield found
        assert found.complaints == []


def table(page: Tab, address: str = "/#/") -> None:
    """Open an address of the table, and wait until all runs are read."""
    page.open(address)
    page.until(lambda: names(page) and "reading" not in page.text(), "the table", 30)


def names(page: Tab) -> list[str]:
    """Return the names in the rows that are there, in order."""
    return list(page.page.locator("tr.run-row th a").all_inner_texts())


def filtered(page: Tab, text: str) -> None:
    """Write a filter."""
    page.page.get_by_label("Search runs").fill(text)


def test_rows_beyond_the_view_are_made_as_they_come_into_it(page: Tab) -> None:
    """The page has some tens of rows, of however many; each is there once it is scrolled to."""
    assert page.page.locator("h1").inner_text() == f"Runs {MANY + 1}"
    assert page.page.locator("tr.run-row").count() < 100
    page.page.evaluate("document.querySelector('.virtual').scrollTop = 1e9")
    page.until(lambda: ODD in names(page), "the oldest run")
    assert page.page.locator("tr.run-row").count() < 100
    assert page.page.locator("table.runs").get_attribute("aria-rowcount") == str(MANY + 2)


def test_a_filter_is_kept_in_the_address_and_taken_back(page: Tab, browser: Any, served: Alone) -> None:
    """The same link shows the same rows; the back button shows those of before."""
    filtered(page, "best < 0.1 tag:even state:failed")
    page.until(lambda: "of 301" in page.text(), "the filter")
    page.page.get_by_role("button", name="loss last").click()
    page.page.get_by_label("Group by").select_option("config.model")
    page.until(lambda: page.page.locator("tr.group-row").count() == 1, "the group")
    found, address = names(page), page.page.url.removeprefix(served.url)
    with tab(browser, served.url, size=SIZES["wide"]) as other:
        table(other, address)
        other.until(lambda: names(other) == found, "the same rows")
        assert other.page.get_by_label("Search runs").input_value() == "best < 0.1 tag:even state:failed"
        assert other.page.locator("th[aria-sort=descending]").inner_text() == "loss last"
    for _ in range(3):
        page.page.go_back()
    page.until(lambda: page.page.locator("h1").inner_text() == f"Runs {MANY + 1}", "all runs again")
    assert page.page.get_by_label("Search runs").input_value() == ""


def test_a_filter_that_cannot_be_read_is_pointed_at(page: Tab) -> None:
    """The character is marked, the sentence says what to write, and the rows stay."""
    before = names(page)
    filtered(page, "tag:even lr > big")
    page.until(lambda: "Expected a number after '>'" in page.text(), "the sentence")
    assert page.page.locator(".pointed mark").inner_text() == "b"
    assert page.page.get_by_label("Search runs").get_attribute("aria-invalid") == "true"
    assert names(page) == before
    filtered(page, "bst < 0.1")
    page.until(lambda: "did you mean 'best'?" in page.text(), "the nearest column")


def test_columns_are_chosen_by_hand(page: Tab) -> None:
    """Keys of configuration and results, and the last, least and greatest value of each metric can be columns."""
    page.page.get_by_role("button", name="Columns …").click()
    dialog = page.page.get_by_role("dialog", name="Columns")
    dialog.get_by_label("Find a column").fill("lr")
    dialog.get_by_label("lr").check()
    dialog.get_by_label("Find a column").fill("acc")
    dialog.get_by_role("group", name="Greatest value").get_by_label("accuracy").check()
    dialog.get_by_role("button", name="Show").click()
    heads = page.page.locator("table.runs thead th")
    page.until(lambda: {"lr", "accuracy max"} <= set(heads.all_inner_texts()), "the columns")
    page.page.reload()
    page.until(lambda: {"lr", "accuracy max"} <= set(heads.all_inner_texts()), "the same columns")


def test_runs_are_chosen_by_keyboard(page: Tab) -> None:
    """Arrows go from row to row, x chooses; what is chosen is in the address, and is compared by a link."""
    page.page.locator("tr.run-row a").first.focus()
    for key in ("x", "ArrowDown", "ArrowDown", "x", "ArrowUp"):
        page.page.keyboard.press(key)
    assert page.page.evaluate("document.activeElement.textContent") == f"sweep-{MANY - 2:05}"
    page.until(lambda: page.page.get_by_role("link", name="Compare 2 runs").is_visible(), "the link")
    page.page.wait_for_timeout(2500)  # the list has been asked for again
    assert page.page.evaluate("document.activeElement.textContent") == f"sweep-{MANY - 2:05}"
    page.page.reload()
    page.until(lambda: page.page.locator("tr.picked").count() == 2, "the chosen rows")


def test_a_run_is_named_and_deleted_in_the_table(browser: Any, served: Any) -> None:
    """With the token rows can be edited; without permission there is no button for it."""
    token = re.search(r"#token=\S+", served.said)
    assert token
    with tab(browser, served.url, size=SIZES["wide"]) as page:
        table(page, f"/{token[0]}")
        filtered(page, "id:sweep-00007")
        page.until(lambda: names(page) == ["sweep-00007"], "the run")
        page.page.get_by_role("button", name="Edit sweep-00007").click()
        page.page.get_by_role("dialog").get_by_label("Name").fill("The seventh")
        page.page.get_by_role("button", name="Save").click()
        page.until(lambda: names(page) == ["The seventh"], "the new name")
        page.page.get_by_role("button", name="Edit The seventh").click()
        page.page.get_by_role("button", name="Delete …").click()
        page.page.get_by_role("button", name="Delete", exact=True).click()
        page.until(lambda: "No run is called" in page.text(), "the end of the run")
        assert len(runs.list(served.folder)) == MANY
    assert not run_path(served.folder, "sweep-00007").exists()
    with alone(served.folder) as reading, tab(browser, reading.url) as page:
        table(page)
        assert page.page.get_by_role("button", name="Edit").count() == 0


@pytest.mark.parametrize("size", SIZES)
def test_the_table_is_legible_at_each_width(browser: Any, served: Alone, size: str) -> None:
    """The page is no wider than its window, light and dark; a strange name is text, and cut where it is long."""
    for dark in (False, True):
        with tab(browser, served.url, size=SIZES[size], dark=dark) as page:
            table(page)
            assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.shoot(f"table-{size}-{'dark' if dark else 'light'}", full=False)
            filtered(page, '"onerror"')
            page.until(lambda page=page: names(page) == [ODD], "the strange name")
            assert page.page.locator("tr.run-row img").count() == 0
            page.shoot(f"table-{size}-odd", full=False)
            assert page.complaints == []


def test_an_empty_store_says_how_to_begin(browser: Any, tmp_path: Path) -> None:
    """A store without runs shows the command that makes one."""
    (tmp_path / "runs").mkdir()
    with alone(tmp_path) as empty, tab(browser, empty.url) as page:
        page.open("/#/")
        page.until(lambda: "tachograph run -- python train.py" in page.text(), "the command")
        assert page.complaints == []


@pytest.mark.long
def test_ten_thousand_runs(browser: Any, tmp_path: Path) -> None:
    """They are all there, none is left out in silence: counted, filtered and scrolled to."""
    sweep(tmp_path, 10_000)
    with sqlite3.connect(run_path(tmp_path, "sweep-09999")) as last:
        assert last.execute("SELECT count(*) FROM tag").fetchone() == (1,)
    last.close()
    with alone(tmp_path) as many, tab(browser, many.url, size=SIZES["wide"]) as page:
        page.open("/#/")
        page.until(lambda: names(page), "the first rows", 20)
        page.shoot("table-10000-reading", full=False)
        heading = page.page.locator("h1").inner_text
        while "reading" in (before := heading()):  # however slow the machine is, some are read in the meantime
            page.until(lambda before=before: heading() != before, "further runs", 30)
        assert heading().strip() == "Runs 10\u202f000"
        page.page.evaluate("document.querySelector('.virtual').scrollTop = 1e9")
        page.until(lambda: "sweep-00000" in names(page), "the oldest")
        page.shoot("table-10000", full=False)
        filtered(page, "best < 0.0002 lr > 5e-3")
        page.until(lambda: "of 10\u202f000" in page.text(), "a filter")
        assert page.page.locator("tr.run-row").count() < 100
        assert page.complaints == []
