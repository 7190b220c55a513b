"""``tachograph studio``: looks at the runs of a store, live, killed and finished, and changes nothing in it."""

from __future__ import annotations

import fcntl
import hashlib
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hub_requests import logs, metrics, number, rank
from hubs import PROTOBUF, ask, command
from programs import environment
from recorded_runs import points, record
from studio import Studio, alone
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.runs.file import RunFile
from tachograph.runs.store import run_path

SHARED_LOCK = 0x40000002  # SQLite, os.h: the first of 510 bytes


def state_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the time of each file and folder below a folder, and the digest of its content."""
    return {
        str(each): (each.stat().st_mtime_ns, hashlib.sha256(each.read_bytes()).hexdigest() if each.is_file() else "")
        for each in [folder, *folder.rglob("*")]
    }


def send(url: str, run: str, *values: float, first: int = 1) -> None:
    """Send points and a gauge as rank 0 of a run."""
    body = logs(rank(0, run=run), *points(values), stream=run, first=first).SerializeToString()
    assert ask(url, "/v1/logs", body, content_type=PROTOBUF).status == 200
    sent = metrics(rank(0, run=run), number("rate", values[-1])).SerializeToString()
    assert ask(url, "/v1/metrics", sent, content_type=PROTOBUF).status == 200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two finished runs, and one whose hub was killed: its points are in SQLite's log."""
    folder = tmp_path_factory.mktemp("studio")
    record(folder, "first", *points([1.0, 2.0]), ("checkpoint", {"step": 1}))
    record(folder, "second", *points([5.0]), day=1)
    with command(folder, TACHOGRAPH_STORE=str(folder)) as hub:
        send(hub.url, "killed", 7.0, 8.0, 9.0)
        hub.process.send_signal(signal.SIGKILL)
        hub.end()
    assert run_path(folder, "killed").with_name("killed.db-wal").stat().st_size
    return folder


