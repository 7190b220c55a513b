"""The Studio's page while a run goes on: it follows by itself, and outlives its hub."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tachograph.studio
from browser import Tab, tab
from hub_requests import logs, rank
from hubs import PROTOBUF, ask, command
from programs import environment, write
from recorded_runs import POINT
from servers import free_port

pytest.importorskip("uvicorn")

JOB = """
import sys, time
import tachograph as cf

loss = cf.Metric("loss", group=cf.MetricGroup("training", units="epoch"), throttle=None)
for epoch in cf.progress(range(60)):
    loss.record(1 / (1 + epoch), at=epoch)
    time.sleep(0.1)
sys.stdin.read()
"""


def send(url: str, begin: int, end: int) -> None:
    """Send points ``begin`` to ``end`` of a run, whose values are their x."""
    sent = [(POINT, {"metric": "loss", "x": float(x), "value": float(x)}) for x in range(begin, end)]
    request = logs(rank(0, run="run"), *sent, stream="start", first=begin + 1)
    assert ask(url, "/v1/logs", request.SerializeToString(), Content_Type=PROTOBUF).status == 200


def shown(found: Tab) -> list[float]:
    """Return the values that are drawn of the one curve; no values where it is not there yet."""
    return next((list(curve["y"]) for each in found.drawn().values() for curve in each["curves"]), [])


def test_a_job_is_followed_as_it_goes(browser: Any, tmp_path: Path) -> None:
    """The address that ``tachograph run`` prints shows the run's curve and bar, and both grow without a reload."""
    line = [sys.executable, "-m", "tachograph", "run", "--port", "0", "--run-id", "going", "--", sys.executable]
    with subprocess.Popen(
        [*line, str(write(tmp_path, JOB))],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stderr is not None
        assert job.stdin is not None
        url = job.stderr.readline().split()[-1].rstrip(")").removesuffix("/metrics")
        with tab(browser, url) as found:
            found.open("/")
            found.until(lambda: "going" in found.text() and "running" in found.text(), "the live run in the list")
            found.page.get_by_role("link", name="going", exact=True).click()
            first = found.until(lambda: shown(found), "the first points")
            found.until(lambda: len(shown(found)) > len(first) + 5, "more points")
            found.until(lambda: shown(found) == [1 / (1 + epoch) for epoch in range(60)], "all points", 30)
            found.until(lambda: "60/60 ✓" in found.text(), "the bar's end")
            assert sum("/curves" in each for each in found.asked) <= 2  # what comes live is not fetched again
            found.shoot("going")
            job.stdin.close()
            found.until(lambda: "No answer from 127.0.0.1:" in found.text(), "the end of the job's hub", 30)
        job.wait(30)


def test_a_hub_that_is_killed_is_missed_and_welcomed_back(browser: Any, tmp_path: Path) -> None:
    """While the hub is gone the page says so; when it is back the page goes on, with what it has missed."""
    port = str(free_port())
    with tab(browser, f"http://127.0.0.1:{port}") as found:
        with command(tmp_path, "--run-id", "run", "--port", port) as hub:
            send(hub.url, 0, 5)
            found.open("/#/run/run")
            found.until(lambda: shown(found) == [0, 1, 2, 3, 4], "the first points")
            hub.process.send_signal(signal.SIGKILL)
            hub.end()
        found.until(lambda: "No answer from 127.0.0.1:" in found.text(), "banner")
        found.shoot("hub-gone", full=False)
        with command(tmp_path, "--run-id", "run", "--port", port) as hub:
            send(hub.url, 5, 8)
            found.until(lambda: "No answer from" not in found.text(), "the hub's return", 30)
            found.until(lambda: shown(found) == list(range(8)), "what was missed")
            send(hub.url, 8, 12)
            found.until(lambda: shown(found) == list(range(12)), "what is live again")
            hub.process.terminate()
            hub.end()


class Hour(BaseHTTPRequestHandler):
    """A hub whose run of ten ranks and fifty points a second goes through an hour as fast as the page takes it."""

    protocol_version = "HTTP/1.1"
    RANKS, A_SECOND, SECONDS = 10, 50, 3600
    second = 0
    ended = threading.Event()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer as the API does, as far as the page of this run asks."""
        path = urlsplit(self.path).path
        if path.endswith("/live"):
            self._live()
            return
        if path.startswith("/api/"):
            answers = {"curves": self._curves, "hour": self._run}
            answer = answers.get(path.rpartition("/")[2], lambda: {"events": [], "more": False})()
            self._send(dumps(answer).encode(), "application/json")
            return
        static = Path(tachograph.studio.__file__).parent / "static"
        file = static / (path.removeprefix("/static/") if path != "/" else "index.html")
        kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
        self._send(file.read_bytes(), kinds[file.suffix])

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _run(self) -> dict[str, Any]:
        about = {"execution": 0, "task": None, "start": 0, "branches": 1, "points": 1, "nonfinite": 0}
        drawn = [{"curve": number + 1, "rank": number, **about} for number in range(self.RANKS)]
        axis = {"units": "", "lower": None, "upper": None}
        chart = {"group": "hour", "shared": True, "x": axis, "scales": [{"scale": "s", "name": None, **axis}]}
        chart["metrics"] = [{"metric": "loss", "scale": "s", "progress": False, "curves": drawn, "left_out": 0}]
        run = {"id": "hour", "program": "p", "state": "running", "started": 1, "last": 1, "seconds": 1, "ranks": 10}
        run |= {"processes": 10, "restarts": 0, "points": 1, "bytes": 1, "damage": []}
        nothing: dict[str, Any] = {key: [] for key in ("processes", "progress", "series", "functions", "losses")}
        return {"now": 1, "run": run, "charts": [chart], **nothing}

    def _curves(self) -> dict[str, Any]:
        points = type(self).second * self.A_SECOND
        x = list(range(0, points, max(1, points // 2000)))
        about = {"metric": "loss", "execution": 0, "start": 0, "branch": 0, "points": points, "seq": points}
        y = [each % 97 for each in x]
        return {
            "curves": [
                {"curve": number + 1, "rank": number, **about, "exact": False, "x": x, "y": y, "nonfinite": []}
                for number in range(self.RANKS)
            ]
        }

    def _live(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b'event: hello\ndata: {"heads": {}, "events": 0, "resumed": false}\n\n')
        while type(self).second < self.SECONDS:
            begin = type(self).second * self.A_SECOND
            type(self).second += 1
            said = [[x, x % 97] for x in range(begin, begin + self.A_SECOND)]
            about = {"branch": 0, "after": begin, "seq": begin + self.A_SECOND, "points": said}
            curves = [{"curve": number + 1, **about} for number in range(self.RANKS)]
            data = dumps({"curves": curves, "new": [], "stale": []})
            self.wfile.write(f"id: {begin}\nevent: points\ndata: {data}\n\n".encode())
        self.ended.set()
        threading.Event().wait(5)


@pytest.mark.long
def test_an_hour_of_a_live_page_does_not_grow_its_memory(browser: Any) -> None:
    """After an hour of ten ranks with fifty points a second the page holds as much as it did after some minutes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hour) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tab(browser, f"http://127.0.0.1:{server.server_port}") as found:
            session = found.page.context.new_cdp_session(found.page)
            session.send("Performance.enable")

            def heap() -> float:
                session.send("HeapProfiler.collectGarbage")
                measured = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
                return float(measured["JSHeapUsedSize"])

            found.open("/#/run/hour")
            found.until(lambda: Hour.second > 300, "some minutes", 60)
            early = heap()
            found.until(Hour.ended.is_set, "the hour", 90)
            found.until(lambda: found.drawn()["hour"]["curves"][0]["x"][-1] > 0.95 * 3600 * 50, "its last points")
            found.card("hour").get_by_role("button", name="ranks").click()
            curves = found.until(lambda: len(each := found.drawn()["hour"]["curves"]) == 10 and each, "each rank")
            assert max(len(curve["x"]) for curve in curves) <= 4_100
            assert heap() < early + 4e6
        server.shutdown()
