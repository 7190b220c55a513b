"""``torchrun --logs-specs tachograph``: agent and workers are recorded, and torchrun does what it does without."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from launches import Arrived, base, events, metrics
from programs import environment, run, write
from receivers import Receiver, receiving

pytest.importorskip("torch")

OUTPUT = "torchelastic.worker.output"
TIME_LIMIT = 120
TRAIN = """
    import os, sys
    import tachograph
    from torch.distributed.elastic.metrics import put_metric

    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"rank {rank} attempt {attempt}", getattr(sys, "theirs", None), [p for p in sys.path if "bootstrap" in p])
    print(f"rank {rank} errs", file=sys.stderr)
    tachograph.put_metric("ours", rank, "train")
    put_metric("torchs", rank, "train")
    if attempt == "0" and rank == 1 and "restart" in sys.argv:
        sys.exit(3)
"""


def torchrun(
    folder: Path, *arguments: str, specs: str = "tachograph", before: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a job of two ranks."""
    if more.pop("theirs", ""):
        write(folder, "import sys\nsys.theirs = True", "sitecustomize.py")
        more["PYTHONPATH"] = str(folder)
    command = [*before, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--logs-specs={specs}", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, OMP_NUM_THREADS="1", **more),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


def to(receiver: Receiver) -> dict[str, str]:
    """Return the variables that name a receiver as OpenTelemetry's do."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": base(receiver), "OTEL_METRICS_EXPORTER": "otlp"}


def by_rank(found: list[Arrived], name: str) -> dict[int, float]:
    """Return the last value of a metric of each rank."""
    return {point.resource["dl.rank"]: point.value for point in found if point.name == name}


@pytest.mark.parametrize("how", ["train.py", pytest.param("--run-path", marks=pytest.mark.long)])
def test_the_agent_and_every_worker_are_recorded(tmp_path: Path, how: str) -> None:
    """Values of our API and of torch's arrive from each rank, torchrun's own from the agent, all as one run.

    Workers may be programs or functions; a ``sitecustomize`` of the user's own runs, and sees a path without ours.
    """
    script = str(write(tmp_path, TRAIN, "train.py"))
    arguments = [script] if how == "train.py" else ["--run-path", script]
    with receiving() as receiver:
        done = torchrun(tmp_path, "--rdzv-id=job7", *arguments, theirs="yes", **to(receiver))
        found, told = metrics(receiver), events(receiver)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} attempt 0 True []" for rank in (0, 1)]
    assert by_rank(found, "ours") == {0: 0, 1: 1}
    assert by_rank(found, "torchs") == {0: 0, 1: 1}
    assert {point.resource["dl.run.id"] for point in [*found, *told]} == {"job7"}
    (succeeded,) = [point for point in found if point.name == "torchrun.run_success_no_retries"]
    assert succeeded.resource["dl.role"] == "agent"
    began = Counter(
        event.resource.get("dl.rank", event.resource.get("dl.role"))
        for event in told
        if event.name == "tachograph.process.start"
    )
    assert began == {"agent": 1, 0: 1, 1: 1}


def test_the_output_of_each_start_is_known(tmp_path: Path) -> None:
    """The agent tells of each rank and attempt where it writes, and there it has written."""
    script = str(write(tmp_path, TRAIN, "train.py"))
    with receiving() as receiver:
        done = torchrun(
            tmp_path, "--redirects=1:3", "--log-dir=logs", "--role=trainer", "--max-restarts=1", script, "restart",
            **to(receiver),
        )  # fmt: skip
        told = [event for event in events(receiver) if event.name == OUTPUT]
    assert done.returncode == 0, done.stderr
    assert {event.resource["dl.role"] for event in told} == {"agent"}
    files = {(event.attributes["restart_count"], event.attributes["global_rank"]): event.attributes for event in told}
    assert sorted(files) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (attempt, rank), attributes in files.items():
        assert (attributes["local_rank"], attributes["role"]) == (rank, "trainer")
        assert attributes["error_file"].endswith(f"attempt_{attempt}/{rank}/error.json")
        assert ("stdout" in attributes, "stderr" in attributes) == (rank == 1, rank == 1)  # else to a pipe
        if rank == 1:
            said = (tmp_path / attributes["stdout"]).read_text()
            assert said == f"rank 1 attempt {attempt} None []\n"
            assert "rank 1 errs" in (tmp_path / attributes["stderr"]).read_text()


def test_output_that_is_not_redirected_is_that_of_torchrun(tmp_path: Path) -> None:
    """Where a batch system gave torchrun a file, that is where a worker without one writes."""
    program = """
        import os, sys
        from tachograph.recording import journal
        from tachograph.instrumentation.logs_specs import TachographLogsSpecs
        journal.default.pin(True)
        os.dup2(os.open("slurm-1.out", os.O_CREAT | os.O_WRONLY), 1)
        os.close(2)
        TachographLogsSpecs().reify({0: {"RANK": "4"}})
        (event,) = [event for event in journal.default.drain() if event.name == "torchelastic.worker.output"]
        print({**event.attributes, "error_file": ""}, flush=True)
    """
    run(tmp_path, program, OTEL_SDK_DISABLED="false", OTEL_METRICS_EXPORTER="none")
    said = (tmp_path / "slurm-1.out").read_text()
    path = str(tmp_path / "slurm-1.out")
    assert said == f"{ {'local_rank': 0, 'global_rank': 4, 'stdout': path, 'error_file': ''} }\n"


def test_files_and_settings_are_those_of_the_default(tmp_path: Path) -> None:
    """For every choice of folder, redirects, tee and filter both classes name the same files and change as much."""
    program = """
        import itertools, os, re
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from tachograph.instrumentation.logs_specs import TachographLogsSpecs

        def outcome(kind, folder, redirects, tee, ranks):
            envs = {rank: {"RANK": str(rank), "TORCHELASTIC_RUN_ID": "r"} for rank in range(3)}
            try:
                specs = kind(folder, redirects=redirects, tee=tee, local_ranks_filter=ranks)
                found = specs.reify(envs)
            except Exception as error:
                return repr(error)
            named = re.sub(r"/r_[^/]+|torchelastic_[^/' ]+", "", f"{found} {envs} {specs.root_log_dir} {specs!r}")
            return named

        stds = [Std.NONE, Std.OUT, Std.ERR, Std.ALL, {1: Std.ALL}, {0: Std.OUT, 2: Std.ERR}]
        folders = [None, "logs", os.devnull, __file__]
        compared = 0
        for asked in itertools.product(folders, stds, stds, [None, {0}, {1, 2}]):
            theirs, ours = outcome(DefaultLogsSpecs, *asked), outcome(TachographLogsSpecs, *asked)
            assert ours == theirs, (asked, ours, theirs)
            compared += 1
        assert TachographLogsSpecs("logs", Std.ALL) == DefaultLogsSpecs("logs", Std.ALL)
        print(compared)
    """
    done = run(tmp_path, program, OTEL_SDK_DISABLED="true", TMPDIR=str(tmp_path))
    assert done.stdout == f"{4 * 6 * 6 * 3}\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--tee=3", "--local-ranks-filter=1"), ("--redirects=3", "--log-dir=logs")])
def test_torchrun_behaves_as_without(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Output, exit code and files are the same, for a job that fails in the end, too, with a collector that is away."""
    program = "import os, sys\nprint('rank', os.environ['RANK'])\nsys.exit(int(os.environ['RANK']))"
    outcomes = []
    for specs in ("default", "tachograph"):
        folder = tmp_path / specs
        folder.mkdir()
        away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_METRICS_EXPORTER": "otlp"}
        done = torchrun(folder, *flags, str(write(folder, program)), specs=specs, **away)
        found = {path.relative_to(folder).parts[2:]: path for path in (folder / "logs").rglob("*.log")}
        # stderr has our lines, too: that the collector is away
        files = {parts: path.read_text() if path.stem == "stdout" else "" for parts, path in found.items()}
        said = sorted(line for line in done.stdout.splitlines() if line)
        outcomes.append((done.returncode, said, files, "ChildFailedError" in done.stderr))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 1


def test_what_goes_wrong_with_us_is_a_line(tmp_path: Path) -> None:
    """A wrong setting, and a worker's environment that cannot be read, leave torchrun its default, and say so once."""
    program = """
        from torch.distributed.elastic.multiprocessing import Std
        from tachograph.recording import registry
        from tachograph.instrumentation.logs_specs import TachographLogsSpecs
        found = TachographLogsSpecs("logs", Std.NONE).reify({0: {"RANK": 3, "TORCHELASTIC_RUN_ID": "r"}})
        print(found.error_files[0].endswith("attempt_0/0/error.json"))
        metrics = [metric for metric in registry.default.collect() if metric.name == "tachograph.errors"]
        print([dict(point.attributes) for metric in metrics for point in metric.points])
    """
    done = run(tmp_path, program, OTEL_METRICS_EXPORTER="none")
    assert done.stdout == "True\n[{'where': 'torchelastic'}]\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert "could not record the paths of the workers' output" in done.stderr
    script = str(write(tmp_path, "print('trained')", "train.py"))
    done = torchrun(tmp_path, script, OTEL_METRICS_EXPORTER="no_such_exporter")
    assert (done.returncode, done.stdout) == (0, "trained\ntrained\n")
    assert "no_such_exporter" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("starts", [True, False])
def test_a_program_that_launches_workers_itself(tmp_path: Path, starts: bool) -> None:
    """Given to torch's API, the class records workers that are functions; a ``start()`` before it stays as it is."""
    program = f"""
        import os, sys
        import tachograph
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        def work():
            tachograph.put_metric("ours", int(os.environ["RANK"]), "train")

        if __name__ == "__main__":
            from tachograph.instrumentation.logs_specs import TachographLogsSpecs
            if {starts}:
                pipeline = tachograph.start()
            specs = TachographLogsSpecs()
            if {starts}:
                assert tachograph.start() is pipeline
            where = {{"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}}
            config = LaunchConfig(1, 1, 2, run_id="r", logs_specs=specs, **where)
            tachograph.put_metric("launcher", 1.0, "train")
            elastic_launch(config, work)()
    """
    with receiving() as receiver:
        done = run(tmp_path, program, timeout=TIME_LIMIT, OMP_NUM_THREADS="1", **to(receiver))
        found, told = metrics(receiver), Counter(event.name for event in events(receiver))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert by_rank(found, "ours") == {0: 0, 1: 1}
    assert {point.value for point in found if point.name == "launcher"} == {1.0}
    assert {point.resource["service.name"] for point in found} == {"program"}
    assert len({point.resource["dl.run.id"] for point in found}) == 1
    assert told[OUTPUT] == 2


def test_under_tachograph_run_nothing_begins_twice(tmp_path: Path) -> None:
    """Asked for in both ways, each process begins once, sends where ``run`` says, and the output is known."""
    script = str(write(tmp_path, TRAIN, "train.py"))
    with receiving() as receiver:
        run_it = (sys.executable, "-m", "tachograph", "run", "--quiet", "--no-hub", "--endpoint", base(receiver), "--")
        done = torchrun(tmp_path, script, before=run_it, OTEL_METRICS_EXPORTER="otlp")
        found, told = metrics(receiver), Counter(event.name for event in events(receiver))
    assert done.returncode == 0, done.stderr
    assert by_rank(found, "ours") == {0: 0, 1: 1}
    assert told["tachograph.process.start"] == told["tachograph.process.end"] == 3
    assert told[OUTPUT] == 2
