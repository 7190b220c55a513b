"""Backends that fail, a third of those of ``bench/attack/backends.py``: nothing twice, nothing lost without a count."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from places import ROOT

pytest.importorskip("influxdb_client")
pytest.importorskip("grpc")

ATTACK = ROOT / "bench" / "attack"
sys.path.append(str(ATTACK))

from backends_judge import Ran, judge  # noqa: E402 - it is beside the path's new entry
from bad_accounts import Account, Item  # noqa: E402 - the same
from bad_backends import SECRET, Backend, Fault  # noqa: E402 - the same


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the attack; its programs are not measured, which would slow them down."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    command = [sys.executable, str(ATTACK / "backends.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environ)


@pytest.mark.long
@pytest.mark.timeout(320)
def test_a_third_of_the_faults_loses_and_doubles_nothing_uncounted() -> None:
    """Whatever a backend does, recorded = arrived + counted, the end is bounded, and no step of the training waits.

    The seed is fixed: what fails here shall be this change's.
    """
    done = attack("--quick", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"(?m) 1 tried +0 failed ", done.stdout)) > 25


@pytest.mark.timeout(120)
def test_a_loss_that_nothing_counts_is_found_and_replayed() -> None:
    """A server that swallows a request and says 200: the attack fails, and says what repeats it, which does."""
    done = attack("--seed", "7", "--only", "HTTP: swallows a request and answers 200")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(
        r"\d+ (of \d+ events are missing|to \d+ did not arrive), 0 were counted|and 0 points were", done.stdout
    )
    again = re.search(r"seed 7, commit \S+, again: python bench/attack/backends.py (.+)", done.stdout)
    assert again is not None, done.stdout
    assert attack(*shlex.split(again[1])).returncode == 1


RECORDED = 10
ASKED = {"temporality": "cumulative", "witness": False, "end": "exit"}
FAULT = Fault("a good one", "HTTP", lambda _account, _folder: nullcontext(Backend({})), takes=True)


def events(count: int) -> list[Item]:
    """Return the first events of a program."""
    return [Item("event", ("stream", number), number) for number in range(1, count + 1)]


def counter(value: float) -> Item:
    """Return a point of its counter."""
    return Item("point", ("train", "step.success", (), 1, 2), 0, 1, 2, value)


def ran(**more: Any) -> Ran:
    """Return a program that has lost nothing."""
    report = {"steps": RECORDED, "dropped": {}, "errors": 0, "longest": 0.001, "median": 1e-5}
    return replace(Ran(report, "", 0, 0.5), **more)


def found(account: Account, program: Ran) -> str:
    """Return everything that the judge finds wrong."""
    verdict = judge(FAULT, Backend({}), account, ASKED, [program])
    return "; ".join(verdict.wrong + verdict.late)


def test_what_arrives_whole_is_right() -> None:
    """Everything there, acknowledged or not, once: nothing is said."""
    account = Account()
    account.acknowledge(events(RECORDED))
    account.take([counter(RECORDED)])
    assert found(account, ran()) == ""


@pytest.mark.parametrize(
    ("arrived", "value", "again", "said"),
    [
        (9, 10, 0, "1 of 10 events are missing, 0 were counted"),
        (10, 9, 0, "the counter is 9 of 10 there, with 1 gaps, and 0 points"),
        (10, 11, 0, "the counter is 11 there, 10 were counted"),
        (10, 10, 2, "2 came again after they had been acknowledged"),
    ],
)
def test_what_is_missing_or_doubled_is_found(arrived: int, value: float, again: int, said: str) -> None:
    """An event too few, a count too few or too many, a repetition after the answer: each is named."""
    account = Account()
    account.acknowledge([*events(arrived), counter(value)])
    account.see(events(again))
    assert said in found(account, ran())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"status": 1}, "exit status 1"),
        ({"status": None}, "exit status None"),
        ({"report": {}}, "it left no report"),
        ({"log": "Traceback (most recent call last):"}, "a traceback"),
        ({"log": f"refused: {SECRET}"}, "the secret"),
        ({"log": "again\n" * 30}, "the log has 30 lines"),
        ({"exit": 14.0}, "the end took 14.00 s"),
        ({"report": {**ran().report, "longest": 0.2}}, "the longest call took 200.0 ms"),
        ({"report": {**ran().report, "errors": 3}}, "3 errors were counted"),
    ],
)
def test_what_a_program_must_not_do_is_found(wrong: dict[str, Any], said: str) -> None:
    """A bad exit status, a traceback, a secret, a flood in the log, an end or a step that takes too long."""
    account = Account()
    account.acknowledge([*events(RECORDED), counter(RECORDED)])
    assert said in found(account, ran(**wrong))
