"""OTLP over HTTP, against a receiver that behaves well or badly."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http.version import __version__ as exporter_version
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from receivers import SECRET, batch, dropped, over_http, receiving, recorded, self_signed, send, values
from tachograph.exporters.delivery import Retry
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.http import HttpSender
from tachograph.recording.registry import Registry
from tachograph.version import __version__

BROKEN: list[tuple[dict[str, str], bytes]] = [
    ({"Content-Length": "100", "Connection": "close"}, b"cut off"),
    ({"Transfer-Encoding": "chunked", "Connection": "close"}, b"40\r\ncut off"),
    ({"Transfer-Encoding": "chunked", "Connection": "close"}, b"no length\r\n"),
    ({"Content-Encoding": "gzip"}, b"not compressed"),
]


@pytest.fixture
def registry() -> Registry:
    """Return a registry in which one value was recorded."""
    return recorded()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_http_carries_the_request_as_specified(registry: Registry, compression: Any) -> None:
    """A request is posted once, as protobuf, with the user's headers, compressed if asked for."""
    with receiving() as server:
        assert send(over_http(server.url, headers=(("x-key", "k"),), compression=compression), registry)
    ((path, headers, body),) = server.requests
    assert path == "/v1/metrics"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["x-key"] == "k"
    assert headers.get("Content-Encoding", "none") == compression
    assert values(gzip.decompress(body) if compression == "gzip" else body) == [0.5]
    assert dropped(registry) == {}


def test_http_says_which_product_sends(registry: Registry) -> None:
    """The agent is Tachograph, and behind it the exporter for Python, both with versions; a user's own one wins."""
    with receiving() as server:
        assert send(over_http(server.url), registry)
        assert send(over_http(server.url, headers=(("user-agent", "mine/1"),)), registry)
    found = [headers.get("user-agent") for _, headers, _ in server.requests]
    assert found == [f"Tachograph/{__version__} OTel-OTLP-Exporter-Python/{exporter_version}", "mine/1"]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_http_tries_again_where_the_receiver_is_busy(registry: Registry, status: int) -> None:
    """Throttling and gateway errors are tried again, and nothing is lost."""
    with receiving((status, {}, b"")) as server:
        assert send(over_http(server.url), registry)
    assert len(server.requests) == 2
    assert server.requests[0][2] == server.requests[1][2]
    assert dropped(registry) == {}


ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a status line": (b"HTTP/1.1 200 ", b"O"),
    "a header": (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"),
}


@contextlib.contextmanager
def dripping(first: bytes, then: bytes) -> Iterator[int]:
    """Answer the first connection a byte or a line at a time, for ever; the others properly. Yields the port."""
    ended = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError), server.accept()[0] as connection:
            connection.sendall(first)
            while not ended.wait(0.02):
                connection.sendall(then)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            ended.set()
            thread.join()


WAYS = ("", "user:word@")  # directly, and by requests, which knows credentials


@pytest.mark.parametrize("user", WAYS)
@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_that_never_comes_to_its_end_takes_the_time_out_in_all(what: str, user: str) -> None:
    """A receiver that sends a little each moment, for ever, holds a request up for the time-out, not longer."""
    with dripping(*ENDLESS[what]) as port:
        sender = HttpSender(over_http(f"http://{user}127.0.0.1:{port}/v1/metrics", timeout=0.5))
        began = time.monotonic()
        with pytest.raises(Retry) as found:
            sender(b"x" * 2**17, 10.0)
        assert time.monotonic() - began < 3
        assert found.value.uncertain
        sender.close()


@pytest.mark.parametrize("user", WAYS)
def test_a_request_that_never_left_is_certain(user: str) -> None:
    """Where no connection came about the receiver has nothing of it, and the next attempt is no second one for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Retry) as found:
        HttpSender(over_http(f"http://{user}127.0.0.1:{port}/v1/metrics"))(b"x", 1.0)
    assert not found.value.uncertain


@contextlib.contextmanager
def keeping(answers: int) -> Iterator[tuple[int, list[int]]]:
    """Answer so many requests on each connection, then close it without a word.

    Yields the port, and a list with how many requests each connection brought.
    """
    brought: list[int] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                brought.append(0)
                with connection, connection.makefile("rb") as received:
                    for _ in range(answers):
                        length = 0
                        while (line := received.readline()).strip():
                            if line.lower().startswith(b"content-length:"):
                                length = int(line.split(b":")[1])
                        if not line:
                            break
                        received.read(length)
                        brought[-1] += 1
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(server.getsockname()[1]), brought
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("user", WAYS)
def test_a_connection_is_kept_until_the_receiver_closes_it(user: str) -> None:
    """Two requests share a connection; the third, after the receiver has closed it, has a new one, and arrives once."""
    with keeping(2) as (port, brought):
        sender = HttpSender(over_http(f"http://{user}127.0.0.1:{port}/v1/metrics"))
        for _ in range(2):
            assert sender(b"x" * 100_000, 5.0) == b""
        time.sleep(0.2)  # for the receiver's end of the connection to be noticed
        assert sender(b"x", 5.0) == b""
        sender.close()
    assert brought == [2, 1]


def test_closing_leaves_a_post_under_way_alone() -> None:
    """It is ended by its answer or its time, in its own thread: another file may have the socket's number meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = HttpSender(over_http(f"http://127.0.0.1:{server.getsockname()[1]}/v1/metrics"))
        found: list[bytes] = []
        posting = threading.Thread(target=lambda: found.append(sender(b"x", 10.0)))
        posting.start()
        with server.accept()[0] as connection:
            connection.recv(2**16)
            sender.close()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            posting.join(5)
            connection.settimeout(5)
            while connection.recv(2**16):  # it is closed once the post is done
                pass
    assert found == [b"ok"]


