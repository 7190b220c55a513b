"""The hang doctor: from pulses and processes to a verdict, its grade, and incidents."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tachograph.diagnosis.doctor import Doctor
from tachograph.diagnosis.doctor_processes import Processes
from tachograph.diagnosis.doctor_stack import PYSPY, PySpy, Stack, stack_of
from tachograph.diagnosis.incident import HangVerdict, Incident, incident_attributes, parse_incident
from tachograph.identity.extra import install_command

HERE = "this machine"
TRAIN = [["/job/train.py", 40, "main"]]
IN_TORCH = [["/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"], ["/job/train.py", 12, "main"]]


class Job:
    """A job of several ranks: their processes in a folder like /proc, their pulses, and a clock of its own."""

    def __init__(
        self, folder: Path, world: int, *, hub: str = HERE, seen: bool = True, pyspy: PySpy | None = None
    ) -> None:
        self.folder, self.world, self.now, self.number = folder, world, 1000.0, 0
        self.doctor = Doctor(
            Processes(folder), pyspy or PySpy(""), clock=lambda: self.now, wall=lambda: int(self.now * 1e9), here=hub
        )
        self.news: list[Incident] = []
        self.cpu = dict.fromkeys(range(world), 0.0)
        for rank in range(world if seen else 0):
            self.process(rank)

    def process(self, rank: int, state: str = "S", *, readable: bool = True) -> None:
        """Write the process of a rank."""
        self.any_process(100 + rank, state, self.cpu[rank], readable=readable)

    def any_process(
        self, pid: int, state: str = "S", cpu: float = 0.0, *, read: int = 10, readable: bool = True, of: int = 0
    ) -> None:
        """Write a process as proc(5) says; it may be the child of another one."""
        home = self.folder / str(pid)
        home.mkdir(exist_ok=True)
        rest = " ".join([state, *"0" * 10, str(int(cpu * 100)), "0", *"0" * 6, "4711", "0"])
        (home / "stat").write_text(f"{pid} (python (3)) {rest}\n")
        if readable:
            (home / "io").write_text(f"rchar: {read}\nwchar: 10\n")
            (home / "wchan").write_text("futex_wait")
        if of:
            threads = self.folder / str(of) / "task" / str(of)
            threads.mkdir(parents=True, exist_ok=True)
            (threads / "children").write_text(f"{pid} ")

    def pulse(self, rank: int, number: int, *, entry: list[Any] | None = None, **more: Any) -> None:
        """Send the pulse of a rank that is at an operation; with an entry it waits in that."""
        waits = entry is not None
        body = {
            "v": 1,
            "n": self.number,
            "t": self.now,
            "rank": rank,
            "world": self.world,
            "pid": 100 + rank,
            "machine": HERE,
            "host": "node",
            "gil": 0.0,
            "left_out": [],
            "cpu": self.cpu[rank],
            "io": 20,
            "groups": {"0": {"ranks": f"0-{self.world - 1}", "desc": "default_pg", "backend": "gloo", "seq": number}},
            "status": {"0": [number, number - 1 if waits else number]},
            "entries": [entry] if entry else [],
            "threads": [["main", 3, IN_TORCH if waits else TRAIN]],
        }
        self.doctor.take({**body, **more})

    def run(self, seconds: float, *pulses: Any) -> None:
        """Let time pass: a pulse of each rank a second, and two looks."""
        for half in range(int(seconds * 2)):
            self.now += 0.5
            self.number += 1
            for each in pulses if half % 2 else ():
                each()
            self.news += self.doctor.look()

    @property
    def verdict(self) -> HangVerdict | None:
        """The verdict that lasts."""
        return None if self.doctor.open is None else self.doctor.open.verdict

    @property
    def told(self) -> HangVerdict:
        """The same, where there must be one."""
        assert self.verdict is not None
        return self.verdict


def entry(number: int, name: str = "all_reduce", sizes: str = "[[4]]") -> list[Any]:
    """Return an operation that has not ended."""
    return ["0", number, False, f"gloo:{name}", sizes, ["Float"], False, 1]


class Read(PySpy):
    """A stack as py-spy has read it."""

    def stack(self, pid: int) -> Stack:  # noqa: ARG002 - of any process
        """Return that of a collection of garbage."""
        return stack_of([("/job/train.py", 50, "collect")])


class Refused(PySpy):
    """A py-spy that may not look at the process."""

    def stack(self, pid: int) -> Stack | None:  # noqa: ARG002 - of any process
        """Keep why there is none."""
        self.refused = "Permission denied"
        return None


def healthy(job: Job, seconds: float = 3.0) -> None:
    """Let all ranks get on."""
    for step in range(int(seconds)):
        job.run(1.0, *[lambda rank=rank, step=step: job.pulse(rank, 20 + step) for rank in range(job.world)])


def test_a_healthy_job(tmp_path: Path) -> None:
    """Ranks that get on are not spoken of."""
    job = Job(tmp_path, 2)
    healthy(job, 20)
    assert job.news == []


def test_blocked(tmp_path: Path) -> None:
    """A rank that does nothing while others wait hangs within ten seconds: rank, line, and the others' operation."""
    job = Job(tmp_path, 3)
    healthy(job)
    begun = job.now
    job.run(
        10,
        lambda: job.pulse(0, 30, entry=entry(30)),
        lambda: job.pulse(1, 29),
        lambda: job.pulse(2, 30, entry=entry(30)),
    )
    assert [(each.verdict.grade, each.verdict.cause, each.verdict.ranks) for each in job.news] == [
        ("hang", "blocked", (1,))
    ]
    text = job.news[0].verdict.text
    assert "Rank 1 (pid 101) has been blocked for" in text
    assert "at train.py:40 in main" in text
    assert "Ranks 0 and 2 wait in all_reduce #30 of default_pg, sizes [[4]], at train.py:12 in main." in text
    assert job.news[0].began / 1e9 - begun <= 10


