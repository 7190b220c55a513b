"""Verdicts: the reasons for which a training is slow, from the totals of its ranks. Silent where they are not sure.

A rule looks at a window of each rank: the phases of its steps, by step. The thresholds are those of faults that were
injected, and of healthy programs on which every rule is silent (``bench/anatomy.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from tachograph.diagnosis.phases import PHASES
from tachograph.diagnosis.window import APART, Window, median_place

LEAST_STEPS = 20
CRITICAL, WARNING = "critical", "warning"
_MS = 1e6  # nanoseconds
_HOUR = 3600
_LEAST = 1 * _MS  # a step that a phase must take: a tiny model waits for data, too, and nobody minds
_COMPILING_STEPS = 3
_LEAST_SKIPPED = 5
_LEAST_SAMPLES = 3  # backwards whose communication was timed
_CREEP_STEPS, _CREEP_SECONDS, _CREEP_POINTS = 200, 20.0, 8
_CREEP_RISING = 0.85  # of the pairs of samples
_CREEP_SHARE, _CREEP_BYTES = 0.05, 64 << 20  # in the window
_CREEP_WITHIN = 24 * _HOUR
_WAITED = 0.5  # of a straggler's excess that the others must have waited
_MOST_NAMED = 8
_MOST_OF_A_WINDOW = 0.5


class Threshold(NamedTuple):
    """Shares of the step's time from which on there is a verdict, and a critical one."""

    least: float
    critical: float


STRAGGLER, INPUT, COMPILE = Threshold(0.1, 0.3), Threshold(0.1, 0.2), Threshold(0.1, 0.3)
CHECKPOINT, EVALUATION = Threshold(0.1, 0.3), Threshold(0.4, 0.6)
COMMUNICATION = Threshold(0.3, 0.5)
GRADIENTS, OTHER, OVERFLOW = Threshold(0.25, 0.4), Threshold(0.2, 0.4), Threshold(0.1, 0.5)


class Verdict(NamedTuple):
    """A reason for which a training is slow, or will end.

    Attributes:
        name: of its rule.
        severity: ``critical`` or ``warning``.
        ranks: those that it is about; empty for a program without ranks.
        share: of the steps' time that it costs; 0 where it costs none.
        title: a sentence without its full stop.
        evidence: the numbers that it follows from.
        advice: what to try.
    """

    name: str
    severity: str
    ranks: tuple[int, ...]
    share: float
    title: str
    evidence: str
    advice: str

    @property
    def cost(self) -> float:
        """The seconds that it costs an hour."""
        return self.share * _HOUR

    def line(self) -> str:
        """Return it in one line, for people."""
        costs = f"; costs {_lasting(self.cost)} per hour" if self.share else ""
        return f"{self.title} ({self.evidence}{costs}): {self.advice}"

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self._asdict(), "cost_seconds_an_hour": round(self.cost, 1), "share": round(self.share, 4)}


def verdicts(windows: Sequence[Window]) -> list[Verdict]:
    """Return the verdicts about a program by its ranks' windows, the costliest first; none of few steps."""
    known = [window for window in windows if window.steps >= LEAST_STEPS]
    if not known:
        return []
    slow = list(_stragglers(known))
    apart = {rank for verdict in slow for rank in verdict.ranks}
    found = slow or list(_communication(known))
    found += [verdict for rule in _RULES for verdict in _by_rank(rule, known, apart)]
    return sorted(found, key=lambda each: (each.severity != CRITICAL, -each.share, each.name))


class _Finding(NamedTuple):
    """A rule's finding about one rank."""

    share: float
    critical: bool
    title: str  # with {where}
    evidence: str
    advice: str


_Rule = Callable[[Window], _Finding | None]


def _by_rank(rule: tuple[str, _Rule], known: Sequence[Window], apart: set[int]) -> Iterator[Verdict]:
    """Yield the verdict of a rule about all ranks that it holds for; a straggler's own reason is said already."""
    name, look = rule
    found = [(window, finding) for window in known if (finding := look(window)) is not None]
    if name == "input_bound":
        found = [(window, finding) for window, finding in found if window.rank not in apart]
    if not found:
        return
    _, worst = max(found, key=lambda each: each[1].share)
    ranks = tuple(sorted(window.rank for window, _ in found if window.rank is not None))
    share = sum(finding.share for _, finding in found) / len(known)
    if len(known) == 1:
        where = ""
    elif len(found) == len(known):
        where = " on every rank"
    else:
        where = f" on {_named(ranks)}"
    severity = CRITICAL if worst.critical else WARNING
    yield Verdict(name, severity, ranks, share, worst.title + where, worst.evidence, worst.advice)


