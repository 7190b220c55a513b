"""Every expression of every dashboard, asked of a real Prometheus that has scraped a real job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dashboard_job
import gpus
from grafana import Asked, dashboards, metrics, queries, replaced, used, variables
from hubs import scraping
from programs import environment
from servers import api, free_port, instant, prometheus, wait_until
from tachograph.cli import main
from tachograph.hardware import _cuda_memory as cuda_memory
from tachograph.hardware import _system as system
from tachograph.recording.naming import prometheus_name

pytestmark = [pytest.mark.prometheus, pytest.mark.torch, pytest.mark.timeout(170)]

RUN = 'demo "1" $rank'
# Only torchrun's last words have these.
AT_THE_END = re.compile(r"torchrun_(run_|run\b|flakiness)")
GIVEN = {"__rate_interval": "10s", "__range": "60s", "role": ".*", "rank": ".*", "group": ".*", "function": ".*"}
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class Job(NamedTuple):
    """A job under way, the Prometheus that scrapes it, and the dashboards written meanwhile."""

    base: str
    url: str
    stop: Path
    written: dict[str, dict[str, Any]]

    def value_lists(self) -> dict[str, dict[str, list[str]]]:
        """Return the values of the variables that a panel or a row is repeated for, by dashboard."""
        return {
            name: {each.title: self._values(dashboard, each) for each in variables(name, dashboard)}
            for name, dashboard in self.written.items()
        }

    def _values(self, dashboard: Mapping[str, Any], asked: Asked) -> list[str]:
        found = re.fullmatch(r"label_values\((?:(.*), )?(\w+)\)", asked.expression)
        if found is None:
            return []
        match = replaced(found[1], {**GIVEN, "run": run_value()})
        values: list[str] = api(self.base, f"label/{found[2]}/values", **{"match[]": match})
        (variable,) = (each for each in dashboard["templating"]["list"] if each["name"] == asked.title)
        taken = variable.get("regex")
        if taken:
            matches = [re.search(taken.strip("/"), value) for value in values]
            values = list(dict.fromkeys(each[1] for each in matches if each))
        return values


def run_value() -> str:
    """Return the run's id as Grafana puts it into a regular expression in a string."""
    escaped = re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", RUN)  # as RE2 has them
    return escaped.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Run a job of two ranks, and scrape it each second."""
    folder = tmp_path_factory.mktemp("dashboards")
    nvml = gpus.compiled(tmp_path_factory.mktemp("nvml"))
    stop = folder / "stop"
    with running(folder, stop, LD_LIBRARY_PATH=str(nvml)) as url:
        config = folder / "prometheus.yml"
        config.write_text(scraping(url).replace("5s", "1s"))
        with prometheus(config) as base:
            wait_until(lambda: instant(base, "steps{dl_rank='1'} > 50"), 60, folder.joinpath("log").read_text)
            refuse(url)
            assert (
                main(
                    [
                        "init",
                        "grafana",
                        "--force",
                        "--output",
                        str(folder),
                        "--run",
                        RUN,
                        "--store",
                        str(folder / "store"),
                    ]
                )
                == 0
            )
            yield Job(base, url, stop, dashboards(folder / "dashboards"))


@contextmanager
def running(folder: Path, stop: Path, **more: str) -> Iterator[str]:
    """Run the job under ``tachograph run`` and torchrun until the block ends; yield where the hub is."""
    told = folder / "log"
    options = ["--run-id", RUN, "--port", str(free_port()), "--linger", "60"]
    command = [sys.executable, "-m", "tachograph", "run", *options, "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with told.open("wb") as log:
        process = subprocess.Popen(
            [*command, str(Path(dashboard_job.__file__)), str(stop)],
            env=environment(folder, OMP_NUM_THREADS="1", **more),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_until(lambda: _ADDRESS.search(told.read_text()) or process.poll() is not None, 60, told.read_text)
            found = _ADDRESS.search(told.read_text())
            assert found is not None, told.read_text()
            yield found[0]
        finally:
            stop.touch()
            with suppress(subprocess.TimeoutExpired):
                process.wait(3)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)


def refuse(url: str) -> None:
    """Send something to a hub that it has to refuse."""
    request = urllib.request.Request(f"{url}/v1/metrics", b"nonsense", {"Content-Type": "application/x-protobuf"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=30)


def every_query(job: Job) -> list[Asked]:
    """Return every expression, once for each value of what it is repeated for."""
    found = []
    lists = job.value_lists()
    for name, dashboard in job.written.items():
        for asked in queries(name, dashboard):
            sets = [{**GIVEN, "run": run_value()}]
            for variable in ("metric", "duration"):
                if variable in used(asked.expression):
                    sets = [{**values, variable: value} for values in sets for value in lists[name][variable]]
            assert sets, f"{variable} has no value in {name}"
            found += [asked._replace(expression=replaced(asked.expression, values)) for values in sets]
    return found


def without(asked: list[Asked], names: set[str]) -> list[Asked]:
    """Return the queries that ask for something besides these metrics."""
    return [each for each in asked if not metrics(each.expression) or not metrics(each.expression) <= names]


def not_here() -> set[str]:
    """Return the metrics that this machine cannot have: no CUDA, and maybe no disk or network of its own."""
    machine = system.Machine()
    time.sleep(1.1)  # shares are those of a second
    machine.anew()
    rows = [row for row in system.TABLE if not list(row.read(machine))]
    return {prometheus_name(row.name, row.unit, row.kind) for row in (*cuda_memory.TABLE, *rows)}


def no_data(base: str, asked: list[Asked]) -> list[Asked]:
    """Return the queries to which there is no answer."""
    return [each for each in asked if not instant(base, each.expression.replace(" or on () vector(0)", ""))]


def test_every_expression_returns_data(job: Job) -> None:
    """Each PromQL expression of each dashboard, the run's own among them, gives series of a real job."""
    asked = without(every_query(job), not_here())
    # What begins with a first failure; its panel says 0 until then.
    never = [each for each in asked if re.search(r"hub_(failed|spans|events_\w+)_total", each.expression)]
    assert all(instant(job.base, each.expression) for each in never), "0 where there is nothing to count"
    pending = [each for each in asked if each not in never]
    last = [each for each in pending if AT_THE_END.search(each.expression)]
    pending = [each for each in pending if each not in last]
    assert (len(pending) > 80, len(never) > 4, len(last) > 5) == (True, True, True)
    deadline = time.monotonic() + 40
    while pending and time.monotonic() < deadline:
        pending = no_data(job.base, pending)
    assert pending == []
    job.stop.touch()
    deadline = time.monotonic() + 40
    while last and time.monotonic() < deadline:
        last = no_data(job.base, last)
    assert last == []