def tachograph(store: Path, *arguments: str) -> str:
    """Run a command that must end well, and return its output."""
    line = [sys.executable, "-m", "tachograph", *arguments, "--store", str(store)]
    done = subprocess.run(line, env=environment(store), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_looking_changes_no_byte_no_name_and_no_time(store: Path) -> None:
    """Each route, streams that listen for seconds, ``top`` and ``runs list`` leave a store as it was."""
    before = state_of(store)
    with alone(store) as studio:
        assert state_of(store) == before
        listed = {each["id"]: each for each in studio.ask("runs")["runs"]}
        assert {name: (each["state"], each["points"]) for name, each in listed.items()} == {
            "first": ("unknown", 2),
            "second": ("unknown", 1),
            "killed": ("unknown", 3),
        }
        for run in listed:
            found = studio.ask("runs", run)
            assert found.get("damage", []) == []
            (line,) = studio.ask("runs", run, "curves", metric="loss")["curves"]
            assert line["points"] == listed[run]["points"]
            studio.ask("runs", run, "samples", series=[each["series"] for each in found["series"]], newest=10)
            studio.ask("runs", run, "events")
        with studio.live("killed") as killed, studio.live("first") as first:
            killed.next("hello")
            first.next("hello")
            assert ask(studio.url, "/", Accept="text/html").status == 200
            assert ask(studio.url, "/healthz").status == 200
            time.sleep(3)  # the pages look each second
            assert state_of(store) == before
    for run in listed:
        assert "loss" in tachograph(store, "top", "--once", run)
    assert len(tachograph(store, "runs", "list").splitlines()) == 4
    assert state_of(store) == before


def job_in(studio: Studio) -> dict[str, Any]:
    """Return the entry of the run ``job`` in the list."""
    (line,) = [each for each in studio.ask("runs")["runs"] if each["id"] == "job"]
    return dict(line)


def test_a_run_of_a_hub_is_live(tmp_path: Path) -> None:
    """A run that the hub of another process writes is live, and its points come while they are recorded."""
    with command(tmp_path, TACHOGRAPH_STORE=str(tmp_path)) as hub:
        send(hub.url, "job", 1.0, 2.0)
        with alone(tmp_path) as studio:
            deadline = time.monotonic() + 15  # a hub writes processes down every five seconds, points at once
            while (line := job_in(studio))["state"] != "running" and time.monotonic() < deadline:
                assert line["points"] == 2
                time.sleep(0.2)
            assert (line["state"], line["points"]) == ("running", 2)
            with studio.live("job") as stream:
                stream.next("hello")
                send(hub.url, "job", 3.0, first=3)
                _, _, news = stream.next("points")
                assert [each["points"] for each in news["curves"]] == [[[0, 3]]]
        hub.process.terminate()
        hub.end()
    assert {each.id for each in runs.list(tmp_path)} == {"job"}


def test_a_run_may_be_pruned_while_one_looks(tmp_path: Path) -> None:
    """The Studio claims no run: it is deleted at once, and the page is told that it is gone."""
    record(tmp_path, "gone", *points([1.0]))
    with alone(tmp_path) as studio, studio.live("gone") as stream:
        stream.next("hello")
        assert "deleted 1 (" in tachograph(tmp_path, "runs", "prune", "--keep", "0", "--yes")
        assert list(tmp_path.joinpath("runs").iterdir()) == []
        assert stream.next("problem")[2]["error"].startswith("there is no run 'gone' in ")
        assert studio.ask("runs")["runs"] == []
        assert studio.answer("runs", "gone").status == 404


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "the store does not exist"),
        ("file", "the store is not a folder"),
        ("unreadable", "cannot read the store: Not a directory"),
    ],
)
def test_a_store_that_cannot_be_read_says_why(
    tmp_path: Path, kind: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 2 and one line that names the folder and the reason; nothing is made."""
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("")
    elif kind == "unreadable":
        folder.mkdir()
        (folder / "runs").write_text("")
    before = state_of(tmp_path)
    assert main(["studio", "--store", str(folder), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tachograph studio: {folder}")
    assert line.endswith(why)
    assert main(["runs", "list", "--store", str(folder)]) == (0 if kind == "missing" else 2)
    assert ("Not a directory" in capsys.readouterr().err) == (kind != "missing")
    assert state_of(tmp_path) == before


def test_beyond_loopback_a_token_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for the hub: other machines need a token."""
    assert main(["studio", "--store", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]) == 2  # noqa: S104 - refused
    assert "requires a token: use --token-file" in capsys.readouterr().err


def test_one_run_that_cannot_be_read_is_listed_with_its_problem(tmp_path: Path) -> None:
    """The others are there; and an id that is wrong is answered with the nearest one."""
    record(tmp_path, "good", *points([1.0]))
    run_path(tmp_path, "broken").write_text("no database at all, but long enough to look like one" * 40)
    run_path(tmp_path, "folder").mkdir()
    with alone(tmp_path) as studio:
        found = {each["id"]: each["damage"] for each in studio.ask("runs")["runs"]}
        assert found["good"] == []
        assert found["broken"] == ["the file is damaged: file is not a database"]
        assert found["folder"] == ["it is not a regular file"]
        refused = studio.answer("runs", "goods")
        assert (refused.status, refused.body) == (
            404,
            f'{{"error":"there is no run \'goods\' in {tmp_path}: did you mean \'good\'?","near":"good"}}\n'.encode(),
        )
        assert studio.answer("runs", "folder").status == 409


def test_a_store_that_goes_away_says_why(tmp_path: Path) -> None:
    """A store that cannot be read any more while the page is open is said, not an empty list."""
    record(tmp_path, "run", *points([1.0]))
    with alone(tmp_path) as studio:
        (tmp_path / "runs").rename(tmp_path / "moved")
        (tmp_path / "runs").write_text("")
        answer = studio.answer("runs")
        assert (answer.status, b"cannot read the store: Not a directory" in answer.body) == (409, True)


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """SIGINT ends it with 0, also while a page listens, and nothing is said."""
    record(tmp_path, "run", *points([1.0]))
    with alone(tmp_path) as studio, studio.live("run") as stream:
        stream.next("hello")
        studio.process.send_signal(signal.SIGINT)
        assert studio.process.wait(10) == 0
        assert studio.process.stderr is not None
        assert studio.process.stderr.read() == ""


def test_no_program_sends_to_it(store: Path) -> None:
    """OTLP is answered 404: the Studio is no hub, and its usual port is not that of one."""
    with alone(store) as studio:
        assert ask(studio.url, "/v1/metrics", b"", content_type=PROTOBUF).status == 404
        assert ask(studio.url, "/metrics").status == 404
        assert b"Tachograph Studio" in ask(studio.url, "/").body


def test_reading_beside_a_hub_of_the_same_process_keeps_its_locks(tmp_path: Path) -> None:
    """What this process locks stays locked when it has read the file: another process does not take its log away."""
    hub = Hub(tmp_path, run="run")
    hub.receive_logs(logs(rank(0, run="run"), *points([1.0])))
    assert [each.points for each in runs.list(tmp_path)] == [1]
    line = [sys.executable, "-c", LOCKING, str(hub.store), str(SHARED_LOCK)]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert "BlockingIOError" in refused.stderr
    path = hub.store
    hub.close()
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, SHARED_LOCK)  # and afterwards it is free


