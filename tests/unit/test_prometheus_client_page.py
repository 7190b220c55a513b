"""The program's metrics in prometheus_client.REGISTRY are on our page, as on its own, and none of them can spoil it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeHistogramMetricFamily, SummaryMetricFamily, UntypedMetricFamily
from prometheus_client.exposition import generate_latest as classic_page
from prometheus_client.metrics_core import METRIC_TYPES, Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic
from prometheus_client.samples import Exemplar, NativeHistogram, Sample, Timestamp

import programs
import servers
from tachograph.exporters.external_provider import ExternalProvider
from tachograph.exporters.prometheus.client import ClientRegistry
from tachograph.exporters.prometheus.endpoint import Endpoint
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Page
from tachograph.otel import PrometheusCollector
from tachograph.recording.naming import Kind
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

CLASSIC = Format()
CLASSIC_UTF8 = Format(version="1.0.0", utf8=True)
OPENMETRICS = Format(openmetrics=True, version="1.0.0")
OPENMETRICS_UTF8 = Format(openmetrics=True, version="1.0.0", utf8=True)
FORMATS = (CLASSIC, CLASSIC_UTF8, OPENMETRICS, OPENMETRICS_UTF8)
NOW = 1_790_000_000.125

Described = dict[str, tuple[str, str, str, set[tuple[Any, ...]]]]


class Fixed:
    """A collector of given metrics."""

    def __init__(self, *metrics: Any) -> None:
        self.metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return no names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield what was given; call it, where it can be called."""
        for metric in self.metrics:
            yield metric() if callable(metric) else metric


def ours(kind: Kind = "gauge", name: str = "loss") -> Registry:
    """Return a registry that holds one metric of group train."""
    registry = Registry()
    registry.group("train").declare(name, kind=kind, unit="", description="", boundaries=None).record(1)
    return registry


def page(theirs: CollectorRegistry, registry: Registry, form: Format = CLASSIC, **more: Any) -> str:
    """Return the page of our registry and theirs."""
    shown = Page({}, {}, registry, client=ClientRegistry(registry, find=lambda: theirs, **more))
    return shown.render([each for each in registry.collect() if each.scope != "tachograph"], None, form).decode()


def described(text: str | bytes, form: Format) -> Described:
    """Return what a parser of prometheus_client reads: type, unit, help and samples of each family."""
    parse = parse_openmetrics if form.openmetrics else parse_classic
    families = list(parse(text.decode() if isinstance(text, bytes) else text))
    assert len({family.name for family in families}) == len(families)
    return {
        family.name: (
            family.type,
            family.unit,
            family.documentation,
            {
                (
                    sample.name,
                    frozenset((name, value) for name, value in sample.labels.items() if value),
                    "nan" if math.isnan(sample.value) else sample.value,
                    sample.timestamp and round(float(sample.timestamp), 3),
                    sample.exemplar and (tuple(sample.exemplar.labels.items()), sample.exemplar.value),
                )
                for sample in family.samples
            },
        )
        for family in families
    }


def own_page(theirs: CollectorRegistry, form: Format) -> bytes:
    """Return the page of prometheus_client itself."""
    escaping = "allow-utf-8" if form.utf8 else "underscores"
    return openmetrics_page(theirs, escaping) if form.openmetrics else classic_page(theirs, escaping)


def counted(registry: Registry, metric: str, label: str) -> dict[str, float]:
    """Return a counter of ours by a label."""
    points = [point for found in registry.collect() if found.name == metric for point in found.points]
    return {str(dict(point.attributes)[label]): point.value for point in points if isinstance(point, NumberPoint)}


dropped = partial(counted, metric="tachograph.dropped", label="reason")
errors = partial(counted, metric="tachograph.errors", label="where")


