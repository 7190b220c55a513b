"""The Studio's editor in a browser: a name, tags, notes and the end of a run, with the token of the printed link."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, tab
from recorded_runs import points, record
from studio import alone
from tachograph import runs


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with two runs."""
    record(tmp_path, "a/run", *points([3.0, 2.0, 1.0]))
    record(tmp_path, "another", *points([1.0, 2.0]))
    return tmp_path


def edit(page: Tab) -> Any:
    """Open the editor, and return its locator."""
    page.page.get_by_role("button", name="Edit", exact=True).click()
    return page.page.get_by_role("dialog")


def test_a_run_is_named_tagged_noted_and_deleted(browser: Any, store: Path) -> None:
    """The printed link is enough; its token stays in the page's memory, and what was said is shown at once."""
    with alone(store, "--write") as studio:
        token = re.search(r"#token=\S+", studio.said)
        assert token
        with tab(browser, studio.url) as page:
            page.open(f"/{token[0]}")
            page.until(lambda: "another" in page.text(), "the list")
            assert page.page.url == f"{studio.url}/#/"
            assert page.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
            page.page.get_by_role("link", name="a/run").click()
            page.loaded("loss")
            dialog = edit(page)
            dialog.get_by_label("Name").fill("The <b>best</b> one")
            for tag in ("baseline", "sweep, 7", "typo"):
                dialog.get_by_label("Another tag").fill(tag)
                dialog.get_by_label("Another tag").press("Enter")
            dialog.get_by_label("Remove the tag typo").click()
            dialog.get_by_label("Another tag").fill("not yet entered")
            dialog.get_by_label("Notes").fill("diverges\nat 40k")
            page.shoot("studio-edit")
            dialog.get_by_role("button", name="Save").click()
            page.until(lambda: not dialog.is_visible(), "the end of the editor")
            assert "The <b>best</b> one" in page.page.get_by_role("heading", level=1).inner_text()
            assert "baseline, not yet entered, sweep, 7" in page.text()
            assert "diverges\nat 40k" in page.text()
            assert [each for each in page.asked if "token" in each] == []
            found = runs.open("a/run", store)
            assert (found.name, found.notes) == ("The <b>best</b> one", "diverges\nat 40k")
            assert found.tags == ["baseline", "not yet entered", "sweep, 7"]
            page.open("/#/")
            page.until(lambda: "The <b>best</b> one\na/run" in page.text(), "the name in the list")
            page.page.get_by_role("link", name="The <b>best</b> one").click()
            page.loaded("loss")
            dialog = edit(page)
            dialog.get_by_role("button", name="Delete …").click()
            assert "Delete this run for good?" in dialog.inner_text()
            assert "3 points" in dialog.inner_text()
            dialog.get_by_role("button", name="Keep").click()
            assert len(runs.list(store)) == 2
            dialog = edit(page)
            dialog.get_by_role("button", name="Delete …").click()
            page.shoot("studio-delete")
            dialog.get_by_role("button", name="Delete", exact=True).click()
            page.until(lambda: page.page.url == f"{studio.url}/#/", "the list after the end")
            page.until(lambda: "best" not in page.text() and "another" in page.text(), "a list without the run")
            assert page.complaints == []
        assert [each.id for each in runs.list(store)] == ["another"]


def test_two_pages_delete_the_same_run(browser: Any, store: Path) -> None:
    """The second is told that it is gone, and goes on; a page without the link asks for the token once."""
    with alone(store, "--write") as studio, tab(browser, studio.url) as one, tab(browser, studio.url) as two:
        token = re.search(r"#token=(\S+)", studio.said)
        assert token
        for page in (one, two):
            page.open("/#/run/another")
            page.loaded("loss")
            dialog = edit(page)
            dialog.get_by_label("Token").fill("wrong")
            dialog.get_by_role("button", name="Save").click()
            page.until(lambda dialog=dialog: "use the link" in dialog.inner_text(), "words about the token")
            dialog.get_by_label("Token").fill(token[1])
            dialog.get_by_role("button", name="Save").click()
            page.until(lambda dialog=dialog: not dialog.is_visible(), "the end of the editor")
            dialog = edit(page)
            assert dialog.get_by_label("Token").count() == 0
            dialog.get_by_role("button", name="Delete …").click()
        one.page.get_by_role("button", name="Delete", exact=True).click()
        one.until(lambda: one.page.url == f"{studio.url}/#/", "the list after the end")
        two.page.get_by_role("button", name="Delete", exact=True).click()
        two.until(lambda: "It was deleted meanwhile." in two.page.get_by_role("dialog").inner_text(), "that it is gone")
        two.shoot("studio-gone")
        two.until(lambda: "there is no run 'another'" in two.text(), "the banner")
        two.page.get_by_role("button", name="All runs").click()
        two.until(lambda: "a/run" in two.text(), "the list")


def test_a_page_for_looking_has_no_editor(browser: Any, store: Path) -> None:
    """Without --write there is nothing to press; an address with a wrong id links to the nearest run."""
    with alone(store) as studio, tab(browser, studio.url) as page:
        page.open("/#/run/another")
        page.loaded("loss")
        assert page.page.get_by_role("button", name="Edit").count() == 0
        page.open("/#/run/anothr")
        page.until(lambda: "did you mean 'another'?" in page.text(), "words about the run")
        page.page.locator("main").get_by_role("link", name="another").click()
        page.loaded("loss")
