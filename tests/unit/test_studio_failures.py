"""Answers of the Studio that fail: the client is told, the failure is counted, and nothing reaches the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from tachograph.studio.studio import Studio


def get(studio: Studio, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of an answer."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    app = Starlette(routes=studio.routes())
    asyncio.run(app({**scope, "raw_path": path.encode(), "root_path": ""}, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


def raising(error: Exception) -> Callable[[], int]:
    """Return a clock that fails."""

    def clock() -> int:
        raise error

    return clock


@pytest.mark.parametrize(
    "error", [RuntimeError("changed size"), RecursionError("too deep"), OSError("no disk")], ids=repr
)
def test_an_answer_that_fails_is_an_error_in_words(tmp_path: Path, error: Exception) -> None:
    """Whatever an answer raises is counted, and answered with 500 and a sentence; the next answer is made."""
    failed: list[int] = []
    studio = Studio(tmp_path, "run", clock=raising(error), failed=lambda: failed.append(1))
    try:
        status, told = get(studio, "/api/runs")
        assert (status, failed) == (500, [1])
        assert told == {"error": "internal error; see the hub's log"}
        assert get(studio, "/api/nothing")[0] == 404
    finally:
        studio.close()


def test_a_studio_that_ends_says_so(tmp_path: Path) -> None:
    """A question after the end is answered with 503, and is no failure."""
    failed: list[int] = []
    studio = Studio(tmp_path, "run", failed=lambda: failed.append(1))
    studio.close()
    assert get(studio, "/api/runs") == (503, {"error": "the hub is shutting down"})
    assert failed == []
