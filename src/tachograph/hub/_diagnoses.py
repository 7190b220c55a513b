"""The diagnoses of live runs, renewed now and then, as metrics of the hub's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tachograph.diagnosis.goodput import CATEGORIES
from tachograph.diagnosis.verdict import CRITICAL, OF_RANKS
from tachograph.diagnosis.verdict_run import Diagnosis, diagnosis
from tachograph.hub._run import LiveRun
from tachograph.hub.processes import LiveProcess
from tachograph.recording.own_metrics import GOODPUT, STRAGGLER, VERDICT
from tachograph.recording.points import Attributes, MetricPoints, NumberPoint
from tachograph.runs.file import RunFile, look


class Diagnoses:
    """The diagnoses of runs, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Diagnosis] = {}

    def renew(self, runs: Iterable[LiveRun], now: int, guarded: Callable[[Callable[[], Any]], None]) -> None:
        """Diagnose the runs that go on, and forget the others.

        Args:
            runs: those that have a file.
            now: nanoseconds since the epoch.
            guarded: calls a function whose errors are the file's.
        """
        diagnoses: dict[str, Diagnosis] = {}
        for run in runs:
            if not run.over_since:
                guarded(lambda run=run: self._diagnose(run, now, diagnoses))  # type: ignore[misc]
        self._known = diagnoses

    @staticmethod
    def _diagnose(run: LiveRun, now: int, diagnoses: dict[str, Diagnosis]) -> None:
        if run.store is None or not run.store.is_open:
            return
        with look(RunFile(run.store.path)) as reading:
            current = diagnosis(reading, now, recent=True)
        if current.goodput is not None:
            diagnoses[run.name] = current

    def points(self, processes: Iterable[LiveProcess]) -> list[MetricPoints]:
        """Return the points about some processes: goodput with the labels of a run's first rank."""
        goodput: list[NumberPoint] = []
        scores: list[NumberPoint] = []
        slow: list[NumberPoint] = []
        described_runs: set[str] = set()
        for process in sorted(processes, key=lambda each: (each.rank is None, each.rank or 0)):
            known = self._known.get(process.run.name)
            if known is None or known.goodput is None:
                continue
            if process.run.name not in described_runs and (process.rank is not None or not known.scores):
                described_runs.add(process.run.name)
                seconds = known.goodput.seconds
                goodput += [_point(process, seconds[name], category=name) for name in CATEGORIES]
            if process.rank is not None and process.rank in known.scores:
                scores.append(_point(process, known.scores[process.rank]))
            slow += [
                _point(process, 1 + (verdict.severity == CRITICAL), verdict=verdict.name)
                for verdict in known.verdicts
                if verdict.name in OF_RANKS and process.rank in verdict.ranks
            ]
        some = ((GOODPUT, goodput), (STRAGGLER, scores), (VERDICT, slow))
        return [MetricPoints(*metric[:5], points) for metric, points in some if points]


def _point(process: LiveProcess, value: float, **more: str) -> NumberPoint:
    labels: Attributes = tuple(sorted((*process.labels, *more.items())))
    return NumberPoint(labels, value, 0)
