"""Short jobs that together send a hub everything it knows: each is recorded once, see ``oracle.py``."""

from __future__ import annotations

from typing import NamedTuple


class Job(NamedTuple):
    """A job of one or two processes, and how its recording is played.

    Attributes:
        program: run as ``python program.py``, with the variables of ``tachograph run``.
        ranks: how many processes there are.
        owns: the hub has this run as its own, as that of ``tachograph run`` has; else it stands alone.
        restarts: the hub is killed after half of the requests, and another one begins on its store.
        settings: further variables.
    """

    program: str
    ranks: int = 1
    owns: bool = False
    restarts: bool = False
    settings: tuple[tuple[str, str], ...] = ()


METRICS = """
import time
from tachograph import declare, prof, put_metric
declare("samples", group="train", kind="counter", unit="{sample}", description="Samples trained on.")
declare("correct", group="train", kind="histogram", boundaries=range(0, 33, 4))
for step in range(60):
    put_metric("loss", 1 / (step + 1), "train")
    put_metric("samples", 32, "train")
    put_metric("correct", step % 33, "train")
    put_metric("step.duration.ms", 1.5 + step % 7, "train")
    put_metric("epoch.success", 1)
    time.sleep(0.03)
"""

PROFILED = """
import time
from tachograph import prof

@prof
def load(number):
    time.sleep(0.002)
    if number % 10 == 3:
        raise ValueError(f"no item {number}")

@prof(group="train")
def step(number):
    try:
        load(number)
    except ValueError:
        pass

for number in range(80):
    step(number)
    time.sleep(0.01)
"""

WINDOWS = """
import time
from datetime import datetime, timedelta
from tachograph.monitor import Aggregation, Event, Stat, log_event
load = Stat("load", list(Aggregation), timedelta(seconds=0.5), unit="s")
few = Stat("few", [Aggregation.COUNT, Aggregation.MAX], timedelta(seconds=60), max_samples=5)
for number in range(300):
    load.add(0.001 * (number % 50))
    few.add(float(number))
    time.sleep(0.005)
log_event(Event("epoch.end", datetime.now(), {"epoch": 3, "accuracy": 0.97, "name": "b\u00e9ta", "last": True}))
"""

LOGGER = """
import time
from tachograph import MetricsLogger
with MetricsLogger(prefix="miner_", uid=7, role="miner", group="run-3") as logger:
    for step in [*range(40), *range(30, 50)]:
        tags = {"step": step, "phase": "warm-up" if step < 10 else "main"}
        logger.log("training_step", tags, {"loss": 1 / (step + 1), "losses": [0.7, 0.8], "peers": [1, 2], "name": "a"})
        logger.log("without_step", {"phase": "none"}, {"gradient": step * 0.5})
        time.sleep(0.02)
"""

CURVES = """
import math, time
from tachograph import Metric, MetricGroup, MetricScale, progress, task, workflow
training = MetricGroup("training", units="epoch", lower=0, upper=3)
loss = Metric("loss", group=training, scale=MetricScale("loss", units="nats", lower=0))
accuracy = Metric("accuracy", group=training, scale=MetricScale("share", units="%", lower=0, upper=100))
raw = Metric("raw", throttle=None)

@task(name="train one model")
def train(rate):
    inner = Metric("inner", throttle=None)
    for epoch in progress(range(3), key="epochs", group="loops"):
        for part in progress(range(10), "parts"):
            at = epoch + part / 10
            loss.record(math.nan if part == 5 else rate * math.exp(-at), at=at)
            accuracy.record(100 - 100 * math.exp(-at), at=at)
            raw.record(at * 0.5, at=at)
            inner.record(rate)
            time.sleep(0.01)

@workflow
def sweep():
    for rate in (0.1, 0.01):
        train(rate)

sweep()
for at in range(1500):
    raw.record(math.sin(at / 50), at=at)
"""

LOGGED = """
import math, time
import tachograph
tachograph.config({"lr": 1e-3, "model": {"layers": 12, "sizes": (1, 2)}, "api_key": "secret", "none": None})
for step in [*range(120), *range(100, 150)]:
    found = {"train/loss": 1 / (step + 1), "train/lr": 1e-3, "tokens": 512, "eval": {"top": {"one": step}}}
    tachograph.log(found, step)
    if step % 20 == 0:
        tachograph.log({"eval/loss": math.nan if step == 40 else 0.5, "eval/most": math.inf, "eval/least": -math.inf})
    time.sleep(0.005)
tachograph.summary({"best.accuracy": 0.97, "worst": math.nan})
"""

STRANGE_VALUES = """
import math, time
import tachograph
from tachograph import Metric, put_metric
never = Metric("never", throttle=None)
for step, value in enumerate([math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7e308, 2**63, -1, 1e-9] * 4):
    put_metric("value", value, "strange")
    put_metric("wait.duration.s", value, "strange")
    put_metric("name with \\"quotes\\" \\n and \u00fc", step, "a group\\\\of \u4e2d")
    if step % 2:
        never.record(value, at=step)
    time.sleep(0.02)
"""