def test_a_run_that_is_read_can_be_continued_in_the_same_process(tmp_path: Path) -> None:
    """A hub continues a run that was left by a killed one while its own Studio reads it."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, timeout=60)
    path = run_path(tmp_path, "run")
    assert path.with_name(f"{path.name}-wal").exists()
    hub = Hub(tmp_path, run="another")
    with RunFile(path, looking=True).snapshot():
        hub.receive_logs(logs(rank(0, run="run"), *points([1.0])))
    hub.close()
    assert [each.points for each in runs.list(tmp_path) if each.id == "run"] == [1]


KILLED = """
import os, sys
from pathlib import Path
from tachograph.runs.store import Store
Store(Path(sys.argv[1]), "run").write("INSERT INTO tag VALUES (?)", [("left",)])
os._exit(0)
"""
LOCKING = """
import fcntl, sys
fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, int(sys.argv[2]))
"""


def test_a_file_that_is_written_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """Whoever reads a finished run is told where a hub has begun to write it meanwhile."""
    record(tmp_path, "run", *points([1.0]))
    file = RunFile(run_path(tmp_path, "run"), looking=True)
    with file.snapshot():
        pass
    assert (file.changed, file.damage) == (False, [])
    with file.snapshot():
        subprocess.run([sys.executable, "-c", WRITING, str(file.path)], check=True, timeout=60)
    assert file.changed
    assert file.damage == ["it changed while it was read; read it again"]
    with file.snapshot() as connection:
        assert connection.execute("SELECT name FROM tag").fetchall() == [("new",)]
    assert not file.changed


def test_a_file_whose_hubs_come_and_go_is_looked_at_at_any_moment(tmp_path: Path) -> None:
    """A hub that opens, writes and closes the file again and again is in no look's way, or the look is done again."""
    record(tmp_path, "run", *points([1.0]))
    path = run_path(tmp_path, "run")
    looks = again = newest = 0
    with subprocess.Popen([sys.executable, "-c", COMING_AND_GOING, str(tmp_path)]) as hubs:
        while hubs.poll() is None:
            file = RunFile(path, looking=True)
            with file.snapshot() as connection:
                ((count,),) = connection.execute("SELECT count(*) FROM tag")
            again += file.changed
            if not file.changed:
                assert count >= newest
                newest = count
            assert set(file.damage) <= {"it changed while it was read; read it again"}
            looks += 1
    assert hubs.returncode == 0
    assert len(runs.open("run", tmp_path).tags) == 200
    assert looks > 50
    assert again < looks / 2


COMING_AND_GOING = """
import sys
from pathlib import Path
from tachograph.runs.store import Store
for number in range(200):
    store = Store(Path(sys.argv[1]), "run")
    store.write("INSERT INTO tag VALUES (?)", [(f"tag {number}",)])
    store.close()
"""

WRITING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("INSERT INTO tag (name) VALUES ('new')")
connection.close()
"""


def test_a_log_without_its_index_is_said(tmp_path: Path) -> None:
    """A log that lies there alone cannot be read without writing: what the file itself has is shown, and that said."""
    record(tmp_path, "run", *points([1.0, 2.0]))
    path = run_path(tmp_path, "run")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO tag (name) VALUES ('new')")
    log = path.with_name("run.db-wal").read_bytes()
    connection.close()
    path.with_name("run.db-wal").write_bytes(log)
    before = state_of(tmp_path)
    (found,) = runs.list(tmp_path)
    assert found.points == 2
    assert found.problem.startswith("ignoring its write-ahead log, which has no index")
    assert state_of(tmp_path) == before
