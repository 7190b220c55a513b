"""``tachograph doctor``: check the installation and every configured destination."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.cli.command_line import FAILED, Parser, add_store, parser, positive_duration
from tachograph.identity.environment import store
from tachograph.identity.extra import install_command
from tachograph.runs import StoreError, format_size, list_runs, printable

if TYPE_CHECKING:
    from tachograph.cli.doctor.probes import TestPoint

_SHOWN_VERSIONS = ("tachograph", "opentelemetry-sdk", "prometheus-client", "torch")
# A module of each extra, by which it is known to be installed.
_EXTRAS = {
    "top": "rich",
    "hardware": "psutil",
    "influxdb": "influxdb_client",
    "parquet": "pyarrow",
    "tensorboard": "tensorboard",
    "hangs": "",
}


def command(arguments: Sequence[str]) -> int:
    """Print the result of each check, and return the exit code: 1 if one fails, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    folder = options.store or store(os.environ)
    results = [
        *_section("versions", _versions()),
        *_section("store", _store(folder)),
        *_section("ports", _ports()),
        *_section("extras", _extras()),
        *_section("destinations", _destinations(options.endpoint, options.timeout)),
    ]
    return 0 if all(results) else FAILED


def _section(title: str, lines: Iterator[tuple[bool | None, str]]) -> Iterator[bool]:
    """Print a section as its checks finish, and yield whether each has passed; None stands for what is optional."""
    sys.stdout.write(f"{title}\n")
    for is_good, line in lines:
        mark = "-" if is_good is None else "ok" if is_good else "FAILED"
        sys.stdout.write(f"  {mark:6}  {printable(line)}\n")
        sys.stdout.flush()
        yield is_good is not False


def _versions() -> Iterator[tuple[bool | None, str]]:
    yield True, f"python {platform.python_version()} ({sys.executable})"
    for name in _SHOWN_VERSIONS:
        try:
            yield True, f"{name} {version(name)}"
        except PackageNotFoundError:
            yield None if name == "torch" else False, f"{name} is not installed"


def _store(folder: Path) -> Iterator[tuple[bool | None, str]]:
    if not folder.exists():
        parent = next(parent for parent in folder.absolute().parents if parent.exists())
        is_writable = os.access(parent, os.W_OK | os.X_OK)
        yield is_writable, f"{folder} does not exist yet" + ("" if is_writable else f", and {parent} is not writable")
        return
    is_writable = os.access(folder, os.W_OK | os.X_OK)
    try:
        runs = list_runs(folder)
    except StoreError as error:
        yield False, f"{folder}: {error.strerror}"
        return
    free = shutil.disk_usage(folder).free
    size = sum(run.size for run in runs)
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}, {format_size(size)}, {format_size(free)} free"
    yield is_writable, f"{folder}: {count}" + ("" if is_writable else ", not writable")
    for run in runs:
        if run.problem:
            yield False, f"{run.path}: {run.problem}"


def _ports() -> Iterator[tuple[bool | None, str]]:
    from tachograph.hub import HUB_PORT, STUDIO_PORT

    for name, number in (("hub", HUB_PORT), ("studio", STUDIO_PORT)):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", number))
                yield True, f"{name}: {number} is free"
            except OSError:
                yield True, f"{name}: {number} is in use, the next free port will be used"


def _extras() -> Iterator[tuple[bool | None, str]]:
    for extra, module in _EXTRAS.items():
        is_installed = find_spec(module) is not None if module else shutil.which("py-spy") is not None
        if is_installed:
            yield True, f"{extra}: installed"
        else:
            yield None, f"{extra}: not installed ({install_command(extra)})"


def _destinations(endpoint: str | None, timeout: float) -> Iterator[tuple[bool | None, str]]:
    """Send one test point to each destination that the variables name."""
    from tachograph.cli.doctor.probes import probes
    from tachograph.identity.environment import JOB_HUB, text
    from tachograph.logger.influx_target import InfluxTarget
    from tachograph.pipeline.settings import read_settings

    try:
        settings = read_settings(os.environ, endpoint=endpoint)
        influx = InfluxTarget.read(os.environ)
    except (ValueError, TypeError) as error:
        yield False, str(error)
        return
    is_empty = True
    for probe in probes(settings, influx, text(os.environ, JOB_HUB)):
        is_empty = False
        yield _send(probe, timeout)
    if is_empty:
        yield (
            None,
            "none configured; set OTEL_EXPORTER_OTLP_ENDPOINT, INFLUXDB_HOST or OTEL_METRICS_EXPORTER to add one",
        )


def _send(probe: TestPoint, timeout: float) -> tuple[bool, str]:
    began = time.perf_counter()
    label = f"{probe.name:12}  {probe.where}"
    try:
        remark = probe.send(timeout)
    except Exception as error:  # noqa: BLE001 - the border to every exporter: the error is the result
        why = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        why = why.removeprefix(f"{probe.where}: ")
        hint = remedy(why)
        return False, f"{label}  {why}{': ' if hint else ''}{hint}"
    elapsed = (time.perf_counter() - began) * 1e3
    answer = [f"answered in {elapsed:.0f} ms"] if probe.is_sent else []
    return True, f"{label}  {', '.join([*answer, *([remark] if remark else [])]) or 'can be written'}"


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "doctor",
        "Check the installation (versions, store, ports, extras, settings), and send one test point to each "
        "destination that OTEL_*, INFLUXDB_* and TACHOGRAPH_* variables configure.",
    )
    add = built.add_argument
    add("--endpoint", metavar="URL", help="An OTLP endpoint to test (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    timeout = "How long to wait for each destination (default: 10s)"
    add("--timeout", type=positive_duration, default=10.0, metavar="DURATION", help=timeout)
    add_store(built)
    return built


# The first row with a matching sign is used.
_REMEDIES = (
    (("Name or service not known", "nodename nor servname", "name resolution", "gaierror", "DNS resolution"),
     "no such host; check the name and DNS"),
    (("WRONG_VERSION_NUMBER", "RECORD_LAYER", "record layer"),
     "the port does not use TLS; use http:// instead of https://"),
    (("CERTIFICATE_VERIFY_FAILED", "certificate verify"),
     "the certificate is not trusted; set SSL_CERT_FILE or OTEL_EXPORTER_OTLP_CERTIFICATE"),
    (("refused", "UNAVAILABLE"), "nothing listens there; check that the server is running and the port is right"),
    (("Timeout", "timed out", "DEADLINE"), "no answer; check for a firewall or a proxy in between"),
    (("RemoteDisconnected", "reset by peer", "BadStatusLine"),
     "the port uses another protocol; check the port, and http or https"),
    (("answered 401", "UNAUTHENTICATED"), "set the credentials in OTEL_EXPORTER_OTLP_HEADERS"),
    (("answered 403", "PERMISSION_DENIED"), "these credentials may not write there"),
    (("answered 404", "UNIMPLEMENTED"), "the server does not accept this data at that path; check the URL"),
)  # fmt: skip


def remedy(why: str) -> str:
    """Return what to do about an error; an empty string if it says so itself."""
    if why.endswith("?"):  # the exporter has said what to do
        return ""
    return next((hint for signs, hint in _REMEDIES if any(sign in why for sign in signs)), "")
