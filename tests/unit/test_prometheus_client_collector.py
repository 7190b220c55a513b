"""PrometheusCollector: everything recorded is in a registry of prometheus_client, as it is on our own page."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

import programs
import servers
from tachograph.exporters.prometheus.endpoint import Endpoint
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Page
from tachograph.identity.resource import SERIES_KEYS, announced, resource_attributes, series_labels
from tachograph.otel import PrometheusCollector
from tachograph.recording.accumulators import Distribution
from tachograph.recording.naming import Kind
from tachograph.recording.points import AttributeValue, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

CLASSIC = Format()
OPENMETRICS = Format(openmetrics=True, version="1.0.0")

Families = dict[str, tuple[str, str, str, set[tuple[Any, ...]]]]


def into(registry: Registry, **more: Any) -> CollectorRegistry:
    """Return a registry of prometheus_client that holds our collector."""
    theirs = CollectorRegistry(auto_describe=True)
    theirs.register(PrometheusCollector(registry=registry, **{"resource_labels": SERIES_KEYS, **more}))
    return theirs


def speaker() -> Mapping[str, AttributeValue]:
    """Return the resource attributes of this process; another test may have said them."""
    return announced.attributes or resource_attributes()


def recorded() -> Registry:
    """Return a registry that holds every kind of metric, with what may be difficult."""
    registry = Registry()
    train, plain = registry.group("train"), registry.group("")
    kinds: list[tuple[str, Kind, str]] = [
        ("loss", "gauge", ""),
        ("outer.<locals>.inner", "gauge", ""),
        ("9 lives", "gauge", "1"),
        ("été", "gauge", "By"),
        ("steps", "counter", "{step}"),
        ("checkpoint.success", "counter", ""),
        ("read", "counter", "By"),
        ("step.duration", "histogram", "s"),
    ]
    for name, kind, unit in kinds:
        instrument = train.declare(name, kind=kind, unit=unit, description='A\n\\ "text".', boundaries=None)
        instrument.record(0.5 if kind != "counter" else 3, {"le": "x", "with.dot": 'a"b\\c\nd é', "9": 9, "empty": ""})
        instrument.record(2)
    for name, value in (("nan", math.nan), ("inf", -math.inf), ("large", 2**70), ("larger", 10**400), ("yes", True)):
        plain.instrument(name).record(value)
    series = train.declare("h", kind="histogram", unit="", description="", boundaries=[1, 1e6]).series({})
    assert isinstance(series, Distribution)
    series.record(0.5)
    series.note(Exemplar(0.5, 1_790_000_000_125_000_000, 0xABC, 0xDEF))
    return registry


def own_page(registry: Registry, form: Format, metrics: list[MetricPoints] | None = None) -> str:
    """Return our page of the same registry, as the collector's process would serve it."""
    resource = speaker()
    shown = Page(series_labels(resource), resource, registry)
    return shown.render(registry.collect() if metrics is None else metrics, None, form).decode()


def families(text: str | bytes, form: Format) -> Families:
    """Return what a parser of prometheus_client reads: type, unit, help and samples of each family."""
    parse = parse_openmetrics if form.openmetrics else parse_classic
    found = list(parse(text.decode() if isinstance(text, bytes) else text))
    assert len({family.name for family in found}) == len(found)
    return {
        family.name: (
            family.type,
            family.unit,
            family.documentation,
            {
                (
                    sample.name,
                    labelled(sample.name, sample.labels),
                    repr(float(sample.value)),
                    sample.exemplar
                    and (frozenset(sample.exemplar.labels.items()), float(sample.exemplar.timestamp or 0)),
                )
                for sample in family.samples
            },
        )
        for family in found
    }


def labelled(name: str, labels: dict[str, str]) -> frozenset[tuple[str, str | float]]:
    """Return a sample's labels; prometheus_client writes a bound as 1.0 in the classic text, our page as 1."""
    bound = {"le": float(labels["le"])} if name.endswith("_bucket") else {}
    return frozenset({**labels, **bound}.items())


