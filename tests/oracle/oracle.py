"""Does a changed hub answer as it did before? Recorded requests, played into two versions, and every answer compared.

``python tests/oracle/oracle.py record FOLDER`` runs each job of ``jobs.py`` against a real hub of the package that the
interpreter imports, with a proxy between them, and writes what came through it, with the times of arrival, to
``FOLDER/JOB.jsonl.xz``. That was done once, with the code before the change; it is repeated only for new jobs.

``python tests/oracle/oracle.py compare FOLDER OLD NEW…`` plays the recordings into hubs of versions, each named by its
``src`` folder, and prints a unified diff of each answer that differs; the exit code is 1 where one does. The hubs
are real processes whose clock is set to the time of arrival before each request (``clocked.py``), so that no answer
depends on how fast the machine is. Compared are the answers to the requests, those of every route of the hub and the
Studio after half of the requests, after all, and later, the hub's last words, and what the commands for runs print of
its files; at last all of that for one store with the runs of all jobs. ``ignored.py`` lists what may differ. A version
that reads only older schemas of event records than these have gets them with the number that it reads.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import difflib
import gzip
import http.client
import http.server
import json
import lzma
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from ignored import comparable
from jobs import JOBS, Job

HERE = Path(__file__).resolve().parent
SECOND = 1_000_000_000
INTERVAL = 0.25  # seconds between two exports of a job
LATER = (12, 400)  # seconds after the last request: a rank is silent by then, and its series have left the page
_SCHEMA = b"\n\x11tachograph.schema\x12\x02\x18"  # an attribute in protobuf, without its value
_LEFT_OUT = {"host", "content-length", "connection", "accept", "accept-encoding"}  # of a request, in its recording
_COMPARED = ("content-type", "content-encoding", "vary", "cache-control", "retry-after", "allow", "www-authenticate")
_MOST_LINES = 40  # of a diff
PAGES: tuple[dict[str, str], ...] = (
    {},
    {"Accept": "application/openmetrics-text;version=1.0.0"},
    {"Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"},
    {"Accept": "text/plain;version=1.0.0;escaping=allow-utf-8", "Accept-Encoding": "gzip"},
)
_ROUTES = ("/metrics?escaping=underscores", "/sd", "/healthz", "/", "/nothing", "/v1/metrics", "/static/none")
FILTERS = ("loss < 0.5", "state:failed", "tag:sweep", "-tag:sweep", "loss <", "nothing > 1", "metrics")


class Request(NamedTuple):
    """A request of a job.

    Attributes:
        at: its arrival, in nanoseconds since the epoch.
        path: of its URL.
        headers: those that matter to a hub.
        body: decompressed; it is compressed again where a header says that it was.
    """

    at: int
    path: str
    headers: Mapping[str, str]
    body: bytes


# Recording


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a hub, one after the other, and keeps them."""

    def __init__(self, hub: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.kept: list[Request] = []
        self.passing = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _LEFT_OUT}
        if self.headers["Host"] not in self.server.url:
            headers["Host"] = self.headers["Host"]
        body = gzip.decompress(sent) if self.headers.get("Content-Encoding") == "gzip" else sent
        with self.server.passing:
            self.server.kept.append(Request(time.time_ns(), self.path, headers, body))
            connection = http.client.HTTPConnection(self.server.hub, timeout=30)
            with contextlib.closing(connection):
                connection.request("POST", self.path, sent, headers)
                answer = connection.getresponse()
                content = answer.read()
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("date", "server", "connection", "transfer-encoding"):
                self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def record(folder: Path, names: Iterable[str]) -> None:
    """Record jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        began, kept = _recorded(name, JOBS[name])
        lines = [json.dumps({"began": began})]
        lines += [json.dumps({**each._asdict(), "body": base64.b64encode(each.body).decode()}) for each in kept]
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", preset=9) as out:
            out.write("\n".join(lines) + "\n")
        size = (folder / f"{name}.jsonl.xz").stat().st_size
        _say(f"{name}: {len(kept)} requests, {size:,} bytes")


def _recorded(name: str, job: Job) -> tuple[int, list[Request]]:
    import tachograph
    from tachograph.instrumentation.child_environment import child_environment

    with tempfile.TemporaryDirectory(prefix="oracle-") as made:
        # Links, so that no recording names a folder of the machine that it is made on.
        folder = Path(made).rename(Path(tempfile.gettempdir()) / "oracle")
        Path(made).mkdir()
        (folder / "environment").symlink_to(sys.prefix)
        (folder / "src").symlink_to(Path(str(tachograph.__file__)).parents[1])
        (folder / "train.py").write_text(job.program)
        environ = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        environ |= {"PYTHONPATH": str(folder / "src"), "TACHOGRAPH_STORE": str(folder / "store"), "HOME": str(folder)}
        environ |= {"OTEL_RESOURCE_ATTRIBUTES": "host.name=node-1", "TACHOGRAPH_SYSTEM_METRICS": "false"}
        began = time.time_ns()
        try:
            with _hub([sys.executable, "-m", "tachograph"], [], environ, folder / "store") as (_, url, _):
                proxy = Proxy(url.partition("://")[2])
                threading.Thread(target=proxy.serve_forever, daemon=True).start()
                told = child_environment(environ, hub=proxy.url, endpoint="", run_id=name, interval=INTERVAL)
                _run_ranks(folder, job, {**told, **dict(job.settings)})
                proxy.shutdown()
        finally:
            shutil.rmtree(folder)
        return began, proxy.kept


def _run_ranks(folder: Path, job: Job, environ: Mapping[str, str]) -> None:
    of_all = {"WORLD_SIZE": str(job.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1"}
    command = [str(folder / "environment/bin/python"), "train.py"]
    ranks = [
        subprocess.Popen(command, cwd=folder, env={**environ, **of_all, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(job.ranks)
    ]
    for each in ranks:
        each.wait(60)


@contextlib.contextmanager
def _hub(
    command: list[str], arguments: list[str], environ: Mapping[str, str], store: Path, descriptors: Iterable[int] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], str, Any]]:
    """Run a hub; yield its process, its URL, and what it announces."""
    reading, writing = os.pipe()
    line = [*command, "hub", "--announce", str(writing), "--port", "0", "--quiet", "--store", str(store), *arguments]
    process = subprocess.Popen(line, env=environ, pass_fds=[writing, *descriptors])
    os.close(writing)
    with process, os.fdopen(reading) as announced:
        try:
            yield process, json.loads(announced.readline())["url"], announced
        finally:
            process.kill()


def read_recording(path: Path) -> tuple[int, list[Request]]:
    """Return when a recording began, and its requests."""
    with lzma.open(path, "rt") as lines:
        began = json.loads(next(lines))["began"]
        found = [json.loads(line) for line in lines]
        return began, [Request(**{**each, "body": base64.b64decode(each["body"])}) for each in found]


# Playing


class Server:
    """A hub or a Studio with a clock that is set; it is asked over one connection."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, announced: Any, pipes: tuple[int, int]) -> None:
        self.process, self.url, self.announced, self._pipes = process, url, announced, pipes
        self._connection = http.client.HTTPConnection(url.partition("://")[2], timeout=60)

    def forward(self, to: int) -> None:
        """Set its clock, and wait until all that was due has been done."""
        os.write(self._pipes[1], f"{to}\n".encode())
        assert os.read(self._pipes[0], 1) == b"\n", "the process has ended"

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> str:
        """Return an answer as text: status, headers, content."""
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.headers["Content-Encoding"] == "gzip":
            content = gzip.decompress(content)
        if "protobuf" in (answer.headers["Content-Type"] or ""):
            content = repr(content).encode()
        told = [f"{key.lower()}: {value}" for key, value in answer.getheaders() if _is_compared(key.lower())]
        return "\n".join([str(answer.status), *sorted(told), "", content.decode("utf-8", "backslashreplace")])

    def json(self, path: str) -> Any:
        """Return the JSON of an answer; None where it is an error."""
        status, _, rest = self.ask(path).partition("\n")
        return json.loads(rest.partition("\n\n")[2]) if status == "200" else None

    def hello(self, path: str) -> str:
        """Return the first message of a stream."""
        host, port = self._connection.host, self._connection.port
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            lines = iter(answer.readline, b"\n") if answer.status == 200 else [answer.read()]
            return f"{answer.status}\n" + b"".join(lines).decode()

    def end(self) -> str:
        """End it at once, but in order; return its last words, which are whole before a signal too many may kill it."""
        while self.process.poll() is None:  # the second signal makes it hurry
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.3)
        return self.announced.read() if self.announced else ""


