"""TensorBoard reads back what Stats and Metrics logged, with its own reader."""

from __future__ import annotations

import math
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from examples import examples
from programs import run
from tachograph.exporters.batch import Batch
from tachograph.exporters.tensorboard import TensorBoard
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry


def scalars(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Return what TensorBoard finds in a folder: wall time, step and value of each point, by tag."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(point.wall_time, point.step, point.value) for point in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def write(folder: Path, journal: Journal, **resource: Any) -> None:
    """Write what the journal holds."""
    destination = TensorBoard(folder, Registry(), pace=lambda: None)
    destination(Batch([], None, [], resource, 0, journal.drain()))
    assert destination.flush(10)
    destination.close(1)


def test_each_aggregation_of_a_stat_is_a_scalar(tmp_path: Path) -> None:
    """A tag an aggregation, as torch.monitor's own handler writes it: the event's time, no step, single precision."""
    journal = Journal(Registry(enabled=True))
    for number in range(300):
        journal.append("torch.monitor.Stat", 10**18 + number * 10**9, {"loss.mean": number / 3, "loss.count": 2.0})
    journal.append("something else", 1, {"x": 1.0})
    write(tmp_path, journal)
    found = scalars(tmp_path)
    assert set(found) == {"loss.mean", "loss.count"}
    assert found["loss.mean"] == [
        (1e9 + number, 0, struct.unpack("f", struct.pack("f", number / 3))[0]) for number in range(300)
    ]
    assert [value for *_, value in found["loss.count"]] == [2.0] * 300


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.floats(), st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.none())), min_size=1),
    st.text(min_size=1),
)
def test_points_have_their_x_as_step(
    tmp_path_factory: pytest.TempPathFactory, points: list[tuple[float, Any]], name: str
) -> None:
    """A point's step is the whole part of its x, also where it goes back; NaN and infinities are values as any."""
    folder = tmp_path_factory.mktemp("board")
    journal = Journal(Registry(enabled=True))
    for value, x in points:
        journal.append("tachograph.metric", 1, {"group": "train", "metric": name, "value": value, "x": x or 0})
    write(folder, journal)
    (tag, found), *more = scalars(folder).items()
    assert not more
    assert tag == f"train/{name}".encode("utf-8", "replace").decode()
    for (_, step, got), (value, x) in zip(found, points, strict=True):
        known = x is not None and math.isfinite(x)
        if known and -(2**63) <= x < 2**63:
            assert step == int(x)
        single = math.copysign(math.inf, value) if abs(value) > 3.4028235677973366e38 else value
        assert got == pytest.approx(single, rel=1e-6, abs=1e-37, nan_ok=True)


def test_each_rank_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Ranks write to folders of their own in the run's, the agent too: TensorBoard shows them side by side."""
    who: list[dict[str, Any]] = [{"dl.rank": 0}, {"dl.rank": 1, "dl.role": "trainer"}, {"dl.role": "agent"}]
    for resource in who:
        journal = Journal(Registry(enabled=True))
        journal.append("torch.monitor.Stat", 1, {"loss.mean": 1.0})
        write(tmp_path / "run", journal, **resource)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["agent", "rank0", "rank1"]
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.process
def test_a_program_writes_to_its_store(tmp_path: Path) -> None:
    """``logs="tensorboard"`` writes below ``tensorboard/<run id>`` of the store, and imports no torch."""
    done = run(
        tmp_path,
        """
import sys, time
import tachograph
from tachograph.recording import journal
tachograph.start(metrics="none", logs="tensorboard", run_id="my run", store="s")
journal.default.append("torch.monitor.Stat", 5 * 10**18, {"loss.mean": 0.5})
tachograph.shutdown()
print([name for name in ("torch", "numpy", "tensorboard", "tensorboardX") if name in sys.modules])
""",
    )
    assert done.stdout.strip() == "[]", done.stderr
    (folder,) = (tmp_path / "s" / "tensorboard").iterdir()
    assert folder.name == "my%20run"
    assert scalars(folder) == {"loss.mean": [(5e9, 0, 0.5)]}


def test_nothing_is_made_without_an_event(tmp_path: Path) -> None:
    """A program that logs no scalar leaves no folder behind."""
    write(tmp_path / "run", Journal(Registry(enabled=True)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fate", ["deleted", "cut", "overwritten"])
def test_a_file_that_others_change(tmp_path: Path, fate: str) -> None:
    """What comes after the file was deleted or changed is in a new one: TensorBoard reads no farther in the old one."""
    journal = Journal(Registry(enabled=True))
    destination = TensorBoard(tmp_path, Registry(), pace=lambda: None)

    def write_point(x: int) -> None:
        journal.append("tachograph.metric", 1, {"metric": "loss", "value": float(x), "x": x})
        destination(Batch([], None, [], {}, 0, journal.drain()))
        assert destination.flush(10)

    write_point(1)
    write_point(2)
    (path,) = tmp_path.iterdir()
    time.sleep(0.05)  # the file system's time has gone on
    if fate == "deleted":
        path.unlink()
    elif fate == "cut":
        os.truncate(path, path.stat().st_size - 5)
    else:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size - 5)
            file.write(b"\xff")
    write_point(3)
    write_point(4)
    destination.close(1)
    new = [each for each in tmp_path.iterdir() if each != path]
    assert len(new) == 1
    assert [step for _, step, _ in scalars(new[0])["loss"]] == [3, 4]


def test_a_file_system_that_sets_times_late(tmp_path: Path) -> None:
    """Where the file has another time after each write, nobody has changed it, few files are made, and all is read."""
    journal = Journal(Registry(enabled=True))
    destination = TensorBoard(tmp_path, Registry(), pace=lambda: None)
    for x in range(20):
        journal.append("tachograph.metric", 1, {"metric": "loss", "value": float(x), "x": x})
        destination(Batch([], None, [], {}, 0, journal.drain()))
        assert destination.flush(10)
        for path in tmp_path.iterdir():
            os.utime(path, (x, x))
    destination.close(1)
    assert len(list(tmp_path.iterdir())) == 4
    assert sorted(step for path in tmp_path.iterdir() for _, step, _ in scalars(path)["loss"]) == list(range(20))
