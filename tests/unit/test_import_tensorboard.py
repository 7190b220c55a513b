"""TensorBoard's log folders become runs, and runs become log folders: with the values that TensorBoard itself reads."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import pty
import random
import re
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_ndarray

from examples import examples
from programs import environment
from recorded_runs import Recorded, points, record, record_histograms
from tachograph.cli import main
from tachograph.cli.runs.import_ import Progress
from tachograph.cli.runs.tensorboard.folders import find_log_folders
from tachograph.cli.runs.tensorboard.importing import import_log_folder
from tachograph.exporters.tensorboard import VERSION, summary
from tachograph.exporters.tensorboard import record as event_record
from tachograph.identity.extra import install_command
from tachograph.runs import Run
from tachograph.runs import list as listed
from tachograph.runs import open as opened
from tachograph.runs.store import Store

BEGAN = 1_790_000_000.0
Scalars = list[tuple[str, float, int, float]]  # tag, value, step and time


def write(folder: Path, scalars: Scalars, *, name: str = "1790000000.host.7.0", finished: bool = True) -> Path:
    """Write an event file, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{name}"
    with path.open("ab") as out:
        if not out.tell():
            out.write(event_record(BEGAN + 5e6, VERSION))  # when the file was made: long after its values
        out.writelines(event_record(time, summary([(tag, value)], step)) for tag, value, step, time in scalars)
        if not finished:
            out.write(event_record(BEGAN, summary([("loss", 1.0)], 99))[:-3])
    return path


def counting(tag: str, count: int, first: int = 0) -> Scalars:
    """Return scalars that count."""
    return [(tag, float(number), number, BEGAN + number) for number in range(first, first + count)]


def take(folder: Path, store: Path) -> int:
    """Run the command and return its exit code."""
    return main(["runs", "import", "tensorboard", str(folder), "--store", str(store)])


def runs(store: Path) -> dict[str, Run]:
    """Return the runs of a store by the name of their programs."""
    found = [opened(each.id, store) for each in listed(store)]
    return {run.program_name: run for run in found}


def pairs(run: Run, metric: str, **of: Any) -> list[tuple[float, float]]:
    """Return x and value of a metric's points."""
    return [(point.x, point.value) for point in run.points(metric, **of)]


def exactly(seconds: float) -> int:
    """Return a time in nanoseconds, of all digits that it has."""
    return round(Fraction(seconds) * 10**9)


def read(folder: Path) -> EventAccumulator:
    """Return what TensorBoard reads from a folder."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    found.Reload()
    return found


@pytest.mark.torch
def test_what_torchs_writer_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each folder is a run: values, steps and times as TensorBoard reads them; the rest is counted, and said."""
    torch = pytest.importorskip("torch")
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "logs" / "exp" / "one"))
    some = random.Random(5)  # noqa: S311 - values of a test
    values = [math.nan, math.inf, -math.inf, *(some.uniform(-1e3, 1e3) for _ in range(60))]
    for step, value in enumerate(values):
        writer.add_scalar("train/loss/inner", value, step * 3, walltime=BEGAN + some.random() + step)
        writer.add_scalar("acc", value / 2, step, new_style=True)
    writer.add_scalar("acc", 0.5, 7)  # back
    spread = [some.gauss(0, 1) for _ in range(500)]
    writer.add_histogram("weights", torch.tensor(spread), 1)
    writer.add_scalars("both", {"a": 1.5, "b": 2.5}, 4)
    writer.add_hparams({"lr": 0.25, "opt": "adam", "size": 32, "api_key": "hush"}, {"hparam/acc": 0.75})
    writer.add_text("note", "hello")
    writer.add_image("picture", torch.zeros(3, 2, 2))
    writer.close()
    assert take(tmp_path / "logs", tmp_path / "store") == 0
    said = capsys.readouterr()
    assert said.err == "tachograph runs import: exp/one: skipped, because they are not curves: image: 1, text: 1\n"
    found = runs(tmp_path / "store")
    assert sorted(found) == ["exp/one"]
    run = found["exp/one"]
    theirs = read(tmp_path / "logs" / "exp" / "one")
    wanted = [(each.step, repr(each.value), exactly(each.wall_time)) for each in theirs.Scalars("train/loss/inner")]
    (loss,) = run.curves("loss/inner")
    assert loss.group == "train"
    assert [(each.x, repr(each.value), each.time_unix_nano) for each in run.points("loss/inner")] == wanted
    tensors = [(each.step, repr(make_ndarray(each.tensor_proto).item())) for each in theirs.Tensors("acc")]
    assert [(each.x, repr(each.value)) for each in run.points("acc")][:-1] == tensors
    acc = list(run.points("acc"))
    assert [point.branch for point in acc] == [0] * len(values) + [1]
    assert [point.x for point in acc] == [*range(len(values)), 7]
    (weights,) = run.series("weights")
    assert (weights.value.count, weights.value.total) == (500, pytest.approx(math.fsum(spread), abs=1e-3))  # type: ignore[union-attr]
    assert weights.value.quantile(0.5) == pytest.approx(sorted(spread)[250], abs=0.1)  # type: ignore[union-attr]
    assert run.config == {"lr": 0.25, "opt": "adam", "size": 32, "api_key": "***"}
    assert run.summary == {"hparam/acc": 0.75}
    assert run.ended.state == "finished"
    assert [(curve.group, curve.metric) for curve in run.curves("b")] == [("both", "b")]
    assert pairs(run, "b") == [(4.0, 2.5)]