def own_times(windows: Sequence[Window]) -> list[float]:
    """Return the nanoseconds of each rank's own work in a step: without the waiting for others in its backward.

    Ranks of one group end a step together; those that are early wait in the backward's all-reduce.
    """
    least = min(window.a_step("backward") for window in windows)
    return [window.step - (window.a_step("backward") - least) for window in windows]


def scores(windows: Sequence[Window]) -> dict[int, float]:
    """Return each rank's excess of own time over the median of the others, as a share of the step.

    It is that of the part of the window in which a rank has its median excess: a lone pause makes no straggler. Empty
    for one rank alone, for ranks that do not take the same steps, and if most of the steps lie in one part.
    """
    parts = _parts(_alike(windows))
    excesses = [_excesses(part) for part in parts]
    return {rank: excesses[_median_part(parts, rank)][rank] for rank in (excesses[0] if excesses else ())}


def _median_part(parts: Sequence[Sequence[Window]], rank: int) -> int:
    """Return the index of the part in which a rank has its median excess."""
    return median_place([_excesses(part)[rank] for part in parts], [part[0].steps for part in parts])


def _excesses(ranked: Sequence[Window]) -> dict[int, float]:
    own = own_times(ranked)
    excesses = {}
    for place, window in enumerate(ranked):
        others = median(own[:place] + own[place + 1 :])
        if window.rank is not None:
            excesses[window.rank] = (own[place] - others) / max(1.0, window.step)
    return excesses


def _parts(ranked: Sequence[Window]) -> list[list[Window]]:
    """Return the windows of all ranks by part; whole ones if a rank has no parts, none if one part has most steps."""
    if not ranked or not ranked[0].parts or {len(window.parts) for window in ranked} != {len(ranked[0].parts)}:
        return [list(ranked)] if ranked else []
    parts = [list(part) for part in zip(*(window.parts for window in ranked), strict=True)]
    steps = [part[0].steps for part in parts]
    if max(steps) > sum(steps) * _MOST_OF_A_WINDOW:
        return []  # a lone pause cannot be told from a slow rank
    if all(window.device_steps for part in parts for window in part):
        return [[window.on_device() for window in part] for part in parts]
    return parts


def _alike(windows: Sequence[Window]) -> list[Window]:
    """Return ranks that train the same: as many steps, each as long, for each step waits for all ranks."""
    ranked = [window for window in windows if window.rank is not None and window.steps >= LEAST_STEPS]
    if len(ranked) <= 1 or _differ([each.steps for each in ranked]) or _differ([each.step for each in ranked]):
        return []
    timed = all(window.device_steps >= LEAST_STEPS for window in ranked)
    return [window.on_device() for window in ranked] if timed else ranked


def _differ(found: Sequence[float]) -> bool:
    return min(found) < max(found) * (1 - APART)


def _stragglers(windows: Sequence[Window]) -> Iterator[Verdict]:
    """Yield the slowest rank, where it is a tenth of the step behind the others and they wait for it."""
    found = scores(windows)
    if not found:
        return
    rank = max(found, key=lambda each: found[each])
    parts = _parts(_alike(windows))
    known = parts[_median_part(parts, rank)]
    (slow,) = [window for window in known if window.rank == rank]
    others = [window for window in known if window is not slow]
    excess = {
        phase: slow.a_step(phase) - median(other.a_step(phase) for other in others)
        for phase in PHASES
        if phase != "backward"
    }
    worst = max(excess, key=lambda phase: excess[phase])
    waited = median(other.a_step("backward") for other in others) - slow.a_step("backward")
    behind = found[rank] * slow.step
    # The others' waiting is the proof: without it each rank runs at its own pace, and none holds up another.
    if found[rank] < STRAGGLER.least or behind < _LEAST or waited < _WAITED * behind:
        return
    yield Verdict(
        "straggler",
        CRITICAL if found[rank] >= STRAGGLER.critical else WARNING,
        (rank,),
        found[rank],
        f"Rank {rank} slows the others down by {found[rank]:.0%} of the step",
        f"it spends {_shown(excess[worst])} more per step {_WORDS[worst]}, and the others wait {_shown(waited)} for it",
        _OF_A_STRAGGLER.get(worst, "compare its machine with the others (clock speed, other jobs, a slow disk)"),
    )


