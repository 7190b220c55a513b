"""``tachograph run``: the job behaves as it would by itself, and a line or three say where its telemetry is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launches import RUN, base, run, run_program
from programs import environment, write
from receivers import receiving
from tachograph import runs

NOWHERE = ("--no-hub", "--endpoint", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("true",), 0),
        (("there-is-no-such-program",), 127),
        (("/",), 126),
    ],
)
def test_the_exit_code_is_the_jobs(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    """It ends with the job's code: 128 + n for signal n, and 126 or 127 where the job could not be started."""
    assert run(tmp_path, *command, options=NOWHERE).returncode == code


def test_a_job_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    """Whoever misspells the program reads so."""
    assert "there-is-no-such-program: command not found" in run(tmp_path, "there-is-no-such-program").stderr


def test_stdin_stdout_and_stderr_are_the_jobs_own(tmp_path: Path) -> None:
    """What goes in and out of the job goes through untouched, and nothing of ours is on stdout."""
    done = run(tmp_path, "sh", "-c", "cat; echo wrong >&2", options=(*NOWHERE, "--quiet"), stdin="given\n")
    assert (done.stdout, done.stderr) == ("given\n", "wrong\n")


def test_two_lines_before_and_one_after(tmp_path: Path) -> None:
    """With a hub, stderr has the page's address, the run and its place, and at the end what was recorded."""
    done = run(tmp_path, "sh", "-c", "echo job >&2", options=("--run-id", "r 1", "--store", str(tmp_path / "kept")))
    page, stored, job, recorded = done.stderr.splitlines()
    drawn = r"tachograph: live at (http://127\.0\.0\.1:\d+)/#/run/r%201 \(metrics at \1/metrics\)"
    assert re.fullmatch(drawn, page)
    assert stored.startswith(f"tachograph: run r 1, stored in {tmp_path / 'kept'}")
    assert job == "job"
    assert recorded.startswith("tachograph: finished: recorded 0 points, none lost; ")
    assert recorded.endswith(f"; see it again with 'tachograph studio --store {tmp_path / 'kept'}'")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no command given; for example: tachograph run -- "),
        (("--prot", "1", "--", "true"), "--prot"),
        (("--port", "70000", "true"), "argument --port: expected a port from 0 to 65535, not '70000'"),
        (("--bogus", "--", "true"), "unrecognized arguments: --bogus; see 'tachograph run --help'\n"),
        (("--port", "--", "true"), "argument --port: expected one argument"),
        (("--interval", "0", "true"), "--interval: expected a duration above 0, not '0'"),
        (("--interval", "x", "true"), "--interval: expected a duration such as 30s, 5m, 12h or 30d, not 'x'"),
        (("--endpoint", "ftp://x", "true"), "--endpoint is 'ftp://x'"),
        (("--no-hub", "--port", "1", "true"), "--port has no effect with --no-hub"),
        (("--run-id", " ", "true"), "--run-id must not be empty"),
        (("--prof", "train_step", "true"), "--prof: 'train_step': use package.module:function"),
    ],
)
def test_wrong_usage_is_said_and_nothing_runs(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """Wrong usage of ours is one line and exit code 2, before anything is started."""
    done = subprocess.run(
        [*RUN, *arguments], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_dashes_may_be_left_out(tmp_path: Path) -> None:
    """The first word that is no option begins the command, and its options are its own."""
    command = [*RUN, "--quiet", *NOWHERE, "sh", "-c", "exit 5", "--port"]
    assert subprocess.run(command, env=environment(tmp_path), timeout=60, check=False).returncode == 5


def test_without_a_hub_the_job_runs_all_the_same(tmp_path: Path) -> None:
    """Where the store that was named cannot be written, that is said, and the job has no telemetry."""
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "sh", "-c", "env; exit 4", options=("--store", str(tmp_path / "file" / "store")))
    assert done.returncode == 4
    assert "cannot start the hub, so the job runs without telemetry: " in done.stderr
    assert "; use --store to choose another folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "TACHOGRAPH__HUB" not in done.stdout


def test_a_home_that_cannot_be_written_costs_no_telemetry(tmp_path: Path) -> None:
    """The run is stored in the folder for temporary files, as without a home; that is said, and how to see it again."""
    (tmp_path / "home").write_text("")
    (tmp_path / "temporary").mkdir()
    surrounding = {**environment(tmp_path), "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    for name in ("TACHOGRAPH_STORE", "XDG_STATE_HOME"):
        surrounding.pop(name, None)
    program = write(tmp_path, "import tachograph\ntachograph.put_metric('loss', 0.5)")
    command = [*RUN, "--run-id", "r", "--", sys.executable, str(program)]
    done = subprocess.run(command, env=surrounding, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    place = tmp_path / "temporary" / f"tachograph-{os.getuid()}"
    first, *_, last = done.stderr.splitlines()
    assert f"(Not a directory), storing the run in {place}" in first
    assert last.endswith(f"see it again with 'tachograph studio --store {place}'")
    assert [each.name for each in runs.open("r", place).metrics()] == ["loss"]


@pytest.mark.parametrize("missing", ["uvicorn", "starlette", "h11"])
def test_in_an_incomplete_installation_no_job_is_begun(tmp_path: Path, missing: str) -> None:
    """Where a package of the hub cannot be imported, the code is 2 and a line names it; the job has not begun."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / f"{missing}.py").write_text(f"raise ImportError('no {missing} here', name={missing!r})")
    done = run(tmp_path, "touch", "ran", PYTHONPATH=str(tmp_path / "broken"))
    assert done.returncode == 2
    said = (
        f"tachograph run: cannot start the hub, so the job was not started: {missing}, a dependency of tachograph, "
        "cannot be imported: "
    )
    assert done.stderr == f"{said}no {missing} here\n"
    assert not (tmp_path / "ran").exists()


def test_the_environment_gets_ours_and_keeps_otel(tmp_path: Path) -> None:
    """The job finds TACHOGRAPH_* variables and our folder on PYTHONPATH beside its own; OTEL_* as they were."""
    options = (*NOWHERE, "--run-id", "r", "--prof", "a:b", "--prof", "c:*", "--instrument", "all", "--interval", "0.5")
    given = {"OTEL_SERVICE_NAME": "mine", "PYTHONPATH": "/own"}
    done = run(tmp_path, "env", "-0", options=options, **given)
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    given_by_us = ("TACHOGRAPH_STORE", "TACHOGRAPH_SYSTEM_METRICS")
    ours = {key: value for key, value in found.items() if key.startswith("TACHOGRAPH_") and key not in given_by_us}
    assert abs(int(ours.pop("TACHOGRAPH__START_NS")) - time.time_ns()) < 60e9
    assert ours == {
        "TACHOGRAPH__ENDPOINT": "http://127.0.0.1:9",
        "TACHOGRAPH__INTERVAL": "500",
        "TACHOGRAPH_RUN": "r",
        "TACHOGRAPH__PROF": "a:b\nc:*",
        "TACHOGRAPH__INSTRUMENT": "all",
    }
    assert {key: value for key, value in found.items() if key.startswith("OTEL_")} == {"OTEL_SERVICE_NAME": "mine"}
    folder, own = found["PYTHONPATH"].split(os.pathsep)
    assert (Path(folder) / "sitecustomize.py").exists()
    assert own == "/own"


def test_without_a_hub_an_endpoint_of_the_environment_gets_everything(tmp_path: Path) -> None:
    """With ``--no-hub`` everything goes to OTEL_EXPORTER_OTLP_ENDPOINT, and nothing is stored."""
    program = "import tachograph\ntachograph.put_metric('loss', 0.5)"
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=("--no-hub",), OTEL_EXPORTER_OTLP_ENDPOINT=base(receiver))
        assert {path for path, _, _ in receiver.requests} == {"/v1/metrics", "/v1/logs"}
    assert done.stderr.splitlines()[0] == f"tachograph: sending telemetry to {base(receiver)}"
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("way", ["option", "variable"])
def test_an_endpoints_secrets_are_not_in_the_jobs_log(tmp_path: Path, way: str) -> None:
    """User, password and query of an endpoint are sent, and not said."""
    endpoint = "http://u:hunter2@127.0.0.1:9/otlp?key=hunter3"
    if way == "option":
        done = run(tmp_path, "env", options=("--no-hub", "--endpoint", endpoint))
    else:
        done = run(tmp_path, "env", options=("--no-hub",), OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert done.stderr.splitlines()[0] == "tachograph: sending telemetry to http://127.0.0.1:9/otlp"
    assert done.stderr.splitlines()[-1].endswith("telemetry was sent to http://127.0.0.1:9/otlp")
    assert "hunter" not in done.stderr
    assert f"TACHOGRAPH__ENDPOINT={endpoint}" in done.stdout
