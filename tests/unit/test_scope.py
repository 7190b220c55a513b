"""Scopes of our own carry our version and a schema URL on every way out; a user's group carries neither."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.schemas import Schemas

from front_door import fresh_group  # noqa: F401 - a fixture
from hub_requests import START, Clock, metrics, number, rank, shown
from tachograph import prof
from tachograph.exporters.batch import Batch
from tachograph.exporters.external_provider import ExternalProvider
from tachograph.exporters.log_emitter import into_provider, to_exporter
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.producer import sdk_metrics
from tachograph.hardware._sampler import SCOPE as HARDWARE
from tachograph.hub.hub import Hub
from tachograph.recording.journal import Journal
from tachograph.recording.own_metrics import SCHEMA_URL, scope_origin
from tachograph.recording.registry import Registry
from tachograph.version import __version__
from tracing_on import Spans, program_that_traces  # noqa: F401 - one is a fixture

Origins = dict[str, tuple[str, str]]
OURS = (__version__, SCHEMA_URL)
NOBODYS = ("", "")


def recorded() -> Registry:
    """Return a registry with a metric of the user's, in a group that only begins like ours, and two of our own."""
    registry = Registry(enabled=True)
    for group in ("train", "tachographs", HARDWARE):
        registry.group(group).instrument("loss").record(1)
    registry.count_dropped("no_number", "there")
    return registry


def logged() -> Batch:
    """Return a batch with one event."""
    journal = Journal(Registry(enabled=True))
    journal.append("e", time.time_ns(), {})
    return Batch([], None, [], {}, 1, journal.drain())


def origins(data: MetricsData | None) -> Origins:
    """Return the version and the schema URL of each scope."""
    assert data is not None
    return {found.scope.name: origin(found.scope) for each in data.resource_metrics for found in each.scope_metrics}


def origin(scope: InstrumentationScope | None) -> tuple[str, str]:
    """Return the version and the schema URL of a scope of the SDK."""
    assert scope is not None
    return scope.version or "", scope.schema_url or ""


def by_our_otlp(registry: Registry) -> Origins:
    """Return the scopes of our own requests."""
    encoder = MetricsEncoder("there", registry, pace=lambda: None)
    ((request, _),) = encoder.messages(Batch(registry.collect(), None, [], {}, 1))
    scopes = request.resource_metrics[0].scope_metrics
    return {found.scope.name: (found.scope.version, found.schema_url) for found in scopes}


def as_sdk_metrics(registry: Registry) -> Origins:
    """Return the scopes that an exporter of the SDK is given; the schema URL stands in two places there."""
    data = sdk_metrics(registry.collect(), {}, 1)
    beside = {found.scope.name: found.schema_url for each in data.resource_metrics for found in each.scope_metrics}
    assert beside == {name: schema_url for name, (_, schema_url) in origins(data).items()}
    return origins(data)


def in_a_program(registry: Registry) -> Origins:
    """Return the scopes in a MeterProvider of the program's."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    external = ExternalProvider(provider, registry, pace=lambda: None)
    try:
        return origins(reader.get_metrics_data())
    finally:
        external.close()
        provider.shutdown()


@pytest.mark.parametrize("way_out", [by_our_otlp, as_sdk_metrics, in_a_program])
def test_metrics(way_out: Callable[[Registry], Origins]) -> None:
    """Metrics of our own scopes say which Tachograph made them; those of a user's group do not."""
    wanted = {"train": NOBODYS, "tachographs": NOBODYS, HARDWARE: OURS, "tachograph": OURS}
    assert way_out(recorded()) == wanted


def test_spans(spans: Spans, group: str) -> None:
    """A span of ``@prof`` in a user's group has neither; in a scope of ours both."""

    def step() -> None:
        pass

    prof(group=group)(step)()
    prof(group="tachograph.task")(step)()
    assert [origin(span.instrumentation_scope) for span in spans.all()] == [NOBODYS, OURS]


def test_events() -> None:
    """Every event is of our own scope: by OTLP, through a LoggerProvider of the program's, and to an SDK's exporter."""
    ((request, _),) = log_requests(logged().events, {}, lambda *_: None, lambda: None)
    (scope,) = request.resource_logs[0].scope_logs
    assert (scope.scope.version, scope.schema_url) == OURS
    assert all(origin(found.instrumentation_scope) == OURS for found in [*through_a_provider(), *to_an_exporter()])


def through_a_provider() -> tuple[ReadableLogRecord, ...]:
    """Return the record that a LoggerProvider exports."""
    exporter, provider = InMemoryLogRecordExporter(), LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    emitter = into_provider(provider, Registry())
    emitter(logged())
    assert emitter.flush(10)
    emitter.close(10)
    provider.shutdown()
    (found,) = exporter.get_finished_logs()
    return (found,)


def to_an_exporter() -> tuple[ReadableLogRecord, ...]:
    """Return the record that an exporter is given."""
    exporter = InMemoryLogRecordExporter()
    emitter = to_exporter(exporter, Registry())
    emitter(logged())
    assert emitter.flush(10)
    (found,) = exporter.get_finished_logs()
    emitter.close(10)
    return (found,)


def test_the_schema_is_one_that_opentelemetry_has_published() -> None:
    """The URL is one of those that the semantic conventions' package knows, as far as that is as new."""
    if not hasattr(Schemas, "V1_44_0"):
        pytest.skip("NOT TESTED: opentelemetry-semantic-conventions is older than our schema")
    assert SCHEMA_URL in {schema.value for schema in Schemas}


def test_a_new_version_of_ours_is_no_new_series_in_the_hub(tmp_path: Path) -> None:
    """A counter that comes from another version, or with another schema, goes on: the hub tells series by name."""
    with_versions = []
    for at, (version, schema_url) in enumerate([("", ""), ("0.1.0", "https://example.com/1"), scope_origin(HARDWARE)]):
        request = metrics(rank(0), number("calls", at + 1, kind="counter", time=START + at, start=1), scope=HARDWARE)
        scope = request.resource_metrics[0].scope_metrics[0]
        scope.scope.version, scope.schema_url = str(version), str(schema_url)
        with_versions.append(request)
    hub = Hub(tmp_path, run="run", clock=Clock())
    try:
        for request in with_versions:
            assert hub.receive_metrics(request).items == 0
        (value,) = shown(hub.page()[1], "calls_total").values()
    finally:
        hub.close()
    assert value == 3
