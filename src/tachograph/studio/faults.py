"""The faults of a run: its end, values that are not finite, silence, restarts and losses, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import isfinite
from typing import Any, NamedTuple

from tachograph.diagnosis import diagnose_run
from tachograph.runs import (
    NODE,
    SECOND,
    Ending,
    Failure,
    Look,
    Member,
    MemberStart,
    extra_points,
    find_ending,
    nonfinite_name,
    read_block_near,
    read_blocks,
    read_curve_extents,
    read_failed_processes,
    read_failures,
    read_last_increase,
    read_losses,
    read_members,
    read_nonfinite_values,
    read_samples_of_block,
)
from tachograph.studio.charts import Drawn, curves
from tachograph.studio.occurrences import read_incidents
from tachograph.studio.overview import DURATION

MOST = 20  # of one kind in an answer; of the ranks that one names
_LEAST_STALL = 120 * SECOND  # validation and checkpoints take their time, too
_PAUSES = 10  # times the longest pause between points so far that a pause is before it is called a stall
_LOOKED_AT = 4  # blocks of a curve whose pauses count
_LOSS = re.compile(r"(?:^|[\W_])loss(?:$|[\W_])", re.IGNORECASE)
_LEFT_OUT = re.compile(r"(?:^|[\W_])(?:lr|learning_rate|epoch|step)s?(?:$|[\W_])", re.IGNORECASE)
_MINUTE, _HOUR = 60, 3600  # seconds
_EVER = 2**63 - 1
_MOST_PROFILED = 1000  # series of durations that are looked at
_ENDED = {"exception": "ended with an exception", "sigterm": "was terminated (SIGTERM)", "sigint": "was interrupted"}


class Place(NamedTuple):
    """A point of a chart: of which metric and rank, and its x and time."""

    metric: str
    group: str
    kind: str
    rank: int | None
    x: float
    time: int


class Fault(NamedTuple):
    """A fault, in words.

    Attributes:
        kind: ``stalled``, ``ended``, ``exception``, ``lost``, ``nonfinite``, ``hang``, ``slow``, ``restart`` or
            ``dropped``.
        title: a sentence without its full stop.
        detail: more of it, such as the message of an exception; empty for nothing.
        time: nanoseconds since the epoch; None where it is no matter of a moment.
        rank: None where it is of none, or of several.
        place: where the charts show it; None where they do not.
    """

    kind: str
    title: str
    detail: str = ""
    time: int | None = None
    rank: int | None = None
    place: Place | None = None

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self._asdict(), "place": None if self.place is None else self.place._asdict()}


def faults(look: Look, now: int, *, written: bool) -> tuple[list[Fault], dict[str, int]]:
    """Return the faults of a run, the most urgent first, and how many of each kind are left out.

    Args:
        look: at its file.
        now: nanoseconds since the epoch.
        written: a hub has the file open.
    """
    found = read_members(look)
    job = [one for one in found if one.role != NODE]
    end = find_ending(look, found, now, written=written)
    drawn = [each for each in curves(look) if each.number and not each.about.get("progress")]
    places = _Places(look, drawn)
    kinds = (
        _stalled(look, end, job, places, now),
        _ended(look, end, found, job, places),
        _lost(job, places, now, written=written),
        _nonfinite(look, drawn),
        _hangs(look, end, places),
        _slow(look, end, now),
        _restarts(look, job, places),
        _dropped(look),
    )
    listed: list[Fault] = []
    more: dict[str, int] = {}
    for some in kinds:
        listed += some[:MOST]
        if len(some) > MOST:
            more[some[MOST].kind] = len(some) - MOST
    return listed, more


class _Places:
    """Finds the point of the charts that is nearest to a time: on the loss where there is one.

    Args:
        look: at the file.
        drawn: its curves, without progress bars.

    Attributes:
        extents: of those that have points, by their numbers.
    """

    def __init__(self, look: Look, drawn: Sequence[Drawn]) -> None:
        self._look = look
        extents = read_curve_extents(look.rows) if drawn else {}
        self.extents = {each.number: extents[each.number] for each in drawn if each.number in extents}
        self._drawn = [each for each in drawn if each.number in self.extents]

    def before(self, time: int, rank: int | None) -> Place | None:
        """Return the last point of a rank up to a time; of any rank where it has no curve, or there is no rank."""
        return self._find(time, rank, is_before=True)

    def after(self, time: int, rank: int | None) -> Place | None:
        """Return the first point since a time."""
        return self._find(time, rank, is_before=False)

    def _find(self, time: int, rank: int | None, *, is_before: bool) -> Place | None:
        own = [each for each in self._drawn if rank is not None and each.rank == rank] or self._drawn
        if not own:
            return None
        best = max(own, key=self._weight)
        name = best.metric, best.group, best.kind
        numbers = [each.number for each in own if (each.metric, each.group, each.kind) == name]
        block = read_block_near(self._look.rows, numbers, time, is_before=is_before)
        if block is None:
            return None
        samples = read_samples_of_block(self._look.file, block)
        if is_before:
            sample = next((each for each in reversed(samples) if each.time_unix_nano <= time), None)
        else:
            sample = next((each for each in samples if each.time_unix_nano >= time), None)
        if sample is None:
            return None
        curve = next(each for each in own if each.number == block.curve)
        return Place(curve.named, curve.group, curve.kind, curve.rank, sample.x, sample.time_unix_nano)

    def _weight(self, each: Drawn) -> tuple[bool, bool, int]:
        return bool(_LOSS.search(each.metric)), not _LEFT_OUT.search(each.metric), self.extents[each.number].points


def _ended(look: Look, end: Ending, found: Sequence[Member], job: Sequence[Member], places: _Places) -> list[Fault]:
    """Return the end of the run, and the exceptions of its last attempt, the first one first."""
    raised = [] if end.state == "finished" else read_failed_processes(look, found)
    known = [_raised(each, places) for each in raised]
    if len(known) > 1:
        known[0] = known[0]._replace(title=known[0].title.replace(" failed: ", " failed first: ", 1))
    if end.state in ("failed", "killed"):
        brief = f"{end.brief[0].upper()}{end.brief[1:]}"
        last = max((one.newest.last for one in job), default=None)
        where = places.before(_EVER, None)
        first = (
            known[0]._replace(title=f"{brief}; {known[0].title}")
            if known
            else Fault("ended", brief, "", last, None, where)
        )
        known = [first, *known[1:]]
    return [each._replace(title=f"{each.title[:1].upper()}{each.title[1:]}") for each in known]


def _raised(failure: Failure, places: _Places) -> Fault:
    who = failure.process or ("torchrun" if failure.role == "agent" else "the program")
    title = f"{who} failed: {failure.type or failure}"
    detail = failure.message if failure.type else ""
    where = places.before(failure.time_unix_nano, failure.rank)
    return Fault("exception", title, detail, failure.time_unix_nano, failure.rank, where)


def _lost(job: Sequence[Member], places: _Places, now: int, *, written: bool) -> list[Fault]:
    gone = [one for one in job if one.lost(now, written=written)]
    if not gone:
        return []
    last = max(one.newest.last for one in gone)
    rank = gone[0].rank if len(gone) == 1 else None
    ranks = sum(one.rank is not None for one in job)
    of = f" (of {ranks} ranks)" if ranks > 1 else ""
    title = f"No longer reporting: {_listed([_who(one) for one in gone])}{of}"
    return [
        Fault("lost", title, _listed([_where(one) for one in gone]), last, rank, places.before(_EVER, gone[0].rank))
    ]


def _stalled(look: Look, end: Ending, job: Sequence[Member], places: _Places, now: int) -> list[Fault]:
    """Return the stall of a run that goes on, whose ranks are heard, and that has recorded no point for very long.

    The pause must be ten times the longest one before, and nothing may have been profiled in it: where points came
    rarely anyway, nothing is said.
    """
    alive = [
        one
        for one in job
        if one.role != "agent" and not (one.newest.ended or one.newest.lost or one.newest.silent(now))
    ]
    newest = [(extent.newest, number) for number, extent in places.extents.items()]
    if end.state != "running" or not alive or not newest:
        return []
    begun = max(one.newest.first for one in alive)
    since, curve = max(newest)
    profiled = read_last_increase(look.rows, DURATION, among=_MOST_PROFILED)
    since = max(since, begun, profiled)
    pause = _longest_pause(look, curve, begun)
    if pause is None or now - since < max(_LEAST_STALL, _PAUSES * pause):
        return []
    title = (
        f"Stalled: no new point for {_duration(now - since)}, although {_listed([_who(one) for one in alive])} "
        f"{'is' if len(alive) == 1 else 'are'} still reporting"
    )
    detail = f"The longest pause between two points before that was {_duration(pause)}."
    return [Fault("stalled", title, detail, since, None, places.before(since, None))]


def _longest_pause(look: Look, curve: int, begun: int) -> int | None:
    """Return the longest time between two of a curve's last points; None where there are too few to tell."""
    blocks = list(islice(read_blocks(look.rows, curve, newest_first=True), _LOOKED_AT))
    samples = [sample for block in blocks for sample in read_samples_of_block(look.file, block)]
    times = sorted(sample.time_unix_nano for sample in samples if sample.time_unix_nano >= begun)
    return max((after - before for before, after in pairwise(times)), default=None)


