"""MetricsLogger where processes fork, end, or have nothing to deliver with."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import programs
from documented_logger import documented
from influx_points import lines_in, spool_files
from receivers import receiving
from tachograph.identity.extra import install_command


def points(folder: Path) -> list[dict[str, object]]:
    """Return the attributes of each point that a program left in ``out.jsonl``."""
    return [
        event["attributes"]
        for event in programs.events(folder / "out.jsonl")
        if event["eventName"] == "tachograph.point"
    ]


JSONL = {"OTEL_LOGS_EXPORTER": "jsonl", "OTEL_METRICS_EXPORTER": "jsonl", "OTEL_TRACES_EXPORTER": "none"}


def test_the_documents_program(tmp_path: Path) -> None:
    """The documents' examples run but for their import; a host that does not resolve costs nothing else."""
    program = documented("http://custom.influxdb.host:8086")
    ran = programs.run(tmp_path, f'import tachograph\ntachograph.start(jsonl="out.jsonl")\n{program}', **JSONL)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "your-token" not in ran.stderr
    assert 1 <= ran.stderr.count("custom.influxdb.host") <= 3
    found = points(tmp_path)
    mine, first, second, third = found
    assert [point["tachograph.measurement"] for point in found] == ["minertraining_step"] + [
        "validatortraining_step"
    ] * 3
    assert mine["tachograph.tags"].items() >= {"step": "42", "uid": "123", "role": "miner"}.items()  # type: ignore[attr-defined]
    assert first["tachograph.tags"].items() >= {"step": "42", "uid": "456", "role": "validator"}.items()  # type: ignore[attr-defined]
    assert mine["tachograph.fields"] == first["tachograph.fields"] == {"loss": 0.75}
    fields = second["tachograph.fields"]
    assert isinstance(fields, dict)
    assert fields["accuracy"] == 0.92
    assert {"sys_cpu_usage", "sys_mem_used", "sys_mem_total"} <= set(fields)
    assert [point["x"] for point in found] == [42, 42, 100, 43]
    assert third["tachograph.fields"] == {
        "peer_ids": "[1, 2, 3, 4]",
        "losses_mean": 0.25,
        "losses_min": 0.1,
        "losses_max": 0.4,
        "losses_median": 0.25,
    }


# The client is loaded first: on a busy machine that alone may take the second that the end of a process has.
THREE = """
import sys
import influxdb_client
from tachograph.logger import MetricsLogger
logger = MetricsLogger(host="127.0.0.1", port=int(sys.argv[1]), token="t0k3n", role="miner")
for step in range(3):
    logger.log("train", {"step": step}, {"loss": 0.5})
"""


def written(requests: list[tuple[str, dict[str, str], bytes]]) -> list[str]:
    """Return the lines that were written."""
    import gzip

    return [
        line
        for path, headers, body in requests
        if path.startswith("/api/v2/write")
        for line in (gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body).decode().splitlines()
    ]


@pytest.mark.timing  # it says nothing at its end, though the server may take long
def test_three_points_and_the_end(tmp_path: Path) -> None:
    """A process that logs three points and ends has delivered them, without a start()."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        ran = programs.run(tmp_path, THREE, str(server.server_port))
        lines = written(server.requests)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert [line.split(" ")[1] for line in lines] == ["loss=0.5"] * 3
    assert all(headers["Authorization"] == "Token t0k3n" for _, headers, _ in server.requests)


def test_start_takes_over(tmp_path: Path) -> None:
    """A start() after a logger delivers to its database and to its own destinations, each point once to each."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        program = (
            f"{THREE}\nimport tachograph\ntachograph.start(jsonl='out.jsonl')\nlogger.log('late', {{}}, {{'a': 1}})\n"
        )
        ran = programs.run(tmp_path, program, str(server.server_port), **JSONL)
        lines = written(server.requests)
    assert ran.returncode == 0, ran.stderr
    assert [line.split(",")[0] for line in lines] == ["train"] * 3 + ["late"]
    assert points(tmp_path)[-1]["tachograph.measurement"] == "late"


