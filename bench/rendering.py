"""The time of a page of 11,000 lines: ours, and prometheus_client's for the same series.

Run: ``python bench/rendering.py``. Goal: at most a quarter of prometheus_client's time (medians of one run).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from race import Goal, report

from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.registry import Registry

HISTOGRAMS, GAUGES, VALUES = 440, 1060, 5  # 440 histograms of 22 lines, and with their headers 11,000 lines or so
LABELS = {"dl_rank": "0", "dl_role": "default", "dl_run_id": "bench"}
ROUNDS = 15
GOAL = 0.25


def medians() -> tuple[int, dict[str, float]]:
    """Return the number of samples on the page, and the seconds for a page by its renderer."""
    ours, theirs = Registry(), CollectorRegistry()
    _fill(ours, theirs)
    page = Page(LABELS, {}, ours)
    metrics = ours.collect()
    first = time.perf_counter()
    page.render(metrics, None, Format())
    first = time.perf_counter() - first
    timed: dict[str, Callable[[], bytes]] = {
        "ours": lambda: page.render(metrics, None, Format()),
        "ours, collected, too": lambda: page.render(ours.collect(), None, Format()),
        "ours, OpenMetrics, UTF-8": lambda: page.render(metrics, None, Format(True, "1.0.0", True)),
        "prometheus_client": lambda: generate_latest(theirs),
    }
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, render in timed.items():
            began = time.perf_counter()
            render()
            seconds[name].append(time.perf_counter() - began)
    lines = sum(not line.startswith(b"#") for line in page.render(metrics, None, Format()).splitlines())
    return lines, {"ours, first page": first, **{name: statistics.median(found) for name, found in seconds.items()}}


def _fill(ours: Registry, theirs: CollectorRegistry) -> None:
    chance = random.Random(1)
    names = [*LABELS, "otel_scope_name", "layer"]
    values = [*LABELS.values(), "train"]
    group = ours.group("train")
    step = group.declare("step.duration", kind="histogram", unit="s", description="Steps.", boundaries=None)
    histogram = Histogram("step_duration_seconds", "Steps.", names, registry=theirs, buckets=step.boundaries)
    gradient = group.declare("gradient.norm", kind="gauge", unit="", description="Gradients.", boundaries=None)
    gauge = Gauge("gradient_norm", "Gradients.", names, registry=theirs)
    for layer in range(max(HISTOGRAMS, GAUGES)):
        for value in [chance.lognormvariate(0, 1) for _ in range(VALUES)]:
            if layer < HISTOGRAMS:
                step.record(value, {"layer": str(layer)})
                histogram.labels(*values, str(layer)).observe(value)
            gradient.record(value, {"layer": str(layer)})
            gauge.labels(*values, str(layer)).set(value)


if __name__ == "__main__":
    count, found = medians()
    print(f"a page of {count} samples, medians of {ROUNDS}:")
    for who, took in found.items():
        print(f"  {who:26} {took * 1e3:8.2f} ms")
    milliseconds = {who: took * 1e3 for who, took in found.items()}
    report("A page", [Goal("a page", milliseconds["ours"], milliseconds["prometheus_client"], GOAL, "ms")])
