"""The verdicts and the goodput of a run, from the totals of steps in its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tachograph.diagnosis.goodput import Goodput, TrainingAttempt, goodput
from tachograph.diagnosis.phases import PHASES
from tachograph.diagnosis.verdict import Verdict, scores, verdicts
from tachograph.diagnosis.window import Totals, Window, numbers, windows_of
from tachograph.runs.file import Look
from tachograph.runs.members import mapping, rank_of
from tachograph.runs.queries import (
    EventRow,
    has_restarted,
    read_event_spans,
    read_last_event_time,
    read_stream_events,
)
from tachograph.runs.recorded import END, event_of

EVENT = "tachograph.steps"
_COUNT = "dl.step.count"
_LOOKS = 48  # at the totals of a process, over its steps
_RECENT = 90  # events of the newest ones: a minute and a half at first, a quarter of an hour later


class Diagnosis(NamedTuple):
    """All that the totals of steps say about a run.

    Attributes:
        verdicts: the costliest first.
        goodput: None where nothing has trained.
        scores: each rank's excess of own time over the others, as a share of the step.
        windows: the steps of each rank that the verdicts are about.
    """

    verdicts: Sequence[Verdict]
    goodput: Goodput | None
    scores: Mapping[int, float]
    windows: Sequence[Window] = ()

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "verdicts": [{**each.data(), "line": each.line()} for each in self.verdicts],
            "goodput": None if self.goodput is None else {**self.goodput.data(), "line": self.goodput.line()},
            "stragglers": {str(rank): round(score, 4) for rank, score in self.scores.items()},
            "phases": [
                {
                    "rank": window.rank,
                    "steps": window.steps,
                    "step_seconds": window.step / 1e9,
                    "phase_seconds": {phase: window.a_step(phase) / 1e9 for phase in window.phases},
                }
                for window in self.windows
            ],
        }


class StepStream(NamedTuple):
    """The totals of a process's start, the oldest first.

    Attributes:
        stream: its number in the file.
        rank: None where it has none.
        totals: at some of its times; the last ones are there.
    """

    stream: int
    rank: int | None
    totals: Sequence[Totals]

    @property
    def last(self) -> Totals:
        """The newest totals."""
        return self.totals[-1]


def step_streams(look: Look, *, recent: bool) -> list[StepStream]:
    """Return the starts of processes that have trained, in their order.

    Args:
        look: at the file.
        recent: the newest totals alone; else some over all the steps.
    """
    found = []
    for stream, resource, first, last in read_event_spans(look.rows, _COUNT):
        if first is None or last is None:
            continue
        totals = list(_recent(look, stream) if recent else _spread(look, stream, first, last))
        if totals:
            found.append(StepStream(stream, rank_of(mapping(resource)), totals))
    return found


def _recent(look: Look, stream: int) -> list[Totals]:
    rows = read_stream_events(look.rows, stream, EVENT, limit=_RECENT, newest_first=True)
    return list(_totals(look, rows))[::-1]


def _spread(look: Look, stream: int, first: int, last: int) -> Iterator[Totals]:
    newest = next(_totals(look, read_stream_events(look.rows, stream, EVENT, newest_first=True)), None)
    if newest is None:
        return
    seen = -1
    for turn in range(_LOOKS):
        since = first + (last - first) * turn // _LOOKS
        found = next(_totals(look, read_stream_events(look.rows, stream, EVENT, since=since)), None)
        if found is not None and found["steps"] > seen and found["steps"] < newest["steps"]:
            seen = found["steps"]
            yield found
    yield newest


def _totals(look: Look, rows: Iterable[EventRow]) -> Iterator[Totals]:
    """Yield the totals of steps in events."""
    for row in rows:
        try:
            totals = event_of(row).attributes
        except DecodeError as error:
            look.file.note(f"event {row.number}: {error}")
            continue
        if isinstance(totals.get("steps"), int) and len(numbers(totals, "phases")) == len(PHASES):
            yield totals


def windows(streams: Sequence[StepStream], *, recent: bool) -> list[Window]:
    """Return the window of each rank's newest start: its last steps, or all but the first third of them."""
    newest = {stream.rank: stream for stream in streams}
    return windows_of([(stream.rank, stream.totals) for stream in newest.values()], recent=recent)


def diagnosis(look: Look, now: int, *, recent: bool) -> Diagnosis:
    """Return the diagnosis of a run.

    Args:
        look: at its file.
        now: nanoseconds since the epoch; 0 for a run that has ended.
        recent: verdicts are about its last minutes, as of a run that goes on; else about all but the first third.
    """
    streams = step_streams(look, recent=recent)
    found = windows(streams, recent=recent)
    return Diagnosis(verdicts(found), _goodput(look, streams, now), scores(found), found)


def _goodput(look: Look, streams: Sequence[StepStream], now: int) -> Goodput | None:
    if not streams:
        return None
    first = min(streams, key=lambda stream: (stream.rank is None, stream.rank or 0)).rank
    attempts = [_attempt(look, stream) for stream in streams if stream.rank == first]
    attempts.sort(key=lambda attempt: attempt.begin)
    starts = [int(stream.last.get("run_start", 0)) for stream in streams if stream.last.get("run_start")]
    if not now:
        now = max(attempts[-1].last, read_last_event_time(look.rows, END) or 0)
    return goodput(min(starts, default=attempts[0].begin), now, attempts)


def _attempt(look: Look, stream: StepStream) -> TrainingAttempt:
    totals = stream.last
    return TrainingAttempt(
        *(int(totals["begin"]), int(totals["end"]), int(totals["last"])),
        numbers(totals, "phases"),
        numbers(totals, "rest") or [0.0] * len(PHASES),
        totals.get("saved"),
        _is_complete(look, stream.stream),
    )


def _is_complete(look: Look, stream: int) -> bool:
    """Tell whether a start came to its own end, and is none of several that a launcher counts."""
    if has_restarted(look.rows, stream):
        return False
    ends = read_stream_events(look.rows, stream, END, newest_first=True)
    try:
        return any(event_of(row).attributes.get("reason") == "exit" for row in ends)
    except DecodeError as error:
        look.file.note(f"the end of a process: {error}")
        return False
