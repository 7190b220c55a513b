"""A job that hangs, as users see it: ``tachograph diagnose``, ``top``, the run's page, /metrics and the store."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from browser import chromium, tab
from hubs import ask, command
from programs import environment
from recorded_runs import record
from tachograph.cli import main
from tachograph.exporters.otlp.logs import log_requests
from tachograph.recording.journal import LogEvent
from tachograph.recording.pulse_source import PULSE

RUN = "stands"
TORCH = [["/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"], ["/job/train.py", 12, "step"]]
EVIL = "<img src=x onerror=alert(1)>"
CLEAR = [["/job/train.py", 40, EVIL]]


def pulse(rank: int, number: int) -> ExportLogsServiceRequest:
    """Return the pulse of a rank of two, of another machine: rank 1 never begins the operation that rank 0 waits in."""
    waits = rank == 0
    group = {"ranks": "0-1", "desc": "default_pg", "backend": "gloo", "seq": 30 if waits else 29}
    body = {
        "v": 1,
        "n": number,
        "t": time.time(),
        "rank": rank,
        "world": 4,
        "pid": 4_000_000 + rank,
        "machine": "far",
        "host": "node-a",
        "gil": 0.0,
        "left_out": [],
        "cpu": 1.0,
        "io": 20,
        "groups": {"0": group},
        "status": {"0": [30, 29] if waits else [29, 29]},
        "entries": [["0", 30, False, "gloo:all_reduce", [[4]], ["Float"], False, 1]] if waits else [],
        "threads": [["main", 3, TORCH if waits else CLEAR]],
    }
    event = LogEvent(PULSE, time.time_ns(), time.time_ns(), {PULSE: json.dumps(body)}, number, 0, 0, 0, f"s{rank}")
    resource: dict[str, Any] = {
        "service.name": "job",
        "dl.run.id": RUN,
        "dl.rank": rank,
        "process.pid": 4_000_000 + rank,
    }
    ((request, _),) = log_requests([event], {**resource, "service.instance.id": f"i{rank}"}, print, lambda: None)
    return request


class Beats(threading.Thread):
    """Sends the pulses of both ranks, each second, until it is stopped."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.over = url, threading.Event()

    def run(self) -> None:
        """Send."""
        number = 0
        while not self.over.is_set():
            number += 1
            for rank in (0, 1):
                body = pulse(rank, number).SerializeToString()
                ask(self.url, "/v1/logs", body, **{"Content-Type": "application/x-protobuf"})
            self.over.wait(1)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, Beats]]:
    """Run a hub that gets the pulses of a job that stands still, once it has said so."""
    folder = tmp_path_factory.mktemp("standing")
    with command(folder, "--run-id", RUN) as hub:
        beats = Beats(hub.url)
        beats.start()
        until = time.monotonic() + 30
        while time.monotonic() < until and not asked(hub.url)["incidents"]:
            time.sleep(0.2)
        yield folder, hub.url, beats
        beats.over.set()


def asked(url: str) -> dict[str, Any]:
    """Return the answer of the hub."""
    try:
        with urllib.request.urlopen(f"{url}/api/runs/{RUN}/doctor", timeout=10) as answer:
            return dict(json.load(answer))
    except OSError:  # the run is not there yet
        return {"incidents": []}


