"""The verdict on a program: its notes, compared with its values that have arrived."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from counting_receiver import Arrived
from random_programs import Expected, Program

TICK = 1.0  # seconds: the second that may be lost; events leave once in it, at least
FIRST_BACK_OFF = 0.5  # seconds: see tachograph.exporters.delivery
SLACK = 1.0  # of a machine with few cores, for sending
LONGEST_END = 15.0  # seconds: ten at most for a receiver that takes everything, and the machine's own time

_WINDOW = 0.25  # seconds, of the Stats

_METRICS = frozenset(("put", "gauge", "wait", "bound", "prof", "stat"))
_SAID = re.compile(r"^journal: lost (\d+) events?", re.MULTILINE)
_SAID_MANY = re.compile(r"failed, dropped its |could not export |took no |could not be delivered|data was lost")
_FRAME = re.compile(r'^\s*File "([^"]+)", line', re.MULTILINE)
_CHAINED = re.compile(r"^(During handling of the above|The above exception was the direct)", re.MULTILINE)
_OWN = ("/ledger.py", "/program.py")


class Batch(NamedTuple):
    """Numbers that were recorded together, and when that was done; ``moment`` is None where it never was."""

    first: int
    size: int
    moment: float | None


class Observed(NamedTuple):
    """The outcome of running a program."""

    status: int | None  # None: it had to be killed
    stderr: str
    signalled: float | None  # when it was signalled from outside
    ended: float
    orphans: bool = False  # workers of a DataLoader had to be killed, which PyTorch has left behind


@dataclass
class Verdict:
    """The broken invariants of a program's end, and the permitted losses.

    Attributes:
        lost_seconds: time from the record of the oldest missing value to the cut.
        end_seconds: from the beginning of the main process's end to its exit.
    """

    wrong: list[str] = field(default_factory=list)
    values: int = 0
    lost_seconds: float = 0.0
    end_seconds: float = 0.0
    missing: int = 0


def judge(program: Program, observed: Observed, arrived: Arrived, folder: Path) -> Verdict:
    """Return the broken invariants, and the permitted losses."""
    verdict = Verdict(wrong=list(arrived.wrong))
    _judge_ends(program, observed, folder, verdict)
    missing: dict[str, int] = {}
    for notes in sorted(folder.glob("*.notes")):
        missing.update(_judge_recorder(program, observed, arrived, notes, verdict))
    dropped = arrived.dropped()
    said = sum(map(int, _SAID.findall(observed.stderr)))
    verdict.missing = sum(missing.values())
    # A process that is out of memory to its end reports a loss, but cannot report its amount.
    told = program.ends.startswith("MemoryError") and _SAID_MANY.search(observed.stderr) is not None
    if verdict.missing > sum(dropped.values()) + said and not told:
        worst = ", ".join(f"{count} of {what}" for what, count in list(missing.items())[:8])
        verdict.wrong.append(f"missing: {worst}; counted as dropped: {dropped or 'nothing'}, said: {said}")
    return verdict


def _judge_ends(program: Program, observed: Observed, folder: Path, verdict: Verdict) -> None:
    expected = program.processes["main"].status
    if observed.status != expected:
        verdict.wrong.append(f"the exit status is {observed.status}, and should be {expected}")
    for path in folder.glob("*.status"):
        found, wanted = path.read_text().strip(), program.processes[path.stem].status
        if found != str(wanted):
            verdict.wrong.append(f"the exit status of {path.stem} is {found}, and should be {wanted}")
    for path in folder.glob("*.swallowed"):
        verdict.wrong.append(f"{len(path.read_text().split())} exceptions of its signal handlers were swallowed")
    began = observed.signalled or _noted(folder / "main.ending")
    if began is not None:
        verdict.end_seconds = observed.ended - began
        if verdict.end_seconds > LONGEST_END:
            verdict.wrong.append(f"its end takes {verdict.end_seconds:.1f} s")
    verdict.wrong += _ours_on(observed.stderr)


def _ours_on(stderr: str) -> list[str]:
    """Return Tachograph's output on stderr: a traceback is the program's where one of its frames comes first.

    Of a chain only the last one counts: those before it begin where they were caught.
    """
    found = [line for line in stderr.splitlines() if line.startswith("Fatal Python error")]
    found += [line for line in stderr.splitlines() if line.startswith("Exception ignored") and "tachograph" in line]
    for traceback in stderr.split("Traceback (most recent call last):")[1:]:
        if _CHAINED.search(traceback):
            continue
        frames = _FRAME.findall(re.split(r"^\S", traceback.lstrip("\n"), maxsplit=1, flags=re.MULTILINE)[0])
        first = next((frame for frame in frames if "/tachograph/" in frame or frame.endswith(_OWN)), "")
        if "/tachograph/" in first:
            found.append(f"a traceback from {first}")
    return found


def _noted(path: Path) -> float | None:
    return float(path.read_text().split()[0]) if path.exists() else None


def _judge_recorder(
    program: Program, observed: Observed, arrived: Arrived, notes: Path, verdict: Verdict
) -> dict[str, int]:
    """Compare one recorder's notes with its values that have arrived; return the missing amounts, by door."""
    who = notes.stem
    process = next(name for name in (who, who.partition(".")[0]) if name in program.processes)
    expected = program.processes[process]
    doors, batches = _read(notes)
    verdict.values += sum(batch.size for batch in batches if batch.moment is not None) * len(doors)
    end = observed.signalled if process == "main" and observed.signalled else _noted(notes.parent / f"{process}.ending")
    # A daemon thread goes on while the process ends, and nothing waits for it.
    own = expected._replace(ending="signalled") if ".daemons" in who and expected.ending == "orderly" else expected
    if observed.orphans and process.startswith("loader"):
        own, end = expected._replace(ending="cut"), observed.ended
    if "stat" in doors and program.mode != "with":  # which ends with windows open
        doors.append("windows")
    back_off = FIRST_BACK_OFF * (2**program.refusals - 1)  # which doubles with each refusal
    missing = {}
    for door in doors:
        found = _found(arrived, door, who)
        wrong = _too_much(expected, batches, found)
        verdict.wrong += [f"{who} by {door}: {why}" for why in wrong]
        if not expected.delivers:
            continue
        lost = _oldest_lost(batches, door, found)
        interval = max(TICK, program.interval if door in _METRICS else TICK) + back_off
        limit = _limit(own, end, interval + _WINDOW * (door == "windows"))
        measured = expected.ending == "cut" and program.interval <= TICK and not program.refusals
        if measured and lost is not None and end is not None:
            verdict.lost_seconds = max(verdict.lost_seconds, end - lost)
        count = _missing(
            [batch for batch in batches if batch.moment is not None and batch.moment <= limit], door, found
        )
        if count:
            missing[f"{who} by {door}"] = 1 if door == "windows" else count  # many values are one event of a window
    return missing


