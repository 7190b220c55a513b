"""Several ``with tachograph.start()``: the last one out ends it, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import exported, number, run

START = """
import threading, time
import tachograph

def start():
    return tachograph.start(metrics="jsonl", logs="none", traces="none", jsonl="out.jsonl", interval=60)

def add():
    tachograph.put_metric("step.success", 1)
"""


@pytest.mark.parametrize(
    ("program", "counted"),
    [
        pytest.param(
            """
with start() as outer:
    add()
    with start() as inner:
        add()
    assert inner is outer and outer.running
    add()
assert not outer.running
""",
            3,
            id="one in another",
        ),
        pytest.param(
            """
running = start()
with start():
    add()
assert running.running
add()
""",
            2,
            id="one in a program that has started it for good",
        ),
        pytest.param(
            """
running = start()
with running:
    with running:
        add()
    assert running.running
    add()
assert not running.running
""",
            2,
            id="the same one twice",
        ),
        pytest.param(
            """
with start() as outer:
    with start():
        add()
        tachograph.shutdown()
        assert not outer.running
    with start() as later:
        assert later is not outer
        add()
    assert not later.running
""",
            2,
            id="an explicit end between them",
        ),
        pytest.param(
            """
def work():
    for _ in range(20):
        with start() as running:
            add()
            assert running.running

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with start() as running:
    pass
assert not running.running
""",
            160,
            id="eight threads",
        ),
    ],
)
def test_the_last_one_out_ends_it(program: str, counted: int, tmp_path: Path) -> None:
    """An inner statement, or one of another thread, ends nobody else's; all that was recorded arrives."""
    ended = run(tmp_path, START + program, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "step.success"]) == counted


def test_two_starts_under_zero_code(tmp_path: Path) -> None:
    """The destinations that a program adds to a running pipeline are there until it has left them as often."""
    program = (
        START
        + """
with start() as outer:
    with start() as inner:
        add()
    assert inner is outer and outer.running
    add()
assert not outer.running
"""
    )
    (tmp_path / "job.py").write_text(program)
    launcher = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-m", "tachograph", "run", "--", sys.executable, "job.py"]).returncode)
"""
    ended = run(tmp_path, launcher, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "step.success"]) == 2