@pytest.mark.torch
@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_the_lines_of_a_chart_are_curves_of_its_run(
    tmp_path: Path, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """add_scalars() makes a folder for each line: imported, each line is a metric of its writer's process."""
    for rank in range(2):
        writer = pytest.importorskip(module).SummaryWriter(str(tmp_path / "logs" / "exp" / f"rank{rank}"))
        for step in range(3):
            writer.add_scalar("loss", step + rank, step)
            writer.add_scalars("acc", {"train": step + rank + 0.25, "val": step + rank + 0.5}, step)
            writer.add_scalars("eval (new)/f1", {"a/b c": step + rank + 0.75}, step)
        writer.close()
    for new in ("24 points (all new)", "24 points (0 points new)"):
        assert take(tmp_path / "logs", tmp_path / "store") == 0
        assert new in capsys.readouterr().out
    (run,) = runs(tmp_path / "store").values()
    group = "eval__new_" if module == "tensorboardX" else "eval (new)"  # as it is in the file
    assert {(curve.group, curve.metric, curve.rank) for curve in run.curves()} == {
        (of, metric, rank)
        for of, metric in (("", "loss"), ("acc", "train"), ("acc", "val"), (group, "f1/a/b c"))
        for rank in range(2)
    }
    assert pairs(run, "val", rank=1) == [(0.0, 1.5), (1.0, 2.5), (2.0, 3.5)]
    assert pairs(run, "f1/a/b c", rank=0) == [(0.0, 0.75), (1.0, 1.75), (2.0, 2.75)]
    assert [(process.rank, process.starts) for process in run.processes()] == [(0, 1), (1, 1)]


def test_a_run_inside_another_one_stays_a_run(tmp_path: Path) -> None:
    """A folder that begins with the name of one of its tags, as those of a sweep may, and has others, is a run."""
    write(tmp_path / "logs", counting("lr", 2))
    write(tmp_path / "logs" / "lr_0.1", counting("lr", 2) + counting("loss", 2))
    write(tmp_path / "logs" / "other", counting("lr", 2))
    assert take(tmp_path / "logs", tmp_path / "store") == 0
    assert sorted(runs(tmp_path / "store")) == ["logs", "lr_0.1", "other"]


def test_again_only_what_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Imported again there is nothing twice, from wherever; a folder that is being written gives what it has got."""
    logs, store = tmp_path / "a" / "logs", tmp_path / "store"
    write(logs / "one", counting("loss", 1500) + counting("acc", 3), finished=False)
    assert take(logs, store) == 0
    said = capsys.readouterr()
    assert "1,503 points (all new)" in said.out
    (path,) = logs.joinpath("one").iterdir()
    torn = len(event_record(BEGAN, summary([("loss", 1.0)], 99))) - 3
    why = "it ends within a record; import it again when more has been written"
    assert said.err == f"tachograph runs import: {path}: skipped {torn} bytes: {why}\n"
    path.write_bytes(path.read_bytes()[:-torn])
    write(logs / "one", counting("loss", 100, first=1500) + counting("new", 2))
    write(logs / "one", counting("loss", 10, first=1550), name="1790000900.host.8.0")  # started again
    (tmp_path / "b").mkdir()
    logs.rename(tmp_path / "b" / "moved")
    for new in ("112 points new", "0 points new"):
        assert take(tmp_path / "b" / "moved" / "one", store) == 0
        assert f"1,615 points ({new})" in capsys.readouterr().out
    (run,) = runs(store).values()
    assert pairs(run, "loss")[:1600] == [(float(x), float(x)) for x in range(1600)]
    again = list(run.points("loss"))[1600:]
    assert [(point.x, point.branch) for point in again] == [(float(x), 1) for x in range(1550, 1560)]
    assert [each.starts for each in run.processes()] == [2]
    assert len(list(run.events("tachograph.import"))) == 2


def test_ranks_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of ranks, as the exporter writes them, are the processes of one run, with the times of its values."""
    for number in (0, 1, 10):
        write(tmp_path / "job" / f"rank{number}", [("loss", float(number), 1, BEGAN + number)])
    assert take(tmp_path, tmp_path / "store") == 0
    assert capsys.readouterr().out.count("\n") == 1
    (summary_,) = listed(tmp_path / "store")
    assert (summary_.start, summary_.last) == (int(BEGAN) * 10**9, int(BEGAN + 10) * 10**9)
    (run,) = runs(tmp_path / "store").values()
    assert [(process.rank, process.pid, process.resource["host.name"]) for process in run.processes()] == [
        (0, 7, "host"),
        (1, 7, "host"),
        (10, 7, "host"),
    ]
    assert pairs(run, "loss", rank=10) == [(1.0, 10.0)]


def test_what_tensorflow_2_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scalars and histograms are tensors there; a tensor that is no number is counted."""
    writer = EventFileWriter(str(tmp_path / "logs"))
    for step in range(3):
        for made in (scalar_pb("loss", step / 4), histogram_pb("weights", [1.0, 2.0, 2.0, step - 9.0], buckets=4)):
            writer.add_event(TensorBoardEvent(wall_time=BEGAN + 20 * step, step=step, summary=made))
    matrix = TensorProto(dtype=1, float_val=[1, 2])
    told = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    values = [Summary.Value(tag=tag, tensor=matrix, metadata=of) for tag, of in (("m", told), ("t", None))]
    writer.add_event(TensorBoardEvent(wall_time=BEGAN, summary=Summary(value=values)))
    writer.close()
    assert take(tmp_path / "logs", tmp_path / "store") == 0
    assert "curves: tensor: 2\n" in capsys.readouterr().err
    for _ in range(2):
        (run,) = runs(tmp_path / "store").values()
        assert pairs(run, "loss") == [(0.0, 0.0), (1.0, 0.25), (2.0, 0.5)]
        (weights,) = run.series("weights")
        value: Any = weights.value
        assert (value.count, value.minimum, value.maximum) == (12, -9.0, 2.0)
        assert [each.count for each in run.intervals("weights")] == [4, 4, 4]
        assert take(tmp_path / "logs", tmp_path / "store") == 0


def test_histograms_of_many_files_come_once(tmp_path: Path) -> None:
    """A job that was started again a dozen times has the histograms of each start once, whenever it is imported."""
    for number in range(12):
        writer = EventFileWriter(str(tmp_path / "logs"), filename_suffix=f".{number:02}")
        made = histogram_pb("weights", [1.0, 2.0 + number], buckets=4)
        writer.add_event(TensorBoardEvent(wall_time=BEGAN + number, step=1, summary=made))
        writer.close()
    for _ in range(2):
        assert take(tmp_path / "logs", tmp_path / "store") == 0
        (run,) = runs(tmp_path / "store").values()
        values: list[Any] = [each.value for each in run.series("weights")]
        assert [(value.count, value.spread.total) for value in values] == [(2, 2)] * 12


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (TensorProto(dtype=2, double_val=[0.1]), 0.1),
        (TensorProto(dtype=19, half_val=[0x3E00]), 1.5),
        (TensorProto(dtype=19, tensor_content=struct.pack("<e", -2.5)), -2.5),
        (TensorProto(dtype=9, int64_val=[-5]), -5),
        (TensorProto(dtype=10, bool_val=[True]), 1),
        (TensorProto(dtype=4, int_val=[200]), 200),
    ],
)
def test_tensors_of_each_type(tmp_path: Path, tensor: TensorProto, wanted: float) -> None:
    """A number is read whatever its type, from its own field and from the content."""
    of_scalars = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    value = Summary.Value(tag="t", tensor=tensor, metadata=of_scalars)
    writer = EventFileWriter(str(tmp_path / "logs"))
    writer.add_event(TensorBoardEvent(wall_time=BEGAN, summary=Summary(value=[value])))
    writer.close()
    assert take(tmp_path / "logs", tmp_path / "store") == 0
    (run,) = runs(tmp_path / "store").values()
    assert pairs(run, "t") == [(0.0, wanted)]


@pytest.mark.parametrize("what", ["value", "length"])
def test_a_damaged_file_is_imported_up_to_the_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """TensorBoard's reader stops at a damaged record, and so does the import: it says where, and exits with 1."""
    path = write(tmp_path / "logs", counting("loss", 400))
    content = bytearray(path.read_bytes())
    size = len(event_record(BEGAN, summary([("loss", 1.0)], 200)))
    damaged = len(content) - 100 * size  # where a record begins
    assert content[damaged : damaged + 8] == struct.pack("<Q", size - 16)
    if what == "value":
        content[damaged + 20] ^= 1
    else:
        content[damaged : damaged + 3] = b"\xff\xff\xff"
    path.write_bytes(content)
    assert take(tmp_path / "logs", tmp_path / "store") == 1
    said = f"{path} is damaged at byte {damaged:,}; what comes before it was imported"
    assert capsys.readouterr().err == f"tachograph runs import: {said}\n"
    (run,) = runs(tmp_path / "store").values()
    assert pairs(run, "loss") == [(float(x), float(x)) for x in range(300)]
    assert len(read(tmp_path / "logs").Scalars("loss")) == 300


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_damage_ends_the_import(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever bytes change, are cut or put in: the import ends, raises nothing, and invents no point."""
    folder = tmp_path_factory.mktemp("any")
    path = write(folder / "logs", counting("loss", 30))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
    path.write_bytes(content)
    assert take(folder / "logs", folder / "store") in {0, 1}
    for run in runs(folder / "store").values() if (folder / "store").exists() else ():
        assert set(pairs(run, "loss")) <= {(float(x), float(x)) for x in range(30)}


def test_without_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Import and export name the command that installs what they need."""
    needed = "tachograph.cli.runs.tensorboard.", "tensorboard."
    for name in [name for name in sys.modules if name.startswith(needed)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    write(tmp_path / "logs", counting("loss", 1))
    record(tmp_path, "run", *points([1.0]))
    assert take(tmp_path / "logs", tmp_path) == 2
    export = ["runs", "export", "run", "--store", str(tmp_path), "--format", "tensorboard", "--output", str(tmp_path)]
    assert main(export) == 2
    install = install_command("tensorboard")
    assert capsys.readouterr().err.splitlines() == [
        f"tachograph runs import: event files need tensorboard: {install}",
        f"tachograph runs export: event files need tensorboard: {install}",
    ]


NAMES = st.sampled_from(["c", "b/c", "c (2)"]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6
)
POINTS = st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats()), min_size=1, max_size=6)
CURVES = st.dictionaries(
    st.tuples(NAMES, st.sampled_from(["", "train", "a/b", "a"]), st.sampled_from([0, 1, 12])), POINTS, max_size=4
)


@settings(max_examples=examples(15), deadline=None)
@given(curves=CURVES, branches=st.lists(st.integers(0, 3), min_size=1))
def test_a_round_trip_gives_each_point_back(
    tmp_path_factory: pytest.TempPathFactory, curves: dict[tuple[str, str, int], Any], branches: list[int]
) -> None:
    """An exported run that is imported has the same points: x, value, time and branch bit for bit, in each curve."""
    place = tmp_path_factory.mktemp("trip")
    record(place / "one", "run", ("started", {}))
    for (name, group, number), found in curves.items():
        many = [
            (
                "tachograph.metric",
                {"metric": name, "group": group, "x": x, "value": value, "branch": branches[at % len(branches)]},
            )
            for at, (x, value) in enumerate(found)
        ]
        task = {"execution": number} if name == "c" else {}
        record(place / "one", "run", *[(event, {**said, **task}) for event, said in many], number=number)
    assert (
        main(
            ["runs", "export", "run", "--store", str(place / "one"), "--format", "tensorboard", "--output", str(place)]
        )
        == 0
    )
    for _ in range(2):
        assert take(place / "run", place / "two") == 0
    assert same(opened("run", place / "one")) == [each for run in runs(place / "two").values() for each in same(run)]


def test_what_tensorboard_reads_of_an_export(tmp_path: Path) -> None:
    """Values, steps and times are the run's own, each rank in a folder; hyperparameters and the end, too."""
    store, out = tmp_path / "store", tmp_path / "out"
    values = [math.nan, math.inf, -math.inf, 0.1, 1e300, -2.5]
    config = {"lr": 0.1, "amp": True, "opt": "adam", "betas": [0.9, 0.99]}
    for number in (0, 3):
        record(store, "a run", *points([value + number for value in values], group="train"), number=number)
        record(store, "a run", *points([1.0], "f1", attributes={"split": "val"}), number=number + 1, day=1)
    record(store, "a run", ("tachograph.config", {"tachograph.config": config}), number=7)
    record_histograms(store, "other", Recorded("step", [[0.5, 1.5, 1.5], [8.0]]))
    hub = ["--store", str(store), "--format", "tensorboard", "--output", str(out)]
    for _ in range(2):  # again: in place of the first one
        assert main(["runs", "export", "a run", "other", *hub]) == 0
    assert len([path for path in out.rglob("*") if path.is_file()]) == 5
    found = read(out / "a%20run" / "rank3")
    assert sorted(found.Tags()["scalars"]) == ["train/loss"]
    numpy = pytest.importorskip("numpy")
    with numpy.errstate(over="ignore"):
        wanted = [repr(float(numpy.float32(value + 3))) for value in values]
    assert [repr(each.value) for each in found.Scalars("train/loss")] == wanted
    assert [each.step for each in found.Scalars("train/loss")] == [*range(6)]
    stored = [point.time_unix_nano / 1e9 for point in opened("a run", store).points("loss", rank=3)]
    assert [each.wall_time for each in found.Scalars("train/loss")] == stored
    assert read(out / "a%20run" / "rank4").Tags()["scalars"] == ["f1{split=val}"]
    first = read(out / "a%20run" / "rank0")
    (told,) = [HParamsPluginData.FromString(each) for each in first.PluginTagToContent("hparams").values()]
    hparams = {key: getattr(value, value.WhichOneof("kind")) for key, value in told.session_start_info.hparams.items()}
    assert hparams == {**config, "betas": "[0.9, 0.99]"}
    histograms = read(out / "other" / "rank0").Histograms("training/step")
    assert [(each.step, each.histogram_value.num, each.histogram_value.max) for each in histograms] == [
        (0, 3, 1.5),
        (1, 1, 8.0),
    ]
    assert take(out, tmp_path / "back") == 0
    back = runs(tmp_path / "back")
    assert sorted(back) == ["a%20run", "other"]
    assert back["a%20run"].config == {**config, "betas": "[0.9, 0.99]"}
    assert same(back["a%20run"]) == same(opened("a run", store))
    (spread,), (origin,) = back["other"].series("step"), opened("other", store).series("step")
    assert spread.value.spread == origin.value.spread  # type: ignore[union-attr]


def test_an_export_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs a folder, has curves and histograms alone, and says where it cannot be written."""
    record(tmp_path, "run", *points([1.0]))
    (tmp_path / "file").touch()
    export = ["runs", "export", "run", "--store", str(tmp_path), "--format", "tensorboard"]
    out = ["--output", str(tmp_path / "out")]
    assert main(export) == 2
    assert main([*export, *out, "--kind", "counter"]) == 2
    assert main([*export, *out, "--metric", "lost"]) == 2
    assert main([*export, "--output", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "tachograph runs export: --output must name the folder for TensorBoard: its --logdir",
        "tachograph runs export: TensorBoard's files have no counters: leave out --kind",
        "tachograph runs export: the run 'run' has no metric 'lost': did you mean 'loss'?",
        f"tachograph runs export: {tmp_path}/file/run/rank0: Not a directory",
    ]
    assert not (tmp_path / "out").exists()


def run_id(path: Path) -> str:
    """Return the id that the run of a file gets: its folder's name and a digest of its first record."""
    head = event_record(BEGAN + 5e6, VERSION)
    return f"{path.parent.name}-{hashlib.blake2b(path.name.encode() + head, digest_size=4).hexdigest()}"


def test_what_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each error says what was wrong, and what to write instead."""
    logs, store = tmp_path / "lightning_logs", tmp_path / "store"
    path = write(logs / "version_0", counting("loss", 1))
    (logs / "version_1").mkdir()
    (tmp_path / "file").touch()
    for folder in (tmp_path / "lightning_log", tmp_path / "x", path, logs / "version_1"):
        assert take(folder, store) == 2
    assert take(logs, tmp_path / "file") == 2
    hint = "name the folder that you pass to TensorBoard as --logdir"
    assert capsys.readouterr().err.splitlines() == [
        f"tachograph runs import: no such folder: {tmp_path}/lightning_log: did you mean {logs}?",
        f"tachograph runs import: no such folder: {tmp_path}/x: {hint}",
        f"tachograph runs import: {path} is not a folder; name the folder that contains it",
        f"tachograph runs import: {logs}/version_1 has no TensorBoard event files (their names contain 'tfevents')",
        f"tachograph runs import: {tmp_path}/file/runs/{run_id(path)}.db: cannot write to the store: File exists",
    ]
    assert not store.exists()
    with pytest.raises(SystemExit):
        main(["runs", "import", "wandb", str(logs)])
    assert "cannot import from 'wandb', only from 'tensorboard'" in capsys.readouterr().err
    (logs / "version_1" / "events.out.tfevents.1").touch()
    assert take(logs, store) == 0
    assert capsys.readouterr().out.splitlines()[1] == "version_1: empty so far"
    (run,) = listed(store)
    held = Store(store, run.id)
    assert take(logs, store) == 1
    held.close()
    said = f"another process is writing the run {run.id}; import it again when that process has ended"
    assert capsys.readouterr().err == f"tachograph runs import: {said}\n"


def test_a_link_to_a_folder_above(tmp_path: Path) -> None:
    """Links are followed, each folder once."""
    write(tmp_path / "logs" / "one", counting("loss", 1))
    (tmp_path / "logs" / "one" / "up").symlink_to(tmp_path / "logs")
    write(tmp_path / "elsewhere", counting("loss", 2))
    (tmp_path / "logs" / "two").symlink_to(tmp_path / "elsewhere")
    assert take(tmp_path / "logs", tmp_path / "store") == 0
    assert {name: len(list(run.points())) for name, run in runs(tmp_path / "store").items()} == {"one": 1, "two": 2}


def test_a_long_import_shows_its_progress(tmp_path: Path) -> None:
    """A terminal has one line of it, at most each 0.2 s, which is cleared in the end; a file has nothing."""
    write(tmp_path / "logs", counting("loss", 30_000))
    (folder,) = find_log_folders(tmp_path / "logs", pytest.fail)
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(its, "w") as terminal:
        ticks = itertools.count(0.0, 0.15)  # seconds: each second report is due
        progress = Progress(folder.name, terminal, lambda: next(ticks))
        assert import_log_folder(folder, tmp_path / "store", progress)
        progress.close()
        shown = ""
        while not shown.endswith(" \r"):
            shown += screen.read(2**16).decode()
    lines = [line.strip() for line in shown.split("\r")]
    name = re.escape("events.out.tfevents.1790000000.host.7.0")
    reports = [re.fullmatch(rf"logs: ([\d,]+) points, (\d+) % of {name}", line) for line in lines[1:-2]]
    assert [report and report[1] for report in reports] == ["4,096", "12,288", "20,480", "28,672"], shown
    assert [int(report[2]) for report in reports if report] == [13, 40, 67, 95]
    assert lines[-1] == ""
    with (tmp_path / "said").open("w") as said:
        assert import_log_folder(folder, tmp_path / "other", Progress(folder.name, said, lambda: next(ticks)))
    assert (tmp_path / "said").read_text() == ""


LARGE = r"""
import re
from tachograph.cli import main
assert main(["runs", "import", "tensorboard", "logs", "--store", "store"]) == 0
with open("/proc/self/status") as status:  # ru_maxrss would begin with that of the process which has started this one
    print(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1])
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(900)  # writing and reading them takes a minute alone
def test_a_million_points_in_bounded_memory(tmp_path: Path) -> None:
    """A file is read as a stream: a million points of a hundred curves take less than 150 MB, all else included."""
    place = tmp_path / "logs"
    for first in range(0, 1_000_000, 100_000):
        write(place, [(f"m{at % 100}", at / 3, at // 100, BEGAN + at / 50) for at in range(first, first + 100_000)])
    done = subprocess.run(
        [sys.executable, "-c", LARGE],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1,000,000 points (all new)" in done.stdout
    assert int(done.stdout.splitlines()[-1]) < 150_000


def same(run: Run) -> list[tuple[Any, ...]]:
    """Return the points of a run, comparable."""
    return sorted(
        (
            *(point.metric, point.group, sorted(point.attributes.items()), point.rank, point.execution, point.units),
            *(point.branch, point.time_unix_nano, repr(point.x), struct.pack("<d", point.value)),
        )
        for point in run.points()
    )
