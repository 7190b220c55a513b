"""The faults of an OTLP/HTTP backend."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from bad_accounts import Account, otlp_items
from bad_backends import Backend, Fault, certificate, otlp
from bad_http import Behaviour, Exchange, HttpServer, damaged, deaf, reset

PROTOBUF = {"Content-Type": "application/x-protobuf"}
_AWAY = 0.7  # seconds
_FIRST = 3  # requests


def takes(exchange: Exchange) -> None:
    """Take it."""
    exchange.reply("200 OK", headers=PROTOBUF)


def refuses(status: str, headers: Callable[[], dict[str, str]] = dict) -> Behaviour:
    """Return a behaviour: an answer with an error, in which the client's secret is."""

    def answer(exchange: Exchange) -> None:
        exchange.reply(status, f"not you, {exchange.request.headers.get('x-key')}".encode(), headers())

    return answer


def at_first(behaviour: Behaviour, requests: int = _FIRST) -> Behaviour:
    """Return a behaviour for the first requests; the others are taken."""

    def answer(exchange: Exchange) -> None:
        (behaviour if exchange.request.number <= requests else takes)(exchange)

    return answer


def answers(head: bytes, body: bytes = b"", *, pause: float = 0.0, then: str = "close", sure: bool = True) -> Behaviour:
    """Return a behaviour: it takes the request, and sends an answer of its own making.

    Args:
        head: the first bytes.
        body: the further ones.
        pause: seconds between two bytes; 0 for all at once.
        then: ``close``, ``silence`` or ``go on``.
        sure: whether the client can know from it that the request was taken.
    """

    def answer(exchange: Exchange) -> None:
        exchange.take()
        if pause:
            exchange.trickle(head + body, pause)
        else:
            exchange.send(head + body)
        if sure:
            exchange.acknowledged(exchange.request.items)
        if then == "silence":
            exchange.silence()
        if then != "go on":
            exchange.sock.shutdown(socket.SHUT_RDWR)

    return answer


def endless(head: bytes, part: bytes, *, sure: bool) -> Behaviour:
    """Return a behaviour: an answer that never ends."""

    def answer(exchange: Exchange) -> None:
        exchange.take()
        exchange.send(head)
        if sure:
            exchange.acknowledged(exchange.request.items)
        while not exchange.server.stopped.wait(0.01):
            exchange.send(part)

    return answer


def resets_after_taking(exchange: Exchange) -> None:
    """Take it, and break off before the answer."""
    exchange.take()
    exchange.reset()


def partial_success(exchange: Exchange) -> None:
    """Take all but two."""
    rejected = min(2, len(exchange.request.items))
    body = _partial(exchange, rejected, f"two too many, {exchange.request.headers.get('x-key')}")
    exchange.reply("200 OK", body, PROTOBUF, takes=len(exchange.request.items) - rejected)


def partial_junk(exchange: Exchange) -> None:
    """Take all, and answer with a partial success that is impossible."""
    number = exchange.request.number
    body = (
        _partial(exchange, -5, "fewer than none"),
        _partial(exchange, 0, "a warning alone"),
        b"\xff\xfe no protobuf",
        _partial(exchange, 0, "x" * 100_000),
    )[number % 4]
    exchange.reply("200 OK", body, PROTOBUF)


def partial_lies(exchange: Exchange) -> None:
    """Say that more were rejected than came, and take none."""
    exchange.reply("200 OK", _partial(exchange, 2**62, "all of them"), PROTOBUF, takes=0)


def _partial(exchange: Exchange, rejected: int, why: str) -> bytes:
    answer: Message
    if exchange.request.path.endswith("logs"):
        logs = answer = ExportLogsServiceResponse()
        logs.partial_success.rejected_log_records, logs.partial_success.error_message = rejected, why
    else:
        metrics = answer = ExportMetricsServiceResponse()
        metrics.partial_success.rejected_data_points, metrics.partial_success.error_message = rejected, why
    return answer.SerializeToString()


def swallows(exchange: Exchange) -> None:
    """Say that the third request was taken, and take nothing of it."""
    if exchange.request.number == _FIRST:
        exchange.reply("200 OK", headers=PROTOBUF, takes=0)
    else:
        takes(exchange)


