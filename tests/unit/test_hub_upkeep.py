"""What the hub does to its files beside writing: the log stays small, large files shrink, and errors spoil nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub_requests import Clock, histogram, logs, metrics, number, only, rank
from tachograph.hub.hub import Hub
from tachograph.runs.store import Store, path_of
from tachograph.runs.thinning import SAMPLE_BYTES, thin_samples


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


class _Beside:
    """A connection for checkpoints in the midst of which somebody writes, whenever the store lets him."""

    def __init__(self, store: Store, connection: sqlite3.Connection) -> None:
        self._store = store
        self._connection = connection

    def execute(self, statement: str) -> Any:
        if self._store._lock.locked():
            return self._connection.execute(statement)
        # What is written while somebody reads stays in the log, as does what comes after the checkpoint has begun.
        with closing(sqlite3.connect(self._store.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM event").fetchone()
            fill(self._store, 1)
            busy, _, taken = self._connection.execute(statement).fetchone()
        return self._connection.execute("SELECT ?, ?, ?", (busy, taken, taken))

    def close(self) -> None:
        self._connection.close()


def fill(store: Store, count: int) -> None:
    """Write some events."""
    add = "INSERT INTO event SELECT 1, coalesce(max(seq), 0) + 1, 0, 0, 'e', 's', ? FROM event"
    store.write(add, [(b"x" * 2000,)] * count)


def test_the_log_does_not_grow_beside_a_writer(tmp_path: Path) -> None:
    """Once it is long the log is begun anew, though somebody writes whenever it is taken over."""
    store = Store(tmp_path, "run", log_pages=1)
    store._checkpoints = _Beside(store, store._checkpoints)  # type: ignore[assignment]
    sizes = []
    for _ in range(20):
        fill(store, 20)
        store.checkpoint()
        sizes.append(path_of(tmp_path, "run").with_name("run.db-wal").stat().st_size)
    assert sizes[-1] == sizes[4]
    store.close()


def test_a_log_that_grew_beside_a_reader_shrinks(tmp_path: Path) -> None:
    """What the log needed while somebody read for long it gives back once that is over."""
    store = Store(tmp_path, "run", log_bytes=100_000)
    log = path_of(tmp_path, "run").with_name("run.db-wal")
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM event").fetchone()
    for _ in range(10):
        fill(store, 20)
        store.checkpoint()
    assert log.stat().st_size > 500_000
    reader.close()
    store.checkpoint()
    fill(store, 1)
    assert log.stat().st_size <= 100_000
    store.close()


def taken_over(folder: Path) -> int:
    """Return how many events are in the file itself, without its log."""
    with closing(sqlite3.connect(f"{path_of(folder, 'run').as_uri()}?immutable=1", uri=True)) as file:
        try:
            return int(file.execute("SELECT count(*) FROM event").fetchone()[0])
        except sqlite3.OperationalError:  # there are no tables yet
            return 0


def test_no_log_begins_anew_within_a_minute(tmp_path: Path, clock: Clock) -> None:
    """The writer that begins a log anew waits for the disk, and who has sent it that for the answer: rarely."""
    hub = Hub(tmp_path, run="run", clock=clock)
    log = path_of(tmp_path, "run").with_name("run.db-wal")
    sizes = []
    for sent in range(1, 8):
        assert taken_over(tmp_path) == (6 if sent == 7 else 0)
        hub.receive_logs(logs(rank(0), ("e", {}), first=sent))
        sizes.append(log.stat().st_size)
        clock.forward(11)
        hub.tick()
    assert sizes[:6] == sorted(set(sizes[:6]))
    assert sizes[6] == max(sizes)
    hub.close()


def test_a_long_log_is_taken_over_at_once(tmp_path: Path) -> None:
    """One that is short is written to the disk, and left."""
    store = Store(tmp_path, "run", log_pages=100)
    fill(store, 10)
    store.sync()
    assert taken_over(tmp_path) == 0
    fill(store, 300)
    store.sync()
    assert taken_over(tmp_path) == 310
    store.close()


def sampled(folder: Path, series: int, samples: int) -> Store:
    """Return a file with samples: of two kinds of series, all of the same time at once, as they are written."""
    store = Store(folder, "run")
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        for row in range(1, series + 1):
            shape = "histogram" if row % 2 else "gauge"
            connection.execute("INSERT INTO series VALUES (?, 1, '', ?, '', ?, '[]', '')", (row, str(row), shape))
        rows = [(row, time << 40, 0.5, 0.25) for time in range(samples) for row in range(1, series + 1)]
        connection.executemany("INSERT INTO sample (series, time, value, total) VALUES (?, ?, ?, ?)", rows)
    return store


def test_samples_are_thinned_until_the_file_is_small_enough(tmp_path: Path) -> None:
    """Thinning once makes room, so that the next minute has nothing to do; nothing that histograms counted is lost."""
    store = sampled(tmp_path, 4, 9001)
    whole = store.size()
    most = int(whole * 0.9)
    assert thin_samples(store, most) == 4 * 2250
    assert store.size() < 0.8 * whole
    assert thin_samples(store, most) == 0
    assert store.read("SELECT series, sum(value), sum(total) FROM sample WHERE series IN (1, 3) GROUP BY series") == [
        (1, 4500.5, 2250.25),
        (3, 4500.5, 2250.25),
    ]
    store.close()


def test_samples_for_a_chart_are_left(tmp_path: Path) -> None:
    """However small the limit is, a thousand samples of each series are left to it."""
    store = sampled(tmp_path, 2, 3000)
    store.write("DELETE FROM sample WHERE series = ? AND time >= ?", [(2, 500 << 40)])
    gone = [thin_samples(store, 1) for _ in range(10)]
    assert gone[:3] == [750, 562, 422]
    assert not any(gone[4:])
    left = dict(store.read("SELECT series, count(*) FROM sample GROUP BY series"))
    assert 1000 <= left[1] < 1334
    assert left[2] == 500
    store.close()


def test_samples_do_not_go_for_what_others_take(tmp_path: Path) -> None:
    """Where it is the events that make a file too large an eighth of the limit is left to samples."""
    store = sampled(tmp_path, 2, 4000)
    store.write("INSERT INTO stream VALUES (?, ?, 1)", [(1, "s")])
    fill(store, 1000)
    assert store.size() > 8 * 8000 * SAMPLE_BYTES
    assert thin_samples(store, 8 * 8000 * SAMPLE_BYTES) == 0
    assert thin_samples(store, 8 * 8000 * SAMPLE_BYTES - 8) > 0
    store.close()


def test_what_is_thinned_is_counted(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's page says how many samples went."""
    sampled(tmp_path, 2, 4000).close()
    hub = Hub(tmp_path, run="run", clock=clock)
    monkeypatch.setattr(hub._index.own.history, "_most_bytes", 1000)
    hub.tick()
    assert only(hub.page()[1], "tachograph_hub_samples_thinned_total") == 2000
    monkeypatch.setattr(hub._index.own.history, "_most_bytes", 2**40)
    clock.forward(61)
    hub.tick()
    assert only(hub.page()[1], "tachograph_hub_samples_thinned_total") == 2000
    hub.close()


