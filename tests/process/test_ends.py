"""However a process ends, what it recorded leaves, once, and nothing waits long for a dead collector."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from programs import count, environment, events, exported, number, run, spans, write
from receivers import receiving

START = """
import os, signal, sys, time
import tachograph
tachograph.start(metrics="jsonl", traces="jsonl", jsonl="out.jsonl")
@tachograph.prof
def work(number):
    tachograph.put_metric("x.success", 1)
    tachograph.put_metric("step.duration.ms", number)
for number in range(1500):
    work(number)
"""


def everything(folder: Path) -> tuple[float, int, int, int]:
    """Return what arrived: the counter, both histograms' counts, and the number of spans."""
    found = exported(folder / "out.jsonl")
    scope = "torchelastic"
    return (
        number(found[scope, "x.success"]),
        count(found[scope, "step.duration"]),
        count(found[scope, "function.duration"]),
        len(spans(folder / "out.jsonl")),
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("raise ValueError('training failed')", 1),
        ("sys.exit(3)", 3),
        (
            "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT)",
            -signal.SIGINT,
        ),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
        ("import threading; threading.Thread(target=time.sleep, args=(0.2,)).start()", 0),
    ],
)
def test_everything_leaves_once_however_the_process_ends(tmp_path: Path, end: str, code: int) -> None:
    """A normal end, an exception, exit(), Ctrl-C and SIGTERM keep their status, and lose and double nothing."""
    done = run(tmp_path, START + end)
    assert done.returncode == code, done.stderr
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)


def test_sigterm_is_noticed_while_the_main_thread_runs_no_python(tmp_path: Path) -> None:
    """A rank that hangs in a C call, as in a collective, flushes and dies of its SIGTERM at once."""
    hang = """
import ctypes
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
print("ready", flush=True)
libc.pthread_mutex_lock(mutex); libc.pthread_mutex_lock(mutex)
"""
    program = START + hang
    with subprocess.Popen(
        [sys.executable, str(write(tmp_path, program))],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM
        assert time.monotonic() - began < 5
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)


def test_a_program_that_ends_while_sigterm_is_handled_has_died_of_it(tmp_path: Path) -> None:
    """A system call that the signal interrupts may let the program run to its end: its status is still the signal's."""
    done = run(tmp_path, START + "import ctypes\nos.kill(os.getpid(), signal.SIGTERM)\nctypes.CDLL(None).sleep(60)")
    assert done.returncode == -signal.SIGTERM
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_programs_own_still_runs(tmp_path: Path, when: str) -> None:
    """Installed before or after start(), it runs, decides about the end, and what it records leaves, too."""
    handler = """
import signal, sys
def handler(signum, frame):
    import tachograph
    tachograph.put_metric("checkpoint.success", 1)
    print("checkpoint written", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, handler)
"""
    kill = "import os, time\nos.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    done = run(tmp_path, handler + START + kill if when == "before" else START + handler + kill)
    assert (done.returncode, done.stdout) == (7, "checkpoint written\n"), done.stderr
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "checkpoint.success"]) == 1


def test_an_ignored_sigterm_stays_ignored(tmp_path: Path) -> None:
    """A program that ignores SIGTERM goes on."""
    program = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + START
    done = run(tmp_path, program + "os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.5); print('still here')")
    assert (done.returncode, done.stdout) == (0, "still here\n")
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)


def test_sigterm_after_asyncio_has_taken_the_wakeup_descriptor(tmp_path: Path) -> None:
    """The event loop takes the descriptor and leaves none behind: the flush happens all the same."""
    done = run(
        tmp_path,
        START
        + """
import asyncio
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: None)
    await asyncio.sleep(0.01)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
asyncio.run(main())
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
    )
    assert done.returncode == -signal.SIGTERM
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)


def test_a_signal_to_a_forked_child_is_the_childs_alone(tmp_path: Path) -> None:
    """A worker that is terminated neither flushes nor ends its parent; the parent's counts are its own."""
    done = run(
        tmp_path,
        START
        + """
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        for number in range(100):
            work(number)
        time.sleep(60)
    children.append(child)
time.sleep(0.2)
for child in children:
    os.kill(child, signal.SIGTERM)
print([os.waitpid(child, 0)[1] for child in children])
""",
    )
    assert (done.returncode, done.stdout) == (0, "[15, 15, 15]\n"), done.stderr
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)


