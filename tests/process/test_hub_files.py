"""A hub whose files are deleted, written by others, or cannot be opened: it says so, and goes on where it can."""

from __future__ import annotations

import resource
import shutil
import signal
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub_requests import logs, metrics, number, rank
from hubs import PROTOBUF, Command, ask, command


def post(hub: Command, first: int, count: int = 1) -> None:
    """Post events and a gauge, and see that they are taken."""
    events = [("e", {"text": "x" * 500})] * count
    for path, request in (
        ("/v1/logs", logs(rank(0, run="job"), *events, first=first)),
        ("/v1/metrics", metrics(rank(0, run="job"), number("loss", first, time=time.time_ns()))),
    ):
        assert ask(hub.url, path, request.SerializeToString(), content_type=PROTOBUF).status == 200


def more(number: int) -> bytes:
    """Return a request with one event."""
    return logs(rank(0, run="job"), ("e", {}), first=number).SerializeToString()


def ended(hub: Command) -> tuple[dict[str, Any], str]:
    """End a hub, and return its last words: as JSON and in words."""
    hub.process.send_signal(signal.SIGTERM)
    said = hub.next()
    _, stderr = hub.process.communicate(timeout=30)
    assert hub.process.returncode == 0
    return said, stderr


def numbers(path: Path) -> list[int]:
    """Return the numbers of the events in a file."""
    with closing(sqlite3.connect(path)) as file:
        return [number for (number,) in file.execute("SELECT seq FROM event ORDER BY seq")]


def eventually(condition: Callable[[], object]) -> bool:
    """Tell whether something comes true within some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_a_folder_that_is_deleted(tmp_path: Path) -> None:
    """If the runs are deleted, what comes from then on is kept in new files, and the hub says what happened."""
    with command(tmp_path) as hub:
        folder = Path(hub.first["store"]) / "runs"
        post(hub, 1)
        shutil.rmtree(folder)
        assert eventually((folder / "job.db").exists)
        post(hub, 2)
        said, stderr = ended(hub)
    with closing(sqlite3.connect(folder / "job.db")) as file:
        assert file.execute("SELECT seq FROM event").fetchall() == [(2,)]
        assert file.execute("SELECT name FROM series").fetchall() == [("loss",)]
        assert file.execute("SELECT instance FROM process").fetchall() == [("r0",)]
    assert said["deleted"] == [str(folder / "job.db")]
    assert stderr.count("was deleted while the hub was writing it; continuing in a new file") == 1
    assert "Traceback" not in stderr


def test_a_database_that_is_deleted_without_its_log(tmp_path: Path) -> None:
    """The log that is left does not belong to the new file, which begins empty."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        post(hub, 1, 100)
        path.unlink()
        assert eventually(path.exists)
        post(hub, 101)
        ended(hub)
    assert numbers(path) == [101]
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_others_that_commit_are_no_damage(tmp_path: Path) -> None:
    """Another program's own transactions, and its emptying of the log, hold up nothing."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as other:
            for number in range(1, 21):
                post(hub, number)
                other.execute("CREATE TABLE IF NOT EXISTS theirs (a)")
                other.execute("INSERT INTO theirs VALUES (1)")
                if number % 5 == 0:
                    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    assert eventually(lambda: ask(hub.url, "/v1/logs", more(1), content_type=PROTOBUF).status == 200)
        ended(hub)
    assert numbers(path) == list(range(1, 21))


def test_a_run_whose_file_could_not_be_opened(tmp_path: Path) -> None:
    """A run that is new while the disk takes nothing has its file once that is over; nothing is acknowledged before."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        path.mkdir()  # no file can be there
        refused = ask(hub.url, "/v1/logs", more(1), content_type=PROTOBUF)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        path.rmdir()
        assert eventually(lambda: ask(hub.url, "/v1/logs", more(1), content_type=PROTOBUF).status == 200)
        _, stderr = ended(hub)
    assert numbers(path) == [1]
    assert "the run job is now stored in its file" in stderr
    assert "Traceback" not in stderr


def test_no_descriptor_for_a_connection(tmp_path: Path) -> None:
    """Where no descriptor is left connections wait; that is said in a line, and over once there are some."""
    with command(tmp_path) as hub:
        post(hub, 1)
        before = resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE)
        taken = {int(each.name) for each in Path(f"/proc/{hub.process.pid}/fd").iterdir()}
        free = min(set(range(len(taken) + 1)) - taken)  # and those above it are beyond the limit, too
        resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE, (free, before[1]))
        host, _, port = hub.url.partition("://")[2].partition(":")
        with socket.create_connection((host, int(port)), 10), socket.create_connection((host, int(port)), 10):
            time.sleep(1.5)
            resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE, before)
            post(hub, 2)
        _, stderr = ended(hub)
    assert "the hub cannot accept more connections" in stderr
    assert "Traceback" not in stderr


@pytest.mark.usefixtures("untraced")  # coverage could not write its own file either
def test_why_there_is_no_file_is_said(tmp_path: Path) -> None:
    """A hub that cannot begin its file says why in a line, and not that nothing could be rolled back."""
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh"]  # blocks of 512 bytes
    with command(tmp_path, wrapper=limited, parent=True) as hub:
        assert hub.end() == 2
        _, stderr = hub.process.communicate(timeout=30)
    assert len(stderr.splitlines()) == 1
    assert "disk" in stderr
    assert "rollback" not in stderr
