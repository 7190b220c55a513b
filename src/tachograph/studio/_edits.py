"""Changes of runs that a page asks for: tags, notes and a display name, and deletion; with the token only."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tachograph.runs.annotations import annotate, change_of
from tachograph.runs.catalogue import UnknownRunError, delete, located
from tachograph.studio._api import Unanswered

MOST_BYTES = 64 * 2**10  # of a body: the longest notes take 40 KB in UTF-8, and more where JSON escapes them
_KEYS = ("add", "remove", "notes", "name")
_READ_ONLY = "this page is read-only; to change or delete runs, use 'tachograph studio --write'"
_NO_TOKEN = "to change runs, use the link that 'tachograph studio --write' printed"  # noqa: S105 - words


class Edits:
    """Changes the runs of a store; each method may be called from several threads at once.

    Args:
        folder: the store.
        token: that each request has to send; None where nothing may be changed.
    """

    def __init__(self, folder: Path, token: str | None) -> None:
        self._folder = folder
        self._token = None if token is None else token.encode()

    @property
    def allowed(self) -> bool:
        """Tell whether anything may be changed."""
        return self._token is not None

    def check(self, request: Request) -> None:
        """Check that a request may change runs.

        Raises:
            Unanswered: 403 where nothing may be changed, 401 without the token.
        """
        if self._token is None:
            raise Unanswered(HTTPStatus.FORBIDDEN, _READ_ONLY)
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        if not hmac.compare_digest(said.strip().encode("utf-8", "replace"), self._token) or scheme.lower() != "bearer":
            raise Unanswered(HTTPStatus.UNAUTHORIZED, _NO_TOKEN)

    def change(self, run: str, asked: Mapping[str, Any]) -> None:
        """Change a run's annotations.

        Args:
            run: its id.
            asked: lists ``add`` and ``remove`` of tags, ``notes``, ``name``; what is left out stays.

        Raises:
            Unanswered: 400 for values that may not be, 404 where there is no such run, 409 where it cannot be written.
        """
        if unknown := next((key for key in asked if key not in _KEYS), None):
            raise Unanswered(HTTPStatus.BAD_REQUEST, f"cannot change {unknown!r:.100}; choose from {', '.join(_KEYS)}")
        try:
            annotate(self._located(run), change_of(**asked))
        except (TypeError, ValueError) as error:
            raise Unanswered(HTTPStatus.BAD_REQUEST, str(error)) from error
        except FileNotFoundError as error:
            raise _gone(run) from error
        except OSError as error:
            raise Unanswered(HTTPStatus.CONFLICT, str(error.strerror)) from error

    def delete(self, run: str) -> None:
        """Delete a run.

        Raises:
            Unanswered: 404 where there is no such run any more, 409 where a hub writes it, or it cannot be deleted.
        """
        try:
            if not delete(self._located(run)):
                raise Unanswered(HTTPStatus.CONFLICT, f"cannot delete the run {run!r:.200}: a hub is writing it")
        except FileNotFoundError as error:
            raise _gone(run) from error
        except OSError as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"cannot delete the run {run!r:.200}: {error.strerror}") from error

    def _located(self, run: str) -> Path:
        try:
            return located(run, self._folder)
        except UnknownRunError as error:
            raise Unanswered(HTTPStatus.NOT_FOUND, str(error), near=error.near) from error


def _gone(run: str) -> Unanswered:
    return Unanswered(HTTPStatus.NOT_FOUND, f"the run {run!r:.200} no longer exists")


async def asked_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        Unanswered: 413 for more than 64 KiB, 415 for another type, 400 for another content.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Unanswered(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise Unanswered(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {MOST_BYTES >> 10} KiB")
    except ClientDisconnect:
        raise Unanswered(HTTPStatus.BAD_REQUEST, "the body is incomplete") from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unanswered(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    return found
