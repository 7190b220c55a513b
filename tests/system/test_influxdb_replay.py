"""Lines that were delivered are not replayed: after 429, a reset, SIGKILL, an end in the middle; and ``replay``."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import programs
from examples import examples
from influx_points import dropped, event, events, exporter, feed, leave, lines_in, spool_files
from places import TESTS
from servers import exported_series, influxdb1, influxql, victoria_metrics, wait_until
from tachograph.cli import main
from tachograph.exporters.influxdb._exporter import spool_folder
from tachograph.exporters.spool import Spool
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording.journal import LogEvent
from tachograph.recording.registry import Registry

Answer = Literal["204", "429", "503", "reset", "413", "partly", "killed", "silent", "busy"]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faulty

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        self.server.requests.append(body.splitlines())
        answer = self.server.next_answer()
        if answer == "silent":
            self.server.wakes.wait(30)
            self.close_connection = True
        elif answer in ("204", "killed"):
            self.server.take(body)
            self._say(204)
        elif answer == "reset":
            self.server.take(body)
            self.server.unanswered.update(body.splitlines())
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif answer == "partly":
            self.server.take(b"\n".join(body.splitlines()[1:]))
            self._say(400, b'{"error":"partial write: field type conflict dropped=1"}')
        elif answer == "busy":
            self._say(503, b'{"message":"in a minute"}', ("Retry-After", "60"))
        else:
            self._say(int(answer), b'{"message":"no"}')

    def _say(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Faulty(http.server.ThreadingHTTPServer):
    """An InfluxDB that takes and refuses requests in a given order, and hands on what it takes to one behind it."""

    daemon_threads = True

    def __init__(self, behind: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.behind = behind
        self.wakes = threading.Event()
        self.begin([])

    def begin(self, answers: list[Answer]) -> None:
        """Forget what came, and answer so, and with 204 after that."""
        self.answers = answers
        self.requests: list[list[bytes]] = []
        self.taken: Counter[bytes] = Counter()
        self.unanswered: Counter[bytes] = Counter()  # taken, but the client was not told

    def next_answer(self) -> Answer:
        """Return what to do with this request."""
        return self.answers.pop(0) if self.answers else "204"

    def take(self, body: bytes) -> None:
        """Keep lines."""
        self.taken.update(body.splitlines())
        if self.behind is not None:
            where = f"{self.behind}/write?db=tplr&precision=ns"
            with urllib.request.urlopen(urllib.request.Request(where, body), timeout=30):
                pass


@contextmanager
def faulty(behind: str | None = None) -> Iterator[Faulty]:
    """Run such a server."""
    with Faulty(behind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.wakes.set()
            server.shutdown()
            thread.join()


def left_behind(url: str, store: Path, points: list[LogEvent]) -> Path:
    """Leave points for a server as a process that has ended does, and return the folder."""
    folder = spool_folder(InfluxTarget(url), store)
    spool = Spool(folder, 2**30)
    leave(spool, points)
    spool.close()
    return folder


@pytest.mark.parametrize("bad", ["429", "503", "reset"])
def test_a_later_piece_repeats_no_earlier_one(tmp_path: Path, bad: Answer) -> None:
    """Where a body goes in pieces and a later one fails, the earlier ones are not sent again, and none is lost.

    The piece whose answer was lost is sent once more with the same bytes: for InfluxDB the same points.
    """
    registry = Registry()
    with faulty() as server:
        left_behind(server.url, tmp_path, events(0, 64))
        # 64 lines are too long, 32 too, the first two 16 arrive, and then it fails.
        server.begin(["413", "413", "204", "204", bad])
        out = exporter(server.url, tmp_path, registry, batch_size=64)
        wait_until(lambda: not spool_files(tmp_path))
        out.close(5)
    assert len(server.taken) == 64
    assert server.taken - server.unanswered == Counter(dict.fromkeys(server.taken, 1))
    assert len(server.unanswered) == (32 if bad == "reset" else 0)
    assert dropped(registry) == {}


def test_an_end_in_the_middle_leaves_the_rest_alone(tmp_path: Path) -> None:
    """What was delivered of a file of the spool, and of a body in pieces, before an end is not sent by the next."""
    registry = Registry()
    with faulty() as server:
        left_behind(server.url, tmp_path, events(0, 300))
        server.begin(["204", "413", "204", "silent"])
        out = exporter(server.url, tmp_path, registry, batch_size=96)
        wait_until(lambda: len(server.requests) == 4)
        out.close(0.3)
        delivered = set(server.taken)
        assert len(delivered) == 96 + 48
        after = exporter(server.url, tmp_path, registry, batch_size=96)
        wait_until(lambda: not spool_files(tmp_path))
        after.close(5)
    assert server.taken == Counter(dict.fromkeys(server.taken, 1))
    assert len(server.taken) == 300
    assert dropped(registry) == {}


def test_an_end_in_the_middle_of_a_body_spools_the_rest_alone(tmp_path: Path) -> None:
    """Of points that were on their way from memory, the end puts on the disk only those not delivered, once each."""
    registry = Registry()
    with faulty() as server:
        server.begin(["413", "204", "silent"])
        out = exporter(server.url, tmp_path, registry, batch_size=100)
        feed(out, events(0, 100))
        wait_until(lambda: len(server.requests) == 3)
        out.close(0.3)
        assert len(server.taken) == 50
        after = exporter(server.url, tmp_path, registry)
        wait_until(lambda: not spool_files(tmp_path))
        after.close(5)
    assert server.taken == Counter(dict.fromkeys(server.taken, 1))
    assert len(server.taken) == 100
    assert dropped(registry) == {}


_KILLED = """
    import sys, time
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from influx_points import exporter
    from tachograph.recording.registry import Registry
    out = exporter({url!r}, Path("."), Registry(), batch_size=256)
    time.sleep(60)
