"""What a run is made of, noted by a real ``tachograph run``: its program, git's state, tags and notes."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import tachograph
from hubs import serving
from launches import base, run, run_program
from programs import run as run_alone
from programs import write
from receivers import receiving
from tachograph.runs.export import time_of

OPTIONS = ("--run-id", "job", "--port", "0", "--linger", "0")
PROGRAM = "import tachograph; tachograph.Metric('loss').record(0.5)"
GIT = shutil.which("git") or ""


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return its output."""
    named = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = [GIT, *named, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with a commit of one file; the store is not tracked."""
    if not GIT:
        pytest.skip("needs git")
    git(tmp_path, "init", "-q")
    (tmp_path / "tracked.py").write_text("one\n")
    git(tmp_path, "add", "tracked.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def recorded(folder: Path, *options: str, **more: str) -> tachograph.runs.Run:
    """Run a program as a job in a folder, and return its run."""
    arguments = ("--api-key", "hunter2", "--lr=3")
    done = run_program(folder, PROGRAM, *arguments, options=(*OPTIONS, *options), **more)
    assert done.returncode == 0, done.stderr
    found = tachograph.runs.open("job", folder / "store")
    assert [point.value for point in found.points("loss")][-1] == 0.5
    return found


def script(folder: Path, name: str, text: str) -> str:
    """Write a shell script, and return a PATH that has it first."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{text}\n")
    (place / name).chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}"


