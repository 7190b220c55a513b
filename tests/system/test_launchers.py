"""Ranks that torchrun did not start: whichever launcher a job has, its values are stored under the right rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from launchers import LAUNCHERS, PAGE, TIME_LIMIT, job, others_of, row, run
from programs import environment, events, requests, value, write
from tachograph import runs

torch = pytest.importorskip("torch")

# Modules and programs that come with the group `test`: without them a launcher is not tested, which CI calls a failure.
NEEDED = {"lightning": "lightning", "accelerate": "accelerate", "open-mpi": "openmpi", "mpich": "mpich"}


def stored(folder: Path, metric: str) -> list[tuple[int | None, float]]:
    """Return rank and value of each point of a metric, as the last job of a folder has left them."""
    (*_, store) = sorted(folder.glob("store-*"))
    points = runs.open("job", store=store).points(metric)
    return sorted(((point.rank, point.value) for point in points), key=str)


EACH_TIME = ("torchrun", "spawn")  # the others take minutes together


@pytest.mark.parametrize(
    "name", [name if name in EACH_TIME else pytest.param(name, marks=pytest.mark.long) for name in LAUNCHERS]
)
def test_each_value_is_stored_once_under_its_rank(tmp_path: Path, name: str) -> None:
    """What ranks record, before they are known to be ranks, too, is stored once, under their own rank.

    Values of a plain program before it joins have no rank; those of helpers are counted, and said once. Only processes
    of the job are listed, the agent as an agent. The row on the page is that of this job.
    """
    needs_its_library(name)
    launcher = LAUNCHERS[name]
    found = run(launcher, tmp_path)
    ranks = {rank for rank, *_ in found.recorded} - {None}
    assert ranks == {0, 1}
    assert found.recorded.total() == 204 + launcher.helpers - (name in ("lightning-spawn", "lightning-fork"))
    # Each value tells which process has recorded it: its rank, or its pid.
    by_value, values = Counter[tuple[str, float]](), Counter[tuple[str, float]]()
    for (_, metric, number), times in found.recorded.items():
        by_value[metric, number] += times
    for (_, metric, number), times in found.stored.items():
        values[metric, number] += times
    assert values <= by_value
    assert (by_value - values).total() == launcher.helpers
    for rank in (0, 1):
        assert +Counter({key: times for key, times in found.stored.items() if key[0] == rank}) <= found.recorded
    assert sum(times for (rank, *_), times in found.stored.items() if rank is None) == launcher.rankless
    assert found.lost == (f"{launcher.helpers} points: helper {launcher.helpers}" if launcher.helpers else "none lost")
    assert found.said.count("recorded in a helper process") == 2 * bool(launcher.helpers)  # and explained
    assert sorted(each.role for each in others_of(found)) == sorted(launcher.others)
    of_ranks = [each.resource for each in found.processes if each.rank in (0, 1)]
    assert [(each["dl.rank"], each["dl.world_size"]) for each in of_ranks] == [(0, 2), (1, 2)]
    if launcher.places:
        assert [each["dl.local_rank"] for each in of_ranks] == [0, 1]
    assert row(launcher, found) in PAGE.read_text(encoding="utf-8")


def test_the_page_has_a_row_for_each_launcher() -> None:
    """docs/launchers.md has the launchers that are tested, and no other."""
    rows = re.findall(r"^\| (.+?) \| `", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [launcher.title for launcher in LAUNCHERS.values()]


def needs_its_library(name: str) -> None:
    """Skip the test, or let it fail under CI, where the library of a launcher is not installed."""
    wanted = next((library for launcher, library in NEEDED.items() if name.startswith(launcher)), "tachograph")
    try:
        distribution(wanted)
    except PackageNotFoundError:
        reason = f"NOT TESTED: {wanted} is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.mark.long
def test_a_launcher_that_leaves_the_rank_to_torch(tmp_path: Path) -> None:
    """With LOCAL_RANK alone the first values wait for the rank; of a process that joins no group they have none."""
    program = """
        import os, subprocess, sys, time
        import torch.distributed as dist
        import tachograph
        if len(sys.argv) == 1:
            given = {**os.environ, "LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}
            started = [subprocess.Popen([sys.executable, __file__, how], env=given) for how in ("joins", "never")]
            sys.exit(any([each.wait() for each in started]))
        tachograph.put_metric(sys.argv[1], 1.0, "train")
        time.sleep(1.5)
        if sys.argv[1] == "joins":
            dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('alone')}", rank=0, world_size=1)
    """
    done, _ = job(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "joins") == [(0, 1.0)]
    assert stored(tmp_path, "never") == [(None, 1.0)]


def test_workers_of_a_data_loader_are_helpers(tmp_path: Path) -> None:
    """What they record is no rank's: it is counted, for all of them, and said once; nothing else is lost."""
    program = """
        import os
        import torch, tachograph
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Dataset

        class Items(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, place):
                tachograph.put_metric("decoded", float(place), "data")
                return torch.zeros(1)

        if __name__ == "__main__":
            dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('alone')}", rank=0, world_size=1)
            for method in ("fork", "spawn", "forkserver"):
                for _ in DataLoader(Items(), num_workers=2, multiprocessing_context=method):
                    tachograph.put_metric("step", 1.0, "train")
    """
    done, _ = job(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "step") == [(0, 1.0)] * 24
    assert re.search(r": recorded 24 points, lost: 24 points: helper 24; see it", done.stderr)
    assert done.stderr.count("recorded in a helper process") == 2  # said once, and explained at the end
    assert re.search(
        r"^tachograph: 4 values were recorded in a helper process \(program, pid \d+\)", done.stderr, re.MULTILINE
    )


def test_a_start_before_the_rank_is_known(tmp_path: Path) -> None:
    """``start()`` takes the rank once the process joins: on its page, in what it sends, with one run id for all."""
    program = """
        import os, sys, urllib.request
        import torch.distributed as dist, torch.multiprocessing as mp
        import tachograph

        def work(rank, path):
            pipeline = tachograph.start(
                metrics=["prometheus", "jsonl"], logs="jsonl", jsonl=f"rank-{rank}.jsonl", prometheus_port=0
            )
            tachograph.Metric("loss").record(rank, at=0)
            dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
            page = urllib.request.urlopen(pipeline.metrics_url).read().decode()
            assert f'loss{{dl_rank="{rank}"' in page, page
            dist.barrier()

        if __name__ == "__main__":
            mp.spawn(work, args=(os.path.abspath("meeting"),), nprocs=2)
    """
    done = subprocess.run(
        [sys.executable, str(write(tmp_path, program))],
        cwd=tmp_path,
        env=environment(tmp_path, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_ids = set()
    for rank in range(2):
        path = tmp_path / f"rank-{rank}.jsonl"
        assert [
            event["attributes"]["value"] for event in events(path) if event["eventName"] == "tachograph.metric"
        ] == [rank]
        resources = [
            {pair["key"]: value(pair["value"]) for pair in resource["resource"]["attributes"]}
            for request in requests(path)
            for resource in request.get("resourceLogs", []) + request.get("resourceMetrics", [])
        ]
        # On a busy machine some left before the rank was known.
        assert (resources[-1]["dl.rank"], resources[-1]["dl.world_size"]) == (rank, 2)
        run_ids |= {resource["dl.run.id"] for resource in resources}
    assert len(run_ids) == 1