def test_busy_is_late(tmp_path: Path) -> None:
    """A rank that computes is late, and no alert."""
    job = Job(tmp_path, 2)
    healthy(job)

    def compute() -> None:
        job.cpu[1] += 0.9
        job.process(1, "R")
        job.pulse(1, 29, threads=[["main", job.number, TRAIN]])

    job.run(60, lambda: job.pulse(0, 30, entry=entry(30)), compute)
    assert {each.verdict.grade for each in job.news} == {"late"}
    assert job.told.cause == "busy"


def test_a_long_wait_that_ended_well_is_the_measure(tmp_path: Path) -> None:
    """A rank that does nothing hangs after three times the longest wait that this run has seen end well."""
    job = Job(tmp_path, 2)
    healthy(job)
    wait, stand = (lambda: job.pulse(0, 30, entry=entry(30))), (lambda: job.pulse(1, 29))
    job.run(4, wait, stand)
    job.run(1, lambda: job.pulse(0, 31), lambda: job.pulse(1, 31))
    job.run(9, lambda: job.pulse(0, 40, entry=entry(40)), lambda: job.pulse(1, 39))
    assert [each.verdict.grade for each in job.news if each.hung] == []
    job.run(7, lambda: job.pulse(0, 40, entry=entry(40)), lambda: job.pulse(1, 39))
    assert job.told.grade == "hang"


def test_mismatch(tmp_path: Path) -> None:
    """Another operation under one number: the minority is named."""
    job = Job(tmp_path, 3)
    healthy(job)
    waits = [lambda rank=rank: job.pulse(rank, 30, entry=entry(30)) for rank in (0, 2)]
    job.run(8, *waits, lambda: job.pulse(1, 30, entry=entry(30, "broadcast")))
    assert job.told.key == ("hang", "mismatch", (1,))
    assert "rank 1 calls broadcast" in job.told.text


RECEIVES = [["/x/site-packages/torch/distributed/distributed_c10d.py", 7, "recv"], ["/job/train.py", 70, "main"]]


def test_a_receive_takes_a_number(tmp_path: Path) -> None:
    """A rank in a receive has a number of the group more than it has begun collective operations: it is late."""
    job = Job(tmp_path, 3)
    healthy(job)

    def beat() -> None:
        last = ["0", 29, False, "gloo:all_reduce", "[[4]]", ["Float"], True, 1]
        status = {"0": [29, 29]}
        job.pulse(1, 30, entries=[last], status=status, threads=[["main", 5, RECEIVES]])
        for rank in (0, 2):
            job.pulse(rank, 30, entry=entry(30))

    job.run(10, beat)
    assert job.told.key == ("hang", "blocked", (1,))
    assert "at train.py:70 in main. Ranks 0 and 2 wait in all_reduce #30" in job.told.text


def test_the_sender_holds_up_its_receiver(tmp_path: Path) -> None:
    """Of two late ranks, one of which receives, the other one is guilty."""
    job = Job(tmp_path, 3)
    healthy(job)

    def beat() -> None:
        job.pulse(0, 29, status={"0": [29, 29]}, threads=[["main", 5, RECEIVES]])
        job.pulse(1, 29)
        job.pulse(2, 30, entry=entry(30))

    job.run(10, beat)
    assert job.told.key == ("hang", "blocked", (1,))