TWO_RANKS = """
import os, time
from tachograph import log, prof, put_metric
rank = int(os.environ["RANK"])

@prof
def step():
    time.sleep(0.02 if rank else 0.005)

for number in range(60):
    step()
    put_metric("loss", 1 / (number + 1 + rank), "train")
    log({"reward": number * (rank + 1)}, step=number)
    time.sleep(0.01)
"""

FAILS = """
import os, time
from tachograph import log
for step in range(20):
    log({"loss": 1 / (step + 1)}, step)
    time.sleep(0.03)
if os.environ["RANK"] == "1":
    raise RuntimeError("the second rank has failed\\nwith two lines")
time.sleep(1)
"""

KILLED = """
import os, signal, time
from tachograph import log, put_metric
for step in range(40):
    log({"loss": 1 / (step + 1)}, step)
    put_metric("steps", 1)
    time.sleep(0.03)
if os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""

INSTRUMENTS = """
import os, time
from opentelemetry.metrics import Observation
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
exporter = OTLPMetricExporter(endpoint=os.environ["TACHOGRAPH__HUB"] + "/v1/metrics")
about = {"service.name": "trainer", "service.instance.id": "the-one", "dl.run.id": os.environ["TACHOGRAPH_RUN"]}
views = [View(instrument_name="waits", aggregation=ExponentialBucketHistogramAggregation())]
provider = MeterProvider([PeriodicExportingMetricReader(exporter, 250)], Resource(about), views=views)
meter = provider.get_meter("program", "1.2.3")
counter, updown = meter.create_counter("requests", "1", "Requests."), meter.create_up_down_counter("open")
histogram, waits = meter.create_histogram("latency", "ms"), meter.create_histogram("waits", "s")
meter.create_observable_gauge("temperature", [lambda _: [Observation(21.5)]])
for step in range(50):
    counter.add(1, {"path": "/a" if step % 3 else "/b"})
    updown.add(1 if step % 2 else -2)
    histogram.record(step * 1.5, {"path": "/a"})
    waits.record(0.001 * step)
    time.sleep(0.03)
provider.shutdown()
"""

MANY_SERIES = """
import time
from tachograph import put_metric
for step in range(12):
    for number in range(200):
        put_metric(f"layer{number}.norm", number + step / 10, "layers")
    time.sleep(0.2)
"""

ANNOTATED = """
import logging, time
import tachograph
with tachograph.start(tags=["baseline", "sweep"], notes="the first try\\nwith a second line"):
    logging.getLogger("train").warning("nobody hears this")
    for step in range(20):
        tachograph.log({"loss": 1 / (step + 1)}, step)
        time.sleep(0.03)
"""

HANGS = """
import os, time
from datetime import timedelta
import torch
import torch.distributed as dist
from tachograph import put_metric
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
for step in range(5):
    dist.all_reduce(torch.ones(4))
    put_metric("loss", 1 / (step + 1), "train")
if os.environ["RANK"] == "1":
    time.sleep(12)
dist.all_reduce(torch.ones(4))
time.sleep(2)
"""

MISMATCHED = """
import os, time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=12))
for step in range(5):
    dist.all_reduce(torch.ones(4))
if os.environ["RANK"] == "1":
    dist.broadcast(torch.ones(4), 1)
    dist.barrier()
else:
    dist.all_reduce(torch.ones(4))
"""

STEPS = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])

class Samples(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.004 if rank else 0.001)
        return torch.randn(16)

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Samples(), batch_size=4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), f"checkpoint-{rank}.pt")
dist.destroy_process_group()
"""

LONG = """
import time
from tachograph import log, put_metric
for step in range(8_000):
    log({"train/loss": 1 / (step + 1), "train/noise": (step * 7919) % 1000 / 1000}, step)
    put_metric("gauge", step % 100, "train")
    if step % 100 == 0:
        time.sleep(0.012)
"""

RESTARTED = """
import os, subprocess, sys, time
from tachograph import log, put_metric
again = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "1"
for step in range(40 if again else 0, 80 if again else 50):
    log({"loss": 1 / (step + 1)}, step)
    put_metric("steps", 1)
    time.sleep(0.02)
if not again:
    environ = {key: value for key, value in os.environ.items() if key != "TACHOGRAPH__OWNER"}  # no helper of this one
    subprocess.run([sys.executable, __file__], env={**environ, "TORCHELASTIC_RESTART_COUNT": "1"})
    sys.exit(3)
"""

