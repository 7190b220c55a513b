"""The invariants after a program has delivered to a faulty backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bad_accounts import Account, Item
from bad_backends import SECRET, Backend, Fault

SHORT_TIMEOUT = 1.0  # seconds of a client, within which a program trains
DEAD_END, SLOW_END = 1.0, 10.0  # seconds that a backend may add to the end: one that takes nothing, one that takes
CLOSE = 5.0  # seconds that MetricsLogger.close() takes at most, by its documentation
SLACK = 1.0  # seconds for the end of the interpreter and of its libraries, on a machine that does other things
LONGEST_CALL = 0.05  # seconds of one step's calls on the training thread, time without a core left out
MEDIAN_CALL = 0.001
LOG_LINES = 12
POINTS = 2_000  # of metrics that are handed out in that time, at most


@dataclass
class Ran:
    """A program that has run.

    Attributes:
        report: that it has left; empty where it left none.
        log: its stderr.
        status: its exit status; None where it had to be killed.
        exit: seconds from the end of its training to its end.
    """

    report: dict[str, Any]
    log: str
    status: int | None
    exit: float

    def lost(self, *destinations: str) -> int:
        """Return its count of losses for these destinations."""
        told = self.report.get("dropped", {})
        return int(sum(count for what, count in told.items() if what.split()[0] in destinations))


@dataclass
class Verdict:
    """The findings about one program.

    Attributes:
        wrong: broken invariants.
        late: broken limits of time, and their counted losses: a busy machine may break them, too.
        lost: how much was counted as lost.
    """

    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    lost: int = 0


def judge(fault: Fault, backend: Backend, account: Account, asked: dict[str, Any], runs: list[Ran]) -> Verdict:
    """Return the verdict on a program, and on those after it that delivered its rest."""
    found = Verdict()
    for ran in runs:
        found.wrong += _manners(ran)
    if not all(ran.report for ran in runs):
        return found
    closes = CLOSE if fault.door == "influxdb" and asked["end"] == "shutdown" else 0.0
    takes = fault.takes or (fault.takes_late and asked["settings"]["timeout"] <= SHORT_TIMEOUT)
    found.late = list(_delays(runs[0], closes + (SLOW_END if takes else DEAD_END) + SLACK))
    recorded = int(runs[0].report["steps"])
    destinations = ("otlp", "journal") if fault.door == "otlp" else ("influxdb", "journal")
    found.lost = sum(ran.lost(*destinations) for ran in runs)
    found.wrong += backend.wrong(recorded, found.lost)
    if fault.complete and found.lost:
        found.late.append(f"{found.lost} counted as lost, where nothing may be: {runs[0].report['dropped']}")
    if account.repeated:
        found.wrong.append(
            f"{len(account.repeated)} came again after they had been acknowledged: {account.repeated[0]}"
        )
    if not fault.opaque:
        found.wrong += _otlp(account, asked, runs[0]) if fault.door == "otlp" else _lines(account, recorded, found.lost)
    return found


def _manners(ran: Ran) -> Iterator[str]:
    if ran.status != 0:
        yield f"exit status {ran.status}: {ran.log[-1500:]}"
    if not ran.report:
        yield "it left no report"
    if "Traceback" in ran.log:
        yield f"a traceback: {ran.log[-1500:]}"
    if SECRET in ran.log:
        yield "the log has the secret of the headers"
    if len(lines := ran.log.splitlines()) > LOG_LINES:
        yield f"the log has {len(lines)} lines: {ran.log[:1500]}"
    if ran.report.get("errors"):
        yield f"{ran.report['errors']} errors were counted: {ran.log[-1500:]}"
    others = {
        what: count
        for what, count in ran.report.get("dropped", {}).items()
        if what.split()[0] not in ("otlp", "journal", "influxdb")
    }
    if others:
        yield f"lost elsewhere: {others}"


def _delays(ran: Ran, limit: float) -> Iterator[str]:
    if ran.exit > limit:
        yield f"the end took {ran.exit:.2f} s, {limit:g} are allowed"
    if ran.report["longest"] > LONGEST_CALL:
        yield f"the longest call took {ran.report['longest'] * 1e3:.1f} ms, {LONGEST_CALL * 1e3:g} are allowed"
    if ran.report["median"] > MEDIAN_CALL:
        yield f"the median call took {ran.report['median'] * 1e3:.2f} ms, {MEDIAN_CALL * 1e3:g} are allowed"


def _otlp(account: Account, asked: dict[str, Any], ran: Ran) -> Iterator[str]:
    recorded, lost = int(ran.report["steps"]), ran.lost("otlp")
    numbers = [item.number for item in account.taken if item.kind == "event" and item.number]
    missing = recorded - ran.lost("journal") - len(set(numbers))
    if len(numbers) != len(set(numbers)):
        yield f"{len(numbers) - len(set(numbers))} events are there as two different ones"
    if lost > missing + POINTS:
        yield f"{missing} of {recorded} events are missing, and as many as {lost} points and events were counted"
    if missing > lost:
        yield f"{missing} of {recorded} events are missing, {lost} were counted: {ran.report['dropped']}"
    yield from _counts(account.taken, recorded, lost - missing, delta=asked["temporality"] == "delta")
    if not asked["witness"]:
        return
    handed = ran.report["handed_events"]
    if handed != recorded - ran.lost("journal"):
        yield f"{recorded} events were recorded, {handed} handed out, {ran.lost('journal')} counted in between"
    if ran.report["handed_counter"] != recorded:
        yield f"the last collection has {ran.report['handed_counter']} of {recorded} counts"
    if asked["temporality"] == "cumulative":
        handed += ran.report["handed_points"]
        least, most = handed - len(account.taken), handed - len(account.acknowledged)
        if not least <= lost <= most:
            yield f"of {handed} points and events {least} to {most} did not arrive, {lost} were counted"


def _counts(taken: Iterable[Item], recorded: int, lost: int, *, delta: bool) -> Iterator[str]:
    """Compare the counter that arrived with the program's; ``lost`` is the amount that may be missing."""
    points = sorted((item for item in taken if item.counts), key=lambda item: item.time)
    if delta:
        there = sum(item.value for item in points)
        gaps = sum(before.time != after.start for before, after in pairwise(points))
    else:
        there, gaps = (points[-1].value if points else 0), 0
    gaps += there < recorded and not gaps
    if there > recorded:
        yield f"the counter is {there:g} there, {recorded} were counted"
    if gaps > lost:
        yield f"the counter is {there:g} of {recorded} there, with {gaps} gaps, and {lost} points were counted as lost"


def _lines(account: Account, recorded: int, lost: int) -> Iterator[str]:
    numbers = {item.number for item in account.taken}
    sure = {item.number for item in account.acknowledged}
    least, most = recorded - len(numbers), recorded - len(sure)
    if not least <= lost <= most:
        yield f"of {recorded} points {least} to {most} did not arrive, {lost} were counted"
    strange = numbers - set(range(1, recorded + 1))
    if strange:
        yield f"points that were never recorded: {sorted(strange)[:5]}"
    differing = [texts for texts in account.texts.values() if len(texts) > 1]
    if differing:
        yield f"{len(differing)} points came as different lines: {sorted(map(str, differing[0]))[:2]}"
