"""``tachograph hub``: it says where it listens, ends in order when asked, and says why where it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hub_requests import shown
from hubs import JSON, PROTOBUF, Command, ask, command, points, request
from programs import environment
from receivers import receiving
from servers import free_port, wait_until
from tachograph.hub.hub import Hub
from tachograph.hub.lifetime import Lifetime
from tachograph.hub.server import HubServer, listen


def send(hub: Command, *values: float, rank: int = 0) -> None:
    """Post one request and see that it was taken."""
    body = request(*values, rank=rank).SerializeToString()
    assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200


def ended(hub: Command) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the last announcement and what was said on stderr, once it has ended."""
    code = hub.end()
    assert hub.process.stdout is not None
    assert hub.process.stderr is not None
    assert hub.process.stdout.read() == ""
    return code, hub.next(), hub.process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_from_the_first_line_to_the_last(tmp_path: Path, number: signal.Signals) -> None:
    """It announces where it listens and keeps things, and at the end what it received; it ends with 0.

    With a parent it has a run of its own, and else many.
    """
    with command(tmp_path, "--run-id", "my run", parent=number == signal.SIGTERM) as hub:
        assert sorted(hub.first) == ["pid", "run", "store", "url"]
        assert (hub.first["pid"], hub.first["run"]) == (hub.process.pid, "my run")
        assert hub.first["store"].startswith(str(tmp_path / "store"))
        send(hub, 1.0, 2.0, 3.0)
        hub.process.send_signal(number)
        code, last, said = ended(hub)
        assert code == 0
        assert (last["data_points"], last["points"], last["events"], last["losses"]) == (3, 0, 0, [])
        assert last["run"] == "my run"
        assert "a-run" in last["runs"]
        kept = "run my run," if number == signal.SIGTERM else "runs are"
        assert said.splitlines() == [
            f"tachograph hub: live at {hub.url}/ (metrics at {hub.url}/metrics), send OTLP over HTTP to {hub.url}",
            f"tachograph hub: {kept} stored in {hub.first['store']}",
            "tachograph hub: stored 0 points and 0 events, none lost",
        ]


def test_quiet_says_nothing(tmp_path: Path) -> None:
    """With --quiet there is not a word on stderr, whatever the clients do."""
    with command(tmp_path, "--quiet") as hub:
        assert ask(hub.url, "/v1/metrics", b"{", content_type=JSON).status == 400
        hub.process.terminate()
        code, _, said = ended(hub)
        assert (code, said) == (0, "")


def test_last_exports_are_taken_after_the_signal(tmp_path: Path) -> None:
    """What processes send while the hub has been told to end still arrives, and is in the summary."""
    with command(tmp_path, "--quiet") as hub:
        send(hub, 1.0)
        hub.process.terminate()
        for _ in range(3):
            time.sleep(0.1)
            send(hub, 1.0)
        code, last, _ = ended(hub)
        assert (code, last["data_points"]) == (0, 4)


def test_a_busy_client_cannot_keep_it_alive(tmp_path: Path) -> None:
    """A process that never stops to send holds the end up for two seconds at most."""
    with command(tmp_path, "--quiet") as hub:
        hub.process.terminate()
        began = time.monotonic()
        while hub.process.poll() is None and time.monotonic() - began < 15:
            with contextlib.suppress(OSError, AssertionError):  # it has closed its door
                send(hub, 1.0)
        assert ended(hub)[0] == 0
        assert time.monotonic() - began < 8


def test_the_page_stays_as_long_as_asked(tmp_path: Path) -> None:
    """--linger keeps the page for a last scrape; a second signal ends it at once."""
    with command(tmp_path, "--quiet", "--linger", "60") as hub:
        send(hub, 1.0)
        hub.process.terminate()
        time.sleep(1.5)
        assert b"loss" in ask(hub.url, "/metrics").body
        hub.process.terminate()
        assert ended(hub)[0] == 0


