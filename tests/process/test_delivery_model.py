"""OTLP and InfluxDB through one queue, against a model: delivered and counted is what was recorded."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from scripted import Answer, counts, scripted
from tachograph.exporters.influxdb import InfluxDB
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording.registry import Registry

_QUICK: list[Answer] = [answer for answer in get_args(Answer) if answer != "silent"]


def _destination(door: str, url: str, folder: Path, registry: Registry, limit: int) -> OtlpExporter | InfluxDB:
    if door == "otlp":
        settings = OtlpSettings("logs", "http/protobuf", f"{url}/v1/logs")
        return OtlpExporter(
            {"logs": settings}, registry, store=folder, run_id="r", spool_limit=limit, first_back_off=0.001
        )
    target = InfluxTarget(url, token="t0k3n", batch_size=7, concurrency=1)  # noqa: S106
    return InfluxDB(
        target, registry, store=folder, spool_limit=limit, first_back_off=0.001, flush_interval=0.0, pace=lambda: None
    )


def _put(out: OtlpExporter | InfluxDB, numbers: range) -> None:
    if isinstance(out, OtlpExporter):
        out.put("logs", b"\n".join(b"%d" % number for number in numbers), len(numbers))
    else:
        out.put(b"\n".join(b"m n=1 %d" % number for number in numbers), len(numbers))


@pytest.mark.parametrize("door", ["otlp", "influxdb"])
@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    answers=st.lists(st.sampled_from(_QUICK), max_size=12),
    limit=st.sampled_from([0, 400, 2**20]),
    pause=st.sampled_from([0.0, 0.002]),
)
@example(sizes=[3] * 9, answers=["away"] * 5 + ["reset", "takes", "too large"], limit=2**20, pause=0.002)
@example(sizes=[9] * 12, answers=["away"] * 8, limit=400, pause=0.002)
def test_delivered_and_counted_is_what_was_recorded(
    door: str, sizes: list[int], answers: list[Answer], limit: int, pause: float
) -> None:
    """Each item arrives, or is counted with its reason; in order; and twice only where an answer was lost.

    What arrived without an answer may be refused when it comes again: only that can be counted and have arrived.
    """
    registry, recorded = Registry(), sum(sizes)
    with scripted(answers) as there, tempfile.TemporaryDirectory() as folder:
        out = _destination(door, there.url, Path(folder), registry, limit)
        number = 0
        for size in sizes:
            _put(out, range(number, number + size))
            number += size
            time.sleep(pause)
        deadline = time.monotonic() + 20
        while not out.flush(1) and time.monotonic() < deadline and _waits(out, Path(folder)):
            pass
        out.close(5)
        assert list(Path(folder).rglob("*.spool")) == []
    counted, arrived = sum(counts(registry, "dropped").values()), set(there.numbers)
    assert recorded <= len(arrived) + counted <= recorded + len(there.unanswered)
    assert set(counts(registry, "dropped")) <= ({"rejected", "spool_full"} if limit else {"rejected"})
    first = list(dict.fromkeys(there.numbers))
    assert first == sorted(first)
    assert there.again <= there.unanswered
    if door == "otlp":
        assert len(there.again) <= counts(registry, "resent").get("otlp", 0)
        assert bool(there.unanswered) or counts(registry, "resent") == {}


def _waits(out: OtlpExporter | InfluxDB, folder: Path) -> bool:
    waiting = sum(queue.waiting for queue in out.queues) if isinstance(out, OtlpExporter) else out.waiting
    return bool(waiting) or any(folder.rglob("*.spool"))
