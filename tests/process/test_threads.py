"""The threads of a process that is recorded: which there are, by name, and that there are no more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from programs import run
from receivers import receiving

TOLD = """
import json, sys, threading, time
from collections import Counter
from datetime import datetime

def told(seconds=1.5):
    seen = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen |= Counter(thread.name for thread in threading.enumerate() if thread.name != "MainThread")
        time.sleep(0.01)
    sys.stdout.write(json.dumps(sorted(seen.elements())) + "\\n")  # at once: others write there, too
"""
RARELY = "60000"  # ms: collections that may block have a thread beside the timer, which stays
THREE = ["tachograph /metrics", "tachograph otlp", "tachograph timer"]


def test_a_page_otlp_and_events_take_three_threads(tmp_path: Path) -> None:
    """The timer, /metrics and the receiver: SIGTERM, the ticks and all signals of one receiver need no more."""
    program = """
import tachograph
from tachograph.monitor import Event, Stat, SUM, log_event
tachograph.start(metrics=["prometheus", "otlp"], logs="otlp", traces="otlp", endpoint=sys.argv[1], prometheus_port=0)
stat = Stat("s", [SUM], 0.1)
tachograph.put_metric("loss", 0.5)
stat.add(1)
log_event(Event("e", datetime.now(), {}))
told()
"""
    with receiving() as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        done = run(tmp_path, TOLD + program, endpoint, OTEL_METRIC_EXPORT_INTERVAL=RARELY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == THREE
    assert {path for path, _, _ in server.requests} == {"/v1/metrics", "/v1/logs"}


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: context switches are read from /proc")
def test_an_idle_process_wakes_about_once_a_second(tmp_path: Path) -> None:
    """Where nothing is recorded any more the timer sleeps from one export to the next, and no thread is started.

    A switch or two more come where it waits for the interpreter.
    """
    program = """
import tachograph
tachograph.start(metrics="otlp", logs="none", traces="none", endpoint=sys.argv[1], interval=1.0)
for number in range(50):
    tachograph.put_metric(f"loss.{number}", 0.5)
time.sleep(3)
(timer,) = [thread for thread in threading.enumerate() if thread.name == "tachograph timer"]
def woken():
    with open(f"/proc/self/task/{timer.native_id}/status") as status:
        return int(dict(line.split(":") for line in status)["voluntary_ctxt_switches"])
threads, before = set(threading.enumerate()), woken()
time.sleep(4)
sys.stdout.write(json.dumps([(woken() - before) / 4, threads == set(threading.enumerate())]) + "\\n")
"""
    with receiving() as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        done = run(tmp_path, TOLD + program, endpoint, TACHOGRAPH_SYSTEM_METRICS="false")
    assert done.returncode == 0, done.stderr
    switches, same = json.loads(done.stdout)
    assert switches < 4
    assert same


def test_everything_on_takes_six_threads(tmp_path: Path) -> None:
    """Beside those: hardware that may block, the writer of all files, and one for handlers of what the timer closes."""
    pytest.importorskip("torch.monitor")
    program = """
import tachograph, torch.monitor
from tachograph.instrumentation import TorchMonitorInstrumentor
from tachograph.monitor import SUM, Stat, register_event_handler
tachograph.start(
    metrics=["prometheus", "otlp", "jsonl", "console"], logs=["otlp", "jsonl", "console", "tensorboard"],
    endpoint=sys.argv[1], jsonl="out.jsonl", prometheus_port=0,
)
handled = []
register_event_handler(lambda event: handled.append(threading.current_thread().name))
TorchMonitorInstrumentor().instrument()
logger = tachograph.MetricsLogger()
stat = Stat("s", [SUM], 0.1)
stat.add(1)
torch.monitor.log_event(torch.monitor.Event("e", datetime.now(), {}))
logger.log("train", {}, {"loss": 0.5}, with_system_metrics=True, with_gpu_metrics=True)
tachograph.put_metric("loss", 0.5)
told()
sys.stdout.write("handlers " + json.dumps(sorted(set(handled))) + "\\n")
"""
    with receiving() as server:
        done = run(
            tmp_path,
            TOLD + program,
            f"http://127.0.0.1:{server.server_port}",
            OTEL_METRIC_EXPORT_INTERVAL=RARELY,
            TACHOGRAPH_SYSTEM_METRICS="true",
        )
    assert done.returncode == 0, done.stderr
    (seen,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert seen == sorted([*THREE, "tachograph files", "tachograph handlers", "tachograph hardware"])
    assert 'handlers ["tachograph handlers"]' in done.stdout.splitlines()
    assert " loss 0.5" in done.stdout
    assert (tmp_path / "out.jsonl").stat().st_size
    assert list((tmp_path / "store" / "tensorboard").rglob("events.out.tfevents.*"))


def test_a_file_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    """A pipe that nobody reads blocks the writer: others are written by a further thread, and no more are started.

    What waits for the pipe is counted at the end, which is bounded; the log says it while it hangs.
    """
    program = """
