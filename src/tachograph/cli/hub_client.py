"""The HTTP client of all commands that ask a hub or a Studio."""

from __future__ import annotations

import json
import os
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

from tachograph.identity.environment import JOB_HUB, text

DEFAULT_URL = "http://127.0.0.1:4318"
URL_VARIABLE = "TACHOGRAPH_HUB"
TOKEN_VARIABLE = "TACHOGRAPH_HUB_TOKEN"  # noqa: S105 - the variable's name
_TIMEOUT = 20.0  # seconds of one request
_ERROR_CHARACTERS = 200  # of a response that is not JSON


class UnavailableError(Exception):
    """The hub or the store cannot be read now; the message says which one, and why."""


class RefusedError(Exception):
    """There is no such run, or it may not be read; the message names similar runs, or what permits to read it."""


class OtherServerError(RefusedError):
    """The server at the address is no hub, or an older version of one."""


class HubClient:
    """A client of one hub, for any number of threads.

    It never uses a proxy: a hub runs on the machine or in the cluster of the job.

    Args:
        url: of the hub, ``http`` or ``https``; None for the hub that the environment names, or the default one.

    Raises:
        ValueError: the URL is not one of a server.
    """

    def __init__(self, url: str | None = None) -> None:
        import urllib3  # only here: it opens a socket when it is imported

        url = url or text(os.environ, JOB_HUB, URL_VARIABLE) or DEFAULT_URL
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"expected the address of a hub such as {DEFAULT_URL}, not {url!r:.200}")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        token = text(os.environ, TOKEN_VARIABLE)
        self._pool = urllib3.PoolManager(
            headers={"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=urllib3.Timeout(total=_TIMEOUT),
            retries=False,  # neither repeat a request, nor follow a redirect: it would carry the token to another host
        )

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of a path such as ``/api/runs``.

        Args:
            path: already quoted.
            query: the parameters; a list has one for each of its items.

        Raises:
            UnavailableError: the hub does not answer, or cannot answer now.
            RefusedError: the hub knows no such run, or requires a token.
        """
        from urllib3.exceptions import HTTPError

        url = self.url + path + (f"?{urlencode(query, doseq=True)}" if query else "")
        try:
            response = self._pool.request("GET", url)
        except (HTTPError, OSError) as error:
            raise UnavailableError(f"the hub at {self.url} does not answer: {_reason(error)}") from error
        if response.status != HTTPStatus.OK:
            raise self._error(response.status, response.data)
        try:
            return json.loads(response.data)
        except (ValueError, RecursionError) as error:
            raise OtherServerError(f"{self.url} is not a Tachograph hub") from error

    def close(self) -> None:
        """Close the connections; the next request opens another one."""
        self._pool.clear()

    def _error(self, status: int, body: bytes) -> UnavailableError | RefusedError:
        if status == HTTPStatus.UNAUTHORIZED:
            return RefusedError(f"the hub at {self.url} requires its token; set {TOKEN_VARIABLE}")
        try:
            words = str(json.loads(body)["error"])
        except (ValueError, TypeError, LookupError, RecursionError):
            if status == HTTPStatus.NOT_FOUND:
                return OtherServerError(f"{self.url} is not a Tachograph hub, or an older version of it")
            words = body.decode(errors="replace").strip()[:_ERROR_CHARACTERS] or f"HTTP status {status}"
        return (RefusedError if status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN) else UnavailableError)(words)


def _reason(error: BaseException) -> str:
    """Return the innermost reason of a failed request: the outer ones repeat the URL."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