@contextmanager
def refused(hub: Hub, table: str) -> Iterator[None]:
    """Let the file refuse what goes into a table, at the end of the transaction, as a full disk does."""
    connection = hub._index.own.store._connection
    connection.execute(f"CREATE TEMP TRIGGER full BEFORE INSERT ON main.{table} BEGIN SELECT RAISE(ABORT, 'full'); END")
    yield
    connection.execute("DROP TRIGGER temp.full")


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return what a query finds in the run's file."""
    with sqlite3.connect(path_of(folder, "run")) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


@pytest.mark.parametrize("table", ["incarnation", "state", "sample"])
def test_a_save_that_fails_mixes_up_nobody(tmp_path: Path, clock: Clock, table: str) -> None:
    """What a process was to be called in the store is forgotten where that was not committed."""
    hub = Hub(tmp_path, run="run", clock=clock)
    with refused(hub, table):
        for each in range(4):
            hub.receive_metrics(metrics(rank(each), number("loss", 0.5, time=clock.now)))
        clock.forward(6)
        hub.tick()
    for each in (3, 2, 1, 0):
        hub.receive_logs(logs(rank(each), ("hello", {}), stream=f"s{each}"))
        hub.receive_metrics(metrics(rank(each), number(f"n{each}", 0.5, time=clock.now)))
    clock.forward(6)
    hub.tick()
    hub.close()
    own = "SELECT instance, {} FROM process JOIN {} ON process = process.id ORDER BY instance"
    assert rows(tmp_path, own.format("name", "stream")) == [(f"r{each}", f"s{each}") for each in range(4)]
    assert rows(tmp_path, own.format("pid", "incarnation")) == [(f"r{each}", 100 + each) for each in range(4)]
    names = rows(tmp_path, own.format("name", "series") + ", name")
    assert names == [(f"r{each}", name) for each in range(4) for name in ("loss", f"n{each}")]
    known = "SELECT count(*) FROM state JOIN series ON series.id = series JOIN process ON process.id = process"
    assert rows(tmp_path, known) == [(8,)]