def _is_compared(header: str) -> bool:
    return header in _COMPARED or header.startswith("x-") or "tachograph" in header


class Side:
    """One version: its answers, by what was asked.

    Args:
        source: its ``src``.
        folder: for its stores; named as the version.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.name = folder.name
        self.answers: dict[str, str] = {}
        self._folder = folder
        self._environ = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        self._environ |= {"PYTHONPATH": str(source), "TACHOGRAPH_SYSTEM_METRICS": "false", "HOME": str(folder)}
        self._environ["PYTHONHASHSEED"] = "0"  # the old version shows the ranks of a hang in the order of a set
        asked = [sys.executable, "-c", "from tachograph.recording.journal import SCHEMA; print(SCHEMA)"]
        self._schema = int(subprocess.check_output(asked, env=self._environ))
        self._commands = subprocess.Popen(
            [sys.executable, str(HERE / "clocked.py"), "-"],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def play(self, name: str, recording: Path) -> None:
        """Play a recording, and take all answers."""
        job, (began, requests) = JOBS[name], read_recording(recording)
        store = self._folder / name
        own = ["--parent", str(os.getpid()), "--run-id", name] if job.owns else []
        half = len(requests) // 2
        with contextlib.ExitStack() as served:
            server = served.enter_context(self._served("hub", store, began, own))
            for number, request in enumerate(requests):
                server.forward(request.at)
                if number == half:
                    self._ask(server, f"{name}, after half", quick=True)
                if number == half and job.restarts:
                    server.process.kill()
                    server.process.wait()
                    server = served.enter_context(self._served("hub", store, request.at, own))
                body = self._readable(request.body)
                body = gzip.compress(body) if "gzip" in request.headers.values() else body
                answer = server.ask(request.path, "POST", body, **request.headers)
                self._take(f"{name}, request {number} to {request.path}", answer)
            now = requests[-1].at
            server.forward(now + SECOND)
            self._ask(server, f"{name}, after all")
            _, out, errors = self._told(now + SECOND, "top", name, "--once", "--url", server.url)
            self._take(f"{name}, after all: top", out + errors)
            for seconds in LATER:
                server.forward(now + seconds * SECOND)
                self._ask(server, f"{name}, {seconds} s later", quick=True)
            self._take(f"{name}, last words", server.end())
        self._print_runs(name, store, now + 3600 * SECOND)

    def _readable(self, body: bytes) -> bytes:
        """Return a request with schemas of event records that this version reads: 1 and 2 take one byte each."""
        for newer in range(self._schema + 1, 3):
            body = body.replace(_SCHEMA + bytes([newer]), _SCHEMA + bytes([self._schema]))
        return body

    def look_back(self, names: Iterable[str], now: int) -> None:
        """Take all answers about one store with the runs of all jobs."""
        store = self._folder / "all"
        (store / "runs").mkdir(parents=True)
        for name in names:
            for path in (self._folder / name / "runs").iterdir():
                if path.is_file() and not (store / "runs" / path.name).exists():
                    shutil.copy(path, store / "runs")
        for kind in ("hub", "studio"):
            with self._served(kind, store, now, []) as server:
                server.forward(now + 2 * SECOND)
                self._ask(server, f"all, {kind}", quick=kind == "hub")
                self._take(f"all, {kind}, last words", server.end())
        self._command("all", store, now, "runs", "list", "--json")
        for wanted in FILTERS:
            self._command("all", store, now, "runs", "list", "--filter", wanted, "--columns", "loss,state,tags,host")

    def close(self) -> None:
        """End it."""
        assert self._commands.stdin is not None
        self._commands.stdin.close()
        self._commands.wait()

    @contextlib.contextmanager
    def _served(self, kind: str, store: Path, now: int, arguments: list[str]) -> Iterator[Server]:
        theirs, ours = os.pipe(), os.pipe()
        environ = {**self._environ, "ORACLE_TIME": str(now), "ORACLE_PIPES": f"{theirs[0]},{ours[1]}"}
        command = [sys.executable, str(HERE / "clocked.py")]
        descriptors = (theirs[0], ours[1])
        try:
            with contextlib.ExitStack() as running:
                if kind == "hub":
                    found = running.enter_context(_hub(command, arguments, environ, store, descriptors))
                else:
                    found = running.enter_context(_studio(command, environ, store, descriptors))
                for each in descriptors:
                    os.close(each)
                yield Server(*found, (ours[0], theirs[1]))
        finally:
            os.close(ours[0])
            os.close(theirs[1])

    def _take(self, asked: str, answer: str) -> None:
        number = 1
        while asked in self.answers:
            number, asked = number + 1, f"{asked.partition(' (again ')[0]} (again {number})"
        self.answers[asked] = comparable(answer.replace(str(self._folder), "STORES"))

    def _ask(self, server: Server, when: str, *, quick: bool = False) -> None:
        for page in PAGES:
            self._take(f"{when}: GET /metrics {page}", server.ask("/metrics", "GET", None, **page))
        for path in (
            "/metrics?escaping=underscores",
            "/sd",
            "/healthz",
            "/",
            "/nothing",
            "/v1/metrics",
            "/static/none",
        ):
            self._take(f"{when}: GET {path}", server.ask(path))
        listed = server.json("/api/runs")
        runs = sorted(each["id"] for each in listed["runs"])
        for path in _questions_of_store(runs):
            self._take(f"{when}: GET {path}", server.ask(path))
        for run in runs:
            base = f"/api/runs/{quote(run, safe='')}"
            found = server.json(base)
            for path in () if found is None else _questions(base, found, quick=quick):
                self._take(f"{when}: GET {path}", server.ask(path))
            if not quick:  # once only: a watcher stays, and its next hello tells of what it has seen in real time
                self._take(f"{when}: GET {base}/live", server.hello(f"{base}/live"))
            for method in ("HEAD", "POST", "DELETE", "PUT"):
                self._take(f"{when}: {method} {base}", server.ask(base, method))

    def _print_runs(self, name: str, store: Path, now: int) -> None:
        for path in sorted((store / "runs").glob("*")):
            self._take(f"{name}: files", "" if path.suffix in (".db-wal", ".db-shm", ".lock") else path.name)
        code, listed, _ = self._told(now, "runs", "list", "--json", "--store", str(store))
        runs = sorted(json.loads(line)["id"] for line in listed.splitlines()) if code == 0 else []
        for arguments in (["list", "--json"], ["list"], ["show", "nothing"]):
            self._command(name, store, now, "runs", *arguments)
        for run in runs:
            self._command(name, store, now, "runs", "show", run)
            self._command(name, store, now, "diagnose", run, "--json")
            self._command(name, store, now, "top", run, "--once", "--ranks")
            for form in ("csv", "jsonl"):
                self._command(name, store, now, "runs", "export", run, "--format", form)
            for kind in ("histogram", "counter", "gauge"):
                self._command(name, store, now, "runs", "export", run, "--kind", kind)
            self._command(name, store, now, "runs", "export", run, "--format", "jsonl", "--metric", "loss")
            logs = self._folder / f"{name}-tensorboard"
            self._command(name, store, now, "runs", "export", run, "--format", "tensorboard", "-o", str(logs))
            for path in sorted(each for each in logs.rglob("*") if each.is_file()):
                self._take(f"{name}: {path.relative_to(logs)}", "".join(_tensorboard_events(path.read_bytes())))
        change = ["--name", "a name", "--notes", "two\nlines", "--add-tag", "good", "--add-tag", "better"]
        for run in runs[:1]:
            self._command(name, store, now, "runs", "edit", run, *change)
            self._command(name, store, now, "runs", "edit", run, "--remove-tag", "better")
            self._command(name, store, now, "runs", "show", run)

    def _command(self, name: str, store: Path, now: int, *arguments: str) -> None:
        code, out, errors = self._told(now, *arguments, "--store", str(store))
        self._take(f"{name}: {' '.join(arguments)}".replace(str(self._folder), ""), f"{out}{errors}code {code}\n")

    def _told(self, now: int, *arguments: str) -> tuple[int, str, str]:
        asked, answers = self._commands.stdin, self._commands.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps({"now": now, "arguments": arguments}).encode() + b"\n")
        asked.flush()
        code, out, errors = json.loads(answers.readline())
        return code, out, errors


@contextlib.contextmanager
def _studio(
    command: list[str], environ: Mapping[str, str], store: Path, descriptors: Iterable[int]
) -> Iterator[tuple[subprocess.Popen[bytes], str, Any]]:
    """Run a Studio; yield its process and its URL."""
    line = [*command, "studio", "--port", "0", "--store", str(store)]
    joined: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(line, env=environ, pass_fds=[*descriptors], **joined)
    assert process.stdout is not None
    with process:
        try:
            said = process.stdout.readline().decode()
            yield process, "http://" + said.partition("http://")[2].partition("/")[0].split()[0], None
        finally:
            process.kill()


def _questions_of_store(runs: list[str]) -> Iterator[str]:
    yield from ("/api/runs", "/api/nothing", "/api/runs/nothing", "/api/table?names=1&column=loss&column=state")
    if runs:
        yield f"/api/runs/{quote(runs[0], safe='')}x"
    for wanted in FILTERS:
        yield "/api/table?" + urlencode({"filter": wanted, "sort": "-loss", "column": ["loss", "tags"]}, doseq=True)
    yield "/api/table?group=state&sort=name&offset=1&limit=3&column=train/loss&column=nothing"
    yield "/api/table?limit=many"
    yield "/api/compare?" + urlencode({"run": [*runs, "nothing"]}, doseq=True)


def _questions(base: str, found: Mapping[str, Any], *, quick: bool) -> Iterator[str]:
    """Yield what is asked about a run, whose page's data is ``found``."""
    yield base
    yield from (f"{base}/{what}" for what in ("calls", "doctor", "faults", "events", "nothing", "curves", "arrivals"))
    numbers = [each["series"] for each in found["series"]]
    chosen = numbers if len(numbers) <= 40 else numbers[::8]
    drawn = [metric for chart in found["charts"] for metric in chart["metrics"]]
    curves = [curve["curve"] for metric in drawn for curve in metric["curves"]]
    yield f"{base}/arrivals?" + urlencode({"after": ",".join(f"{number}:0" for number in curves), "newer": 0})
    yield f"{base}/samples?" + urlencode({"series": chosen}, doseq=True)
    yield f"{base}/spreads?" + urlencode({"series": chosen}, doseq=True)
    charts = [(chart["group"], each["metric"]) for chart in found["charts"] for each in chart["metrics"]]
    for group, metric in charts[:: 1 if len(charts) <= 40 else 20]:
        named = {"metric": metric, "group": group}
        yield f"{base}/curves?{urlencode(named)}"
        if not quick:
            yield from (f"{base}/curves?{urlencode({**named, **more})}" for more in _DRAWINGS)
    if not quick:
        yield f"{base}/samples?" + urlencode({"series": chosen, "newest": 3}, doseq=True)
        yield f"{base}/samples?" + urlencode({"series": chosen, "stretches": 2}, doseq=True)
        yield f"{base}/spreads?" + urlencode({"series": chosen, "columns": 2}, doseq=True)
        yield from (f"{base}/events?{query}" for query in ("limit=2", "after=3&limit=3", "limit=0"))
        yield f"{base}/events?name=tachograph.metric"
        yield from (f"{base}/samples?series={query}" for query in ("x", "99999"))


