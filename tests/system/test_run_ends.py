"""The table of ends: however a run ends, its state, the page, and the last line of ``run`` say the same, and truly."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hubs import serving
from launches import run
from programs import run as run_alone
from programs import write
from run_ends import COLLECTIVE, ENDS, RANKS, SIMPLE, RunEnd
from studio import Studio
from tachograph import runs
from tachograph.cli import main

pytest.importorskip("uvicorn")
TIME_LIMIT = 150.0
_PID = re.compile(r"pid \d+")


def program_of(end: RunEnd) -> str:
    """Return the program of a case."""
    source = textwrap.dedent(end.source)
    place = re.search(r"^( *)\{\}", source, re.MULTILINE)
    assert place is not None
    return source.replace("{}", textwrap.indent(textwrap.dedent(end.program), place[1]).lstrip(" "))


def anonymous(text: str) -> str:
    """Return a text with the same pid everywhere."""
    return _PID.sub("pid 1234", text)


# Of those with two ranks and torch each the others are in `make long`.
RANK_FAILS = next(end for end in ENDS if end.source is RANKS)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(
            end, id=end.name, marks=() if end.source in (SIMPLE, COLLECTIVE) or end is RANK_FAILS else pytest.mark.long
        )
        for end in ENDS
    ],
)
def test_an_end_is_told_alike_everywhere(tmp_path: Path, end: RunEnd, capsys: pytest.CaptureFixture[str]) -> None:
    """``runs list``, ``runs show``, ``tachograph.runs``, the page's data and the last line of ``run``."""
    if end.source is not SIMPLE:
        pytest.importorskip("torch")
    path, store = write(tmp_path, program_of(end)), tmp_path / "store"
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        if end.source in (RANKS, COLLECTIVE)
        else []
    )
    more = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = run(tmp_path, sys.executable, *launcher, str(path), options=("--run-id", "r"), timeout=TIME_LIMIT, **more)
    assert done.returncode == end.code, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("tachograph: ")]
    assert said[-1].startswith(f"tachograph: {end.brief}: "), said
    told = anonymous(said[-2].removeprefix("tachograph: ").removeprefix("the program failed: "))
    assert (told == end.failure) is bool(end.failure), said

    (listed,) = runs.list(store)
    assert (listed.ended.brief, runs.open("r", store).ended.brief) == (end.brief, end.brief)
    assert re.match(end.words, str(listed.ended)), str(listed.ended)
    for command in (["list"], ["show", "r"]):
        assert main(["runs", *command, "--store", str(store)]) == 0
    printed = capsys.readouterr().out
    assert f"  {end.brief}  " in printed
    assert f"\n{listed.ended}\n" in printed
    assert "hunter2" not in printed + done.stderr.rpartition("Traceback")[0]
    with serving(store) as hub:  # after it: the states of a run that has ended stay as they are
        (entry,) = [each for each in Studio(hub.url).ask("runs")["runs"] if each["id"] == "r"]
    assert (entry["ended"]["brief"], entry["ended"]["words"]) == (end.brief, str(listed.ended))
    assert (entry["ended"]["failure"] is not None) is bool(end.failure)


ALONE = [end for end in ENDS if end.alone is not None]


@pytest.mark.parametrize("end", ALONE, ids=[end.name for end in ALONE])
def test_a_run_that_tachograph_run_did_not_start(tmp_path: Path, end: RunEnd) -> None:
    """A program with ``start()`` tells a standing hub how it ends; one that cannot is lost. None is unknown."""
    source, store = program_of(end), tmp_path / "store"
    with serving(store) as hub:
        begin = f"tachograph.start(endpoint='{hub.url}', metrics='otlp', run_id='r', interval=0.5)\n"
        program = source.replace("import tachograph\n", f"import tachograph\n{begin}")
        done = run_alone(tmp_path, program)
        assert done.returncode in (end.code, 128 - end.code), done.stderr
        hub.hub.tick()
        deadline = time.monotonic() + 60
        while (now := Studio(hub.url).ask("runs", "r")["run"])["state"] == "running" and time.monotonic() < deadline:
            hub.hub.tick()
            time.sleep(0.5)
        assert now["ended"]["brief"] == end.alone
    found = runs.open("r", store)
    assert found.ended.brief == end.alone
    assert str(found.ended.failure or "") == end.failure
