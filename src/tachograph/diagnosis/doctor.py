"""The doctor of one run: from the pulses of its ranks and their processes to a verdict, and to incidents.

It looks closely only where a rank waits, gives no sign or is gone. The rules, and how each was measured, are in
docs/hangs.md.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tachograph.diagnosis.doctor_evidence import WAIT, WINDOW, Evidence, Findings, named, spoken
from tachograph.diagnosis.doctor_processes import Processes
from tachograph.diagnosis.doctor_ranks import RankHistory
from tachograph.diagnosis.doctor_stack import DISTRIBUTED, PySpy, is_in, place_of
from tachograph.diagnosis.doctor_waits import Alignment, Mismatch, Wait, aligned, roots
from tachograph.diagnosis.incident import HangVerdict, Incident, Standing
from tachograph.diagnosis.pulse import VERSION, machine, ranges

_CLOSELY = 1.0  # seconds without progress, from which on processes are looked at closely
_STALE = 30.0  # seconds: a pulse that is older was kept on a disk meanwhile
_SURE = {"killed": 2.0, "all wait": 3.0}  # seconds for which a hang holds before it is said; the end of a long
_SURE_ELSE = 1.0  # evaluation looks for a moment as if all waited
_DEAD = 2.0  # seconds after the end of a process, in which its exception may still come
_OVER = 2.0  # seconds without a verdict, after which an incident has ended
_MOST_RANKS = 65_536
_WELL = ("exit", "renamed", "sigterm", "sigint")  # ends that are no fault of the rank's own
_MOST_INCIDENTS = 100

_Lines = dict[tuple[str, str], list[int]]


class Doctor:
    """The doctor of a run; one thread at a time.

    Args:
        processes: of this machine.
        pyspy: reads stacks from outside.
        clock: seconds, monotonic.
        wall: nanoseconds since the epoch.

    Attributes:
        incidents: those of the run, the last one last.
    """

    def __init__(
        self,
        processes: Processes | None = None,
        pyspy: PySpy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
        here: str | None = None,
    ) -> None:
        self._processes = processes or Processes()
        self._evidence = Evidence(pyspy or PySpy())
        self._clock, self._wall = clock, wall
        self._here = machine() if here is None else here
        self._world = 0
        self.ranks: dict[int, RankHistory] = {}
        self.incidents: list[Incident] = []
        self._numbers = 0
        self._open: Incident | None = None
        self._death: Incident | None = None
        self._seen: tuple[Any, float] = (None, 0.0)  # the last verdict's key, and since when
        self._without = 0.0  # since when there is no verdict

    def take(self, pulse: Mapping[str, Any]) -> None:
        """Take a pulse of any rank; one of a newer version, or from long ago, is left alone."""
        now = self._clock()
        rank, pid = int(pulse.get("rank", -1)), int(pulse.get("pid", 0))
        if int(pulse.get("v", 0)) > VERSION or not 0 <= rank < _MOST_RANKS:
            return
        if abs(self._wall() / 1e9 - float(pulse.get("t", 0.0))) > _STALE and pulse.get("machine") == self._here:
            return
        known = self.ranks.get(rank)
        if known is None or (known.pid != pid and (known.gone is not None or now - known.came > WAIT)):
            known = self.ranks[rank] = RankHistory(rank, pid, local=pulse.get("machine") == self._here)
        if known.pid == pid:
            self._world = max(int(pulse.get("world", 0)), rank + 1)
            known.take(pulse, now)

    def heard(self, pid: int) -> None:
        """Note that something came from a process of this machine: it is let run."""
        for each in self.ranks.values():
            if each.pid == pid and each.local:
                each.heard = self._clock()

    def ended(self, pid: int, reason: str) -> None:
        """Note that a process has told its end. One that cannot be seen from here is gone with that."""
        named_so = [each for each in self.ranks.values() if each.pid == pid]
        for each in named_so:
            each.ended = reason
            # On several machines, several ranks may have one pid. A process that is renamed goes on.
            if not each.is_seen and len(named_so) == 1 and reason != "renamed":
                each.gone = self._clock()

    def look(self) -> list[Incident]:
        """Look at all ranks, twice a second; return the incidents that have begun, changed or ended."""
        now = self._clock()
        alive = [each for each in self.ranks.values() if each.gone is None and not each.has_left]
        closely = any(self._is_behind(each, now, _CLOSELY) for each in alive)
        for each in self.ranks.values():
            each.watch(self._processes, now, closely=closely)
        over = not any(each.gone is None and not each.has_left for each in self.ranks.values())
        died = self._died(now, over=over)
        if over:
            self.ranks.clear()
            self._death = None
            return [*self._settle(None, now, at_once=True), *died]
        return [*self._settle(self._verdict(now), now), *died]

    def _is_behind(self, rank: RankHistory, now: float, seconds: float) -> bool:
        return now - max(rank.came, rank.heard) >= seconds + 1.0 or now - rank.changed >= seconds

    def _died(self, now: float, *, over: bool) -> list[Incident]:
        """Return the incident of the rank that has died first, if any has, and where there is news of it."""
        dead = [(each.gone, each) for each in self.ranks.values() if each.gone is not None and each.ended not in _WELL]
        if not dead:
            self._death = None
            return []
        told = [pair for pair in dead if pair[1].failure[1]]
        # One that was killed tells nothing, and is gone before the others, which raise because of it.
        killed = [pair for pair in dead if not pair[1].failure[1] and all(pair[0] <= gone for gone, _ in told)]
        if killed:
            gone, first = min(killed, key=lambda pair: (pair[0], -pair[1].rank))
        else:
            gone, first = min(told, key=lambda pair: (pair[1].failure[1], pair[0]))
        if not over and now - gone < _DEAD:
            return []
        after = sorted(each.failure[1] for _, each in told if each.failure[1] > first.failure[1] > 0)
        before = f" {(after[0] - first.failure[1]) / 1e9:.1f} s before the next rank" if after else ""
        why = f": {first.failure[0]}" if first.failure[0] else " without an exception"
        where = f"at {place_of(first.raised)}" if first.raised else f"last seen at {place_of(first.stack)}"
        text = f"rank {first.rank} (pid {first.pid}) died{before}{why}, {where}."
        verdict = HangVerdict("died", "died", (first.rank,), spoken(text))
        if self._death is None:
            self._numbers += 1
            self._death = Incident(self._numbers, self._wall(), verdict)
            self._death.ended = self._death.began
            self.incidents = [*self.incidents, self._death][-_MOST_INCIDENTS:]
        elif self._death.verdict == verdict:
            return []
        self._death.verdict = verdict
        return [self._death]

    def failed(self, pid: int, words: str, time_unix_nano: int) -> None:
        """Note the exception that ends a process."""
        for each in self.ranks.values():
            if each.pid == pid:
                each.failure = words, time_unix_nano

    def _settle(self, verdict: HangVerdict | None, now: float, *, at_once: bool = False) -> list[Incident]:
        """Keep the incident that is open up to date; return it where there is news of it."""
        if verdict is None:
            self._seen = None, now
            if self._open is None or (now - self._without < _OVER and not at_once):
                return []
            over, self._open = self._open, None
            over.ended = self._wall()
            return [over]
        self._without = now
        if verdict.key != self._seen[0]:
            self._seen = verdict.key, now
        sure = _SURE.get(verdict.cause, _SURE_ELSE) if verdict.grade == "hang" else _SURE_ELSE
        if now - self._seen[1] < sure:
            return []
        if self._open is None:
            self._numbers += 1
            self._open = Incident(self._numbers, self._wall(), verdict)
            self.incidents = [*self.incidents, self._open][-_MOST_INCIDENTS:]
            return [self._open]
        before, self._open.verdict = self._open.verdict, verdict
        self._open.hung = self._open.hung or verdict.grade == "hang"
        return [self._open] if verdict.key != before.key else []

    @property
    def open(self) -> Incident | None:
        """The incident that lasts; None for none."""
        return self._open

    def _verdict(self, now: float) -> HangVerdict | None:
        present = [each for each in self.ranks.values() if each.gone is None and not each.has_left]
        newest = max(each.came for each in present)
        silent = [each for each in present if min(newest, now) - max(each.came, each.heard) >= WAIT]
        gone = [each for each in self.ranks.values() if each.gone is not None or each.has_left]
        waiting = [each for each in present if each.is_waiting and now - each.changed >= WAIT]
        untold = [each for each in present if not each.is_waiting and self._is_in_torch(each, now)]
        if not waiting and not untold and not (silent and len(silent) < len(present)):
            return None
        alignment = aligned({each.rank: each.view() for each in self.ranks.values()})
        longest = max([now - each.changed for each in (*waiting, *untold)] + [now - each.came for each in silent])
        found = Findings(now, longest, max(each.longest for each in self.ranks.values()), alignment.waits)
        told = self._told(alignment, gone, silent, untold, found)
        if told is None:
            return None
        waits = self._waits_in_words(alignment, told.ranks)
        notes = (*told.notes, *self._elsewhere())
        return told._replace(text=" ".join([told.text, *waits, *notes]), notes=notes)

    @staticmethod
    def _is_in_torch(rank: RankHistory, now: float) -> bool:
        """Tell whether a rank stands in torch.distributed without an operation: send, receive, and older torch."""
        if now - rank.changed < WAIT or not is_in(rank.stack, (DISTRIBUTED,), 3):
            return False
        return rank.stands_still(now, WAIT + 1.0, least=3)

    def _told(
        self,
        alignment: Alignment,
        gone: list[RankHistory],
        silent: list[RankHistory],
        untold: list[RankHistory],
        found: Findings,
    ) -> HangVerdict | None:
        if alignment.mismatch is not None and not gone:
            return self._mismatched(alignment.mismatch)
        blame = roots(alignment.waits, [each.rank for each in (*gone, *silent)])
        if gone and alignment.waits:  # the first one: the others went because of it
            first = min(gone, key=lambda each: each.gone if each.gone is not None else each.came)
            blame = type(blame)({first.rank: 1})
        if not blame and silent:
            blame = type(blame)(each.rank for each in silent)
        if blame and set(blame) <= set(alignment.waits) and not gone and not silent:
            return self._crossed(sorted(blame), alignment, found)
        if not blame and untold and not alignment.waits:
            outside = [each for each in self.ranks.values() if each not in untold and each.gone is None]
            blame = type(blame)(each.rank for each in outside)
        if blame:
            most = max(blame.values())
            late = [self.ranks[rank] for rank in sorted(blame) if blame[rank] == most]
            # One that is in torch without an operation sends or receives: it may wait for another one of these.
            return self._judged([each for each in late if not self._is_in_torch(each, found.now)] or late, found)
        return self._all_wait([*(self.ranks[rank] for rank in alignment.waits), *untold], found)

    def _judged(self, suspects: Iterable[RankHistory], found: Findings) -> HangVerdict | None:
        told = [each for each in (self._evidence.of(suspect, found) for suspect in suspects) if each is not None]
        hung = [each for each in told if each.grade == "hang"] or told
        if not hung:
            return None
        first = hung[0]
        alike = [each for each in hung if each.cause == first.cause]
        ranks = tuple(rank for each in alike for rank in each.ranks)
        return first._replace(ranks=ranks, text=" ".join(each.text for each in alike[:4]))

    def _mismatched(self, found: Mismatch) -> HangVerdict:
        calls = [
            f"{named(ranks)} {'calls' if len(ranks) == 1 else 'call'} {name}{f' {sizes} {types}' if sizes else ''}"
            f" at {place_of(self.ranks[ranks[0]].stack)}"
            for (name, sizes, types), ranks in sorted(found.ranks.items(), key=lambda pair: len(pair[1]))
        ]
        text = f"operation #{found.number} of {self._group(found.group)} does not match: {'; '.join(calls)}."
        return HangVerdict("hang", "mismatch", found.guilty, spoken(text))

    def _crossed(self, ranks: list[int], alignment: Alignment, found: Findings) -> HangVerdict | None:
        if found.now - max(self.ranks[rank].changed for rank in ranks) < WAIT + 1.0:
            return None
        each = [f"{named([rank])} in {self._operation(alignment.waits[rank])} at {self._place(rank)}" for rank in ranks]
        text = f"{named(ranks)} wait for each other: {'; '.join(each)}."
        return HangVerdict("hang", "crossed groups", tuple(ranks), spoken(text))

    def _all_wait(self, waiting: list[RankHistory], found: Findings) -> HangVerdict | None:
        if not waiting or found.longest < WAIT + 2.0 or self._is_partial():
            return None
        ranks = tuple(sorted({each.rank for each in waiting}))
        if len(ranks) < len([each for each in self.ranks.values() if each.gone is None]):
            return None
        text = f"{named(ranks)} have waited for {found.longest:.0f} s, and none of them is late."
        return HangVerdict("hang", "all wait", ranks, spoken(text))

    def _is_partial(self) -> bool:
        return len(self.ranks) < self._world

    def _elsewhere(self) -> tuple[str, ...]:
        missing = sorted(set(range(self._world)) - set(self.ranks)) if self._is_partial() else []
        if not missing:
            return ()
        many = "ranks" if len(missing) > 1 else "rank"
        return (
            f"{many.capitalize()} {ranges(missing)} {'do' if len(missing) > 1 else 'does'} not report to this hub.",
        )

    def _group(self, name: str) -> str:
        for each in self.ranks.values():
            described = each.pulse.get("groups", {}).get(name, {}).get("desc", "")
            if described and described != "undefined":
                return str(described)
        return f"group {name}"

    def _operation(self, wait: Wait) -> str:
        return f"{wait.operation.name} #{wait.operation.number} of {self._group(wait.operation.group)}"

    def _place(self, rank: int) -> str:
        return place_of(self.ranks[rank].stack)

    def _waits_in_words(self, alignment: Alignment, guilty: Iterable[int]) -> list[str]:
        """Return a sentence for each operation that ranks wait in at one line."""
        beside, found = set(guilty), defaultdict[tuple[str, str, str], list[int]](list)
        for rank, wait in alignment.waits.items():
            if rank not in beside or len(beside) == len(alignment.waits):
                found[self._operation(wait), wait.operation.sizes, self._place(rank)].append(rank)
        return [
            spoken(f"{named(ranks)} {'wait' if len(ranks) > 1 else 'waits'} in {operation}, sizes {sizes}, at {place}.")
            for (operation, sizes, place), ranks in list(found.items())[:6]
        ]

    def picture(self) -> dict[str, Any]:
        """Return all ranks as they stand now, and the incidents, for JSON."""
        now = self._clock()
        waits = aligned({each.rank: each.view() for each in self.ranks.values()}).waits
        found = [self._standing(each, waits.get(rank), now) for rank, each in sorted(self.ranks.items())]
        return {
            "world": self._world,
            "elsewhere": list(self._elsewhere()),
            "ranks": [each._asdict() for each in found],
            "open": None if self._open is None else self._open.data(),
            "incidents": [each.data() for each in self.incidents],
        }

    def _standing(self, rank: RankHistory, wait: Wait | None, now: float) -> Standing:
        still = now - rank.changed
        operation = f"{self._operation(wait)}, sizes {wait.operation.sizes}" if wait is not None else ""
        stacks = [(each[0], [f"{f[0]}:{f[1]} in {f[2]}" for f in each[2]]) for each in rank.pulse.get("threads", ())]
        if rank.was_read and rank.held:
            stacks = [("main (read by py-spy)", [f"{f.file}:{f.line} in {f.function}" for f in rank.held])]
        state = self._state(rank, wait, now)
        place = place_of(rank.held if rank.was_read and rank.held else rank.stack)
        host = str(rank.pulse.get("host", ""))
        return Standing(rank.rank, rank.pid, host, state, operation, place, stacks, round(still, 1))

    @staticmethod
    def _state(rank: RankHistory, wait: Wait | None, now: float) -> str:
        usage = rank.usage(now, WINDOW)
        if rank.gone is not None:
            return "ended"
        if rank.has_left:
            return "left its process groups"
        if usage is not None and usage.states & {"T", "t"}:
            return "stopped"
        if now - max(rank.came, rank.heard) >= WAIT:
            return "not responding"
        if wait is not None or rank.is_waiting:
            return "waiting"
        return "not moving" if rank.stands_still(now, WINDOW, least=3) else "running"