@pytest.mark.parametrize("form", [CLASSIC, OPENMETRICS])
def test_the_same_as_our_page(form: Format) -> None:
    """Names, types, units, help, labels, buckets, exemplars, values and target_info are those of our own page."""
    registry = recorded()
    theirs = into(registry)
    text = openmetrics_page(theirs) if form.openmetrics else prometheus_client.generate_latest(theirs)
    found = families(text, form)
    assert found == families(own_page(registry, form), form)
    assert len(found) == 16  # tachograph.nonfinite, too


def test_exemplars() -> None:
    """A histogram's exemplar is on its bucket, with trace and span."""
    text = openmetrics_page(into(recorded(), resource_labels=[])).decode()
    [line] = [line for line in text.splitlines() if " # {" in line]
    trace = f'span_id="{0xDEF:016x}",trace_id="{0xABC:032x}"'
    assert line == f'h_bucket{{le="1.0",otel_scope_name="train"}} 1.0 # {{{trace}}} 0.5 1790000000.125'


# prometheus_client 0.26 writes a colon in the name of an OpenMetrics sample as "_", and not in that of its family.
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable() and ":" not in name) | st.sampled_from(
    ["x", "x.count", "x_total", "x.success", "x_seconds", "x.duration.ms", "target", "total", "a.b", "a_b", "x_info"]
)
ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=4) | st.sampled_from(["a.b", "a_b", "le", "otel.scope.name", "dl.rank"]),
    st.text(max_size=6) | st.booleans() | st.integers() | st.floats() | st.lists(st.text(max_size=3), max_size=2),
    max_size=3,
)
RECORDED = st.lists(
    st.tuples(st.sampled_from(["", "train", "é g"]), NAMES, st.floats() | st.integers(), ATTRIBUTES),
    max_size=8,
)


@given(values=RECORDED)
def test_whatever_is_recorded(values: list[tuple[str, str, float, dict[str, Any]]]) -> None:
    """Whatever names, attributes and values are recorded: the program's page can be read, and says what ours says."""
    registry = Registry()
    for group, name, value, attributes in values:
        registry.group(group).instrument(name).record(value, attributes)
    metrics = [found for found in registry.collect() if found.scope != "tachograph"]
    expected = families(own_page(registry, OPENMETRICS, metrics), OPENMETRICS)
    theirs = into(registry)
    found = families(openmetrics_page(theirs), OPENMETRICS)
    assert {name: family for name, family in found.items() if not name.startswith("tachograph")} == expected
    families(prometheus_client.generate_latest(theirs), CLASSIC)


def test_a_histogram_whose_sum_is_no_counter() -> None:
    """A sum below zero, with which no OpenMetrics page can be read, is left out with its count."""
    registry = Registry()
    registry.group("train").instrument("step.ms").record(-1)
    found = families(openmetrics_page(into(registry, resource_labels=[])), OPENMETRICS)
    assert {sample[0] for sample in found["step_milliseconds"][3]} == {"step_milliseconds_bucket"}


def test_legacy_names() -> None:
    """With prometheus_client's legacy validation every name is one that it takes, and none is lost."""
    registry = recorded()
    before = families(prometheus_client.generate_latest(into(registry)), CLASSIC)
    prometheus_client.validation.enable_legacy_validation()
    try:
        assert families(prometheus_client.generate_latest(into(registry)), CLASSIC) == before
    finally:
        prometheus_client.validation.disable_legacy_validation()


def test_series_with_the_same_labels() -> None:
    """Attributes that become one label: the later series is left out, counted once, and the page stays valid."""
    registry = Registry()
    registry.group("train").instrument("loss").record(1, {"a.b": "x"})
    registry.group("train").instrument("loss").record(2, {"a_b": "x"})
    registry.group("train").declare("loss.", kind="counter", unit="", description="", boundaries=None).record(1)
    registry.group("train").declare("_loss", kind="histogram", unit="", description="", boundaries=None).record(1)
    theirs = into(registry)
    for _ in range(3):
        found = families(prometheus_client.generate_latest(theirs), CLASSIC)
    assert {sample[2] for sample in found["loss"][3]} == {"1.0"}
    points = [point for metric in registry.collect() if metric.name == "tachograph.dropped" for point in metric.points]
    assert {
        dict(point.attributes)["destination"]: point.value for point in points if isinstance(point, NumberPoint)
    } == {"prometheus_client": 2}


