"""Requests to a hub, right, odd and wrong, and the forbidden answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import NamedTuple
from urllib.parse import quote

import mutations
from hostile import INTS, TEXTS, text
from otlp_bodies import NAMES, RUNS, SIGNALS
from wire import Answer, request

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_MUTATED = 0.35  # of the bodies


class HubKind(NamedTuple):
    """One kind of requests.

    Attributes:
        attack: its name in the table of results.
        share: number of inputs of this kind in a thousand.
        make: returns a whole HTTP request.
        whole: its requests are HTTP, and so have an answer.
    """

    attack: str
    share: int
    make: Callable[[Random], bytes]
    whole: bool = True


def judge(kind: HubKind, answer: Answer) -> str:
    """Return a complaint about an answer: an error of the server's, none at all, or invalid JSON; empty for none."""
    if kind.whole and answer.status == 0:
        return "the connection was closed without an answer"
    if answer.status >= 500:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if answer.content_type.startswith(JSON) and answer.body:  # HEAD has none
        try:
            json.loads(answer.body, parse_constant=_no_number)
        except ValueError as error:
            return f"status {answer.status} with JSON that is none ({error}): {answer.body[:300]!r}"
    return ""


def _no_number(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def _protobuf(signal: str) -> Callable[[Random], bytes]:
    def make(random: Random) -> bytes:
        body = SIGNALS[signal](random).SerializeToString()
        if random.random() < _MUTATED:
            body = mutations.of_bytes(random, body)
        return _post(f"/v1/{signal}", body, PROTOBUF)

    return make


def _post(path: str, body: bytes, media_type: str, **headers: str) -> bytes:
    return request("POST", path, {"Content-Type": media_type, **headers}, body)


def _json(random: Random) -> bytes:
    signal = random.choice(("metrics", "logs", "logs", "traces"))
    body = mutations.as_json(random, SIGNALS[signal](random))
    return _post(f"/v1/{signal}", body, random.choice((JSON, JSON, f"{JSON}; charset=utf-8", "APPLICATION/JSON")))


def _gzip(random: Random) -> bytes:
    signal = random.choice(("metrics", "logs"))
    is_json = random.random() < 0.3
    message = SIGNALS[signal](random)
    body = mutations.as_json(random, message) if is_json else message.SerializeToString()
    packed = mutations.as_gzip(random, body)
    encoding = random.choice(("gzip",) * 12 + ("x-gzip", "GZIP", "identity", "deflate", "gzip, gzip", ""))
    return _post(f"/v1/{signal}", packed, JSON if is_json else PROTOBUF, **{"Content-Encoding": encoding})


def _nested(random: Random) -> bytes:
    signal = random.choice(tuple(SIGNALS))
    body = mutations.nested(random) if random.random() < 0.5 else random.randbytes(random.choice((0, 1, 30, 4000)))
    return _post(f"/v1/{signal}", body, random.choice((PROTOBUF, PROTOBUF, JSON)))


_PATHS = ("/v1/metrics", "/v1/logs", "/v1/traces", "/metrics", "/sd", "/healthz", "/", "/api/runs", "/static/", "/v1/")
_METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "é", "M" * 300)
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Host", ("localhost", "127.0.0.1:1", "[::1]", "evil.example", "", "localhost:99999", "localhost@evil", "é")),
    ("Origin", ("null", "http://localhost", "https://evil.example", "")),
    ("Sec-Fetch-Site", ("cross-site", "same-site", "same-origin", "none", "é")),
    ("Content-Length", ("0", "5", "-1", "+3", "1e3", "99999999999", "9" * 30, "", "0x10", "1, 1")),
    ("Transfer-Encoding", ("chunked", "gzip", "chunked, chunked", "identity", "")),
    ("Content-Encoding", ("gzip", "br", "deflate", "\x00", "gzip;q=0")),
    ("Content-Type", (PROTOBUF, JSON, "text/plain", "", f"{PROTOBUF};", ";", "é", "application/x-protobuf, a/b")),
    ("Accept-Encoding", ("gzip", "*", "gzip;q=0", "gzip;q=é", ";", "identity;q=1, *;q=0", "gzip;q=nan")),
    ("Expect", ("100-continue", "200-ok")),
    ("Connection", ("close", "upgrade", "keep-alive, close")),
    ("Upgrade", ("websocket", "h2c")),
    ("If-None-Match", ("*", '""', 'W/"a"', "é")),
    ("Authorization", ("Bearer x", "Basic Og==", "Bearer", "é")),
    ("Cookie", ("a=b", "tachograph-0=0", ";;;")),
    ("Last-Event-ID", ("1", "-1", "x", "1.2.3")),
    ("X" * 200, ("a" * 30_000, "")),
)


