"""Faults, and slow and failed calls, on a run's page in a real browser: of real jobs that fail or are resumed."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, tab
from hub_requests import SECOND, logs, rank
from launches import run
from programs import write
from recorded_runs import points
from studio import record, studio
from tachograph.diagnosis.incident import HANG
from tachograph.hub.hub import Hub
from tachograph.runs.recorded import BEGIN

pytest.importorskip("uvicorn")

EVIL = "a bad batch </script><img src=x onerror=alert(1)>"
DDP = f"""
import math, os, signal, sys, time
import torch, torch.distributed as dist
import tachograph

rank = int(os.environ["RANK"])
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it fails by rank 1's end, even where torchrun is faster
dist.init_process_group("gloo")
for step in range(40):
    dist.all_reduce(torch.ones(1))
    loss = math.inf if step == 20 else math.nan if rank == 1 and step > 24 else math.exp(-step / 20) + 0.1 * rank
    tachograph.log({{"loss": loss, "lr": 0.1}}, step=step)
    if rank == 1 and step == 30:
        time.sleep(1)
        raise ValueError({EVIL!r} + chr(10) + "token=hunter2secret")
"""
TWICE = """
import tachograph

again = {again}
for step in range(10, 20) if again else range(15):
    tachograph.log({{"loss": 1 / (step + 1)}}, step=step)
"""
GOOD = """
import tachograph

for step in range(5):
    tachograph.log({"loss": 1 / (step + 1)}, step=step)
"""
CALLS = f"""
import time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import tachograph

@tachograph.prof
def step(number):
    time.sleep(0.2 if number == 7 else 0)
    if number % 4 == 3:
        raise ValueError({EVIL!r} + f" {{number}} token=hunter2secret")