def _tensorboard_events(content: bytes) -> Iterator[str]:
    """Yield the events of one of TensorBoard's files as it reads them; without it their lengths."""
    read: Callable[[bytes], Any] = len
    with contextlib.suppress(ImportError):
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]

        read = Event.FromString
    while content:
        (length,) = struct.unpack_from("<Q", content)
        event, content = content[12 : 12 + length], content[16 + length :]  # behind it is a checksum
        yield f"{read(event)}\n"


_DRAWINGS: tuple[dict[str, Any], ...] = (
    {"x": "step", "pairs": 20},
    {"x": "wall", "knots": 1},
    {"x": "relative", "pairs": 7, "knots": 1},
    {"x": "sideways"},
    {"rank": 1},
    {"low": 2, "high": 30, "pairs": 5},
    {"smooth": 0.6},
    {"smooth": 2},
)


# Comparing


def compare(folder: Path, old: Path, versions: list[Path], names: list[str], kept: Path | None) -> int:
    """Play recordings into versions, and print how each differs from the old one; return in how many answers."""
    sources = versions if old.suffix == ".json" else [old, *versions]
    with tempfile.TemporaryDirectory(prefix="oracle-") as made:
        sides = [Side(source, Path(made) / str(number)) for number, source in enumerate(sources)]
        with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda side: _played(side, folder, names), sides))
    if kept is not None:
        kept.write_text(json.dumps(sides[0].answers, indent=0, ensure_ascii=False))
    expected = json.loads(old.read_text()) if old.suffix == ".json" else sides[0].answers
    found = [side.answers for side in sides[len(sources) - len(versions) :]]
    return sum(_differences(expected, answers, source) for answers, source in zip(found, versions, strict=True))


