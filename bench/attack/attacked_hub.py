"""The hub that is attacked: a real process, with an honest program, watchers and Prometheus servers beside it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

import servers

if TYPE_CHECKING:
    from typing import Self
from health import Sample, watch
from honest import RUN
from page_judge import FORMATS, complaints, installed
from wire import Wire, request

PATIENCE = 60.0  # seconds for an answer
MEMORY = 1536 * 2**20  # bytes that a hub may take
_HERE = Path(__file__).parent
_SCRAPE = 5
_OPEN = "honest_success_total"


class AttackedHub:
    """A running hub, and the observations of it.

    Args:
        folder: of its store and of its stderr.
        url: of a hub that runs already: then nothing beside it is started, and only its pages are judged.
        prometheus: whether Prometheus servers scrape it.

    Attributes:
        address: host and port.
        health: the outcome of each ``/healthz``.
        memory: the most bytes that the hub's process had.
        largest: bytes of the largest page.
    """

    def __init__(self, folder: Path, url: str | None = None, *, prometheus: bool = True) -> None:
        self._folder = folder
        self._given = url
        self._scrapes = prometheus
        self._prometheus: dict[int, str] = {}
        self.health: list[Sample] = []
        self.memory = self.largest = 0

    def __enter__(self) -> Self:
        """Start everything."""
        with ExitStack() as stack:
            if self._given is None:
                self._begin(stack)
            else:
                self.address = _address(self._given)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes that still run."""
        self._stack.close()

    def _begin(self, stack: ExitStack) -> None:
        self._hub = stack.enter_context(_hub(self._folder))
        self.address, self._url = self._hub.address, self._hub.url
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": self._url, "TACHOGRAPH_STORE": str(self._folder / "honest")}
        self._honest = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(_HERE / "honest.py")],
                env={**_environment(), **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._honest.kill)
        context = multiprocessing.get_context("spawn")
        self._said, told = context.Pipe()
        watched = (self.address, self._hub.process.pid, told)
        watcher = context.Process(target=watch, args=watched, daemon=True)
        watcher.start()
        stack.callback(watcher.kill)
        if not self._scrapes:
            return
        config = self._folder / "prometheus.yml"
        target = f"static_configs: [{{targets: ['{self.address[0]}:{self.address[1]}']}}]"
        scrape = f"{{job_name: hub, scrape_interval: {_SCRAPE}s, scrape_timeout: {_SCRAPE}s, {target}}}"
        config.write_text(f"scrape_configs: [{scrape}]\n")
        for major in (2, 3):
            if installed("prometheus", major):
                self._prometheus[major] = stack.enter_context(servers.prometheus(config, major=major))

    def judged(self, *, parsed: int | None = None) -> list[str]:
        """Return the broken invariants of its pages now, of its log and of its memory.

        Args:
            parsed: number of the look, which chooses the format to parse; None for all of them.
        """
        wire = Wire(self.address, PATIENCE)
        pages = {}
        for form, (accept, _) in FORMATS.items():
            try:
                answer = wire.ask(request("GET", "/metrics", {"Accept": accept, "Accept-Encoding": "gzip"}))
            except OSError as error:
                return [f"/metrics as {form}: {error}"]
            if answer.status != 200:
                return [f"/metrics as {form}: status {answer.status}: {answer.body[:300]!r}"]
            pages[form] = answer.body
            self.largest = max(self.largest, len(answer.body))
        wire.close()
        chosen = tuple(FORMATS) if parsed is None else (tuple(FORMATS)[parsed % len(FORMATS)],)
        wrong = complaints(pages, chosen, promtool=True)
        for form in pages if wrong else ():
            (self._folder / f"page as {form}").write_bytes(pages[form])
        if self._given is None:
            wrong += self._hub.wrong()
            self.memory = max(self.memory, self._hub.memory())
            if self.memory > MEMORY:
                wrong.append(f"the hub takes {self.memory >> 20} MiB, allowed are {MEMORY >> 20}")
            for major, base in self._prometheus.items():
                for target in servers.api(base, "targets")["activeTargets"]:
                    # A scrape that takes too long is the machine's, not the page's.
                    if target["health"] == "down" and "deadline" not in target["lastError"]:
                        wrong.append(f"Prometheus {major} refuses the page: {target['lastError']}")
        return wrong

    def end(self) -> list[str]:
        """End all of it; return the broken invariants then: the honest program's totals, files, the next hub."""
        if self._given is not None:
            return []
        recorded, _ = self._honest.communicate("", timeout=PATIENCE)
        said: dict[str, Any] = json.loads(recorded) if self._honest.returncode == 0 else {}
        wrong = [] if said else [f"the honest program ended with {self._honest.returncode}"]
        self._said.send(None)
        self.health = self._said.recv() if self._said.poll(PATIENCE) else []
        wrong += self._totals(said) if said else []
        self._stack.close()
        wrong += self._hub.wrong()
        if self._hub.process.returncode != 0:
            wrong.append(f"the hub ended with {self._hub.process.returncode}")
        wrong += _integrity(self._folder / "store")
        wrong += self._kept(said) if said else []
        # Everything that was kept can be shown again: by the hub whose own run it is, as a standing one has live runs.
        with _hub(self._folder, "--run-id", RUN, "--parent", str(os.getpid())) as again:
            self._hub, self.address = again, again.address
            wrong += [
                f"the next hub on the same store: {each}"
                for each in complaints(self._pages(), ("text",), promtool=True)
            ]
            wrong += [f"the next hub on the same store: {each}" for each in self._totals(said)] if said else []
        return wrong + again.wrong()

    def _pages(self) -> dict[str, bytes]:
        wire = Wire(self.address, PATIENCE)
        asked = {form: request("GET", "/metrics", {"Accept": accept}) for form, (accept, _) in FORMATS.items()}
        pages = {form: wire.ask(sent).body for form, sent in asked.items()}
        wire.close()
        return pages

    def _totals(self, said: dict[str, Any]) -> list[str]:
        """Compare the honest program's series with its own report."""
        wanted = {
            "honest_success_total": said["success"],
            "honest_step_milliseconds_count": said["steps"],
            "honest_step_milliseconds_sum": said["total"],
            "honest_loss": (said["points"] - 1) / 7,
        }
        shown = {
            sample.name: sample.value
            for family in text_string_to_metric_families(self._pages()["text"].decode())
            for sample in family.samples
            if sample.name in wanted
        }
        return [
            f"the honest program's {name} is {shown.get(name)}, not {value}"
            for name, value in wanted.items()
            if shown.get(name) != value
        ]

    def _kept(self, said: dict[str, Any]) -> list[str]:
        """Compare the store with the honest program's report."""
        path = self._folder / "store" / "runs" / f"{RUN}.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            ((events, different),) = connection.execute(
                "SELECT count(*), count(DISTINCT seq) FROM event WHERE name = 'honest.event'"
            )
            ((points,),) = connection.execute(
                "SELECT sum(n) FROM block JOIN curve ON curve.id = curve WHERE metric = 'honest_loss'"
            )
        wrong = [] if events == different == said["events"] else [f"{events} events are kept, not {said['events']}"]
        return wrong if points == said["points"] else [*wrong, f"{points} points are kept, not {said['points']}"]


