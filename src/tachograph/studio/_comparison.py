"""Runs beside each other: their columns, and the metrics that they have, to be drawn in one chart each."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tachograph.runs import RunFile, StoreError, look, to_browser_value
from tachograph.studio._api import Question, Unanswered
from tachograph.studio.charts import charts, curves
from tachograph.studio.overview import Overview, RunEntry

MOST_RUNS = 500  # in one comparison
_KEPT = 2000  # runs whose metrics are remembered


class Comparison:
    """Answers with the columns and the metrics of several runs; from several threads at once.

    Args:
        overview: of the store's runs, with their columns.
        clock: nanoseconds since the epoch.
        abandoned: asked now and then whether to stop reading.
    """

    def __init__(self, overview: Overview, clock: Callable[[], int], abandoned: Callable[[], bool]) -> None:
        self._overview = overview
        self._clock = clock
        self._abandoned = abandoned
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[RunEntry, list[dict[str, Any]]]] = {}

    def ask(self, question: Question) -> dict[str, Any]:
        """Return the runs of a question in its order with all of their columns, those that are gone, and the metrics.

        A metric has its group, its kind, its axes, and the ids of the runs that have it.

        Raises:
            Unanswered: too many runs at once, or the store cannot be read.
        """
        names = list(dict.fromkeys(question.texts("run")))
        if len(names) > MOST_RUNS:
            raise Unanswered(HTTPStatus.BAD_REQUEST, f"at most {MOST_RUNS} runs at once, not {len(names)}")
        try:
            found, gone = self._overview.named(names)
        except StoreError as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"{error.strerror} ({error.filename})") from error
        metrics: dict[tuple[str, str, str], dict[str, Any]] = {}
        for path, entry in found:
            for each in self._metrics(path, entry):
                key = each["group"], each["metric"], each["kind"]
                metrics.setdefault(key, {**each, "runs": []})["runs"].append(entry.entry["id"])
        runs = [{"run": entry.entry, "columns": to_browser_value(entry.columns)} for _, entry in found]
        return {"now": self._clock(), "runs": runs, "gone": gone, "metrics": list(metrics.values())}

    def _metrics(self, path: Path, entry: RunEntry) -> list[dict[str, Any]]:
        with self._lock:
            kept = self._kept.get(path)
        if kept is not None and kept[0].entry is entry.entry:
            return kept[1]
        found: list[dict[str, Any]] = []
        with (
            contextlib.suppress(StoreError, sqlite3.Error),  # the entry says that it cannot be read
            look(RunFile(path, looking=True), self._abandoned) as reading,
        ):
            for chart in charts(reading, curves(reading)):
                scales = {each["scale"]: each for each in chart["scales"]}
                named = {name: chart[name] for name in ("group", "kind", "x")}
                found += [
                    {**named, "metric": each["metric"], "y": scales[each["scale"]]}
                    for each in chart["metrics"]
                    if each["curves"] and not each["progress"]
                ]
        with self._lock:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[path] = entry, found
        return found
