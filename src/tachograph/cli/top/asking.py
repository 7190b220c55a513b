"""Asks a hub: its API's answers, and what it tells while it happens."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tachograph.cli.top.source import Away, Refused

_TIMEOUT = 20.0  # seconds; a hub that has nothing to tell says so every 5
_MOST_WORDS = 10_000  # bytes of a refusal
TOKEN = "TACHOGRAPH_HUB_TOKEN"  # noqa: S105 - the variable's name


class Told(NamedTuple):
    """An event of a stream (HTML standard, "Server-sent events"); without a name it is a heartbeat."""

    name: str
    cursor: str
    data: Any


class Asking:
    """Asks one hub, one question after the other on one connection.

    Args:
        url: of the hub, ``http`` or ``https``.
        token: sent with each question; None for none.

    Raises:
        ValueError: the URL is none of a server.
    """

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"a hub's address is such as http://127.0.0.1:4318, not {url!r:.200}")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._prefix = parts.path.rstrip("/")
        self._host, self._port, self._safe = parts.hostname, parts.port, parts.scheme == "https"
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._open: http.client.HTTPConnection | None = None

    def get(self, path: str) -> Any:
        """Return the answer to a question.

        Raises:
            Away: the hub does not answer, or not now.
            Refused: it does, and says that there is nothing, or that a token is needed.
        """
        try:
            try:
                response = self._asked(path)
            except (http.client.HTTPException, ConnectionError):  # it was closed while nothing was asked
                self.close()
                response = self._asked(path)
            body = response.read() if response.status == HTTPStatus.OK else response.read(_MOST_WORDS)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._away(error) from error
        if response.status != HTTPStatus.OK:
            self.close()
            raise self._refusal(response.status, body)
        try:
            return json.loads(body)
        except ValueError as error:
            raise Refused(f"what answers at {self.url} is no hub of Tachograph") from error

    def stream(self, path: str) -> Iterator[Told]:
        """Yield what the hub tells, until it ends that.

        Raises:
            Away: the hub does not answer any more, or not now.
            Refused: it has no such stream.
        """
        connection = self._connection()
        try:
            connection.request("GET", self._prefix + path, headers={**self._headers, "Accept": "text/event-stream"})
            response = connection.getresponse()
            if response.status != HTTPStatus.OK:
                raise self._refusal(response.status, response.read(_MOST_WORDS))
            yield from _events(response)
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _asked(self, path: str) -> http.client.HTTPResponse:
        if self._open is None:
            self._open = self._connection()
        self._open.request("GET", self._prefix + path, headers=self._headers)
        return self._open.getresponse()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._safe else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT)

    def _away(self, error: Exception) -> Away:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Away(f"the hub at {self.url} does not answer: {why}")

    def _refusal(self, status: int, body: bytes) -> Away | Refused:
        if status == HTTPStatus.UNAUTHORIZED:
            return Refused(f"the hub at {self.url} wants its token: set {TOKEN}")
        try:
            words = str(json.loads(body)["error"])
        except (ValueError, TypeError, LookupError):
            if status == HTTPStatus.NOT_FOUND:
                return Refused(f"what answers at {self.url} is no hub of Tachograph, or an older one")
            words = body.decode(errors="replace").strip()[:200] or f"it answers {status}"
        return (Refused if status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN) else Away)(words)


def _events(response: http.client.HTTPResponse) -> Iterator[Told]:
    name, cursor, data = "", "", []
    for raw in response:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "id":
                cursor = value
            elif field == "data":
                data.append(value)
            elif not field:
                yield Told("", cursor, None)
            continue
        if data:
            try:
                yield Told(name or "message", cursor, json.loads("\n".join(data)))
            except ValueError as error:
                raise http.client.HTTPException(f"an event is no JSON: {error}") from error
        name, data = "", []
