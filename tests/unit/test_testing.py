"""The test double that we ship."""

from __future__ import annotations

import tachograph
from tachograph.recording.summary import ValueSummary
from tachograph.testing import capture


def test_capture_shows_what_exporters_would_get() -> None:
    """Gauges, counters, histograms and profiled functions are read back, and only what came since the capture began."""

    @tachograph.prof(group="captured")
    def work() -> None:
        tachograph.put_metric("step.duration.ms", 5, "captured")

    tachograph.put_metric("loss", 9.0, "captured")
    with capture() as captured:
        work()
        tachograph.put_metric("loss", 0.5, "captured", attributes={"split": "train"})
        tachograph.put_metric("x.success", 2, "captured")
    assert captured.value("loss", "captured") is None
    assert captured.value("loss", "captured", split="train") == 0.5
    assert captured.value("x.success", "captured") == 2
    for name in ("step.duration.ms", "step.duration"):
        spread = captured.value(name, "captured")
        assert isinstance(spread, ValueSummary)
        assert (spread.count, spread.total.value()) == (1, 5)
    assert captured.names("captured") == ["function.calls", "function.duration", "loss", "step.duration", "x.success"]
    assert captured.value("no such", "no such") is None