def every_kind() -> CollectorRegistry:
    """Return a registry that holds a metric of every type, as a program makes them."""
    theirs = CollectorRegistry()
    counter = prometheus_client.Counter("requests", 'Requests\n\\in "all".', ["code"], registry=theirs, unit="seconds")
    counter.labels('a"b\\c\nd é').inc(3, {"trace_id": "abc"})
    counter.labels("").inc(0.5)
    prometheus_client.Gauge("temperature", "", registry=theirs).set(math.nan)
    prometheus_client.Gauge("hot.spot", "Now.", ["where.it.is"], registry=theirs).labels("x").set(-math.inf)
    prometheus_client.Gauge("unused", "No child.", ["a"], registry=theirs)
    prometheus_client.Info("build", "Build.", registry=theirs).info({"version": "1.2", "commit": ""})
    prometheus_client.Enum("phase", "Phase.", ["worker"], states=["a", "b c"], registry=theirs).labels("1").state("b c")
    prometheus_client.Summary("size", "Sizes.", registry=theirs).observe(7)
    histogram = prometheus_client.Histogram("latency", "Latencies.", ["code"], registry=theirs, buckets=(0.5, 1, 1e6))
    histogram.labels("200").observe(0.75, {"trace_id": "def"})
    histogram.labels("500").observe(2e6)
    quantiles = Metric("rpc", "With quantiles.", "summary")
    quantiles.samples = [Sample("rpc", {"quantile": "0.5"}, 1.5), Sample("rpc_count", {}, 2), Sample("rpc_sum", {}, 3)]
    timed = UntypedMetricFamily("timed", "At a time.", labels=["how"])
    timed.add_metric(["float"], 2.0**70, timestamp=NOW)
    timed.add_metric(["object"], 12, timestamp=Timestamp(int(NOW), 125_000_000))
    theirs.register(Fixed(quantiles, timed, GaugeHistogramMetricFamily("age", "Ages.", [("1.0", 1), ("+Inf", 3)], 7)))
    return theirs


@pytest.mark.parametrize("form", FORMATS)
def test_every_type(form: Format) -> None:
    """Each type is on our page as on prometheus_client's own: type, unit, help, labels, exemplars and timestamps."""
    theirs = every_kind()
    found = described(page(theirs, ours(), form), form)
    assert found.pop("loss") == (
        "gauge",
        "",
        "loss",
        {("loss", frozenset({("otel_scope_name", "train")}), 1, None, None)},
    )
    expected = {name: family for name, family in described(own_page(theirs, form), form).items() if family[3]}
    assert len(expected) == (10 if form.openmetrics else 15)
    # Its own page has an empty help where there was none.
    assert expected["temperature"][2] == ""
    expected["temperature"] = (*expected["temperature"][:2], "temperature", expected["temperature"][3])
    assert found == expected


@pytest.mark.parametrize("form", FORMATS)
def test_labels_of_the_page(form: Format) -> None:
    """The labels that tell processes apart are on every series; a label of the metric's own wins."""
    theirs = CollectorRegistry()
    prometheus_client.Gauge("plain", "P", registry=theirs).set(1)
    prometheus_client.Gauge("own", "O", ["dl_rank"], registry=theirs).labels("7").set(1)
    registry = Registry()
    client = ClientRegistry(registry, find=lambda: theirs)
    text = Page({"dl_rank": "0"}, {}, registry, client=client).render([], None, form).decode()
    assert 'plain{dl_rank="0"} 1' in text
    assert 'own{dl_rank="7"} 1' in text


def test_target_info() -> None:
    """A target_info of theirs becomes part of ours, of which there is one; our attributes win."""
    theirs = CollectorRegistry(target_info={"environment": "prod", "service_name": "theirs"})
    other = Metric("target", "Theirs", "info")
    other.add_sample("target_info", {"telemetry_sdk_language": "python"}, 1)
    theirs.register(Fixed(other))
    registry = Registry()
    client = ClientRegistry(registry, find=lambda: theirs)
    shown = Page({"dl_rank": "0"}, {"service.name": "job"}, registry, client=client)
    for form in FORMATS:
        [line] = [line for line in shown.render([], None, form).decode().splitlines() if line.startswith("target_info")]
        name = '"service.name"' if form.utf8 else "service_name"
        labels = sorted(['dl_rank="0"', 'environment="prod"', f'{name}="job"', 'telemetry_sdk_language="python"'])
        assert sorted(line.removeprefix("target_info{").removesuffix("} 1").split(",")) == labels
    assert dropped(registry) == {}


