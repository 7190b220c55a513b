"""A TCP proxy on the loopback that breaks the connections to a real server, and the real hub behind it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from bad_accounts import Account, event_number
from bad_backends import Backend, Fault, otlp
from bad_http import reset

Cut = Literal["", "reset", "half"]
Plan = Callable[[int], Cut]
_WITHIN = 10.0


def cuts_answers(first: int) -> Plan:
    """Return a plan: before the first answers the connection breaks, though the request was passed on."""
    return lambda number: "reset" if number <= first else ""


def halves_answers(first: int) -> Plan:
    """Return a plan: of the first answers only some bytes come, then nothing."""
    return lambda number: "half" if number <= first else ""


def passes(_number: int) -> Cut:
    """Pass everything on."""
    return ""


class Proxy:
    """Passes bytes on between its clients and a server.

    Args:
        upstream: the server's port.
        plan: decides for each answer (the bytes that follow a request), counted from 1.
    """

    def __init__(self, upstream: int, plan: Plan = passes) -> None:
        self._upstream, self._plan = upstream, plan
        self._lock, self._answers = threading.Lock(), 0
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        """Pass everything on from now on."""
        self._plan = passes

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stopped.is_set():
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(client):
            server = socket.create_connection(("127.0.0.1", self._upstream), 10)
            with contextlib.closing(server):
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        asked = False
        while not self._stopped.is_set():
            ready, _, _ = select.select([client, server], [], [], 0.2)
            if client in ready:
                data = client.recv(65536)
                if not data:
                    return
                server.sendall(data)
                asked = True
            if server in ready:
                data = server.recv(65536)
                cut = self._next() if asked else ""
                asked = False
                if not data or cut == "reset":
                    reset(client)
                    return
                client.sendall(data[:9] if cut == "half" else data)
                if cut == "half":
                    self._stopped.wait(_WITHIN)
                    return

    def _next(self) -> Cut:
        with self._lock:
            self._answers += 1
            return self._plan(self._answers)

    def close(self) -> None:
        """End."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Run a hub with its store in a folder; yields its URL."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--store", str(folder), "--announce"]
    with (
        (folder / "hub.log").open("wb") as log,
        subprocess.Popen([*command, str(writing)], pass_fds=[writing], stdout=log, stderr=log) as process,
    ):
        os.close(writing)
        with os.fdopen(reading) as announced:
            try:
                yield str(json.loads(announced.readline())["url"])
            finally:
                process.terminate()
                process.wait(30)


@contextlib.contextmanager
def hub_behind(_account: Account, folder: Path, *, plan: Plan, temporality: str) -> Iterator[Backend]:
    """Put up a hub of its own behind a proxy."""
    run = f"backends-{folder.name}"
    with hub(folder) as url:
        proxy = Proxy(urlsplit(url).port or 0, plan)
        environ = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality}
        try:
            yield Backend(
                otlp(proxy.port, run_id=run, timeout=0.5), environ, wrong=partial(_differences, url, folder, run)
            )
        finally:
            proxy.close()


def _differences(url: str, folder: Path, run: str, recorded: int, lost: int) -> list[str]:
    """Return the differences between the recorded values and the hub's page and store, after some time to settle."""
    found = ["the hub was not asked"]
    until = time.monotonic() + _WITHIN
    while found and time.monotonic() < until:
        found = [said for said in (_page(url, recorded, lost), _store(folder, run, recorded, lost)) if said]
        time.sleep(0.1)
    return found


def _page(url: str, recorded: int, lost: int) -> str:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    except urllib.error.URLError as error:
        return f"the hub's page: {error}"
    values = [float(value) for value in re.findall(r"(?m)^step_success_total\{[^\n]*\} (\S+)", page)]
    counts = [float(value) for value in re.findall(r"(?m)^step_duration_milliseconds_count\{[^\n]*\} (\S+)", page)]
    there = {"counter": values, "histogram": counts}
    if lost and len(values) <= 1 and len(counts) <= 1 and max(values + counts, default=0) <= recorded:
        return ""  # of a lost interval nothing says how much was in it
    return "" if values == counts == [recorded] else f"the hub's page has {there}, recorded were {recorded}"


def _store(folder: Path, run: str, recorded: int, lost: int) -> str:
    path = folder / "runs" / f"{quote(run, safe='')}.db"
    if not path.exists():
        return "" if lost >= recorded else f"the hub has no file {path.name}"
    with contextlib.closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT record FROM event WHERE name = 'train.step'").fetchall()
    numbers = sorted(event_number(record) for (record,) in rows)
    if len(numbers) == len(set(numbers)) and recorded - lost <= len(numbers) <= recorded:
        return ""
    return f"the hub's store has {len(numbers)} events, {len(set(numbers))} different ones, recorded were {recorded}"


def _fault(name: str, plan: Plan, temporality: str = "delta") -> Fault:
    put_up = partial(hub_behind, plan=plan, temporality=temporality)
    return Fault(name, "hub", put_up, takes=True, complete=True, opaque=True)


FAULTS = (
    _fault("none", passes),
    _fault("reset after the first three were taken", cuts_answers(3)),
    _fault("reset after the first three were taken, cumulative", cuts_answers(3), "cumulative"),
    _fault("half of the first two answers, then silence", halves_answers(2)),
    _fault("reset after every second was taken", lambda number: "reset" if number % 2 else ""),
)
