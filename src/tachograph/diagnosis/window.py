"""Windows: some steps of each rank, from the totals that it has logged. The rules of verdicts look at these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tachograph.diagnosis.phases import PHASES, WARM_UP

APART = 0.1  # of the steps: ranks further apart do not train the same
_WHOLE = 1 / 3  # of the steps come before the window, where it is about a whole run
_PARTS = 5  # of a window: a lone pause is in one of them, or in two if ranks have logged at different steps
_SECOND = 1e9  # nanoseconds
# Phases that the device's own times tell of, where there are some: the host's show where it waits for the device.
_ON_DEVICE = ("data_wait", "gradients", "other")


class MemorySample(NamedTuple):
    """A look at a rank's memory: seconds, and bytes."""

    time: float
    size: int


class Window(NamedTuple):
    """Some steps of a rank.

    Attributes:
        rank: None where it has none.
        steps: how many.
        phases: nanoseconds of all of them, by phase.
        skipped: optimizer steps that a gradient scaler left out.
        compiled: steps in which something was compiled.
        checkpoints: how many ended.
        device: nanoseconds of the steps that were timed on the device, by phase; empty where none was.
        device_steps: how many these are.
        workers: of the loader; None where that is not known.
        memory: looks at its resident memory.
        limit: of the machine's memory or its group's, in bytes; 0 where that is not known.
        samples: backwards whose communication was timed.
        waited: nanoseconds that such a one waited for other ranks and computed nothing.
        unsure: nanoseconds of evaluation that may be rollouts.
        parts: the same steps in a few windows, the oldest first, all ranks at the same steps; empty if not known.
    """

    rank: int | None
    steps: int
    phases: Mapping[str, float]
    skipped: int = 0
    compiled: int = 0
    checkpoints: int = 0
    device: Mapping[str, float] = {}
    device_steps: int = 0
    workers: int | None = None
    memory: Sequence[MemorySample] = ()
    limit: int = 0
    samples: int = 0
    waited: float = 0.0
    unsure: float = 0.0
    parts: Sequence[Window] = ()

    @property
    def step(self) -> float:
        """The nanoseconds of a step."""
        return sum(self.phases.values()) / max(1, self.steps)

    def a_step(self, phase: str) -> float:
        """Return the nanoseconds of a phase in a step."""
        return self.phases.get(phase, 0.0) / max(1, self.steps)

    def share(self, phase: str) -> float:
        """Return a phase's share of the step: on the device, where it was timed there and the phase is a wait."""
        timed = self.timed(phase)
        return timed.a_step(phase) / max(1.0, timed.step)

    def timed(self, phase: str) -> Window:
        """Return the window by the clock that tells of a phase: the device's where that has timed a wait."""
        return self.on_device() if phase in _ON_DEVICE else self

    def usual(self, phase: str) -> Window:
        """Return the part in which a phase has its median share, so that a lone pause has no effect.

        The window itself if it has no parts.
        """
        if not self.parts:
            return self
        shares = [part.share(phase) for part in self.parts]
        return self.parts[median_place(shares, [part.steps for part in self.parts])]

    def on_device(self) -> Window:
        """Return the window as the device has timed it; as it is where it has not."""
        return self._replace(phases=self.device, steps=self.device_steps) if self.device_steps else self


def median_place(values: Sequence[float], weights: Sequence[float]) -> int:
    """Return the index of the weighted median of values."""
    half, passed = sum(weights) / 2, 0.0
    order = sorted(range(len(values)), key=values.__getitem__)
    for index in order:
        passed += weights[index]
        if passed > half:
            return index
    return order[-1]


Totals = Mapping[str, Any]  # the attributes of an event ``tachograph.steps``


def windows_of(ranks: Sequence[tuple[int | None, Sequence[Totals]]], *, recent: bool) -> list[Window]:
    """Return the windows of ranks, over the same steps where all have taken about as many.

    Args:
        ranks: each with its totals, the oldest first.
        recent: from the first of these on; else without the first third of the steps.
    """
    looks = [(rank, found) for rank, totals in ranks if len(found := _looks(totals, recent=recent)) > 1]
    starts = [_start(found, recent=recent) for _, found in looks]
    ends = [found[-1]["steps"] for _, found in looks]
    if looks and min(ends) >= max(ends) * (1 - APART) and max(starts) < min(ends):
        starts, ends = [max(starts)] * len(looks), [min(ends)] * len(looks)
    windows = []
    for (rank, found), start, end in zip(looks, starts, ends, strict=True):
        if start < end:
            # Ranks over the same steps are compared part by part, so they share the bounds of the parts.
            alike = [other for (_, other), *span in zip(looks, starts, ends, strict=True) if span == [start, end]]
            windows.append(_window_in_parts(rank, found, _part_bounds(alike, start, end)))
    return windows