def test_http_waits_as_long_as_the_receiver_says(registry: Registry) -> None:
    """Retry-After is kept."""
    with receiving((503, {"Retry-After": "1"}, b"")) as server:
        began = time.monotonic()
        assert send(over_http(server.url), registry)
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
def test_http_refusals_are_counted(registry: Registry, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """What the receiver refuses is not tried again, but counted; the log has its reason, and no secret."""
    answer = (
        status,
        {"Content-Type": "application/x-protobuf"},
        Status(message=f"bad key {SECRET}").SerializeToString(),
    )
    with receiving(answer) as server:
        assert not send(over_http(server.url, headers=(("authorization", SECRET),)), registry)
    assert len(server.requests) == 1
    assert dropped(registry) == {"rejected": 1}
    assert f"answered {status}" in caplog.text
    assert "bad key" in caplog.text
    assert SECRET not in caplog.text


def test_http_redirects_are_not_followed(registry: Registry) -> None:
    """A redirect would carry the user's headers to another host: it is a refusal."""
    with receiving() as other, receiving((307, {"Location": other.url}, b"")) as server:
        assert not send(over_http(server.url, headers=(("authorization", SECRET),)), registry)
    assert other.requests == []
    assert dropped(registry) == {"rejected": 1}


def test_http_netrc_does_not_replace_the_users_authorization(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Authorization header that was set is the one that is sent, whatever ~/.netrc holds."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with receiving() as server:
        assert send(over_http(server.url, headers=(("Authorization", "Bearer t"),)), registry)
    assert server.requests[0][1]["Authorization"] == "Bearer t"


def test_a_partial_success_is_counted(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """Points that the receiver took the request without are counted, and its message logged once, without secrets."""
    for number in range(9):
        registry.group("g").instrument(f"loss_{number}").record(0.5)
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 7
    answer.partial_success.error_message = f"too old, {SECRET}"
    with receiving((200, {}, answer.SerializeToString())) as server:
        assert send(over_http(server.url, headers=(("x-key", SECRET),)), registry)
    assert dropped(registry) == {"rejected": 7}
    assert "too old" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("said", "counted"), [(2**62, {"rejected": 1}), (-5, {}), (0, {})])
def test_no_more_is_lost_than_was_sent(registry: Registry, said: int, counted: dict[str, float]) -> None:
    """A receiver that says it rejected more points than there were, or fewer than none, does not spoil the count."""
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = said
    with receiving((200, {}, answer.SerializeToString())) as server:
        assert send(over_http(server.url), registry)
    assert dropped(registry) == counted


def test_an_answer_that_is_no_protobuf_is_a_success_all_the_same(registry: Registry) -> None:
    """A server that answers 200 with a text of its own has taken the request."""
    with receiving((200, {}, b"\xff\xff thanks")) as server:
        assert send(over_http(server.url), registry)
    assert dropped(registry) == {}


@pytest.mark.parametrize(("headers", "answer"), BROKEN)
@pytest.mark.parametrize("status", [200, 503])
def test_a_body_that_cannot_be_read_changes_nothing(
    registry: Registry, status: int, headers: dict[str, str], answer: bytes
) -> None:
    """Whether a request was taken, is to be sent again or is lost, the status says, whatever comes after it."""
    with receiving((status, headers, answer)) as server:
        assert send(over_http(server.url), registry)
    assert len(server.requests) == (1 if status == 200 else 2)
    assert dropped(registry) == {}


def test_an_answer_without_end_holds_up_nothing(registry: Registry) -> None:
    """A receiver that takes a request, and whose answer goes on byte by byte for ever, has the time of one request."""
    stopped = threading.Event()

    def answer(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(2**16)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n")
                    while not stopped.wait(0.05):
                        connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        exporter = OtlpExporter(
            {"metrics": over_http(f"http://127.0.0.1:{server.getsockname()[1]}/v1/metrics", timeout=0.5)}, registry
        )
        for _ in range(3):
            exporter(batch(registry))
        assert exporter.flush(10)
        exporter.close(1)
        stopped.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert dropped(registry) == {}


@pytest.mark.parametrize(("headers", "answer"), BROKEN)
def test_a_refusal_whose_body_cannot_be_read_is_one(
    registry: Registry, headers: dict[str, str], answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and the log has the receiver's status."""
    with receiving((400, headers, answer)) as server:
        assert not send(over_http(server.url), registry)
    assert len(server.requests) == 1
    assert dropped(registry) == {"rejected": 1}
    assert "answered 400" in caplog.text


def test_http_trusts_the_certificate_that_was_named(registry: Registry, tmp_path: Path) -> None:
    """TLS is verified against the user's certificate, and fails without it."""
    key, made = self_signed(tmp_path)
    with receiving() as server:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(made, key)
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        url = server.url.replace("http:", "https:")
        assert send(over_http(url, certificate=str(made)), registry)
        assert not send(over_http(url), registry, timeout=0.5)
    assert len(server.requests) == 1
