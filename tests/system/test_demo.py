"""The demo is what it says: a real training, which real servers scrape and receive, to the last value."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import servers
from browser import chromium, tab
from demo_job import ROOT, Demo, descendants, started, trained

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

RUN = "demo under test"
# Labels that belong to the scraper, and what the collector's exporter adds.
NOT_OURS = {"job", "instance", "otel_scope_version", "otel_scope_schema_url"}
Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Collector:
    """A collector that the demo ships to."""

    page: str
    telemetry: Path


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, str]]:
    """A real collector with collector-config/local.yaml, and the endpoint that it listens on."""
    telemetry = tmp_path_factory.mktemp("collector") / "telemetry.jsonl"
    http, grpc, page = (f"127.0.0.1:{servers.free_port()}" for _ in range(3))
    env = {"OTLP_HTTP": http, "OTLP_GRPC": grpc, "PROMETHEUS": page, "TELEMETRY_FILE": str(telemetry)}
    with servers.otelcol(ROOT / "collector-config" / "local.yaml", env):
        yield Collector(f"http://{page}/metrics", telemetry), f"http://{http}"


@pytest.fixture(scope="module")
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo that has trained, with settings as `make demo` has them, ports apart; it ships to the collector, too."""
    settings = {}
    with suppress(pytest.skip.Exception):  # where there is no collector it ships nowhere
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": request.getfixturevalue("collector")[1]}
    with trained(tmp_path_factory.mktemp("demo"), TACHOGRAPH_RUN=RUN, **settings) as demo:
        yield demo


@pytest.fixture(scope="module")
def shipped(collector: tuple[Collector, str], demo: Demo) -> tuple[Demo, Collector]:
    """The demo, and the collector that it ships to."""
    return demo, collector[0]


def approximately(series: str, value: float) -> object:
    """Return what a value must be: exactly that, or for a sum of floats within 1e-12."""
    return pytest.approx(value, rel=1e-12, abs=0) if series.endswith("seconds_sum") else value


def query(base: str, expression: str) -> dict[str, float]:
    """Return the values of a PromQL expression by rank, each with the labels that tell who speaks."""
    found = servers.instant(base, expression)
    for labels, _ in found:
        assert labels["dl_run_id"] == RUN
        assert labels["dl_role"] == "default"
        assert labels["otel_scope_name"] == "digits"
    by_rank = {labels["dl_rank"]: value for labels, value in found}
    assert len(by_rank) == len(found)
    return by_rank


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [3, 2])
def test_prometheus_has_every_total(major: int, demo: Demo) -> None:
    """Prometheus of both generations, with our configuration in the store, has each rank's totals exactly."""
    config = shutil.copy(ROOT / "deploy" / "prometheus" / "prometheus.yml", demo.store)
    with servers.prometheus(Path(config), major=major) as base:
        servers.wait_until(lambda: len(servers.instant(base, "samples_total")) == 2, 60)
        for series, by_rank in demo.numbers().items():
            assert query(base, series) == {rank: approximately(series, by_rank[rank]) for rank in by_rank}, series
        up = servers.instant(base, 'up{job="tachograph"}')
        assert [value for _, value in up] == [1]  # the hub, whose page has all ranks
        for labels, _ in servers.instant(base, 'target_info{dl_role="default"}'):
            assert labels["dl_world_size"] == "2"
        for expression in promql_of_the_page():
            assert isinstance(servers.instant(base, expression), list)