@pytest.mark.parametrize("form", FORMATS)
def test_clashes(form: Format, caplog: pytest.LogCaptureFixture) -> None:
    """A name of ours with another type, and a series of ours, stay ours: theirs is counted once, and said once."""
    registry = ours()
    registry.group("").instrument("same").record(5)
    theirs = CollectorRegistry()
    prometheus_client.Histogram("loss", "Theirs.", ["a"], registry=theirs).labels("x").observe(1)
    theirs.register(Fixed(UntypedMetricFamily("same", "Theirs.", value=6)))
    theirs.register(Fixed(Metric("same", "Theirs.", "gauge"), fixed_gauge("same", {"a": "b"}, 7)))
    theirs.register(Fixed(fixed_gauge("same", {}, 8), fixed_gauge("further", {}, 9)))
    shown = Page({}, {}, registry, client=ClientRegistry(registry, find=lambda: theirs))
    with caplog.at_level(logging.WARNING, "tachograph"):
        for _ in range(3):
            metrics = [found for found in registry.collect() if found.scope != "tachograph"]
            text = shown.render(metrics, None, form).decode()
    values = {sample[:3] for family in described(text, form).values() for sample in family[3]}
    if not form.openmetrics:
        values = {sample for sample in values if sample[0] != "loss_created"}
    assert values == {
        ("loss", frozenset({("otel_scope_name", "train")}), 1),
        ("same", frozenset(), 5),
        ("same", frozenset({("a", "b")}), 7),
        ("further", frozenset(), 9),
    }
    assert dropped(registry) == {"name_conflict": 3}
    assert sorted(record.message.split()[1] for record in caplog.records) == ["loss", "same"]


def fixed_gauge(name: str, labels: dict[str, str], value: float) -> Metric:
    """Return a gauge of one sample."""
    made = Metric(name, "Theirs.", "gauge")
    made.add_sample(name, labels, value)
    return made


def test_two_counters_beside_one_name() -> None:
    """An info and a counter whose OpenMetrics names are the same are both there, one under its whole name."""
    theirs = CollectorRegistry()
    prometheus_client.Info("steps", "Theirs.", registry=theirs).info({"a": "b"})
    registry = ours("counter", "steps")
    text = page(theirs, registry, OPENMETRICS)
    assert described(text, OPENMETRICS)["steps"][0] == "counter"
    assert described(text, OPENMETRICS)["steps_info"][0] == "gauge"
    assert dropped(registry) == {}


def test_a_counter_beside_our_gauge() -> None:
    """A counter of theirs whose OpenMetrics name is a gauge of ours is there as a metric of unknown type."""
    theirs = CollectorRegistry()
    prometheus_client.Counter("loss", "Theirs.", registry=theirs).inc(2, {"trace_id": "abc"})
    registry = ours()
    found = described(page(theirs, registry, OPENMETRICS), OPENMETRICS)
    assert set(found) == {"loss", "loss_total"}
    assert found["loss_total"] == ("unknown", "", "Theirs.", {("loss_total", frozenset(), 2, None, None)})
    assert found["loss"][0] == "gauge"
    assert dropped(registry) == {}


def raising() -> Metric:
    """Fail as a program's collector may."""
    raise RuntimeError("broken\nin two lines")


def raising_oddly() -> Metric:
    """Fail with an exception that has no text."""
    raise Odd


def test_a_collector_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """What it had not yielded is missing, everything else is there; counted each time and said in one line."""
    theirs = CollectorRegistry()
    theirs.register(Fixed(fixed_gauge("before", {}, 1), raising, fixed_gauge("after", {}, 1)))
    theirs.register(Fixed(fixed_gauge("other", {}, 1), raising_oddly))
    registry = ours()
    shown = Page({}, {}, registry, client=ClientRegistry(registry, find=lambda: theirs))
    with caplog.at_level(logging.WARNING, "tachograph"):
        for _ in range(2):
            found = described(shown.render(registry.collect(), None, CLASSIC), CLASSIC)
    assert {"loss", "before", "other"} <= set(found)
    assert "after" not in found
    assert errors(registry) == {"prometheus_client": 4}
    [record] = caplog.records
    assert "Fixed" in record.message
    assert "\n" not in record.message


