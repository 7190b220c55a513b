"""Goodput: the share of a run's wall time that went into steps which count, and where the rest went.

Definitions follow ml-goodput's (Google, "ml-goodput-measurement"): productive is the time of steps themselves; a step
that has to be done again after a restart is lost, however well it ran. Ours differ in two points: steps are known by
their phases, so waiting for data, checkpoints, evaluation and compilation within the loop are apart from each other;
and a restart's lost steps are those after the last checkpoint that had ended, as nothing says where it resumed. A
program that came to its own end has lost none: one that follows it in the run is another training, with a start-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tachograph.diagnosis.phases import PHASES, productive

# Productive first; then in the order in which the bar shows them.
CATEGORIES = (
    *("productive", "data_wait", "checkpoint", "evaluation", "compile"),
    *("startup", "restart", "lost", "other"),
)
_LOOP = ("data_wait", "checkpoint", "evaluation", "compile")
_SECOND = 1e9
_SKEW = 1e9  # nanoseconds for which attempts on two machines may overlap


class TrainingAttempt(NamedTuple):
    """A start of the training process; times in nanoseconds since the epoch.

    Attributes:
        begin: its first mark: the loop begins.
        end: the end of its last step.
        last: its last mark.
        phases: nanoseconds of its steps, by phase, in the order of :data:`~tachograph.diagnosis.phases.PHASES`.
        rest: the same, of the time after its last step.
        saved: the productive time until its last checkpoint had ended; None where it saved none.
        complete: the program came to its own end, and no launcher began it again.
    """

    begin: int
    end: int
    last: int
    phases: Sequence[float]
    rest: Sequence[float]
    saved: int | None
    complete: bool = False


class Goodput(NamedTuple):
    """The seconds of a run by category; all together they are its wall time."""

    seconds: Mapping[str, float]

    @property
    def wall(self) -> float:
        """The seconds from the run's start to its end."""
        return sum(self.seconds.values())

    def share(self, category: str) -> float:
        """Return a category's share of the wall time."""
        return self.seconds[category] / self.wall if self.wall else 0.0

    def line(self) -> str:
        """Return it in one line, for people: categories of a hundredth at least, the most first."""
        others = sorted(CATEGORIES[1:], key=lambda each: -self.seconds[each])
        shown = [f"{_WORDS[each]} {self.share(each):.0%}" for each in others if self.share(each) >= 0.01]  # noqa: PLR2004
        return ", ".join(
            [f"goodput {self.share('productive'):.0%} of {_lasting(self.wall)} (time in training steps)", *shown]
        )

    def data(self) -> dict[str, float]:
        """Return the seconds by category, for JSON."""
        return {name: round(self.seconds[name], 3) for name in CATEGORIES}


_WORDS = {
    "data_wait": "data wait",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "compile": "compiling",
    "startup": "start-up",
    "restart": "restarts",
    "lost": "lost steps",
    "other": "after the last step",
}


def goodput(start: int, end: int, attempts: Sequence[TrainingAttempt]) -> Goodput | None:
    """Return the goodput of a run; None where nothing has trained, or programs beside each other have.

    Args:
        start: of the run, nanoseconds since the epoch.
        end: the same; now, for a run that goes on.
        attempts: of one rank, in their order.
    """
    beside = any(one.last - other.begin > _SKEW for one, other in pairwise(attempts))
    if not attempts or beside:  # those are no attempts of one training
        return None
    found = dict.fromkeys(CATEGORIES, 0.0)
    found["startup"] = max(0, attempts[0].begin - start)
    for place, attempt in enumerate(attempts):
        whole = [of_steps + after for of_steps, after in zip(attempt.phases, attempt.rest, strict=True)]
        done, after = productive(attempt.phases), productive(attempt.rest)
        for name, time in zip(PHASES, whole, strict=True):
            if name in _LOOP:
                found[name] += time
        following = attempts[place + 1].begin if place + 1 < len(attempts) else None
        if following is None or attempt.complete:
            found["productive"] += done
            found["other"] += after
        else:  # what was not saved was done again
            kept = min(attempt.saved or 0, done)
            found["productive"] += kept
            found["lost"] += done - kept + after
        into = "other" if following is None else "startup" if attempt.complete else "restart"
        found[into] += max(0, (end if following is None else following) - attempt.last)
    return Goodput({name: time / _SECOND for name, time in found.items()})


def _lasting(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004