def test_sends_are_progress(tmp_path: Path) -> None:
    """Ranks that send and receive, and call nothing collective, get on."""
    job = Job(tmp_path, 2)
    healthy(job)
    for step in range(20):
        beats = [
            partial(job.pulse, rank, 30 + step, status={"0": [22, 22]}, threads=[["main", 5, RECEIVES]])
            for rank in (0, 1)
        ]
        job.run(1, *beats)
    assert job.news == []


def test_spinning(tmp_path: Path) -> None:
    """A rank that runs Python at one line and calls nothing is late, and a hang after half a minute."""
    job = Job(tmp_path, 2)
    healthy(job)

    def work() -> None:
        job.cpu[1] += 1.0
        job.process(1, "R")
        job.pulse(0, 30, entry=entry(30))
        job.pulse(1, 29, gil=0.005 if job.number % 3 else 0.0)  # a busy machine: not each time it waits for the GIL

    job.run(20, work)
    assert job.told.key == ("late", "spinning", (1,))
    job.run(15, work)
    assert job.told.key == ("hang", "spinning", (1,))


@pytest.mark.parametrize(
    ("gil", "cpu", "cause"),
    [
        pytest.param((0.6, 0.0, 0.3), 1.0, "busy", id="C code that holds the GIL, again and again"),
        pytest.param((1.4, 0.0, 0.9), 0.1, "busy", id="the same on a busy machine"),
        pytest.param((0.12, 0.0, 0.04), 0.1, "spinning", id="Python on a busy machine"),
    ],
)
def test_long_waits_for_the_gil_are_no_spinning(tmp_path: Path, gil: tuple[float, ...], cpu: float, cause: str) -> None:
    """A rank that calls C code at one line, such as a collection of garbage, is late; how long it waits tells."""
    job = Job(tmp_path, 2)
    healthy(job)

    def work() -> None:
        job.cpu[1] += cpu
        job.process(1, "R")
        job.pulse(0, 30, entry=entry(30))
        job.pulse(1, 29, gil=gil[job.number % 3])

    job.run(40, work)
    assert job.told.cause == cause
    assert {each.verdict.grade for each in job.news} == {"late"} if cause == "busy" else job.told.grade == "hang"


def test_a_collection_of_garbage_is_late(tmp_path: Path) -> None:
    """A rank that holds the GIL and computes has six seconds, with its stack, too; one that does nothing has not."""
    for cpu, grades in ((1.0, ["late"]), (0.0, ["hang"])):
        job = Job(tmp_path, 2, pyspy=Read(""))
        healthy(job)
        for _ in range(5):
            job.cpu[1] += cpu
            job.process(1, "R" if cpu else "S")
            job.run(1, partial(job.pulse, 0, 30, entry=entry(30)))
        assert [each.verdict.grade for each in job.news] == grades


def test_silences_that_ended_are_the_measure(tmp_path: Path) -> None:
    """A rank that holds the GIL again and again, for as long each time, is late."""
    job = Job(tmp_path, 2)
    healthy(job)

    def collect(seconds: int) -> None:
        for _ in range(seconds):
            job.cpu[1] += 0.2
            job.process(1, "R")
            job.run(1, partial(job.pulse, 0, 30, entry=entry(30)))
        job.run(1, partial(job.pulse, 0, 30, entry=entry(30)), partial(job.pulse, 1, 29))

    for seconds in (3, 6, 10, 14):
        collect(seconds)
    assert {each.verdict.grade for each in job.news} == {"late"}
    collect(60)
    assert job.news[-2].verdict.key == ("hang", "GIL held", (1,))


def test_stopped(tmp_path: Path) -> None:
    """A stopped process is named with the line at which it was seen last."""
    job = Job(tmp_path, 2)
    healthy(job)
    job.process(1, "T")
    job.run(8, lambda: job.pulse(0, 30, entry=entry(30)))
    assert job.told.key == ("hang", "stopped", (1,))
    assert "last seen at train.py:40" in job.told.text


def test_died(tmp_path: Path) -> None:
    """A process that has gone without a word, while others wait for it."""
    job = Job(tmp_path, 2)
    healthy(job)
    (tmp_path / "101" / "stat").unlink()
    job.run(8, lambda: job.pulse(0, 30, entry=entry(30)))
    assert job.told.key == ("hang", "killed", (1,))


