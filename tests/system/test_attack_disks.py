"""A short piece of ``bench/attack/disks.py``, and its judge, which must be able to find something."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

ATTACK = ROOT / "bench" / "attack"
TIME_LIMIT = 170.0


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the attack's files be imported."""
    monkeypatch.syspath_prepend(str(ATTACK))


def ran(*arguments: str) -> tuple[int, str]:
    """Run the attack; return its exit status and what it printed."""
    # Not under coverage: it slows the start of each of the many processes down, and opens files of its own.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, str(ATTACK / "disks.py"), "--seed", "7", "--quick", *arguments],
        env=plain,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "fault", ["full", *(pytest.param(each, marks=pytest.mark.long) for each in ("read-only", "deleted", "locked"))]
)
def test_a_hub_whose_disk_fails(fault: str) -> None:
    """The hub goes on, what it has acknowledged is there, and the next one begins on it."""
    status, said = ran("--target", "hub", "--only", fault)
    assert status == 0, said
    if "NOT TRIED" in said:
        pytest.skip(said)


@pytest.mark.parametrize(("target", "fault"), [("jsonl", "deleted"), ("influxdb", "truncated")])
def test_a_program_whose_disk_fails(target: str, fault: str) -> None:
    """The program ends as it would, no call waits, and what is not there is counted."""
    status, said = ran("--target", target, "--only", fault)
    assert status == 0, said
    if "NOT TRIED" in said:
        pytest.skip(said)


@pytest.mark.parametrize("target", [pytest.param("hub", marks=pytest.mark.long), "jsonl"])
def test_some_calls_fail_once(target: str) -> None:
    """Some calls on a hub's files, and each fifth on a JSON-lines file, fail once: nothing is missing uncounted."""
    status, said = ran("--target", target, "--only", "each call once")
    assert status == 0, said
    if "NOT TRIED" in said:
        pytest.skip(said)


@pytest.fixture
def recorded(tmp_path: Path, attack: None) -> tuple[Any, Any]:
    """Return a hub that has ended, and the sender that all of it came from."""
    assert attack is None
    from hub_process import HubProcess, Sender

    hub = HubProcess(tmp_path / "hub.log", tmp_path / "store")
    sender = Sender(hub.address)
    sender.run_for(0.3)
    sender.close()
    hub.end()
    return hub, sender


_COLUMNS = "curve, branch, level, seq0, seq1, n, t0, t1, x0, x1, min, max, nonfinite, crc, form, pairs, rest"
HARMS = {
    "DELETE FROM event WHERE seq = (SELECT max(seq) FROM event)": "1 of",
    "DELETE FROM block": "acknowledged and are not there",
    f"INSERT INTO block SELECT NULL, {_COLUMNS} FROM block": "are there twice",  # noqa: S608 - our own
    "UPDATE state SET data = '[0,0,1,null,null,null,[0,0,0.0],0]'": "the counter is 1 in the file",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2 WHERE name = 'curve'": "its file is damaged",
}


def test_the_judge_of_a_hub_finds(recorded: tuple[Any, Any], tmp_path: Path) -> None:
    """What is missing, there twice, another number or damaged breaks an invariant; a sound store breaks none."""
    import disk_hub

    hub, sender = recorded
    assert list(disk_hub.judged(hub, [sender])) == []
    sound = hub.store
    for number, (harm, finding) in enumerate(HARMS.items()):
        hub.store = shutil.copytree(sound, tmp_path / str(number))
        with closing(sqlite3.connect(hub.store / "runs" / "job.db")) as file:
            file.executescript(harm)
            file.commit()
        assert finding in " ".join(disk_hub.judged(hub, [sender]))


def test_the_judge_of_a_hub_finds_what_it_answered(recorded: tuple[Any, Any]) -> None:
    """An answer that is not documented, a signal that ends it and a traceback break invariants, too."""
    import disk_hub

    hub, sender = recorded
    sender.statuses[500] = 1
    hub.status = -signal.SIGBUS
    with (hub.store.parent / "hub.log").open("a") as log:
        log.write("Traceback (most recent call last):\n")
    broke = " ".join(disk_hub.judged(hub, [sender]))
    assert all(part in broke for part in ("500: 1", "ended with -7", "a traceback"))


def test_the_judge_of_a_program_finds(tmp_path: Path, attack: None) -> None:
    """What is missing and not counted, another exit status and a call that waited break invariants."""
    assert attack is None
    import disk_job

    job = disk_job.Running("jsonl", tmp_path, tmp_path / "store", 0.5).end()
    assert list(job.judged()) == []
    assert job.found
    report = dict(job.report)
    for changed, finding in (
        ({"found": job.found[:-1]}, "1 of"),
        ({"found": [*job.found, 1]}, "there twice"),
        ({"status": 1}, "ended with 1"),
        ({"report": {**report, "longest": 2.0}}, "the longest call took 2.000 s"),
        ({"illegible": ["line"]}, "illegible"),
        ({"report": {**report, "dropped": {"jsonl/rejected": 1}}}, "the log does not say so"),
    ):
        told = " ".join(disk_job.Job(**{**vars(job), **changed}).judged())
        assert finding in told, told
