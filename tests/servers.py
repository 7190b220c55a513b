"""Real servers for tests: found, started on free loopback ports, waited for, and stopped.

They are looked for in the folder ``TACHOGRAPH_TEST_BIN``, beside the checkout in ``shared/bin``, and on ``PATH``. Where
one is missing the test is skipped and says so; where ``CI`` is set it fails.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from places import ROOT

READY_WITHIN = 60.0
_STOP_WITHIN = 15.0
_VERSION = re.compile(r"version v?(\d+)\.")


@dataclass
class Server:
    """A running server: its process and what it has written to stdout and stderr."""

    process: subprocess.Popen[bytes]
    log_path: Path

    def log(self) -> str:
        """Return what it has written so far."""
        return self.log_path.read_text(errors="replace")


# Below what Linux gives to whoever asks for any port: no connection is made from one of these meanwhile.
# Each worker of pytest-xdist has its own: between two looks at a port no other one takes it.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.cycle(random.sample(range(16_384 + _WORKER % 16, 32_768, 16), 1024))


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens now, each time another one of a thousand."""
    for port in itertools.islice(_PORTS, 1024):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def find(program: str, major: int | None = None) -> str:
    """Return the path of a program, in this major version if one is given; skip the test where there is none."""
    candidates = (shutil.which(program, path=str(folder)) for folder in _folders())
    found = next((path for path in candidates if path is not None and major in (None, _major(path))), None)
    if found is None:
        _missing(program if major is None else f"{program} {major}.x")
    return found


def _folders() -> Iterator[Path]:
    named = os.environ.get("TACHOGRAPH_TEST_BIN")
    if named:
        yield Path(named)
    yield ROOT.parent / "shared" / "bin"
    yield from (Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder)


@functools.cache
def _major(path: str) -> int | None:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=READY_WITHIN, check=False)
    match = _VERSION.search(done.stdout + done.stderr)
    return int(match[1]) if match else None


def _missing(what: str) -> NoReturn:
    reason = f"NOT TESTED: {what} was found neither in $TACHOGRAPH_TEST_BIN, nor in ../shared/bin, nor on PATH"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def prometheus(
    config: Path | str, cwd: Path | str | None = None, *, major: int = 3, arguments: Sequence[str] = ()
) -> Iterator[str]:
    """Run a Prometheus server and yield its base URL, such as ``http://127.0.0.1:4711``.

    Args:
        config: its configuration file; file_sd paths in it are relative to this file.
        cwd: where to run it; by default beside the configuration.
        major: 3, or 2 for Debian's generation.
        arguments: further command-line options, such as ``--enable-feature=exemplar-storage``.
    """
    program = find("prometheus", major)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tachograph-prometheus-") as data:
        command = [
            program,
            f"--config.file={Path(config).resolve()}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--scrape.discovery-reload-interval=100ms",
            *arguments,
        ]
        base = f"http://127.0.0.1:{port}"
        with _running(command, Path(cwd or Path(config).parent), {}, lambda _: _answers(f"{base}/-/ready")):
            yield base


@contextmanager
def otelcol(
    config: Path | str, env: Mapping[str, str] | None = None, *, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """Run an OpenTelemetry Collector; it is ready to receive when the block begins.

    Args:
        config: its configuration file.
        env: variables that the configuration reads, over this process's own.
        arguments: further command-line options, such as ``--set=…``.
    """
    command = [find("otelcol"), f"--config={Path(config).resolve()}", *arguments]
    with _running(command, Path(config).parent, env or {}, lambda server: "Everything is ready" in server.log()) as it:
        yield it


@contextmanager
def _running(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], ready: Callable[[Server], bool]
) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tachograph-log-") as folder:
        log_path = Path(folder) / "log"
        with (
            log_path.open("wb") as log,
            subprocess.Popen(command, cwd=cwd, env={**os.environ, **env}, stdout=log, stderr=log) as process,
        ):
            server = Server(process, log_path)
            try:
                wait_until(lambda: process.poll() is not None or ready(server), READY_WITHIN, server.log)
                if process.poll() is not None:
                    pytest.fail(f"{command[0]} ended with {process.returncode}:\n{server.log()}")
                yield server
            finally:
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until(
    condition: Callable[[], object], timeout: float = 30.0, why_not: Callable[[], object] = lambda: ""
) -> None:
    """Wait until the condition holds; fail the test after ``timeout`` seconds with what ``why_not`` returns."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"it did not happen within {timeout:g} s\n{why_not()}")
        time.sleep(0.05)


def api(base: str, path: str, **parameters: str) -> Any:
    """Return the ``data`` of an answer of Prometheus's HTTP API, such as ``api(base, "query", query="up")``."""
    url = f"{base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)["data"]


