"""The last line of ``tachograph run`` names processes that started but never reported, and no others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launches import RUN, base, run, run_program
from programs import environment, write
from receivers import receiving
from tachograph.identity.program import StartMarks, mark_start, unmark_start
from tachograph.instrumentation.child_environment import BOOTSTRAP

pytest.importorskip("uvicorn")

NOWHERE = "TACHOGRAPH__HUB=http://127.0.0.1:9"  # in a process of a job: nothing of it reaches the hub


def last(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line."""
    return done.stderr.splitlines()[-1]


def test_a_process_of_which_nothing_arrives(tmp_path: Path) -> None:
    """The last line names it, and says how much it could not deliver instead of "none lost"."""
    program = write(tmp_path, "import tachograph\ntachograph.put_metric('loss', 1.0)")
    done = run(tmp_path, "env", NOWHERE, sys.executable, str(program))
    assert done.returncode == 0
    known = r"tachograph: finished: recorded 0 points; program \(pid \d+\) started but never reported; "
    undelivered = r"program \(pid \d+\) ended with \d undelivered items; see it again "
    assert re.match(known + undelivered, last(done))


def test_a_process_that_is_killed_at_once(tmp_path: Path) -> None:
    """It is either lost, or has never reported: in no case is it passed over."""
    done = run_program(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 137
    assert ", none lost, as far as known; " in last(done)
    assert re.search(r"program \(pid \d+\) started but never reported|the process was lost", last(done))


def test_a_process_whose_telemetry_cannot_begin(tmp_path: Path) -> None:
    """A wrong setting, or an interpreter in which Tachograph does not load, is a process that never reported."""
    program = write(tmp_path, "print('ran')", "wrong.py")
    (tmp_path / "own" / "tachograph").mkdir(parents=True)
    (tmp_path / "own" / "tachograph" / "__init__.py").write_text("raise ImportError('not this one')")
    for reason in ("TACHOGRAPH__INTERVAL=never", f"PYTHONPATH={BOOTSTRAP}{os.pathsep}{tmp_path / 'own'}"):
        done = run(tmp_path, "env", reason, sys.executable, str(program))
        assert done.stdout == "ran\n"
        assert re.search(r"; wrong\.py \(pid \d+\) started but never reported; ", last(done))


def test_ranks_are_named_by_their_rank(tmp_path: Path) -> None:
    """Of many the first five are named, the others counted; those that reported are not among them."""
    program = """
        import os, subprocess, sys, tachograph
        if len(sys.argv) == 1:
            code, wrong = [sys.executable, __file__, "rank"], {"TACHOGRAPH__INTERVAL": "never"}
            of_each = [{**os.environ, "RANK": str(n), **(wrong if n != 3 else {})} for n in range(8)]
            ranks = [subprocess.Popen(code, env=environ) for environ in of_each]
            sys.exit(any([rank.wait() for rank in ranks]))
        tachograph.put_metric("step.success", 1)
    """
    done = run_program(tmp_path, program, timeout=120)
    assert done.returncode == 0
    named = re.search(r"; (rank .*) and 2 more started but never reported; ", last(done))
    assert named is not None
    ranks = re.findall(r"rank (\d) \(pid \d+\)", named[1])
    assert len(ranks) == len(set(ranks)) == 5
    assert "3" not in ranks


QUIET = {
    "no Python program": ["true"],
    "an errand": [sys.executable, "-m", "ensurepip", "--version"],
    "telemetry switched off": ["env", "OTEL_SDK_DISABLED=true", sys.executable, "-c", "pass"],
    "no site": [sys.executable, "-I", "-S", "-c", "pass"],
    "code": [sys.executable, "-c", "pass"],
}


@pytest.mark.parametrize("what", QUIET)
def test_what_is_no_loss_is_not_called_one(tmp_path: Path, what: str) -> None:
    """A job that is no Python program, or wants no telemetry, recorded nothing, and nothing is missing."""
    done = run(tmp_path, *QUIET[what])
    assert done.returncode == 0
    assert " recorded 0 points, none lost; see it again " in last(done)


def test_helpers_are_not_missed(tmp_path: Path) -> None:
    """Children of multiprocessing that never become ranks, forks and helpers of a rank need not report."""
    program = """
        import multiprocessing, os, subprocess, sys
        def work(n): os._exit(0)
        if __name__ == "__main__":
            import tachograph
            tachograph.put_metric("loss", 1.0)
            tachograph.start().flush(10)
            for method in ("spawn", "fork", "forkserver"):
                child = multiprocessing.get_context(method).Process(target=work, args=(1,))
                child.start()
                child.join()
            subprocess.run([sys.executable, "-c", "print(1)"])
            subprocess.run([sys.executable, __file__.replace("program", "helper")])
    """
    write(tmp_path, "import os; os._exit(0)", "helper.py")
    done = run_program(tmp_path, program, RANK="0")
    assert done.returncode == 0, done.stderr
    assert "never reported" not in last(done)


def test_a_program_that_becomes_another(tmp_path: Path) -> None:
    """After exec the process has the same pid: it reports once, and is not missed."""
    write(tmp_path, "import tachograph\ntachograph.put_metric('loss', 1.0)", "second.py")
    done = run_program(tmp_path, "import os, sys\nos.execv(sys.executable, [sys.executable, 'second.py'])")
    assert " recorded 1 point, none lost; see it again " in last(done)


def test_a_hub_that_began_anew_has_forgotten_nobody(tmp_path: Path) -> None:
    """Those that had reported to the hub before it died are not missed by the next one."""
    program = """
        import os, signal, subprocess, sys, time, tachograph
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, __file__, "child"], check=True)  # it has ended, and has reported
            words = ["pgrep", "-P", str(os.getppid()), "-f", "hub --run-id"]
            os.kill(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout), signal.SIGKILL)
            time.sleep(4)
        tachograph.put_metric("step.success", 1)
    """
    done = run_program(tmp_path, program, options=("--run-id", "r"))
    assert done.returncode == 0, done.stderr
    assert ": recorded " in last(done)
    assert "never reported" not in last(done)


def test_no_folder_is_left(tmp_path: Path) -> None:
    """The marks are gone after the job, and also where ``tachograph run`` itself was killed."""
    more = {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    seen = run(tmp_path, "sh", "-c", 'ls -ld "$TACHOGRAPH__STARTED"', **more)
    assert seen.stdout.startswith("drwx------")
    assert list((tmp_path / "tmp").iterdir()) == []
    with subprocess.Popen(
        [*RUN, "--", "sleep", "5"], env=environment(tmp_path, **more), stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stderr is not None
        job.stderr.readline()
        assert list((tmp_path / "tmp").iterdir()) != []
        job.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while list((tmp_path / "tmp").iterdir()) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_where_no_folder_can_be_made_the_job_runs(tmp_path: Path) -> None:
    """Without room for marks nobody is missed, and all else is as it was."""
    nowhere = "import sys, tempfile; tempfile.tempdir = '/proc/nowhere'"
    code = f"{nowhere}; from tachograph.cli import main; sys.exit(main())"
    program = write(tmp_path, "import tachograph\ntachograph.put_metric('loss', 1.0)")
    line = [sys.executable, "-c", code, "run", "--", sys.executable, str(program)]
    done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert " recorded 1 point, none lost; " in last(done)


def test_an_endpoint_of_ones_own_gets_no_marks(tmp_path: Path) -> None:
    """With --no-hub there is no hub that could tell who has reported: nothing is noted, and nothing said."""
    with receiving() as receiver:
        done = run(
            tmp_path, "env", options=("--no-hub", "--endpoint", base(receiver)), TACHOGRAPH__STARTED=str(tmp_path)
        )
    assert "TACHOGRAPH__STARTED" not in done.stdout


@pytest.mark.torch
def test_a_rank_under_torchrun(tmp_path: Path) -> None:
    """A rank of a real torchrun of which nothing arrives is named; its agent and the other rank have reported."""
    pytest.importorskip("torch")
    program = write(tmp_path, "import tachograph\ntachograph.put_metric('loss', 1.0)")
    code = f'if test "$RANK" = 1; then export {NOWHERE}; fi; exec {sys.executable} {program}'
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", code]
    done = run(tmp_path, sys.executable, *launch, timeout=170)
    assert done.returncode == 0, done.stderr
    assert re.search(r"; rank 1 \(pid \d+\) started but never reported; ", last(done))
    assert " was lost" not in last(done)


@given(st.dictionaries(st.integers(1, 2**22), st.tuples(st.none() | st.integers(0, 2**40), st.text(max_size=99))))
def test_what_was_marked_is_what_is_left(marks: dict[int, tuple[int | None, str]]) -> None:
    """All that have not been heard are counted, the first of them described in printable words."""
    with tempfile.TemporaryDirectory() as folder:
        found = StartMarks(Path(folder))
        for pid, (rank, program) in marks.items():
            mark_start({"TACHOGRAPH__STARTED": folder}, rank, program)
            Path(folder, str(os.getpid())).rename(Path(folder, str(pid)))
        heard = {pid for pid in marks if pid % 2}
        for pid in heard:
            found.heard(pid)
            found.heard(pid)
        left = found.left()
        unmark_start({"TACHOGRAPH__STARTED": folder})
    assert left["processes"] == len(marks) - len(heard)
    for each in left["first"]:
        assert each["rank"] == marks[each["pid"]][0]
        assert each["program"].isprintable()
        assert len(each["program"]) <= 80
