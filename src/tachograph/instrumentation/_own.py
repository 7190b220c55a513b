"""All instrumentation of our own, as zero code switches it on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from tachograph.identity.environment import setting
from tachograph.instrumentation.profiles import Profiles, parse
from tachograph.instrumentation.torch_monitor import VARIABLE, TorchMonitorInstrumentor
from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor

_log = logging.getLogger("tachograph")

_profiles: dict[tuple[str, ...], Profiles] = {}


def instrument(prof: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> None:
    """Wait for torch and for the modules of the patterns, and record what they do; import none of them.

    A second call adds what the first has not asked for. Nothing is raised: what cannot be done is said in the log, and
    the program goes on without it.

    Args:
        prof: patterns as :func:`tachograph.instrumentation.profiles.parse` takes them.
        environ: where ``TACHOGRAPH_WAIT_COUNTERS`` and the process's place in the job are looked up.
    """
    _attempt("torchelastic", _torchelastic)
    _attempt("torch.monitor", lambda: _torch_monitor(environ))
    _attempt("--prof", lambda: _profile(prof, environ))


def uninstrument() -> None:
    """Undo it all: torch and the profiled functions are as they were."""
    for instrumentor in (TorchElasticInstrumentor(), TorchMonitorInstrumentor()):
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()
    for profiles in _profiles.values():
        profiles.close()
    _profiles.clear()


def _attempt(what: str, begin: Callable[[], None]) -> None:
    try:
        begin()
    except Exception as error:  # noqa: BLE001 - zero code: the job goes on without us
        _log.warning("%s is not recorded: %s", what, error)


def _torchelastic() -> None:
    instrumentor = TorchElasticInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(skip_dep_check=True)


def _torch_monitor(environ: Mapping[str, str]) -> None:
    instrumentor = TorchMonitorInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(skip_dep_check=True, wait_counters=_asks_for_waits(environ))


def _asks_for_waits(environ: Mapping[str, str]) -> bool:
    given = setting(environ, "", None, VARIABLE)
    try:
        return given is not None and given.choice(("1", "0")) == "1"
    except ValueError as error:
        _log.warning("%s; no WaitCounter is measured", error)
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
