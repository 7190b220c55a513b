"""``tachograph run [options] -- command …``: a job with telemetry in each of its Python processes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from tachograph.cli._endpoint_ports import local_ports
from tachograph.cli._job import NOT_EXECUTABLE, NOT_FOUND, run_job
from tachograph.cli._run_summary import describe_status, summary_lines
from tachograph.cli.command_line import WRONG_USAGE, Parser, add_store, duration, fail, port, positive_duration
from tachograph.exporters.otlp.settings import ENDPOINT, SIGNALS, endpoint_variables, read_otlp_settings
from tachograph.exporters.standard_streams import never_fail
from tachograph.identity.environment import Setting, setting, store, temporary_store, text
from tachograph.identity.launch import RECORD_PROGRAM, Launch, launch_of, notes_of, tags_of
from tachograph.identity.program import StartMarks, note_status
from tachograph.identity.run_id import run_id_of_command
from tachograph.instrumentation.child_environment import child_environment
from tachograph.pipeline.hub_process import HubProcess

INTERVAL = 1.0
_EXPORTERS = tuple(f"OTEL_{signal.upper()}_EXPORTER" for signal in SIGNALS)
_SYSTEM_METRICS = "TACHOGRAPH_SYSTEM_METRICS"
_HUB_OPTIONS = ("port", "store", "linger", "forward", "tag", "notes")
_INTERRUPTED = 130
_START_ERRORS = {NOT_FOUND: "command not found", NOT_EXECUTABLE: "cannot be executed"}  # by exit code


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; their ``command`` is the job: everything behind ``--``, or from the first word on.

    Raises:
        SystemExit: wrong usage (2), explained on stderr; or ``--help`` (0).
    """
    parser = build_parser()
    own, command = _split_command_line(parser, arguments)
    options = parser.parse_args(own)
    options.command = command
    if not command:
        parser.error("no command given; for example: tachograph run -- python train.py")
    _check_options(parser, options)
    return options