def forked(tmp_path: Path, ending: str) -> None:
    """Run a program whose twenty forked children record and end so, and look at what has left."""
    done = run(
        tmp_path,
        START
        + f"""
from opentelemetry import metrics
counter = metrics.get_meter("lib").create_counter("reqs")
counter.add(1)
for _ in range(20):
    child = os.fork()
    if not child:
        work(1)
        counter.add(1)
        tachograph.shutdown()
        {ending}
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
""",
    )
    assert done.returncode == 0, done.stderr
    assert everything(tmp_path) == (1500, 1500, 1500, 1500)
    assert number(exported(tmp_path / "out.jsonl")["lib", "reqs"]) == 1


def test_a_forked_child_neither_hangs_nor_counts_twice(tmp_path: Path) -> None:
    """Whatever a child records that exits, its parent's values leave once, and only they."""
    forked(tmp_path, "sys.exit(0)")


@pytest.mark.usefixtures("untraced")  # forty forks, of which those above show the same lines
@pytest.mark.parametrize("ending", ["os._exit(0)", pytest.param("pass", marks=pytest.mark.long)])
def test_a_forked_child_neither_hangs_nor_counts_twice_however_it_ends(tmp_path: Path, ending: str) -> None:
    """The same of a child that ends without its exit handlers, and of one that runs off its end."""
    forked(tmp_path, ending)


