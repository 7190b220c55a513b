"""The hub's store: a hub that begins on it goes on where the one before it was, however that ended."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hub_requests import SECOND, START, Clock, histogram, logs, metrics, number, only, rank, shown
from places import TESTS
from tachograph.hub._history import History
from tachograph.hub.hub import Hub
from tachograph.runs.file_system import file_system
from tachograph.runs.open_stores import OpenStores
from tachograph.runs.store import Store, StoreError, path_of

KILLED = """
import itertools, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from hub_requests import logs, metrics, number, rank
from tachograph.hub.hub import Hub

hub = Hub(Path(sys.argv[1]), run="run")
for seq in itertools.count(1):
    hub.receive_logs(logs(rank(0), ("e", {"i": seq}), first=seq))
    os.write(1, b"%d\\n" % seq)
    hub.receive_metrics(metrics(rank(0), number("n", seq)))
    if seq % 7 == 0:
        hub._due["save"] = 0
        hub.tick()
"""


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


def test_a_hub_goes_on_where_the_one_before_ended(tmp_path: Path, clock: Clock) -> None:
    """After a new start of the hub the page is what it was, and counters go on through a restart of the rank."""
    hub = Hub(tmp_path, run="run", clock=clock)
    sent = [
        number("steps", 10, kind="counter", start=START - 9, attributes={"phase": "a", "part": 0.5}),
        number("loss", float("nan")),
        number("sent", 5, kind="counter", delta=True, start=START - 5),
        histogram("step", [1, 2, 3], total=2.5, start=START - 9),
    ]
    hub.receive_metrics(metrics(rank(0), *sent))
    hub.tick()
    _, before = hub.page()
    hub.close()

    hub = Hub(tmp_path, run="run", clock=clock)
    _, after = hub.page()
    for name in ("steps_total", "loss", "sent_total", "step_seconds_bucket", "step_seconds_sum", "target_info"):
        assert repr(shown(after, name)) == repr(shown(before, name))
    hub.receive_metrics(metrics(rank(0), sent[2]))  # the request was sent again
    more = number("steps", 4, kind="counter", start=START + 9, time=START + 10, attributes={"phase": "a", "part": 0.5})
    more_values = histogram("step", [1, 0, 0], total=0.5, start=START + 9, time=START + 10)
    hub.receive_metrics(metrics(rank(0, pid=7), more, more_values))
    _, page = hub.page()
    assert only(page, "steps_total") == 14
    assert only(page, "sent_total") == 5
    assert only(page, "step_seconds_count") == 7
    hub.close()


def test_what_ended_long_ago_is_not_shown_again(tmp_path: Path, clock: Clock) -> None:
    """A hub that begins after the time to live shows nothing; a process that comes back goes on all the same."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_metrics(metrics(rank(0), number("steps", 10, kind="counter", start=START)))
    hub.close()
    clock.forward(3600)
    hub = Hub(tmp_path, run="run", clock=clock)
    assert not shown(hub.page()[1], "steps_total")
    hub.receive_metrics(
        metrics(rank(0, pid=9), number("steps", 1, kind="counter", start=clock.now, time=clock.now + 1))
    )
    assert only(hub.page()[1], "steps_total") == 11
    hub.close()


@pytest.mark.process
@pytest.mark.parametrize("after", [3, 40])
def test_killed_at_any_time(tmp_path: Path, after: int) -> None:
    """A hub that is killed loses no event that it had taken, and its store opens again."""
    program = [sys.executable, "-c", KILLED, str(tmp_path), str(TESTS)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        acknowledged = [int(killed.stdout.readline()) for _ in range(after)]
        os.kill(killed.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in killed.stdout.read().split("\n") if line]
    hub = Hub(tmp_path, run="run")
    events = hub.events("run").read()
    assert [event.attributes["i"] for event in events][: len(acknowledged)] == acknowledged
    assert len(events) <= len(acknowledged) + 1
    hub.receive_logs(logs(rank(0), *[("e", {"i": i}) for i in acknowledged]))
    assert len(hub.events("run").read()) == len(events)
    assert all(value <= acknowledged[-1] + 1 for value in shown(hub.page()[1], "n").values())
    hub.close()


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    """Files are made 0600 and folders 0700, the log of the database included."""
    folder = tmp_path / "store"
    hub = Hub(folder, run="a/b")
    hub.receive_logs(logs(rank(0), ("e", {})))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert modes.pop("runs") == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert {"a%2Fb.db", "a%2Fb.db-wal"} <= set(modes)
    hub.close()


def test_an_unwritable_store(tmp_path: Path) -> None:
    """A store that cannot be made is an OSError that names it."""
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write to.*file/store"):
        Hub(tmp_path / "file" / "store", run="run")


def test_a_damaged_file(tmp_path: Path) -> None:
    """A file that is no database is an error that names it; it is not touched."""
    path = path_of(tmp_path, "run")
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StoreError, match=r"damaged.*run\.db"):
        Hub(tmp_path, run="run")
    assert path.read_bytes() == b"this is no database" * 1000


