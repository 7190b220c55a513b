"""The hang doctor in real jobs: the right rank, operation and line, in the terminal and on /metrics."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from places import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def bench() -> ModuleType:
    """Return bench/hangs.py, which is a script."""
    spec = importlib.util.spec_from_file_location("hangs", ROOT / "bench" / "hangs.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


HANGS = bench()
QUICK = ("c_sleep", "mismatch")
KINDS = HANGS.KINDS | HANGS.MORE
PARAMETERS = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.long) for kind in KINDS]


def injected(kind: str, guilty: int) -> Any:
    """Return the outcome of a job that hangs; one that did not begin is repeated: gloo is flaky."""
    for _ in range(3):
        world = 3 if kind in HANGS.MORE else 2
        outcome = HANGS.inject(HANGS.Case(0, kind, world, guilty, 25, False, True), seconds=45.0)
        if outcome.seconds is not None:
            break
    return outcome


@pytest.mark.parametrize("kind", PARAMETERS)
def test_the_guilty_rank(kind: str) -> None:
    """A hang is said of the guilty rank, with its cause, the operation and the line; in the terminal, too."""
    outcome = injected(kind, guilty=list(KINDS).index(kind) % 2)
    assert outcome.rank, outcome
    assert not outcome.wrong, outcome
    assert outcome.operation, outcome
    assert outcome.line, outcome
    if kind != "kill":  # gloo's other ranks end by themselves then
        assert f"45%|####\ntachograph: hang: {outcome.text[:20]}" in outcome.said
        assert "tachograph_hang{" in outcome.page


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in HANGS.HARMLESS if kind != "all_evaluate"])
def test_no_hang(kind: str) -> None:
    """Work of one rank that takes long, and rests that end, are no hang."""
    outcome = HANGS.inject(HANGS.Case(0, kind, 2, 1, 25, False, True), seconds=25, harmless=20)
    assert outcome.seconds is None, outcome
