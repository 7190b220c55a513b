"""``tachograph run --instrument all``: the records of other libraries' instrumentors arrive, with the real ones."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from launches import base, events, run_program
from receivers import Receiver, receiving
from tachograph import runs

DURATION = "http.client.duration"
# A server, and five requests to it; the program says which global providers it has.
FIVE_REQUESTS = """
    import http.server, threading, requests
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def log_message(self, *_):
            pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in range(5):
        requests.get(f"http://127.0.0.1:{server.server_port}/asked")
    from opentelemetry import _logs, metrics, trace
    found = trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()
    print(*(type(each).__name__ for each in found))
"""
PROXIES = "ProxyTracerProvider _ProxyMeterProvider ProxyLoggerProvider\n"


@pytest.fixture(autouse=True)
def real_instrumentor() -> None:
    """The instrumentor of ``requests``, which the tests' group brings; under CI it must be there."""
    try:
        distribution("opentelemetry-instrumentation-requests")
    except PackageNotFoundError:
        reason = "NOT TESTED: opentelemetry-instrumentation-requests is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def spans(receiver: Receiver) -> list[tuple[str, str]]:
    """Return the scope and the URL's path of every span that has arrived."""
    return [
        (scope.scope.name.rpartition(".")[2], pair.value.string_value.rpartition("/")[2])
        for path, _, body in list(receiver.requests)
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        for pair in span.attributes
        if pair.key in ("http.url", "url.full")
    ]


def requests_counted(receiver: Receiver) -> dict[int, int]:
    """Return the newest count of requests that were timed, by process."""
    return {
        attribute.value.int_value: sum(point.count for point in metric.histogram.data_points)
        for path, _, body in list(receiver.requests)
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for attribute in resource.resource.attributes
        if attribute.key == "process.pid"
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == DURATION
    }


def test_spans_and_metrics_of_a_real_instrumentor_arrive(tmp_path: Path) -> None:
    """Each request is a span and a duration at the destination, our own deliveries are none; no global is set."""
    with receiving() as receiver:
        options = ("--no-hub", "--endpoint", base(receiver), "--interval", "0.2", "--instrument", "all")
        done = run_program(tmp_path, FIVE_REQUESTS, options=options)
        assert (done.returncode, done.stdout) == (0, PROXIES), done.stderr
        assert spans(receiver) == [("requests", "asked")] * 5
        assert list(requests_counted(receiver).values()) == [5]


def test_without_it_nothing_of_theirs_arrives(tmp_path: Path) -> None:
    """Without ``--instrument all`` there is neither a span nor a metric of theirs."""
    with receiving() as receiver:
        done = run_program(tmp_path, FIVE_REQUESTS, options=("--no-hub", "--endpoint", base(receiver)))
        assert (done.returncode, done.stdout) == (0, PROXIES), done.stderr
        assert (spans(receiver), requests_counted(receiver)) == ([], {})


def test_our_own_hub_keeps_the_metrics(tmp_path: Path) -> None:
    """In the store of the run's hub the durations are a histogram of this process, complete, and nothing is lost."""
    options = ("--run-id", "job", "--store", str(tmp_path / "store"), "--instrument", "all")
    done = run_program(tmp_path, FIVE_REQUESTS, options=options)
    assert done.returncode == 0, done.stderr
    run = runs.open("job", store=tmp_path / "store")
    assert sum(interval.count for interval in run.intervals(DURATION)) == 5
    assert "none lost" in done.stderr


def test_the_programs_own_providers_stay_theirs(tmp_path: Path) -> None:
    """Providers that the program sets get what is recorded with them and by us, and nothing of the instrumentors."""
    program = """
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        import requests, tachograph, time
        reader, memory = InMemoryMetricReader(), InMemorySpanExporter()
        metrics.set_meter_provider(MeterProvider([reader]))
        trace.set_tracer_provider(TracerProvider())
        trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(memory))
        tachograph.put_metric("loss", 0.5, "train")
        with trace.get_tracer("own").start_as_current_span("mine"):
            try:
                requests.get("http://127.0.0.1:9/asked", timeout=1)
            except requests.ConnectionError:
                pass
        deadline, names = time.monotonic() + 20, set()
        while "loss" not in names and time.monotonic() < deadline:
            found = reader.get_metrics_data()
            for resource in found.resource_metrics if found else ():
                names |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
            time.sleep(0.05)
        print([span.name for span in memory.get_finished_spans()], "loss" in names, "http.client.duration" in names)
    """
    with receiving() as receiver:
        options = ("--no-hub", "--endpoint", base(receiver), "--interval", "0.2", "--instrument", "all")
        done = run_program(tmp_path, program, options=options)
        assert (done.returncode, done.stdout) == (0, "['mine'] True False\n"), done.stderr
        assert spans(receiver) == [("requests", "asked")]


def test_events_of_an_instrumentor_arrive(tmp_path: Path) -> None:
    """A record that an instrumentor emits is an event, with its attributes and its text, whatever is in it."""
    metadata = tmp_path / "telling-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: telling\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[opentelemetry_instrumentor]\ntelling = telling:Telling\n")
    (tmp_path / "telling.py").write_text(
        "from opentelemetry.instrumentation.instrumentor import BaseInstrumentor\n"
        "from opentelemetry._logs import LogRecord\n"
        "class Hostile:\n"
        "    def __str__(self): raise ValueError('hostile')\n"
        "class Telling(BaseInstrumentor):\n"
        "    def instrumentation_dependencies(self): return ()\n"
        "    def _instrument(self, logger_provider, **kwargs):\n"
        "        logger = logger_provider.get_logger('telling')\n"
        "        logger.emit(LogRecord(event_name='told', body='how it is', attributes={'tokens': 7}))\n"
        "        logger.emit(LogRecord(body={'role': 'user', 'parts': [1, None]}, severity_text='INFO'))\n"
        "        logger.emit(LogRecord(event_name='hostile', body=Hostile()))\n"
        "    def _uninstrument(self, **kwargs): pass\n"
    )
    with receiving() as receiver:
        options = ("--no-hub", "--endpoint", base(receiver), "--instrument", "all")
        done = run_program(tmp_path, "print('job')", options=options, PYTHONPATH=str(tmp_path))
        found = {event.name: event.attributes for event in events(receiver)}
    assert (done.returncode, done.stdout) == (0, "job\n"), done.stderr
    assert (found["told"]["body"], found["told"]["tokens"]) == ("how it is", 7)
    assert found["log"]["severity_text"] == "INFO"
    assert "hostile" not in found


def test_a_forked_rank_has_providers_of_its_own(tmp_path: Path) -> None:
    """A rank that was forked counts its own requests, and none of its parent's again."""
    program = (
        FIVE_REQUESTS
        + """
    import os, torch.distributed as dist, torch.multiprocessing as mp
    def work(rank, url, meeting):
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=1)
        for _ in range(3):
            requests.get(url)
    mp.start_processes(
        work,
        args=(f"http://127.0.0.1:{server.server_port}/asked", os.path.abspath("meeting")),
        nprocs=1,
        start_method="fork",
    )
"""
    )
    pytest.importorskip("torch")
    with receiving() as receiver:
        options = ("--no-hub", "--endpoint", base(receiver), "--interval", "0.2", "--instrument", "all")
        done = run_program(tmp_path, program, options=options, timeout=120, GLOO_SOCKET_IFNAME="lo")
        assert done.returncode == 0, done.stderr
        assert sorted(requests_counted(receiver).values()) == [3, 5]
        assert spans(receiver) == [("requests", "asked")] * 8