def test_a_damaged_page(tmp_path: Path) -> None:
    """A database with a destroyed schema is an error, too."""
    Store(tmp_path, "run").close()
    path = path_of(tmp_path, "run")
    content = bytearray(path.read_bytes())
    content[100:4096] = os.urandom(3996)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|cannot use"):
        Hub(tmp_path, run="run")


def test_a_newer_file(tmp_path: Path) -> None:
    """A file of a newer version is an error that says so."""
    Store(tmp_path, "run").close()
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        connection.execute("PRAGMA user_version = 8")
    connection.close()
    with pytest.raises(StoreError, match="written by a newer Tachograph"):
        Hub(tmp_path, run="run")


def test_another_runs_damaged_file_costs_only_that_run(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the file of one of several runs is damaged, its metrics are shown all the same, and its events refused."""
    path = path_of(tmp_path, "other")
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    hub = Hub(tmp_path, clock=clock)
    hub.receive_metrics(metrics(rank(0, run="other"), number("loss", 0.5)))
    hub.tick()
    assert only(hub.page()[1], "loss") == 0.5
    with pytest.raises(StoreError):
        hub.receive_logs(logs(rank(0, run="other"), ("e", {})))
    assert "in memory only" in caplog.text
    hub.close()


def test_the_history_is_thinned(tmp_path: Path, clock: Clock) -> None:
    """A series has one sample every ten seconds; of histograms the differences, which add up to all."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for second in range(61):
        time = START + second * SECOND
        sent = [number("loss", float(second), time=time), histogram("step", [second, 1, 0], total=second, time=time)]
        hub.receive_metrics(metrics(rank(0), *sent))
        clock.forward(1)
        hub.tick()
    hub.close()
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        by_name = "SELECT value, total FROM sample JOIN series ON id = series WHERE name = ? ORDER BY time"
        gauges = connection.execute(by_name, ("loss",)).fetchall()
        differences = connection.execute(by_name, ("step",)).fetchall()
    connection.close()
    assert 6 <= len(gauges) <= 8
    assert gauges[-1] == (60.0, None)
    assert sum(count for count, _ in differences) == 61
    assert sum(total for _, total in differences) == 60.0


def test_the_last_value_is_a_sample_though_its_state_was_saved_before(tmp_path: Path) -> None:
    """A value that came soon after a sample is one, too, once the hub ends: a counter's curve ends with its total."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    for turn in (1, 2):
        sent = [
            number("steps", 10 * turn, kind="counter", time=clock.now),
            histogram("load", (turn, 0, 0), time=clock.now),
        ]
        hub.receive_metrics(metrics(rank(0), *sent))
        hub.tick()
        clock.forward(6)
    hub.close()
    with closing(sqlite3.connect(path_of(tmp_path, "run"))) as connection:
        by_name = "SELECT value FROM sample JOIN series ON id = series WHERE name = ? ORDER BY time"
        assert connection.execute(by_name, ("steps",)).fetchall() == [(10.0,), (20.0,)]
        assert connection.execute(by_name, ("load",)).fetchall() == [(1.0,), (1.0,)]
    Hub(tmp_path, run="run", clock=clock).close()
    with closing(sqlite3.connect(path_of(tmp_path, "run"))) as connection:
        assert connection.execute("SELECT count(*) FROM sample").fetchone() == (4,)


def test_beyond_the_limit_samples_go_and_events_stay(tmp_path: Path) -> None:
    """Where a run's file is too large the older samples are thinned, histograms without loss, and no event goes."""
    store = Store(tmp_path, "run")
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        for row, shape in ((1, "gauge"), (2, "histogram")):
            connection.execute("INSERT INTO series VALUES (?, 1, '', 'n', '', ?, '[]', '')", (row, shape))
            connection.executemany(
                "INSERT INTO sample VALUES (?, ?, 1, 2, NULL)", [(row, time) for time in range(2000)]
            )
        connection.execute("INSERT INTO stream VALUES (1, 's', 1)")
        connection.executemany("INSERT INTO event VALUES (1, ?, 0, 0, '', '', '')", [(seq,) for seq in range(500)])
    assert History(store).thin_samples() == 0
    assert History(store, most_bytes=1000).thin_samples() == 1000
    assert store.read("SELECT count(*) FROM sample WHERE series = 1 AND time >= 1000") == [(1000,)]
    assert store.read("SELECT sum(value), sum(total) FROM sample WHERE series = 2") == [(2000.0, 4000.0)]
    assert store.read("SELECT count(*) FROM event") == [(500,)]
    store.close()


def test_network_file_systems_are_known(tmp_path: Path) -> None:
    """The file system of the nearest mount above a folder is the one that counts."""
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/a / ext4 rw 0 0\nhost:/home /home nfs4 rw 0 0\nt /home/a\\040b tmpfs rw 0 0\nshort\n")
    assert file_system(Path("/var/x"), mounts) == "ext4"
    assert file_system(Path("/home/x/y"), mounts) == "nfs4"
    assert file_system(Path("/home/a b/y"), mounts) == "tmpfs"
    assert file_system(Path("/x"), tmp_path / "none") == ""


def test_a_store_on_a_network_file_system_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A hub whose store is on one warns in one sentence that names the store and the setting."""
    monkeypatch.setattr("tachograph.runs.file_system.file_system", lambda _: "nfs4")
    Hub(tmp_path, run="run").close()
    assert caplog.messages == [
        f"the store {tmp_path} is on nfs4, where SQLite is not safe: set TACHOGRAPH_STORE to a folder on a local disk"
    ]


def test_damage_that_is_found_later_costs_only_that_run(tmp_path: Path, clock: Clock) -> None:
    """A file that SQLite finds damaged while the hub runs is refused in one sentence, and the other runs go on."""
    hub = Hub(tmp_path, clock=clock, open_stores=OpenStores(1, 1))
    for name in ("a", "b"):  # once b is used, the file of a is closed
        hub.receive_logs(logs(rank(0, run=name), *[("e", {"text": "x" * 500})] * 100))
    path = path_of(tmp_path, "a")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(StoreError) as caught:
        hub.receive_logs(logs(rank(0, run="a"), ("e", {}), first=101))
    assert caught.value.filename == str(path)
    assert caught.value.strerror.startswith("the file is damaged; move it away to continue: ")
    hub.receive_logs(logs(rank(0, run="b"), ("e", {}), first=101))
    hub.tick()
    assert len(hub.events("b").read()) == 101
    hub.close()


def test_states_are_json(tmp_path: Path) -> None:
    """A series' definition and state are legible for others: attributes in JSON, sorted by key."""
    hub = Hub(tmp_path, run="run")
    hub.receive_metrics(metrics(rank(0), number("n", 1, attributes={"b": True, "a": [1, 2]})))
    hub.close()
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        ((attributes,),) = connection.execute("SELECT attributes FROM series WHERE name = 'n'")
    connection.close()
    assert json.loads(attributes) == [["a", [1, 2]], ["b", True]]


def test_a_state_that_is_not_legible(tmp_path: Path, clock: Clock) -> None:
    """A state that somebody has spoiled is an error that says so when the hub begins; of another run, a warning."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_metrics(metrics(rank(0), number("n", 1)))
    hub.close()
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        connection.execute("UPDATE state SET data = '[1, 2'")
    connection.close()
    with pytest.raises(StoreError, match=r"is invalid.*run"):
        Hub(tmp_path, run="run", clock=clock)
    hub = Hub(tmp_path, clock=clock)
    hub.receive_metrics(metrics(rank(0), number("n", 2, time=START + 1)))
    assert only(hub.page()[1], "n") == 2
    hub.close()


def test_a_store_that_fails_later(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Where the file cannot be written any more, events are refused, and metrics are still on the page."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_metrics(metrics(rank(0), number("n", 1)))
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        for table in ("event", "state"):
            connection.execute(f"DROP TABLE {table}")
    connection.close()
    for _ in range(2):
        clock.forward(10)
        hub.receive_metrics(metrics(rank(0), number("n", 1, time=clock.now)))
        hub.tick()
    with pytest.raises(StoreError):
        hub.receive_logs(logs(rank(0), ("e", {})))
    _, page = hub.page()
    assert only(page, "n") == 1
    assert only(page, "tachograph_errors_total", where="store") == 2
    assert caplog.text.count("cannot write to its store") == 1
    hub.close()