def loops(exchange: Exchange) -> None:
    """Redirect to itself."""
    exchange.reply("307 Temporary Redirect", headers={"Location": exchange.request.path})


def keeps_quiet(server: HttpServer, sock: socket.socket, *, reads: bool) -> None:
    """Accept, and answer nothing."""
    if reads:
        sock.settimeout(0.2)
        while not server.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                if not sock.recv(65536):
                    return
    server.stopped.wait()


def closes(_server: HttpServer, sock: socket.socket) -> None:
    """Close at once."""
    sock.close()


def resets_in_the_middle(_server: HttpServer, sock: socket.socket) -> None:
    """Break off after the first bytes of a request."""
    sock.recv(100)
    reset(sock)


Accepts = Callable[[HttpServer, socket.socket], None]


@contextlib.contextmanager
def serving(
    account: Account,
    _folder: Path,
    *,
    behaviour: Behaviour = takes,
    accepts: Accepts | None = None,
    scheme: str = "http",
    back: str = "",
) -> Iterator[Backend]:
    """Put up a server; ``back`` says when it listens: ``soon`` or at the ``end``, at once by default."""
    server = HttpServer(account, otlp_items, behaviour, accepts=accepts, listens=not back)
    timer = threading.Timer(_AWAY, server.come_back)
    if back == "soon":
        timer.start()

    def end() -> None:
        server.training_ended.set()
        if back == "end":
            server.come_back()

    try:
        yield Backend(otlp(server.port, scheme=scheme), training_ended=end)
    finally:
        timer.cancel()
        server.close()


@contextlib.contextmanager
def over_tls(account: Account, folder: Path, *, until: str, trusted: bool, scheme: str = "https") -> Iterator[Backend]:
    """Put up a server with a certificate of its own."""
    key, made = certificate(folder, until=until)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    server = HttpServer(account, otlp_items, takes, tls=context)
    environ = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(made)} if trusted else {}
    try:
        yield Backend(otlp(server.port, scheme=scheme), environ)
    finally:
        server.close()


@contextlib.contextmanager
def redirecting(account: Account, _folder: Path) -> Iterator[Backend]:
    """Put up a server that redirects to another one, to which nothing may go."""
    elsewhere = HttpServer(Account(), otlp_items, takes)
    visits = itertools.count()

    def visited(_exchange: Exchange) -> None:
        next(visits)

    elsewhere.behaviour = visited
    there = f"http://127.0.0.1:{elsewhere.port}/v1/metrics"
    server = HttpServer(
        account, otlp_items, lambda exchange: exchange.reply("308 Elsewhere", headers={"Location": there})
    )

    def wrong(_recorded: int, _lost: int) -> list[str]:
        went = next(visits)
        return [f"{went} requests followed the redirect"] if went else []

    try:
        yield Backend(otlp(server.port), wrong=wrong)
    finally:
        server.close()
        elsewhere.close()


@contextlib.contextmanager
def never_accepting(_account: Account, _folder: Path) -> Iterator[Backend]:
    """Put up a port whose backlog is full."""
    with deaf() as port:
        yield Backend(otlp(port))


def until_the_end(exchange: Exchange) -> None:
    """Answer 503 until the training has ended."""
    (takes if exchange.server.training_ended.is_set() else refuses("503 Busy"))(exchange)


def _fault(name: str, behaviour: Behaviour = takes, **more: Any) -> Fault:
    told = {key: more.pop(key) for key in ("takes", "takes_late", "complete") if key in more}
    return Fault(name, "HTTP", partial(serving, behaviour=behaviour, **more), **told)


_OK = b"HTTP/1.1 200 OK\r\n"
_GZIP = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
_LATER = {"takes": True, "complete": True}


def _retry_after(value: str) -> Callable[[], dict[str, str]]:
    return lambda: {"Retry-After": value}