def _communication(windows: Sequence[Window]) -> Iterator[Verdict]:
    """Yield the share of the step for which every rank waits for gradients, by the rank that waits least."""
    known = _alike(windows)
    if not known or min(window.samples for window in known) < _LEAST_SAMPLES:
        return
    least = min(known, key=lambda window: window.waited)
    share = least.waited / max(1.0, *(window.step for window in known))
    if share < COMMUNICATION.least or least.waited < _LEAST:
        return
    yield Verdict(
        "communication_bound",
        CRITICAL if share >= COMMUNICATION.critical else WARNING,
        tuple(sorted(window.rank for window in known if window.rank is not None)),
        share,
        f"Every rank spends {share:.0%} of the step waiting for the gradients of other ranks",
        f"{_shown(least.waited)} of {_shown(least.step)} per step, in {least.samples} steps timed by DDP",
        "use no_sync() while gradients accumulate, larger batches or buckets (bucket_cap_mb), gradient compression,"
        " or a faster network",
    )


_WORDS = {
    "data_wait": "waiting for data",
    "forward": "in forward",
    "gradients": "between backward and optimizer",
    "optimizer": "in the optimizer",
    "checkpoint": "in checkpoints",
    "compile": "compiling",
    "evaluation": "evaluating",
    "other": "between the steps",
    "rollout": "in forward passes without gradients",
}
_OF_A_STRAGGLER = {
    "data_wait": "check its data loading: a slow disk, larger samples, fewer workers, or a transform that only it runs",
    "checkpoint": "save on all ranks at the same time, or in the background",
    "other": "check what only this rank does between steps, such as logging or evaluation",
}


def _input(window: Window) -> _Finding | None:
    timed = window.usual("data_wait").timed("data_wait")
    share, taken = timed.share("data_wait"), timed.a_step("data_wait")
    if share < INPUT.least or taken < _LEAST:
        return None
    advice = "use more workers, do less work per sample, raise prefetch_factor, or move the data closer to the machine"
    evidence = f"{_shown(taken)} of {_shown(timed.step)} per step"
    if window.workers == 0:
        evidence += "; num_workers=0"
        advice = "use DataLoader(num_workers=…, persistent_workers=True), or do less work per sample"
    elif window.workers:
        evidence += f"; num_workers={window.workers}"
    title = f"The device is idle {share:.0%} of the time, waiting for data" if window.device_steps else ""
    return _Finding(
        share, share >= INPUT.critical, title or f"{share:.0%} of the step is spent waiting for data", evidence, advice
    )


def _phase(
    phase: str, least: Threshold, title: str, advice: str, *, endings: int = 0, each_step: bool = False
) -> _Rule:
    """Return a rule about a phase's share of the step.

    Args:
        phase: its name.
        least: the shares of a verdict.
        title: with ``{}`` for the share.
        advice: what to try.
        endings: so many checkpoints must have ended.
        each_step: the phase is one of each step, so that a lone pause in it is no fault of the program.
    """

    def rule(window: Window) -> _Finding | None:
        timed = (window.usual(phase) if each_step else window).timed(phase)
        share, taken = timed.share(phase), timed.a_step(phase)
        if share < least.least or taken < _LEAST or window.checkpoints < endings:
            return None
        evidence = f"{_shown(taken)} of {_shown(timed.step)} per step"
        return _Finding(share, share >= least.critical, title.format(f"{share:.0%}"), evidence, advice)

    return rule