class _First(NamedTuple):
    """The first value of a curve that is not finite: when, at which x, and its kind."""

    time: int
    x: float
    kind: str
    curve: Drawn
    also: Mapping[str, float]


def _nonfinite(look: Look, drawn: Sequence[Drawn]) -> list[Fault]:
    """Return a fault a metric: its first value that is not finite, and those of its other ranks."""
    of = {each.number: each for each in drawn}
    many: dict[tuple[str, str, str], int] = {}
    first: dict[tuple[str, str, str], list[_First]] = {}
    for number, amount, seq0 in read_nonfinite_values(look.rows):
        curve = of.get(number)
        if curve is None:
            continue
        key = curve.named, curve.group, curve.kind
        many[key] = many.get(key, 0) + amount
        if len(first.setdefault(key, [])) < MOST and len(first) <= MOST:
            first[key] += _first(look, curve, seq0)
    found = sorted((min(some), some, many[key]) for key, some in first.items() if some)
    listed = [_unfinite(one, some, amount, _distinct_name(one.curve, drawn)) for one, some, amount in found]
    return [*listed, *[Fault("nonfinite", "")] * (len(first) - len(found) if len(first) > MOST else 0)]


def _first(look: Look, curve: Drawn, seq0: int) -> Iterator[_First]:
    block = next(read_blocks(look.rows, curve.number, since=seq0), None)
    odd: dict[str, tuple[float, int]] = {}
    for sample in [] if block is None else read_samples_of_block(look.file, block):
        values = [*extra_points(sample), (sample.x, sample.value)]
        for x, value in sorted((each for each in values if not isfinite(each[1])), key=lambda each: each[0]):
            odd.setdefault(nonfinite_name(value), (x, sample.time_unix_nano))
    if odd:
        kind, (x, time) = min(odd.items(), key=lambda each: (each[1][1], each[1][0]))
        yield _First(time, x, kind, curve, {other: at for other, (at, _) in odd.items() if other != kind})


