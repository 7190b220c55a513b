"""The pulse of a rank: what it says of process groups and stacks, and what it leaves out where torch is older."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from servers import wait_until
from tachograph.diagnosis.pulse import Pulse, Torch, _Stacks, ranges
from tachograph.recording.registry import Registry

C10D, NATIVE = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"


class Group:
    """A process group as torch has it."""

    group_desc = "default_pg"

    def __init__(self, number: int = 7) -> None:
        self.number = number

    def _get_sequence_number_for_group(self) -> int:
        return self.number


class GroupOfOldTorch:
    """A process group that does not count."""


def world_of(*groups: object) -> SimpleNamespace:
    """Return the state of torch's process groups."""
    named = {group: str(place) for place, group in enumerate(groups)}
    members = {group: {0: 0, 1: 1, 2: 2} for group in groups}
    return SimpleNamespace(pg_map=dict.fromkeys(groups, ("gloo", None)), pg_names=named, pg_group_ranks=members)


def recorder(enqueued: int, completed: int, *, done: bool = False) -> Callable[..., str]:
    """Return torch's flight recorder at one state."""
    status = {"0": {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}}
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": enqueued,
        "is_p2p": False,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "retired": done,
        "state": "scheduled",
        "time_created_ns": 5,
    }

    def dump(*, includeCollectives: bool = True) -> str:  # noqa: N803 - torch's own name
        return json.dumps({"pg_status": status, "entries": [entry] if includeCollectives else []})

    return dump


def pulse_of(modules: dict[str, Any], registry: Registry | None = None) -> Pulse:
    """Return the maker of pulses of a rank that has these modules."""
    return Pulse(
        registry or Registry(enabled=True), modules=modules, joined=lambda: (1, 3), beside=lambda _, call: call()
    )


def told(pulse: Pulse) -> dict[str, Any]:
    """Return a pulse, read back."""
    said = pulse()
    assert said is not None
    found: dict[str, Any] = json.loads(said)
    return found


def test_nothing_without_torch_distributed() -> None:
    """A process that has not imported torch.distributed, or has joined no group, has no pulse."""
    assert pulse_of({})() is None
    assert pulse_of({C10D: SimpleNamespace(_world=world_of())})() is None


def test_a_forked_child_has_none() -> None:
    """A child that has its parent's process groups by a fork is no rank."""
    modules = {C10D: SimpleNamespace(_world=world_of(Group()))}
    assert Pulse(Registry(enabled=True), modules=modules, joined=lambda: None)() is None


def test_groups_and_stacks() -> None:
    """A pulse has rank, process, groups with members and numbers, and the main thread's stack: no values."""
    hidden = "a value that nobody may see"
    modules = {
        C10D: SimpleNamespace(_world=world_of(Group())),
        NATIVE: SimpleNamespace(_dump_fr_trace_json=recorder(7, 7)),
    }
    found = told(pulse_of(modules))
    assert (found["rank"], found["world"], found["n"]) == (1, 3, 1)
    assert found["groups"] == {"0": {"ranks": "0-2", "desc": "default_pg", "backend": "gloo", "seq": 7}}
    assert found["status"] == {"0": [7, 7]}
    name, _, stack = found["threads"][0]
    assert name == "main"
    assert any(frame[0] == __file__ and "test_groups_and_stacks" in frame[2] for frame in stack)
    assert hidden not in json.dumps(found)


def test_the_wait_for_the_gil() -> None:
    """Beside a thread that runs Python it takes a switch of threads; beside one that is in C, next to nothing."""
    modules = {C10D: SimpleNamespace(_world=world_of(Group()))}
    pulse, over = pulse_of(modules), threading.Event()

    def run_python() -> None:
        while not over.is_set():
            pass

    told(pulse)
    rest = min(told(pulse)["gil"] for _ in range(5))
    beside = threading.Thread(target=run_python)
    beside.start()
    try:
        wait_until(lambda: told(pulse)["gil"] > 0.003)  # on a busy machine the thread has no processor at first
    finally:
        over.set()
        beside.join()
    assert rest < 0.003


def test_a_line_is_told_anew_where_a_thread_has_moved() -> None:
    """The texts of frames are kept: each line is that at which the thread stands, no code has the text of another."""
    pulse = pulse_of({C10D: SimpleNamespace(_world=world_of(Group()))})

    def own(function: str) -> list[Any]:
        return next(frame for frame in told(pulse)["threads"][0][2] if frame[2].endswith(function))

    own_name = "a_line_is_told_anew_where_a_thread_has_moved"
    first, second = own(own_name), own(own_name)  # two lines
    second_line = sys._getframe().f_lineno - 1
    third = own(own_name)
    assert first == second == [__file__, second_line, first[2]]
    assert third[1] == second_line + 2
    for number in range(50):
        scope: dict[str, Any] = {"own": own}
        made = f"def f{number}():\n{chr(10) * number}  return own('f{number}')"
        exec(compile(made, f"made{number}.py", "exec"), scope)  # noqa: S102 - our own
        assert scope[f"f{number}"]() == [f"made{number}.py", number + 2, f"f{number}"]
        del scope