"""


def kill_in_the_middle(folder: Path, server: Faulty) -> None:
    """Let a process deliver what is left behind until SIGKILL ends it, in its sixth request."""
    program = _KILLED.format(tests=str(TESTS), url=server.url)
    with subprocess.Popen(
        [sys.executable, str(programs.write(folder, program))], cwd=folder, env=programs.environment(folder)
    ) as process:
        wait_until(lambda: len(server.requests) == 6)
        process.send_signal(signal.SIGKILL)
    assert len(server.taken) == 5 * 256


@pytest.mark.parametrize("how", ["next start", "replay", "replay --delete"])
@pytest.mark.parametrize("backend", ["influxdb", "victoria-metrics"])
def test_a_killed_process_leaves_only_what_was_not_acknowledged(
    tmp_path: Path, backend: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After SIGKILL in the middle of a spool each point is at the server once: InfluxDB 1, and VictoriaMetrics, too."""
    with contextlib.ExitStack() as stack:
        if backend == "influxdb":
            base = stack.enter_context(influxdb1(tmp_path / "data"))
        else:
            base = stack.enter_context(victoria_metrics(tmp_path / "data"))
        server = stack.enter_context(faulty(base))
        points = [event(number * 1_000_000, {"loss": 0.5}) for number in range(3000)]
        folder = left_behind(server.url, tmp_path, points)
        server.begin(["204"] * 5 + ["silent"])
        kill_in_the_middle(tmp_path, server)
        if how == "next start":
            out = exporter(server.url, tmp_path, Registry())
            wait_until(lambda: not spool_files(tmp_path))
            out.close(5)
        else:
            line = [
                "resend",
                str(folder),
                "--to",
                "influxdb",
                "--url",
                server.url,
                "--database",
                "tplr",
                *how.split()[1:],
            ]
            assert main(line) == 0
            assert "sent 1,720 events from 1 file, skipped 1,280" in capsys.readouterr().err
        assert server.taken == Counter(dict.fromkeys(server.taken, 1))
        assert len(server.taken) == 3000
        assert bool(spool_files(tmp_path)) == (how == "replay")
        if backend == "influxdb":
            (series,) = influxql(base, 'SELECT COUNT("loss") FROM "train"')
            assert series["values"] == [[0, 3000]]
        else:
            (series,) = exported_series(base)
            assert len(series["timestamps"]) == len(set(series["timestamps"])) == 3000