FAULTS = (
    _fault("none", **_LATER),
    Fault("never accepts, its backlog is full", "HTTP", never_accepting),
    _fault("accepts and reads nothing", accepts=partial(keeps_quiet, reads=False)),
    _fault("reads and never answers", accepts=partial(keeps_quiet, reads=True)),
    _fault("closes at once", accepts=closes),
    _fault("reset in the middle of the request", accepts=resets_in_the_middle),
    _fault("reset after each request was taken", resets_after_taking),
    _fault("reset after the first three were taken", at_first(resets_after_taking), **_LATER),
    _fault("answers byte by byte", answers(_OK, b"Content-Length: 0\r\n\r\n", pause=0.005, then="go on"), takes=True),
    _fault("an answer whose header never ends", endless(_OK, b"X-More: 1\r\n", sure=False)),
    _fault(  # its status says that it has taken them
        "an answer whose body never ends",
        endless(_OK + b"Content-Length: 9999999\r\n\r\n", b"x", sure=False),
        takes_late=True,
    ),
    _fault("interim answers without end", endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", sure=False)),
    _fault("an answer shorter than it says", answers(_OK, b"Content-Length: 99\r\n\r\nshort"), **_LATER),
    _fault("an answer longer than it says", answers(_OK, b"Content-Length: 2\r\n\r\n" + b"long" * 99), **_LATER),
    _fault("an answer of negative length", answers(_OK, b"Content-Length: -7\r\n\r\n"), **_LATER),
    _fault("an answer in bad gzip", answers(_OK, _GZIP % 30 + b"\x1f\x8b" + b"no gzip at all, far from it "), **_LATER),
    _fault("an answer in damaged gzip", answers(_OK, _GZIP % len(damaged(b"x" * 99)) + damaged(b"x" * 99)), **_LATER),
    _fault("half the answer, then silence", answers(_OK, b"Content-Le", then="silence", sure=False)),
    _fault("HTTP/0.9 junk", answers(b"<html>hello</html>\n", sure=False)),
    _fault("503", refuses("503 Busy")),
    _fault("503 with Retry-After: 1", refuses("503 Busy", _retry_after("1"))),
    _fault("503 with Retry-After as a date", refuses("503 Busy", lambda: {"Retry-After": formatdate(usegmt=True)})),
    _fault("503 with Retry-After: 10000000000", refuses("503 Busy", _retry_after("1" + "0" * 400))),
    _fault("503 with Retry-After: -3", refuses("503 Busy", _retry_after("-3"))),
    _fault("503 at first, then takes", at_first(refuses("503 Busy")), **_LATER),
    _fault("503 with Retry-After: 30 at first, then takes", at_first(refuses("503", _retry_after("30")), 1), **_LATER),
    _fault("503 until the end, then takes", until_the_end, **_LATER),
    _fault("429", refuses("429 Slow")),
    _fault("429 with Retry-After: 1", refuses("429 Slow", _retry_after("1"))),
    _fault("429 at first, then takes", at_first(refuses("429 Slow", _retry_after("1")), 1), **_LATER),
    _fault("400", refuses("400 Bad")),
    _fault("401", refuses("401 Unauthorized")),
    _fault("404", refuses("404 Not Found")),
    _fault("413", refuses("413 Too Large")),
    _fault("500", refuses("500 Broken")),
    _fault("501", refuses("501 Not Implemented")),
    _fault("204, and takes", lambda exchange: exchange.reply("204 No Content"), **_LATER),
    _fault("partial success", partial_success, takes=True),
    _fault("partial success with junk in it", partial_junk, **_LATER),
    _fault("partial success, more rejected than sent", partial_lies, takes=True),
    _fault("a redirect loop", loops),
    Fault("a redirect elsewhere", "HTTP", redirecting),
    _fault("plain HTTP where TLS is expected", scheme="https"),
    Fault(
        "TLS where plain HTTP is expected",
        "HTTP",
        partial(over_tls, until="20400101000000Z", trusted=True, scheme="http"),
    ),
    Fault("a self-signed certificate", "HTTP", partial(over_tls, until="20400101000000Z", trusted=False)),
    Fault("an expired certificate", "HTTP", partial(over_tls, until="20200201000000Z", trusted=True)),
    _fault("away at first, then back", back="soon", **_LATER),
    _fault("away until the end, then back", back="end", **_LATER),
)
# Not to be survived: they show that the judge finds what is lost without a count.
LIES = (_fault("swallows a request and answers 200", swallows, takes=True),)
