"""Run a program of a test in a process of its own, and read back what it delivered as JSON lines."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return a clean environment whose store is in ``folder``, and where nobody says what the machine does.

    An empty string is no value of a variable.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OTEL_", "TACHOGRAPH_", "SLURM_", "RANK"))
    }
    own = {
        "TACHOGRAPH_STORE": str(folder / "store"),
        "TACHOGRAPH_SYSTEM_METRICS": "false",  # its series are in none of the counts that tests look at
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **own, **more}


def beside(package: str) -> dict[str, str]:
    """Return the variables of a program that imports a package of the dependency group ``bridges``.

    It is installed as any other, or in a folder of its own; where it is not, the test is skipped, and in CI it fails.
    """
    folder = Path(sys.prefix) / "bridges"
    if importlib.util.find_spec(package) is not None:
        return {}
    if (folder / package).is_dir():
        return {"PYTHONPATH": str(folder)}
    if os.environ.get("CI"):
        pytest.fail(f"{package} is missing: scripts/set_up.sh installs it")
    pytest.skip(f"{package} is missing: scripts/set_up.sh installs it")


def write(folder: Path, program: str, name: str = "program.py") -> Path:
    """Write a program into ``folder`` and return its path."""
    path = folder / name
    path.write_text(textwrap.dedent(program))
    return path


def run(
    folder: Path, program: str, *arguments: str, timeout: float = 60, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it may fail, which the test is to look at."""
    command = [sys.executable, str(write(folder, program)), *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def exported(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return each metric's last state in a JSON-lines file, by scope and name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for request in requests(path):
        for resource in request.get("resourceMetrics", []):
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    found[scope["scope"].get("name", ""), metric["name"]] = metric
    return found


def spans(path: Path) -> list[dict[str, Any]]:
    """Return every span in a JSON-lines file."""
    return [
        span
        for request in requests(path)
        for resource in request.get("resourceSpans", [])
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


_FORGOTTEN = re.compile(r"(?:tachograph: )?[\d,]+ values? w(?:as|ere) recorded but never exported\. .*\n")


def complaints(stderr: str) -> str:
    """Return what a program says, but for the line that it forgot ``start()``: test_undelivered.py is about that."""
    return _FORGOTTEN.sub("", stderr, count=1)


def events(path: Path) -> list[dict[str, Any]]:
    """Return every event in a JSON-lines file: its record, with its attributes as a mapping."""
    return [
        {**record, "attributes": {pair["key"]: value(pair["value"]) for pair in record["attributes"]}}
        for request in requests(path)
        for resource in request.get("resourceLogs", [])
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
    ]


def value(message: dict[str, Any]) -> Any:
    """Return the value of an attribute, from OTLP's JSON."""
    ((kind, found),) = message.items()
    if kind == "intValue":
        return int(found)
    if kind == "doubleValue":
        return float(found)
    if kind == "arrayValue":
        return [value(part) for part in found.get("values", [])]
    if kind == "kvlistValue":
        return {pair["key"]: value(pair["value"]) for pair in found.get("values", [])}
    return found


def requests(path: Path) -> list[dict[str, Any]]:
    """Return the requests in a JSON-lines file; none where there is no file."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may still be under way


def number(metric: dict[str, Any]) -> float:
    """Return the value of the only point of a gauge or counter."""
    (point,) = (metric.get("gauge") or metric["sum"])["dataPoints"]
    return float(point["asInt"]) if "asInt" in point else float(point["asDouble"])


def count(metric: dict[str, Any]) -> int:
    """Return the count over all points of a histogram."""
    return sum(int(point["count"]) for point in metric["histogram"]["dataPoints"])