class _Hub:
    """A process that runs ``tachograph hub``."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, stderr: Path) -> None:
        self.process = process
        self.url = url
        self.address = _address(url)
        self._stderr = stderr

    def memory(self) -> int:
        """Return the bytes of its memory."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def wrong(self) -> list[str]:
        """Return complaints: it has ended, or logged a traceback."""
        ended = self.process.poll()
        found = [] if ended in (None, 0) else [f"the hub has ended with {ended}"]
        said = self._stderr.read_text("utf-8", "replace")
        at = said.find("Traceback")
        return found if at < 0 else [*found, f"a traceback of the hub: {said[max(0, at - 300) : at + 3000]}"]


@contextlib.contextmanager
def _hub(folder: Path, *more: str) -> Iterator[_Hub]:
    """Run a hub over the store in a folder, with further arguments."""
    reading, writing = os.pipe()
    command = [
        sys.executable,
        "-m",
        "tachograph",
        "hub",
        "--quiet",
        "--port",
        "0",
        "--announce",
        str(writing),
        "--linger",
        "0",
        *more,
    ]
    stderr = folder / "stderr"
    with stderr.open("ab") as said, os.fdopen(reading) as announced:
        process = subprocess.Popen(
            [*command, "--store", str(folder / "store")], env=_environment(), pass_fds=[writing], stderr=said
        )
        os.close(writing)
        with process:
            try:
                yield _Hub(process, json.loads(announced.readline())["url"], stderr)
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
            finally:
                process.kill()


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TACHOGRAPH_", "SLURM_"))}
    return {**kept, "TACHOGRAPH_SYSTEM_METRICS": "false"}


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


def _integrity(store: Path) -> list[str]:
    wrong = []
    for path in sorted((store / "runs").glob("*.db")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for (said,) in connection.execute("PRAGMA integrity_check"):
                if said != "ok":
                    wrong.append(f"{path.name}: integrity_check says {said}")
    return wrong
