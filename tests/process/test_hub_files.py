"""Files that are deleted or overwritten under a running hub: it notices, says so, and goes on in new ones."""

from __future__ import annotations

import os
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

from hub_requests import logs, metrics, number, rank, shown
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


def renewed(hub: Command, why: str) -> float:
    """Return how many files a hub says that it made anew."""
    return sum(shown(ask(hub.url, "/metrics").body, "tachograph_hub_files_renewed_total", why=why).values())


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
    """Where the runs are deleted, what comes from then on is kept in new files, and the hub says what happened."""
    with command(tmp_path) as hub:
        folder = Path(hub.first["store"]) / "runs"
        post(hub, 1)
        shutil.rmtree(folder)
        assert eventually(lambda: renewed(hub, "deleted") == 1)
        post(hub, 2)
        said, stderr = ended(hub)
    with closing(sqlite3.connect(folder / "job.db")) as file:
        assert file.execute("SELECT seq FROM event").fetchall() == [(2,)]
        assert file.execute("SELECT name FROM series").fetchall() == [("loss",)]
        assert file.execute("SELECT instance FROM process").fetchall() == [("r0",)]
    assert {each["file"] for each in said["renewed"]} == {str(folder / "job.db")}
    assert stderr.count("was deleted") >= 1


def test_a_file_that_is_overwritten_in_the_middle(tmp_path: Path) -> None:
    """A file that somebody writes into is checked, kept aside where it is damaged, and its readable part with it."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        post(hub, 1, 4000)
        with closing(sqlite3.connect(path, timeout=20)) as other:  # else the log is taken over within a minute
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        assert path.stat().st_size > 1_000_000
        post(hub, 4001)
        with path.open("r+b") as file:
            file.seek(500_000)
            file.write(b"\xff" * 100_000)
        assert eventually(lambda: renewed(hub, "damaged"))
        post(hub, 4002)
        said, stderr = ended(hub)
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("SELECT seq FROM event").fetchall() == [(4002,)]
        assert new.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    (aside,) = path.parent.glob("job.db.damaged-*[0-9]")
    with closing(sqlite3.connect(aside)) as old:
        assert old.execute("SELECT seq FROM event LIMIT 100").fetchall() == [(seq,) for seq in range(1, 101)]
    assert [each["why"] for each in said["renewed"]] == ["damaged"]
    assert str(aside) in stderr


def test_what_others_may_do_harms_nothing(tmp_path: Path) -> None:
    """A file that another program wrote into properly stays in use."""
    with command(tmp_path, "--quiet") as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        post(hub, 1, 1000)
        with closing(sqlite3.connect(path, timeout=20)) as other:
            other.execute("CREATE TABLE theirs (a)")
            other.commit()
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        time.sleep(2.5)
        assert not renewed(hub, "damaged")
        assert not renewed(hub, "deleted")
        said, _ = ended(hub)
    assert said["renewed"] == []


@pytest.mark.parametrize("cut", [True, False])
def test_a_log_that_others_write_into(tmp_path: Path, cut: bool) -> None:
    """Where SQLite's log is cut or overwritten nothing more is acknowledged into it: what follows is in a new file."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        log = path.with_name("job.db-wal")
        post(hub, 1, 100)
        post(hub, 101, 800)
        time.sleep(0.05)  # the file system's time has gone on
        middle = log.stat().st_size // 2
        if cut:
            os.truncate(log, middle)
        else:
            with log.open("r+b") as file:
                file.seek(middle)
                file.write(b"\xff" * 20_000)
        refused = ask(hub.url, "/v1/logs", more(901), content_type=PROTOBUF)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert eventually(lambda: renewed(hub, "damaged"))
        post(hub, 901)
        said, stderr = ended(hub)
    assert numbers(path) == [901]
    (aside,) = path.parent.glob("job.db.damaged-*[0-9]")
    assert numbers(aside)[:100] == list(range(1, 101))
    assert [each["why"] for each in said["renewed"]] == ["damaged"]
    assert "Traceback" not in stderr


def test_a_log_that_is_deleted(tmp_path: Path) -> None:
    """Where SQLite's log alone is deleted nothing is lost, not even where the hub is killed then."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        post(hub, 1)
        path.with_name("job.db-wal").unlink()
        post(hub, 2)
        hub.process.kill()
        hub.process.wait(30)
    assert numbers(path) == [1, 2]


def test_a_file_system_that_sets_times_late(tmp_path: Path) -> None:
    """A log that has another time and is sound is checked once, and holds up nothing from then on."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]) / "runs" / "job.db"
        post(hub, 1)
        os.utime(path.with_name("job.db-wal"), (1, 1))
        assert ask(hub.url, "/v1/logs", more(2), content_type=PROTOBUF).status == 503
        assert eventually(lambda: ask(hub.url, "/v1/logs", more(2), content_type=PROTOBUF).status == 200)
        for number in range(3, 6):
            os.utime(path.with_name("job.db-wal"), (number, number))
            post(hub, number)
        said, _ = ended(hub)
    assert said["renewed"] == []
    assert numbers(path) == [1, 2, 3, 4, 5]


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
        said, _ = ended(hub)
    assert said["renewed"] == []
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
