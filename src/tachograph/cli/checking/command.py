"""``tachograph check``: its command line."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tachograph.cli._command_line import FAILED, WRONG_USAGE, add_influxdb, fail, influxdb, parser, seconds

if TYPE_CHECKING:
    from tachograph.cli.checking.probes import TestPoint


def command(arguments: Sequence[str]) -> int:
    """Test each configured destination, and return the exit code: 1 where one fails, 2 for wrong usage."""
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


def _tried(probe: TestPoint, timeout: float) -> bool:
    from tachograph.cli.checking.command import remedy

    began = time.perf_counter()
    try:
        said = probe.send(timeout)
    except Exception as error:  # noqa: BLE001 - the border to every exporter: the error is the answer
        why = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        why = why.removeprefix(f"{probe.where}: ")
        hint = remedy(why)
        print(f"FAILED  {probe.name:12}  {probe.where}  {why}{': ' if hint else ''}{hint}", flush=True)  # noqa: T201
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


# The first that fits counts.
_REMEDIES = (
    (("Name or service not known", "nodename nor servname", "name resolution", "gaierror", "DNS resolution"),
     "there is no such host: is its name right, and does this machine find it?"),
    (("WRONG_VERSION_NUMBER", "RECORD_LAYER", "record layer"),
     "the port does not speak TLS: http:// in place of https://?"),
    (("CERTIFICATE_VERIFY_FAILED", "certificate verify"),
     "its certificate is not trusted: SSL_CERT_FILE, or OTEL_EXPORTER_OTLP_CERTIFICATE, may name who vouches for it"),
    (("refused", "UNAVAILABLE"), "nothing listens there: does the server run, and is the port right?"),
    (("Timeout", "timed out", "DEADLINE"), "it does not answer: is a firewall or a proxy in between?"),
    (("RemoteDisconnected", "reset by peer", "BadStatusLine"),
     "something else than this protocol is spoken there: is the port right, and http or https?"),
    (("answered 401", "UNAUTHENTICATED"), "who may write there says OTEL_EXPORTER_OTLP_HEADERS"),
    (("answered 403", "PERMISSION_DENIED"), "these credentials are not allowed to write there"),
    (("answered 404", "UNIMPLEMENTED"), "it is reached, but takes no such data there: is the path of the URL right?"),
)  # fmt: skip


def remedy(why: str) -> str:
    """Return the remedy; an empty string where the reason says it itself."""
    if why.endswith("?"):
        return ""
    return next((hint for signs, hint in _REMEDIES if any(sign in why for sign in signs)), "")
