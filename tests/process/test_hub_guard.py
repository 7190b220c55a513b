"""The guard: no web page of another origin talks to a hub, and beyond loopback nobody without its token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from hubs import JSON, ask, serving
from tachograph.hub.guard import Guard, names_loopback, read_token

PATHS = ["/", "/metrics", "/sd", "/healthz", "/v1/metrics", "/nothing"]
TOKEN = "a-long-token"  # noqa: S105 - the tests' own


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a hub on loopback."""
    with serving(tmp_path_factory.mktemp("hub")) as hub:
        yield hub.url


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4318", "127.0.0.1.evil.example", "localhost@evil", "", "10.0.0.1"]
)
def test_a_name_that_was_pointed_at_loopback_reaches_nothing(url: str, path: str, host: str) -> None:
    """DNS rebinding: where Host does not name loopback, every path answers 403."""
    assert ask(url, path, Host=host).status == 403
    assert ask(url, path, b"{}", Host=host, content_type=JSON).status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:9999", "[::1]:1", "[::1]"])
def test_loopback_by_any_name_and_port_is_let_in(url: str, host: str) -> None:
    """The hub is reached as localhost or an address of loopback, through a tunnel from another port, too."""
    assert ask(url, "/healthz", Host=host).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "http://127.0.0.1", "https://localhost", ""]
)
def test_a_page_of_another_origin_can_neither_post_nor_read(url: str, origin: str) -> None:
    """Where Origin is not the hub's own, it answers 403, and no answer ever has a CORS header."""
    for answer in (
        ask(url, "/metrics", Origin=origin),
        ask(url, "/v1/metrics", b"{}", Origin=origin, content_type=JSON),
    ):
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = ask(url, "/v1/metrics", Origin=origin, method="OPTIONS")
    assert preflight.status == 403
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_the_hubs_own_page_may_read_and_post(url: str) -> None:
    """A page that the hub itself served is of the same origin, also through a tunnel."""
    for host in (url.partition("://")[2], "localhost:9000"):
        origin = f"http://{host}"
        assert ask(url, "/metrics", Host=host, Origin=origin, Sec_Fetch_Site="same-origin").status == 200
        assert ask(url, "/v1/metrics", b"{}", Host=host, Origin=origin, content_type=JSON).status == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("cross-site", "navigate", 403),
        ("same-site", "no-cors", 403),
        ("same-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_what_a_browser_says_of_the_requests_origin_counts(url: str, site: str, mode: str, status: int) -> None:
    """A page of another site gets nothing; a link on another page of this machine leads here."""
    assert ask(url, "/metrics", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode).status == status


def test_a_browser_cannot_take_an_answer_for_something_else(url: str) -> None:
    """Every answer, refusals included, forbids sniffing, embedding and scripts."""
    for answer in (ask(url, "/"), ask(url, "/metrics", Host="evil"), ask(url, "/<script>"), ask(url, "/v1/logs", b"")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert b"<script>" not in answer.body


def test_a_token_is_needed_for_all_but_what_prometheus_reads(tmp_path: Path) -> None:
    """With a token, only /metrics, /sd and /healthz answer without it."""
    with serving(tmp_path, token=TOKEN) as hub:
        for path in PATHS:
            public = path in {"/metrics", "/sd", "/healthz"}
            assert (ask(hub.url, path).status == 401) is not public
        for wrong in (
            "",
            "Bearer",
            "Bearer x",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN} {TOKEN}",
            "Bearer é",
        ):
            answer = ask(hub.url, "/v1/metrics", b"{}", content_type=JSON, Authorization=wrong)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN.encode() not in answer.body
        right = ask(hub.url, "/v1/metrics", b"{}", content_type=JSON, Authorization=f"bearer {TOKEN}")
        assert right.status == 200


def answered(guard: Guard, path: str, **headers: str) -> int:
    """Return the status with which a guard answers a request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    pairs = [(name.replace("_", "-").lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": pairs}
    asyncio.run(guard(scope, receive, send))
    return int(sent[0]["status"])


def test_beyond_loopback_any_host_is_right_and_other_origins_are_not() -> None:
    """A hub for other machines has names that it cannot know; pages of other origins stay out."""
    guard = Guard(PlainTextResponse("in"), loopback=False, token=TOKEN)
    assert answered(guard, "/metrics", Host="node-7.cluster:4318") == 200
    assert answered(guard, "/", Host="node-7.cluster:4318") == 401
    assert answered(guard, "/", Host="node-7.cluster:4318", Authorization=f"Bearer {TOKEN}") == 200
    assert answered(guard, "/metrics", Host="node-7.cluster:4318", Origin="http://evil.example") == 403
    assert answered(guard, "/metrics", Host="node-7", Origin="http://node-7") == 200
    assert answered(guard, "/v1/logs", Host="node-7/metrics?") == 401


def test_headers_given_twice_let_nobody_in() -> None:
    """Two Host, Origin or Authorization headers match nothing: whoever stands between may read the other one."""
    guard = Guard(PlainTextResponse("in"), loopback=True, token=TOKEN)
    bearer = f"Bearer {TOKEN}"

    def with_twice(name: str, value: str) -> int:
        pairs = {"host": "localhost", "authorization": bearer}
        scope_headers = [(key.encode(), text.encode()) for key, text in pairs.items()]
        scope_headers += [(name.encode(), value.encode())]
        statuses: list[int] = []

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": scope_headers}
        asyncio.run(guard(scope, receive, send))
        return statuses[0]

    assert with_twice("host", "localhost") == 403
    assert with_twice("authorization", bearer) == 401


@given(st.text(max_size=40))
def test_no_other_name_is_loopback(host: str) -> None:
    """Whatever names loopback is localhost, 127.x.x.x or [::1], and perhaps a port."""
    if names_loopback(host):
        name = host.lower().removeprefix("[").split("]")[0] if host.startswith("[") else host.lower().split(":")[0]
        assert name == "localhost" or name.startswith("127.") or "::1" in name or "0:1" in name


@given(st.from_regex(r"(localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])[.@/\\#? \x00][a-z.]{1,10}", fullmatch=True))
def test_nothing_may_follow_the_name(host: str) -> None:
    """A name that only begins like loopback's is another one."""
    assert not names_loopback(host)


def test_where_a_token_is_needed(tmp_path: Path) -> None:
    """Beyond loopback a token must be given, by file or variable; on loopback only a file asks for one."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(None, {}, loopback=True) is None
    assert read_token(None, {"TACHOGRAPH_HUB_TOKEN": TOKEN}, loopback=True) is None
    assert read_token(None, {"TACHOGRAPH_HUB_TOKEN": TOKEN}, loopback=False) == TOKEN
    assert read_token(file, {"TACHOGRAPH_HUB_TOKEN": "other"}, loopback=False) == TOKEN
    assert read_token(file, {}, loopback=True) == TOKEN
    with pytest.raises(ValueError, match="--token-file or set TACHOGRAPH_HUB_TOKEN"):
        read_token(None, {}, loopback=False)


@pytest.mark.parametrize("text", ["", " \n", "two words", "two\nlines", "schlüssel"])
def test_a_wrong_token_is_no_token(tmp_path: Path, text: str) -> None:
    """A file that is empty or holds what no header carries is an error that does not show what it holds."""
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="must be a token") as raised:
        read_token(file, {}, loopback=False)
    assert not text.strip() or text not in str(raised.value)
    with pytest.raises(ValueError, match="cannot read --token-file"):
        read_token(tmp_path / "missing", {}, loopback=False)
