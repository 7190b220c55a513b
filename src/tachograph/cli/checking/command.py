"""``tachograph check``: its command line."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tachograph.cli.command_line import FAILED, WRONG_USAGE, add_influxdb, fail, influxdb, parser, seconds

if TYPE_CHECKING:
    from tachograph.cli.checking.probes import Probe


def command(arguments: Sequence[str]) -> int:
    """Test what is configured, a line each, and return the exit code: 1 where something fails, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    from tachograph.cli.checking.probes import probes
    from tachograph.identity.environment import text
    from tachograph.logger.influx_target import InfluxTarget
    from tachograph.pipeline.settings import read_settings

    try:
        settings = read_settings(os.environ, endpoint=options.endpoint)
        influx = InfluxTarget.read(os.environ, **influxdb(options))
    except (ValueError, TypeError) as error:
        return fail("check", str(error), WRONG_USAGE)
    results = [
        _tried(probe, options.timeout) for probe in probes(settings, influx, text(os.environ, "TACHOGRAPH_ENDPOINT"))
    ]
    if not results:
        return fail("check", "no destination is configured; OTEL_EXPORTER_OTLP_ENDPOINT names one", FAILED)
    return 0 if all(results) else FAILED


def _tried(probe: Probe, timeout: float) -> bool:
    from tachograph.cli.checking.remedies import remedy

    began = time.perf_counter()
    try:
        said = probe.send(timeout)
    except Exception as error:  # noqa: BLE001 - the border to every exporter: what went wrong is the answer
        why = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        why = why.removeprefix(f"{probe.where}: ")
        what = remedy(why)
        print(f"FAILED  {probe.name:12}  {probe.where}  {why}{': ' if what else ''}{what}", flush=True)  # noqa: T201
        return False
    spent = (time.perf_counter() - began) * 1e3
    print(f"ok      {probe.name:12}  {probe.where}  {spent:.0f} ms{', ' if said else ''}{said}", flush=True)  # noqa: T201
    return True


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "check",
        "Send one test point to every destination that the OTEL_*, INFLUXDB_* and TACHOGRAPH_* variables "
        "name, and print a line for each: where, and how long it took, or what is wrong and what to do about it.",
    )
    add = made.add_argument
    add("--timeout", type=seconds, default=10.0, metavar="SECONDS", help="for each destination (default 10)")
    add_influxdb(made)
    add("--endpoint", metavar="URL", help="of OTLP (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    return made
