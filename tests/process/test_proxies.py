"""A proxy in the environment, as most clusters have one: loopback and the job's own hub never take it."""

from __future__ import annotations

import contextlib
import http.server
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubs import PROTOBUF, ask, command, request
from launches import run_program
from programs import run
from receivers import receiving
from tachograph.exporters._http import goes_direct, no_proxies
from tachograph.instrumentation.child_environment import BOOTSTRAP

VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "grpc_proxy")
FAR = "collector.example"  # RFC 2606: nobody has this name, so that only a proxy could reach it
RECORD = """
    import sys, tachograph
    with tachograph.start(endpoint=sys.argv[1], protocol=sys.argv[2], metrics="otlp", traces="none", logs="none"):
        tachograph.put_metric("loss", 0.5)
"""


class _Proxying(http.server.BaseHTTPRequestHandler):
    """Takes note of each request, and answers 200: nothing that came here arrives anywhere."""

    server: Proxy

    def do_POST(self) -> None:
        """Take a request."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200)

    def do_CONNECT(self) -> None:
        """Refuse a tunnel."""
        self._answer(502)

    def _answer(self, status: int) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.authorizations.append(self.headers.get("Proxy-Authorization", ""))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Proxy(http.server.ThreadingHTTPServer):
    """A proxy on a free loopback port that swallows all that it gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Proxying)
        self.asked: list[str] = []
        self.authorizations: list[str] = []
        self.url = f"http://user:word@127.0.0.1:{self.server_port}"
        self.environ = dict.fromkeys(VARIABLES, self.url) | {"no_proxy": "", "NO_PROXY": ""}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Return a running proxy."""
    with Proxy() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_all_that_a_job_records_is_in_the_store(tmp_path: Path, proxy: Proxy) -> None:
    """Under ``tachograph run`` no value of no process goes to the proxy; the last line says that nothing is missing."""
    pytest.importorskip("uvicorn")
    program = """
        import subprocess, sys, tachograph
        if len(sys.argv) == 1:
            assert subprocess.run([sys.executable, __file__, "child"]).returncode == 0
        for step in range(100):
            tachograph.put_metric("step.success", 1, "train")

    """
    done = run_program(tmp_path, program, options=("--run-id", "r"), **proxy.environ)
    assert done.returncode == 0
    last = done.stderr.splitlines()[-1]
    assert ", none lost; see it again with 'tachograph studio'" in last
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "runs" / "r.db")) as file:
        found = file.execute(
            "SELECT MAX(value) FROM sample JOIN series ON id = series WHERE name = 'step.success' GROUP BY series"
        ).fetchall()
        assert file.execute("SELECT COUNT(*) FROM event").fetchone() == (4,)  # two processes start and end
    assert found == [(100,), (100,)]
    assert proxy.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_an_endpoint_on_loopback_takes_no_proxy(tmp_path: Path, proxy: Proxy, host: str) -> None:
    """What ``start()`` delivers to this machine arrives, whatever the variables say."""
    with receiving() as receiver:
        done = run(tmp_path, RECORD, f"http://{host}:{receiver.server_port}", "http/protobuf", **proxy.environ)
        assert done.returncode == 0
        assert {path for path, _, _ in receiver.requests} == {"/v1/metrics"}
    assert proxy.asked == []


def test_an_endpoint_of_another_name_takes_the_proxy(tmp_path: Path, proxy: Proxy) -> None:
    """Other endpoints follow the rules of requests: the proxy gets them, with its password."""
    done = run(tmp_path, RECORD, f"http://{FAR}:4318", "http/protobuf", **proxy.environ)
    assert done.returncode == 0
    assert set(proxy.asked) == {f"POST http://{FAR}:4318/v1/metrics"}
    assert set(proxy.authorizations) == {"Basic dXNlcjp3b3Jk"}


def test_no_proxy_is_heeded(tmp_path: Path, proxy: Proxy) -> None:
    """An endpoint that no_proxy names takes none."""
    more = {**proxy.environ, "no_proxy": f"other,{FAR}"}
    run(tmp_path, RECORD, f"http://{FAR}:4318", "http/protobuf", **more)
    assert proxy.asked == []


@pytest.mark.parametrize(("host", "asked"), [("127.0.0.1", False), ("localhost", False), (FAR, True)])
def test_grpc_has_the_same_rule(tmp_path: Path, proxy: Proxy, host: str, *, asked: bool) -> None:
    """GRPC asks the proxy for a tunnel to other machines, and never to this one."""
    run(tmp_path, RECORD, f"http://{host}:9", "grpc", **proxy.environ)
    assert set(proxy.asked) == ({f"CONNECT {host}:9"} if asked else set())


def test_what_a_hub_passes_on(tmp_path: Path, proxy: Proxy) -> None:
    """A hub forwards to loopback directly, and elsewhere through the proxy."""
    pytest.importorskip("uvicorn")
    body = request(1.0).SerializeToString()
    with receiving() as receiver:
        base = receiver.url.removesuffix("/v1/metrics")
        for target in (base, f"http://{FAR}:4318"):
            with command(tmp_path, "--forward", target, **proxy.environ) as hub:
                assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
                hub.process.terminate()
                assert hub.end() == 0
        assert [sent for path, _, sent in receiver.requests if path == "/v1/metrics"]
    assert f"POST http://{FAR}:4318/v1/metrics" in proxy.asked
    assert not any("127.0.0.1" in asked for asked in proxy.asked)


@pytest.mark.parametrize(("host", "asked"), [("http://127.0.0.1:9", False), (f"http://influx.{FAR}:8086", True)])
def test_influxdb_has_the_same_rule(tmp_path: Path, proxy: Proxy, host: str, *, asked: bool) -> None:
    """A MetricsLogger's points take the proxy to another machine's InfluxDB, and none to this one's."""
    pytest.importorskip("influxdb_client")
    program = """
        import sys, tachograph
        from tachograph.logger import MetricsLogger
        logger = MetricsLogger(host=sys.argv[1])
        logger.log("m", {}, {"loss": 0.5})
        logger.flush(1 if "127" in sys.argv[1] else 60)
    """
    done = run(tmp_path, program, host, **proxy.environ)
    assert done.returncode == 0, done.stderr
    assert [found.partition("?")[0] for found in proxy.asked] == [f"POST {host}/api/v2/write"] * asked
    assert set(proxy.authorizations) <= {"Basic dXNlcjp3b3Jk"}


