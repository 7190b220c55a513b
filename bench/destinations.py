"""The cost of a second destination: ``python bench/destinations.py [--seconds 15] [--rounds 3]``.

A process under ``tachograph run`` records 100 gauges and 20 keys of ``log()`` ten times a second. It sends them to its
hub alone, to a real OpenTelemetry Collector alone (``--no-hub``), and to both, in turn. Measured is the processor time
of the process itself, in milliseconds a second of recording, less that of the same loop with recording off. The hub
and the collector are processes of their own, and not in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # real servers are started as tests start them

from race import Goal, report

from servers import free_port, otelcol

JOB = """
import os, sys, time
import tachograph
seconds = float(sys.argv[1])
period, warm_up = 0.1, 2.0
names = [f"gauge-{number}" for number in range(100)]
keys = [f"key-{number}" for number in range(20)]
begin = time.perf_counter()
begin_cpu = None
step = 0
while (elapsed := time.perf_counter() - begin) < seconds + warm_up:
    if begin_cpu is None and elapsed >= warm_up:
        begin_cpu = time.process_time()
    for name in names:
        tachograph.put_metric(name, step)
    tachograph.log({key: step for key in keys}, step=step)
    step += 1
    time.sleep(max(0.0, begin + step * period - time.perf_counter()))
print("milliseconds", (time.process_time() - begin_cpu) / seconds * 1e3)
"""
COLLECTOR = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}}
exporters: {nop: {}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    metrics: {receivers: [otlp], exporters: [nop]}
    logs: {receivers: [otlp], exporters: [nop]}
    traces: {receivers: [otlp], exporters: [nop]}
"""


def measure(folder: Path, seconds: float, *options: str, **variables: str) -> float:
    """Return the milliseconds of processor time a second of one job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
    command = [sys.executable, "-m", "tachograph", "run", *options]
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, "--", sys.executable, str(folder / "job.py"), str(seconds)],
        env={**kept, "TACHOGRAPH_STORE": str(folder / "store"), **variables},
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds + 60,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure each destination in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of recording for each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each destination")
    options = parser.parse_args()
    costs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "job.py").write_text(JOB)
        (folder / "collector.yaml").write_text(COLLECTOR % port)
        endpoint = ("--endpoint", f"http://127.0.0.1:{port}")
        with otelcol(folder / "collector.yaml"):
            for _ in range(options.rounds):
                off = measure(folder, options.seconds, "--port", "0", OTEL_SDK_DISABLED="true")
                for where, how in (
                    ("hub", ("--port", "0")),
                    ("collector", ("--no-hub", *endpoint)),
                    ("both", ("--port", "0", *endpoint)),
                ):
                    costs.setdefault(where, []).append(measure(folder, options.seconds, *how) - off)
    medians = {where: statistics.median(found) * 1e3 for where, found in costs.items()}
    rows = [
        Goal(
            "both destinations, compared with the sum of each",
            medians["both"],
            medians["hub"] + medians["collector"],
            1.1,
            "us",
        ),
        Goal("both destinations, compared with the hub alone", medians["both"], medians["hub"], 2.0, "us"),
    ]
    print({where: f"{median / 1e3:.2f} ms of processor a second" for where, median in medians.items()})
    sys.exit(0 if report("A second destination, in microseconds of processor a second", rows) else 1)


if __name__ == "__main__":
    main()