def test_close_and_flush_deliver(tmp_path: Path) -> None:
    """flush() and close() return when points have arrived; two loggers of one database share its way."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        program = f"""
{THREE}
print(logger.flush())
logger.log("train", {{}}, {{"loss": 1.0}})
with MetricsLogger(host="127.0.0.1", port=int(sys.argv[1]), token="t0k3n", role="miner") as other:
    other.log("other", {{}}, {{"loss": 2.0}})
logger.close()
import os
os._exit(0)
"""
        ran = programs.run(tmp_path, program, str(server.server_port))
        lines = written(server.requests)
    assert ran.stdout == "True\n", ran.stderr
    assert [line.split(" ")[1] for line in lines] == ["loss=0.5"] * 3 + ["loss=1.0", "loss=2.0"]


@pytest.mark.usefixtures("untraced")
def test_sigterm(tmp_path: Path) -> None:
    """What was logged right before SIGTERM, and in its handler, is delivered."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        program = f"""
import os, signal, sys
{THREE}
def last(*_):
    logger.log("last", {{}}, {{"loss": 1.0}})
    sys.exit(0)
signal.signal(signal.SIGTERM, last)
os.kill(os.getpid(), signal.SIGTERM)
"""
        ran = programs.run(tmp_path, program, str(server.server_port))
        lines = written(server.requests)
    assert ran.returncode == 0, ran.stderr
    assert [line.split(",")[0] for line in lines] == ["train"] * 3 + ["last"]


@pytest.mark.usefixtures("untraced")
def test_fork(tmp_path: Path) -> None:
    """A forked child logs nothing of its parent's; where helpers record, it delivers its own, as a start of its own."""
    program = f"""
import os
{THREE}
logger.flush()
child = os.fork()
logger.log("child" if not child else "parent", {{}}, {{"loss": 1.0}})
if child:
    os.waitpid(child, 0)
else:
    logger.flush()
    os._exit(0)
"""
    for helpers, wanted in (("", ["parent"]), ("1", ["child", "parent"])):
        with receiving(*[(204, {}, b"")] * 9) as server:
            ran = programs.run(tmp_path, program, str(server.server_port), TACHOGRAPH_HELPERS=helpers)
            lines = written(server.requests)
        assert ran.returncode == 0, ran.stderr
        others = sorted(line for line in lines if not line.startswith("train"))
        assert [line.split(",")[0] for line in others] == wanted
        ids = {part for line in others for part in line.split(" ")[0].split(",") if part.startswith("runtime_id=")}
        assert len(ids) == len(wanted)
        assert len(lines) == 3 + len(wanted)


def test_disabled(tmp_path: Path) -> None:
    """With OTEL_SDK_DISABLED nothing is delivered, and flush() has nothing to wait for."""
    with receiving() as server:
        ran = programs.run(
            tmp_path, f"{THREE}\nprint(logger.flush())", str(server.server_port), OTEL_SDK_DISABLED="true"
        )
        assert server.requests == []
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_without_the_extra(tmp_path: Path) -> None:
    """Without influxdb-client one line says what to install, and points go everywhere else, counted."""
    program = f"""
import sys
sys.modules["influxdb_client"] = None
import tachograph
tachograph.start(jsonl="out.jsonl")
{THREE.replace("import influxdb_client", "")}
"""
    ran = programs.run(tmp_path, program, "9", **JSONL)
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "pip install" in line]
    assert install_command("influxdb") in line
    assert len(points(tmp_path)) == 3


def test_no_waiting_for_a_dead_server(tmp_path: Path) -> None:
    """Where nobody listens, a process that logs ends in good time."""
    began = time.monotonic()
    ran = programs.run(tmp_path, THREE, "9")
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert time.monotonic() - began < 10


# Nobody listens there; the exporter says so only once it has tried.
DEAD = THREE.replace("int(sys.argv[1])", "9")


def spooled(folder: Path) -> list[str]:
    """Return the line of each point that waits on the disk."""
    return lines_in(spool_files(folder / "store"))


@pytest.mark.usefixtures("untraced")
def test_sigterm_leaves_on_the_disk_what_was_not_delivered(tmp_path: Path) -> None:
    """Torchrun ends its ranks by SIGTERM: what a dead server did not take waits for the next process, as at any end."""
    program = f"""
import os, signal, time
{DEAD}
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
    ran = programs.run(tmp_path, program)
    assert ran.returncode == -signal.SIGTERM, ran.stderr
    assert len(spooled(tmp_path)) == 3


@pytest.mark.timing
@pytest.mark.usefixtures("untraced")
def test_close_leaves_nothing_behind(tmp_path: Path) -> None:
    """What close() has no time for goes on leaving; it takes no longer than it was told."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        program = f"""
