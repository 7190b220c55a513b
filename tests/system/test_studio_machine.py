"""The machine on a run's page, in a real browser: four tiles in words, and a week of samples in few bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import Tab
from recorded_runs import points, record
from studio import studio
from watched_week import store_week

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a run whose machine was watched for a week, and one whose was not."""
    folder = tmp_path_factory.mktemp("machine")
    store_week(folder / "store", "week")
    record(folder / "store", "none", *points([1.0, 2.0]))
    with studio(folder) as served:
        yield served.url


def test_the_machine_is_said_in_words(page: Tab) -> None:
    """Shares in percent, sizes and rates in bytes, at most so much of the week; no tile for a GPU that is not there."""
    sizes: list[int] = []
    page.page.on("response", lambda answer: sizes.append(len(answer.body())) if "/samples" in answer.url else None)
    page.open("/#/run/week")
    tiles = page.page.locator(".tile:visible")
    page.until(lambda: tiles.count() == 3, "the tiles")
    words = [[line for line in tile.inner_text().split("\n") if line.strip()] for tile in tiles.all()]
    assert [each[0] for each in words] == ["CPU", "Memory", "Network"]
    assert words[0][1].endswith(" % busy")
    assert words[0][2] == "of 8 processors; at most 100 %"
    assert words[1][1:3] == ["25 % used", "4.0 GiB of 16 GiB; at most 25 %"]
    assert words[2][1:3] == ["1.0 MiB/s in, 2.0 MiB/s out", "at most 2.0 MiB/s"]
    assert words[0][3] == "over 6 d 23 h"  # from the end of the first stretch
    assert page.page.locator(".tile-picture title").first.text_content().startswith("CPU: ")
    assert 0 < sum(sizes) <= 300_000
    for width in (1440, 1024, 390):
        page.page.set_viewport_size({"width": width, "height": 900})
        page.page.wait_for_timeout(200)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    page.shoot("machine")


def test_all_of_it_is_a_key_away_and_thinned(page: Tab) -> None:
    """The button of the tiles unfolds the section; its charts have percent, a band of extremes, and few bytes."""
    sizes: list[int] = []
    page.page.on("response", lambda answer: sizes.append(len(answer.body())) if "/samples" in answer.url else None)
    page.open("/#/run/week")
    button = page.page.locator(".machine button")
    page.until(button.is_visible, "the machine")
    button.focus()
    page.page.keyboard.press("Enter")
    card = page.card("system.cpu.utilization")
    card.scroll_into_view_if_needed()
    curves = page.loaded("system.cpu.utilization")["system.cpu.utilization"]["curves"]
    (idle,) = [curve for curve in curves if "idle" in curve["label"]]
    assert len(idle["x"]) <= 200
    assert min(idle["band"]["min"]) == 0.0
    card.locator(".u-over").hover()
    page.page.wait_for_timeout(200)
    assert "%" in card.inner_text()
    assert sum(sizes) <= 300_000


def test_a_run_without_a_machine_has_no_tiles(page: Tab) -> None:
    """Nothing stands for what was not looked at."""
    page.open("/#/run/none").loaded("loss")
    assert not page.page.locator(".machine").is_visible()