def test_a_replay_that_stops_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --delete, the next replay leaves out what has arrived before one had to stop: all but the last 2,048 events.

    So many it hands over between two looks at whether they have arrived.
    """
    with faulty() as server:
        folder = left_behind(server.url, tmp_path, [event(number, {"n": number}, {}) for number in range(7_000)])
        assert len(list(folder.iterdir())) == 1
        line = [
            "resend",
            str(folder),
            "--to",
            "influxdb",
            "--url",
            server.url,
            "--database",
            "tplr",
            "--delete",
            "--timeout",
            "3",
        ]
        server.begin(["204"] * 3 + ["busy"])
        assert main(line) == 1
        first = len(server.taken)
        server.answers = []
        assert main(line) == 0
    said = re.search(r"skipped ([\d,]+)", capsys.readouterr().err)
    assert said is not None
    noted = int(said[1].replace(",", ""))
    assert max(first - 2048, 1) <= noted <= first
    assert len(server.taken) == 7_000
    assert sum(server.taken.values()) == 7_000 + first - noted
    assert list(folder.iterdir()) == []


def _make_read_only(path: Path) -> None:
    """Have this process's descriptors of a file take nothing more, as on a file system that is read-only now."""
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if each.readlink() == path:
                os.dup2(os.open(path, os.O_RDONLY), int(each.name))


def test_what_can_be_noted_no_more_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the disk takes no note of what has arrived, that is said once, and this process repeats nothing."""
    with faulty() as server:
        out = exporter(f"http://127.0.0.1:{server.server_port}", tmp_path, Registry(), batch_size=32)
        server.begin(["503"] * 4)
        feed(out, events(0, 96))
        wait_until(lambda: len(lines_in(spool_files(tmp_path))) == 96 or None)
        for path in spool_files(tmp_path):
            _make_read_only(path)
        out.flush(20)
        out.close(5)
    assert len(server.taken) == 96
    assert server.taken == Counter(dict.fromkeys(server.taken, 1))
    assert sum("delivered data will be sent again" in record.message for record in caplog.records) == 1


_ANSWERS = st.lists(st.sampled_from(["204", "204", "429", "503", "reset", "413", "partly"]), max_size=14)


def test_whatever_the_server_answers_nothing_delivered_is_repeated() -> None:
    """Each line that was taken with 2xx is never sent again, and none is lost uncounted, whatever the answers are.

    A line whose answer was lost comes again with the same bytes.
    """
    with faulty() as there:

        @settings(max_examples=examples(40), deadline=None)
        @given(count=st.integers(1, 150), at_once=st.integers(1, 100), answers=_ANSWERS)
        @example(count=64, at_once=64, answers=["413", "204", "429"])
        @example(count=100, at_once=33, answers=["204", "413", "204", "204", "reset", "partly"])
        def check(count: int, at_once: int, answers: list[Answer]) -> None:
            there.begin(list(answers))
            registry = Registry()
            with tempfile.TemporaryDirectory() as folder:
                left_behind(there.url, Path(folder), events(0, count))
                how: dict[str, Any] = {"batch_size": at_once, "first_back_off": 0.001}
                out = exporter(there.url, Path(folder), registry, **how)
                wait_until(lambda: not spool_files(Path(folder)))
                out.close(5)
            assert max((there.taken - there.unanswered).values(), default=0) <= 1
            rejected = sum(dropped(registry).values())
            assert set(dropped(registry)) <= {"rejected"}
            # What arrived without an answer may be refused when it comes again.
            assert count <= len(there.taken) + rejected <= count + len(there.unanswered)

        check()
