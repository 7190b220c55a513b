"""A training process while the disk of one of its destinations fails: its duties, and the checks afterwards."""

from __future__ import annotations

import contextlib
import errno
import gzip
import http.server
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disk_faults import Fault, Place, failing, tmpfs
from disk_program import STATUS
from tachograph.exporters.spool_format import Framed, after
from tachograph.logger.point import FIELDS

PROGRAM = Path(__file__).with_name("disk_program.py")
NOTICED = 2.0  # seconds: the exports come ten times a second
LONGEST = 0.25  # seconds for a call that records, on a machine that does much else
_ENDS_WITHIN = 60.0
_SECONDS = 4.0
_SHORT = 0.8


class Influx(http.server.ThreadingHTTPServer):
    """A server that takes lines for InfluxDB from :meth:`come` on; before that nothing listens on its port.

    Attributes:
        numbers: that came, each as often as it did.
    """

    daemon_threads = True

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = probe.getsockname()
        super().__init__(address, _Taking, bind_and_activate=False)
        self.url = f"http://127.0.0.1:{address[1]}"
        self.numbers: list[int] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def come(self) -> None:
        """Begin to listen."""
        self.server_bind()
        self.server_activate()
        self._thread.start()

    def go(self) -> None:
        """End."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()


class _Taking(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Influx

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.numbers += [int(found) for found in re.findall(rb"[ ,]n=(\d+)i", body)]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@dataclass
class Job:
    """A process that has ended.

    Attributes:
        status: its exit status.
        log: its stderr.
        report: of :mod:`disk_program`; empty where it made none.
        found: numbers that are on the disk, or at the server.
        illegible: content on the disk that cannot be read.
    """

    status: int
    log: str
    report: Mapping[str, Any]
    found: list[int] = field(default_factory=list)
    illegible: list[str] = field(default_factory=list)

    def judged(
        self, *, since: float = 0.0, destroys: bool = False, left: bool = False, exact: bool = False
    ) -> Iterator[str]:
        """Yield the invariants that broke.

        Args:
            since: values that were recorded earlier are not looked for: seconds, monotonic.
            destroys: illegible content may have been damaged by the fault.
            left: items may be there twice: they were sent, and the answer came too late.
            exact: no more may be counted as lost than is missing.
        """
        if self.status != STATUS or not self.report:
            yield f"it ended with {self.status}: {self.log[-1500:]}"
            return
        if "Traceback" in self.log:
            yield f"a traceback: {self.log[-1500:]}"
        if self.report["longest"] > LONGEST:
            yield f"the longest call took {self.report['longest']:.3f} s"
        first = next((number for moment, number in self.report["marks"] if moment > since), self.report["recorded"] + 1)
        missing = set(range(first, self.report["recorded"] + 1)) - set(self.found)
        dropped = sum(self.report["dropped"].values())
        if len(missing) > dropped:
            yield (
                f"{len(missing)} of {self.report['recorded']} are missing, from {min(missing)} to {max(missing)}, and "
                f"{self.report['dropped']} were counted as dropped: {self.log[-800:]}"
            )
        if exact and dropped > len(missing):
            yield f"{len(missing)} of {self.report['recorded']} are missing, and {self.report['dropped']} were counted"
        if dropped and "lost" not in self.log and "reject" not in self.log:
            yield f"{self.report['dropped']} were dropped, and the log does not say so: {self.log[-800:]}"
        if not left and len(self.found) != len(set(self.found)):
            yield f"{len(self.found) - len(set(self.found))} are there twice"
        if self.illegible and not destroys:
            yield f"illegible: {self.illegible[:2]}"


class Running:
    """A job that runs.

    Args:
        kind: ``jsonl``, ``tensorboard`` or ``influxdb``.
        base: a folder for its report.
        folder: where its destination writes.
        seconds: that it records.
        environment: more of it.
    """

    def __init__(
        self, kind: str, base: Path, folder: Path, seconds: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self._kind, self._folder = kind, folder
        self._report, self._log = base / "report.json", base / "job.log"
        self.server = Influx() if kind == "influxdb" else None
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
        kept |= {"TACHOGRAPH_STORE": str(folder), "DISK_JSONL": str(folder / "out" / "job.jsonl")}
        kept |= {"INFLUXDB_HOST": self.server.url} if self.server else {}
        line = [sys.executable, str(PROGRAM), kind, str(self._report), str(seconds)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(line, env={**kept, **(environment or {})}, stdout=log, stderr=log)

    def files(self) -> list[Path]:
        """Return the files that it writes."""
        pattern = {"jsonl": "out/*.jsonl", "tensorboard": "tensorboard/**/events.*", "influxdb": "spool/**/*.spool"}
        return sorted(self._folder.glob(pattern[self._kind]))

    def wait_for_files(self, seconds: float = 30.0) -> bool:
        """Tell whether it writes anything within some seconds."""
        until = time.monotonic() + seconds
        while not any(path.stat().st_size for path in self.files()):
            if time.monotonic() > until or self.process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def end(self) -> Job:
        """Wait for its end, and return its outcome."""
        try:
            status = self.process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        report = json.loads(self._report.read_text()) if self._report.exists() else {}
        job = Job(status, self._log.read_text(errors="replace"), report)
        if self.server is not None:
            self.server.go()
            job.found += self.server.numbers
        for path in self.files():
            _READ[self._kind](path, job)
        return job


def _read_jsonl(path: Path, job: Job) -> None:
    for line in path.read_bytes().splitlines():
        try:
            job.found += _of_line(line)
        except (ValueError, KeyError, TypeError) as error:
            job.illegible.append(f"{error}: {line[:100]!r}")


def _of_line(line: bytes) -> list[int]:
    return [
        number
        for resource in (json.loads(line) if line else {}).get("resourceLogs", ())
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
        for number in _numbers(record["attributes"])
    ]


def _numbers(attributes: Iterable[Mapping[str, Any]]) -> list[int]:
    found = {pair["key"]: pair["value"] for pair in attributes}
    if FIELDS in found:  # a point of a MetricsLogger
        found |= {pair["key"]: pair["value"] for pair in found[FIELDS]["kvlistValue"]["values"]}
        return [int(found["n"]["intValue"])]
    return [int(found["x"].get("doubleValue", found["x"].get("intValue")))] if "x" in found else []


def _read_spool(path: Path, job: Job) -> None:
    form = Framed()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        place = form.begin(file.fileno(), size)
        while place is not None and (record := form.read(file.fileno(), place, size)) is not None:
            lines = record.payload.split(b"\n")[place.items :]
            job.found += [int(found) for found in re.findall(rb"[ ,]n=(\d+)i", b"\n".join(lines))]
            place = after(place, record)


def _read_tensorboard(path: Path, job: Job) -> None:
    from tensorboard.backend.event_processing.event_file_loader import (  # type: ignore[import-untyped]
        LegacyEventFileLoader,
    )
    from tensorboard.compat.tensorflow_stub.errors import DataLossError  # type: ignore[import-untyped]

    try:
        job.found += [event.step for event in LegacyEventFileLoader(str(path)).Load() if event.summary.value]
    except DataLossError as error:
        job.illegible.append(str(error))


_READ: Mapping[str, Callable[[Path, Job], None]] = {
    "jsonl": _read_jsonl,
    "tensorboard": _read_tensorboard,
    "influxdb": _read_spool,
}


def struck(kind: str, fault: Fault, seed: int, seen: Counter[str]) -> Iterator[str]:
    """Strike the files of one destination while a job writes them, and yield the invariants that broke.

    Args:
        kind: the destination.
        fault: strikes it.
        seed: of random choices.
        seen: counts the job's reports.

    Raises:
        Unavailable: the fault cannot be made here.
    """
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="tachograph-disks-") as name, contextlib.ExitStack() as stack:
        base = Path(name)
        folder = base / "store"
        if fault.on_tmpfs:
            stack.enter_context(tmpfs(folder))
        calls = stack.enter_context(failing(folder, base)) if fault.by_calls else None
        running = Running(kind, base, folder, _SECONDS, calls.environment if calls else None)
        if not running.wait_for_files():
            yield f"nothing was written: {running.end().log[-800:]}"
            return
        time.sleep(chance.uniform(0.1, 0.8))
        place = Place(folder, chance, running.files, calls, running.process.pid)
        began = time.monotonic()
        with fault.strike(place):
            time.sleep(fault.seconds)
        if running.server is not None and chance.random() < 0.5:
            running.server.come()
        job = running.end()
        if job.report:
            seen["recorded"] += job.report["recorded"]
            seen["dropped"] += sum(job.report["dropped"].values())
            seen["longest_us"] = max(seen["longest_us"], round(job.report["longest"] * 1e6))
        since = began + NOTICED if fault.destroys and kind != "influxdb" else 0.0
        yield from job.judged(since=since, destroys=fault.destroys, left=kind == "influxdb", exact=kind == "influxdb")


def nth_call(kind: str, base: Path, n: int, *, torn: bool) -> tuple[int, list[str]]:
    """Let the n-th call of a job fail once, or be done by half and the next one fail.

    Returns:
        How many calls failed, none where there were fewer than n; and the invariants that broke.
    """
    base = base / f"{kind}-{n}-{torn:d}"
    base.mkdir()
    with failing(base / "store", base) as calls:
        calls.fail((errno.ENOSPC, errno.EIO)[n % 2], first=n, most=2 if torn else 1, torn=torn)
        job = Running(kind, base, base / "store", _SHORT, calls.environment).end()
        return calls.hits, list(job.judged(left=kind == "influxdb"))
