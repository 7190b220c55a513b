"""The Studio's page in a real browser: how runs ended, in the list and in the head of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import chromium, tab
from hub_requests import START, logs, rank
from hubs import serving
from tachograph.hub.hub import Hub
from tachograph.identity.program import StartMarks, note_status

pytest.importorskip("uvicorn")

EVIL = "<img src=x onerror=alert(1)>\nwanted 3"


def store_run(folder: Path, run: str, status: int, *failures: tuple[int, str, str]) -> None:
    """Record a run whose job ended with a status, and whose ranks told exceptions."""
    marks = folder / f"marks-{run}"
    marks.mkdir()
    note_status(marks, status)
    hub = Hub(folder, run=run, clock=lambda: START, started=StartMarks(marks))
    for number, kind, message in failures:
        told = ("tachograph.process.failure", {"exception.type": kind, "exception.message": message})
        events = [("tachograph.process.start", {}), told, ("tachograph.process.end", {"reason": "exception"})]
        hub.receive_logs(logs(rank(number, run=run), *events, stream=f"{run}{number}"))
    hub.job_ended()
    hub.close()


def test_the_page_tells_how_runs_ended(tmp_path: Path) -> None:
    """The list has the state with exit code or signal, the head the process that failed first, with its exception."""
    store_run(tmp_path, "well", 0, (0, "ValueError", "of which the job took no notice"))
    store_run(tmp_path, "killed", -9)
    store_run(tmp_path, "failed", 3, (1, "ValueError", EVIL), (0, "RuntimeError", "the other rank is gone"))
    with chromium() as browser, serving(tmp_path) as hub, tab(browser, hub.url) as page:
        page.open("/#/").until(lambda: page.page.locator("tbody tr").count() == 3, "the runs")
        chips = {row.locator("th a").inner_text(): row.locator(".chip") for row in page.page.locator("tbody tr").all()}
        states = {name: chip.inner_text() for name, chip in chips.items()}
        assert states == {"well": "finished", "killed": "killed (SIGKILL)", "failed": "failed (exit code 3)"}
        title = chips["failed"].get_attribute("title")
        assert title.startswith("failed with exit code 3; rank 1 failed first: ValueError: <img src=x")
        page.open("/#/run/failed").until(lambda: page.page.locator(".fault").count(), "what went wrong")
        page.page.locator(".faults > summary").click()
        titles = page.page.locator(".fault-link, .fault-title").all_inner_texts()
        assert titles == ["Failed (exit code 3); rank 1 failed first: ValueError", "Rank 0 failed: RuntimeError"]
        assert page.page.locator(".fault-detail").first.inner_text() == EVIL
        page.open("/#/run/well").until(lambda: "finished" in page.page.locator("h1").inner_text(), "the other head")
        assert page.page.locator(".fault, .notices p").count() == 0
        assert page.complaints == []
