"""A real torchrun job that an agent scrapes, its processes or its hub: the same series as where the job sends OTLP."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors import Collector, Ports, agent, gateway, running
from programs import environment, write
from servers import free_port, wait_until
from tachograph.exporters.prometheus.format import TEXT
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.registry import Registry

pytestmark = [pytest.mark.otelcol, pytest.mark.torch, pytest.mark.usefixtures("untraced")]
pytest.importorskip("torch")

JOB = """
import os, sys, time
import tachograph

rank = int(os.environ["RANK"])
if "TACHOGRAPH__HUB" not in os.environ:
    tachograph.start(prometheus_port=0, **({"endpoint": os.environ["TO"]} if "TO" in os.environ else {}))
step = tachograph.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=[0.1, 1, 10], group="g")
for number in range(40):
    step.record((0.05, 0.1, 5.0, 50.0)[number % 4])
    tachograph.put_metric("loss", 0.1 + rank, "g")
    tachograph.put_metric("checkpoint.success", rank + 1, "g")
    tachograph.put_metric("load.duration.ms", number, "g")
sys.stdin.read()
"""
HISTOGRAMS = ("step_seconds", "load_duration_milliseconds")
Series = frozenset[tuple[str, str]]


def expected(rank: int) -> dict[Series, float]:
    """Return what a rank's own page shows of what the job records."""
    registry = Registry()
    group = registry.group("g")
    step = group.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=[0.1, 1, 10])
    for number in range(40):
        step.record((0.05, 0.1, 5.0, 50.0)[number % 4])
        group.instrument("loss").record(0.1 + rank)
        group.instrument("checkpoint.success").record(rank + 1)
        group.instrument("load.duration.ms").record(number)
    page = Page({"dl_rank": str(rank), "dl_role": "default", "dl_run_id": "job"}, {}, registry)
    return series(page.render(registry.collect(), None, TEXT).decode())


def series(page: str) -> dict[Series, float]:
    """Return what a page shows of group g, without what belongs to who scraped or sent it."""
    found: dict[Series, float] = {}
    for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
        labels = {key: value for key, value in sample.labels.items() if value and key not in ("job", "instance")}
        if labels.get("otel_scope_name") == "g":
            bound = {"le": str(float(labels["le"]))} if "le" in labels else {}
            found[frozenset({"__name__": sample.name, **labels, **bound}.items())] = sample.value
    return found


def instances(collector: Collector) -> set[str]:
    """Return who says that they are there."""
    found = [labels["instance"] for name, labels, _ in collector.samples("tachograph") if name == "target_info"]
    assert len(found) == len(set(found))
    return set(found)


