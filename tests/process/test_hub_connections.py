"""Connections on which nothing comes, or too slowly: they are closed, and keep nobody out."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub_requests import shown
from hubs import PROTOBUF, Serving, ask, command, descriptors, request, serving
from tachograph.hub._connections import ClientTimeouts

HEAD = b"POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"


def connected(url: str, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection from one of this machine's addresses."""
    port = int(url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def closes_within(connection: socket.socket, seconds: float) -> bool:
    """Tell whether the other end closes a connection, whatever it says before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def breaks(connection: socket.socket, data: bytes) -> bool:
    """Tell whether a connection breaks while it is sent something byte by byte, fifty of them a second."""
    try:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
    except OSError:
        return True
    return False


def healthy(url: str, source: str) -> float:
    """Return the seconds that an answer takes on a new connection from an address."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=5, source_address=(source, 0))
    connection.request("GET", "/healthz")
    assert json.loads(connection.getresponse().read())["status"] == "ok"
    connection.close()
    return time.monotonic() - began


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Serving]:
    """Return a hub with little patience."""
    with serving(tmp_path, timeouts=ClientTimeouts(first_byte=0.5, headers=0.5, body=0.7, answer=0.5)) as found:
        yield found


def test_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    """More silent connections than the hub has descriptors hinder no client of any address."""
    with command(tmp_path, "--quiet", wrapper=descriptors(256, 256)) as hub, contextlib.ExitStack() as silent:
        for _ in range(400):
            silent.enter_context(connected(hub.url))
        assert healthy(hub.url, "127.0.0.2") < 2
        assert healthy(hub.url, "127.0.0.1") < 2
        page = ask(hub.url, "/metrics").body
        assert sum(shown(page, "tachograph_hub_connections_closed_total", reason="crowded").values()) > 100
        hub.process.send_signal(signal.SIGTERM)
        assert hub.end() == 0


def test_a_crowd_does_not_end_what_is_under_way(tmp_path: Path) -> None:
    """While others crowd in, a request that is being sent gets its answer; connections that have waited longest go."""
    with command(tmp_path, "--quiet", wrapper=descriptors(256, 256)) as hub, contextlib.ExitStack() as silent:
        body = request(0.5).SerializeToString()
        busy = silent.enter_context(connected(hub.url))
        busy.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
        first, *_ = [silent.enter_context(connected(hub.url)) for _ in range(100)]
        kept = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=5)
        kept.request("GET", "/healthz")
        kept.getresponse().read()
        for _ in range(100):
            silent.enter_context(connected(hub.url))
        assert closes_within(first, 5)
        busy.sendall(body[10:])
        assert busy.recv(4096).startswith(b"HTTP/1.1 200")
        kept.request("GET", "/healthz")
        assert kept.getresponse().status == 200
        kept.close()


def test_without_a_first_byte_a_connection_is_closed(hub: Serving) -> None:
    """Whoever sends nothing is let go, which is counted; that is ten seconds where nobody says otherwise."""
    with connected(hub.url) as connection:
        assert closes_within(connection, 5)
    assert shown(ask(hub.url, "/metrics").body, "tachograph_hub_connections_closed_total", reason="silent")
    assert ClientTimeouts().first_byte == 10


def test_headers_that_dribble(hub: Serving) -> None:
    """Headers that come byte by byte have their time, on the first request as on a later one."""
    for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with connected(hub.url) as connection:
            connection.sendall(before)
            began = time.monotonic()
            assert breaks(connection, HEAD * 10)
            assert time.monotonic() - began < 5
    assert shown(ask(hub.url, "/metrics").body, "tachograph_hub_connections_closed_total", reason="slow")


@pytest.mark.parametrize("path", [b"/v1/metrics", b"/no/such/path"])
def test_a_body_that_dribbles(hub: Serving, path: bytes) -> None:
    """A body has its time too, also where nobody reads it because the answer has been given already."""
    with connected(hub.url) as connection:
        connection.sendall(HEAD.replace(b"/v1/metrics", path) + b"Content-Length: 9999\r\n\r\n")
        began = time.monotonic()
        assert breaks(connection, b"x" * 500)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(("method", "path", "answered"), [(b"HEAD", b"/metrics", b""), (b"POST", b"/no/path", b"404")])
def test_a_chunk_that_is_none(
    hub: Serving, caplog: pytest.LogCaptureFixture, method: bytes, path: bytes, answered: bytes
) -> None:
    """A wrong chunk ends the connection, also where no 400 can be said: the answer has no body, or is given already."""
    with connected(hub.url) as connection:
        connection.sendall(b"%s %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % (method, path))
        if answered:
            assert connection.recv(65536).startswith(b"HTTP/1.1 " + answered)
        connection.sendall(b"no length\r\n")
        assert closes_within(connection, 5)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.timing
def test_an_answer_that_is_not_taken(hub: Serving) -> None:
    """A client that asks for a large page and does not read it holds it for so long only."""
    body = request(*map(float, range(20_000))).SerializeToString()
    assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", int(hub.url.rpartition(":")[2])))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8)

        def is_counted() -> bool:
            page = ask(hub.url, "/metrics").body
            return bool(shown(page, "tachograph_hub_connections_closed_total", reason="deaf"))

        assert eventually(is_counted)


def test_a_kept_connection_may_rest(hub: Serving) -> None:
    """Between two requests a client may be silent for longer than before the first."""
    connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=5)
    for body in (None, b"x" * 10, None):
        connection.request("GET" if body is None else "POST", "/healthz", body)
        connection.getresponse().read()
        sock = connection.sock
        time.sleep(1)
    assert connection.sock is sock
    connection.close()
    assert not shown(ask(hub.url, "/metrics").body, "tachograph_hub_connections_closed_total")


def eventually(condition: Callable[[], bool]) -> bool:
    """Tell whether something comes true within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False