@pytest.mark.timing
@pytest.mark.process
def test_a_collector_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """It costs one page its patience and is not asked again before it has answered; everything else is there."""
    asked, answers = [], threading.Event()

    def hanging() -> Metric:
        asked.append(time.monotonic())
        answers.wait(60)
        return fixed_gauge("slow", {}, 1)

    theirs = CollectorRegistry()
    theirs.register(Fixed(fixed_gauge("before", {}, 1), hanging))
    theirs.register(Fixed(fixed_gauge("after", {}, 1)))
    registry = ours()
    shown = Page({}, {}, registry, client=ClientRegistry(registry, find=lambda: theirs, patience=0.3))

    def names() -> set[str]:
        return set(described(shown.render(registry.collect(), None, CLASSIC), CLASSIC))

    threads = threading.active_count()
    with caplog.at_level(logging.WARNING, "tachograph"):
        assert {"loss", "before"} <= names()
        for _ in range(3):
            began = time.monotonic()
            assert {"loss", "after"} <= names()
            assert time.monotonic() - began < 0.3
    assert threading.active_count() == threads + 1
    assert len(asked) == 1
    assert errors(registry) == {"prometheus_client": 4}
    assert ["0.3 s" in record.message for record in caplog.records] == [True]
    answers.set()
    servers.wait_until(lambda: {"loss", "before", "slow", "after"} <= names(), 10)


