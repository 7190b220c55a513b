"""The cost of the background, behind the recording: ``python bench/background.py [--check] [--seconds 2.5]``.

A process records each series twenty times a second and exports once a second. Measured, by kind and number of series
and by way out: processor time of all threads but the main one, processor time of the main thread beyond the same loop
with recording off, context switches, and how long the interpreter's lock was held at most while the main thread wanted
it (processor time of the others between two turns of a loop). The official SDK's PeriodicExportingMetricReader has the
same instruments beside it. Processor time tells on a busy machine, too; wall time would not.

Then, in one thread: collecting and encoding beside the SDK's, also where no series has changed, a POST to loopback, and
what the encoder keeps of a series. ``idle`` is a process that has recorded nothing for a minute, and exports at the
default interval, to a hub each second. ``--kinds``, ``--series``, ``--ways`` choose rows; all of them take ten minutes
on two cores, and less where ``--at-once`` runs several, four cores each. ``--beside FOLDER`` measures another version's
sources (its ``src``) in the same run. A busy machine makes processor time longer, up to twice: ``loop`` is that of the
same few lines in each process, by which rows of different moments can be compared. With ``BENCH_RESULTS``, a folder,
all of it is also written there, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from journal import served
from race import Goal, keep, report

from tachograph.recording.gauge_curve import FIRST

ALL = (1, 100, 500, 2000)
SERIES = {"gauges": ALL, "histograms": ALL, "curves": ALL, "mixed": (600,), "idle": (1, 600)}
WAYS = ("hub", "otlp", "metrics")
RATE, SCRAPED_EVERY, WARM = 20, 5.0, 2.0
IDLE, IDLE_SECONDS = 60.0, 15.0  # without news: a process is looked at more rarely the longer that lasts
LOOKED_AT = 1.25  # seconds for which the lock is looked at: a tick a second
CORES_EACH = 4  # a job, its hub and what it disturbs
GOAL_ONE, GOAL_MIXED, GOAL_ENCODE, GOAL_BYTES = 1.2, 2.5, 0.1, 1024
GOAL_HELD, GOAL_IDLE = 1.0, 1.0  # milliseconds; switches a second
SPREADS_EVERY = 5  # collections for each interval of exponential histograms, as in a pipeline that exports each second
ATTRIBUTES = {"phase": "train"}

Record = Callable[[float], object]


def ours(kind: str, count: int) -> list[Record]:
    """Return the recorders of our series, each for one value."""
    import tachograph

    if kind == "curves":
        return [tachograph.Metric(f"curve.{number}").record for number in range(count)]
    found = []
    for number, is_histogram in enumerate(_kinds(kind, count)):
        unit, of = ("s", "histogram") if is_histogram else ("", "gauge")
        declared = tachograph.declare(f"{of}.{number}", group="bench", kind=of, unit=unit)  # type: ignore[arg-type]
        found.append(declared.bind(**ATTRIBUTES))
    return found


def _kinds(kind: str, count: int) -> list[bool]:
    """Return for each series whether it is a histogram."""
    histograms = {"histograms": count, "mixed": count // 6, "idle": count // 6}.get(kind, 0)
    return [number >= count - histograms for number in range(count)]


def theirs(kind: str, count: int, provider: Any) -> list[Record]:
    """Return the recorders of the SDK's instruments, with buckets like ours."""
    from tachograph.recording.naming import default_boundaries

    meter = provider.get_meter("bench")
    bounds = list(default_boundaries("s"))
    made = [
        meter.create_histogram(f"histogram.{number}", unit="s", explicit_bucket_boundaries_advisory=bounds).record
        if is_histogram
        else meter.create_gauge(f"gauge.{number}").set
        for number, is_histogram in enumerate(_kinds(kind, count))
    ]
    return [lambda value, record=record: record(value, ATTRIBUTES) for record in made]


def begun(side: str, kind: str, count: int) -> list[Record]:
    """Begin to export, and return the recorders."""
    if side == "sdk":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        return theirs(kind, count, provider)
    import tachograph

    records = ours(kind, count)
    pipeline = tachograph.start(traces="none", run_id="job")
    for value in range(FIRST):  # each of which is a point of a gauge's curve
        for record in records:
            record(value)
    pipeline.flush(60)
    return records


