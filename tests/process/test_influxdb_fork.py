"""Forks of a process that writes to InfluxDB by an exporter of its own, outside of any pipeline."""

from __future__ import annotations

import gzip
from pathlib import Path

import programs
from influx_points import lines_in, spool_files
from receivers import receiving
from servers import free_port

_MADE = """
import os, sys, threading, time
from pathlib import Path
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from tachograph.logger.influx_target import InfluxTarget
from tachograph.exporters.influxdb import InfluxDBLogExporter
exporter = InfluxDBLogExporter(InfluxTarget(sys.argv[1], token="t0k3n"))
provider = LoggerProvider()
provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
logger = provider.get_logger("x")
queue = exporter._destination._queue

def emit(who):
    point = {"tachograph.measurement": who, "tachograph.tags": {}, "tachograph.fields": {"x": 1}}
    logger.emit(LogRecord(timestamp=time.time_ns(), event_name="tachograph.point", attributes=point))

def forked(child):
    pid = os.fork()
    if not pid:
        child()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
_UNMEASURED = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}  # its tracer's lock does not survive a fork


def test_a_child_delivers_only_its_own(tmp_path: Path) -> None:
    """What waits in memory at a fork leaves once, by the parent; the child's own leaves by the child."""
    program = f"""{_MADE}
for _ in range(20):
    emit("parent")

def child():
    assert queue.waiting == 0 and queue.flush(0)
    emit("child")
    assert exporter.force_flush(20_000)

forked(child)
assert exporter.force_flush(20_000)
exporter.shutdown()
"""
    with receiving() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        done = programs.run(tmp_path, program, url, **_UNMEASURED)
        assert done.returncode == 0, done.stderr
        lines = [line.split()[0] for _, _, body in server.requests for line in _plain(body)]
    assert sorted(lines) == [b"child"] + [b"parent"] * 20


def test_a_child_leaves_the_spool_to_its_parent(tmp_path: Path) -> None:
    """With a dead server parent and child keep files of their own, and the child has none of the parent's open."""
    program = f"""{_MADE}
for _ in range(20):
    emit("parent")
while not list(Path(os.environ["TACHOGRAPH_STORE"], "spool").rglob("*.spool")):
    time.sleep(0.05)

def child():
    held = [os.readlink(f"/proc/self/fd/{{each}}") for each in os.listdir("/proc/self/fd") if each != "3"]
    assert not any("spool" in path for path in held if os.path.exists(path)), held
    emit("child")
    exporter.shutdown()

forked(child)
emit("parent")
exporter.shutdown()
"""
    done = programs.run(tmp_path, program, f"http://127.0.0.1:{free_port()}", **_UNMEASURED)
    assert done.returncode == 0, done.stderr
    texts = ["\n".join(lines_in([file])) for file in spool_files(tmp_path / "store")]
    assert sorted((text.count("parent "), text.count("child ")) for text in texts) == [(0, 1), (21, 0)]


def test_a_lock_that_is_held_at_a_fork_stops_no_child(tmp_path: Path) -> None:
    """A child gets its own locks: it logs and ends although another thread had the parent's."""
    program = f"""{_MADE}
def hold():
    with queue._lock, queue._kept._lock:
        time.sleep(1.0)

threading.Thread(target=hold).start()
time.sleep(0.2)

def child():
    emit("child")
    exporter.shutdown()

forked(child)
"""
    done = programs.run(tmp_path, program, f"http://127.0.0.1:{free_port()}", timeout=20, **_UNMEASURED)
    assert done.returncode == 0, done.stderr


def test_a_fork_waits_for_the_client(tmp_path: Path) -> None:
    """A child that was forked while its parent loaded the client can load it, too."""
    (tmp_path / "influxdb_client.py").write_text(
        "import time\ntime.sleep(1.0)\n"
        "class InfluxDBClient:\n    def __init__(self, *_, **__):\n        raise RuntimeError('it has loaded')\n"
    )
    program = f"""{_MADE}
time.sleep(0.3)

def child():
    import logging
    emit("child")
    exporter.force_flush(500)
    exporter.shutdown()

forked(child)
"""
    url = f"http://127.0.0.1:{free_port()}"
    done = programs.run(tmp_path, program, url, PYTHONPATH=str(tmp_path), **_UNMEASURED)
    assert done.returncode == 0, done.stderr
    assert "it has loaded" in done.stderr
    assert "partially initialized" not in done.stderr


def test_a_child_that_cannot_load_the_client_leaves_its_points(tmp_path: Path) -> None:
    """Where loading it takes longer than a fork waits, the child says so, and leaves its points to the next process."""
    (tmp_path / "influxdb_client.py").write_text("import time\ntime.sleep(5.0)\n")
    program = f"""{_MADE}
from tachograph.exporters.influxdb import server
server._loading.patience = 0.1
time.sleep(0.3)

def child():
    emit("child")
    exporter.force_flush(500)
    exporter.shutdown()

began = time.monotonic()
forked(child)
assert time.monotonic() - began < 4.0
os._exit(0)
"""
    url = f"http://127.0.0.1:{free_port()}"
    done = programs.run(tmp_path, program, url, PYTHONPATH=str(tmp_path), **_UNMEASURED)
    assert done.returncode == 0, done.stderr
    assert "forked while its parent loaded the client" in done.stderr
    (file,) = spool_files(tmp_path / "store")
    assert [line.split()[0] for line in lines_in([file])] == ["child"]


def test_a_logger_that_outlives_its_pipeline_lets_children_go(tmp_path: Path) -> None:
    """After shutdown() a child inherits no file of the spool of a logger, either."""
    program = """
        import os, sys, time, tachograph
        with tachograph.start(metrics="none", traces="none", logs="none"):
            logger = tachograph.MetricsLogger(host=sys.argv[1], token="t0k3n")
            logger.log("m", {}, {"x": 1})
            time.sleep(4)
        pid = os.fork()
        if not pid:
            held = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
            os._exit(any("/spool/" in path for path in held))
        assert os.waitpid(pid, 0)[1] == 0
    """
    done = programs.run(tmp_path, program, f"http://127.0.0.1:{free_port()}", **_UNMEASURED)
    assert done.returncode == 0, done.stderr


def _plain(body: bytes) -> list[bytes]:
    return (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).splitlines()


def test_a_fork_during_the_first_connection_takes_nothing_from_the_child(tmp_path: Path) -> None:
    """A socket needs a codec for host names: it is there before a worker connects, so that no fork meets its import."""
    program = """
        import sys
        assert "encodings.idna" not in sys.modules
        import tachograph.exporters.influxdb, tachograph.exporters.otlp.http
        assert "encodings.idna" in sys.modules
    """
    done = programs.run(tmp_path, program, **_UNMEASURED)
    assert done.returncode == 0, done.stderr