def tachograph(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    line = [sys.executable, "-m", "tachograph", *arguments]
    return subprocess.run(line, env=environment(folder), capture_output=True, text=True, timeout=60, check=False)


def test_diagnose(standing: tuple[Path, str, Beats]) -> None:
    """The verdict, each rank side by side, and the stacks; the exit code tells that it stands still."""
    folder, url, _ = standing
    done = tachograph(folder, "diagnose", RUN, "--url", url)
    assert done.returncode == 3, done.stderr
    head, first, *rest = done.stdout.splitlines()
    assert head == f"run {RUN}"
    assert first.startswith("HANG: Rank 1 (pid 4000001) has been blocked for ")
    assert "Rank 0 waits in all_reduce #30 of default_pg, sizes [[4]], at train.py:12 in step." in first
    assert "Ranks 2-3 do not report to this hub" in first
    assert rest[0].split() == ["rank", "state", "for", "line", "operation"]
    assert "  /job/train.py:12 in step" in rest


def test_diagnose_as_json(standing: tuple[Path, str, Beats]) -> None:
    """The same for programs."""
    folder, url, _ = standing
    found = json.loads(tachograph(folder, "diagnose", "--json", "--url", url).stdout)
    assert (found["run"], found["live"]["open"]["cause"], found["live"]["open"]["ranks"]) == (RUN, "blocked", [1])
    assert [each["state"] for each in found["live"]["ranks"]] == ["waiting", "not moving"]


def test_diagnose_of_the_store(standing: tuple[Path, str, Beats]) -> None:
    """The store keeps the incident: it is there without a hub."""
    folder, _, _ = standing
    done = tachograph(folder, "diagnose", RUN, "--store", str(folder / "store"))
    assert done.returncode == 0, done.stderr
    assert "Rank 1 (pid 4000001) has been blocked for" in done.stdout


def test_diagnose_of_a_run_that_has_ended(
    standing: tuple[Path, str, Beats],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With no hub any more, or that of another job, the run's name is enough: it is read where runs are kept."""
    record(tmp_path, "run", ("tachograph.hang", {"hang.number": 1, "hang.text": "Rank 1 stood", "hang.grade": "hang"}))
    monkeypatch.setenv("TACHOGRAPH_HUB", "http://127.0.0.1:9")
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path))
    assert main(["diagnose", "run"]) == 0
    assert "Rank 1 stood" in capsys.readouterr().out
    assert main(["diagnose", "other"]) == 2
    assert "there is no run 'other' in" in capsys.readouterr().err
    monkeypatch.setenv("TACHOGRAPH_HUB", standing[1])
    assert main(["diagnose", "run"]) == 0
    assert "Rank 1 stood" in capsys.readouterr().out
    assert main(["diagnose", "other"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--url", "http://127.0.0.1:9"), 1, "does not answer"),
        (("no-such-run", "--store", "nowhere"), 2, "no-such-run"),
    ],
)
def test_diagnose_without_a_job(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    """Where there is no hub or no run, a line says so."""
    done = tachograph(tmp_path, "diagnose", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_top(standing: tuple[Path, str, Beats]) -> None:
    """``top`` has the verdict in its head."""
    pytest.importorskip("rich")
    folder, url, _ = standing
    screen = tachograph(folder, "top", "--once", RUN, "--url", url).stdout
    assert "HANG: Rank 1 (pid 4000001) has been blocked" in screen


def test_the_gauge(standing: tuple[Path, str, Beats]) -> None:
    """/metrics has 1 for the guilty rank."""
    _, url, _ = standing
    wanted = f'tachograph_hang{{cause="blocked",dl_rank="1",dl_run_id="{RUN}",otel_scope_name="tachograph"}} 1'
    assert wanted in ask(url, "/metrics").body.decode()


def test_the_page(standing: tuple[Path, str, Beats]) -> None:
    """A banner has the verdict and each rank's state, line and operation, as text."""
    _, url, _ = standing
    with chromium() as browser, tab(browser, url) as page:
        shown = page.open(f"/#/run/{RUN}").page.locator(".hang")
        page.until(shown.is_visible, "the banner")
        assert shown.locator("h2").inner_text() == "This run stands still"
        assert EVIL in shown.locator(".hang-words").inner_text()
        rows = shown.locator("tbody tr")
        assert rows.count() == 2
        assert rows.nth(0).get_attribute("class") == "guilty"
        assert rows.nth(0).locator("td").nth(0).inner_text() == "not moving"
        assert rows.nth(1).locator("td").nth(3).inner_text() == "all_reduce #30 of default_pg, sizes [[4]]"
        assert page.complaints == []