def _differences(old: Mapping[str, str], new: Mapping[str, str], source: Path) -> int:
    differ = [asked for asked in {**old, **new} if old.get(asked) != new.get(asked)]
    for asked in differ:
        _print_difference(asked, old.get(asked, ""), new.get(asked, ""))
    _say(f"{source}: {len(new):,} answers, {len(differ)} differ")
    return len(differ)


def _played(side: Side, folder: Path, names: list[str]) -> None:
    latest = 0
    for name in names:
        path = folder / f"{name}.jsonl.xz"
        try:
            side.play(name, path)
        except Exception as error:  # noqa: BLE001 - a version that fails in one job is asked about the others
            side.answers[f"{name}, failure of the {side.name} version"] = "".join(traceback.format_exception(error))
            _say(f"{name} fails in the {side.name} version: {error!r}")
        latest = max(latest, read_recording(path)[1][-1].at)
    side.look_back(names, latest + 3600 * SECOND)
    side.close()


def _print_difference(asked: str, old: str, new: str) -> None:
    lines = list(difflib.unified_diff(_lines(old), _lines(new), "old", "new", lineterm="", n=2))
    _say("\n".join([f"=== {asked}", *lines[2:_MOST_LINES]]))
    if len(lines) > _MOST_LINES:
        _say(f"… {len(lines) - _MOST_LINES} more lines")


def _lines(answer: str) -> list[str]:
    """Return an answer as lines, its JSON on many."""
    found = []
    for line in answer.splitlines():
        try:
            found += json.dumps(json.loads(line), indent=1, ensure_ascii=False).splitlines()
        except ValueError:
            found.append(line)
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "compare"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path, help="the recordings")
        command.add_argument("--job", action="append", choices=JOBS, help="only this job (may be repeated)")
        if name == "compare":
            command.add_argument("old", type=Path, help="the src folder of the old version, or its answers")
            command.add_argument("new", type=Path, nargs="+", help="the src folder of a new version")
            command.add_argument("--keep", type=Path, help="write the answers of the first version into this JSON file")
    options = parser.parse_args()
    names = options.job or list(JOBS)
    if options.command == "record":
        record(options.folder, names)
        return 0
    return min(compare(options.folder, options.old, options.new, names, options.keep), 1)


if __name__ == "__main__":
    sys.exit(main())