def test_the_first_death(tmp_path: Path) -> None:
    """Of ranks that have all died the first one is told, with its exception and its last line."""
    job = Job(tmp_path, 3)
    healthy(job)
    for rank, second in ((2, 1), (0, 2), (1, 3)):
        job.doctor.failed(100 + rank, f"RuntimeError: of rank {rank}", second * 10**9)
        job.doctor.ended(100 + rank, "exception")
        (tmp_path / str(100 + rank) / "stat").unlink()
    job.run(1)
    assert [each.verdict.key for each in job.news] == [("died", "died", (2,))]
    words = (
        "Rank 2 (pid 102) died 1.0 s before the next rank: RuntimeError: of rank 2, last seen at train.py:40 in main."
    )
    assert job.news[0].verdict.text == words


def test_a_death_is_told_while_the_others_are_there(tmp_path: Path) -> None:
    """The first death is told after two seconds, however long the others take to end, and once more with their ends."""
    job = Job(tmp_path, 3)
    healthy(job)
    job.doctor.ended(102, "exception")
    job.doctor.failed(102, "RuntimeError: out of memory", 10**9)
    (tmp_path / "102" / "stat").unlink()
    job.run(3)
    assert [each.verdict.text for each in job.news] == [
        "Rank 2 (pid 102) died: RuntimeError: out of memory, last seen at train.py:40 in main."
    ]
    job.doctor.ended(100, "exception")
    job.doctor.failed(100, "RuntimeError: closed by peer", 3 * 10**9)
    for rank in (0, 1):  # the launcher has killed rank 1, which tells nothing
        (tmp_path / str(100 + rank) / "stat").unlink()
        job.run(1)
    assert [each.number for each in job.news] == [1, 1]
    assert job.news[-1].verdict.text.startswith("Rank 2 (pid 102) died 2.0 s before the next rank: ")
    assert len(job.doctor.incidents) == 1


TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 5, in load
    open("x")
OSError: no x

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 1, in wrapper
    return f(*args, **kwargs)
  File "/job/train.py", line 88, in step
    raise RuntimeError
