"""A real OpenTelemetry Collector receives the points of Metrics, equal one by one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from collectors import running
from programs import events, run
from servers import wait_until


@pytest.mark.otelcol
def test_points_arrive_equal_one_by_one(tmp_path: Path) -> None:
    """5,000 unthrottled values, NaN and infinities among them, are 5,000 points in the collector's file, in order."""
    with running(tmp_path) as collector:
        done = run(
            tmp_path,
            """
import math
import tachograph as cf
with cf.start(metrics="none", traces="none") as pipeline:
    metric = cf.Metric("loss", group=cf.MetricGroup("training", units="step"), throttle=None)
    for step in range(5000):
        value = {7: math.nan, 8: math.inf, 9: -math.inf}.get(step % 1000, 1 / (step + 3))
        metric.record(value, at=step % 4000)
    assert pipeline.flush(20)
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.http}",
        )
        assert (done.returncode, done.stderr) == (0, "")
        # Whole lines count: the collector may be in the middle of writing its last one.
        wait_until(lambda: len(events(collector.file)) > 5000, 20, collector.server.log)
        found = [event["attributes"] for event in events(collector.file)]
    definition, *points = found
    assert (definition["metric"], definition["group"], definition["x_units"]) == ("loss", "training", "step")
    assert len(points) == 5000
    for step, point in enumerate(points):
        wanted = {7: math.nan, 8: math.inf, 9: -math.inf}.get(step % 1000, 1 / (step + 3))
        assert repr(point["value"]) == repr(wanted)
        assert (point["x"], point["branch"]) == (step % 4000, int(step >= 4000))
        assert point["tachograph.seq"] == step + 2