def _http(random: Random) -> bytes:
    """Return a request of odd headers, methods and targets, some of them none at all."""
    chosen = random.random()
    if chosen < 0.05:
        return random.choice((b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\0", random.randbytes(64) + b"\r\n\r\n"))
    headers: dict[str, str] = {}
    for name, values in random.sample(_HEADERS, random.randrange(1, 4)):
        headers[name] = random.choice(values)
    target = random.choice(_PATHS)
    if random.random() < 0.3:
        target += random.choice(("?", "?token=", "?token=x", "/", "//", "%00", "?escaping=allow-utf-8", "#a", "é", "%"))
    body = b"" if random.random() < 0.5 else b"5\r\nhello\r\n0\r\n\r\n"
    method = random.choice(("GET", "POST")) if random.random() < 0.8 else random.choice(_METHODS)
    made = request(method, target, headers, body)
    return mutations.of_bytes(random, made) + b"\r\n\r\n" if random.random() < 0.1 else made


_ACCEPTS = ("*/*", "text/plain", "application/openmetrics-text", "text/plain;version=1.0.0", ";", "q=", "é")
_VERSIONS = ("", ";version=1.0.0", ";version=0.0.1", ";version=9", ";q=0.5", ";q=nan", ";q=", ";escaping=allow-utf-8")


def _page(random: Random) -> bytes:
    """Return a request for one of the small pages with odd parameters; the large one is judged elsewhere."""
    accept = ",".join(random.choice(_ACCEPTS) + random.choice(_VERSIONS) for _ in range(random.randrange(4)))
    path = random.choice(("/sd", "/healthz", "/", "/static/", "/static/../../etc/passwd", "/static/index.html"))
    if random.random() < 0.004:
        path = "/metrics?escaping=" + quote(random.choice(("allow-utf-8", "values", "dots", *TEXTS)))
    return request("GET", path, {"Accept": accept, "Accept-Encoding": random.choice(("", "gzip", "*;q=0.1"))})


_NUMBERS = (*map(str, INTS), "", "0.5", "1e3", "1e400", "nan", "-inf", "٣", "1_000", " 1", "0x1", "9" * 19, "9" * 400)
_PARTS = ("curves", "samples", "events", "live", "", "charts", "%2e%2e")


def _studio(random: Random) -> bytes:
    """Return a question to the Studio's API."""
    run = random.choice(RUNS) if random.random() < 0.7 else text(random, huge=0)  # h11 takes 64 KiB
    path = "/api/runs"
    if random.random() < 0.95:
        path += "/" + quote(run.encode("utf-8", "replace"), safe=random.choice(("", "/", "/.~")))
    if random.random() < 0.85:
        path += "/" + random.choice(_PARTS)
    asked = []
    for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
        key = random.choice(
            ("metric", "group", "rank", "low", "high", "pairs", "series", "after", "limit", "name", "é")
        )
        if key in ("metric", "name", "group"):
            said = random.choice(NAMES) if random.random() < 0.7 else text(random, huge=0)
        else:
            said = random.choice(_NUMBERS) if random.random() < 0.5 else str(random.randrange(20))
        asked.append(f"{key}={quote(said.encode('utf-8', 'replace'))}")
    if random.random() < 0.003:
        asked += ["series=" + str(number) for number in range(3000)]
    headers = {"Accept-Encoding": random.choice(("", "gzip")), "Last-Event-ID": random.choice(("", "1", "x", "1-2"))}
    return request("GET", path + ("?" + "&".join(asked) if asked else ""), headers)


HUB_KINDS: dict[str, HubKind] = {
    "metrics": HubKind("OTLP metrics in protobuf, a third of them mutated", 220, _protobuf("metrics")),
    "logs": HubKind("OTLP logs in protobuf, a third of them mutated", 200, _protobuf("logs")),
    "traces": HubKind("OTLP traces in protobuf, a third of them mutated", 60, _protobuf("traces")),
    "json": HubKind("OTLP in JSON, changed in places", 130, _json),
    "gzip": HubKind("OTLP packed, cut, in members, as a bomb", 100, _gzip),
    "nested": HubKind("OTLP nested too deep, and random bytes", 40, _nested),
    "http": HubKind("odd headers, methods and targets", 60, _http, whole=False),
    "pages": HubKind("pages, with odd wishes", 30, _page),
    "studio": HubKind("questions to the Studio's API", 60, _studio),
}