def test_before_and_after() -> None:
    """What was recorded before the collector was registered is there, and what comes later."""
    registry = Registry()
    steps = registry.group("").declare("steps", kind="counter", unit="", description="", boundaries=None)
    steps.record(2)
    theirs = into(registry, resource_labels=[])
    assert theirs.get_sample_value("steps_total") == 2
    steps.record(3)
    assert theirs.get_sample_value("steps_total") == 5
    assert theirs.get_sample_value("steps_total") == 5


def test_registering_collects_nothing() -> None:
    """Registering asks no source for values, never fails, and the collector can be taken out again."""
    asked: list[int] = []

    def source() -> Iterator[MetricPoints]:
        asked.append(1)
        yield from ()

    registry = Registry()
    registry.group("train").sources.append(source)
    theirs = CollectorRegistry(auto_describe=True)
    collector = PrometheusCollector(registry=registry)
    theirs.register(collector)
    theirs.register(PrometheusCollector(registry=registry))
    theirs.unregister(collector)
    assert asked == []
    list(theirs.collect())
    assert asked == [1]


def test_a_failure_of_ours_is_kept_away(caplog: pytest.LogCaptureFixture) -> None:
    """Where collecting fails the program's own metrics come as ever; it is counted, and said once."""

    def broken() -> Iterator[MetricPoints]:
        raise RuntimeError("broken")
        yield

    registry = Registry()
    registry.group("train").sources.append(broken)
    theirs = into(registry)
    prometheus_client.Gauge("good", "G", registry=theirs).set(1)
    for _ in range(2):
        assert prometheus_client.generate_latest(theirs).decode().endswith("\ngood 1.0\n")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    registry.group("train").sources.clear()
    assert theirs.get_sample_value("good") == 1
    assert "tachograph_errors_total{" in prometheus_client.generate_latest(theirs).decode()


def test_arguments() -> None:
    """resource_labels choose the labels, target_info can be left out; a wrong argument says what to write."""
    registry = recorded()
    host = speaker()["host.name"]
    theirs = into(registry, resource_labels=["host.name"], target_info=False)
    assert theirs.get_sample_value("loss", {"otel_scope_name": "train", "host_name": str(host)}) == 2
    assert "target" not in {metric.name for metric in theirs.collect()}
    with pytest.raises(TypeError, match=r"register\(tachograph\.otel\.PrometheusCollector\(\)\)"):
        PrometheusCollector(registry=CollectorRegistry())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="resource_labels="):
        PrometheusCollector(resource_labels="dl.rank")
    with pytest.raises(ValueError, match="resource_labels="):
        PrometheusCollector(resource_labels=[""])


def test_silenced_groups() -> None:
    """A group that shall leave by no way out is not in it."""
    registry = recorded()
    registry.silence(lambda group: group == "train")
    names = {metric.name for metric in into(registry).collect()}
    assert {"nan", "large"} <= names
    assert not {"loss", "step_duration_seconds"} & names


@pytest.mark.timing
def test_many_series() -> None:
    """10,000 series are there, each once, in no more time than prometheus_client takes to write them."""
    registry = Registry(cardinality_limit=20_000)
    for index in range(10_000):
        registry.group("train").instrument("gradient").record(index, {"layer": str(index)})
    collector = PrometheusCollector(registry=registry)
    ratios = []
    for _ in range(5):
        began = time.process_time()
        metrics = {metric.name: metric for metric in collector.collect()}
        collected = time.process_time()
        theirs = CollectorRegistry()
        theirs.register(PrometheusCollector(registry=registry))
        prometheus_client.generate_latest(theirs)
        ratios.append((collected - began) / (time.process_time() - collected))
    assert len({sample.labels["layer"] for sample in metrics["gradient"].samples}) == 10_000
    assert min(ratios) < 0.7