def test_every_variable_has_values(job: Job) -> None:
    """Each choice above a dashboard offers what the job has."""
    lists = job.value_lists()
    empty = [(name, title) for name, found in lists.items() for title, values in found.items() if not values]
    assert [each for each in empty if each[0] != "tachograph-points"] == []
    assert lists["tachograph-training"]["run"] == [RUN]
    assert lists["tachograph-training"]["rank"] == ["0", "1"]
    assert {"loss", "accuracy_percent", "heat_celsius"} <= {*lists["tachograph-training"]["metric"]}
    assert "step_duration" in lists["tachograph-training"]["duration"]


def test_a_run_s_own_dashboard_shows_what_was_recorded(job: Job) -> None:
    """The expressions of a run's dashboard give the values that its metrics have, those of hostile names, too."""
    (name,) = (each for each in job.written if each.startswith("run-"))
    values = {**GIVEN, "run": run_value()}
    found = {
        (asked.title, expression): {labels["dl_rank"]: value for labels, value in instant(job.base, expression)}
        for asked in queries(name, job.written[name])
        for expression in [replaced(asked.expression, values)]
    }
    by_title: dict[str, list[dict[str, float]]] = {}
    for (title, _), ranks in found.items():
        by_title.setdefault(title.replace("\u2060", ""), []).append(ranks)
    assert by_title["heat"] == [{"0": 20.0, "1": 21.0}]
    assert by_title[dashboard_job.HOSTILE][0].keys() == {"0", "1"}
    progress, warm_up = by_title["Progress"]
    assert all(0 < share < 100 for share in progress.values())
    assert warm_up == {"0": 4.0, "1": 4.0}
    assert len(by_title["training"]) == 4


def test_nothing_is_asked_for_that_prometheus_does_not_have(job: Job) -> None:
    """Every metric that the run's dashboard names was scraped under exactly this name."""
    (name,) = (each for each in job.written if each.startswith("run-"))
    there = set(api(job.base, "label/__name__/values"))
    named = set().union(*(metrics(asked.expression) for asked in queries(name, job.written[name])))
    assert "steps_rate_per_second" in named
    assert named <= there
