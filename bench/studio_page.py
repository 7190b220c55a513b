"""The Studio's page in a real Chromium: its main thread while a job is live, its heap over an hour, its first chart.

Run: ``python bench/studio_page.py [--check] [--seconds 60] [--speed 30]``. Goals: with 40 ranks that each record one
value a second of ten metrics the main thread is busy for at most 10 % of the time; after an hour of that, sent
``--speed`` times as fast, the heap is where it was after ten minutes; the first chart is drawn within a second where a
metric has a million points, and within 1.5 s where there are 200 charts; all JavaScript has at most 350 kB.
"""

from __future__ import annotations

import argparse
import http.client
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from race import Goal, report

from studio import hub, requests

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import Tab, chromium, tab
from hub_requests import logs, rank
from recorded_runs import DEFINITION, points
from tachograph.hub.hub import Hub

RANKS, METRICS = 40, 10
HOUR, EARLY = 3600, 600  # seconds that are told
MILLION, CHARTS = 1_000_000, 200
GOAL_BUSY, GOAL_MILLION, GOAL_CHARTS, GOAL_SCRIPTS = 10.0, 1000.0, 1500.0, 350.0
GOAL_HEAP = 1.1  # of what it was after ten minutes
STATIC = Path(__file__).parents[1] / "src" / "tachograph" / "studio" / "static"
SIZE = 1440, 900


class Job:
    """Ranks that record each second, sent to a hub as they send it; ``speed`` seconds are told in one."""

    def __init__(self, address: str, speed: float) -> None:
        self.address, self.speed = address, speed
        self.second = 0
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self) -> None:
        sender = http.client.HTTPConnection(self.address)
        began, at_once = time.monotonic(), max(1, round(self.speed))
        while not self.stopped.is_set():
            seconds = range(self.second, self.second + at_once)
            for number in range(RANKS):
                said = [
                    {"metric": f"m{metric}", "group": "training", "x": float(at), "branch": 0, "value": value}
                    for at in seconds
                    for metric in range(METRICS)
                    for value in [(1 + metric) * math.exp(-at / 900) + 0.02 * math.sin(at * number + metric)]
                ]
                for body in requests(number, 1 + self.second * METRICS, said):
                    sender.request("POST", "/v1/logs", body, {"Content-Type": "application/x-protobuf"})
                    sender.getresponse().read()
            self.second += at_once
            self.stopped.wait(max(0.0, began + self.second / self.speed - time.monotonic()))

    def start(self) -> None:
        """Send until it is ended."""
        self._thread.start()

    def end(self) -> None:
        """Send no more."""
        self.stopped.set()
        self._thread.join()


@contextmanager
def job(speed: float) -> Iterator[tuple[str, Job]]:
    """Run a hub and a job that sends to it; lend its address."""
    with tempfile.TemporaryDirectory() as name, hub(Path(name)) as (address, _):
        made = Job(address, speed)
        made.start()
        try:
            yield address, made
        finally:
            made.end()