@pytest.mark.parametrize("table", ["state", "sample"])
def test_what_could_not_be_sampled_is_in_the_next_sample(tmp_path: Path, clock: Clock, table: str) -> None:
    """The samples of a histogram add up to what was recorded, though the disk was full for a while."""
    hub = Hub(tmp_path, run="run", clock=clock)

    def send(first: int, last: int) -> None:
        for count in range(first, last):
            clock.forward(1)
            hub.receive_metrics(metrics(rank(0), histogram("step", [count, 0, 0], total=count / 4, time=clock.now)))
            hub.tick()

    send(1, 25)
    with refused(hub, table):
        send(25, 50)
    send(50, 80)
    hub.close()
    assert rows(tmp_path, "SELECT sum(value), sum(total) FROM sample") == [(79.0, 79 / 4)]


def test_what_could_not_be_saved_is_saved_later(tmp_path: Path, clock: Clock) -> None:
    """What the disk had no room for is saved once there is some, though nothing more comes."""
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_metrics(metrics(rank(0), number("steps", 5, kind="counter", start=clock.now, time=clock.now + 1)))
    with refused(hub, "incarnation"):
        hub.tick()
    assert rows(tmp_path, "SELECT pid FROM incarnation") == []
    clock.forward(6)
    hub.tick()
    assert rows(tmp_path, "SELECT pid FROM incarnation") == [(100,)]
    with refused(hub, "state"):
        hub.receive_metrics(metrics(rank(0), number("steps", 2, kind="counter", start=clock.now, time=clock.now + 1)))
        hub.tick()
    hub.tick()  # what its sender cannot give again does not wait for its turn
    ((state,),) = rows(tmp_path, "SELECT data FROM state")
    assert json.loads(state)[2:4] == [2, 5]
    hub.close()


def test_health_has_the_losses_of_the_latest_tick(tmp_path: Path) -> None:
    """``/healthz``, which the event loop answers, counts no losses itself: they are those of a second ago."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {})))
    dropped = [number("tachograph.dropped", 1, kind="counter", attributes={"n": n}) for n in range(2_000)]
    hub.receive_metrics(metrics(rank(0), number("", 1.0)))
    hub.receive_metrics(metrics(rank(1), *dropped, scope="tachograph"))
    clock.forward(60)
    before = hub.health()
    assert (before["dropped"], before["lost"]) == (0, 0)
    hub.tick()
    after = hub.health()
    assert (after["dropped"], after["lost"]) == (2_001, 1)
    hub.close()