import sys, time
import influxdb_client, tachograph
from tachograph.logger import MetricsLogger
tachograph.start(jsonl="out.jsonl")
logger = MetricsLogger(host="127.0.0.1", port={server.server_port}, token="t0k3n", role="miner")
for step in range(20_000):
    logger.log("train", {{"step": step}}, {{"loss": 0.5}})
began = time.monotonic()
logger.close(0.1)
print(time.monotonic() - began)
"""
        ran = programs.run(tmp_path, program, **JSONL)
        lines = written(server.requests)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 2.0
    assert len(points(tmp_path)) == 20_000
    assert len(lines) + len(spooled(tmp_path)) == 20_000


@pytest.mark.timing
def test_close_takes_its_timeout_once(tmp_path: Path) -> None:
    """Where the server is dead, close() waits as long as it was told, and not once for each of its steps."""
    program = f"""
import time
{DEAD}
began = time.monotonic()
logger.close(1.5)
print(time.monotonic() - began)
"""
    ran = programs.run(tmp_path, program)
    assert 1.0 < float(ran.stdout) < 2.6, ran.stderr
    assert len(spooled(tmp_path)) == 3


def test_a_logger_outlives_what_start_returned(tmp_path: Path) -> None:
    """Its points go on to its own database after the end of a start(), and a start() waits for no dead server."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        program = f"""
import tachograph
{THREE}
with tachograph.start(jsonl="out.jsonl"):
    logger.log("within", {{}}, {{"loss": 1.0}})
logger.log("after", {{}}, {{"loss": 2.0}})
print(logger.flush())
logger.log("last", {{}}, {{"loss": 3.0}})
"""
        ran = programs.run(tmp_path, program, str(server.server_port), **JSONL)
        lines = written(server.requests)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    assert [line.split(",")[0] for line in lines] == ["train"] * 3 + ["within", "after", "last"]


@pytest.mark.timing
def test_start_does_not_wait_for_a_loggers_dead_server(tmp_path: Path) -> None:
    """A start() after a logger takes over at once what that has to deliver; nothing is lost by it."""
    program = f"""
import time
import tachograph
{DEAD}
time.sleep(0.5)
began = time.monotonic()
tachograph.start(jsonl="out.jsonl")
print(time.monotonic() - began)
"""
    ran = programs.run(tmp_path, program, **JSONL)
    assert float(ran.stdout) < 2.0, ran.stderr
    assert len(spooled(tmp_path)) == 3
    assert len(points(tmp_path)) == 3


def test_what_nobody_took_is_said_at_the_end(tmp_path: Path) -> None:
    """Points that were logged after shutdown() are lost with the process, which says how many."""
    program = f"""
import tachograph
tachograph.start(jsonl="out.jsonl")
{DEAD}
tachograph.shutdown()
tachograph.shutdown()
logger.log("late", {{}}, {{"loss": 1.0}})
"""
    ran = programs.run(tmp_path, program, **JSONL)
    assert ran.returncode == 0
    assert "journal: lost 1 event" in ran.stderr
    assert len(points(tmp_path)) == 3


def test_a_child_of_a_program_that_has_shut_down_holds_no_spool(tmp_path: Path) -> None:
    """A child that goes on keeps no lock on its parent's files: another process may send what is in them."""
    program = f"""
import fcntl, os, pathlib, time
import tachograph
tachograph.start(metrics="none")
{DEAD}
tachograph.shutdown()
tachograph.shutdown()
time.sleep(2.5)
if os.fork():
    os._exit(0)
files = list(pathlib.Path(os.environ["TACHOGRAPH_STORE"], "spool").rglob("*.spool"))
time.sleep(0.5)
for file in files:
    with file.open("r+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(len(files))
"""
    ran = programs.run(tmp_path, program)
    assert ran.stderr.count("Traceback") == 0, ran.stderr


