"""Eight jobs at once on one machine: none is in another one's way, and each has its values and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub_requests import shown
from hubs import ask
from launches import RUN
from programs import environment, write
from servers import wait_until
from tachograph import runs

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

JOBS = 8
POINTS = 50
# Each job is told apart by its mark alone: the program's name is one for two of them, and its metrics are for all.
PROGRAM = """
    import os, sys, time, tachograph
    mark = float(sys.argv[1])
    for step in range(POINTS):
        tachograph.log({"mark": mark}, step=step)
        tachograph.put_metric("value", mark, "train")
    tachograph.declare("steps", kind="counter", group="train").record(mark)
    tachograph.put_metric("load_seconds", mark, "train")
    open(f"ready-{sys.argv[1]}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
"""


def program(folder: Path, job: int) -> Path:
    """Return the program of a job; the first two have the same one."""
    return write(folder, PROGRAM.replace("POINTS", str(POINTS)), f"train{max(job, 1)}.py")


@contextmanager
def jobs(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start all jobs at once on one store, with no port and no run given, and yield when each has recorded."""
    with ExitStack() as stack:
        found = []
        for job in range(JOBS):
            command = [*RUN, "--", sys.executable, str(program(folder, job)), str(job)]
            with said(folder, job).open("w") as err:
                found.append(subprocess.Popen(command, cwd=folder, env=environment(folder), text=True, stderr=err))
            stack.callback(found[-1].wait, 120)
        stack.callback((folder / "go").touch)  # however the test ends, so do the jobs
        wait_until(lambda: len(list(folder.glob("ready-*"))) == JOBS, 240)
        yield found


def said(folder: Path, job: int) -> Path:
    """Return the file with all that ``tachograph run`` has said of a job."""
    return folder / f"err-{job}.txt"


def told(folder: Path, job: int) -> tuple[str, str]:
    """Return the address of a job's hub, and its run, as ``tachograph run`` has said them."""
    text = said(folder, job).read_text()
    page, run, *_ = text.splitlines()
    assert page.endswith("/metrics)"), text
    return page.split()[-1].removesuffix("/metrics)"), run.split()[2].removesuffix(",")


def values(page: bytes, name: str) -> dict[str, list[float]]:
    """Return the values of a sample on a page, by run."""
    found: dict[str, list[float]] = {}
    for labels, value in shown(page, name).items():
        found.setdefault(dict(labels)["dl_run_id"], []).append(value)
    return found


def test_eight_jobs_at_once(tmp_path: Path) -> None:
    """Each job has a hub, a port and a run of its own; its page has its values, and its file all of them, no others."""
    with jobs(tmp_path) as running:
        hubs = [told(tmp_path, job) for job in range(JOBS)]
        assert len({url for url, _ in hubs}) == len({run for _, run in hubs}) == JOBS
        for job, (url, run) in enumerate(hubs):

            def is_there(url: str = url) -> bool:
                return bool(shown(ask(url, "/metrics").body, "load_seconds_count"))

            wait_until(is_there, 60)
            page = ask(url, "/metrics").body
            assert values(page, "value") == {run: [job]}
            assert values(page, "steps_total") == {run: [job]}
            assert values(page, "load_seconds_sum") == {run: [job]}
            assert {labels["dl_run_id"] for labels in map(dict, shown(page, "target_info"))} == {run}
            (target,) = json.loads(ask(url, "/sd").body)
            assert target["labels"]["__meta_tachograph_run"] == run
    for job, (each, (_, run)) in enumerate(zip(running, hubs, strict=True)):
        err = said(tmp_path, job).read_text()
        assert each.returncode == 0, err
        assert f"recorded {2 * POINTS} points, " in err.splitlines()[-1], err
        stored: Any = runs.open(run, tmp_path / "store")
        assert [point.value for point in stored.points("mark")] == [job] * POINTS
        assert [point.value for point in stored.points("value")] == [job] * POINTS
        assert len(stored.processes()) == 1
    assert {each.id for each in runs.list(tmp_path / "store")} == {run for _, run in hubs}