import os, tachograph
os.mkfifo("pipe")
tachograph.start(metrics="none", logs=["jsonl", "console", "tensorboard"], jsonl="pipe")
loss = tachograph.Metric("loss", group="g", throttle=None)
for number in range(30):
    loss.record(number)
    time.sleep(0.1)
told(0.1)
began = time.monotonic()
tachograph.shutdown()
assert time.monotonic() - began < 5, time.monotonic() - began
os.close(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK))  # now it opens, and fails
until = time.monotonic() + 10
while threading.active_count() > 1 and time.monotonic() < until:
    time.sleep(0.01)
told(0.1)
"""
    done = run(tmp_path, TOLD + program, OTEL_BLRP_SCHEDULE_DELAY="200")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    seen, after = [json.loads(line) for line in lines if line.startswith("[")]
    assert seen == ["tachograph files", "tachograph files", "tachograph timer"]
    assert after == []
    assert sum("event tachograph.metric" in line for line in lines) == 30
    (board,) = (tmp_path / "store" / "tensorboard").rglob("events.out.tfevents.*")
    assert board.read_bytes().count(b"g/loss") == 30
    assert "jsonl: no data accepted for" in done.stderr
    assert "jsonl: data was lost (shutdown" in done.stderr
    assert "console: data was lost" not in done.stderr


def test_a_further_receiver_takes_one_more(tmp_path: Path) -> None:
    """Each network destination has a thread of its own, so that a dead one holds up no other."""
    program = """
import tachograph
tachograph.start(metrics="otlp", logs="otlp")
told()
"""
    with receiving() as server, receiving() as other:
        done = run(
            tmp_path,
            TOLD + program,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
            OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=f"http://127.0.0.1:{other.server_port}/v1/logs",
            OTEL_METRIC_EXPORT_INTERVAL=RARELY,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["tachograph otlp", "tachograph otlp", "tachograph timer"]


def test_after_the_end_no_thread_is_left(tmp_path: Path) -> None:
    """``shutdown()`` ends them all; a later ``start()`` has them again."""
    program = """
import tachograph
def start():
    return tachograph.start(metrics=["prometheus", "jsonl"], jsonl="out.jsonl", prometheus_port=0)
for _ in range(2):
    with start():
        told(0.2)
    until = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.01)
    told(0.1)
"""
    done = run(tmp_path, TOLD + program)
    assert done.returncode == 0, done.stderr
    running = ["tachograph /metrics", "tachograph files", "tachograph timer"]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [running, [], running, []]


@pytest.mark.usefixtures("untraced")  # coverage's tracer may hold its lock in the moment of a fork
def test_a_forked_child_has_no_thread_of_ours(tmp_path: Path) -> None:
    """Files, OTLP, InfluxDB and a logger are delivered to by the parent: its child begins with one thread."""
    program = """
import os, tachograph
tachograph.start(
    metrics=["prometheus", "otlp", "jsonl", "console"], logs=["otlp", "jsonl", "influxdb"],
    endpoint=sys.argv[1], jsonl="out.jsonl", prometheus_port=0,
)
logger = tachograph.MetricsLogger(host=sys.argv[1], database="tplr")
logger.log("train", {}, {"loss": 0.5})
tachograph.put_metric("loss", 0.5)
time.sleep(0.5)
sys.stdout.flush()
if os.fork() == 0:
    told(0.5)
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
    with receiving() as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        done = run(tmp_path, TOLD + program, endpoint, INFLUXDB_HOST=endpoint, INFLUXDB_DATABASE="tplr")
    assert done.returncode == 0, done.stderr
    assert "[]\n" in done.stdout
