"""An incident: one time that a job stands still, or waits long for a rank; with a verdict that is kept up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

HANG = "tachograph.hang"  # an event, and the gauge
Grade = Literal["hang", "late", "died"]


class HangVerdict(NamedTuple):
    """The answer to who holds up a job.

    Attributes:
        grade: ``hang`` is an alert; ``late`` is shown alone: the rank is alive; ``died`` is of a rank whose end has
            ended the others.
        cause: in a word or two, such as ``blocked`` or ``mismatch``.
        ranks: those that hold up the others.
        text: all of it in sentences.
        notes: what could not be seen.
    """

    grade: Grade
    cause: str
    ranks: tuple[int, ...]
    text: str
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """The part that tells one verdict from another: the text changes with each second."""
        return self.grade, self.cause, self.ranks


class Standing(NamedTuple):
    """A rank at this moment: its state in a word, its operation, and the line that it stands at."""

    rank: int
    pid: int
    host: str
    state: str
    operation: str
    line: str
    stacks: Sequence[tuple[str, Sequence[str]]]  # name and lines of each thread
    seconds: float  # since the rank got on


class Incident:
    """A verdict from its first moment to its end.

    Attributes:
        number: counts the incidents of a run, from 1.
        began: nanoseconds since the epoch.
        ended: the same; 0 while it lasts.
        verdict: the latest one.
        hung: it was a hang at any time, or is a death: then it is kept.
    """

    def __init__(self, number: int, began: int, verdict: HangVerdict) -> None:
        self.number, self.began, self.ended, self.verdict = number, began, 0, verdict
        self.hung = verdict.grade != "late"

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "number": self.number,
            "began": self.began,
            "ended": self.ended,
            "grade": self.verdict.grade,
            "cause": self.verdict.cause,
            "ranks": list(self.verdict.ranks),
            "text": self.verdict.text,
            "notes": list(self.verdict.notes),
        }


def parse_incident(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an incident as :meth:`Incident.data` does, from the attributes of its event."""
    found = {name: attributes.get(f"hang.{name}", default) for name, default in _DEFAULTS.items()}
    return {**found, "ranks": list(found["ranks"]), "notes": list(found["notes"])}


def incident_attributes(incident: Incident) -> dict[str, Any]:
    """Return the attributes of an incident's event."""
    return {f"hang.{name}": value for name, value in incident.data().items()}


_DEFAULTS: dict[str, Any] = {
    "number": 0,
    "began": 0,
    "ended": 0,
    "grade": "hang",
    "cause": "",
    "ranks": [],
    "text": "",
    "notes": [],
}
