"""Points at full speed: 27,000 a second, all of them in the run's file, in the number that everything says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from launches import run_program
from programs import run
from tachograph import runs
from tachograph.cli import main

pytest.importorskip("uvicorn")

RATE, SECONDS = 27_000, 4
PROGRAM = f"""
    import time
    from tachograph import Metric, MetricGroup

    loss, accuracy = Metric("loss", throttle=None), Metric("accuracy", group=MetricGroup("train"), throttle=None)
    began, step = time.perf_counter(), 0
    while step < {RATE * SECONDS // 2}:
        for step in range(step, min(int((time.perf_counter() - began) * {RATE // 2}) + 1, {RATE * SECONDS // 2})):
            loss.record(step / 7, at=step)
            accuracy.record(float("nan") if step % 1000 == 0 else 1 / (step + 1), at=step)
        step += 1
        time.sleep(0.0005)
"""
WAKE = """
import json, time
import tachograph
from tachograph.recording import journal

taken = []
tachograph.start(metrics="none", traces="none", logs=[lambda batch: taken.append(len(batch.events))], interval=60)
events, half, waited = journal.default, journal.LIMIT // 2, []
events.append("first", 0, {})
while not taken:  # a tick has just been
    time.sleep(0.01)
for turn in range(5):
    while len(events):
        time.sleep(0.01)
    for number in range(half + 1):
        events.append("e", 0, {})
    began = time.perf_counter()
    while len(events) > half:
        time.sleep(0.002)
    waited.append(time.perf_counter() - began)
tachograph.shutdown()
print(json.dumps({"waited": sorted(waited), "taken": sum(taken)}))
"""


def test_a_journal_that_is_half_full_does_not_wait_for_the_next_second(tmp_path: Path) -> None:
    """Five bursts of half a journal, one after the other: each begins to leave at once, and every event leaves."""
    done = run(tmp_path, WAKE)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["waited"][2] < 0.4
    assert said["taken"] >= 5 * (65_536 // 2 + 1)


def test_nothing_of_27000_points_a_second_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of two curves is in the file with its x; the last line, the list and ``top`` say the same number."""
    done = run_program(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stderr
    store, steps = tmp_path / "store", RATE * SECONDS // 2
    (listed,) = runs.list(store)
    run_read = runs.open(listed.id, store)
    assert run_read.losses == []
    loss = [(point.x, point.value, point.branch) for point in run_read.points("loss")]
    assert loss == [(float(step), step / 7, 0) for step in range(steps)]
    accuracy = [(point.x, point.value, point.group) for point in run_read.points("accuracy")]
    assert [(x, group) for x, _, group in accuracy] == [(float(step), "train") for step in range(steps)]
    assert [x for x, value, _ in accuracy if value != value] == [float(step) for step in range(0, steps, 1000)]  # noqa: PLR0124
    assert f": recorded {2 * steps:,} points, none lost; " in done.stderr
    assert listed.points == 2 * steps
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["top", "--once", listed.id, "--store", str(store)]) == 0
    shown = capsys.readouterr().out
    assert f"{2 * steps / 1000:.1f}k points" in shown
    assert re.search(rf"^loss .*{steps / 1000:.1f}k$", shown, re.MULTILINE)
