"""Many runs on one hub: each has its file, of which only so many are open at once."""

from __future__ import annotations

import http.client
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub_requests import RANK_0, START, Clock, logs, metrics, number, only, rank
from hubs import PROTOBUF, Command, command, descriptors
from tachograph.hub.hub import Hub
from tachograph.runs.open_stores import OpenStores
from tachograph.runs.store import Store, StoreError, path_of


def post(connection: http.client.HTTPConnection, signal_name: str, request: Any) -> None:
    """Post a request on a connection that is kept, and see that it was taken."""
    connection.request("POST", f"/v1/{signal_name}", request.SerializeToString(), {"Content-Type": PROTOBUF})
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"")


def send(hub: Command, run: str, wave: int) -> None:
    """Send an event, twice, and a counter of one process of a run."""
    connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=60)
    with closing(connection):
        for _ in range(2):
            post(connection, "logs", logs(rank(0, run=run), ("e", {"wave": wave}), first=wave))
        steps = number("steps", 10 * wave, kind="counter", time=START + wave, start=START)
        post(connection, "metrics", metrics(rank(0, run=run), steps))


@pytest.mark.process
@pytest.mark.parametrize("runs", [80, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_more_runs_than_descriptors(tmp_path: Path, runs: int) -> None:
    """However many runs a hub gets, it takes connections; each run has each of its events once, and its last value."""
    with command(tmp_path, "--quiet", wrapper=descriptors(256, 256)) as hub:
        for wave in (1, 2):
            for index in range(runs):
                send(hub, f"r{index}", wave)
        hub.process.send_signal(signal.SIGTERM)
        assert hub.end(600) == 0
        store = Path(hub.first["store"])
    for index in range(runs):
        with closing(sqlite3.connect(path_of(store, f"r{index}"))) as file:
            assert file.execute("SELECT seq FROM event ORDER BY seq").fetchall() == [(1,), (2,)]
            assert file.execute("SELECT count(*) FROM process").fetchall() == [(1,)]
            ((state,),) = file.execute("SELECT data FROM state").fetchall()
            assert state.startswith(f"[{START},{START + 2},20,")


@pytest.mark.process
def test_the_hub_alone_raises_its_limit(tmp_path: Path) -> None:
    """A hub may have as many descriptors as the hard limit allows; the process that starts it keeps its own limit."""
    with command(tmp_path, "--quiet", wrapper=descriptors(128, 512)) as hub:
        limits = Path(f"/proc/{hub.process.pid}/limits").read_text(encoding="ascii")
        found = re.search(r"^Max open files +(\d+) +(\d+)", limits, re.MULTILINE)
        assert found is not None
        assert found.groups() == ("512", "512")


def test_the_least_recently_used_rest_first(tmp_path: Path) -> None:
    """Of more files than may be open the one rests that was used longest ago; used again, it is there again."""
    bound = OpenStores(2, 3)
    stores = [Store(tmp_path, f"r{index}", bound) for index in range(3)]
    assert [each.is_open for each in stores] == [False, True, True]
    assert stores[0].read("SELECT count(*) FROM event") == [(0,)]
    assert [each.is_open for each in stores] == [True, False, True]
    for each in stores:
        each.close()


def test_what_is_in_use_does_not_rest(tmp_path: Path) -> None:
    """A transaction is never cut short: its file rests later."""
    bound = OpenStores(1, 1)
    first = Store(tmp_path, "first", bound)
    with first.transaction() as connection:
        second = Store(tmp_path, "second", bound)
        connection.execute("INSERT INTO process (instance, resource) VALUES ('i', '{}')")
        assert first.is_open
    assert first.read("SELECT instance FROM process") == [("i",)]
    assert not second.is_open
    for each in (first, second):
        each.close()
    with pytest.raises(StoreError, match="closed"):
        first.read("SELECT 1")


def test_a_run_that_rested_goes_on(tmp_path: Path) -> None:
    """A run whose file rests is on the page as before, and what it sends next goes on from there."""
    clock = Clock()
    hub = Hub(tmp_path, clock=clock, open_stores=OpenStores(1, 1))
    steps = number("steps", 5, kind="counter", start=START, time=START + 1)
    hub.receive_metrics(metrics({**RANK_0, "dl.run.id": "a"}, steps))
    hub.receive_logs(logs({**RANK_0, "dl.run.id": "b"}, ("e", {})))
    clock.forward(6)
    hub.tick()
    assert only(hub.page()[1], "steps_total") == 5
    hub.receive_metrics(
        metrics(
            {**RANK_0, "dl.run.id": "a", "process.pid": 7},
            number("steps", 2, kind="counter", start=START + 3, time=START + 4),
        )
    )
    assert only(hub.page()[1], "steps_total") == 7
    hub.close()
    again = Hub(tmp_path, clock=clock)
    assert only(again.page()[1], "steps_total") == 7
    again.close()


def test_a_file_that_is_deleted_while_it_rests(tmp_path: Path) -> None:
    """What is to go into a file that was deleted is put off until the hub has noticed, and is then in a new one."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock, open_stores=OpenStores(1, 1))
    hub.receive_logs(logs({**RANK_0, "dl.run.id": "a"}, ("e", {})))
    hub.receive_logs(logs({**RANK_0, "dl.run.id": "b"}, ("e", {})))
    path_of(tmp_path, "a").unlink()
    again = logs({**RANK_0, "dl.run.id": "a"}, ("e", {}), first=2)
    with pytest.raises(StoreError, match="deleted"):
        hub.receive_logs(again)
    hub.tick()
    hub.receive_logs(again)
    assert [event.seq for event in hub.events("a").read()] == [2]
    hub.close()
