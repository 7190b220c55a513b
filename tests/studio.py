"""A hub with its Studio over a store, and what its API and its streams say."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from hubs import Answer, ask, command
from programs import environment, write

# The documents' own example, made short, with a value that is not finite, a loop, a profiled function that fails, and a
# metric without a throttle.
PROGRAM = """
import math, time
import tachograph.metric as cf
from tachograph.elastic import prof

training = cf.MetricGroup("training", units="epoch", lower=0, upper=3)
loss = cf.Metric("loss", group=training, scale=cf.MetricScale("loss", units="nats", lower=0))
accuracy = cf.Metric("accuracy", group=training, scale=cf.MetricScale("share", units="%", lower=0, upper=100))
raw = cf.Metric("raw", throttle=None)

@prof
def step(number):
    raw.record(number * 0.5, at=number)
    if number % 10 == 3:
        raise ValueError(number)

@cf.task()
def train():
    for epoch in cf.progress(range(3), key="epochs", group="loops"):
        for part in range(10):
            at = epoch + part / 10
            loss.record(math.nan if part == 5 else math.exp(-at), at=at)
            accuracy.record(100 - 100 * math.exp(-at), at=at)
            try:
                step(10 * epoch + part)
            except ValueError:
                pass
            time.sleep(0.01)

train()
"""


@dataclass
class Studio:
    """A hub that serves a Studio."""

    url: str

    def ask(self, *parts: str, **query: Any) -> Any:
        """Return what the API answers below ``/api``; the parts of the path are encoded, and it must answer 200."""
        answer = self.answer(*parts, **query)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    def answer(self, *parts: str, **query: Any) -> Answer:
        """Return an answer as it is, decompressed."""
        path = "/api/" + "/".join(quote(part, safe="") for part in parts)
        found = ask(self.url, f"{path}?{urlencode(query, doseq=True)}", Accept_Encoding="gzip")
        packed = found.headers.get("content-encoding") == "gzip"
        return found._replace(body=gzip.decompress(found.body) if packed else found.body)

    @contextmanager
    def live(self, run: str, **headers: str) -> Iterator[Stream]:
        """Listen to a run."""
        connection = http.client.HTTPConnection(self.url.partition("://")[2], timeout=20)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", f"/api/runs/{quote(run, safe='')}/live", headers=sent)
            yield Stream(connection.getresponse())
        finally:
            connection.close()


class Stream:
    """Server-sent events, read as they come."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response

    def next(self, *names: str) -> tuple[str, str, Any]:
        """Return id, name and data of the next message that has one of these names; of any without names."""
        while True:
            found = self._message()
            if found.get("event") and (not names or found["event"] in names):
                return found["id"], found["event"], json.loads(found["data"])

    def rest(self) -> None:
        """Read to the end."""
        while self.response.readline():
            pass

    def _message(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while True:
            line = self.response.readline().decode()
            if not line:
                raise EOFError("the stream has ended")
            if line == "\n":
                return found
            key, _, value = line.rstrip("\n").partition(": ")
            found[key] = value


@contextmanager
def studio(folder: Path, *arguments: str, **more: str) -> Iterator[Studio]:
    """Run ``tachograph hub`` over the store in ``folder``."""
    with command(folder, *arguments, **more) as hub:
        yield Studio(hub.url)
        hub.process.terminate()
        hub.end()


@dataclass
class Alone(Studio):
    """A running ``tachograph studio``: its process, and the line that it has said."""

    process: subprocess.Popen[str]
    said: str


@contextmanager
def alone(store: Path, *arguments: str) -> Iterator[Alone]:
    """Run ``tachograph studio`` over a store on a free port; at its end SIGTERM must end it with 0."""
    line = [sys.executable, "-m", "tachograph", "studio", "--port", "0", "--store", str(store), *arguments]
    with subprocess.Popen(line, env=environment(store), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.search(r"http://[^/]+", said)
            assert found, said
            yield Alone(found[0], process, said)
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def record(folder: Path, run: str, program: str = PROGRAM) -> None:
    """Run a program under ``tachograph run``, so that the store in ``folder`` has it as a run."""
    path = write(folder, program)
    line = [sys.executable, "-m", "tachograph", "run", "--quiet", "--run-id", run, "--port", "0"]
    done = subprocess.run(
        [*line, "--", sys.executable, str(path)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