def test_a_run_knows_its_program(tree: Path) -> None:
    """Command line, folder, host, versions and commit are in its file, no secret is; untracked files are no change."""
    program = recorded(tree).program
    assert program["argv"] == [sys.executable, str(tree / "program.py"), "--api-key", "***", "--lr=3"]
    assert (program["cwd"], program["host"]) == (str(tree), os.uname().nodename)
    assert program["python"] == sys.version.split()[0]
    assert (program["git.commit"], program["git.dirty"]) == (git(tree, "rev-parse", "HEAD"), False)
    assert not [path for path in tree.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_a_changed_file_makes_the_tree_dirty(tree: Path) -> None:
    """Each start is noted as it was, and the newest one is shown; the index is not written."""
    index = tree / ".git" / "index"
    before = index.read_bytes()
    recorded(tree)
    (tree / "tracked.py").write_text("two\n")
    found = recorded(tree)
    assert [each["git.dirty"] for each in found.programs] == [False, True]
    assert found.program["git.dirty"] is True
    assert index.read_bytes() == before


def test_a_folder_that_is_no_tree(tmp_path: Path) -> None:
    """Without a repository, and without git, the other facts are there, and nothing is said of it."""
    for path in (os.environ["PATH"], str(tmp_path / "none")):
        done = run_program(tmp_path, PROGRAM, options=OPTIONS, PATH=path, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
        assert done.returncode == 0, done.stderr
        assert "git" not in done.stderr
        program = tachograph.runs.open("job", tmp_path / "store").program
        assert program["cwd"] == str(tmp_path)
        assert not [key for key in program if key.startswith("git.")]


def test_a_tree_without_a_commit(tmp_path: Path) -> None:
    """A repository in which nothing was committed has no commit."""
    if not GIT:
        pytest.skip("needs git")
    git(tmp_path, "init", "-q")
    assert "git.commit" not in recorded(tmp_path).program


@pytest.mark.timing
def test_git_that_hangs_delays_no_job(tree: Path) -> None:
    """The job begins and ends before git has answered; the end waits two seconds for it, and leaves no process."""
    path = script(tree, "git", "echo $$ >> pids; sleep 60 & echo $! >> pids; wait")
    began = time.monotonic()
    program = "import time, pathlib; pathlib.Path('ended').write_text(str(time.monotonic()))"
    done = run_program(tree, program, options=OPTIONS, PATH=path)
    over = time.monotonic()
    assert (done.returncode, re.findall(r"\bgit\b", done.stderr)) == (0, []), done.stderr
    program_ended = float((tree / "ended").read_text())
    assert program_ended < over - 0.5  # it was not waited for before the job
    assert over - began < 20
    found = tachograph.runs.open("job", tree / "store").program
    assert found["cwd"] == str(tree)
    assert "git.commit" not in found
    left = [pid for pid in (tree / "pids").read_text().split() if _lives(int(pid))]
    assert left == []


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_slow_status_leaves_the_commit(tree: Path) -> None:
    """Where git needs too long to look for changes, the commit is known, and whether there are changes is not."""
    path = script(tree, "git", f'case "$*" in *status*) exec sleep 60;; esac; exec {GIT} "$@"')
    program = recorded(tree, PATH=path).program
    assert program["git.commit"] == git(tree, "rev-parse", "HEAD")
    assert "git.dirty" not in program


def test_a_run_that_is_to_keep_no_program(tree: Path) -> None:
    """TACHOGRAPH_RECORD_PROGRAM=false keeps none of it, and asks no git; tags and notes were told, and stay."""
    path = script(tree, "git", "touch asked")
    found = recorded(tree, "--tag", "a", "--notes", "b", TACHOGRAPH_RECORD_PROGRAM="false", PATH=path)
    assert (found.program, found.programs, found.tags, found.notes) == ({}, [], ["a"], "b")
    assert not (tree / "asked").exists()


def test_wrong_values_are_said_before_the_job(tmp_path: Path) -> None:
    """A wrong setting, tag or note is one line on stderr, and the job is not run."""
    wrong: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (
            (),
            {"TACHOGRAPH_RECORD_PROGRAM": "maybe"},
            "TACHOGRAPH_RECORD_PROGRAM is 'maybe': expected one of 'true', 'false'",
        ),
        (("--tag", "x" * 65), {}, "a tag has at most 64 characters"),
        (("--tag", ""), {}, "--tag is '': it must not be empty"),
        (("--notes", "x" * 10_001), {}, "--notes has 10001 characters: notes have at most 10,000"),
        (("--tag", "a", "--no-hub"), {}, "--tag has no effect with --no-hub"),
    ]
    for options, more, said in wrong:
        done = run(tmp_path, "touch", "ran", options=options, **more)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr
    assert not (tmp_path / "ran").exists()


def test_tags_and_notes_are_shown_everywhere(tmp_path: Path) -> None:
    """Those of the command and those of start() add up; `runs show`, `runs list` and the Studio have them."""
    program = "import tachograph; tachograph.start(tags=['adam'], notes='from the program\\nin two lines')"
    options = (*OPTIONS, "--tag", "baseline", "--tag", "two words", "--notes", "from the command")
    assert run_program(tmp_path, program, options=options).returncode == 0
    assert run_program(tmp_path, PROGRAM, options=("--run-id", "other", *OPTIONS[2:])).returncode == 0
    store = tmp_path / "store"
    found = tachograph.runs.open("job", store)
    assert found.tags == ["adam", "baseline", "two words"]
    assert found.notes == "from the program\nin two lines"

    def told(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "tachograph", "runs", *arguments, "--store", str(store)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()

    shown = told("show", "job")
    assert "tags adam, baseline, two words" in shown
    assert shown[shown.index("from the program") + 1] == "in two lines"
    assert ["PROGRAM", "VALUE"] in [line.split() for line in shown]
    assert [line.split()[0] for line in told("list")] == ["RUN", "other", "job"]
    (line,) = told("list", "--tag", "adam", "--tag", "baseline")[1:]
    assert line.endswith("adam, baseline, two words")
    assert told("list", "--tag", "adam", "--tag", "none") == [f"none of the 2 runs in {store} matches"]
    with serving(store) as hub:
        one: Any = json.load(urllib.request.urlopen(f"{hub.url}/api/runs/job", timeout=30))
        every: Any = json.load(urllib.request.urlopen(f"{hub.url}/api/runs", timeout=30))
    assert one["run"]["tags"] == found.tags
    assert (one["notes"], one["program"]) == (found.notes, found.program)
    assert {each["id"]: each["tags"] for each in every["runs"]} == {"job": found.tags, "other": []}


def test_a_run_lasts_as_long_as_its_job(tmp_path: Path) -> None:
    """From the job's start to its end, without the time that the hub lingers, even if the command never started."""
    store = tmp_path / "store"
    for command in ([sys.executable, str(write(tmp_path, PROGRAM))], ["there-is-no-such-program"]):
        before = time.time_ns()
        run(tmp_path, *command, options=("--run-id", command[0][-3:], "--port", "0", "--linger", "3"))
        after = time.time_ns()
        found = tachograph.runs.list(store)[-1]
        assert found.id == command[0][-3:]
        assert before < found.start <= found.last < after
        if len(command) > 1:
            assert after - found.last > 2_500_000_000
        shown = run_alone(
            tmp_path,
            f"from tachograph.cli import main; main(['runs', 'show', {found.id!r}, '--store', {str(store)!r}])",
        ).stdout
        assert f"from {time_of(found.start)} to {time_of(found.last)}\n" in shown


def test_every_start_may_add_tags(tmp_path: Path) -> None:
    """A start() that differs in tags and notes alone is the one that runs, and each tells its own."""
    program = """
        import tachograph
        one = tachograph.start(logs="jsonl", metrics="none", jsonl="out.jsonl", tags=["a"])
        assert tachograph.start(logs="jsonl", metrics="none", jsonl="out.jsonl", tags=("b", "c"), notes="n") is one
        assert tachograph.start(logs="jsonl", metrics="none", jsonl="out.jsonl") is one
    """
    done = run_alone(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = [
        {each["key"]: each["value"] for each in record["attributes"]}
        for line in lines
        for resource in line.get("resourceLogs", ())
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
        if record["eventName"] == "tachograph.run"
    ]
    tags = [[value["stringValue"] for value in each["tags"]["arrayValue"]["values"]] for each in found]
    assert tags == [["a"], ["b", "c"]]
    assert found[1]["notes"] == {"stringValue": "n"}


def test_no_other_destination_gets_the_program(tree: Path) -> None:
    """Where the job's telemetry goes elsewhere, or is passed on, neither command line nor commit go with it."""
    sent: list[bytes] = []
    for number, way in enumerate(("--endpoint", "--forward")):
        with receiving() as other:
            options = (way, base(other), *(OPTIONS if number else ()))
            done = run_program(tree, f"{PROGRAM}\n", "--name=unmistakable", options=options)
            assert done.returncode == 0, done.stderr
            of_this = [_plain(*request) for request in other.requests]
        assert [body for body in of_this if b"tachograph.metric" in body]
        sent += of_this
    commit = git(tree, "rev-parse", "HEAD").encode()
    assert not [body for body in sent if b"unmistakable" in body or commit in body]


def _plain(_: str, headers: dict[str, str], body: bytes) -> bytes:
    packed = {name.lower(): value for name, value in headers.items()}.get("content-encoding") == "gzip"
    return gzip.decompress(body) if packed else body
