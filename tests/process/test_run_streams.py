"""Nothing that ``tachograph run`` and the hub print decides whether a job runs, and how it ends."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hubs import PROTOBUF, ask, command, request
from launches import RUN
from programs import environment, write
from tachograph.exporters.standard_streams import Unfailing

pytest.importorskip("uvicorn")

SEEN = "for n in 0 1 2; do if test -e /proc/$$/fd/$n; then echo $n; fi; done > seen; exit 7"
RECORDS = """
    import sys, tachograph
    for step in range(100):
        tachograph.put_metric("step", step, "train")
    open("streams", "w").write(f"{sys.stdin is None} {sys.stdout is None} {sys.stderr is None}")
    sys.exit(7)
"""


def ended(folder: Path, *line: str, closed: str = "", **given: int) -> int:
    """Return the exit code of a command in ``folder``, some of its standard streams closed, others as given."""
    streams: dict[str, int] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *line]
    with subprocess.Popen(shell, cwd=folder, env=environment(folder), **{**streams, **given}) as process:
        return process.wait(60)


CLOSED = ["2>&-", ">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize(
    "closed", [*CLOSED[::2], *(pytest.param(each, marks=pytest.mark.long) for each in CLOSED[1::2])]
)
def test_a_closed_stream_is_the_jobs_own(tmp_path: Path, closed: str) -> None:
    """The job starts, its exit code is kept, and it has exactly those streams closed that it has without us."""
    assert ended(tmp_path, "sh", "-c", SEEN, closed=closed) == 7
    without = (tmp_path / "seen").read_text()
    assert ended(tmp_path, *RUN, "--", "sh", "-c", SEEN, closed=closed) == 7
    assert (tmp_path / "seen").read_text() == without


def test_a_closed_stream_where_ended_children_are_not_waited_for(tmp_path: Path) -> None:
    """The same holds where SIGCHLD is ignored, and the job is therefore forked."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    line = [sys.executable, "-c", ignoring, *RUN[1:], "--", "sh", "-c", SEEN]
    assert ended(tmp_path, *line, closed="2>&-") == 7
    assert (tmp_path / "seen").read_text() == "0\n1\n"


@pytest.mark.parametrize("closed", CLOSED[::2])
def test_what_a_job_without_streams_records_arrives(tmp_path: Path, closed: str) -> None:
    """Its values are in the store, which is sound: nothing that is printed gets into a file or a socket of the hub."""
    program = write(tmp_path, RECORDS)
    assert ended(tmp_path, *RUN, "--", sys.executable, str(program), closed=closed) == 7
    gone = [str(stream in closed.split()) for stream in ("<&-", ">&-", "2>&-")]
    assert (tmp_path / "streams").read_text().split() == gone
    (store,) = (tmp_path / "store" / "runs").glob("*.db")
    with contextlib.closing(sqlite3.connect(store)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((value,),) = file.execute(
            "SELECT MAX(sample.value) FROM sample JOIN series ON series.id = sample.series WHERE series.name = 'step'"
        )
    assert value == 99


@contextmanager
def full_pipe() -> Iterator[int]:
    """Yield the writing end of a pipe that is full, and that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    try:
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


@contextmanager
def full_disk() -> Iterator[int]:
    """Yield a descriptor on which every write fails with ENOSPC."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        yield full.fileno()


@contextmanager
def broken_pipe() -> Iterator[int]:
    """Yield the writing end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@pytest.mark.parametrize("stderr", [full_disk, full_pipe, broken_pipe])
@pytest.mark.parametrize(
    "job", [("sh", "-c", "exit 7"), pytest.param(("there-is-no-such-program",), marks=pytest.mark.long)]
)
def test_a_stderr_that_takes_nothing(tmp_path: Path, stderr: object, job: tuple[str, ...]) -> None:
    """A full disk, a full pipe that nobody reads, a broken pipe: the job runs, soon, and its exit code is kept."""
    assert callable(stderr)
    with stderr() as descriptor:
        began = time.monotonic()
        assert ended(tmp_path, *RUN, "--", *job, stderr=descriptor) == (7 if job[0] == "sh" else 127)
        assert time.monotonic() - began < 30
        # Our words of wrong usage, and those of Python itself, change nothing of the exit code, either.
        assert ended(tmp_path, *RUN, "--port", "x", stderr=descriptor) == 2


@pytest.mark.parametrize("stderr", [full_disk, full_pipe, broken_pipe])
def test_a_hub_whose_stderr_takes_nothing(tmp_path: Path, stderr: object) -> None:
    """A hub starts, takes points, warns of some, and ends in an orderly way, whatever becomes of its words."""
    assert callable(stderr)
    with stderr() as descriptor, command(tmp_path, stderr=descriptor) as hub:
        bad = request(1.0, name="").SerializeToString()  # which the hub says in its log
        for body in (bad, request(2.0).SerializeToString()):
            assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
        hub.process.terminate()
        assert hub.end() == 0
        assert hub.next()["data_points"] == 2


@pytest.mark.parametrize("closed", CLOSED[::2])
def test_a_command_with_closed_streams_fails_as_it_would(tmp_path: Path, closed: str) -> None:
    """Wrong usage is 2 with and without somebody to tell."""
    assert ended(tmp_path, sys.executable, "-m", "tachograph", "hub", "--port", "x", closed=closed) == 2
    assert ended(tmp_path, sys.executable, "-m", "tachograph", "dance", closed=closed) == 2


def test_a_line_reaches_a_reader_that_reads_late() -> None:
    """More than a pipe holds arrives whole where it is read, in order; nothing is let go that is waited for."""
    reading, writing = os.pipe()
    text = bytes(range(256)) * 1024
    child = os.fork()
    if child == 0:
        os.close(reading)
        written = Unfailing(writing, patience=30).write(text)
        os._exit(0 if written == len(text) else 1)
    os.close(writing)
    time.sleep(0.2)
    found = b"".join(iter(lambda: os.read(reading, 65536), b""))
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found == text