def test_frames_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that makes code for ever does not fill the memory."""
    monkeypatch.setattr("tachograph.diagnosis.pulse._MOST_KNOWN", 8)
    stacks = _Stacks()
    for _ in range(20):
        scope = {"stacks": stacks, "frame": sys._getframe}
        exec(compile("stacks(frame())", "made.py", "exec"), scope)  # noqa: S102 - our own
        assert len(stacks._known) <= 8


def test_nobody_asks_for_the_gil_of_a_rank_that_moves() -> None:
    """The wait for the GIL is asked for where no group has moved since the last pulse: it tells of ranks that stand."""
    group = Group(7)
    pulse = pulse_of({C10D: SimpleNamespace(_world=world_of(group))})
    found = [told(pulse)["gil"] is None for group.number in (7, 7, 8, 8, 8)]
    assert found == [True, False, True, False, False]


def test_the_wait_for_a_processor_is_no_wait_for_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is long is made again, without the time for which no processor was free."""
    times = iter([0.0, 0.02, 1.0, 1.03])
    delays = iter([7.0, 7.024])
    monkeypatch.setattr("tachograph.diagnosis.pulse._delay", lambda: next(delays))
    pulse = Pulse(Registry(enabled=True), modules={}, clock=lambda: next(times))
    assert pulse._waits_for_gil() == pytest.approx(0.006)


def test_own_threads_are_left_out() -> None:
    """The threads of Tachograph are no part of it."""
    stop = threading.Event()
    ours = threading.Thread(target=stop.wait, name="tachograph timer")
    theirs = threading.Thread(target=stop.wait, name="loader")
    for each in (ours, theirs):
        each.start()
    try:
        found = told(pulse_of({C10D: SimpleNamespace(_world=world_of(Group()))}))
    finally:
        stop.set()
        for each in (ours, theirs):
            each.join()
    names = [name for name, _, _ in found["threads"]]
    assert "loader" in names
    assert "tachograph timer" not in names


def test_the_flight_recorder_is_read_once_nothing_moves() -> None:
    """Entries go along from the second pulse on in which an operation has not ended, and go where one has."""
    native = SimpleNamespace(_dump_fr_trace_json=recorder(8, 7))
    pulse = pulse_of({C10D: SimpleNamespace(_world=world_of(Group(8))), NATIVE: native})
    entries = [told(pulse)["entries"] for _ in range(4)]
    assert entries[:2] == [[], []]
    assert entries[-1] == [["0", 8, False, "gloo:all_reduce", [[4]], ["Float"], False, 5]]
    native._dump_fr_trace_json = recorder(8, 8)
    assert told(pulse)["entries"] == []


def test_the_flight_recorder_is_read_where_numbers_are_not_in_it() -> None:
    """Send and receive take numbers of a group and are in no status: the entries have the collective ones alone."""
    native = SimpleNamespace(_dump_fr_trace_json=recorder(8, 8, done=True))
    group = Group(9)
    pulse = pulse_of({C10D: SimpleNamespace(_world=world_of(group)), NATIVE: native})
    assert [len(told(pulse)["entries"]) for _ in range(4)] == [0, 0, 1, 1]
    group.number = 10  # another one: that is progress
    assert told(pulse)["entries"] == []


def test_the_last_operation_of_each_group_goes_along() -> None:
    """A group that was used long ago is among the entries, too."""

    def dump(**_: bool) -> str:
        entries = [{"process_group": ["1", "pair"], "collective_seq_id": 3, "retired": True}]
        entries += [
            {"process_group": ["0", "default_pg"], "collective_seq_id": n, "retired": n < 30} for n in range(31)
        ]
        return json.dumps({"entries": entries})

    entries = Torch({NATIVE: SimpleNamespace(_dump_fr_trace_json=dump)}).entries()
    assert [(each[0], each[1]) for each in entries] == [("0", 30), ("1", 3), *(("0", n) for n in range(21, 30))]


@pytest.mark.parametrize(
    "native",
    [
        pytest.param(None, id="torch 2.4, without the recorder"),
        pytest.param(SimpleNamespace(), id="torch 2.7, without its JSON"),
    ],
)
def test_older_torch(native: object) -> None:
    """A torch that does not tell how far its groups are has the numbers of the groups alone."""
    modules = {C10D: SimpleNamespace(_world=world_of(Group())), **({} if native is None else {NATIVE: native})}
    found = told(pulse_of(modules))
    assert found["status"] is None
    assert found["groups"]["0"]["seq"] == 7
    assert found["left_out"] == []


def test_a_group_that_does_not_count() -> None:
    """A group without a number says -1."""
    assert told(pulse_of({C10D: SimpleNamespace(_world=world_of(GroupOfOldTorch()))}))["groups"]["0"]["seq"] == -1


def test_what_fails_is_left_out() -> None:
    """A part of which torch raises is left out, counted, and not asked for a fourth time."""
    calls = []

    def dump(**_: object) -> str:
        calls.append(1)
        raise RuntimeError("gone in the next version")

    registry = Registry(enabled=True)
    modules = {C10D: SimpleNamespace(_world=world_of(Group())), NATIVE: SimpleNamespace(_dump_fr_trace_json=dump)}
    pulse = pulse_of(modules, registry)
    found = [told(pulse) for _ in range(5)]
    assert len(calls) == 3
    assert found[-1]["left_out"] == ["status"]
    assert found[-1]["groups"]["0"]["seq"] == 7


def test_the_last_one_says_that_it_has_left() -> None:
    """After the end of its groups a rank says so once."""
    modules = {C10D: SimpleNamespace(_world=world_of(Group()))}
    pulse = pulse_of(modules)
    assert told(pulse)["groups"]
    modules[C10D]._world = world_of()
    assert told(pulse)["groups"] == {}
    assert pulse() is None


def test_ranges() -> None:
    """Ranks are written as ranges."""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert ranges([]) == ""


def test_torch_is_not_imported() -> None:
    """The module does not import torch."""
    assert "torch" not in sys.modules["tachograph.diagnosis.pulse"].__dict__
