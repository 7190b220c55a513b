"""The processes of a run with each of their starts, and the facts that they told of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tachograph.identity.program import program_name
from tachograph.recording.points import AttributeValue
from tachograph.runs.file import Look
from tachograph.runs.queries import read_starts

if TYPE_CHECKING:
    from tachograph.runs.recorded import Process

NODE = "node"  # the role of a hub's metrics of its machine: no process of the job
SECOND = 1_000_000_000
INTERVALS = 5  # of silence after which a process is lost
_LEAST_SILENCE = 5 * SECOND
_UNKNOWN_INTERVAL = 10 * SECOND  # until the second export tells
RENAMED = "renamed"  # the process went on under another instance: see tachograph.pipeline._process_identity
_WRITTEN_WITHIN = 10 * SECOND  # a hub saves every five seconds when each process was heard
_DIGITS = 20  # of an integer of 64 bits


def silence_limit(interval: int) -> int:
    """Return the nanoseconds of silence after which a process is lost; its export interval is 0 while unknown."""
    return max(_LEAST_SILENCE, INTERVALS * (interval or _UNKNOWN_INTERVAL))


# The hub's own node is no process of the job. Not json_extract(): that fails where the text is damaged.
_HEARD = (
    "SELECT min(first_export), max(last_export), count(DISTINCT process) FROM incarnation"
    " JOIN process ON process = id WHERE resource NOT LIKE ?"
)
_NODE = f'%"dl.role": "{NODE}"%'
# When `tachograph run` started the job and saw it end: all that is known of a job without a process.
_LAUNCHED = "SELECT min(time), max(time) FROM (SELECT time FROM launch UNION ALL SELECT time FROM job_end)"


class MemberStart(NamedTuple):
    """One start of a process; times in nanoseconds since the epoch."""

    pid: int
    restart: int
    announced: bool
    first: int
    last: int
    interval: int
    ended: str
    lost: bool

    def silent(self, now: int) -> bool:
        """Tell whether nothing was received for so long that a hub would take the start for lost."""
        return now - self.last > silence_limit(self.interval) + _WRITTEN_WITHIN


class Member(NamedTuple):
    """A process of a run.

    Attributes:
        number: in the file.
        instance: its ``service.instance.id``.
        resource: the resource attributes of its newest start.
        starts: at least one, the oldest first.
    """

    number: int
    instance: str
    resource: Mapping[str, AttributeValue]
    starts: Sequence[MemberStart]

    @property
    def rank(self) -> int | None:
        """Its rank; None where it has none."""
        return rank_of(self.resource)

    @property
    def role(self) -> str:
        """Its role; empty where it has none."""
        return str(self.resource.get("dl.role", ""))

    @property
    def newest(self) -> MemberStart:
        """Its last start."""
        return self.starts[-1]

    def lost(self, now: int, *, written: bool) -> bool:
        """Tell whether its last start fell silent without an announced end.

        Args:
            now: nanoseconds since the epoch.
            written: a hub has the file open, so that more may come.
        """
        last = self.newest
        return last.lost or (last.announced and not last.ended and (last.silent(now) or not written))


def read_members(look: Look) -> list[Member]:
    """Return the processes by rank, those without one last."""
    found: dict[int, Member] = {}
    for start in read_starts(look.rows):
        one = MemberStart(
            start.pid,
            start.restart,
            bool(start.announced),
            start.first_export,
            start.last_export,
            start.interval,
            start.ended,
            bool(start.lost),
        )
        before = found.get(start.process)
        starts = [*(before.starts if before else ()), one]
        found[start.process] = Member(start.process, start.instance, parse_object(start.resource), starts)
    present = [each for each in found.values() if each.newest.ended != RENAMED]
    return sorted(present, key=lambda each: (each.rank is None, each.rank or 0, each.starts[0].first))


def read_dictionary(
    rows: Callable[[str], Iterable[Sequence[Any]]], table: Literal["config", "summary"]
) -> dict[str, Any]:
    """Return the configuration of a run, or its results, by key; of a key of several ranks that of the lowest one.

    Args:
        rows: returns the rows of a query.
        table: the one of the two.
    """
    found = [
        (rank_of(parse_object(resource)), stream, key, value)
        for resource, stream, key, value in rows(
            f"SELECT resource, stream, key, value FROM {table} JOIN stream ON stream.id = stream"  # noqa: S608
            " JOIN process ON process.id = process"
        )
    ]
    found.sort(key=lambda row: (row[0] is not None, -(row[0] or 0), row[1]))
    values = {key: json.loads(value) for _, _, key, value in found}  # the last one of a key stays
    return {key: values[key] for key in sorted(values)}


def read_tags(rows: Callable[[str], Iterable[Sequence[Any]]]) -> list[str]:
    """Return the tags of a run, sorted."""
    return [name for (name,) in rows("SELECT name FROM tag ORDER BY name")]


def read_notes(rows: Callable[[str], Iterable[Sequence[Any]]]) -> str:
    """Return the notes of a run; the empty string where it has none."""
    return "".join(text for (text,) in rows("SELECT text FROM notes"))


def read_display_name(rows: Callable[[str], Iterable[Sequence[Any]]]) -> str:
    """Return the display name of a run; the empty string where it has none."""
    return "".join(text for (text,) in rows("SELECT text FROM display_name"))


def programs(rows: Callable[[str], Iterable[Sequence[Any]]]) -> list[dict[str, AttributeValue]]:
    """Return the facts about each start by ``tachograph run``, the oldest first; see :attr:`Run.program`."""
    return [parse_object(facts) for (facts,) in rows("SELECT program FROM launch ORDER BY time, host")]


def read_program(rows: Callable[[str], Iterable[Sequence[Any]]]) -> dict[str, AttributeValue]:
    """Return the facts about the newest start by ``tachograph run``; where the run had several hosts, all of them."""
    found = programs(rows)
    if not found:
        return {}
    said = [parse_object(resource).get("host.name") for (resource,) in rows("SELECT resource FROM process")]
    hosts = sorted({str(name) for name in [*said, *(each.get("host") for each in found)] if name})
    return {**found[-1], "host": hosts} if len(hosts) > 1 else found[-1]


def find_job_name(rows: Callable[[str], Iterable[Sequence[Any]]], found: Iterable[Member | Process]) -> str:
    """Return the name of a run's program: that of a rank, as torchrun's own process may have another one.

    As long as no process of the job has reported, or where none ever does, it is the name of the command that
    ``tachograph run`` was given; the empty string where that is not known. The hub's own metrics of the machine name
    no program.
    """
    named = sorted(
        (one for one in found if one.role != NODE and one.resource.get("service.name")),
        key=lambda one: (one.rank is None, one.role == "agent", one.rank or 0),
    )
    if named:
        return str(named[0].resource["service.name"])
    argv = read_program(rows).get("argv")
    return program_name([str(each) for each in argv]) if isinstance(argv, list) and argv else ""


def parse_object(text: Any) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one where there is none: damage that SQLite cannot see."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def parse_pairs(text: Any) -> dict[str, Any]:
    """Return the attributes of a curve, JSON pairs; none where the text is damaged."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return {}


def rank_of(resource: Mapping[str, AttributeValue]) -> int | None:
    """Return the rank that a resource names; None where it names none."""
    found = str(resource.get("dl.rank", ""))
    try:
        return int(found) if len(found) <= _DIGITS else None
    except ValueError:
        return None


def read_extent(rows: Callable[..., Iterable[Sequence[Any]]], changed: int) -> tuple[int, int, int]:
    """Return when a run's job started and last sent something, in nanoseconds, and the number of its processes.

    The hub's own observation of the machine goes on after the job, and does not count.

    Args:
        rows: runs a query and returns its rows.
        changed: the time of the file, for a run of which nothing else is known.
    """
    first, last, processes = next(iter(rows(_HEARD, _NODE)), (None, None, 0))
    if not processes:
        first, last = next(iter(rows(_LAUNCHED)), (None, None))
    return first or changed, last or changed, processes