class Odd(Exception):  # noqa: N818 - it is raised, too
    """No number, and no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def oddly_named() -> Metric:
    """Return a metric whose name is no text."""
    made = fixed_gauge("x", {}, 1)
    made.name = Odd()  # type: ignore[assignment]
    return made


MALFORMED: list[Callable[[], Any]] = [
    lambda: None,
    oddly_named,
    lambda: fixed_gauge("x", None, 1),  # type: ignore[arg-type]
    lambda: fixed_gauge("x", {}, "no number"),  # type: ignore[arg-type]
    lambda: fixed_gauge("x", {"a": Odd()}, 1),  # type: ignore[dict-item]
    lambda: SummaryMetricFamily("x", Odd(), 1, 2),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_metric(malformed: Callable[[], Any]) -> None:
    """What cannot be written is left out and counted; the rest of the same collector is there."""
    theirs = CollectorRegistry()
    theirs.register(Fixed(malformed, fixed_gauge("good", {}, 1)))
    registry = ours()
    assert {"loss", "good"} == set(described(page(theirs, registry), CLASSIC))
    assert dropped(registry) == {"not_exportable": 1}


def test_what_text_has_no_form_for() -> None:
    """A native histogram is left out and counted; an exemplar longer than OpenMetrics takes is left out alone."""
    native = Metric("native", "N", "histogram")
    native.add_sample("native", {}, 0, native_histogram=NativeHistogram(1, 1, 0, 0, 0))
    long = Metric("long", "L", "counter")
    long.add_sample("long_total", {}, 1, exemplar=Exemplar({"id": "x" * 127}, 1))
    theirs = CollectorRegistry()
    theirs.register(Fixed(native, long))
    registry = ours()
    found = described(page(theirs, registry, OPENMETRICS), OPENMETRICS)
    assert "native" not in found
    assert found["long"][3] == {("long_total", frozenset(), 1, None, None)}
    assert dropped(registry) == {"not_exportable": 1}


@pytest.mark.parametrize("form", FORMATS)
def test_a_sum_that_is_no_counter(form: Format) -> None:
    """A histogram's or a summary's sum below zero, or beside a bound below it, spoils no OpenMetrics page."""
    theirs = CollectorRegistry()
    prometheus_client.Histogram("lag", "L", ["to"], buckets=(1, 2), registry=theirs).labels("a").observe(-3)
    prometheus_client.Histogram("offset", "O", buckets=(-1, 1), registry=theirs).observe(3)
    prometheus_client.Summary("drift", "D", registry=theirs).observe(-3)
    text = page(theirs, Registry(), form)
    found = described(text, form)
    assert {sample[0] for sample in found["drift"][3]} >= {"drift_count"}
    assert ("lag_sum" in text, "drift_sum" in text) == (not form.openmetrics,) * 2


NAMES = st.sampled_from(["x", "x_total", "x.y", "x_y", "loss", "target_info", "x_bucket", "x_created"]) | st.text(
    max_size=6
)
LABELS = st.dictionaries(
    st.sampled_from(["a", "le", "quantile", "x", "a.b", "a_b", "__name__", "9"]) | st.text(max_size=4),
    st.sampled_from(["", "1", "0.5", "+Inf", "NaN", "x"]) | st.text(max_size=4) | st.integers(),
    max_size=3,
)
EXEMPLARS = st.none() | st.builds(Exemplar, LABELS, st.floats(), st.none() | st.floats())
SAMPLES = st.tuples(
    st.sampled_from(["", "_total", "_created", "_bucket", "_sum", "_count", "_info", "_gsum"]) | st.text(max_size=3),
    LABELS,
    st.floats() | st.integers() | st.booleans(),
    st.none() | st.floats(),
    EXEMPLARS,
)
METRICS = st.lists(
    st.tuples(NAMES, st.text(max_size=5), st.sampled_from(METRIC_TYPES), NAMES, st.lists(SAMPLES, max_size=4)),
    max_size=4,
)


@given(metrics=METRICS, form=st.sampled_from(FORMATS))
def test_nothing_spoils_the_page(metrics: list[Any], form: Format) -> None:
    """Whatever a collector yields: each line is one that a scraper reads, no series is twice, and ours is there."""
    made = []
    for name, documentation, kind, unit, samples in metrics:
        metric = Metric("x", documentation, kind)
        metric.name, metric.unit = name, unit
        for suffix, *sample in samples:
            metric.add_sample(name + suffix, *sample)
        made.append(metric)
    theirs = CollectorRegistry()
    theirs.register(Fixed(*made))
    text = page(theirs, ours(), form)
    lines = [line.rpartition("} ")[0] or line.partition(" ")[0] for line in text.split("\n") if line[:1] != "#"]
    assert len(lines) == len(set(lines))
    assert 'loss{otel_scope_name="train"} 1\n' in text
    names = [line.rpartition(" ")[0] for line in text.split("\n") if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))
    list(parse_classic(text.replace("# EOF\n", "")))


@pytest.mark.parametrize("form", FORMATS)
def test_our_own_collector_is_left_out(form: Format) -> None:
    """Our collector in their registry, or in a registry inside of it, adds nothing to our page."""
    registry = ours()
    registry.group("").instrument("step.duration.ms").record(5)
    theirs = CollectorRegistry()
    theirs.register(PrometheusCollector(registry=registry))
    inner = CollectorRegistry()
    inner.register(PrometheusCollector(registry=registry, resource_labels=["host.name"], target_info=False))
    theirs.register(inner)
    prometheus_client.Gauge("good", "G", registry=inner).set(1)
    alone = described(page(CollectorRegistry(), registry, form), form)
    assert described(page(theirs, registry, form), form) == {
        **alone,
        "good": ("gauge", "", "G", {("good", frozenset(), 1, None, None)}),
    }
    assert dropped(registry) == {}


def test_the_collector_of_another_registry_is_shown() -> None:
    """A collector of a registry that is not the page's own is one like any other."""
    theirs = CollectorRegistry()
    theirs.register(PrometheusCollector(registry=ours(name="other"), target_info=False, resource_labels=[]))
    registry = Registry()
    assert 'other{otel_scope_name="train"} 1.0\n' in page(theirs, registry)