for number in range(60):
    if number == 30:
        trace.set_tracer_provider(TracerProvider())
    try:
        step(number)
    except ValueError:
        pass
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a DDP job one rank of which had NaN and raised, a run that was resumed, and one that went well."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("faults")
    path = write(folder, DDP, "ddp.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    more = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = run(folder, sys.executable, *launcher, str(path), options=("--run-id", "ddp"), timeout=150, **more)
    assert done.returncode == 1, done.stderr
    for again in (False, True):
        record(folder, "twice", TWICE.format(again=again))
    record(folder, "good", GOOD)
    record(folder, "calls", CALLS)
    with studio(folder, TACHOGRAPH_TRACE_URL="https://traces.example/trace/{trace_id}?from=studio") as served:
        yield served.url


def faults(page: Tab, run: str) -> list[tuple[str, str]]:
    """Return kind and title of each fault that the page shows."""
    listed = page.open(f"/#/run/{run}").page.locator(".faults .fault")
    page.until(listed.count, "faults")
    page.page.locator(".faults > summary").click()
    return [
        (one.get_attribute("data-kind"), one.locator(".fault-head > :first-child").inner_text()) for one in listed.all()
    ]


def test_a_job_that_failed_says_what_and_where(page: Tab) -> None:
    """The exception with its rank and whole message, as text and without secrets; the first ±Inf of the loss."""
    found = faults(page, "ddp")
    assert found[0] == ("exception", "Failed (exit code 1); rank 1 failed first: ValueError")
    (unfinite,) = [title for kind, title in found if kind == "nonfinite"]
    assert unfinite.startswith("loss: first +Inf at step 20 on rank ")
    message = page.page.locator(".fault-detail").first.inner_text()
    assert message == f"{EVIL}\ntoken=***"
    detail = page.page.locator("[data-kind=nonfinite] .fault-detail").inner_text()
    assert "first NaN at step 25" in detail or "also rank 1" in detail
    assert page.page.locator(".faults.loud").count() == 1


def test_a_fault_leads_to_its_place_by_keyboard(page: Tab) -> None:
    """Enter on the fault of the loss brings its chart into view, focused, with a line at the step."""
    faults(page, "ddp")
    page.loaded("loss")
    page.page.locator("[data-kind=nonfinite] .fault-link").focus()
    page.page.keyboard.press("Enter")
    line = page.page.locator(".fault-mark")
    page.until(line.count, "the mark")
    card = page.card("loss")
    assert card.evaluate("node => node === document.activeElement")
    assert "first +Inf at step 20" in line.get_attribute("title")
    over = card.locator(".u-over").bounding_box()
    low, high = page.drawn()["loss"]["scales"]["x"]
    at = line.bounding_box()
    share = (at["x"] + at["width"] / 2 - over["x"]) / over["width"]
    assert abs(share - (20 - low) / (high - low)) < 0.02
    assert at["height"] >= 0.9 * over["height"]
    card.get_by_role("button", name="log", exact=True).click()  # uPlot is made anew
    page.until(lambda: abs(line.bounding_box()["x"] - at["x"]) < 20, "the same mark in the new plot")
    card.get_by_role("button", name="heat map", exact=True).click()
    page.until(line.is_hidden, "no lines")
    card.get_by_role("button", name="heat map", exact=True).click()
    page.until(line.is_visible, "the mark again")
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.page.wait_for_timeout(500)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.shoot("faults")


def test_each_fault_leads_to_its_place(browser: Any, tmp_path: Path) -> None:
    """A lost rank, a NaN, a restart, a hang and a stall: each marks its x in the chart of the loss; losses unfold."""
    began = now = time.time_ns() - 600 * SECOND
    hub = Hub(tmp_path / "store", run="bad", clock=lambda: now)
    for number in (0, 1, 2):
        loss = [math.nan if number == 1 and x >= 30 else 1.0 + x for x in range(60)]
        said = [(BEGIN, {}), *points(loss, group="training")]
        hub.receive_logs(logs(rank(number, run="bad"), *said, stream=f"{number}", apart=SECOND, time=began))
    again = rank(2, run="bad", pid=900, restart=1)
    hub.receive_logs(
        logs(again, (BEGIN, {}), *points([9.0] * 8), stream="again", apart=SECOND, time=began + 61 * SECOND)
    )
    about = {
        "number": 1,
        "began": began + 50 * SECOND,
        "ended": began + 55 * SECOND,
        "grade": "hang",
        "cause": "blocked",
    }
    hung = {
        f"hang.{name}": value for name, value in {**about, "ranks": [1], "text": "rank 1 waits", "notes": []}.items()
    }
    hub.receive_logs(logs(rank(0, run="bad"), (HANG, hung), stream="hang", time=began + 55 * SECOND))
    now = time.time_ns()
    for number, who in enumerate((rank(0, run="bad"), rank(1, run="bad"), again)):
        hub.receive_logs(logs(who, ("checkpoint", {}), stream=f"heard{number}", time=now))
    hub.tick()
    with studio(tmp_path) as served, tab(browser, served.url) as page:
        found = faults(page, "bad")
        assert [kind for kind, _ in found] == ["stalled", "nonfinite", "hang", "restart"]
        assert found[0][1].startswith("Stalled: no new point for ")
        assert found[1][1] == "training/loss: first NaN at step 30 on rank 1"  # another loss has no group
        assert found[2][1] == "The job hung for 5 s"
        page.loaded("loss")
        line = page.page.locator(".fault-mark")
        for place, (kind, title) in enumerate(found):
            page.page.locator(".fault-link").nth(place).click()
            page.until(lambda title=title: line.count() and line.get_attribute("title") == title, f"the mark of {kind}")
            assert line.is_visible()
        hub.close()
        page.open("/#/").until(lambda: "bad" in page.text(), "the table")
        assert faults(page, "bad")[0][0] == "lost"
        assert page.complaints == []


def test_a_run_that_was_resumed_on_purpose_has_no_fault(page: Tab) -> None:
    """A program that ended well and was started again is no fault; its head counts the restart."""
    page.open("/#/run/twice").loaded("loss")
    page.page.wait_for_timeout(300)
    assert not page.page.locator(".faults").is_visible()
    assert "Restarts" in page.page.locator(".facts").inner_text()


def test_of_a_good_run_nothing_is_said(page: Tab) -> None:
    """The part of the page is not there at all."""
    page.open("/#/run/good").loaded("loss")
    page.page.wait_for_timeout(300)
    assert not page.page.locator(".faults").is_visible()
    assert "Faults" not in page.text()


def test_slow_and_failed_calls_are_listed(page: Tab) -> None:
    """Each with duration, time and error, as text and masked; a traced one leads to its trace, elsewhere."""
    page.open("/#/run/calls")
    calls = page.page.locator(".calls")
    page.until(calls.is_visible, "calls")
    failed, slowest = (calls.locator("details").nth(place) for place in (0, 1))
    for each in (failed, slowest):
        each.locator("summary").focus()
        page.page.keyboard.press("Enter")
    rows = [row.locator("th, td").all_inner_texts() for row in failed.locator("tbody tr").all()]
    assert len(rows) == 10
    assert (rows[0][0], rows[0][4]) == ("__main__.step", f"ValueError: {EVIL} 59 token=***")
    link = failed.locator("tbody a").first
    assert re.fullmatch(r"https://traces\.example/trace/[0-9a-f]{32}\?from=studio", link.get_attribute("href"))
    assert link.get_attribute("rel") == "noopener noreferrer"
    took = slowest.locator("tbody tr").first.locator("td").first.inner_text()
    assert took.endswith("ms")
    assert 200 <= float(took.split()[0]) < 5000
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.page.wait_for_timeout(300)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.shoot("calls")
