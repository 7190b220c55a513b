"""The guard of the hub: it refuses web pages of another origin, and beyond loopback requests without the token.

A browser lets any page post to a port of this machine, and a name that an attacker points at 127.0.0.1 lets the page
read the answer, too (DNS rebinding). Both show in headers that no script can set: Host, Origin and Sec-Fetch-Site
(Fetch standard, "Forbidden request-header"; W3C, "Fetch Metadata Request Headers").

A browser sends no token by itself: a link with ``/?token=`` gives it a cookie, with which it may look and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "TACHOGRAPH_HUB_TOKEN"  # noqa: S105 - the variable's name
PUBLIC = frozenset({"/metrics", "/sd", "/healthz"})
_PAGE = "/"
_OF_THE_STUDIO = ("/api/", "/static/")  # and the page

# RFC 9110, "Host and :authority": a name or an address, and perhaps a port.
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?", re.IGNORECASE)
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class _Objection(Exception):  # noqa: N818 - an answer, not a fault
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """Lets a request through to ``app``, or answers 401 or 403 with one line that says why.

    Args:
        app: the guarded application.
        loopback: whether the hub listens on loopback; then every Host must name loopback, with any port.
        token: required in ``Authorization: Bearer`` for all but :data:`PUBLIC` paths; None for no such rule.
    """

    def __init__(self, app: ASGIApp, *, loopback: bool, token: str | None) -> None:
        self._app = app
        self._loopback = loopback
        self._token = None if token is None else token.encode()
        self._cookie = b"" if token is None else _cookie(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                said = {name.lower() for name, _ in given}
                message["headers"] = [*given, *(each for each in _ALWAYS if each[0] not in said)]
            await send(message)

        try:
            self._check(scope)
        except _Objection as objection:
            headers = {"WWW-Authenticate": "Bearer"} if objection.status == HTTPStatus.UNAUTHORIZED else None
            answer = PlainTextResponse(f"{objection.status.value}: {objection}\n", objection.status, headers)
            await answer(scope, receive, send_with_headers)
            return
        if self._token is not None and self._is_link(scope):
            found = RedirectResponse(_PAGE, HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})
            kept = f"{self._cookie.decode()}; Path=/; HttpOnly; SameSite=Strict"
            found.headers.update({"Set-Cookie": kept, "Referrer-Policy": "no-referrer"})
            await found(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _is_link(self, scope: Scope) -> bool:
        """Tell whether a request is the link that gives a browser its cookie; the guard has checked it."""
        return scope["method"] == "GET" and scope["path"] == _PAGE and bool(_token_of(scope))

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        host = _only(headers, b"host")
        if self._loopback and not names_loopback(host):
            raise _Objection(HTTPStatus.FORBIDDEN, "this hub serves only this machine: use localhost or 127.0.0.1")
        self._check_origin(scope, headers, host)
        if self._token is not None and scope["path"] not in PUBLIC and not self._has_cookie(scope, headers):
            self._check_token(_only(headers, b"authorization") or _token_of(scope), self._token)

    def _has_cookie(self, scope: Scope, headers: dict[bytes, list[bytes]]) -> bool:
        looks = scope["method"] in ("GET", "HEAD") and not _token_of(scope)
        if not looks or not (scope["path"] == _PAGE or scope["path"].startswith(_OF_THE_STUDIO)):
            return False
        sent = (each.strip() for line in headers.get(b"cookie", ()) for each in line.split(b";"))
        return any(hmac.compare_digest(each, self._cookie) for each in sent)

    def _check_origin(self, scope: Scope, headers: dict[bytes, list[bytes]], host: str) -> None:
        if b"origin" in headers and _only(headers, b"origin").lower() not in {
            f"{scheme}://{host.lower()}" for scheme in ("http", "https")
        }:
            raise _Objection(HTTPStatus.FORBIDDEN, "requests from pages of another origin are refused")
        site = _only(headers, b"sec-fetch-site")
        # A page of another port of this machine may link here; its scripts and forms may not reach the hub.
        link = scope["method"] == "GET" and _only(headers, b"sec-fetch-mode") == "navigate"
        if site == "cross-site" or (site == "same-site" and not link):
            raise _Objection(HTTPStatus.FORBIDDEN, "requests from pages of another site are refused")

    @staticmethod
    def _check_token(given: str, token: bytes) -> None:
        scheme, _, said = given.partition(" ")
        right = hmac.compare_digest(said.strip().encode(), token)  # a token is ASCII: any other text is wrong
        if scheme.lower() != "bearer" or not right:
            why = "send the header 'Authorization: Bearer TOKEN' with the hub's token; in a browser, open /?token=TOKEN"
            raise _Objection(HTTPStatus.UNAUTHORIZED, why)


def read_token(file: Path | None, environ: Mapping[str, str], *, loopback: bool) -> str | None:
    """Return the token that clients must send; None where none is needed.

    Args:
        file: holds the token, which is then needed on loopback, too.
        environ: may hold it in TACHOGRAPH_HUB_TOKEN, which counts beyond loopback only.
        loopback: whether the hub listens on loopback.

    Raises:
        ValueError: the hub is reachable from other machines and there is no token, or it is invalid.
    """
    if file is None and loopback:
        return None
    where = TOKEN if file is None else f"--token-file {file}"
    try:
        found = environ.get(TOKEN, "").strip() if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"cannot read {where}: {why}") from None
    if not found and file is None:
        raise ValueError(f"listening to other machines requires a token: use --token-file or set {TOKEN}")
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise ValueError(f"{where} must be a token of printable ASCII characters without spaces")
    return found


def _cookie(token: bytes) -> bytes:
    """Return the cookie, name and value; hashed, as a token may hold characters that no cookie may."""
    name, value = (hmac.new(token, what, hashlib.sha256).hexdigest() for what in (b"name", b"value"))
    return f"tachograph-{name[:8]}={value}".encode()


def _token_of(scope: Scope) -> str:
    """Return the token in the page's address, encoded as in a header; empty where there is none."""
    if scope["path"] != _PAGE or scope["method"] != "GET":
        return ""
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])
    return f"Bearer {given[0]}" if given else ""


def names_loopback(host: str) -> bool:
    """Tell whether a Host header names this machine's loopback: localhost, 127.x.x.x or [::1], with any port."""
    found = _AUTHORITY.fullmatch(host)
    if found is None:
        return False
    name = found[1].lower()
    return name == "localhost" or is_loopback(name.strip("[]"))


def is_loopback(address: str) -> bool:
    """Tell whether an IP address is one of loopback."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _only(headers: dict[bytes, list[bytes]], name: bytes) -> str:
    """Return a header's value, empty where it is missing; given twice it is joined, and so matches nothing."""
    return b", ".join(headers.get(name, [])).decode("latin-1").strip()