def own_address() -> str:
    """Return an address of this machine beyond loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # RFC 5737: sends nothing, and asks only which address would
        found = str(probe.getsockname()[0])
        if not found.startswith("127."):
            return found
    pytest.skip("NOT TESTED: this machine has no address beyond loopback, so a hub cannot listen there")


@pytest.mark.parametrize("own", [True, False])
def test_the_runs_own_hub_beyond_loopback(tmp_path: Path, proxy: Proxy, *, own: bool) -> None:
    """A hub that the job's processes reach at the node's address is reached directly; another endpoint there is not."""
    listener = http.server.ThreadingHTTPServer((own_address(), 0), _Proxying)
    hub: Any = listener
    hub.asked, hub.authorizations = [], []
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
    thread.start()
    try:
        endpoint = f"http://{own_address()}:{listener.server_port}"
        job = {"TACHOGRAPH__HUB" if own else "TACHOGRAPH__ENDPOINT": endpoint, "PYTHONPATH": str(BOOTSTRAP)}
        run(tmp_path, "import tachograph\ntachograph.put_metric('loss', 0.5)", **proxy.environ, **job)
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
    assert bool(hub.asked) is own
    assert bool(proxy.asked) is not own


ports = st.integers(1, 65535)
loopback = st.one_of(
    st.sampled_from(["localhost", "LocalHost", "[::1]", "[0:0:0:0:0:0:0:1]"]),
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255)).map(lambda p: "127.{}.{}.{}".format(*p)),
)


@given(loopback, ports, st.sampled_from(["http", "https"]))
def test_every_address_of_loopback_goes_direct(host: str, port: int, scheme: str) -> None:
    """127.0.0.0/8, ::1 and localhost, with any port; the same port elsewhere does not, unless it is the hub's."""
    url, far = f"{scheme}://{host}:{port}/v1/metrics", f"{scheme}://{FAR}:{port}/v1/metrics"
    assert goes_direct(url, {})
    assert not goes_direct(far, {})
    assert not goes_direct(f"{scheme}://127.0.0.1.{FAR}:{port}", {})
    assert not goes_direct(far, {"TACHOGRAPH__ENDPOINT": f"{scheme}://{FAR}:{port}"})
    assert goes_direct(far, {"TACHOGRAPH__HUB": f"{scheme}://{FAR}:{port}"})
    assert not goes_direct(far, {"TACHOGRAPH__HUB": f"{scheme}://{FAR}:{port % 65535 + 1}"})


@given(loopback | st.just(FAR), st.sampled_from(["http", "https"]), st.sampled_from(["http", "https", "all"]))
def test_requests_finds_none_where_none_shall_be(host: str, scheme: str, variable: str) -> None:
    """With what a sender gives it, requests takes no proxy, however the environment names one."""
    from requests.sessions import merge_setting
    from requests.utils import select_proxy

    url = f"{scheme}://{host}:4318"
    given = {variable: "http://proxy", f"{variable}://{host.strip('[]').lower()}": "http://proxy", **no_proxies(url)}
    assert select_proxy(url, merge_setting(given, {})) is None