def test_our_scopes_in_their_reader_are_left_out() -> None:
    """OpenTelemetry's Prometheus reader in their registry: what it has of us is left out, the program's own stays."""
    theirs = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=theirs)], shutdown_on_exit=False)
    registry = ours()
    registry.group("train").instrument("step.duration.ms").record(5)
    registry.group("train").instrument("checkpoint.success").record(2)
    registry.group("").instrument("plain").record(3)
    external = ExternalProvider(provider, registry)
    try:
        provider.get_meter("library").create_counter("requests", "{request}").add(3, {"code": 200})
        other = provider.get_meter("train 2").create_gauge("loss")
        other.set(4)
        own = classic_page(theirs).decode()  # two families of one name, hence no page that can be parsed
        assert all(
            name in own for name in ('\nloss{otel_scope_name="train"', "\nstep_duration_milliseconds", "\nplain")
        )
        alone = described(page(CollectorRegistry(), registry), CLASSIC)
        other.set(4)  # the SDK before 1.45 gives a gauge's value once
        found = described(page(theirs, registry), CLASSIC)
        requests = {("code", "200"), ("otel_scope_name", "library")}
        assert found.pop("requests")[3] == {("requests_total", frozenset(requests), 3, None, None)}
        assert found.pop("target_info")[0] == "gauge"
        added = ("loss", frozenset({("otel_scope_name", "train 2")}), 4, None, None)
        assert added in found["loss"][3]
        found["loss"][3].discard(added)
        assert found == alone
        assert dropped(registry) == {}
    finally:
        external.close()
        provider.shutdown()


PROGRAM = """
    import sys, urllib.request
    import tachograph

    def page():
        with urllib.request.urlopen(pipeline.metrics_url) as answer:
            text = answer.read().decode()
        return sorted({line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"})

    """


def ran(folder: Path, program: str, **more: str) -> list[str]:
    """Run a program that starts us on any port, and return the lines that it printed."""
    done = programs.run(folder, PROGRAM + program, OTEL_EXPORTER_PROMETHEUS_PORT="0", **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


USES_IT = """
    import prometheus_client
    prometheus_client.Counter("requests", "R").inc()
    tachograph.put_metric("loss", 0.5)
    with tachograph.start({arguments}) as pipeline:
        print(*page())
    """


@pytest.mark.process
def test_it_is_on_the_page_of_start(tmp_path: Path) -> None:
    """start() serves the program's metrics beside ours, prometheus_client's own default ones included."""
    [line] = ran(tmp_path, USES_IT.format(arguments=""))
    assert {"loss", "requests_total", "python_info", "process_cpu_seconds_total", "target_info"} <= set(line.split())


@pytest.mark.process
@pytest.mark.parametrize(("arguments", "variable"), [("prometheus_registry=False", ""), ("", "false"), ("", "FALSE")])
def test_it_can_be_switched_off(tmp_path: Path, arguments: str, variable: str) -> None:
    """With TACHOGRAPH_PROMETHEUS_REGISTRY=false, or by argument, the page has only what we recorded."""
    [line] = ran(tmp_path, USES_IT.format(arguments=arguments), TACHOGRAPH_PROMETHEUS_REGISTRY=variable)
    assert line == "loss target_info"


@pytest.mark.process
def test_the_argument_wins(tmp_path: Path) -> None:
    """prometheus_registry=True goes before the variable."""
    program = USES_IT.format(arguments="prometheus_registry=True")
    [line] = ran(tmp_path, program, TACHOGRAPH_PROMETHEUS_REGISTRY="false")
    assert "requests_total" in line


@pytest.mark.process
def test_a_program_that_does_not_use_it(tmp_path: Path) -> None:
    """We never import prometheus_client for it; where it is imported for something else, its defaults do not show."""
    lines = ran(
        tmp_path,
        """
    import opentelemetry.metrics
    tachograph.put_metric("loss", 0.5)
    with tachograph.start() as pipeline:
        print(*page(), "prometheus_client" in sys.modules)
        opentelemetry.metrics.get_meter("library").create_counter("calls").add(1)
        print(*page())
        print(*page(), "prometheus_client" in sys.modules)
    """,
    )
    assert lines == ["loss target_info False", "calls_total loss target_info", "calls_total loss target_info True"]


@pytest.mark.process
def test_the_program_with_all_of_it(tmp_path: Path) -> None:
    """Our page, our collector, OpenTelemetry's reader in one registry, a provider of the program's: nothing twice."""
    [line] = ran(
        tmp_path,
        """
    import prometheus_client
    from collections import Counter
    from opentelemetry import metrics
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider

    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    prometheus_client.REGISTRY.register(tachograph.otel.PrometheusCollector())
    prometheus_client.Counter("requests", "R").inc()
    metrics.get_meter("library").create_counter("calls").add(1)
    tachograph.put_metric("loss", 0.5)
    with tachograph.start(metrics="prometheus") as pipeline:
        page()  # by now it is in their provider
        with urllib.request.urlopen(pipeline.metrics_url) as answer:
            text = answer.read().decode()
    found = Counter(line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#")
    print(*(f"{name}={found[name]}" for name in ("loss", "calls_total", "requests_total", "target_info")))
    """,
    )
    assert line == "loss=1 calls_total=1 requests_total=1 target_info=1"


@pytest.mark.process
def test_multiprocess_mode(tmp_path: Path) -> None:
    """With PROMETHEUS_MULTIPROC_DIR each process's page has its own values: a sum over pages counts nothing twice."""
    (tmp_path / "shared").mkdir()
    lines = []
    for count in ("1", "2"):
        folder = tmp_path / count
        folder.mkdir()
        lines += ran(
            folder,
            f"""
    import prometheus_client
    prometheus_client.Counter("requests", "R").inc({count})
    with tachograph.start() as pipeline, urllib.request.urlopen(pipeline.metrics_url) as answer:
        lines = answer.read().decode().splitlines()
    print(*(line.rpartition(" ")[2] for line in lines if line.startswith("requests_total")))
    """,
            PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "shared"),
        )
    assert lines == ["1.0", "2.0"]
    assert len(list((tmp_path / "shared").iterdir())) == 2