class Meter:
    """Reads Chromium's counts of a page: durations are processor time, so that other programs do not count."""

    def __init__(self, found: Tab) -> None:
        self._session = found.page.context.new_cdp_session(found.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def counted(self) -> Mapping[str, float]:
        """Return its metrics by name."""
        return {each["name"]: each["value"] for each in self._session.send("Performance.getMetrics")["metrics"]}

    def heap(self) -> float:
        """Return the bytes of JavaScript after a collection of garbage."""
        self._session.send("HeapProfiler.collectGarbage")
        return self.counted()["JSHeapUsedSize"]


# Looked at in the page itself; its policy forbids code from strings, and so Playwright's own waiting.
DRAWN = """(charts) => new Promise((done) => {
  const look = () => {
    const drawn = window.__studio?.drawn().filter(({ curves }) => curves.length).length ?? 0;
    if (drawn >= charts) requestAnimationFrame(() => done(performance.now()));
    else setTimeout(look, 10);
  };
  look();
})"""


def opened(found: Tab, path: str, charts: int = 1) -> float:
    """Open a page; return the milliseconds since then when so many charts were drawn."""
    found.open(path)
    return float(found.page.evaluate(DRAWN, charts))


@contextmanager
def page(address: str) -> Iterator[Tab]:
    """Lend a tab for the pages of a hub."""
    with chromium() as browser, tab(browser, f"http://{address}", size=SIZE) as found:
        yield found
        if found.complaints:
            raise SystemExit(f"the console: {found.complaints}")


def live(seconds: float) -> list[Goal]:
    """Watch a job as it is recorded; its charts fill the view, and a table of its ranks is open."""
    goals = []
    with job(1.0) as (address, _), page(address) as found:
        time.sleep(3)
        opened(found, "/#/run/job", METRICS // 3)
        meter = Meter(found)
        for what in ("", ", each rank by itself"):
            if what:
                for button in found.page.locator(".card button", has_text="ranks").all():
                    if button.is_visible():
                        button.click()
            time.sleep(5)
            before, began = meter.counted(), time.monotonic()
            time.sleep(seconds)
            after, passed = meter.counted(), time.monotonic() - began
            share = {
                key: 100 * (after[key] - before[key]) / passed
                for key in ("TaskDuration", "ScriptDuration", "LayoutDuration")
            }
            print(f"live{what}: " + ", ".join(f"{key} {value:.1f} %" for key, value in share.items()))
            goals.append(Goal(f"main thread, live{what}", share["TaskDuration"], GOAL_BUSY, 1.0, "%"))
    return goals


def hour(speed: float) -> list[Goal]:
    """Watch an hour of a job, all charts seen; compare the heap with that after ten minutes."""
    with job(speed) as (address, sent), page(address) as found:
        time.sleep(1)
        opened(found, "/#/run/job", METRICS // 3)
        meter = Meter(found)
        at, heaps = EARLY, {}
        while at <= HOUR:
            until(lambda at=at: sent.second >= at)
            found.page.evaluate(f"scrollTo(0, {(at // 150) % 2} * document.body.scrollHeight)")  # all are seen
            heaps[at] = meter.heap() / 1e6
            at += 150
    print("heap, MB by told second: " + ", ".join(f"{key} {value:.1f}" for key, value in heaps.items()))
    early = max(value for key, value in heaps.items() if key < 2 * EARLY)
    late = max(value for key, value in heaps.items() if key > HOUR - EARLY)
    return [Goal("heap after an hour", late, GOAL_HEAP * early, 1.0, "MB")]


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not condition():
        time.sleep(0.05)


def first_chart() -> list[Goal]:
    """Open a run whose metric has a million points, and one with 200 charts."""
    with tempfile.TemporaryDirectory() as name:
        made = Hub(Path(name), run="million")
        for first in range(0, MILLION, 5000):
            values = [math.sin(x / 5e4) + 0.2 * math.sin(x) for x in range(first, first + 5000)]
            said = [(event, {**about, "x": about["x"] + first}) for event, about in points(values)]
            made.receive_logs(logs(rank(0, run="million"), *said, stream="s", first=1 + first))
        made.close()
        made = Hub(Path(name), run="charts")
        told: list[tuple[str, Mapping[str, Any]]] = []
        for number in range(CHARTS):
            about = {"group": f"group {number % 30}"}
            told.append((DEFINITION, {"metric": f"m{number}", **about, "scale": f"s{number}"}))
            told.extend(points([math.sin(x * (1 + number % 7) / 40) for x in range(200)], f"m{number}", **about))
        made.receive_logs(logs(rank(0, run="charts"), *told))
        made.close()
        taken: dict[str, list[float]] = {"million": [], "charts": []}
        with hub(Path(name)) as (address, _), page(address) as found:
            for turn in range(4):
                for run, some in taken.items():
                    found.open("/#/")
                    took = opened(found, f"/?{turn}#/run/{run}")
                    some.append(took)
    print({run: [round(each) for each in some] for run, some in taken.items()}, "ms; the first of each is not counted")
    middle = {run: sorted(some[1:])[len(some) // 2 - 1] for run, some in taken.items()}
    return [
        Goal("first chart, a million points", middle["million"], GOAL_MILLION, 1.0, "ms"),
        Goal("first chart, 200 charts", middle["charts"], GOAL_CHARTS, 1.0, "ms"),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure the Studio's page.")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of each look at a live page (default: %(default)s)"
    )
    parser.add_argument("--speed", type=float, default=30.0, help="of the told hour (default: %(default)s)")
    parser.add_argument("--only", choices=["live", "hour", "first"], help="of the measurements")
    parser.add_argument("--check", action="store_true", help="fail where a goal is missed")
    chosen = parser.parse_args()
    scripts = sum(len(path.read_bytes()) for path in STATIC.rglob("*.js")) / 1e3
    goals = [Goal("all JavaScript", scripts, GOAL_SCRIPTS, 1.0, "kB")]
    wanted = {"live": lambda: live(chosen.seconds), "hour": lambda: hour(chosen.speed), "first": first_chart}
    for what, measured in wanted.items():
        if chosen.only in (None, what):
            goals += measured()
    kept = report("The Studio's page", goals)
    sys.exit(1 if chosen.check and not kept else 0)


if __name__ == "__main__":
    main()