def _limit(expected: Expected, end: float | None, interval: float) -> float:
    """Return the latest time at which a recorded value must still arrive."""
    if expected.ending == "cut":
        return 0.0 if end is None else end - interval - SLACK
    if end is None or expected.ending == "orderly":
        return float("inf")
    return end


def _read(notes: Path) -> tuple[list[str], list[Batch]]:
    doors: list[str] = []
    batches: dict[int, Batch] = {}
    for line in notes.read_text().splitlines(keepends=True):
        kind, *rest = line.split()
        if not line.endswith("\n"):
            break
        if kind == "doors":
            doors = rest
        else:
            first, size, moment = int(rest[0]), int(rest[1]), float(rest[2])
            batches[first] = Batch(first, size, moment if kind == "done" else None)
    return doors, list(batches.values())


class Found(NamedTuple):
    """The arrivals by a door: the count of values, and their numbers where they have some."""

    values: float
    numbers: list[int] | None
    wrong: str = ""


def _found(arrived: Arrived, door: str, who: str) -> Found:
    if door in ("put", "bound"):
        return Found(arrived.sums({"put": "put.success"}.get(door, door), who=who)[0], None)
    if door == "windows":
        return Found(arrived.windows[f"stat {who}"], None)
    if door in ("wait", "stat"):
        count, total = arrived.sums("wait", who=who) if door == "wait" else arrived.sums(f"stat {who}")
        return Found(count, None, f"{count} values of 1 sum up to {total}" if abs(count - total) > 1e-6 else "")
    if door == "prof":
        function = {"code.function.name": f"attack.work {who}"}
        calls, durations = (
            arrived.sums("function.calls", **function)[0],
            arrived.sums("function.duration", **function)[0],
        )
        return Found(calls, None, f"{calls} calls have {durations} durations" if calls != durations else "")
    if door == "gauge":
        last = arrived.last("level", who=who)
        return Found(float(last is not None), [] if last is None else [int(last)])
    numbers = arrived.numbers(door, who)
    return Found(len(numbers), numbers)


def _too_much(expected: Expected, batches: list[Batch], found: Found) -> list[str]:
    """Return complaints about values that were never recorded, or arrived twice."""
    wrong = [found.wrong] if found.wrong else []
    if not expected.delivers:
        return [*wrong, f"{found.values:g} arrived, and it should record nothing"] if found.values else wrong
    if found.numbers is None:
        most = sum(batch.size for batch in batches)
        return [*wrong, f"{found.values:g} arrived, and {most} were recorded"] if found.values > most else wrong
    known = {batch.first + index for batch in batches for index in range(batch.size)}
    strange = set(found.numbers) - known
    if strange:
        wrong.append(f"{len(strange)} arrived that never were, such as {min(strange)}")
    if len(set(found.numbers)) < len(found.numbers):
        wrong.append(f"{len(found.numbers) - len(set(found.numbers))} came twice")
    return wrong


def _missing(due: list[Batch], door: str, found: Found) -> int:
    """Return the number of due values that have not arrived; of a gauge and a throttled curve, only the last is due."""
    if found.numbers is None:
        return max(0, sum(batch.size for batch in due) - int(found.values))
    if door in ("gauge", "throttled"):
        last = max((batch.first + batch.size - 1 for batch in due), default=0)
        return int(max(found.numbers, default=0) < last)
    numbers = set(found.numbers)
    return sum(batch.first + index not in numbers for batch in due for index in range(batch.size))


def _oldest_lost(batches: list[Batch], door: str, found: Found) -> float | None:
    """Return when the oldest value that is missing had been recorded; None where none is."""
    if door in ("gauge", "throttled"):
        return None
    numbers, passed = set(found.numbers or ()), 0
    for moment, first, size in sorted(
        (batch.moment, batch.first, batch.size) for batch in batches if batch.moment is not None
    ):
        passed += size
        if passed > found.values if found.numbers is None else not numbers.issuperset(range(first, first + size)):
            return moment
    return None