@contextmanager
def job(folder: Path, command: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Run two ranks that record, and stay to the end of the block."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    common = {"TACHOGRAPH_RUN": "job", "OTEL_SERVICE_NAME": "train", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    program = str(write(folder, JOB, "train.py"))
    variables = environment(folder, OMP_NUM_THREADS="1", **common, **env)
    with Popen([*command, *torchrun, program], cwd=folder, env=variables, stdin=PIPE) as running:
        try:
            yield
        finally:
            assert running.stdin is not None
            running.stdin.close()
            running.wait(60)


class Way(NamedTuple):
    """How metrics go: layers of the agent and of the gateway, what runs the job, and whether the job sends them."""

    agent: tuple[str, ...] = ()
    gateway: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    sends: bool = False


def through(folder: Path, way: Way) -> tuple[dict[Series, float], set[str]]:
    """Return what a gateway shows of a job whose metrics go this way, and the targets that were scraped."""
    for name in ("agent", "gateway"):
        (folder / name).mkdir()
    hub, ports = free_port(), Ports.free()
    env = {"OTEL_METRICS_EXPORTER": "otlp", "TO": f"http://127.0.0.1:{ports.http}"} if way.sends else {}
    where = {"TARGETS": str(folder / "store" / "targets"), "NODE_HUB": f"http://127.0.0.1:{hub}"}
    command = [part.format(python=sys.executable, hub=hub) for part in way.command]
    with (
        gateway(folder / "gateway", *way.gateway) as shows,
        agent(folder / "agent", shows.http, *way.agent, ports=ports, **where),
        job(folder, command, env),
    ):
        return shown(shows, across=bool(way.command or way.gateway)), set() if way.sends else instances(shows)


def shown(collector: Collector, *, across: bool = False) -> dict[Series, float]:
    """Return what a collector shows once both ranks, and what is made of them together, are there."""

    def complete() -> bool:
        found = {
            (dict(one)["__name__"], dict(one).get("dl_rank")): value for one, value in series(collector.page()).items()
        }
        counts = {(name, rank): value for (name, rank), value in found.items() if name.endswith("s_count")}
        each = [counts.get((f"{name}_count", str(rank))) for name in HISTOGRAMS for rank in (0, 1)]
        together = [value for (name, _), value in counts.items() if is_across(name)]
        return (
            set(each) == {40}
            and all(value == 80 for value in together)
            and (not across or any(is_across(name) for name, _ in found))
        )

    wait_until(complete, 60, lambda: (collector.page(), collector.server.log()[-2000:]))
    return series(collector.page())


def is_across(name: str) -> bool:
    """Tell whether a name is of what the hub or the gateway makes of all ranks."""
    return "_by_rank" in name or "_slowest_rank" in name or "_all_ranks" in name


RUN = ("{python}", "-m", "tachograph", "run", "--quiet", "--port", "{hub}", "--run-id", "job", "--")


@pytest.mark.parametrize(
    ("way", "targets", "across"),
    [
        pytest.param(Way(agent=("agent-scrape",)), 2, 0, marks=pytest.mark.long),
        (Way(agent=("agent-scrape-hub",), command=RUN), 1, 20),  # four of them of means, p50 and p99 each alike
    ],
    ids=["processes", "hub"],
)
def test_a_scrape_shows_what_otlp_shows(way: Way, targets: int, across: int, tmp_path: Path) -> None:
    """By a scrape of each process or of the hub: each rank's own names, labels and values, as where it sends them."""
    found, asked = through(tmp_path, way)
    together = {one for one in found if is_across(dict(one)["__name__"])}
    assert {one: value for one, value in found.items() if one not in together} == expected(0) | expected(1)
    assert len(together) == across
    assert len(asked) == targets


def test_a_fleets_histograms_are_summed(tmp_path: Path) -> None:
    """With the layer for fleets a job's histograms are there once for all ranks, and the rest is as each rank's own."""
    found, _ = through(tmp_path, Way(gateway=("gateway-aggregate",), sends=True))
    each = {one: value for one, value in (expected(0) | expected(1)).items() if dict(one).get("le") in (None, "inf")}
    together = {one: value for one, value in found.items() if is_across(dict(one)["__name__"])}
    assert {one: value for one, value in found.items() if one not in together} == each
    summed: dict[Series, float] = {}
    for one, value in (expected(0) | expected(1)).items():
        labels = dict(one)
        del labels["dl_rank"]
        for unit in ("_seconds", "_milliseconds"):
            if f"{unit}_" in labels["__name__"]:
                name = labels["__name__"].replace(f"{unit}_", f"_all_ranks{unit}_")
                key = frozenset({**labels, "__name__": name}.items())
                summed[key] = summed.get(key, 0) + value
    assert together == summed


def test_the_laptops_file_shows_the_same(tmp_path: Path) -> None:
    """Behind ``local.yaml``, too, a job's series are each rank's own."""
    with running(tmp_path) as local:
        env = {"OTEL_METRICS_EXPORTER": "otlp", "TO": f"http://127.0.0.1:{local.http}"}
        with job(tmp_path, [], env):
            assert shown(local) == expected(0) | expected(1)