@pytest.mark.usefixtures("untraced")  # a fork
def test_a_child_forked_after_a_later_import_of_thread_pools_does_not_hang(tmp_path: Path) -> None:
    """A program that imports torch, or anything else with a thread pool, after ``start()`` may fork."""
    done = run(
        tmp_path,
        """
import os, signal, sys, time
import tachograph
tachograph.start(metrics="jsonl", jsonl="out.jsonl")
assert "torch" not in sys.modules
from concurrent.futures import ThreadPoolExecutor
child = os.fork()
if not child:
    os._exit(0)
deadline = time.monotonic() + 10
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(child, signal.SIGKILL)
        sys.exit("the child hangs")
    time.sleep(0.01)
""",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("untraced")  # forks
def test_forks_during_collections_never_hang(tmp_path: Path) -> None:
    """A program that forks all the time while the pipeline collects all the time ends."""
    done = run(
        tmp_path,
        """
import os
import tachograph
from opentelemetry import metrics
tachograph.start(metrics="jsonl", jsonl="out.jsonl", interval=0.001)
counter = metrics.get_meter("lib").create_counter("reqs")
for number in range(200):
    tachograph.put_metric(f"g{number % 50}", number)
    counter.add(1, {"k": number % 50})
    child = os.fork()
    if not child:
        tachograph.put_metric("g", number)
        counter.add(1)
        metrics.get_meter("other").create_counter(f"c{number}").add(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""",
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert sum(int(p["asInt"]) for p in exported(tmp_path / "out.jsonl")["lib", "reqs"]["sum"]["dataPoints"]) == 200


def test_a_forked_child_holds_no_port_of_its_parent(tmp_path: Path) -> None:
    """The page's port is free again once the parent has ended, though a child lives on."""
    done = run(
        tmp_path,
        """
import os, time
import tachograph
pipeline = tachograph.start(prometheus_port=0)
if not os.fork():
    os.close(1); os.close(2)
    time.sleep(5)
    os._exit(0)
print(pipeline.metrics_url.split(":")[2].split("/")[0])
""",
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(done.stdout)))


def test_helpers_record_where_they_are_asked_to(tmp_path: Path) -> None:
    """With ``TACHOGRAPH_HELPERS=true`` a forked child starts anew and delivers what is its own."""
    done = run(
        tmp_path,
        """
import os, sys
import tachograph
tachograph.start(metrics="jsonl", store="store")
tachograph.put_metric("x.success", 1)
child = os.fork()
if not child:
    tachograph.put_metric("x.success", 5)
    tachograph.shutdown()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
        TACHOGRAPH_HELPERS="true",
    )
    assert done.returncode == 0, done.stderr
    values = [
        number(exported(path)["torchelastic", "x.success"])
        for path in (tmp_path / "store" / "exports").rglob("*.jsonl")
    ]
    assert sorted(values) == [1, 5]


def test_a_rank_marks_its_descendants_as_helpers(tmp_path: Path) -> None:
    """A subprocess that inherits RANK and calls start() delivers nothing; the rank itself does."""
    done = run(
        tmp_path,
        """
import os, subprocess, sys
import tachograph
tachograph.start(metrics="jsonl", jsonl="rank.jsonl" if len(sys.argv) < 2 else "helper.jsonl")
tachograph.put_metric("x.success", 1)
if len(sys.argv) < 2:
    subprocess.run([sys.executable, __file__, "helper"], check=True)
    print(os.environ["TACHOGRAPH__OWNER"] == f"3:1:{os.getpid()}")
""",
        RANK="3",
        LOCAL_RANK="1",
        TORCHELASTIC_RESTART_COUNT="1",
        TORCHELASTIC_RUN_ID="job",
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert number(exported(tmp_path / "rank.jsonl")["torchelastic", "x.success"]) == 1
    assert not (tmp_path / "helper.jsonl").exists()


def test_multiprocessing_workers_that_start_deliver(tmp_path: Path) -> None:
    """A process of multiprocessing that calls start() itself delivers at its end, forked or spawned."""
    done = run(
        tmp_path,
        """
import multiprocessing, sys
import tachograph
def worker(path):
    tachograph.start(metrics="jsonl", jsonl=path)
    tachograph.put_metric("x.success", 2)
if __name__ == "__main__":
    tachograph.start(metrics="none")
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=worker, args=(f"{method}.jsonl",))
        process.start(); process.join()
        assert process.exitcode == 0
""",
    )
    assert done.returncode == 0, done.stderr
    for method in ("fork", "spawn"):
        assert number(exported(tmp_path / f"{method}.jsonl")["torchelastic", "x.success"]) == 2


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError"])
def test_helpers_that_multiprocessing_forks_deliver_at_their_end(tmp_path: Path, end: str) -> None:
    """With ``TACHOGRAPH_HELPERS=true`` the last values of such a child arrive, though it calls no exit handlers."""
    done = run(
        tmp_path,
        f"""
import multiprocessing, sys
import tachograph
def worker():
    tachograph.put_metric("x.success", 5)
    {end}
tachograph.start(metrics="jsonl", store="store")
tachograph.put_metric("x.success", 1)
process = multiprocessing.get_context("fork").Process(target=worker)
process.start(); process.join()
print(process.exitcode)
""",
        TACHOGRAPH_HELPERS="true",
    )
    assert done.stdout == {"": "0\n", "sys.exit(3)": "3\n", "raise ValueError": "1\n"}[end]
    values = [
        number(exported(path)["torchelastic", "x.success"])
        for path in (tmp_path / "store" / "exports").rglob("*.jsonl")
    ]
    assert sorted(values) == [1, 5]


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Return the port of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        for connection in held:
            connection.close()


@pytest.mark.usefixtures("untraced")  # 40,000 values that must be recorded in little time
def test_a_slow_collector_gets_everything(tmp_path: Path) -> None:
    """One that takes what comes, but needs seconds for it, is waited for: 40,000 points of the last moment arrive."""
    program = """
    import tachograph
    metric = tachograph.Metric("burst", throttle=None)
    tachograph.start(metrics="none", traces="none", logs="otlp")
    for step in range(40_000):
        metric.record(float(step), at=step)
    """
    with receiving() as server:
        server.delay = 0.04
        done = run(tmp_path, program, OTEL_EXPORTER_OTLP_ENDPOINT=server.url.removesuffix("/v1/metrics"))
    assert (done.returncode, done.stderr) == (0, "")
    found = [ExportLogsServiceRequest.FromString(body) for _, _, body in server.requests]
    told = [record for each in found for scope in each.resource_logs[0].scope_logs for record in scope.log_records]
    assert len([record for record in told if record.event_name == "tachograph.metric"]) == 40_000
    assert len(found) * server.delay > 1.5  # more than a dead one would get


@pytest.mark.timing
@pytest.mark.parametrize(
    "end",
    [
        "",
        pytest.param("tachograph.shutdown()", marks=pytest.mark.long),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "refusals",
    [
        pytest.param([(503, {}, b"")] * 6, id="503"),
        pytest.param([(429, {"Retry-After": "50"}, b"")], id="429 with Retry-After", marks=pytest.mark.long),
    ],
)
def test_a_collector_that_comes_back_at_the_end_gets_everything(
    tmp_path: Path, refusals: list[tuple[int, dict[str, str], bytes]], end: str
) -> None:
    """No back-off outlasts the end: the next attempt is now, and a collector that takes by then is waited for.

    Events of the last moment, and the counts of the last collection, arrive.
    """
    program = f"""
    import os, signal, time
    import tachograph
    metric = tachograph.Metric("burst", throttle=None)
    tachograph.start(metrics="otlp", traces="none", logs="otlp", interval=0.3)
    tachograph.put_metric("step.success", 1)
    time.sleep({0.5 if len(refusals) != 6 else 3})
    for step in range(20_000):
        metric.record(float(step), at=step)
    tachograph.put_metric("step.success", 1)
    {end}
    """
    with receiving(*refusals) as server:
        server.delay = 0.04
        done = run(tmp_path, program, OTEL_EXPORTER_OTLP_ENDPOINT=server.url.removesuffix("/v1/metrics"))
    assert done.returncode == (-signal.SIGTERM if "kill" in end else 0), done.stderr
    assert "cannot deliver, trying again" in done.stderr
    assert "lost" not in done.stderr
    taken = server.requests[len(refusals) :]
    logs = [ExportLogsServiceRequest.FromString(body) for path, _, body in taken if path.endswith("logs")]
    records = [record for each in logs for scope in each.resource_logs[0].scope_logs for record in scope.log_records]
    assert len([record for record in records if record.event_name == "tachograph.metric"]) == 20_000
    metrics = [ExportMetricsServiceRequest.FromString(body) for path, _, body in taken if path.endswith("metrics")]
    points = [
        metric.sum.data_points[0].as_int
        for scope in metrics[-1].resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == "step.success"
    ]
    assert points == [2]


@pytest.mark.timing
@pytest.mark.parametrize("protocol", ["http/protobuf", pytest.param("grpc", marks=pytest.mark.long)])
@pytest.mark.parametrize("dead", [pytest.param("refusing", marks=pytest.mark.long), "silent"])
def test_a_dead_collector_adds_at_most_a_second_to_the_exit(
    tmp_path: Path, silent_server: int, protocol: str, dead: str
) -> None:
    """Refusing or never answering, over HTTP or gRPC: the end of the program takes at most one second more."""
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        port = silent_server if dead == "silent" else refusing.getsockname()[1]
        done = run(
            tmp_path,
            """
import atexit, sys, time
began = []
atexit.register(lambda: print(time.monotonic() - began[0]))
import tachograph
tachograph.start(endpoint=sys.argv[1], protocol=sys.argv[2], metrics="otlp", traces="otlp", interval=0.1)
@tachograph.prof
def work():
    tachograph.put_metric("loss", 0.5)
for _ in range(100):
    work()
time.sleep(0.5)
began.append(time.monotonic())
""",
            f"http://127.0.0.1:{port}",
            protocol,
        )
    assert done.returncode == 0, done.stderr
    # 1 s is the bound on waiting; the rest is for a slow machine's scheduling
    assert float(done.stdout) < 1.5


@pytest.mark.timing
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("with pipeline: pass", marks=pytest.mark.long),
        "tachograph.shutdown()",
        pytest.param("pipeline.shutdown(5)", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("dead", [pytest.param("refusing", marks=pytest.mark.long), "silent"])
def test_a_dead_collector_holds_up_no_end_for_more_than_a_second(
    tmp_path: Path, silent_server: int, dead: str, end: str
) -> None:
    """Leaving ``with start()``, and both kinds of ``shutdown()``, take what the end of the process takes, and say it.

    What is lost is counted, and the message names the time that was really waited.
    """
    program = f"""
import re, sys, time
import tachograph
from tachograph.recording import registry
pipeline = tachograph.start(endpoint=sys.argv[1], metrics="otlp", traces="otlp", logs="otlp")
for step in range(100):
    tachograph.put_metric(f"loss_{{step}}", 0.5)
began = time.monotonic()
{end}
print(time.monotonic() - began)
lost = registry.default.group("tachograph").own(tachograph.recording.registry.DROPPED)
print(sum(series.value() or 0 for attributes, series in lost.all_series() if not series.fold() or True))
"""
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        port = silent_server if dead == "silent" else refusing.getsockname()[1]
        done = run(tmp_path, program, f"http://127.0.0.1:{port}")
    assert done.returncode == 0, done.stderr
    took, lost = map(float, done.stdout.split())
    assert took < 1.5  # 1 s is the bound on waiting; the rest is for a slow machine's scheduling
    assert lost >= 100
    said = re.search(r"not delivered within (\d+\.\d) s at shutdown: (\d+) data points", done.stderr)
    assert said is not None, done.stderr
    assert abs(float(said[1]) - took) < 0.5
    assert 100 <= int(said[2]) <= lost


@pytest.mark.timing
@pytest.mark.parametrize("end", ["", pytest.param("tachograph.shutdown()", marks=pytest.mark.long)])
@pytest.mark.parametrize("beside", ["jsonl", pytest.param("otlp", marks=pytest.mark.long)])
def test_what_takes_everything_beside_a_dead_collector_prolongs_no_end(tmp_path: Path, beside: str, end: str) -> None:
    """A file, or a second collector, that takes each further collection does not make the end wait for a dead one."""
    program = f"""
    import atexit, sys, time
    began = []
    atexit.register(lambda: print(time.monotonic() - began[0]))
    import tachograph
    tachograph.start(metrics={beside!r}, logs="otlp", interval=0.1)
    metric = tachograph.Metric("loss", throttle=None)
    for step in range(100):
        metric.record(0.5, at=step)
        time.sleep(0.005)
    began.append(time.monotonic())
    {end}
    """
    with socket.socket() as refusing, receiving() as server:
        refusing.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{refusing.getsockname()[1]}/v1/logs"
        variables = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": dead, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": server.url}
        done = run(tmp_path, program, **variables)
    assert done.returncode == 0, done.stderr
    assert "lost (shutdown" in done.stderr
    assert float(done.stdout) < 2.5  # 10 s, where the end waits as long as anything is taken


@pytest.mark.parametrize("where", ["jsonl", "otlp"])
def test_exit_handlers_registered_before_the_start_are_heard(tmp_path: Path, where: str) -> None:
    """The last export comes after the program's own exit handlers, whenever they were registered after the import.

    Counts, events and exact points of them arrive, through a network as well.
    """
    program = """
    import atexit, sys
    import tachograph

    def late():
        for step in range(500):
            tachograph.put_metric("step.success", 1)
            curve.record(float(step), at=step)

    atexit.register(late)
    curve = tachograph.Metric("curve", throttle=None)
    tachograph.start(metrics=sys.argv[1], logs=sys.argv[1], traces="none", jsonl="out.jsonl")
    atexit.register(late)
    """
    with receiving() as server:
        url = server.url.removesuffix("/v1/metrics")
        done = run(tmp_path, program, where, OTEL_EXPORTER_OTLP_ENDPOINT=url)
    assert (done.returncode, done.stderr) == (0, "")
    if where == "jsonl":
        assert number(exported(tmp_path / "out.jsonl")["torchelastic", "step.success"]) == 1000
        return
    logs = [ExportLogsServiceRequest.FromString(body) for path, _, body in server.requests if path.endswith("logs")]
    records = [record for each in logs for scope in each.resource_logs[0].scope_logs for record in scope.log_records]
    assert len([record for record in records if record.event_name == "tachograph.metric"]) == 1000


@pytest.mark.parametrize(
    ("metrics", "logs", "lost"),
    [
        ("jsonl", "jsonl", "502 values and 1 event"),
        ("jsonl", "none", "502 values"),
        ("none", "jsonl", "1 event"),
        ("prometheus", "none", None),  # the page has gone with its last scrape, whatever is recorded
    ],
)
def test_exit_handlers_registered_before_the_import_are_counted(
    tmp_path: Path, metrics: str, logs: str, lost: str | None
) -> None:
    """What they record after the last export is one line on stderr, of what would have left: of a gauge the last value.

    A child that they fork says nothing of it, and a stderr that is closed or full costs the end nothing.
    """
    program = """
    import atexit, os, sys
    late = []
    atexit.register(lambda: late[0]())
    import tachograph

    def record():
        for step in range(500):
            tachograph.put_metric("step.success", 1)
        tachograph.put_metric("loss", 0.25)
        curve.record(0.25, at=1)
        if os.fork():
            os.wait()

    late.append(record)
    tachograph.start(metrics=sys.argv[1], logs=sys.argv[2], traces="none", jsonl="out.jsonl", prometheus_port=0)
    tachograph.put_metric("loss", 0.5)
    curve = tachograph.Metric("curve", throttle=None)
    curve.record(0.5, at=0)
    """
    done = run(tmp_path, program, metrics, logs)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if "after the final export" in line]  # the SDK speaks of the fork
    assert len(said) == (0 if lost is None else 1), done.stderr
    assert lost is None or said[0].startswith(f"tachograph: lost {lost} recorded after the final export, ")
    for stderr in ("&-", "/dev/full"):
        command = f'exec "$0" "$@" 2>{stderr}'
        arguments = [sys.executable, str(write(tmp_path, program)), metrics, logs]
        ended = subprocess.run(
            ["sh", "-c", command, *arguments], cwd=tmp_path, env=environment(tmp_path), timeout=60, check=False
        )
        assert ended.returncode == 0


def test_exit_handlers_are_heard_beside_a_provider_of_the_program(tmp_path: Path) -> None:
    """What is recorded until its end arrives in the program's provider; in our destinations also what comes later."""
    program = """
    import atexit
    import tachograph
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

    atexit.register(lambda: tachograph.put_metric("late.success", 1))
    exporter = ConsoleMetricExporter(formatter=lambda data: data.to_json(indent=None) + "\\n")
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter, 60_000)]))
    tachograph.start(metrics="jsonl", logs="none", traces="none", jsonl="out.jsonl")
    tachograph.put_metric("early.success", 1)
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "early.success" in done.stdout
    found = exported(tmp_path / "out.jsonl")
    assert number(found["torchelastic", "early.success"]) == 1
    assert number(found["torchelastic", "late.success"]) == 1


@pytest.mark.usefixtures("untraced")  # coverage needs memory, too
@pytest.mark.parametrize("left", [0, 2**20, 2**22])
def test_a_program_without_memory_ends_as_it_would_have(tmp_path: Path, left: int) -> None:
    """Where there is no memory to encode in, protobuf's C code is not called: it would end the process."""
    program = f"""
    import resource, sys
    from pathlib import Path
    import tachograph
    from tachograph.monitor import Event, log_event
    from datetime import datetime, timezone

    tachograph.start(metrics="otlp", logs="otlp", traces="none", endpoint=sys.argv[1], interval=600)
    for number in range(20_000):
        tachograph.put_metric(f"x{{number % 500}}.success", 1)
        log_event(Event("e", datetime.now(timezone.utc), {{"number": number}}))
    spare = bytearray({left})
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, resource.RLIM_INFINITY))
    kept = []
    for step in (2**20, 2**16, 2**12, 2**9):
        try:
            while True:
                kept.append(bytearray(step))
        except MemoryError:
            pass
    del spare
    """
    with receiving() as receiver:
        done = run(tmp_path, program, f"http://127.0.0.1:{receiver.server_port}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Fatal Python error" not in done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("untraced")  # 65,000 events
def test_values_leave_though_a_tick_is_at_many_events_when_the_end_begins(tmp_path: Path) -> None:
    """The tick leaves the rest of the events to the end, which delivers the metrics first, and counts what is left."""
    program = """
    import time
    from datetime import datetime, timezone
    import tachograph
    from tachograph.monitor import Event, log_event

    event = Event("e", datetime.now(timezone.utc), {"i": 1.0, "j": 2, "k": "x"})
    with tachograph.start(metrics="jsonl", logs="jsonl", jsonl="out.jsonl", interval=60):
        for _ in range(65_000):
            log_event(event)
        time.sleep(1)  # a tick is at them
        tachograph.put_metric("x.success", 1)
    """
    done = run(tmp_path, program, timeout=120)
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "x.success"]) == 1
    said = re.search(r"journal: lost (\d+) events", done.stderr)
    assert len(events(tmp_path / "out.jsonl")) + int(said[1] if said else 0) == 65_000
