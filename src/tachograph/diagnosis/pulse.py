"""The pulse of a rank: its process groups, sequence numbers and stacks, once a second, for the hang doctor of a hub.

It is made in the timer's thread, in less than a millisecond, and only where the program has joined a process group of
``torch.distributed``. Of stacks it has files, lines and functions; no values, ever. All that it asks torch for is
private: the names are in :class:`Torch` alone, and where one is missing or fails, that part is left out.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tachograph.identity.process_group import group_watch
from tachograph.recording import registry as registries
from tachograph.recording import timer
from tachograph.recording.registry import Registry

VERSION = 1  # of the pulse: a reader leaves alone newer ones
MOST_FRAMES, MOST_THREADS, MOST_ENTRIES = 40, 16, 60
_LAST_ENTRIES = 10  # of the flight recorder, beside those that have not ended
# Pulses without progress after which the flight recorder is read as a whole: that takes up to 28 ms of the processor
# for 2,000 entries, and holds the GIL.
_DUMPS, _THEN_EACH = (2, 5), 30
_MOST_FAILURES = 3
_LET_GO = 1e-6  # seconds of sleep in which another thread takes the GIL: with 0 we may be back before it wakes
_AT_ONCE = 1e-3  # seconds: nobody had the GIL, and a processor was free
_MOST_KNOWN = 2000  # frames
_C10D, _NATIVE = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"

Status = dict[str, tuple[int, int]]  # last collective enqueued, and completed, by the id of a process group
_encoded = json.JSONEncoder(separators=(",", ":")).encode

Entry = list[Any]  # group, number, is it point to point, operation, sizes, dtypes, is it done, when it was created


def ranges(ranks: Sequence[int]) -> str:
    """Return ranks in short: ``0-3,6``."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


class Torch:
    """The parts of ``torch.distributed`` that a pulse is made of: their private names, in 2.4 to 2.15.

    Args:
        modules: those that are imported; torch never is by us.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = modules
        self._known: dict[str, dict[str, Any]] = {}

    @property
    def world(self) -> Any:
        """The state of the process groups; None where the program has joined none."""
        world = getattr(self._modules.get(_C10D), "_world", None)
        return world if getattr(world, "pg_map", None) else None

    def groups(self) -> dict[str, dict[str, Any]]:
        """Return the process groups by name: their members, and the number of the last operation of each."""
        world, found = self.world, {}
        for group, name in list(world.pg_names.items()):
            if group not in world.pg_map:
                continue
            known = self._known.get(str(name))
            if known is None:
                members = ranges(list(world.pg_group_ranks.get(group, {})))
                described = str(getattr(group, "group_desc", "") or "")
                known = {"ranks": members, "desc": described, "backend": str(world.pg_map[group][0])}
                self._known[str(name)] = known
            number = getattr(group, "_get_sequence_number_for_group", None)
            found[str(name)] = {**known, "seq": -1 if number is None else _number(number)}
        return found

    def status(self) -> Status | None:
        """Return how far each process group is; None where this torch does not tell (2.8 and newer do)."""
        told = self._dump(includeCollectives=False)
        if told is None:
            return None
        return {
            str(group): (int(each["last_enqueued_collective"]), int(each["last_completed_collective"]))
            for group, each in told.get("pg_status", {}).items()
        }

    def entries(self) -> list[Entry]:
        """Return the operations that have not ended, the last of each group, and the last few, from a full dump."""
        found = [_entry(each) for each in (self._dump() or {}).get("entries", [])]
        last = {each[0]: place for place, each in enumerate(found)}
        few = {*list(last.values())[-_LAST_ENTRIES:], *range(max(0, len(found) - _LAST_ENTRIES), len(found))}
        waiting = [each for each in found if not each[6]]
        return [
            *waiting[: MOST_ENTRIES - 2 * _LAST_ENTRIES],
            *[found[place] for place in sorted(few) if found[place][6]],
        ]

    def _dump(self, **asked: bool) -> Any:
        dump = getattr(self._modules.get(_NATIVE), "_dump_fr_trace_json", None)
        return None if dump is None else json.loads(dump(**asked))


def _number(read: Callable[[], Any]) -> int:
    try:
        return int(read())
    except RuntimeError:  # a backend that does not count
        return -1


def _entry(each: Mapping[str, Any]) -> Entry:
    done = each.get("state") == "completed" or bool(each.get("retired"))  # gloo's state stays "scheduled" in 2.13
    return [
        str(each.get("process_group", ["?"])[0]),
        int(each.get("collective_seq_id", -1)),
        bool(each.get("is_p2p")),
        str(each.get("profiling_name", "")),
        each.get("input_sizes", []),
        each.get("input_dtypes", []),
        done,
        int(each.get("time_created_ns", 0)),
    ]


def _words(path: str) -> list[bytes]:
    """Return the words of a file of proc(5), without the layers of open(): they take longer than the kernel."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096).split()
    finally:
        os.close(file)


