"""Files that are deleted or overwritten under a running hub: it notices, says so, and goes on in new ones."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

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
        folder = Path(hub.first["store"]).parent
        post(hub, 1)
        shutil.rmtree(folder)
        assert eventually(lambda: renewed(hub, "deleted") == 2)
        post(hub, 2)
        said, stderr = ended(hub)
    with closing(sqlite3.connect(folder / "job.db")) as file:
        assert file.execute("SELECT seq FROM event").fetchall() == [(2,)]
        assert file.execute("SELECT name FROM series").fetchall() == [("loss",)]
        assert file.execute("SELECT instance FROM process").fetchall() == [("r0",)]
    assert {each["file"] for each in said["renewed"]} == {str(folder / "job.db"), str(folder / "default.db")}
    assert stderr.count("was deleted") >= 2


def test_a_file_that_is_overwritten_in_the_middle(tmp_path: Path) -> None:
    """A file that somebody writes into is checked, kept aside where it is damaged, and its readable part with it."""
    with command(tmp_path) as hub:
        path = Path(hub.first["store"]).parent / "job.db"
        post(hub, 1, 4000)
        assert eventually(lambda: path.stat().st_size > 1_000_000)  # the log was taken over
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
        path = Path(hub.first["store"]).parent / "job.db"
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
