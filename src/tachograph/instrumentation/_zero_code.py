"""Zero code: telemetry of a process without a change to its program, from its start on."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from tachograph.exporters.otlp.settings import ENDPOINT, SIGNALS, Signal, endpoint_variables
from tachograph.identity.environment import JOB_ENDPOINT, JOB_HUB, setting, text
from tachograph.identity.process_group import group_watch
from tachograph.identity.program import command_name, unmark_start
from tachograph.identity.rank import is_helper
from tachograph.instrumentation.bridges import begin_bridges, end_bridges
from tachograph.instrumentation.profiles import Profiles, parse
from tachograph.instrumentation.torch_monitor import VARIABLE, TorchMonitorInstrumentor
from tachograph.instrumentation.torch_step import TorchStepInstrumentor, asks_for_anatomy
from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor
from tachograph.pipeline import Settings, read_settings
from tachograph.recording import registry
from tachograph.recording.forking import helpers_record
from tachograph.recording.interrupts import pass_on

# Auxiliary programs of a job, by the names of their scripts, modules or folders.
ERRANDS = frozenset(
    {
        "pip",
        "pip3",
        "ensurepip",
        "venv",
        "virtualenv",
        "uv",
        "compileall",
        "compile_worker",
        "tachograph",
        "tensorboard",
    }
)

# Services that Ray starts beside a job's workers, and kills at its end (2.60).
_SERVICES = (
    "ray/_private/log_monitor.py",
    "ray/_private/runtime_env/agent/main.py",
    "ray/_private/workers/setup_worker.py",  # becomes a worker
    "ray/autoscaler/_private/monitor.py",
    "ray/dashboard/agent.py",
    "ray/dashboard/dashboard.py",
)
# Those that it starts before there is work for them: many never get any.
_POOLED = ("ray/_private/workers/default_worker.py",)

_log = logging.getLogger("tachograph")
_profiles: dict[tuple[str, ...], Profiles] = {}
_others: dict[str, Any] = {}  # instrumentors of other libraries that got our providers, by name


class _Begun:
    """The process that has begun, if one has."""

    pid: int | None = None


def begin(*, directly: bool = True, forked: bool = False) -> None:
    """Start delivery, where this process is part of the job, and install our instrumentors.

    A wrong setting is one line in the log, and the program goes on without telemetry.

    Args:
        directly: whether ``tachograph run`` itself started this process; see
            :class:`tachograph.pipeline._process_identity.AmbientIdentity`.
        forked: whether it is the forked child of a process that has begun: its delivery starts once it is a rank, or
            at once with ``TACHOGRAPH_HELPERS=true``.
    """
    if _Begun.pid == os.getpid():
        return
    if is_helper(os.environ, os.getpid()) or _is_errand():
        unmark_start(os.environ)
        return
    _Begun.pid = os.getpid()
    try:
        settings = zero_code_settings(os.environ)
    except ValueError as error:
        _log.warning("could not start telemetry, continuing without it: %s", error)
        return
    if settings.disabled:
        unmark_start(os.environ)
        return
    from tachograph.pipeline import begin_ambient  # needs the SDK, and instrumentors do not

    has_rank = text(os.environ, "RANK") or group_watch.joined()
    waits = not helpers_record() and not has_rank and (forked or _is_child_of_multiprocessing())
    idles = _is_of(_POOLED)
    if idles:
        unmark_start(os.environ)
    again = partial(begin, directly=directly, forked=True)
    begin_ambient(settings, waits=waits, idles=idles, directly=directly, again=again)
    if loads_instrumentors(os.environ):
        _instrument(os.environ)


def loads_instrumentors(environ: Mapping[str, str]) -> bool:
    """Tell whether zero code loads instrumentors itself, rather than ``opentelemetry-instrument``."""
    return bool(text(environ, JOB_HUB, JOB_ENDPOINT, "TACHOGRAPH__INSTRUMENT"))


def begun() -> bool:
    """Tell whether this process has begun."""
    return _Begun.pid == os.getpid()


def zero_code_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of zero code.

    Under ``tachograph run`` TACHOGRAPH__HUB is the URL of the job's hub, TACHOGRAPH__ENDPOINT the endpoint that the
    user named, and TACHOGRAPH__INTERVAL the interval in milliseconds. ``OTEL_EXPORTER_*`` and the choice of exporters
    do not apply to the hub. The endpoint, or those of single signals, get the headers, the protocol and so on of those
    variables, and no signal whose exporter is ``none``. With both, the process sends to both. Without either the
    settings are those of ``start()``.

    Raises:
        ValueError: a wrong value; the message names the variable. With a hub, a wrong value of the endpoint's is one
            line in the log, and telemetry goes to the hub alone.
    """
    hub, endpoint = text(environ, JOB_HUB), text(environ, JOB_ENDPOINT)
    if not hub and not endpoint:
        return read_settings(environ)
    every = setting(environ, "", None, "TACHOGRAPH__INTERVAL")
    interval = every.seconds() if every else None
    if not hub:
        return _endpoint_settings(environ, endpoint, interval)
    if endpoint or any(text(environ, *endpoint_variables(signal)) for signal in SIGNALS):
        try:
            return replace(_endpoint_settings(environ, endpoint, interval), job_hub=hub)
        except ValueError as error:
            _log.warning("telemetry goes to the hub alone: %s", error)
    return read_settings(
        {key: value for key, value in environ.items() if not key.startswith("OTEL_EXPORTER_")},
        metrics="otlp",
        traces=_if_all(environ),
        logs="otlp",
        endpoint=hub,
        protocol="http/protobuf",
        interval=interval,
    )