def _moved() -> int | None:
    """Return the bytes that this process has read and written so far; None where that is not told."""
    try:
        words = _words("/proc/self/io")
        return int(words[1]) + int(words[3])  # rchar and wchar: proc(5)
    except (OSError, ValueError, IndexError):
        return None


def machine() -> str:
    """Return the boot of this machine and the namespace of its processes: where these are alike, pids mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux
        return socket.gethostname()


class Pulse:
    """Makes the pulses of this process; called once a second, in one thread.

    Args:
        registry: where errors are counted (``doctor``).
        modules: those that are imported.
        frames: returns the innermost frame of each thread.
        clock: seconds.
        joined: returns the rank and the size of the world; None before a group is joined, and in a forked child.
        beside: calls something in another thread: a full dump may wait for a device.
    """

    def __init__(
        self,
        registry: Registry = registries.default,
        *,
        modules: Mapping[str, Any] = sys.modules,
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,  # noqa: SLF001 - documented, in spite of its name
        clock: Callable[[], float] = time.perf_counter,
        joined: Callable[[], tuple[int, int] | None] = group_watch.joined,
        beside: Callable[[str, Callable[[], object]], object] = timer.default.beside,
    ) -> None:
        self._registry, self._frames, self._clock, self._beside = registry, frames, clock, beside
        self._joined = joined
        self._torch, self._stacks = Torch(modules), _Stacks()
        self._main = threading.main_thread().ident
        self._place = {"machine": machine(), "host": socket.gethostname()}
        self._failures: dict[str, int] = {}
        self._number = self._same = 0
        self._progress: object = None
        self._entries: list[Entry] = []
        self._dumping = self._beats = self._sends = False

    def __call__(self) -> str | None:
        """Return the pulse as JSON; None without a process group, but once after the last one has gone."""
        if self._torch.world is None or self._joined() is None:
            ends, self._beats = self._beats, False
            return self._told({"groups": {}}) if ends else None
        self._beats = True
        groups, status = self._part("groups", self._torch.groups), self._part("status", self._torch.status)
        moves = self._look_for_progress(groups or {}, status)
        threads = self._part("threads", self._threads) or ""
        told = {
            "groups": groups or {},
            "status": status,
            "entries": self._entries,
            "gil": None if moves else self._part("gil", self._waits_for_gil),  # it tells of a rank that stands
            "cpu": time.process_time(),
            "io": _moved(),
        }
        return self._told(told, threads)

    def _told(self, told: Mapping[str, Any], threads: str = "") -> str:
        self._number += 1
        rank, world = self._joined() or (-1, -1)
        about = {"v": VERSION, "n": self._number, "t": time.time(), "rank": rank, "world": world, "pid": os.getpid()}
        left_out = [name for name, times in self._failures.items() if times >= _MOST_FAILURES]
        said = _encoded({**about, **self._place, **told, "left_out": left_out})
        return f'{said[:-1]},"threads":[{threads}]}}'

    def _part(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a part of the pulse; None where torch does not give it: after three failures it is not asked again."""
        if self._failures.get(name, 0) >= _MOST_FAILURES:
            return None
        try:
            return make()
        except Exception:  # noqa: BLE001 - the border to torch's private names
            self._failures[name] = self._failures.get(name, 0) + 1
            self._registry.count_error("doctor")
            return None

    def _look_for_progress(self, groups: Mapping[str, Any], status: Status | None) -> bool:
        """Tell whether any group has moved; have the flight recorder read as a whole where that is long ago.

        It is read where an operation has not ended, and where some are not in the recorder: send and receive take
        numbers of their group with gloo, and only its entries have those of the collective operations alone.
        """
        numbers = [each["seq"] for each in groups.values()]
        enqueued = [max(each[0], 0) for each in (status or {}).values()]
        self._sends = self._sends or (status is not None and sum(numbers) > sum(enqueued))
        waits = any(each[0] > max(each[1], 0) for each in (status or {}).values())
        moves = (status, numbers) != self._progress
        if moves or not (waits or self._sends):
            self._progress, self._same, self._entries = (status, numbers), 0, []
            return moves
        self._same += 1
        if not self._dumping and (self._same in _DUMPS or (waits and self._same % _THEN_EACH == 0)):
            self._dumping = True
            self._beside("flight recorder", self._dump)
        return False

    def _dump(self) -> None:
        before = self._progress
        try:
            found = self._part("entries", self._torch.entries)
        finally:
            self._dumping = False
        if found and before is self._progress:
            self._entries = found

    def _threads(self) -> str:
        """Return name, place in the code, and stack of each thread but our own, the main thread first, as JSON."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = self._frames()
        order = sorted(frames, key=lambda ident: ident != self._main)
        shown = [ident for ident in order if not names.get(ident, "").startswith("tachograph")]
        return ",".join(
            [
                f"[{_encoded('main' if ident == self._main else names.get(ident, str(ident)))},"
                f"{frames[ident].f_lasti},[{self._stacks(frames[ident])}]]"
                for ident in shown[:MOST_THREADS]
            ]
        )

    def _waits_for_gil(self) -> float:
        """Return the seconds until this thread is let run again: 5 ms where another one runs Python, else next to none.

        Without those for which it waits for a processor: on a busy machine these are as long. That is asked for where a
        wait is long, and for another one: most are not, and the files of proc(5) take longer.
        """
        waited = self._wait()
        if waited < _AT_ONCE:
            return waited
        delayed = _delay()
        return max(0.0, self._wait() - (_delay() - delayed))

    def _wait(self) -> float:
        began = self._clock()
        time.sleep(_LET_GO)
        return self._clock() - began


def _delay() -> float:
    """Return the seconds for which this thread has been ready and no processor was free; 0 where that is not told."""
    try:
        return int(_words("/proc/thread-self/schedstat")[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class _Stacks:
    """The text of stacks, as JSON; that of a frame whose place in the code is known is not made again."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[CodeType, str]] = {}  # by the code's id: its hash is that of all of it

    def __call__(self, frame: FrameType | None) -> str:
        """Return the innermost frames: file, line and function of each."""
        found: list[str] = []
        while frame is not None and len(found) < MOST_FRAMES:
            known = self._known.get((id(frame.f_code), frame.f_lasti))
            found.append(self._new(frame) if known is None else known[1])
            frame = frame.f_back
        return ",".join(found)

    def _new(self, frame: FrameType) -> str:
        code, place = frame.f_code, frame.f_lasti  # of another thread's frame: it may go on at any time
        line = next((line for first, end, line in code.co_lines() if first <= place < end), code.co_firstlineno)
        said = _encoded([code.co_filename, line or 0, getattr(code, "co_qualname", code.co_name)])
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(code), place] = code, said  # so that no other code gets its id
        return said