def _distinct_name(curve: Drawn, drawn: Iterable[Drawn]) -> str:
    """Return the name of a curve's metric, with its group and its attributes if others have the same name."""
    namesakes = [each for each in drawn if each.named == curve.named]
    name = curve.named
    if curve.group and any(each.group != curve.group for each in namesakes):
        name = f"{curve.group}/{name}"
    place = curve.group, curve.kind, curve.rank, curve.start
    siblings = [each.attributes for each in namesakes if (each.group, each.kind, each.rank, each.start) == place]
    told = ", ".join(
        f'{key}="{value}"' for key, value in curve.attributes.items() if any(of.get(key) != value for of in siblings)
    )
    return f"{name} {{{told}}}" if told else name


def _unfinite(one: _First, some: Iterable[_First], amount: int, name: str) -> Fault:
    curve, said = one.curve, {"NaN": "NaN", "Infinity": "+Inf", "-Infinity": "-Inf"}
    who = "" if curve.rank is None else f" on rank {curve.rank}"
    at = curve.about.get("x_units") or ("step" if one.x == round(one.x) else "x")
    title = f"{name}: first {said[one.kind]} at {at} {one.x:.10g}{who}"
    then = [f"first {said[kind]} at {at} {x:.10g}" for kind, x in one.also.items()]
    others = sorted({each.curve.rank for each in some if each.curve.rank is not None} - {curve.rank})
    parts = [f"{amount:,} value{'s are' if amount != 1 else ' is'} not finite".replace(",", "\u202f"), *then]
    if others:
        parts.append(f"also {'ranks' if len(others) > 1 else 'rank'} {_listed([str(rank) for rank in others])}")
    place = Place(curve.named, curve.group, curve.kind, curve.rank, one.x, one.time)
    return Fault("nonfinite", title, "; ".join(parts), one.time, curve.rank, place)


