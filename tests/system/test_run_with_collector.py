"""``tachograph run`` with the endpoint of a real OpenTelemetry Collector, with a hub and without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collectors import running
from launches import run_program
from programs import events
from servers import wait_until

PROGRAM = """
import tachograph

step = tachograph.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=[0.1, 1, 10], group="g")
for number in range(10):
    tachograph.put_metric("loss", number, "g")
    tachograph.put_metric("checkpoint.success", 1, "g")
    step.record(0.05 * 4 ** number)
tachograph.monitor.log_event(tachograph.monitor.Event("stepped", __import__("datetime").datetime.now(), {"number": 9}))
"""


def record(folder: Path, protocol: str, *options: str) -> tuple[dict[str, float], list[tuple[str, Any]]]:
    """Run the program, and return the values and the events that a collector has received."""
    folder.mkdir()
    with running(folder) as collector:
        port = collector.grpc if protocol == "grpc" else collector.http
        done = run_program(
            folder,
            PROGRAM,
            options=options,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: any("end" in str(event) for event in events(collector.file)), 20, collector.server.log)
        found = [(str(event["eventName"]), event["attributes"].get("number")) for event in events(collector.file)]
        return collector.values("program"), sorted(found, key=str)


@pytest.mark.otelcol
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_receives_the_same_with_and_without_a_hub(tmp_path: Path, protocol: str) -> None:
    """Values and events are equal, whichever protocol the processes send with."""
    with_hub = record(tmp_path / "with", protocol)
    assert with_hub == record(tmp_path / "without", protocol, "--no-hub")
    assert with_hub[0]["checkpoint_success_total"] == 10
    assert ("stepped", 9) in with_hub[1]