def _split_command_line(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own options, and the job's command line."""
    flags = {word for action in parser._actions if action.nargs == 0 for word in action.option_strings}  # noqa: SLF001
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if argument == "--":
            return list(arguments[:place]), list(arguments[place + 1 :])
        if not argument.startswith("-"):
            break
        alone = "=" in argument or argument in flags or arguments[place + 1 : place + 2] == ["--"]
        place += 1 if alone else 2
    return list(arguments[:place]), list(arguments[place:])


def _check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.no_hub:
        for name in _HUB_OPTIONS:
            if getattr(options, name) is not None:
                parser.error(f"--{name} has no effect with --no-hub")
    if options.endpoint is not None:
        try:
            read_otlp_settings("metrics", {}, endpoint=options.endpoint)
        except ValueError as error:
            parser.error(str(error).replace("endpoint=", "--endpoint", 1))
    if options.run_id is not None and not options.run_id.strip():
        parser.error("--run-id must not be empty")
    try:
        options.tag = tags_of(Setting("--tag=", options.tag or ()))
        options.notes = notes_of(Setting("--notes=", options.notes or ""))
    except ValueError as error:
        parser.error(str(error).replace("=", "", 1))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = Parser(
        prog="tachograph run",
        usage="tachograph run [options] -- command …",
        description="Run a job and record all of its Python processes, without a change to its code.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--run-id", metavar="ID", help="Set the run's id (default: that of the launcher or scheduler, or a new one)")
    add("--tag", action="append", metavar="NAME", help="Add a tag to the run (may be repeated)")
    add("--notes", metavar="TEXT", help="Add notes to the run")
    add_store(parser, "The folder to store the run in")
    add(
        "--port", type=port, metavar="N", help="The port of the hub; if it is in use, the next free one (default: 4318)"
    )
    linger = "How long the hub keeps serving /metrics after the job (default: 0s, or 30s if Prometheus scrapes it)"
    add("--linger", type=duration, metavar="DURATION", help=linger)
    add("--forward", metavar="URL", help="Let the hub also send everything on to this OTLP endpoint")
    endpoint = "Also send OTLP from each process to this endpoint (default: OTEL_EXPORTER_OTLP_ENDPOINT)"
    add("--endpoint", metavar="URL", help=endpoint)
    no_hub = "Start no hub and store nothing: send only to the endpoint, or serve /metrics if there is none"
    add("--no-hub", action="store_true", help=no_hub)
    interval = "The time between two exports of a process (default: 1s)"
    add("--interval", type=positive_duration, metavar="DURATION", help=interval)
    profile = "Profile functions by name, package.module:Class.method, with wildcards (may be repeated)"
    add("--prof", type=_pattern, action="append", default=[], metavar="PATTERN", help=profile)
    instrument = "'all' also loads other installed OpenTelemetry instrumentors (default: own)"
    add("--instrument", choices=("own", "all"), default="own", help=instrument)
    add("--wait-counters", action="store_true", help="Also record how long torch waits (torch.wait.*)")
    add("--quiet", action="store_true", help="Print nothing")
    return parser


def _pattern(value: str) -> str:
    from tachograph.instrumentation.profiles import parse

    try:
        return str(parse(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--prof is ")) from None


def command(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run a job and return its exit code: 128 + n after signal n, 126 or 127 if it could not be started.

    If the hub cannot be started, a line on stderr says so, and the job runs without it. But if our installation is
    incomplete, the job is not started, and the code is 2. The job has our standard streams, also closed ones. A signal
    reaches the job once, whether it was sent to this process alone, to the process group or by the terminal.

    Args:
        arguments: the command line behind ``tachograph run``.
        environ: the environment of the job without us.

    Raises:
        SystemExit: wrong usage (2), explained on stderr; or ``--help`` (0).
    """
    never_fail()
    options = read_options(arguments)
    run = run_id_of_command(environ, options.command, explicit=options.run_id)
    record_program = setting(environ, "", None, RECORD_PROGRAM)
    try:
        records_program = record_program.boolean() if record_program else True
    except ValueError as error:
        return fail("run", str(error), WRONG_USAGE)
    if not options.no_hub:
        environ = _with_store(options, environ)
    options.launch = launch_of(options.command, records_program=records_program, tags=options.tag, notes=options.notes)
    with contextlib.nullcontext() if options.no_hub else _make_marks_folder() as marks:
        status = _record_job(options, environ, run, marks)
    return status if status >= 0 else 128 - status


def _with_store(options: argparse.Namespace, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the job's environment with a store in the folder for temporary files, if the home cannot be written."""
    folder = store(environ)
    if options.store is not None or text(environ, "TACHOGRAPH_STORE"):
        return environ
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        options.store = temporary_store()
        _say(f"cannot write to the store {folder} ({error.strerror}), storing the run in {options.store}")
        return {**environ, "TACHOGRAPH_STORE": str(options.store)}
    return environ


@contextlib.contextmanager
def _make_marks_folder() -> Iterator[Path | None]:
    """Yield a folder in which processes mark their start; None if there is none: then no process counts as missing."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="tachograph-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with folder as path:
        yield Path(path)


class _Endpoints(NamedTuple):
    """The OTLP endpoints that the user named.

    Attributes:
        general: that of ``--endpoint`` or of OTEL_EXPORTER_OTLP_ENDPOINT; empty for none.
        named: all of them, the general one first, then those of single signals.
        local_ports: the ports of those on this machine, which the hub never takes.
    """

    general: str
    named: Sequence[str]
    local_ports: Sequence[int]

    @property
    def shown(self) -> str:
        """The first one, as it is printed; empty for none."""
        return _without_secrets(self.named[0]) if self.named else ""


def _find_endpoints(options: argparse.Namespace, environ: Mapping[str, str]) -> _Endpoints:
    general = options.endpoint or text(environ, ENDPOINT)
    of_signals = [text(environ, endpoint_variables(signal)[0]) for signal in SIGNALS]
    named = [endpoint for endpoint in (general, *of_signals) if endpoint]
    return _Endpoints(general, named, () if options.no_hub else local_ports(named))


def _record_job(options: argparse.Namespace, environ: Mapping[str, str], run: str, marks: Path | None) -> int:
    """Run the job next to a hub, and print what was recorded; return the exit code, negative for a signal."""
    endpoints = _find_endpoints(options, environ)
    try:
        hub = None if options.no_hub else _start_hub(options, environ, run, marks, endpoints)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ImportError as error:
        return fail("run", f"cannot start the hub, so the job was not started: {error}", WRONG_USAGE)
    say = _ignore if options.quiet else _say
    if hub is not None:
        _announce(hub, run, options, endpoints, say)
    if hub is None and endpoints.named:
        say(f"sending telemetry to {endpoints.shown}")
        say(f"run {run}")
    elif options.no_hub:
        say(_without_hub(environ))
    job_environ = _job_environment(options, environ, run, hub, endpoints, marks=marks)
    begin_line = _ignore if options.quiet else _begin_line
    status = run_job(options.command, job_environ, partial(_check_hub, hub, say, begin_line), _say)
    begin_line()
    if status in _START_ERRORS:
        _say(f"{options.command[0]}: {_START_ERRORS[status]}")
    if hub is not None:
        note_status(marks, status)
        on_linger = partial(_say_lingering, say, started=status not in _START_ERRORS)
        summary = _end_hub(hub, options.linger, on_linger)
        undelivered = [] if marks is None else StartMarks(marks).undelivered()
        for line in summary_lines(summary, undelivered, status, options.store):
            say(line)
    elif endpoints.named:
        say(f"{describe_status(status)}: telemetry was sent to {endpoints.shown}")
    return status


def _without_hub(environ: Mapping[str, str]) -> str:
    """Return what happens to the job's telemetry if there is neither a hub nor an endpoint."""
    exporters = [f"{name}={text(environ, name)}" for name in _EXPORTERS if text(environ, name)]
    if exporters:
        return f"no hub and no endpoint: no run is stored; each process exports as {' and '.join(exporters)} says"
    from tachograph.pipeline.settings import (
        PROMETHEUS_HOST,
        PROMETHEUS_PORT,
    )  # which a job with a hub need not wait for

    host = text(environ, "OTEL_EXPORTER_PROMETHEUS_HOST") or PROMETHEUS_HOST
    port = text(environ, "OTEL_EXPORTER_PROMETHEUS_PORT") or PROMETHEUS_PORT
    served = f"metrics are at http://{host}:{port}/metrics while the job runs"
    return f"no hub and no endpoint: {served}, and nothing is stored"


def _job_environment(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    run: str,
    hub: HubProcess | None,
    endpoints: _Endpoints,
    *,
    marks: Path | None,
) -> dict[str, str]:
    """Return the job's environment; it is unchanged if the hub was the only destination and could not be started."""
    if hub is None and not endpoints.named and not options.no_hub:
        return dict(environ)
    return child_environment(
        environ,
        hub="" if hub is None else hub.url,
        endpoint=endpoints.general,
        run_id=run,
        interval=_export_interval(options, environ, only_hub=not endpoints.named),
        prof=options.prof,
        instrument=options.instrument,
        wait_counters=options.wait_counters,
        started=None if hub is None else marks,
    )


def _announce(
    hub: HubProcess, run: str, options: argparse.Namespace, endpoints: _Endpoints, say: Callable[[str], object]
) -> None:
    """Print the addresses of the run, and why the port is another one."""
    port = urlsplit(hub.url).port
    if options.port and port != options.port:
        reason = "belongs to the endpoint" if options.port in endpoints.local_ports else "is in use"
        say(f"port {options.port} {reason}, so the hub listens on port {port}")
    say(f"live at {hub.page} (metrics at {hub.url}/metrics)")
    if endpoints.named:
        say(f"also sending telemetry to {endpoints.shown}")
    say(f"run {run}, stored in {hub.store}")


def _check_hub(hub: HubProcess | None, say: Callable[[str], object], begin_line: Callable[[str], object]) -> None:
    """Start the hub again if it ended, and print its lines about hangs."""
    if hub is None:
        return
    hub.look_after()
    while hub.hangs:
        from tachograph.runs import printable  # only now: it would delay the job

        begin_line("\n")
        say(printable(hub.hangs.popleft()))


def _start_hub(
    options: argparse.Namespace, environ: Mapping[str, str], run: str, marks: Path | None, endpoints: _Endpoints
) -> HubProcess | None:
    """Start the hub; return None, after a line on stderr, if it cannot be started.

    Raises:
        ImportError: the installation is incomplete, and there is no endpoint to send to either.
    """
    folder = options.store or store(environ)
    arguments = ["--run-id", run, "--store", str(folder), "--quiet"]
    if marks is not None:
        arguments += ["--started", str(marks)]
    for name, value in (
        ("first-port" if options.port else "port", options.port),  # 0 is any free port
        ("linger", options.linger),
        ("forward", options.forward),
    ):
        if value is not None:
            arguments += [f"--{name}", str(value)]
    for number in endpoints.local_ports:
        arguments += ["--avoid-port", str(number)]
    hub_settings = {}
    if endpoints.general and text(environ, _SYSTEM_METRICS):
        # If it is on, a rank reports the node's hardware to the endpoint and to the hub: see speaks_for_node().
        hub_settings[_SYSTEM_METRICS] = "false"
    try:
        launch: Launch = options.launch
        return HubProcess(arguments, {**environ, **hub_settings, **launch.handed()})
    except (ImportError, RuntimeError, OSError) as error:
        if not endpoints.named and isinstance(error, ImportError):
            raise
        result = "telemetry goes only to the endpoint" if endpoints.named else "the job runs without telemetry"
        _say(f"cannot start the hub, so {result}: {error}")
        return None


def _end_hub(hub: HubProcess, linger: float | None, on_linger: Callable[[float], bool]) -> dict[str, Any]:
    """End the hub, and return its summary; empty if there is none, or if an interrupt comes first."""
    try:
        return hub.end(linger, on_linger)
    except KeyboardInterrupt:
        return {}


def _say_lingering(say: Callable[[str], object], seconds: float, *, started: bool) -> bool:
    """Print what the hub waits for after the job; return False if it need not wait, as no job has started."""
    if started:
        say(
            f"the job has ended; serving its last values to Prometheus for up to {seconds:g} s "
            "(press Ctrl-C to stop now; --linger 0 turns this off)"
        )
    return started


def _export_interval(options: argparse.Namespace, environ: Mapping[str, str], *, only_hub: bool) -> float:
    """Return the seconds between two exports; OTEL_METRIC_EXPORT_INTERVAL applies if the user named an endpoint."""
    if options.interval is not None:
        return float(options.interval)
    interval = None if only_hub else setting(environ, "", None, "OTEL_METRIC_EXPORT_INTERVAL")
    try:
        return interval.seconds() if interval else INTERVAL
    except ValueError as error:
        _say(f"{error}; using {INTERVAL:g} s")
        return INTERVAL


def _without_secrets(url: str) -> str:
    """Return an endpoint's address without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _say(line: str) -> None:
    sys.stderr.write(f"tachograph: {line}\n")
    sys.stderr.flush()


def _begin_line(elsewhere: str = "") -> None:
    """Begin a line of stderr below a progress bar of the job, which leaves the cursor behind itself.

    There is no way to ask where a terminal's cursor is. Blanks for all but one of its columns wrap if the cursor is
    inside a line, and are overwritten if it is not.

    Args:
        elsewhere: written if stderr is no terminal.
    """
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    sys.stderr.write(f"{' ' * (columns - 1)}\r" if columns > 1 else elsewhere)


def _ignore(*_: object) -> None:
    """Print nothing."""