def _compiles(window: Window) -> _Finding | None:
    share = window.share("compile")
    if window.compiled <= _COMPILING_STEPS or share < COMPILE.least:
        return None
    evidence = f"{window.compiled} of {window.steps} steps compiled"
    advice = "use torch.compile(dynamic=True) or pad batches to a few sizes; TORCH_LOGS=recompiles shows the reasons"
    return _Finding(share, share >= COMPILE.critical, f"{share:.0%} of the time is spent recompiling", evidence, advice)


def _evaluates(window: Window) -> _Finding | None:
    taken = (window.phases.get("evaluation", 0.0) - window.unsure) / max(1, window.steps)
    share = taken / max(1.0, window.step)
    if share < EVALUATION.least or taken < _LEAST:
        return None
    title = f"{share:.0%} of the time is spent on evaluation"
    evidence = f"{_shown(taken)} of {_shown(window.step)} per step"
    return _Finding(share, share >= EVALUATION.critical, title, evidence, "evaluate less often, or on fewer samples")


def _overflows(window: Window) -> _Finding | None:
    all_steps = window.steps + window.skipped
    share = window.skipped / all_steps
    if window.skipped < _LEAST_SKIPPED or share < OVERFLOW.least:
        return None
    title = f"{share:.0%} of the optimizer steps are skipped because gradients overflow"
    evidence = f"{window.skipped} of {all_steps} steps"
    advice = "use bfloat16, a lower learning rate, or gradient clipping"
    return _Finding(share, share >= OVERFLOW.critical, title, evidence, advice)


def _creep(window: Window) -> _Finding | None:
    memory = window.memory
    if window.steps < _CREEP_STEPS or len(memory) < _CREEP_POINTS:
        return None
    if memory[-1].time - memory[0].time < _CREEP_SECONDS:
        return None
    slopes = [(b.size - a.size) / (b.time - a.time) for a, b in combinations(memory, 2) if b.time > a.time]
    slope = median(slopes)  # Theil and Sen: a few outliers do not move it
    rising = sum(each > 0 for each in slopes) / len(slopes)
    grown = slope * (memory[-1].time - memory[0].time)
    if slope <= 0 or rising < _CREEP_RISING or grown < max(_CREEP_BYTES, _CREEP_SHARE * memory[0].size):
        return None
    left = (window.limit - memory[-1].size) / slope
    if not window.limit or left > _CREEP_WITHIN:
        return None
    evidence = f"{slope * 60 / 2**20:.0f} MiB per minute, {memory[-1].size / 2**30:.1f} GiB now"
    advice = "do not keep tensors with their graph (use loss.item() or .detach()), and check for growing lists"
    return _Finding(0.0, left < _HOUR, f"Memory keeps growing and runs out in {_lasting(left)}", evidence, advice)


_RULES: tuple[tuple[str, _Rule], ...] = (
    ("input_bound", _input),
    ("compile_storm", _compiles),
    (
        "checkpoint_bound",
        _phase(
            "checkpoint",
            CHECKPOINT,
            "{} of the time is spent on checkpoints",
            "save less often, only what changed, or in the background (torch.distributed.checkpoint.async_save)",
            endings=2,
        ),
    ),
    ("evaluation_bound", _evaluates),
    (
        "gradients_bound",
        _phase(
            "gradients",
            GRADIENTS,
            "{} of the step is spent between backward and optimizer",
            "check gradient clipping and logging there; .item() waits for the device",
            each_step=True,
        ),
    ),
    (
        "overhead_bound",
        _phase(
            "other",
            OTHER,
            "{} of the time is spent between the steps",
            "log less often than every step, and profile callbacks and metrics with --prof",
            each_step=True,
        ),
    ),
    ("overflow_loop", _overflows),
    ("memory_creep", _creep),
)
# Verdicts that only a comparison of ranks tells: each rank shows its others itself.
OF_RANKS = ("straggler", "communication_bound")
NAMES = (*OF_RANKS, *(name for name, _ in _RULES))


def _named(ranks: Sequence[int]) -> str:
    few = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' * (len(ranks) != 1)} {few}{more}"


def _shown(nanoseconds: float) -> str:
    ms = nanoseconds / _MS
    return f"{ms / 1e3:.3g} s" if ms >= 1e3 else f"{ms:.3g} ms"  # noqa: PLR2004


def _lasting(seconds: float) -> str:
    if seconds < 90:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"