def _endpoint_settings(environ: Mapping[str, str], endpoint: str, interval: float | None) -> Settings:
    """Return the settings for an endpoint of the user's: a general one, or those of single signals."""

    def exporter(signal: Signal) -> str:
        is_named = endpoint or text(environ, *endpoint_variables(signal))
        is_none = text(environ, f"OTEL_{signal.upper()}_EXPORTER").lower() == "none"
        return "otlp" if is_named and not is_none else "none"

    settings = read_settings(
        environ,
        metrics=exporter("metrics"),
        traces=exporter("traces") if _instruments_all(environ) else "none",
        logs=exporter("logs"),
        endpoint=None if text(environ, ENDPOINT) == endpoint else endpoint or None,
        interval=interval,
    )
    return replace(settings, named_logs=bool(text(environ, "OTEL_LOGS_EXPORTER")))


def _if_all(environ: Mapping[str, str]) -> str:
    """Return the exporter of spans, which come of other libraries' instrumentors alone."""
    return "otlp" if _instruments_all(environ) else "none"


def _instruments_all(environ: Mapping[str, str]) -> bool:
    return text(environ, "TACHOGRAPH__INSTRUMENT") == "all"


def _is_errand() -> bool:
    if command_name().rpartition(".")[2] in ERRANDS:
        return True
    return _is_of(_SERVICES)


def _is_of(programs: tuple[str, ...]) -> bool:
    return any(argument.endswith(programs) for argument in sys.orig_argv[1:])


def _is_child_of_multiprocessing() -> bool:
    """Tell whether the process is a child of multiprocessing: launchers may set RANK there while it runs."""
    return "--multiprocessing-fork" in sys.orig_argv


def _instrument(environ: Mapping[str, str]) -> None:
    patterns = [line for line in environ.get("TACHOGRAPH__PROF", "").splitlines() if line.strip()]
    instrument(patterns, environ)
    if _instruments_all(environ):
        _instrument_others(environ)


def _instrument_others(environ: Mapping[str, str]) -> None:
    """Load every other instrumentor that is installed, as ``opentelemetry-instrument`` does; its records leave as ours.

    It gets our providers, and none is set globally. A forked child has new ones: the parent's are not read there.
    """
    from tachograph.pipeline import running_pipeline

    pipeline = running_pipeline()
    lent = pipeline.lend_providers() if pipeline is not None else {}
    disabled = {name.strip() for name in text(environ, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS").split(",")}
    for entry_point in entry_points(group="opentelemetry_instrumentor"):
        if entry_point.value.startswith("tachograph.") or {entry_point.name, "*"} & disabled:
            continue
        try:
            if entry_point.name in _others:
                _others[entry_point.name].uninstrument()
            instrumentor = entry_point.load()()
            instrumentor.instrument(**lent)
            _others[entry_point.name] = instrumentor
        except Exception as error:  # noqa: BLE001 - the border to their code
            pass_on(error)
            registry.default.count_error("instrumentation")
            _log.warning("could not load instrumentor %s: %r", entry_point.name, error)


def instrument(prof: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> None:
    """Wait for torch and for the modules of the patterns, and record their metrics and events; import none of them.

    A second call adds further patterns. Nothing is raised: failures are logged, and the program goes on without that
    part.

    Args:
        prof: patterns as for :func:`tachograph.instrumentation.profiles.parse`.
        environ: holds ``TACHOGRAPH_WAIT_COUNTERS``, ``TACHOGRAPH_ANATOMY``, ``TACHOGRAPH_BRIDGES`` and the process's
            place in the job.
    """
    _attempt("torchelastic", _torchelastic)
    _attempt("torch.monitor", lambda: _torch_monitor(environ))
    _attempt("training steps", lambda: _torch_step(environ))
    _attempt("calls profiled with --prof", lambda: _profile(prof, environ))
    _attempt("values that other libraries log", lambda: begin_bridges(environ))


def uninstrument() -> None:
    """Undo :func:`instrument`: torch and the profiled functions are restored."""
    for instrumentor in (TorchElasticInstrumentor(), TorchMonitorInstrumentor(), TorchStepInstrumentor()):
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()
    for profiles in _profiles.values():
        profiles.close()
    _profiles.clear()
    end_bridges()


def _attempt(what: str, begin: Callable[[], None]) -> None:
    try:
        begin()
    except Exception as error:  # noqa: BLE001 - zero code: the job goes on without us
        pass_on(error)
        registry.default.count_error("instrumentation")
        _log.warning("could not start recording %s: %s", what, error)


def _torchelastic() -> None:
    instrumentor = TorchElasticInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(skip_dep_check=True)


def _torch_monitor(environ: Mapping[str, str]) -> None:
    instrumentor = TorchMonitorInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(skip_dep_check=True, wait_counters=_asks_for_waits(environ))


def _torch_step(environ: Mapping[str, str]) -> None:
    instrumentor = TorchStepInstrumentor()
    if asks_for_anatomy(environ, default=True) and not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(skip_dep_check=True, chosen=True)


def _asks_for_waits(environ: Mapping[str, str]) -> bool:
    given = setting(environ, "", None, VARIABLE)
    try:
        return given is not None and given.boolean()
    except ValueError as error:
        _log.warning("%s; not measuring WaitCounters", error)
        return False


def _profile(prof: Sequence[str], environ: Mapping[str, str]) -> None:
    wanted = []
    for pattern in dict.fromkeys(prof):
        if not pattern.strip():
            continue
        try:
            parse(pattern)
        except ValueError as error:
            _log.warning("%s", error)
        else:
            wanted.append(pattern.strip())
    new = tuple(pattern for pattern in wanted if not any(pattern in known for known in _profiles))
    if new:
        _profiles[new] = Profiles([parse(pattern) for pattern in new], environ)
