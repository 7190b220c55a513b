"""The endpoint: HTTP as scrapers and browsers speak it, and a port that is never fought over."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from programs import complaints, environment, run, write
from tachograph.exporters.prometheus.endpoint import MOST_CLIENTS, Endpoint
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry


@contextmanager
def serving(registry: Registry, host: str = "127.0.0.1", port: int = 0, **more: Any) -> Iterator[Endpoint]:
    """Serve a registry's page."""
    endpoint = Endpoint(lambda: (registry.collect(), None), Page({}, {}, registry), host, port, registry, **more)
    try:
        yield endpoint
    finally:
        endpoint.close(5)


def ask(endpoint: Endpoint, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[Any, bytes]:
    """Return an answer and its body."""
    url = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(str(url.hostname), endpoint.port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def errors(registry: Registry) -> dict[str, float]:
    """Return the errors that were counted, by where they happened."""
    points = [point for metric in registry.collect() if metric.name == "tachograph.errors" for point in metric.points]
    return {str(dict(point.attributes)["where"]): point.value for point in points if isinstance(point, NumberPoint)}


@pytest.fixture
def registry() -> Registry:
    """A registry that holds one gauge."""
    registry = Registry()
    registry.group("train").instrument("loss.now").record(0.5)
    return registry


def test_answers(registry: Registry) -> None:
    """GET and HEAD of /metrics, a pointer at /, 404 for the rest, 405 for other methods."""
    with serving(registry) as endpoint:
        answer, body = ask(endpoint)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert body.decode().splitlines()[-1] == 'loss_now{otel_scope_name="train"} 0.5'
        head, empty = ask(endpoint, method="HEAD")
        assert (head.status, int(head.headers["Content-Length"]), empty) == (200, len(body), b"")
        assert b"/metrics" in ask(endpoint, "/")[1]
        assert ask(endpoint, "/other")[0].status == 404
        with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
            client.sendall(b"GET http://[ HTTP/1.0\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.0 400 ")
        assert ask(endpoint, endpoint.url)[1] == body
        posted, _ = ask(endpoint, method="POST")
        assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")


def test_negotiation(registry: Registry) -> None:
    """The Accept header picks the format and the names; ?escaping= goes before it; gzip where it is taken."""
    wanted = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3"
    with serving(registry) as endpoint:
        answer, body = ask(endpoint, Accept=wanted, Accept_Encoding="gzip")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert '{"loss.now",' in gzip.decompress(body).decode()
        answer, body = ask(endpoint, "/metrics?escaping=underscores", Accept=wanted)
        assert answer.headers["Content-Type"].endswith("; escaping=underscores")
        assert body.decode().endswith('\nloss_now{otel_scope_name="train"} 0.5\n# EOF\n')


def test_taken_port(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """Where the port is taken the next free one is used, and said."""
    with (
        serving(registry) as first,
        caplog.at_level(logging.WARNING, "tachograph"),
        serving(registry, port=first.port) as second,
    ):
        assert second.port > first.port
        assert second.url in caplog.text
        assert ask(second)[0].status == ask(first)[0].status == 200


def test_no_port_left(registry: Registry) -> None:
    """Where no port is free up to the last one, any other is taken."""
    with serving(registry, port=65_535) as first, serving(registry, port=65_535) as second:
        assert ask(second)[0].status == ask(first)[0].status == 200


def test_foreign_host(registry: Registry) -> None:
    """A host that is none of this machine's is a clear error at once."""
    with pytest.raises(OSError, match=r"(?i)assign|name|address"):
        Endpoint(lambda: ([], None), Page({}, {}, registry), "192.0.2.1", 0, registry)


@pytest.mark.parametrize("host", ["::1", "", "0.0.0.0", "localhost"])  # noqa: S104 - what a user may write
def test_hosts(registry: Registry, host: str) -> None:
    """IPv6, names and all addresses can be listened on; the URL is one that works here."""
    try:
        with serving(registry, host) as endpoint:
            assert ask(endpoint)[0].status == 200
    except OSError as error:
        if host != "::1":
            raise
        pytest.skip(f"no IPv6 here: {error}")


def test_failing_collection(registry: Registry, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    """A scrape that fails is a 500, counted and logged once, and the next one is served; stderr stays clean."""
    broken = [True, True, False]

    def read() -> Any:
        if broken.pop(0):
            raise RuntimeError("broken")
        return registry.collect(), None

    endpoint = Endpoint(read, Page({}, {}, registry), "127.0.0.1", 0, registry)
    with caplog.at_level(logging.WARNING, "tachograph"):
        assert [ask(endpoint)[0].status for _ in range(3)] == [500, 500, 200]
    endpoint.close(5)
    assert errors(registry) == {"prometheus": 2}
    assert len(caplog.records) == 1
    assert capfd.readouterr().err == ""


def test_bad_clients(registry: Registry, capfd: Any) -> None:
    """Nonsense, endless lines, clients that go away or say nothing: others are served, and nothing is printed."""
    with serving(registry) as endpoint:
        silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(MOST_CLIENTS // 2)]
        for nonsense in (b"\x16\x03\x01 hello\r\n\r\n", b"GET /" + b"x" * 100_000, b"GET /metrics HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
                client.sendall(nonsense)
        assert ask(endpoint)[0].status == 200
        for client in silent:
            client.close()
    assert capfd.readouterr().err == ""
    assert not errors(registry)


def test_concurrent_scrapes(registry: Registry) -> None:
    """Scrapes at the same time are all answered."""
    pages: list[bytes] = []
    with serving(registry) as endpoint:
        threads = [threading.Thread(target=lambda: pages.append(ask(endpoint)[1])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(pages) == 8
    assert len(set(pages)) == 1


def test_close(registry: Registry) -> None:
    """Closing frees the port at once, waits for a scrape under way, never longer than said, and may be repeated."""
    under_way = threading.Event()

    def read() -> Any:
        under_way.set()
        time.sleep(0.3)
        return registry.collect(), None

    endpoint = Endpoint(read, Page({}, {}, registry), "127.0.0.1", 0, registry)
    answers: list[int] = []
    scrape = threading.Thread(target=lambda: answers.append(ask(endpoint)[0].status))
    scrape.start()
    assert under_way.wait(5)
    began = time.monotonic()
    endpoint.close(5)
    assert time.monotonic() - began < 2
    scrape.join()
    assert answers == [200]
    endpoint.close(5)
    with socket.create_server(("127.0.0.1", endpoint.port)):
        pass


@pytest.mark.timing
def test_close_within_its_time(registry: Registry) -> None:
    """A client that never ends its request does not hold up the end."""
    with serving(registry) as endpoint, socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        client.sendall(b"GET /metrics")
        time.sleep(0.1)
        began = time.monotonic()
        endpoint.close(0.2)
        assert time.monotonic() - began < 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # it is what is tested
def test_forked_child(registry: Registry, tmp_path: Path) -> None:
    """A forked child lets go of the sockets; the parent goes on serving, and its target file stays."""
    with serving(registry, store=tmp_path) as endpoint:
        child = os.fork()
        if not child:
            endpoint.reset_in_child()
            endpoint.close(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert ask(endpoint)[0].status == 200
        assert len(list((tmp_path / "targets").iterdir())) == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", endpoint.port)).close()


def test_target_file(registry: Registry, tmp_path: Path) -> None:
    """While it serves there is a file_sd target, for this user only; those of dead processes are cleared away."""
    store = tmp_path / "state" / "tachograph"
    targets = store / "targets"
    targets.mkdir(parents=True, mode=0o700)
    host = socket.gethostname()
    dead, foreign, other = targets / f"{host}-999999999.json", targets / "elsewhere-1.json", targets / "x.json"
    with socket.create_server(("127.0.0.1", 0)) as neighbour:
        listening = targets / f"{host}-999999998.json"
        listening.write_text(json.dumps([{"targets": [f"127.0.0.1:{neighbour.getsockname()[1]}"]}]))
        for path in (dead, foreign, other):
            path.write_text("[]")
        with serving(registry, store=store) as endpoint:
            mine = targets / f"{host}-{os.getpid()}.json"
            assert json.loads(mine.read_text()) == [{"targets": [f"127.0.0.1:{endpoint.port}"]}]
            assert stat.S_IMODE(mine.stat().st_mode) == 0o600
            assert sorted(targets.iterdir()) == sorted([foreign, listening, mine, other])
        assert not mine.exists()


def test_folders_are_private(registry: Registry, tmp_path: Path) -> None:
    """The store and its folder of targets are made for this user only."""
    with serving(registry, store=tmp_path / "store"):
        for folder in (tmp_path / "store", tmp_path / "store" / "targets"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_unwritable_store(registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store that cannot be written costs the target file and nothing else: one log line, one count."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "tachograph"), serving(registry, store=tmp_path / "file") as endpoint:
        assert ask(endpoint)[0].status == 200
    assert len(caplog.records) == 1
    assert errors(registry) == {"target_file": 1}


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "192.0.2.1"])  # RFC 5737: an address of no machine
def test_a_host_that_cannot_be_listened_on_is_a_wrong_value(tmp_path: Path, host: str) -> None:
    """``start()`` raises a ValueError that names the variable, and can be called again with another host."""
    program = """
    import os, tachograph
    try:
        tachograph.start(hub=False)
    except ValueError as error:
        print(error)
    os.environ["OTEL_EXPORTER_PROMETHEUS_HOST"] = "localhost"
    print(tachograph.start(prometheus_port=0).metrics_url is not None)
    """
    variables = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST": host}
    done = run(tmp_path, program, **variables)
    error, started = done.stdout.splitlines()
    assert error.startswith("OTEL_EXPORTER_PROMETHEUS_HOST ")
    assert repr(host) in error
    assert (started, done.returncode, done.stderr) == ("True", 0, "")


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "192.0.2.1"])
def test_a_wrong_host_is_one_line_under_zero_code(tmp_path: Path, host: str) -> None:
    """A program that does not call ``start()`` runs, and one line of its log names the variable."""
    program = "import tachograph; tachograph.put_metric('loss', 0.5); print('trained')"
    line = [str(Path(sys.executable).with_name("opentelemetry-instrument"))]
    variables = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST": host}
    done = subprocess.run(
        [*line, sys.executable, str(write(tmp_path, program))],
        env=environment(tmp_path, OTEL_LOGS_EXPORTER="none", OTEL_TRACES_EXPORTER="none", **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    (said,) = complaints(done.stderr).splitlines()
    assert said.startswith("tachograph: could not start telemetry, continuing without it: ")
    assert "OTEL_EXPORTER_PROMETHEUS_HOST" in said
    assert "Traceback" not in said