def instant(base: str, expression: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and the value of every series that a PromQL expression gives now."""
    return [(found["metric"], float(found["value"][1])) for found in api(base, "query", query=expression)["result"]]


@contextmanager
def victoria_metrics(data: Path, port: int | None = None) -> Iterator[str]:
    """Run VictoriaMetrics and yield its base URL; it takes InfluxDB's lines, and answers PromQL.

    Args:
        data: a folder of its own; what it holds is there again after a restart.
        port: of 127.0.0.1; by default a free one.
    """
    where = f"127.0.0.1:{port or free_port()}"
    command = [
        find("victoria-metrics"),
        f"-storageDataPath={data}",
        f"-httpListenAddr={where}",
        "-retentionPeriod=100y",
        "-memory.allowedBytes=128MB",
        "-search.latencyOffset=0s",
        "-influx.maxLineSize=1048576",
    ]
    data.mkdir(parents=True, exist_ok=True)
    with _running(command, data, {}, lambda _: _answers(f"http://{where}/health")):
        yield f"http://{where}"


def exported_series(base: str, match: str = '{__name__!=""}') -> list[dict[str, Any]]:
    """Return every series that VictoriaMetrics holds: ``metric``, ``values`` and ``timestamps`` in milliseconds."""
    flush = urllib.request.Request(f"{base}/internal/force_flush")
    with urllib.request.urlopen(flush, timeout=30):
        pass
    query = urllib.parse.urlencode({"match[]": match, "reduce_mem_usage": "1"})
    with urllib.request.urlopen(f"{base}/api/v1/export?{query}", timeout=60) as response:
        lines = [json.loads(line) for line in response.read().splitlines()]
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:  # one for each block that holds some of a series
        found.setdefault(json.dumps(line["metric"], sort_keys=True), []).append(line)
    return [_joined(blocks) for blocks in found.values()]


def _joined(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    samples = sorted(pair for block in blocks for pair in zip(block["timestamps"], block["values"], strict=True))
    return {
        "metric": blocks[0]["metric"],
        "timestamps": [time for time, _ in samples],
        "values": [value for _, value in samples],
    }


_INFLUXDB1 = """
reporting-enabled = false
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{data}/meta"
[data]
  dir = "{data}/data"
  wal-dir = "{data}/wal"
  max-series-per-database = 0
  max-values-per-tag = 0
  query-log-enabled = false
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{http}"
  log-enabled = false
  auth-enabled = {auth}
"""


@contextmanager
def influxdb1(
    data: Path, port: int | None = None, *, database: str | None = "tplr", auth: bool = False
) -> Iterator[str]:
    """Run InfluxDB 1 and yield its base URL.

    Args:
        data: a folder of its own; what it holds is there again after a restart.
        port: of 127.0.0.1; by default a free one.
        database: made where it is not there; None for none.
        auth: ask for a user and a password, of which there are none.
    """
    data.mkdir(parents=True, exist_ok=True)
    http, config = port or free_port(), data / "influxdb.conf"
    config.write_text(_INFLUXDB1.format(rpc=free_port(), http=http, data=data, auth=str(auth).lower()))
    base = f"http://127.0.0.1:{http}"
    with _running([find("influxd"), "-config", str(config)], data, {}, lambda _: _pings(base)):
        if database is not None:
            influxql(base, f'CREATE DATABASE "{database}"', database)
        yield base


def _pings(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/ping", timeout=5) as response:
            return bool(response.status == 204)
    except (urllib.error.URLError, OSError):
        return False


def influxql(base: str, query: str, database: str = "tplr") -> list[dict[str, Any]]:
    """Return the series that an InfluxQL query gives, times in nanoseconds: ``columns``, ``values``, ``tags``."""
    body = urllib.parse.urlencode({"q": query, "db": database, "epoch": "ns"}).encode()
    with urllib.request.urlopen(f"{base}/query", body, timeout=60) as response:
        (result,) = json.load(response)["results"]
    assert "error" not in result, result
    return list(result.get("series", []))