def job(side: str, kind: str, count: int, seconds: float) -> None:
    """Record, and print the cost: the child process."""
    records = begun(side, kind, count)
    turns = 0

    def loop(until: float) -> None:
        nonlocal turns
        while (left := until - time.perf_counter()) > 0:
            turns += 1
            for number, record in enumerate(records if kind != "idle" else ()):
                record(1 / (turns + number + 3))
            time.sleep(min(1 / RATE, left))

    warm = IDLE if kind == "idle" else WARM
    loop(time.perf_counter() + (warm if side != "off" else 1 / RATE))
    before, threads, began = _used(), _by_thread(), time.perf_counter()
    loop(began + seconds)
    after, lasted = _used(), time.perf_counter() - began
    main, others, own_switches, all_switches = ((now - then) / lasted for now, then in zip(after, before, strict=True))
    busy = {name: (used - threads.get(name, 0.0)) / lasted for name, used in _by_thread().items()}
    longest, until = 0.0, time.perf_counter() + (LOOKED_AT if side != "off" else 0.0)
    last = time.process_time() - time.thread_time()
    while (now := time.perf_counter()) < until:
        used = time.process_time() - time.thread_time()
        longest, last = max(longest, used - last), used
        if now > began + 1 / RATE:
            began = now
            for record in records if kind != "idle" else ():
                record(0.5)
    began = time.thread_time()
    for _ in range(300_000):
        turns ^= 1
    lasted = time.thread_time() - began
    found = {"main": main, "others": others, "switches": all_switches - own_switches, "held": longest, "loop": lasted}
    print(json.dumps(found | {"threads": busy}), flush=True)
    os._exit(0)  # the end is not measured


def _used() -> tuple[float, float, int, int]:
    """Return processor seconds of this thread and of the others, and context switches of this one and of all."""
    mine, everything = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
    main = time.thread_time()
    switches = (of.ru_nvcsw + of.ru_nivcsw for of in (mine, everything))
    return main, time.process_time() - main, *switches


def _by_thread() -> dict[str, float]:
    """Return processor seconds so far by the name of a thread; nothing where the kernel does not tell."""
    used: dict[str, float] = {}
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):
            told = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="ascii")
            used[thread.name] = used.get(thread.name, 0.0) + int(told.split()[0]) / 1e9
    return used


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_arguments: object) -> None:
        """Say nothing: a process that has been measured just goes."""