"""
RECORDED = {"message": "RuntimeError: no\nmemory", "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1"}}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (json.dumps({"message": RECORDED}), ": RuntimeError: no, at train.py:88 in step."),
        (json.dumps({"message": "killed it"}), ": killed it, last seen at train.py:40 in main."),
        (json.dumps({"message": {"message": "a", "extraInfo": None}}), ""),
        (json.dumps(["a"]), ""),
        ("{", ""),
        ("[" * 100_000, ""),
        (None, ""),
    ],
)
def test_an_error_file(tmp_path: Path, said: str | None, words: str) -> None:
    """The error file of torchrun tells the exception and the line; whatever else it has in it is left alone."""
    job = Job(tmp_path, 2)
    home = tmp_path / "101"
    home.joinpath("cwd").symlink_to(tmp_path)
    home.joinpath("environ").write_text("A=1\0TORCHELASTIC_ERROR_FILE=error.json\0B=2\0")
    healthy(job)
    if said is not None:
        (tmp_path / "error.json").write_text(said)
    (home / "stat").unlink()
    job.run(3)
    assert (
        job.news[-1].verdict.text
        == f"Rank 1 (pid 101) died{words or ' without an exception, last seen at train.py:40 in main.'}"
    )


def test_of_deaths_the_killed_one_comes_first(tmp_path: Path) -> None:
    """A rank that was killed tells no exception; those that raise because of it are gone later."""
    job = Job(tmp_path, 3)
    healthy(job)
    for rank in (1, 0, 2):
        if rank != 1:
            job.doctor.failed(100 + rank, "RuntimeError: closed by peer", (rank + 1) * 10**9)
        (tmp_path / str(100 + rank) / "stat").unlink()
        job.run(1)
    assert [each.data()["ranks"] for each in job.doctor.incidents] == [[1]]


def test_gil_held(tmp_path: Path) -> None:
    """A rank whose threads are not let run holds the GIL; without py-spy the verdict says what would show its line."""
    job = Job(tmp_path, 2)
    healthy(job)

    def work() -> None:
        job.cpu[1] += 1.0
        job.process(1, "R")
        job.pulse(0, 30, entry=entry(30))

    job.run(10, work)
    assert job.told.key == ("hang", "GIL held", (1,))
    assert install_command("hangs") in job.told.text


@pytest.mark.parametrize(
    ("state", "cpu", "grade"),
    [
        pytest.param("R", 0.06, "late", id="ready to run, on a machine that has others to run"),
        pytest.param("D", 0.02, "late", id="waits for a disk, now and then"),
        pytest.param("R", 0.25, "hang", id="computes"),
        pytest.param("S", 0.02, "hang", id="sleeps"),
    ],
)
def test_a_rank_that_is_not_let_compute(tmp_path: Path, state: str, cpu: float, grade: str) -> None:
    """A collection of garbage takes longer on a busy machine: its rank is late until it has computed."""
    job = Job(tmp_path, 2)
    healthy(job)

    def work() -> None:
        job.cpu[1] += cpu
        job.process(1, state if int(job.now) % 4 else "S")
        job.pulse(0, 30, entry=entry(30))

    job.run(14, work)
    assert job.told.key == (grade, "GIL held", (1,))
    job.run(50, work)
    assert job.told.grade == "hang"


def test_heard_is_not_silent(tmp_path: Path) -> None:
    """A rank whose exports arrive is let run, though its pulses do not come."""
    job = Job(tmp_path, 2)
    healthy(job)
    job.run(10, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.doctor.heard(101))
    assert job.verdict is None or job.verdict.cause != "GIL held"


@pytest.mark.parametrize("file", ["/lib/python3.11/socketserver.py", "/lib/python3.11/pdb.py"])
def test_servers_and_debuggers_are_patient(tmp_path: Path, file: str) -> None:
    """An event loop without an event, and a debugger, are late at most."""
    job = Job(tmp_path, 2)
    healthy(job)
    stack = [[file, 5, "wait"], *TRAIN]
    wait = partial(job.pulse, 0, 30, entry=entry(30))
    job.run(60, wait, partial(job.pulse, 1, 29, threads=[["main", 1, stack]]))
    assert [each for each in job.news if each.hung] == []


def test_an_incident_ends(tmp_path: Path) -> None:
    """One incident from its first verdict to its end, which is told once."""
    job = Job(tmp_path, 2)
    healthy(job)
    job.run(10, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    for step in range(5):
        job.run(1, *[lambda rank=rank, step=step: job.pulse(rank, 40 + step) for rank in (0, 1)])
    assert len({each.number for each in job.news}) == 1
    assert job.news[-1].ended > job.news[-1].began
    assert job.doctor.open is None


def test_ranks_elsewhere(tmp_path: Path) -> None:
    """A hub that sees only some of the ranks says which ones are missing."""
    job = Job(tmp_path, 4)
    healthy(job, 1)
    partial = Job(tmp_path, 4)
    for step in range(3):
        partial.run(1.0, *[lambda rank=rank, step=step: partial.pulse(rank, 20 + step) for rank in (0, 1)])
    partial.run(10, lambda: partial.pulse(0, 30, entry=entry(30)), lambda: partial.pulse(1, 29))
    assert partial.verdict is not None
    assert partial.verdict.text.endswith("Ranks 2-3 do not report to this hub.")
    assert partial.doctor.picture()["elsewhere"] == ["Ranks 2-3 do not report to this hub."]


def test_processes_that_cannot_be_seen(tmp_path: Path) -> None:
    """Where /proc is hidden the verdict says so and waits longer; a process that was never seen has not died."""
    job = Job(tmp_path, 2, seen=False)
    healthy(job)
    job.run(20, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    assert (job.told.grade, job.told.cause) == ("late", "blocked")
    assert "The hub cannot see" in job.told.text
    job.run(20, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    assert job.told.key == ("late", "blocked", (1,)) or job.told.grade == "hang"


def test_reads_and_writes_that_cannot_be_seen(tmp_path: Path) -> None:
    """In a container without ptrace, what a rank reads and writes is not known: the verdict says so."""
    job = Job(tmp_path, 2, seen=False)
    for rank in range(2):
        job.process(rank, readable=False)
    healthy(job)
    job.run(20, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    assert "The hub cannot see the reads and writes of rank 1." in job.told.text


def test_a_rank_of_another_machine(tmp_path: Path) -> None:
    """Pulses that come from elsewhere are aligned alike; their own figures stand for /proc."""
    job = Job(tmp_path, 2, hub="another machine", seen=False)
    healthy(job)
    job.run(10, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    assert job.told.key == ("hang", "blocked", (1,))


def test_the_hang_of_another_machine_ends_with_its_ranks(tmp_path: Path) -> None:
    """Ranks that no one here can see have ended once they say so: the hang does not last until the hub's own end."""
    job = Job(tmp_path, 2, hub="another machine", seen=False)
    healthy(job)
    job.run(10, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    assert job.doctor.open is not None
    for rank in (0, 1):
        job.doctor.failed(100 + rank, "RuntimeError: timed out", 10**9)
        job.doctor.ended(100 + rank, "exception")
    job.run(5)
    assert job.doctor.open is None
    assert job.doctor.picture()["ranks"] == []


def test_pulses_of_an_older_torch(tmp_path: Path) -> None:
    """Without a status and entries the ranks in torch wait, and the one that is not holds them up."""
    job = Job(tmp_path, 3)
    for step in range(4):
        job.run(1, *[partial(job.pulse, rank, 20 + step, status=None) for rank in range(3)])
    old: dict[str, Any] = {"status": None, "threads": [["main", 9, IN_TORCH]]}
    late = partial(job.pulse, 1, 23, status=None)
    job.run(12, late, *[partial(job.pulse, rank, 24, **old) for rank in (0, 2)])
    assert job.told.key == ("hang", "blocked", (1,))


def test_what_is_no_pulse_is_left_alone(tmp_path: Path) -> None:
    """Pulses of a newer version, without a rank, or from long ago change nothing."""
    job = Job(tmp_path, 2)
    for wrong in ({"v": 99}, {"t": 5.0}):
        job.pulse(0, 1, **wrong)
    job.doctor.take({"v": 1})
    assert job.doctor.ranks == {}


def test_a_call_of_the_kernel(tmp_path: Path) -> None:
    """A rank that waits for a disk is late for a minute, and hangs then; the function of the kernel is named.

    A disk that writes back what others have written took 12 s.
    """
    job = Job(tmp_path, 2)
    healthy(job)
    job.process(1, "D")
    job.run(30, partial(job.pulse, 0, 30, entry=entry(30)), partial(job.pulse, 1, 29))
    assert job.told.key == ("late", "disk sleep", (1,))
    job.run(40, partial(job.pulse, 0, 30, entry=entry(30)), partial(job.pulse, 1, 29))
    assert job.told.key == ("hang", "disk sleep", (1,))
    assert "uninterruptible kernel call (futex_wait)" in job.told.text


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_that_has_ended_well(tmp_path: Path, *, leaves: bool) -> None:
    """A rank that is through its epochs before the others is named: by its end, or as it has left its groups."""
    job = Job(tmp_path, 2)
    healthy(job)
    if leaves:
        job.pulse(1, 29, groups={}, status={}, threads=[])
    else:
        job.doctor.ended(101, "exit")
        (tmp_path / "101" / "stat").unlink()
    job.run(8, partial(job.pulse, 0, 30, entry=entry(30)))
    assert job.told.key == ("hang", "ended", (1,))
    assert "exited " in job.told.text
    assert job.doctor.picture()["ranks"][1]["state"] == ("left its process groups" if leaves else "ended")


@pytest.mark.parametrize("hub", [HERE, "another machine"])
def test_no_sign_of_a_process_that_cannot_be_seen(tmp_path: Path, hub: str) -> None:
    """Its silence is all that is known: late, and a hang after six seconds; on this machine that is said."""
    job = Job(tmp_path, 2, hub=hub, seen=False)
    healthy(job)
    job.run(20, partial(job.pulse, 0, 30, entry=entry(30)))
    assert job.told.key == ("hang", "silent", (1,))
    assert {each.number for each in job.news} == {1}
    assert ("The hub cannot see" in job.told.text) is (hub == HERE)


def test_a_silent_rank_for_which_none_waits(tmp_path: Path) -> None:
    """It is suspected, while the others get on without operations; and the picture says that it gives no sign."""
    job = Job(tmp_path, 2, pyspy=Refused("/opt/py-spy"))
    healthy(job)
    for step in range(12):
        job.run(1, partial(job.pulse, 0, 30 + step))
    assert job.told.key == ("hang", "GIL held", (1,))
    assert "py-spy could not read its stack: Permission denied." in job.told.notes
    assert [each["state"] for each in job.doctor.picture()["ranks"]] == ["not moving", "not responding"]
    job.process(1, "T")
    job.run(5, partial(job.pulse, 0, 99))
    assert job.doctor.picture()["ranks"][1]["state"] == "stopped"


def test_a_stack_from_outside_is_in_the_picture(tmp_path: Path) -> None:
    """The line that py-spy has read stands in the verdict and in the picture, instead of the last pulse's."""
    job = Job(tmp_path, 2, pyspy=Read(""))
    healthy(job)
    job.run(8, partial(job.pulse, 0, 30, entry=entry(30)))
    assert "at train.py:50 in collect" in job.told.text
    late = job.doctor.picture()["ranks"][1]
    assert (late["line"], late["stacks"][0][0]) == ("train.py:50 in collect", "main (read by py-spy)")


def test_a_rank_whose_children_work(tmp_path: Path) -> None:
    """A rank that waits for its children is late and alive: what they use, and read, is in the verdict."""
    job = Job(tmp_path, 2)
    healthy(job)

    def work() -> None:
        job.cpu[1] += 0.5
        job.any_process(201, "R", job.cpu[1], read=int(job.now * 2e6), of=101)
        job.pulse(0, 30, entry=entry(30))
        job.pulse(1, 29)

    job.run(12, work)
    assert job.told.key == ("late", "busy", (1,))
    assert "CPU 0%, child processes 50%, I/O 2.0 MB/s" in job.told.text


def test_a_child_that_gets_no_processor(tmp_path: Path) -> None:
    """A rank that waits for its compiler is late for a minute, though that does next to nothing on a busy machine."""
    job = Job(tmp_path, 2)
    healthy(job)
    job.any_process(201, "R", of=101)
    pulses = partial(job.pulse, 0, 30, entry=entry(30)), partial(job.pulse, 1, 29)
    job.run(30, *pulses)
    assert job.told.key == ("late", "blocked", (1,))
    job.run(40, *pulses)
    assert job.told.key == ("hang", "blocked", (1,))


@pytest.mark.parametrize(
    ("pyspy", "worker", "words"),
    [
        pytest.param(PySpy(""), True, "; its worker 201 is in state S (futex_wait).", id="without py-spy"),
        pytest.param(Read(""), True, "; its worker 201 is at train.py:50 in collect.", id="with py-spy"),
        pytest.param(Read(""), False, "main (in _next_data).", id="without a worker"),
    ],
)
def test_a_data_loader(tmp_path: Path, pyspy: PySpy, words: str, *, worker: bool) -> None:
    """A rank that waits for a batch hangs, and its verdict says where its worker stands."""
    job = Job(tmp_path, 2, pyspy=pyspy)
    healthy(job)
    if worker:
        job.any_process(201, "S", of=101)
    stack = [["/x/site-packages/torch/utils/data/dataloader.py", 9, "_next_data"], *TRAIN]
    late = partial(job.pulse, 1, 29, threads=[["main", 1, stack]])
    job.run(10, partial(job.pulse, 0, 30, entry=entry(30)), late)
    assert job.told.key == ("hang", "DataLoader", (1,))
    assert job.told.text.partition(" Rank 0 ")[0].partition(" To see its")[0].endswith(words)


def test_a_download_has_a_minute(tmp_path: Path) -> None:
    """A rank that reads from a socket is late for a minute, and hangs then."""
    job = Job(tmp_path, 2)
    healthy(job)
    stack = [["/lib/python3.11/ssl.py", 9, "read"], *TRAIN]
    pulses = partial(job.pulse, 0, 30, entry=entry(30)), partial(job.pulse, 1, 29, threads=[["main", 1, stack]])
    job.run(55, *pulses)
    assert job.told.key == ("late", "blocked", (1,))
    job.run(10, *pulses)
    assert job.told.key == ("hang", "blocked", (1,))


def test_a_rank_without_a_stack(tmp_path: Path) -> None:
    """Where its main thread shows no line, the verdict says that the place is not known."""
    job = Job(tmp_path, 2)
    healthy(job)

    def work() -> None:
        job.cpu[1] += 1.0
        job.process(1, "R")
        job.pulse(0, 30, entry=entry(30))
        job.pulse(1, 29, threads=[["main", 1, []]], gil=0.005)

    job.run(40, work)
    assert job.told.key == ("late", "busy", (1,))
    assert "at an unknown place" in job.told.text


def waiting_in(job: Job, rank: int, group: str, *others: str) -> None:
    """Send the pulse of a rank that waits in the fifth operation of a group, and has done four of others."""
    numbers = {group: 5, **dict.fromkeys(others, 4)}
    described = {"ranks": f"0-{job.world - 1}", "desc": "undefined", "backend": "gloo"}
    job.pulse(
        rank,
        5,
        entry=[group, *entry(5)[1:]],
        groups={name: {**described, "seq": number} for name, number in numbers.items()},
        status={name: [number, 4] for name, number in numbers.items()},
    )


def test_crossed_groups(tmp_path: Path) -> None:
    """Two ranks that call the operations of two groups in another order wait for each other: both are named."""
    job = Job(tmp_path, 2)
    job.run(10, lambda: waiting_in(job, 0, "a", "b"), lambda: waiting_in(job, 1, "b", "a"))
    assert job.told.key == ("hang", "crossed groups", (0, 1))
    assert job.told.text.startswith("Ranks 0 and 1 wait for each other: rank 0 in all_reduce #5 of group a at train")


def test_a_chain_of_waits_leads_to_its_end(tmp_path: Path) -> None:
    """Of a rank that waits for one that waits for a third, the third is named."""
    job = Job(tmp_path, 3)
    groups = {name: {"ranks": "0-2", "desc": name, "backend": "gloo", "seq": 4} for name in "ab"}
    idle = partial(job.pulse, 2, 4, groups=groups, status={name: [4, 4] for name in "ab"})
    two = {"a": {**groups["a"], "ranks": "0-1"}}
    first = partial(
        job.pulse, 0, 5, entry=["a", *entry(5)[1:]], groups={"a": {**two["a"], "seq": 5}}, status={"a": [5, 4]}
    )
    second_groups = {**two, "b": {**groups["b"], "ranks": "1-2", "seq": 5}}
    second = partial(
        job.pulse, 1, 5, entry=["b", *entry(5)[1:]], groups=second_groups, status={"a": [4, 4], "b": [5, 4]}
    )
    idle.keywords["groups"] = {"b": {**groups["b"], "ranks": "1-2"}}
    job.run(10, first, second, idle)
    assert job.told.key == ("hang", "blocked", (2,))


def test_ranks_that_all_wait(tmp_path: Path) -> None:
    """Where all have begun the operation, all of them hang; a hub that does not see them all says nothing."""
    job = Job(tmp_path / "all", 2, seen=False)
    seen_in_part = Job(tmp_path / "part", 4, seen=False)
    for each in (job, seen_in_part):
        each.run(10, *[partial(each.pulse, rank, 30, entry=entry(30)) for rank in range(2)])
    assert job.told.key == ("hang", "all wait", (0, 1))
    assert "none of them is late" in job.told.text
    assert seen_in_part.news == []


def test_two_processes_of_one_rank(tmp_path: Path) -> None:
    """The one that beats is the rank; one that begins while it does is left alone until it gives no sign."""
    job = Job(tmp_path, 1)
    job.run(2, partial(job.pulse, 0, 1))
    job.pulse(0, 1, pid=999)
    assert job.doctor.ranks[0].pid == 100
    job.now += 10
    job.pulse(0, 1, pid=999)
    assert job.doctor.ranks[0].pid == 999


def test_the_setting_of_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """TACHOGRAPH_PYSPY names the program; ``none`` does without it, wherever it is."""
    monkeypatch.setenv(PYSPY, "none")
    assert not PySpy().is_there
    assert PySpy().stack(1) is None
    monkeypatch.setenv(PYSPY, "/opt/py-spy")
    assert PySpy().is_there


@pytest.mark.process
@pytest.mark.parametrize(
    ("scope", "more"),
    [
        pytest.param(None, "", id="no Yama in the kernel"),
        pytest.param("0", "", id="Yama that lets all read"),
        pytest.param("1", " (kernel.yama.ptrace_scope is 1)", id="Yama"),
    ],
)
def test_a_py_spy_that_may_not_read(tmp_path: Path, scope: str | None, more: str) -> None:
    """The verdict has the first line of its reason, and the setting of the kernel where that forbids it."""
    program, proc = tmp_path / "py-spy", tmp_path / "proc"
    program.write_text("#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n")
    program.chmod(0o755)
    if scope is not None:
        (proc / "sys/kernel/yama").mkdir(parents=True)
        (proc / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    job = Job(tmp_path, 2, pyspy=PySpy(str(program), proc))
    healthy(job)
    job.run(8, partial(job.pulse, 0, 30, entry=entry(30)))
    assert job.told.key == ("hang", "GIL held", (1,))
    why = f"Permission Denied: Try running again with elevated permissions{more}"
    assert job.told.notes == (f"py-spy could not read its stack: {why}.",)


def test_picture(tmp_path: Path) -> None:
    """Each rank's state, operation and line, of a job that gets on, too."""
    job = Job(tmp_path, 2)
    healthy(job)
    job.run(4, lambda: job.pulse(0, 30, entry=entry(30)), lambda: job.pulse(1, 29))
    first, second = job.doctor.picture()["ranks"]
    assert (first["state"], first["operation"]) == ("waiting", "all_reduce #30 of default_pg, sizes [[4]]")
    assert (second["state"], second["line"]) == ("not moving", "train.py:40 in main")
    assert second["stacks"][0][0] == "main"


def test_an_incident_survives_its_event() -> None:
    """An incident is read back from its event as it was."""
    made = Incident(3, 5, HangVerdict("hang", "blocked", (1, 2), "Rank 1 …", ("a note",)))
    assert parse_incident(incident_attributes(made)) == made.data()
    assert math.isclose(made.data()["began"], 5)
