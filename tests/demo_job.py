"""The demo as tests run it: started as `make demo` does, ended with Ctrl-C, looked at meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from places import ROOT

TRAINED_WITHIN = 120.0
ATTEMPTS = 3


@dataclass
class Demo:
    """A demo that has trained and goes on serving."""

    process: subprocess.Popen[bytes]
    store: Path
    output: Path
    expected: list[dict[str, dict[str, float]]]

    def pages(self) -> list[str]:
        """Return the address of each rank's /metrics, as the ranks have printed it."""
        return re.findall(r"serves (http://\S+)", self.output.read_text())

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return what must be found: by PromQL name and rank, what each rank says that it recorded."""
        found: dict[str, dict[str, float]] = {}
        for rank, recorded in enumerate(self.expected):
            for series, value in (
                ("samples_total", recorded["samples"]["sum"]),
                ("epoch_success_total", recorded["epoch.success"]["sum"]),
                ("loss", recorded["loss"]["last"]),
                ("accuracy", recorded["accuracy"]["last"]),
                ("correct_count", recorded["correct"]["count"]),
                ("correct_sum", recorded["correct"]["sum"]),
                ('correct_bucket{le="+Inf"}', recorded["correct"]["count"]),
                ("step_duration_seconds_count", recorded["step.duration"]["count"]),
                ("step_duration_seconds_sum", recorded["step.duration"]["sum"]),
                ('function_calls_total{code_function_name="__main__.train_step"}', recorded["loss"]["count"]),
                ('function_calls_total{code_function_name="__main__.evaluate"}', recorded["accuracy"]["count"]),
                ('function_duration_seconds_count{code_function_name=~".*step"}', recorded["loss"]["count"]),
            ):
                found.setdefault(series, {})[str(rank)] = value
        return found


@contextmanager
def started(store: Path, *arguments: str, **settings: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start the demo as `make demo` does, in a process group of its own, and end it with Ctrl-C."""
    output = store / "output"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    environment = {"TACHOGRAPH_STORE": str(store), "OTEL_EXPORTER_PROMETHEUS_PORT": "0", **settings}
    with (
        output.open("wb") as log,
        subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "demo.py"), *arguments],
            cwd=store,
            env={**kept, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process, output
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


@contextmanager
def trained(folder: Path, **settings: str) -> Iterator[Demo]:
    """Run the demo until it has trained. gloo may fail by itself on a small machine: then the job starts again."""
    with ExitStack() as running:
        for attempt in range(ATTEMPTS):
            store = folder / f"store{attempt}"
            store.mkdir()
            expect = store / "expected.json"
            arguments = ["--linger", "600", "--expect", str(expect)]
            process, output = running.enter_context(started(store, *arguments, **settings))
            deadline = time.monotonic() + TRAINED_WITHIN
            while not expect.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if expect.exists():
                yield Demo(process, store, output, json.loads(expect.read_text()))
                return
            running.pop_all().close()
        pytest.fail(f"the demo did not train in {ATTEMPTS} attempts:\n{output.read_text()}")


def descendants(store: Path) -> list[str]:
    """Return the command lines of living processes that were started with this store."""
    mark = f"TACHOGRAPH_STORE={store}".encode()
    return [
        content(process / "cmdline").replace(b"\0", b" ").decode()
        for process in Path("/proc").glob("[0-9]*")
        if mark in content(process / "environ").split(b"\0")
    ]


def content(path: Path) -> bytes:
    """Return what a file under /proc holds; nothing where its process has ended, or is another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