def _hangs(look: Look, end: Ending, places: _Places) -> list[Fault]:
    """Return the times at which the job stood still, or a rank of it died, as the doctor has told them."""
    found = []
    for each in read_incidents(look):
        began, ranks = each["began"], each["ranks"]
        hangs = "hangs" if end.state == "running" and not each["ended"] else "hung"
        title = "A rank died before the others" if each["grade"] == "died" else f"The job {hangs}"
        lasted = f" for {_duration(each['ended'] - began)}" if each["ended"] and each["grade"] != "died" else ""
        rank = ranks[0] if len(ranks) == 1 else None
        found.append(Fault("hang", f"{title}{lasted}", each["text"], began, rank, places.before(began, rank)))
    return found[::-1]


def _slow(look: Look, end: Ending, now: int) -> list[Fault]:
    """Return the verdicts about the steps of training: of a run that goes on about its last minutes."""
    goes_on = end.state == "running"
    found = []
    for each in diagnose_run(look, now if goes_on else 0, recent=goes_on).verdicts:
        costs = f"This costs {_duration(round(each.cost * SECOND))} per hour. " if each.share else ""
        detail = f"{_sentence(each.evidence)} {costs}{_sentence(each.advice)}"
        found.append(Fault("slow", each.title, detail, rank=each.ranks[0] if len(each.ranks) == 1 else None))
    return found


def _restarts(look: Look, job: Sequence[Member], places: _Places) -> list[Fault]:
    """Return the beginnings of each attempt but the first one, with how the one before ended, the newest first."""
    raised = {(each.process, each.pid, each.restart): (each.type, each.message) for each in read_failures(look.rows)}
    found = []
    for turn in range(1, max((len(one.starts) for one in job), default=1)):
        again = [one for one in job if len(one.starts) > turn]
        if all(one.starts[turn - 1].ended == "exit" and not one.starts[turn].restart for one in again):
            continue  # somebody resumed a run that had ended well, no launcher did
        time = min(one.starts[turn].first for one in again)
        since = max(one.starts[turn - 1].last for one in again)  # points are recorded before the first export
        why = [said for one in again if (said := _before(one, one.starts[turn - 1], raised))]
        who = _listed([_who(one) for one in again])
        rank = again[0].rank
        title = f"Restart {turn}: {who} started again"
        found.append(
            Fault(
                "restart", title, _listed(why, "; "), time, rank if len(again) == 1 else None, places.after(since, rank)
            )
        )
    return found[::-1]


def _before(one: Member, start: MemberStart, raised: Mapping[tuple[int, int, int], tuple[str, str]]) -> str:
    """Return the end of a start of a process in words; empty where it ended well."""
    known = raised.get((one.number, start.pid, start.restart))
    if known:
        message = " ".join(known[1].split())
        return f"previous attempt: {_who(one)} failed: {': '.join(filter(None, (known[0], message[:200])))}"
    if start.lost or (start.announced and not start.ended):
        return f"previous attempt: {_who(one)} stopped reporting"
    return f"previous attempt: {_who(one)} {_ENDED[start.ended]}" if start.ended in _ENDED else ""


def _dropped(look: Look) -> list[Fault]:
    return [
        Fault(
            "dropped",
            f"{_points(each.points)} dropped: {each.reason}{f' ({each.destination})' if each.destination else ''}",
            each.why.replace("`", ""),
        )
        for each in read_losses(look.rows)
    ]


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _points(many: int) -> str:
    return f"{many:,} point{'s' * (many != 1)}".replace(",", "\u202f")


def _who(one: Member) -> str:
    if one.rank is not None:
        return f"rank {one.rank}"
    return {"agent": "torchrun", "": "the program"}.get(one.role, one.role)


def _where(one: Member) -> str:
    host = str(one.resource.get("host.name", ""))
    return f"{_who(one)}: pid {one.newest.pid}{f' on {host}' if host else ''}"


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    left = len(names) - MOST
    return separator.join([*names[:MOST], *([f"and {left} more"] if left > 0 else [])])


def _duration(nanoseconds: int) -> str:
    seconds = round(nanoseconds / SECOND)
    if seconds < 2 * _MINUTE:
        return f"{seconds} s"
    return f"{seconds // _MINUTE} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"