class _Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """Yield the address of a receiver that takes everything."""
    with _Server(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Row(NamedTuple):
    """A process to be measured: ``side`` is ours, the SDK's, another version's (``beside``), or with recording off."""

    kind: str
    series: int
    way: str
    side: str

    def __str__(self) -> str:
        """Name it in a table."""
        return f"{self.series:,} {self.kind} by {self.way}"


def measured(row: Row, seconds: float, beside: str) -> dict[str, Any]:
    """Return the use of a process each second: main, others (seconds), switches; and held (seconds, at most)."""
    kind, count, way, side = row
    seconds = max(seconds, SCRAPED_EVERY if way == "metrics" else 0.0, IDLE_SECONDS if kind == "idle" else 0.0)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
    environ = {**kept, "RANK": "0", "WORLD_SIZE": "1", "TACHOGRAPH_SYSTEM_METRICS": "false"}
    environ |= {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "none"}
    if kind != "idle" or way == "hub":  # else an export each minute, as the specification says
        environ["OTEL_METRIC_EXPORT_INTERVAL"] = "1000"
    if side == "off":
        environ["OTEL_SDK_DISABLED"] = "true"
    if side == "beside":
        environ, side = _of_version(environ, beside), "ours"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        environ["TACHOGRAPH_STORE"] = folder
        ended = threading.Event()
        if way == "metrics":
            with http.server.HTTPServer(("127.0.0.1", 0), _Receiver) as free:
                port = free.server_port
            environ |= {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
            scraping = threading.Thread(target=_scrape, args=(f"http://127.0.0.1:{port}/metrics", ended))
            scraping.start()
            stack.callback(scraping.join)
            stack.callback(ended.set)
        else:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = stack.enter_context(served(folder) if way == "hub" else receiver())
        if way == "hub":
            environ["OTEL_LOGS_EXPORTER"] = "otlp"
        arguments = ["--job", side, "--kinds", kind, "--series", str(count), "--seconds", str(seconds)]
        command = [sys.executable, __file__, *arguments]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, timeout=300)  # noqa: S603 - ours
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _of_version(environ: dict[str, str], sources: str) -> dict[str, str]:
    return environ | {"PYTHONPATH": os.pathsep.join(filter(None, (sources, environ.get("PYTHONPATH"))))}


def _scrape(url: str, ended: threading.Event) -> None:
    while not ended.wait(SCRAPED_EVERY):
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
            answer.read()


class _Export:
    """Collecting and encoding the same series by us and by the SDK.

    Args:
        kind: of the series.
        count: of them.
        beside: histograms go to our hub, with their exponential buckets.
    """

    def __init__(self, kind: str, count: int, *, beside: bool) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from tachograph.exporters.otlp.encoding import MetricsEncoder
        from tachograph.recording.registry import Registry

        self.registry = Registry(enabled=True)
        self._intervals = self.registry.intervals.open() if beside else None
        group, names = self.registry.group("bench"), ("gauge.{}", "time.{}.seconds")
        wanted = [names[is_histogram].format(number) for number, is_histogram in enumerate(_kinds(kind, count))]
        self.records: list[Record] = [group.instrument(name).bind(**ATTRIBUTES) for name in wanted]
        self._series = list(self.registry.series())
        self.whole = True
        hub: Any = {"beside": lambda: True, "is_whole": lambda: self.whole} if beside else {}
        self._encoder = MetricsEncoder("there", self.registry, pace=int, **hub)
        self._sdk = InMemoryMetricReader()
        self.official = theirs(kind, count, MeterProvider([self._sdk], shutdown_on_exit=False))

    def ours(self, *, spreads: bool = True) -> tuple[float, float, float]:
        """Return the processor seconds of folding, collecting and encoding.

        Folding adds up what was recorded, which the SDK does while it is recorded.

        Args:
            spreads: collect exponential histograms, too.
        """
        from tachograph.exporters.batch import Batch
        from tachograph.recording.accumulators import LastValue

        # As a pipeline has it: so many histograms leave for our hub with their intervals, and stand still meanwhile;
        # our own metrics are not asked each time.
        folds = spreads or self._intervals is None
        started = time.thread_time()
        for series in self._series:
            if folds or isinstance(series, LastValue):
                series.fold()
        began = time.thread_time()
        intervals = self._intervals if spreads else None
        metrics = self.registry.columns(None, intervals, folds=folds, own=spreads)
        if intervals is not None:
            intervals.finish()
        between = time.thread_time()
        for _ in self._encoder.requests(Batch(metrics, None, [], {"service.name": "s"}, time.time_ns())):
            pass
        return began - started, between - began, time.thread_time() - between

    def theirs(self) -> float:
        """Return the processor seconds of both by the SDK."""
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        began = time.thread_time()
        data = self._sdk.get_metrics_data()
        if data is not None:
            encode_metrics(data).SerializeToString()
        return time.thread_time() - began


def in_one_thread(kind: str, count: int, *, beside: bool, turns: int = 41) -> list[Goal]:
    """Return collecting and encoding beside the SDK's, and the bytes that the encoder keeps of a series."""
    export = _Export(kind, count, beside=beside)
    taken: list[tuple[float, float, float, float]] = []
    kept = 0.0
    for turn in range(turns):
        for at in range(RATE):
            for number, record in enumerate(export.records):
                record(1 / (turn + at + number + 3))
        for number, record in enumerate(export.official):
            record(1 / (turn + number + 3))
        if turn == 0:
            export.registry.collect()  # folds: only the encoder's own is counted
            tracemalloc.start()
        found = export.ours(spreads=turn % SPREADS_EVERY == 0)
        if turn == 0:
            kept = tracemalloc.get_traced_memory()[0] / count
            tracemalloc.stop()
        taken.append((*found, export.theirs()))
    groups = [taken[first : first + SPREADS_EVERY] for first in range(1, turns - SPREADS_EVERY + 1, SPREADS_EVERY)]
    means = [[statistics.mean(column) for column in zip(*group, strict=True)] for group in groups]
    fold, collect, encode, reference = (statistics.median(column) * 1e6 for column in zip(*means, strict=True))
    name = f"{count} {kind}{', for our hub' if beside else ''}"
    print(f"{name}: fold {fold:,.0f} us, collect {collect:,.0f}, encode {encode:,.0f}; the SDK {reference:,.0f} us")
    goals = [
        Goal(f"{name}: collect and encode", collect + encode, reference, GOAL_ENCODE, "us"),
        Goal(f"{name}: with what the SDK's record() does", fold + collect + encode, reference, GOAL_ENCODE, "us"),
    ]
    export.ours()
    export.whole = False
    idle = statistics.median([sum(export.ours(spreads=False)[1:]) for _ in range(turns)]) * 1e6
    goals.append(Goal(f"{name}: where nothing has changed", idle, reference, GOAL_ENCODE, "us"))
    return [*goals, Goal(f"{name}: kept of a series", kept, GOAL_BYTES, 1.0, "B")]


def post() -> list[Goal]:
    """Return the processor time of a POST of 60 KB to loopback beside that of ``requests``."""
    import requests

    from tachograph.exporters.otlp.http import HttpSender
    from tachograph.exporters.otlp.settings import read_otlp_settings

    body = os.urandom(60_000)
    taken: dict[str, list[float]] = {"ours": [], "requests": []}
    with receiver() as url, requests.Session() as session:
        sender = HttpSender(read_otlp_settings("metrics", {}, endpoint=url))
        for _ in range(101):
            for name, send in (("ours", lambda: sender(body, 10.0)), ("requests", lambda: session.post(url, body))):
                began = time.thread_time()
                send()
                taken[name].append(time.thread_time() - began)
        sender.close()
    mine, reference = (statistics.median(taken[name]) * 1e6 for name in ("ours", "requests"))
    return [Goal("a POST to loopback", mine, reference, 0.3, "us")]


def rows(kinds: list[str], series: list[int], ways: list[str], *, beside: bool) -> list[Row]:
    """Return the rows that are to be measured."""
    found = []
    for kind in kinds:
        for count in series or SERIES[kind]:
            found.append(Row(kind, count, "otlp", "off"))
            for way in ways:
                sides = ["ours", *(["beside"] if beside else [])]
                if way == "otlp" and kind != "curves":
                    sides.append("sdk")
                found += [Row(kind, count, way, side) for side in sides]
    return found


def judged(found: dict[Row, dict[str, Any]]) -> list[bool]:
    """Print the goals of our rows, and tell which tables were kept."""
    goals, wakes, held = [], [], []
    for row, used in found.items():
        if row.side != "ours":
            continue
        limit = {(1, "gauges"): GOAL_ONE, (600, "mixed"): GOAL_MIXED}.get((row.series, row.kind))
        if limit is not None and row.way != "metrics":
            goals.append(Goal(f"{row}, a second", used["others"] * 1e6, limit * 1e3, 1.0, "us"))
        held.append(Goal(str(row), used["held"] * 1e6, GOAL_HELD * 1e3, 1.0, "us"))
        if row.kind == "idle":
            wakes.append(Goal(str(row), used["switches"], GOAL_IDLE, 1.0, "/s"))
    return [
        report("All threads but the main one", goals),
        report("The interpreter's lock held while the main thread wanted it, at most", held),
        report("Context switches of an idle process, beside the main thread's", wakes),
    ]


def alone() -> bool:
    """Measure collecting, encoding and posting in one thread, and tell whether the goals were kept."""
    found = [goal for beside in (False, True) for goal in in_one_thread("mixed", 600, beside=beside)]
    for kind in ("gauges", "histograms"):
        found += in_one_thread(kind, 500, beside=False)
    return report("In one thread, median processor time", [*found, *post()])


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=("ours", "sdk", "off"), help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help="only what one thread takes")
    parser.add_argument("--kinds", default=",".join(SERIES))
    parser.add_argument("--series", default="", help="of each kind (default: those of the issue)")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--beside", default="", metavar="FOLDER", help="the sources of another version")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) // CORES_EACH), metavar="N")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    options = parser.parse_args()
    if options.job:
        job(options.job, options.kinds, int(options.series), options.seconds)
    kept = [alone()]
    if options.beside:
        print(f"\nThe same of {options.beside}:", flush=True)
        environ = _of_version(dict(os.environ), options.beside) | {"BENCH_RESULTS": ""}
        # Its parts may have other names: then the rows alone are measured.
        subprocess.run([sys.executable, __file__, "--alone"], env=environ, check=False)  # noqa: S603 - ours
    if options.alone:
        sys.exit(1 if options.check and not all(kept) else 0)
    series = [int(count) for count in filter(None, options.series.split(","))]
    kinds, ways = (list(filter(None, of.split(","))) for of in (options.kinds, options.ways))
    wanted = rows(kinds, series, ways, beside=bool(options.beside))
    print("\n| series | way out | side | main, ms/s | others, ms/s | switches/s | lock held, ms | loop, ms |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    found: dict[Row, dict[str, Any]] = {}
    with ThreadPoolExecutor(options.at_once) as pool:
        for row, used in zip(
            wanted, pool.map(lambda row: measured(row, options.seconds, options.beside), wanted), strict=True
        ):
            found[row] = used
            if row.side != "off":
                main = used["main"] - found[Row(row.kind, row.series, "otlp", "off")]["main"]
                print(
                    f"| {row.series:,} {row.kind} | {row.way} | {row.side} | {main * 1e3:.2f} | "
                    f"{used['others'] * 1e3:.2f} | {used['switches']:.0f} | {used['held'] * 1e3:.2f} | "
                    f"{used['loop'] * 1e3:.1f} |",
                    flush=True,
                )
    keep("rows", [{**row._asdict(), **used} for row, used in found.items()])
    kept += judged(found)
    sys.exit(1 if options.check and not all(kept) else 0)


if __name__ == "__main__":
    main()