def test_the_page_stays_where_prometheus_scrapes_it(tmp_path: Path) -> None:
    """Without --linger the page stays for a Prometheus that has scraped it, and not for others."""
    with command(tmp_path, "--quiet") as hub:
        ask(hub.url, "/metrics", User_Agent="Prometheus/3.15.0")
        hub.process.terminate()
        time.sleep(1.5)
        assert ask(hub.url, "/metrics").status == 200
        hub.process.terminate()
        assert ended(hub)[0] == 0


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """Where the parent is killed, the hub takes the last exports, closes its store and ends, without being told."""
    program = textwrap.dedent(f"""
        import os, subprocess, sys
        line = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--quiet", "--parent", str(os.getpid())]
        subprocess.Popen([*line, "--announce", "1", "--store", {str(tmp_path / "store")!r}])
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        first = json.loads(parent.stdout.readline())
        parent.kill()
        last = json.loads(parent.stdout.readline())
        assert last["run"] == first["run"]
        assert parent.stdout.readline() == ""  # the hub had the other end, and has gone


def test_any_process_may_be_its_parent(tmp_path: Path) -> None:
    """--parent may name a process that did not start the hub; one that has gone already ends it at once."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with command(tmp_path, "--quiet", "--parent", str(other.pid)) as hub:
            send(hub, 1.0)
            time.sleep(0.7)
            assert hub.process.poll() is None
            other.communicate(b"\n")
            assert ended(hub)[0] == 0
        with command(tmp_path, "--quiet", "--parent", str(other.pid)) as late:
            assert ended(late)[0] == 0


class NoUpkeep(Hub):
    """A hub whose store fails at each tick."""

    ticks = 0

    def tick(self) -> None:
        """Fail."""
        self.ticks += 1
        raise OSError(28, "No space left on device")


def test_failing_upkeep_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where each tick fails the hub goes on and tries again; it is logged once, and counted."""

    async def live() -> NoUpkeep:
        hub = NoUpkeep(tmp_path)
        server = HubServer(hub, listen("127.0.0.1", 0))
        asyncio.get_running_loop().call_later(2.6, server.stop)
        await Lifetime(hub, server).live(asyncio.Event())
        hub.close()
        return hub

    hub = asyncio.run(live())
    assert hub.ticks >= 2
    assert len([record for record in caplog.records if "maintenance failed" in record.message]) == 1
    assert b'tachograph_hub_failed_total{otel_scope_name="tachograph",signal="maintenance"}' in hub.page()[1]


def test_ctrl_c_is_the_parents_to_decide(tmp_path: Path) -> None:
    """With a parent, SIGINT and SIGHUP, which reach the whole process group, do not end the hub."""
    with command(tmp_path, "--quiet", parent=True) as hub:
        for number in (signal.SIGINT, signal.SIGHUP):
            hub.process.send_signal(number)
        time.sleep(1.0)
        send(hub, 1.0)
        hub.process.terminate()
        assert ended(hub)[:2][0] == 0


def test_a_hub_begins_where_the_last_one_was_killed(tmp_path: Path) -> None:
    """After SIGKILL the store is readable, and a new hub on it shows what the old one had."""
    with command(tmp_path, "--quiet") as hub:
        send(hub, 0.25)
        time.sleep(1.5)
        hub.process.kill()
        hub.end()
    with command(tmp_path, "--quiet") as again:
        send(again, 0.75, rank=1)
        page = ask(again.url, "/metrics").body.decode()
        ranks = {line.partition('dl_rank="')[2][:1] for line in page.splitlines() if line.startswith("loss{")}
        assert ranks >= {"0", "1"}
        again.process.terminate()
        assert ended(again)[0] == 0
    _healthy(tmp_path)


def cpu_time(hub: Command) -> float:
    """Return the CPU time of the machine on a hub's page, once it is there."""
    for _ in range(100):
        found = shown(ask(hub.url, "/metrics", Accept="text/plain").body, "system_cpu_time_seconds_total")
        if found:
            return sum(found.values())
        time.sleep(0.1)
    raise AssertionError("the page has no CPU time")


@pytest.mark.parametrize("parent", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_machines_counters_go_on(tmp_path: Path, parent: bool) -> None:
    """A hub that is killed and started again on its store, with a run of its own or none, counts nothing twice."""
    idle = sum(psutil.cpu_times())  # as much as the machine has ever had; eight seconds of it may follow
    for _ in range(2):
        with command(tmp_path, "--quiet", "--run-id", "r", parent=parent, TACHOGRAPH_SYSTEM_METRICS="true") as hub:
            before = cpu_time(hub)
            assert before == pytest.approx(idle, rel=0.1)
            time.sleep(6)  # its states are saved every five seconds
            hub.process.kill()
            hub.end()


def test_a_hub_that_stands_alone_makes_no_run(tmp_path: Path) -> None:
    """Without a job there is nothing in its store, though it says what its machine does; a sender's run is made."""
    with command(tmp_path, "--quiet", TACHOGRAPH_SYSTEM_METRICS="true") as hub:
        assert cpu_time(hub) > 0
        time.sleep(1.5)
        assert [*(tmp_path / "store").rglob("*.db*")] == []
        assert b'dl_run_id="default"' not in ask(hub.url, "/metrics").body
        send(hub, 1.0)
        hub.process.terminate()
        code, last, said = ended(hub)
        assert (code, said, last["runs"]) == (0, "", ["a-run"])
    assert [each.name for each in (tmp_path / "store").rglob("*.db")] == ["a-run.db"]


def test_two_hubs_share_a_store(tmp_path: Path) -> None:
    """Two hubs may write to one store, and to one run, at once: SQLite keeps them apart, and nothing is damaged."""
    with command(tmp_path, "--quiet") as one, command(tmp_path, "--quiet") as other:
        assert one.url != other.url
        for i in range(20):
            send(one, float(i), rank=0)
            send(other, float(i), rank=1)
        for hub in (one, other):
            hub.process.terminate()
        for hub in (one, other):
            code, last, said = ended(hub)
            assert (code, last["data_points"], said) == (0, 20, "")
    _healthy(tmp_path)


def _healthy(folder: Path) -> None:
    """See that every file of the store is readable and undamaged."""
    files = list((folder / "store").rglob("*.db"))
    assert files
    for file in files:
        with sqlite3.connect(file) as store:
            assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        store.close()


def test_what_comes_is_passed_on_to_the_end(tmp_path: Path) -> None:
    """With --forward the other receiver has everything by the time at which the hub has ended."""
    with receiving() as there, command(tmp_path, "--quiet", "--forward", there.url.removesuffix("/v1/metrics")) as hub:
        for i in range(10):
            send(hub, float(i))
        hub.process.terminate()
        assert ended(hub)[0] == 0
        assert len(there.requests) == 10


def test_what_is_lost_on_the_way_is_on_the_page(tmp_path: Path) -> None:
    """Where the other receiver refuses, the page counts it, and the hub's own clients notice nothing."""
    with (
        receiving((400, {}, b"")) as there,
        command(tmp_path, "--forward", there.url.removesuffix("/v1/metrics")) as hub,
    ):
        send(hub, 1.0, 2.0)
        line = 'tachograph_dropped_total{destination="forward",otel_scope_name="tachograph",reason="rejected"} 2'
        wait_until(lambda: line in ask(hub.url, "/metrics").body.decode(), 10)
        hub.process.terminate()
        assert ended(hub)[0] == 0


def test_a_token_by_file(tmp_path: Path) -> None:
    """With --token-file only who has the token may post, on loopback, too."""
    (tmp_path / "token").write_text("the-token\n")
    with command(tmp_path, "--quiet", "--token-file", str(tmp_path / "token")) as hub:
        assert ask(hub.url, "/v1/metrics", b"{}", content_type=JSON).status == 401
        given = ask(hub.url, "/v1/metrics", b"{}", content_type=JSON, Authorization="Bearer the-token")
        assert given.status == 200
        assert points(hub.url) == 0


def refused(folder: Path, *arguments: str) -> str:
    """Return why a hub did not start: the same on the descriptor and on stderr, with exit code 2."""
    with command(folder, *arguments) as hub:
        assert list(hub.first) == ["error"]
        assert hub.end() == 2
        assert hub.process.stderr is not None
        said = hub.process.stderr.read()
        assert said == f"tachograph hub: {hub.first['error']}\n"
        return str(hub.first["error"])


def test_what_keeps_it_from_starting_is_said(tmp_path: Path) -> None:
    """An occupied port, an unwritable store, a missing token and a wrong URL are one line each, and exit code 2."""
    with receiving() as there:
        assert f"port {there.server_port}" in refused(tmp_path, "--port", str(there.server_port))
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(tmp_path, "--store", str(tmp_path / "file" / "store"))
    assert "TACHOGRAPH_HUB_TOKEN" in refused(tmp_path, "--host", "0.0.0.0")  # noqa: S104 - it is refused
    assert "cannot read --token-file" in refused(tmp_path, "--token-file", str(tmp_path / "none"))
    assert "URL" in refused(tmp_path, "--forward", "nonsense")
    assert "--host" in refused(tmp_path, "--host", "host.invalid")


def test_a_missing_part_is_said(tmp_path: Path) -> None:
    """In an installation that is incomplete, one line says what is missing."""
    for missing in ("uvicorn", "starlette"):
        program = (
            f"import sys; sys.modules[{missing!r}] = None; from tachograph.cli import main; sys.exit(main(['hub']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        said = f"tachograph hub: {missing}, a dependency of tachograph, cannot be imported: "
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "70000"],
        ["--port", "-1"],
        ["--port", "x"],
        ["--linger", "-1"],
        ["--linger", "nan"],
        ["--linger", "x"],
        ["--parent", "me"],
        ["--announce", "x"],
        ["--announce", "999"],
        ["--nonsense"],
        ["run"],
    ],
)
def test_wrong_usage_is_said(tmp_path: Path, arguments: list[str]) -> None:
    """A wrong option ends with 2 and a line that names it."""
    line = [sys.executable, "-m", "tachograph", "hub", *arguments]
    done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_the_usual_port_is_the_specifications(tmp_path: Path) -> None:
    """Without --port the hub is where OpenTelemetry programs look for it, or on the next free port."""
    with command(tmp_path, "--quiet", "--port", str(free_port())) as chosen:
        assert chosen.first
    line = [sys.executable, "-m", "tachograph", "hub", "--announce", "1", "--quiet"]
    with subprocess.Popen(line, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout is not None
        first = json.loads(hub.stdout.readline())
        assert int(first["url"].rpartition(":")[2]) >= 4318
        os.kill(hub.pid, signal.SIGTERM)
        assert hub.wait(20) == 0