@pytest.mark.process
@pytest.mark.prometheus
@pytest.mark.parametrize("major", [2, 3])
def test_a_real_scrape(major: int, tmp_path: Path) -> None:
    """Both generations of Prometheus take a page with every type of theirs, and store each value as it is."""
    theirs = every_kind()
    theirs.unregister(next(found for found in theirs._collector_to_names if isinstance(found, Fixed)))
    timed = UntypedMetricFamily("timed", "At a time.")
    timed.add_metric([], 12, timestamp=time.time() - 5)
    histogram = GaugeHistogramMetricFamily("age", "Ages.", [("1.0", 1), ("+Inf", 3)], 7)
    theirs.register(Fixed(timed, histogram))
    registry = ours()
    (tmp_path / "plain.yml").write_text(
        'global: {scrape_interval: 1s}\nscrape_configs: [{job_name: a, file_sd_configs: [{files: ["targets/*.json"]}]}]'
    )
    shown = Page({"dl_rank": "3"}, {}, registry, client=ClientRegistry(registry, find=lambda: theirs))
    endpoint = Endpoint(lambda: (registry.collect(), None), shown, "127.0.0.1", 0, registry, store=tmp_path)
    flags = ["--enable-feature=exemplar-storage"]
    try:
        with servers.prometheus(tmp_path / "plain.yml", major=major, arguments=flags) as base:
            servers.wait_until(lambda: servers.instant(base, "loss"), why_not=lambda: servers.api(base, "targets"))
            assert {value for _, value in servers.instant(base, "up")} == {1}
            everything = {
                (labels["__name__"], labels.get("code", ""), labels.get("le", ""), labels.get("phase", "")): value
                for labels, value in servers.instant(base, '{dl_rank="3"}')
            }
            assert everything["loss", "", "", ""] == 1
            assert everything["requests_seconds_total", 'a"b\\c\nd é', "", ""] == 3
            assert everything["latency_bucket", "200", "1.0", ""] == 1
            assert everything["age_bucket", "", "+Inf", ""] == 3
            assert everything["age_gsum", "", "", ""] == 7
            assert everything["phase", "", "", "b c"] == 1
            assert everything["timed", "", "", ""] == 12
            assert everything["build_info", "", "", ""] == 1
            kinds = servers.api(base, "metadata")
            now = time.time()
            window = {"start": str(now - 60), "end": str(now + 60)}
            stored = servers.api(base, "query_exemplars", query="requests_seconds_total", **window)
            assert stored[0]["exemplars"][0]["labels"] == {"trace_id": "abc"}
            assert kinds["latency"][0]["type"] == "histogram"
    finally:
        endpoint.close(5)