def test_one_point_that_cannot_be_made_costs_no_other(tmp_path: Path) -> None:
    """An int of more digits than CPython writes leaves in hexadecimal; a tag that raises is left out."""
    program = """
import tachograph
tachograph.start(jsonl="out.jsonl")
from tachograph.logger import MetricsLogger
class Raises:
    ndim = 0
    def item(self):
        raise RuntimeError("no")
logger = MetricsLogger(role="miner")
logger.log("m", {"step": 1}, {"f": 10 ** 5000})
logger.log("m", {"big": 10 ** 5000}, {"f": 1.0})
logger.log("m", {"bad": Raises()}, {"f": 2.0})
logger.log("m", {}, {"f": 3.0})
"""
    ran = programs.run(tmp_path, program, **JSONL)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert [point["tachograph.fields"] for point in points(tmp_path)] == [
        {"f": hex(10**5000)},
        {"f": 1.0},
        {"f": 2.0},
        {"f": 3.0},
    ]


def test_without_the_extra_nothing_piles_up(tmp_path: Path) -> None:
    """Where nothing can write to the database, its points are counted, and the journal is as small as ever."""
    program = f"""
import sys
sys.modules["influxdb_client"] = None
from tachograph.recording import journal
from tachograph import testing
{DEAD.replace("import influxdb_client", "")}
for step in range(70_000):
    logger.log("train", {{"step": step}}, {{"loss": 0.5}})
print(len(journal.default) <= journal.LIMIT, journal.default._pinned)
from tachograph.recording import registry
print(sum(p.value for m in registry.default.collect() if m.name == "tachograph.dropped"
          for p in m.points if dict(p.attributes)["reason"] == "not_installed"))
"""
    ran = programs.run(tmp_path, program)
    assert ran.stdout == "True False\n70003\n", ran.stderr


def test_a_shutdown_at_exit_loses_nothing_of_a_logger(tmp_path: Path) -> None:
    """A program that has its shutdown() called by atexit leaves its loggers' points to the end of the process."""
    program = f"""
import atexit
import tachograph
tachograph.start(jsonl="out.jsonl")
{DEAD}
atexit.register(tachograph.shutdown, 0.3)
"""
    ran = programs.run(tmp_path, program, **JSONL)
    assert "Traceback" not in ran.stderr
    assert len(spooled(tmp_path)) == 3


def test_the_end_of_a_start_raises_nothing(tmp_path: Path) -> None:
    """A variable that an argument had overridden is no reason to raise at the end of what start() returned."""
    program = f"""
import tachograph
with tachograph.start(interval=5, jsonl="out.jsonl"):
    {DEAD.strip().replace(chr(10), chr(10) + "    ")}
print("ended")
"""
    ran = programs.run(tmp_path, program, OTEL_METRIC_EXPORT_INTERVAL="abc", **JSONL)
    assert "ended" in ran.stdout, ran.stderr
    assert len(spooled(tmp_path)) == 3


def test_a_new_logger_of_a_database_keeps_the_way_of_one_that_closes(tmp_path: Path) -> None:
    """Made while close() of the last one still delivers, it is delivered to as ever."""
    with receiving(*[(204, {}, b"")] * 9) as server:
        program = f"""
import sys, threading, time
{THREE}
from tachograph.pipeline.lifecycle import runtime
runtime.pipeline.before_fork()  # collections are held
closing = threading.Thread(target=logger.close)
closing.start()
time.sleep(0.3)
other = MetricsLogger(host="127.0.0.1", port=int(sys.argv[1]), token="t0k3n", role="miner")
runtime.pipeline.after_fork_in_parent()
closing.join()
other.log("other", {{}}, {{"loss": 2.0}})
print(other.flush())
"""
        ran = programs.run(tmp_path, program, str(server.server_port))
        lines = written(server.requests)
    assert ran.stdout == "True\n", ran.stderr
    assert [line.split(",")[0] for line in lines] == ["train"] * 3 + ["other"]


def test_what_nobody_wanted_is_no_loss(tmp_path: Path) -> None:
    """A program whose events nobody takes is not told of them at its end."""
    program = """
import time
import tachograph
from tachograph.recording import journal
with tachograph.start(metrics="none"):
    pass
journal.default.append("e", time.time_ns(), {"n": 1})
"""
    ran = programs.run(tmp_path, program)
    assert (ran.returncode, ran.stderr) == (0, "")
