"""Sources of a run: a hub, or a store."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from tachograph.cli.top.picture import Json, Picture

RETRY = 2.0  # seconds between two attempts to reach a source that is away
_BREATH = 0.2


class Away(Exception):  # noqa: N818 - it may come back
    """The source cannot be read now; the message says which one, and why."""


class HubRefused(Exception):  # noqa: N818 - an answer, not a fault
    """There is no such run, or it may not be read; the message names those that there are, or the permission."""


class RunSource(Protocol):
    """The source of a picture of a run."""

    @property
    def where(self) -> str:
        """The place that the run is read from, for people."""

    def fill(self, picture: Picture) -> None:
        """Read all there is, once.

        Raises:
            Away: see there.
            Refused: see there.
        """

    def follow(self, picture: Picture, stop: threading.Event) -> None:
        """Read everything, then the news, until ``stop`` is set, or until that is to begin again.

        Raises:
            Away: see there.
            Refused: see there.
        """

    def runs(self) -> list[Json]:
        """Return the runs that there are, the newest first, as the API lists them.

        Raises:
            Away: see there.
            Refused: see there.
        """

    def of(self, run: str) -> RunSource:
        """Return the source of another run of the same place."""

    def close(self) -> None:
        """Close its files and connections; it can be read again."""


def default_run(runs: Sequence[Json], own: str = "") -> str:
    """Return the id of the run that is shown where none is named; there must be one.

    That is the hub's own, where it has recorded anything but the hub; else the newest that is live, or was recorded.

    Args:
        runs: as the API lists them, the newest first.
        own: the hub's run, where there is a hub.
    """
    mine = [each for each in runs if each["id"] == own]
    job = [each for each in mine if each["points"] or each["ranks"] or each["processes"] > 1]
    recorded = [each for each in runs if each["points"]]
    live = [each for each in recorded if each["state"] == "running"]
    return str((job or live or recorded or mine or runs)[0]["id"])


def keep_up(source: RunSource, picture: Picture, stop: threading.Event) -> None:
    """Keep a picture up to date until ``stop`` is set, also where the source is away meanwhile."""
    while not stop.is_set():
        if trouble := _kept_up(source, picture, stop):
            _say(picture, f"{trouble}; trying again")
        stop.wait(RETRY if trouble else _BREATH)


def _kept_up(source: RunSource, picture: Picture, stop: threading.Event) -> str:
    """Keep it up to date while that goes well, and return in words why it no longer does."""
    try:
        source.follow(picture, stop)
    except Away as error:
        return str(error)
    except HubRefused as error:
        if not picture.about:  # and never was there anything: it is the question that is wrong
            picture.refused = str(error)
        return str(error)
    except Exception as error:  # noqa: BLE001 - the border to another version's answers: the screen stays, and says so
        return f"unexpected response from {source.where}: {type(error).__name__}: {error}"
    return ""


def _say(picture: Picture, trouble: str) -> None:
    with picture.lock:
        picture.trouble = trouble
        picture.version += 1


_TIMEOUT = 20.0  # seconds; a hub that has nothing to tell says so every 5
_MOST_WORDS = 10_000  # bytes of a refusal
TOKEN = "TACHOGRAPH_HUB_TOKEN"  # noqa: S105 - the variable's name


class StreamEvent(NamedTuple):
    """An event of a stream (HTML standard, "Server-sent events"); without a name it is a heartbeat."""

    name: str
    cursor: str
    data: Any


class Asking:
    """A connection to a hub, for one question after the other.

    Args:
        url: of the hub, ``http`` or ``https``.
        token: sent with each question; None for none.

    Raises:
        ValueError: the URL is none of a server.
    """

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"expected the address of a hub such as http://127.0.0.1:4318, not {url!r:.200}")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._prefix = parts.path.rstrip("/")
        self._host, self._port, self._safe = parts.hostname, parts.port, parts.scheme == "https"
        self._token = token
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._open: http.client.HTTPConnection | None = None

    def another(self) -> Asking:
        """Return another connection to the same hub."""
        return Asking(self.url, self._token)

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
        except (ValueError, RecursionError) as error:
            raise HubRefused(f"{self.url} is not a Tachograph hub") from error

    def stream(self, path: str) -> Iterator[StreamEvent]:
        """Yield the hub's news, until it ends them.

        Raises:
            Away: the hub does not answer any more, or not now.
            HubRefused: it has no such stream.
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

    def _refusal(self, status: int, body: bytes) -> Away | HubRefused:
        if status == HTTPStatus.UNAUTHORIZED:
            return HubRefused(f"the hub at {self.url} requires its token; set {TOKEN}")
        try:
            words = str(json.loads(body)["error"])
        except (ValueError, TypeError, LookupError, RecursionError):
            if status == HTTPStatus.NOT_FOUND:
                return HubRefused(f"{self.url} is not a Tachograph hub, or an older version of it")
            words = body.decode(errors="replace").strip()[:200] or f"HTTP status {status}"
        return (HubRefused if status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN) else Away)(words)


def _events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
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
                yield StreamEvent("", cursor, None)
            continue
        if data:
            try:
                yield StreamEvent(name or "message", cursor, json.loads("\n".join(data)))
            except (ValueError, RecursionError) as error:
                raise http.client.HTTPException(f"an event is not valid JSON: {error}") from error
        name, data = "", []