def promql_of_the_page() -> list[str]:
    """Return the queries that the page on Prometheus shows."""
    blocks = re.findall(
        r"^```promql\n(.*?)^```$", (ROOT / "docs" / "prometheus.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    return [expression for block in blocks for expression in block.strip().split("\n\n")]


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [3, 2])
def test_promtool_has_no_complaint(major: int, demo: Demo) -> None:
    """`promtool check metrics` of both generations finds nothing to say about the page of each rank."""
    for url in demo.pages():
        with urllib.request.urlopen(url, timeout=30) as response:
            page = response.read()
        done = subprocess.run(
            [servers.find("promtool", major), "check", "metrics"],
            input=page,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_demo_says_what_it_recorded(demo: Demo) -> None:
    """The demo says where each page is and how the training goes, and ends with a table of each rank's totals."""
    output = demo.output.read_text()
    assert len(demo.pages()) == len(demo.expected) == 2
    assert output.count("accuracy") > 5
    table = output.partition("as /metrics has it:")[2]
    for name in ("samples_total", "correct_count", "correct_sum", "epoch_success_total"):
        row = next(line.split() for line in table.splitlines() if line.startswith(name + " "))
        by_rank = demo.numbers()[name]
        assert row == [name, *(f"{by_rank[rank]:.0f}" for rank in sorted(by_rank))]


def samples(page_url: str, scope: str) -> dict[Series, float]:
    """Return the samples of a page in one scope by name and labels, without the labels that are not ours."""
    with urllib.request.urlopen(page_url, timeout=30) as response:
        text = response.read().decode()
    return {
        (sample.name, frozenset((key, sample.labels[key]) for key in sample.labels.keys() - NOT_OURS)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("otel_scope_name") == scope and not sample.name.endswith("_created")
    }


@pytest.mark.otelcol
def test_the_collector_receives_the_same(shipped: tuple[Demo, Collector]) -> None:
    """Behind a real collector the same series stand under the same names and labels, with the same values."""
    demo, collector = shipped
    scraped = {series: value for url in demo.pages() for series, value in samples(url, "digits").items()}
    servers.wait_until(lambda: samples(collector.page, "digits") == pytest.approx(scraped, rel=1e-12, abs=0), 60)
    arrived = samples(collector.page, "digits")
    assert arrived.keys() == scraped.keys()
    assert arrived == pytest.approx(scraped, rel=1e-12, abs=0)
    for rank, recorded in enumerate(demo.expected):
        totals = [
            value for (name, labels), value in arrived.items() if name == "samples_total" and rank_of(labels) == rank
        ]
        assert totals == [recorded["samples"]["sum"]]


def rank_of(labels: frozenset[tuple[str, str]]) -> int:
    """Return the rank that a series is from."""
    return int(dict(labels)["dl_rank"])


@pytest.mark.otelcol
def test_the_collector_receives_a_span_of_each_call(shipped: tuple[Demo, Collector]) -> None:
    """Each call of a function under @prof is one span, of its rank, with the function's name."""
    demo, collector = shipped
    wanted = Counter(
        {
            (str(rank), f"__main__.{function}"): int(recorded[metric]["count"])
            for rank, recorded in enumerate(demo.expected)
            for function, metric in (("train_step", "loss"), ("evaluate", "accuracy"))
        }
    )
    servers.wait_until(lambda: sum(spans(collector).values()) >= sum(wanted.values()), 60)
    assert spans(collector) == wanted


def spans(collector: Collector) -> Counter[tuple[str, str]]:
    """Return how many spans have arrived, by rank and by the function's name."""
    found: Counter[tuple[str, str]] = Counter()
    for line in collector.telemetry.read_text().splitlines() if collector.telemetry.exists() else ():
        for resource in json.loads(line).get("resourceSpans", ()):
            rank = attribute(resource["resource"], "dl.rank")
            for scope in resource["scopeSpans"]:
                found.update((rank, attribute(span, "code.function.name")) for span in scope["spans"])
    return found


def attribute(holder: dict[str, Any], key: str) -> str:
    """Return an attribute of an OTLP/JSON object as text."""
    (value,) = (each["value"] for each in holder["attributes"] if each["key"] == key)
    (text,) = value.values()
    return str(text)


def test_it_ends_with_the_address_of_a_page_whose_first_chart_is_the_loss(tmp_path: Path) -> None:
    """In a terminal the demo ends with the run's page, on which the loss of both ranks is first; Ctrl-C ends it."""
    with in_a_terminal(tmp_path, "--epochs", "4") as (process, said):
        servers.wait_until(lambda: "until Ctrl-C" in said() or process.poll() is not None, 240, said)
        (address,) = re.findall(r"live at (http://127\.0\.0\.1:\d+)(/#/run/\S+) until Ctrl-C", said())
        last = re.search(r"^loss +(\S+) +(\S+)\s*$", said(), re.MULTILINE)
        assert last is not None
        with chromium() as browser, tab(browser, address[0]) as page:
            found = page.open(address[1]).loaded("loss", "accuracy")
            assert page.page.locator(".card h3").first.inner_text() == "loss"
            ends = {curve["rank"]: curve["y"][-1] for curve in found["loss"]["curves"]}
            assert ends == {rank: pytest.approx(float(last[1 + rank]), rel=1e-3) for rank in (0, 1)}
            assert "train_step" in page.text()
            page.shoot("demo")
            assert page.complaints == []
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
        servers.wait_until(lambda: not descendants(tmp_path), 10, lambda: descendants(tmp_path))


@contextmanager
def in_a_terminal(store: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Start the demo with a terminal to write to."""
    ours, its = pty.openpty()
    written: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # nobody has it open any more
            while some := os.read(ours, 1 << 16):
                written.append(some)

    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    settings = {"TACHOGRAPH_STORE": str(store), "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), *arguments]
    reader = threading.Thread(target=read, daemon=True)
    with subprocess.Popen(
        command, cwd=store, env={**kept, **settings}, stdout=its, stderr=its, start_new_session=True
    ) as process:
        os.close(its)
        reader.start()
        try:
            yield process, lambda: b"".join(written).decode()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
            os.close(ours)


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="NOT TESTED: there is no /proc to look for leftovers"
)
@pytest.mark.long  # in the terminal, above, it ends by Ctrl-C, too
@pytest.mark.parametrize(
    "when",
    [
        pytest.param(lambda store, _: len(descendants(store)) >= 3, id="while-it-starts"),
        pytest.param(lambda _, output: "epoch  2" in output.read_text(), id="while-it-trains"),
    ],
)
def test_ctrl_c_ends_it_cleanly(when: Callable[[Path, Path], bool], tmp_path: Path) -> None:
    """Ctrl-C ends the demo within seconds, with status 130, no traceback, and nothing left behind."""
    with started(tmp_path, "--epochs", "100000") as (process, output):
        servers.wait_until(lambda: process.poll() is not None or when(tmp_path, output), 120, output.read_text)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
        assert "Traceback" not in output.read_text()
        servers.wait_until(lambda: not descendants(tmp_path), 10, lambda: descendants(tmp_path))
        assert list(tmp_path.glob("targets/*.json")) == []


@pytest.mark.long
def test_a_killed_worker_is_started_again(tmp_path: Path) -> None:
    """With --kill-a-worker torchrun restarts the job; the node's one page counts it, and the run names who was lost."""
    with started(tmp_path, "--kill-a-worker", "--epochs", "6") as (process, output):
        servers.wait_until(lambda: process.poll() is not None, 300, output.read_text)
        said = output.read_text()
    assert process.returncode == 0, said
    assert "a worker was killed" in said
    assert "of 3 processes" in said
    assert re.search(r"torchrun has restarted its workers [1-3] times", said)
    assert re.search(r"^tachograph: finished: recorded [\d,]+ points\b.*; rank 1 was lost", said, re.MULTILINE)
