"""Zero code: every process of a job is recorded, and none of them behaves differently."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launches import base, ends, events, metrics, run, run_program
from places import ROOT
from programs import environment, exported, number, value, write
from receivers import Receiver, receiving

BOOTSTRAP = ROOT / "src" / "tachograph" / "instrumentation" / "bootstrap"


def to(receiver: Receiver, *more: str) -> tuple[str, ...]:
    """Return the options of a quiet run that sends to a receiver."""
    return ("--quiet", "--no-hub", "--endpoint", base(receiver), *more)


def test_a_program_that_knows_nothing_of_it_is_recorded(tmp_path: Path) -> None:
    """A script that never calls ``start()`` is delivered from start to end, and says both; no provider is set."""
    program = """
        import sys, time, tachograph
        from opentelemetry import metrics, trace
        from opentelemetry._logs import get_logger_provider
        tachograph.put_metric("loss", 0.5, "train")
        made = metrics.get_meter_provider(), trace.get_tracer_provider(), get_logger_provider()
        print(sys.argv[1:], *(type(provider).__name__ for provider in made))
        print([path for path in sys.path if "bootstrap" in path])
        sys.exit(3)
    """
    with receiving() as receiver:
        done = run_program(tmp_path, program, "a", "b c", options=to(receiver))
        (loss,) = [point for point in metrics(receiver) if point.name == "loss"]
        names = [event.name for event in events(receiver)]
    assert done.returncode == 3
    assert done.stdout == "['a', 'b c'] _ProxyMeterProvider ProxyTracerProvider ProxyLoggerProvider\n[]\n"
    assert done.stderr == ""
    assert loss.value == 0.5
    assert loss.resource["service.name"] == "program"
    assert names == ["tachograph.process.start", "tachograph.process.end"]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [("pass", "exit"), ("sys.exit(3)", "exit"), ("1 / 0", "exception"), ("os.kill(os.getpid(), 15)", "sigterm")],
)
def test_the_end_says_its_reason(tmp_path: Path, ending: str, reason: str) -> None:
    """The last event of a process is how it ended, and what it recorded before has arrived."""
    program = f"import os, sys, time, tachograph\ntachograph.put_metric('loss', 0.5)\n{ending}\ntime.sleep(0.5)"
    with receiving() as receiver:
        run_program(tmp_path, program, options=to(receiver))
        assert [point.value for point in metrics(receiver) if point.name == "loss"][-1] == 0.5
        assert ends(receiver) == [reason]


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_is_cut_off_says_no_end(tmp_path: Path, how: str) -> None:
    """Who is killed has no last word, but what was recorded an interval before has arrived."""
    program = f"import os, time, tachograph\ntachograph.put_metric('loss', 0.5)\ntime.sleep(1.5)\n{how}"
    with receiving() as receiver:
        run_program(tmp_path, program, options=to(receiver))
        assert "loss" in [point.name for point in metrics(receiver)]
        assert ends(receiver) == []


def test_helpers_of_a_rank_and_errands_record_nothing(tmp_path: Path) -> None:
    """What a rank starts inherits RANK, and what a program starts with ``-c`` is an errand: neither loads anything."""
    program = """
        import os, subprocess, sys
        errand = "import sys, tachograph; tachograph.put_metric('no', 1); print('opentelemetry.sdk' in sys.modules)"
        with open("helper.py", "w") as file:
            file.write(errand)
        for command in ["-c", errand], ["helper.py"], ["-uWignore", "-c", errand]:
            print(subprocess.check_output([sys.executable, *command], text=True), end="")
        print(os.environ["TACHOGRAPH__OWNER"] == f"3:0:{os.getpid()}")
    """
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=to(receiver), RANK="3")
        found = metrics(receiver)
        assert len(ends(receiver)) == 1
    assert done.stdout == "False\nFalse\nFalse\nTrue\n"
    assert "no" not in [point.name for point in found]
    assert {point.resource["dl.rank"] for point in found} <= {3}


def test_a_script_that_a_launcher_starts_is_recorded_by_its_name(tmp_path: Path) -> None:
    """Where a launcher starts a script without RANK, both are there: the script has its name as its role."""
    write(tmp_path, "import tachograph\ntachograph.put_metric('inner', 1)", "train.py")
    program = "import subprocess, sys\nsubprocess.check_call([sys.executable, 'train.py'])"
    with receiving() as receiver:
        run_program(tmp_path, program, options=to(receiver))
        (inner,) = [point for point in metrics(receiver) if point.name == "inner"]
        assert inner.resource["dl.role"] == "train"
        assert [event.resource.get("dl.role") for event in events(receiver) if "end" in event.name] == ["train", None]


def test_code_behind_c_that_is_the_job_itself_is_recorded(tmp_path: Path) -> None:
    """``tachograph run -- python -c …`` is no errand."""
    with receiving() as receiver:
        code = "import tachograph; tachograph.put_metric('loss', 2.0)"
        run(tmp_path, sys.executable, "-c", code, options=to(receiver))
        assert [point.value for point in metrics(receiver) if point.name == "loss"] == [2.0]


def test_records_of_a_helper_are_counted(tmp_path: Path) -> None:
    """A warning that a helper logs is not recorded, which is said with the values of it."""
    program = """
        import logging, multiprocessing
        import tachograph

        def work(both):
            logging.warning("in a helper")
            if both:
                tachograph.put_metric("helped", 1.0, "train")

        if __name__ == "__main__":
            logging.warning("in the program")
            for both in (True, False):
                child = multiprocessing.get_context("fork").Process(target=work, args=[both])
                child.start()
                child.join()
    """
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=to(receiver))
    assert done.stderr.count("1 value and 1 log record were recorded in a helper process") == 1
    assert done.stderr.count("1 log record was recorded in a helper process") == 1


def test_a_rank_that_learns_who_it_is_later_carries_it(tmp_path: Path) -> None:
    """A spawned child that is told its RANK while it runs has it on all of its data; of another one that is said."""
    program = """
        import multiprocessing, os, sys, time
        import tachograph

        def work(rank):
            if rank is not None:
                os.environ["RANK"] = str(rank)
            tachograph.put_metric("late", 1.0, "train")
            time.sleep(1.6)

        if __name__ == "__main__":
            children = [multiprocessing.get_context("spawn").Process(target=work, args=[rank]) for rank in (0, 1, None)]
            for child in children:
                child.start()
            for child in children:
                child.join()
    """
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=to(receiver))
        found = metrics(receiver)
        said = [(event.resource.get("dl.rank"), event.name) for event in events(receiver)]
    assert done.stdout == ""
    assert re.fullmatch(r"tachograph: 1 value was recorded in a helper process \(program, pid \d+\), .*\n", done.stderr)
    assert {point.resource.get("dl.rank") for point in found if point.name == "late"} == {0, 1}
    assert {point.resource["service.name"] for point in found} == {"program"}
    assert sorted(said, key=str) == [
        (rank, f"tachograph.process.{moment}") for rank in (0, 1, None) for moment in ("end", "start")
    ]


@pytest.mark.parametrize(
    ("method", "rank", "delivers"),
    [("fork", "", True), ("spawn", "", True), ("forkserver", "", False), ("forkserver", "0", True)],
)
def test_children_deliver_where_they_are_asked_to(tmp_path: Path, method: str, rank: str, delivers: bool) -> None:
    """With ``TACHOGRAPH_HELPERS=true`` what a child of multiprocessing records arrives, whether there are ranks or not.

    A fork server is started as ``python -c``, which is a process of the job only where it has a rank.
    """
    program = f"""
        import multiprocessing
        import tachograph

        def work():
            tachograph.put_metric("step.success", 5, attributes={{"who": "child"}})

        if __name__ == "__main__":
            tachograph.put_metric("step.success", 1, attributes={{"who": "parent"}})
            child = multiprocessing.get_context({method!r}).Process(target=work)
            child.start()
            child.join()
    """
    more = {"TACHOGRAPH_HELPERS": "true", **({"RANK": rank} if rank else {})}
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=to(receiver), **more)
        found = {(point.attributes["who"], point.value) for point in metrics(receiver) if point.name == "step.success"}
    assert (done.returncode, done.stderr) == (0, "")
    assert found == {("parent", 1), *([("child", 5)] if delivers else [])}


OWN_PROVIDER = """
    import time, tachograph
    import tachograph.pipeline.lifecycle, tachograph.exporters.external_provider  # which take seconds on a busy machine
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader

    class Printing(MetricExporter):
        def export(self, data, timeout_millis=0, **more):
            found = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
            print(round(time.monotonic() - began, 1), *sorted(found - {"tachograph.export.duration"}), flush=True)
            return MetricExportResult.SUCCESS
        def force_flush(self, timeout_millis=0):
            return True
        def shutdown(self, timeout_millis=0, **more):
            print("shut down", flush=True)

    time.sleep(1.2)
    began = time.monotonic()
    mine = MeterProvider([PeriodicExportingMetricReader(Printing(), export_interval_millis=1000)])
    metrics.set_meter_provider(mine)
    assert metrics.get_meter_provider() is mine
    calls = []
    def observe(options):
        calls.append(1)
        return [metrics.Observation(len(calls))]
    metrics.get_meter("m").create_observable_gauge("observed", [observe])
    metrics.get_meter("m").create_counter("theirs").add(1)
    tachograph.put_metric("ours", 0.5, "train")
    time.sleep(2.4)
    print("observed", len(calls), flush=True)