@pytest.mark.process
def test_two_threads_and_recording() -> None:
    """Scrapes from several threads while values come: each is a whole page, and counters never go back."""
    registry = Registry()
    theirs = into(registry, resource_labels=[])
    stop, seen, failures = threading.Event(), [[] for _ in range(3)], []  # type: ignore[var-annotated]

    def scrape(mine: list[float]) -> None:
        try:
            while not stop.is_set():
                found = families(prometheus_client.generate_latest(theirs), CLASSIC)
                mine.append(sum(float(sample[2]) for sample in found.get("steps", ("", "", "", set()))[3]))
        except Exception as error:  # noqa: BLE001 - it is told below
            failures.append(error)

    threads = [threading.Thread(target=scrape, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    counter = registry.group("").declare("steps", kind="counter", unit="", description="", boundaries=None)
    for index in range(30_000):
        counter.record(1, {"kind": str(index % 50)})
    servers.wait_until(lambda: all(mine and mine[-1] == 30_000 for mine in seen) or failures)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert all(mine == sorted(mine) for mine in seen)


@contextmanager
def http_server(theirs: CollectorRegistry) -> Iterator[int]:
    """Serve a registry with prometheus_client's own server; yields its port."""
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", theirs)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ours
    params: {{escaping: [underscores]}}
    static_configs: [{{targets: ["127.0.0.1:{ours}"]}}]
  - job_name: theirs
    static_configs: [{{targets: ["127.0.0.1:{theirs}"]}}]
"""


@pytest.mark.process
@pytest.mark.prometheus
@pytest.mark.parametrize("major", [2, 3])
def test_the_same_query_in_a_real_prometheus(major: int, tmp_path: Path) -> None:
    """Both generations of Prometheus store the same series from prometheus_client's server as from our page."""
    registry = recorded()
    theirs = into(registry)
    prometheus_client.Counter("requests", "The program's own.", registry=theirs).inc(3)
    resource = speaker()
    shown = Page(series_labels(resource), resource, registry)
    endpoint = Endpoint(lambda: (registry.collect(), None), shown, "127.0.0.1", 0, registry)
    config = tmp_path / "prometheus.yml"
    try:
        with http_server(theirs) as port:
            config.write_text(CONFIG.format(ours=endpoint.port, theirs=port))
            with servers.prometheus(config, major=major) as base:

                def stored(job: str) -> dict[frozenset[tuple[str, str]], str]:
                    found = servers.instant(base, f'{{job="{job}",dl_run_id!="",__name__!~"tachograph.*"}}')
                    return {
                        frozenset(pair for pair in labels.items() if pair[0] not in ("job", "instance")): repr(value)
                        for labels, value in found
                    }

                servers.wait_until(
                    lambda: stored("ours") and stored("theirs"), why_not=lambda: servers.api(base, "targets")
                )
                assert stored("ours") == stored("theirs")
                assert len(stored("ours")) > 60
                assert [value for _, value in servers.instant(base, "requests_total")] == [3]
    finally:
        endpoint.close(5)


def test_asgi_and_wsgi() -> None:
    """make_asgi_app and make_wsgi_app serve it, also in OpenMetrics."""
    registry = recorded()
    theirs = into(registry)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    accept = (b"accept", b"application/openmetrics-text;version=1.0.0")
    scope = {"type": "http", "query_string": b"", "headers": [accept]}
    asyncio.run(prometheus_client.make_asgi_app(theirs)(scope, receive, send))
    assert sent[0]["status"] == 200
    assert families(sent[1]["body"], OPENMETRICS) == families(own_page(registry, OPENMETRICS), OPENMETRICS)
    statuses: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "QUERY_STRING": ""}
    [body] = prometheus_client.make_wsgi_app(theirs)(environ, lambda status, _headers: statuses.append(status))
    assert statuses == ["200 OK"]
    assert families(body, CLASSIC) == families(own_page(registry, CLASSIC), CLASSIC)


class Gateway(threading.Thread):
    """A push gateway as far as a client sees one: it takes a PUT and keeps its body."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.taken: list[tuple[str, bytes]] = []
        taken = self.taken
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Taking(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                taken.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Taking)

    def run(self) -> None:
        """Serve one request."""
        self.server.handle_request()
        self.server.server_close()


@pytest.mark.process
def test_push_gateway() -> None:
    """push_to_gateway sends everything recorded."""
    registry = recorded()
    gateway = Gateway()
    gateway.start()
    prometheus_client.push_to_gateway(f"127.0.0.1:{gateway.server.server_port}", "batch", into(registry))
    gateway.join(30)
    [(path, body)] = gateway.taken
    assert path == "/metrics/job/batch"
    assert families(body, CLASSIC) == families(own_page(registry, CLASSIC), CLASSIC)


def lines(folder: Path, program: str, **more: str) -> list[str]:
    """Run a program, which must end well, and return the lines that it printed."""
    done = programs.run(folder, program, OTEL_EXPORTER_PROMETHEUS_PORT="0", **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.process
def test_no_start_is_needed(tmp_path: Path) -> None:
    """Registering is enough; neither importing nor collecting loads OpenTelemetry or opens a port."""
    found = lines(
        tmp_path,
        """
        import sys, threading
        import tachograph
        collector = tachograph.otel.PrometheusCollector()
        print(any(name.startswith(("opentelemetry", "prometheus_client")) for name in sys.modules))
        import prometheus_client
        prometheus_client.REGISTRY.register(collector)
        tachograph.put_metric("loss", 0.5)
        print(prometheus_client.REGISTRY.get_sample_value(
            "loss", {"otel_scope_name": "torchelastic", "dl_rank": "3", "dl_run_id": "job"}))
        print(any(name.startswith("opentelemetry") for name in sys.modules), threading.active_count())
        """,
        RANK="3",
        TACHOGRAPH_RUN="job",
    )
    assert found == ["False", "0.5", "False 1"]


@pytest.mark.process
def test_the_same_labels_as_start(tmp_path: Path) -> None:
    """What start() is given says who the process is in the program's registry, too, also after its end."""
    found = lines(
        tmp_path,
        """
        import urllib.request
        import prometheus_client, tachograph
        theirs = prometheus_client.CollectorRegistry()
        theirs.register(tachograph.otel.PrometheusCollector())
        tachograph.put_metric("loss", 0.5)
        def ours(text):
            return sorted(line for line in text.splitlines() if line.startswith(("loss{", "target_info")))
        given = {"run_id": "mine", "service_name": "job", "resource": {"team": "a"}, "resource_labels": ["team"]}
        with tachograph.start(**given) as on:
            with urllib.request.urlopen(on.metrics_url) as answer:
                page = ours(answer.read().decode().replace("} 1\\n", "} 1.0\\n"))
            print(page == ours(prometheus_client.generate_latest(theirs).decode()))
        print(page == ours(prometheus_client.generate_latest(theirs).decode()))
        print(page[0])
        """,
    )
    assert found == ["True", "True", 'loss{otel_scope_name="torchelastic",team="a"} 0.5']


FORKED = """
    import os
    import prometheus_client, tachograph
    theirs = prometheus_client.CollectorRegistry()
    theirs.register(tachograph.otel.PrometheusCollector(resource_labels=[], target_info=False))
    tachograph.put_metric("loss", 0.5)
    tachograph.put_metric("step.duration.ms", 5)
    def names():
        return sorted(metric.name for metric in theirs.collect())
    print(*names(), flush=True)
    pid = os.fork()
    if not pid:
        print("child", *names(), flush=True)
        tachograph.put_metric("own", 1)
        print("child", *names(), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(*names())
    """


@pytest.mark.process
@pytest.mark.parametrize(("helpers", "own"), [("", "child"), ("1", "child own")])
def test_fork(tmp_path: Path, helpers: str, own: str) -> None:
    """A forked worker yields nothing of its parent's; it yields its own where helpers record."""
    found = lines(tmp_path, FORKED, TACHOGRAPH_HELPERS=helpers)
    parents = "loss step_duration_milliseconds"
    assert found == [parents, "child", own, parents]


@pytest.mark.process
def test_disabled(tmp_path: Path) -> None:
    """With OTEL_SDK_DISABLED=true it yields nothing, target_info neither."""
    found = lines(tmp_path, FORKED.replace("target_info=False", "target_info=True"), OTEL_SDK_DISABLED="true")
    assert found == ["", "child", "child", ""]
