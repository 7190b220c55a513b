"""Chromium for tests: Debian's, driven by Playwright; what a page asks for and complains about is written down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

# The first starts in half the time.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# A browser of its own accord asks for updates, and whom it is sent to.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--js-flags=--expose-gc",
]
OUTPUT = Path(os.environ.get("TACHOGRAPH_TEST_OUTPUT", Path(__file__).parent / "output"))
WIDE, NARROW = (1280, 900), (420, 900)


@dataclass
class Tab:
    """A page of the Studio.

    Attributes:
        page: Playwright's.
        url: the hub's.
        asked: every URL that the page has asked for.
        complaints: what the browser had to say: errors of scripts, and what the security policy forbade.
    """

    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> Tab:
        """Go to a path of the hub, with its hash."""
        self.page.goto(self.url + path)
        return self

    def drawn(self) -> dict[str, dict[str, Any]]:
        """Return what each chart draws, by title."""
        return {each["title"]: each for each in self.page.evaluate("__studio.drawn()")}

    def until(self, condition: Callable[[], Any], what: str, within: float = 15.0) -> Any:
        """Wait until a condition holds, and return what it returned."""
        for _ in range(int(within * 10)):
            found = condition()
            if found:
                return found
            self.page.wait_for_timeout(100)
        self.shoot(f"failed-{what}")
        raise AssertionError(f"{what} did not come true in {within} s: {self.complaints}; {self.text()[:2000]}")

    def loaded(self, *titles: str) -> dict[str, dict[str, Any]]:
        """Wait until these charts are drawn, and return all."""

        def all_there() -> dict[str, dict[str, Any]] | None:
            found = self.drawn()
            return found if all(title in found and found[title]["curves"] for title in titles) else None

        return dict(self.until(all_there, f"charts {', '.join(titles)}"))

    def card(self, title: str) -> Any:
        """Return the locator of a chart's card."""
        return self.page.locator(".card").filter(has=self.page.get_by_role("heading", name=title, exact=True))

    def drag(self, title: str, begin: float, end: float) -> None:
        """Drag across a chart, between two parts of its width."""
        over = self.card(title).locator(".u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        x, y, width = box["x"], box["y"] + box["height"] / 2, box["width"]
        mouse = self.page.mouse
        mouse.move(x + begin * width, y)
        mouse.down()
        mouse.move(x + end * width, y, steps=5)
        mouse.up()

    def text(self) -> str:
        """Return what can be read on the page."""
        return str(self.page.locator("body").inner_text())

    def shoot(self, name: str, *, full: bool = True) -> Path:
        """Keep a screenshot as test output."""
        OUTPUT.mkdir(parents=True, exist_ok=True)
        (OUTPUT / ".gitignore").write_text("*\n")
        path = OUTPUT / f"{name}.png"
        self.page.screenshot(path=path, full_page=full)
        return path


def _program() -> str:
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is not None:
        return found
    why = f"none of {', '.join(PROGRAMS)} is on PATH: the Studio's page is not tested"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser; where there is none the test is skipped, and fails where CI is set."""
    program = _program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Browser, url: str, *, size: tuple[int, int] = WIDE, dark: bool = False) -> Iterator[Tab]:
    """Open a tab for a hub's pages; at its end nothing may have been asked of any other host."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    found = Tab(page, url)
    page.on("request", lambda request: found.asked.append(request.url))
    page.on("console", lambda message: found.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    try:
        yield found
    finally:
        context.close()
    assert [each for each in found.asked if not each.startswith((f"{url}/", "data:"))] == []