FOREIGN = """
import json, os, time, urllib.error, urllib.request
base, run = os.environ["TACHOGRAPH__HUB"], os.environ["TACHOGRAPH_RUN"]

def post(path, body, kind="application/json", **headers):
    request = urllib.request.Request(base + path, body, {"Content-Type": kind, **headers})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        print(path, error.code)

def text(key, value):
    return {"key": key, "value": {"stringValue": value}}

def metrics(*found, resource=(text("dl.run.id", run), text("service.name", "other"))):
    scope = {"scope": {"name": "other", "version": "2"}, "metrics": list(found)}
    about = {"attributes": list(resource)}
    return json.dumps({"resourceMetrics": [{"resource": about, "scopeMetrics": [scope]}]}).encode()

now = time.time_ns()
at = {"timeUnixNano": str(now), "startTimeUnixNano": str(now - 10**9)}
points = [{**at, "asDouble": 1.5}, {**at, "asInt": "2"}]
post("/v1/metrics", metrics({"name": "plain", "gauge": {"dataPoints": points}}))
post("/v1/metrics", metrics({"name": "nameless", "gauge": {"dataPoints": [{**at, "asDouble": 1}]}}, resource=()))
points = [{"timeUnixNano": str(now + 10**15), "asInt": "1"}]
post("/v1/metrics", metrics({"name": "future", "gauge": {"dataPoints": points}}))
post("/v1/metrics", metrics({"name": "strings", "sum": {"dataPoints": [{**at, "asDouble": "NaN"}], "isMonotonic": True,
     "aggregationTemporality": 2}}, {"name": "none"}, {"name": "", "gauge": {"dataPoints": [at]}}))
post("/v1/metrics", metrics({"name": "quantiles", "summary": {"dataPoints": [{**at, "count": "2", "sum": 3,
     "quantileValues": [{"quantile": 0.5, "value": 1}]}]}}))
for temporality in (0, 1, 2):
    post("/v1/metrics", metrics({"name": f"spread{temporality}", "exponentialHistogram": {
         "aggregationTemporality": temporality, "dataPoints": [{**at, "count": "3", "sum": 7, "scale": 2,
         "positive": {"offset": 1, "bucketCounts": ["1", "2"]}}]}}))
    post("/v1/metrics", metrics({"name": f"bad{temporality}", "histogram": {"aggregationTemporality": temporality,
         "dataPoints": [{**at, "count": "3", "sum": 7, "explicitBounds": [1, 2], "bucketCounts": ["1", "2"]}]}}))
record = {"timeUnixNano": str(now), "severityNumber": 17, "severityText": "ERROR", "body": {"stringValue": "it failed"}}
logs = {"resource": {"attributes": [text("dl.run.id", run)]}, "scopeLogs": [{"scope": {"name": "l"}, "logRecords": [
    record, {**record, "eventName": "a.b", "attributes": [text("k", "v")]}, {**record, "body": {"arrayValue": {}}}]}]}
post("/v1/logs", json.dumps({"resourceLogs": [logs, logs]}).encode())
post("/v1/traces", json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "one"}]}]}]}).encode())
post("/v1/metrics", b"{not json")
post("/v1/logs", b"[]")
post("/v1/metrics", b"\\xff\\xfe\\x00", "application/x-protobuf")
post("/v1/metrics", b"", "application/x-protobuf")
post("/v1/metrics", b"a=b", "application/x-www-form-urlencoded")
post("/v1/metrics", b"{}", **{"Origin": "http://example.com"})
post("/v1/metrics", b"{}", **{"Host": "example.com"})
post("/v1/nothing", b"{}")
"""

SILENT = """
import time
from tachograph import put_metric
put_metric("once", 1.0)
time.sleep(0.6)
"""

JOBS: dict[str, Job] = {
    "metrics": Job(METRICS, owns=True),
    "profiled": Job(PROFILED, owns=True),
    "profiled-by-name": Job(PROFILED.replace("@prof\n", ""), settings=(("TACHOGRAPH__PROF", "__main__:load"),)),
    "windows": Job(WINDOWS),
    "logger": Job(LOGGER, restarts=True),
    "curves": Job(CURVES, owns=True),
    "curves-everywhere": Job(METRICS, settings=(("TACHOGRAPH_CURVES", "all"),)),
    "logged": Job(LOGGED, owns=True, restarts=True),
    "strange-values": Job(STRANGE_VALUES),
    "two-ranks": Job(TWO_RANKS, ranks=2, owns=True),
    "a-rank-fails": Job(FAILS, ranks=2, owns=True),
    "killed": Job(KILLED, ranks=2, owns=True),
    "instruments": Job(INSTRUMENTS),
    "instruments-delta": Job(
        INSTRUMENTS, settings=(("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),), restarts=True
    ),
    "many-series": Job(MANY_SERIES, restarts=True),
    "annotated": Job(ANNOTATED),
    "hangs": Job(HANGS, ranks=2, owns=True),
    "mismatched": Job(MISMATCHED, ranks=2, owns=True),
    "steps": Job(STEPS, ranks=2, owns=True, restarts=True),
    "long": Job(LONG, owns=True),
    "restarted": Job(RESTARTED),
    "foreign": Job(FOREIGN),
    "silent": Job(SILENT, settings=(("TACHOGRAPH_SYSTEM_METRICS", "true"),)),
}