def _looks(totals: Sequence[Totals], *, recent: bool) -> list[Totals]:
    """Return the totals after the first steps, and those at their end where the others do not go back so far."""
    found = [each for each in totals if each["steps"] > WARM_UP]
    if found and numbers(found[-1], "warm.phases") and (len(found) == 1 or not recent):
        last = found[-1]
        return [{"steps": WARM_UP, "phases": last["warm.phases"], "compiled": last.get("warm.compiled", 0)}, *found]
    return found


def _start(found: Sequence[Totals], *, recent: bool) -> int:
    first = int(found[0]["steps"])
    if recent:
        return first
    return max(first, int(found[-1]["steps"] * _WHOLE))


def _part_bounds(ranks: Sequence[Sequence[Totals]], start: int, end: int) -> list[int]:
    """Return the steps at which the parts of a window begin and end: about five parts of as many steps each.

    A part ends where a rank has logged its totals, that with the fewest looks at the window. Between two of these the
    time of a step is an average, so a bound in between would spread a lone pause over several parts.
    """
    logged = min(([each["steps"] for each in rank if start < each["steps"] < end] for rank in ranks), key=len)
    ideal = [start + (end - start) * place / _PARTS for place in range(1, _PARTS)]
    inner = {min(logged, key=lambda steps: abs(steps - bound)) for bound in ideal} if logged else set()
    return [start, *sorted(inner), end]


def _window_in_parts(rank: int | None, found: Sequence[Totals], bounds: Sequence[int]) -> Window:
    parts = [_window(rank, found, *part) for part in pairwise(bounds)]
    return _window(rank, found, bounds[0], bounds[-1])._replace(parts=parts)


def _window(rank: int | None, found: Sequence[Totals], start: int, end: int) -> Window:
    first, last = _at(found, start), _at(found, end)

    def grown(key: str) -> int:
        return round(float(last.get(key, 0)) - float(first.get(key, 0)))

    samples, waited = (b - a for a, b in zip(first["communication"], last["communication"], strict=True))
    timed = [each for each in found if start <= each["steps"] and "rss.rank" in each]
    return Window(
        rank,
        end - start,
        _between(first, last, "phases"),
        *(grown("skipped"), grown("compiled"), grown("checkpoints")),
        _between(first, last, "device"),
        grown("device.steps"),
        found[-1].get("workers"),
        [MemorySample(each["last"] / _SECOND, each["rss.rank"]) for each in timed],
        int(found[-1].get("memory.limit", 0)),
        *(int(samples), waited / samples if samples else 0.0),
        float(last["unsure"]) - float(first["unsure"]),
    )


def _at(found: Sequence[Totals], steps: int) -> Totals:
    """Return the totals after so many steps: between two looks as if all steps in between took as long."""
    after = next(each for each in found if each["steps"] >= steps)
    before = next((each for each in reversed(found) if each["steps"] <= steps), after)
    apart = after["steps"] - before["steps"]
    part = (steps - before["steps"]) / apart if apart else 0.0
    between: dict[str, Any] = {}
    for key in ("phases", "device", "communication"):
        late = numbers(after, key) or ([0.0, 0.0] if key == "communication" else [])
        early = numbers(before, key) or [0.0] * len(late)
        between[key] = [a + (b - a) * part for a, b in zip(early, late, strict=False)]
    for key in ("skipped", "compiled", "checkpoints", "device.steps", "unsure"):
        early_count = before.get(key, 0)
        between[key] = early_count + (after.get(key, 0) - early_count) * part
    return between


def numbers(totals: Totals, key: str) -> list[float]:
    """Return the numbers of an attribute of totals; none where it is missing, or something else."""
    found = totals.get(key, ())
    return [float(each) for each in found] if isinstance(found, list | tuple) else []


def _between(first: Totals, last: Totals, key: str) -> dict[str, float]:
    before = numbers(first, key) or [0.0] * len(PHASES)
    return {name: b - a for name, a, b in zip(PHASES, before, numbers(last, key), strict=False) if b > a}