"""


def test_a_provider_of_the_programs_own_stays_as_it_is(tmp_path: Path) -> None:
    """Same provider, same interval, as many callbacks and exports as without us; what we record is there as well."""
    alone = subprocess.run(
        [sys.executable, str(write(tmp_path, OWN_PROVIDER))],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    with receiving() as receiver:
        done = run_program(tmp_path, OWN_PROVIDER, options=to(receiver))
        assert [point.value for point in metrics(receiver) if point.name == "ours"][-1] == 0.5
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert [line.split()[0].partition(".")[0] for line in lines] == [
        line.split()[0].partition(".")[0] for line in alone
    ]
    assert [line for line in lines if line.startswith("observed")] == ["observed 2"]
    assert lines[-2].split()[1:] == ["observed", "ours", "theirs"]
    assert lines[-1] == "shut down"


def test_start_in_the_program_adds_its_destinations(tmp_path: Path) -> None:
    """``start()`` delivers where it says, too; ``shutdown()`` takes off just that, and wrong settings raise nothing."""
    program = """
        import os, tachograph
        from tachograph.monitor import Event, log_event
        import datetime
        tachograph.start(metrics="nonsense")
        tachograph.start(nonsense=1)
        first = tachograph.start(metrics="jsonl", logs="jsonl", jsonl="out.jsonl")
        assert tachograph.start(metrics="jsonl", logs="jsonl", jsonl="out.jsonl") is first
        second = tachograph.start(metrics="prometheus")
        tachograph.put_metric("loss", 0.5, "train")
        log_event(Event("told", datetime.datetime.now(), {}))
        assert first.flush()
        tachograph.shutdown()
        assert not first.running and not second.running
        tachograph.put_metric("loss", 0.25, "train")
        log_event(Event("told later", datetime.datetime.now(), {}))
    """
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=to(receiver))
        assert [point.value for point in metrics(receiver) if point.name == "loss"][-1] == 0.25
        assert [event.name for event in events(receiver)][1:] == ["told", "told later", "tachograph.process.end"]
    assert done.returncode == 0
    first, second = done.stderr.splitlines()
    assert "start() failed, continuing without telemetry export" in first
    assert "'nonsense'" in first
    assert "start() failed, continuing without telemetry export" in second
    assert number(exported(tmp_path / "out.jsonl")["train", "loss"]) == 0.5


@pytest.mark.timing
def test_start_with_the_endpoint_that_is_served_already_sends_nothing_twice(tmp_path: Path) -> None:
    """A script that names the same OTLP endpoint by itself has its points there once an interval, and not twice."""
    program = """
        import tachograph
        tachograph.put_metric("loss", 0.5, "train")
        assert tachograph.start(metrics="otlp", logs="otlp").flush()
    """
    with receiving() as receiver:
        run_program(tmp_path, program, options=("--quiet",), OTEL_EXPORTER_OTLP_ENDPOINT=base(receiver))
        sent = [point.value for point in metrics(receiver) if point.name == "loss"]
        assert sent == [0.5] * 3  # by flush(), at the end of what start() returned, and at that of the process


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_SDK_DISABLED"])
def test_a_wrong_setting_is_one_line_and_the_program_goes_on(tmp_path: Path, variable: str) -> None:
    """A variable that is wrong costs the telemetry, and nothing else."""
    with receiving() as receiver:
        done = run_program(tmp_path, "print('done')", options=to(receiver), **{variable: "maybe"})
        assert receiver.requests == []
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert len(done.stderr.splitlines()) == 1
    assert f"{variable} is 'maybe'" in done.stderr


def test_otel_sdk_disabled_is_heeded(tmp_path: Path) -> None:
    """Who has switched OpenTelemetry off gets none of it."""
    with receiving() as receiver:
        run_program(
            tmp_path, "import tachograph; tachograph.put_metric('a', 1)", options=to(receiver), OTEL_SDK_DISABLED="true"
        )
        assert receiver.requests == []


@pytest.mark.timing
def test_a_dead_endpoint_adds_a_second_at_most(tmp_path: Path) -> None:
    """Where nobody listens, the job ends within a second of when it would have."""
    program = """
        import os, time, tachograph
        for number in range(100):
            tachograph.put_metric(f"loss{number}", 0.5)
        time.sleep(1.2)
        with open("ended", "w") as file:
            file.write(str(time.time()))
    """
    done = run_program(tmp_path, program, options=("--quiet", "--no-hub", "--endpoint", "http://127.0.0.1:9"))
    assert done.returncode == 0
    assert time.time() - float((tmp_path / "ended").read_text()) < 1.5  # half a second for the interpreters themselves


def test_random_numbers_stay_the_same(tmp_path: Path) -> None:
    """A seeded program draws the same numbers with us and without."""
    program = """
        import hashlib, pickle, random, time, numpy, tachograph
        print(hashlib.sha256(pickle.dumps(numpy.random.get_state()[0])).hexdigest())
        random.seed(7)
        numpy.random.seed(7)
        for number in range(50):
            tachograph.put_metric("loss", random.random())
            time.sleep(0.03)
        print(random.random(), numpy.random.rand(), hashlib.sha256(repr(random.getstate()).encode()).hexdigest())
    """
    alone = subprocess.run(
        [sys.executable, str(write(tmp_path, program))],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=to(receiver))
    assert done.stdout == alone.stdout


@pytest.mark.parametrize("flags", [(), ("-I",)])
def test_the_next_sitecustomize_runs_as_it_would(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Another ``sitecustomize`` on the path is imported under its name, and not where Python ignores the path."""
    (tmp_path / "site").mkdir()
    write(tmp_path / "site", "value = __name__", "sitecustomize.py")
    command = [sys.executable, *flags, "-c", "import sys; print(getattr(sys.modules.get('sitecustomize'), 'value', 0))"]
    with receiving() as receiver:
        done = run(tmp_path, *command, options=to(receiver), PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout == ("0\n" if flags else "sitecustomize\n")
    assert done.stderr == ""


def test_a_next_sitecustomize_that_fails_fails_as_it_would(tmp_path: Path) -> None:
    """Python's own message about another ``sitecustomize`` that raises is the same, and the program runs."""
    (tmp_path / "site").mkdir()
    write(tmp_path / "site", "raise ValueError('theirs')", "sitecustomize.py")
    done = run(
        tmp_path,
        sys.executable,
        "-c",
        "print('done')",
        options=("--quiet", "--no-hub", "--endpoint", "http://127.0.0.1:9"),
        PYTHONPATH=str(tmp_path / "site"),
        OTEL_SDK_DISABLED="true",
    )
    assert done.stdout == "done\n"
    assert "ValueError: theirs" in done.stderr


def test_an_errand_pays_for_no_imports(tmp_path: Path) -> None:
    """In a process that only helps, our folder on the path imports no module of ours and none of OpenTelemetry's."""
    code = "import sys; print([name for name in sys.modules if name.startswith(('tachograph', 'opentelemetry'))])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path, PYTHONPATH=str(BOOTSTRAP), TACHOGRAPH__HUB="http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("wrapped", [False, True])
def test_opentelemetry_instrument_works_too(tmp_path: Path, wrapped: bool) -> None:
    """Plain ``opentelemetry-instrument``, and the same inside of ``tachograph run``, deliver and end once."""
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable]
    program = "import tachograph\ntachograph.put_metric('loss', 0.5)\ntachograph.start(metrics='none', traces='none')"
    command.append(str(write(tmp_path, program)))
    with receiving() as receiver:
        if wrapped:
            done = run(tmp_path, *command, options=to(receiver))
        else:
            done = subprocess.run(
                command,
                env=environment(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=base(receiver), OTEL_METRICS_EXPORTER="otlp"),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert (done.returncode, done.stderr) == (0, "")
        assert ends(receiver) == ["exit"]
        assert "loss" in [point.name for point in metrics(receiver)]


@pytest.mark.torch
@pytest.mark.usefixtures("untraced")  # torch, imported in three processes
def test_every_process_of_a_torchrun_job_is_there(tmp_path: Path) -> None:
    """Both ranks and the agent of an unmodified job arrive under one run, each with its place, and end well."""
    pytest.importorskip("torch")
    program = """
        import os, sys, time, tachograph
        import torch.distributed as dist
        dist.init_process_group("gloo")
        tachograph.put_metric("loss", float(dist.get_rank()), "train")
        dist.barrier()
        dist.destroy_process_group()
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with receiving() as receiver:
        done = run(
            tmp_path, *command, str(write(tmp_path, program)), options=to(receiver, "--run-id", "r"), timeout=120
        )
        assert done.returncode == 0, done.stderr
        found = metrics(receiver)
        assert ends(receiver) == ["exit"] * 3
    losses = {point.resource["dl.rank"]: point.value for point in found if point.name == "loss"}
    assert losses == {0: 0.0, 1: 1.0}
    assert {point.resource["dl.run.id"] for point in found} == {"r"}
    assert {point.resource["service.name"] for point in found} == {"program"}
    assert "agent" in {point.resource.get("dl.role") for point in found}


@pytest.mark.torch
@pytest.mark.usefixtures("untraced")  # signals
def test_ranks_that_torchrun_terminates_lose_nothing(tmp_path: Path) -> None:
    """When a peer crashes, the others lose nothing, the agent says its last words, and the exit code is the job's."""
    pytest.importorskip("torch")
    program = """
        import os, time, tachograph
        if os.environ["RANK"] == "1":
            while not os.path.exists("recorded"):
                time.sleep(0.05)
            os._exit(7)
        time.sleep(1.2)
        tachograph.put_metric("last", 42.0, "train")
        open("recorded", "w").close()
        time.sleep(60)
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with receiving() as receiver:
        done = run(tmp_path, *command, str(write(tmp_path, program)), options=to(receiver), timeout=120)
        assert done.returncode == 1
        assert sorted(ends(receiver)) == ["exception", "sigterm"]
        assert 0 in {point.resource.get("dl.rank") for point in metrics(receiver) if point.name == "last"}


def test_the_run_has_one_id(tmp_path: Path) -> None:
    """The id that torchrun is given with ``--rdzv-id`` is the run's; ``--run-id`` and TACHOGRAPH_RUN go before it."""
    from tachograph.identity.run_id import run_id_of_command

    command = ["torchrun", "--rdzv_id=abc", "train.py"]
    assert run_id_of_command({}, command) == "abc"
    assert run_id_of_command({}, ["torchrun", "--rdzv-id", "x y", "train.py"]) == "x y"
    assert run_id_of_command({"TACHOGRAPH_RUN": "t", "SLURM_JOB_ID": "1"}, command) == "t"
    assert run_id_of_command({"SLURM_JOB_ID": "1"}, command) == "abc"
    assert run_id_of_command({"TACHOGRAPH_RUN": "t"}, command, explicit="e") == "e"
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2"}
    assert run_id_of_command(step, ["torchrun", "--rdzv-id", "none", "train.py"]) == "1.2"
    assert run_id_of_command({}, ["torchrun", "--nproc-per-node", "2", "train.py"]).startswith("train-20")
    assert value({"intValue": "1"}) == 1
    assert tmp_path.exists()


@pytest.mark.long
@pytest.mark.usefixtures("untraced")  # torch, imported twice under a tracer
def test_wait_counters_are_measured_where_asked_for(tmp_path: Path) -> None:
    """With ``--wait-counters`` a WaitCounter that the script opens is a histogram; without, there is none."""
    pytest.importorskip("torch")
    program = """
        import torch.monitor
        with torch.monitor._WaitCounter("pytorch.wait_counter.test").guard():
            pass
    """
    found = {}
    for options in ((), ("--wait-counters",)):
        with receiving() as receiver:
            assert run_program(tmp_path, program, options=to(receiver, *options)).returncode == 0
            found[options] = b"torch.wait.duration" in b"".join(body for _, _, body in receiver.requests)
    assert found == {(): False, ("--wait-counters",): True}


def test_other_instrumentors_load_only_where_asked_for(tmp_path: Path) -> None:
    """``--instrument all`` loads the instrumentors of other packages, once; without it none of them is touched."""
    package = tmp_path / "packages"
    (package / "other-1.0.dist-info").mkdir(parents=True)
    (package / "other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (package / "other-1.0.dist-info" / "entry_points.txt").write_text(
        "[opentelemetry_instrumentor]\nother = other_instrumentor:Other\n"
    )
    (package / "other_instrumentor.py").write_text(
        "from opentelemetry.instrumentation.instrumentor import BaseInstrumentor\n"
        "class Other(BaseInstrumentor):\n"
        "    def instrumentation_dependencies(self): return ()\n"
        "    def _instrument(self, **kwargs): print('instrumented')\n"
        "    def _uninstrument(self, **kwargs): pass\n"
    )
    printed = {}
    for choice in ("own", "all"):
        with receiving() as receiver:
            options = to(receiver, "--instrument", choice)
            done = run_program(tmp_path, "print('job')", options=options, PYTHONPATH=str(package))
            printed[choice] = done.stdout
    assert printed == {"own": "job\n", "all": "instrumented\njob\n"}


@pytest.mark.timing
@pytest.mark.long
@pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), 15)"])
def test_all_that_start_adds_shares_the_end(tmp_path: Path, ending: str) -> None:
    """Several destinations that take what comes, but slowly, add ten seconds to the end together, not each."""
    program = f"""
        import os, sys, time, tachograph
        for url in sys.argv[1:]:
            tachograph.start(metrics="otlp", traces="none", logs="none", endpoint=url, interval=600)
        for series in range(1900):
            for name in range(20):
                tachograph.put_metric(f"loss.{{name}}", 0.5, attributes={{"series": series}})
        print(os.times().elapsed, flush=True)
        {ending}
    """
    with receiving() as receiver, receiving() as one, receiving() as two, receiving() as three:
        for slow in (one, two, three):
            slow.delay = 0.4
        urls = [base(slow) for slow in (one, two, three)]
        done = run_program(tmp_path, program, *urls, options=to(receiver))
        took = os.times().elapsed - float(done.stdout)
        assert min(len(slow.requests) for slow in (one, two, three)) >= 5  # none takes the others' time
    assert took < 22  # ten, and what a busy machine needs; three times ten before


def test_an_instrumentor_that_fails_is_counted(tmp_path: Path) -> None:
    """With ``--instrument all``, one of another library that cannot be loaded is said and counted; the job goes on."""
    metadata = tmp_path / "broken-1.dist-info"
    metadata.mkdir()
    write(metadata, "Metadata-Version: 2.1\nName: broken\nVersion: 1\n", "METADATA")
    write(metadata, "[opentelemetry_instrumentor]\nbroken = no_such_module:Instrumentor\n", "entry_points.txt")
    with receiving() as receiver:
        program = "import tachograph; tachograph.put_metric('loss', 0.5)"
        done = run_program(tmp_path, program, options=to(receiver, "--instrument", "all"), PYTHONPATH=str(tmp_path))
        found = metrics(receiver)
    assert done.returncode == 0
    assert done.stderr.count("could not load instrumentor broken") == 1
    errors = [point for point in found if point.name == "tachograph.errors"]
    assert {point.value for point in errors if point.attributes.get("where") == "instrumentation"} == {1}
    assert [point.value for point in found if point.name == "loss"][-1] == 0.5
