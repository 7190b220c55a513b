"""Handlers for the programs of rows; they write each item to a file at once, in case the process is killed."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tachograph.elastic import MetricData, MetricHandler

HANDED, EMITTED, LOGGED = "handed.jsonl", "emitted.jsonl", "logged.jsonl"


def folder() -> Path:
    """Return the folder for the files of the handlers."""
    return Path(os.environ.get("CONFORMANCE_FOLDER", "."))


@cache
def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def append(name: str, kept: Any) -> None:
    """Append a line to a file; this must be fast, because thousands of items can arrive while the process exits."""
    os.write(_opened(folder() / name), (json.dumps(kept, default=repr) + "\n").encode())


class Keeping(MetricHandler):
    """Writes each point to a file."""

    def __init__(self, name: str = HANDED) -> None:
        self._name = name

    def emit(self, metric_data: MetricData) -> None:
        """Write one point: group, name and value."""
        append(self._name, metric_data[1:])


class Raising(MetricHandler):
    """Raises for each point."""

    def emit(self, metric_data: MetricData) -> None:
        """Raise an error."""
        raise OSError(metric_data.name)


def keep_event(event: Any) -> None:
    """Write an event, as a handler of torch.monitor."""
    seconds = event.timestamp.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    micros = round(seconds.total_seconds() * 1e6)
    append(LOGGED, [event.name, dict(event.data), micros * 1000])


def lines(path: Path) -> list[Any]:
    """Return the lines of a file, or an empty list if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
