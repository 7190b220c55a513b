"""Instrumentors in OpenTelemetry's sense: telemetry of other libraries, recorded without a change to the program.

Its face beside the instrumentors: ``profiles`` and ``child_environment`` for the command ``run``; ``distro`` and
``logs_specs`` are entry points. An instrumentor is loaded at its first use: the command needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.instrumentation.torch_monitor import TorchMonitorInstrumentor
    from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor

__all__ = ["TorchElasticInstrumentor", "TorchMonitorInstrumentor"]

_HOME = {"TorchElasticInstrumentor": "torchelastic", "TorchMonitorInstrumentor": "torch_monitor"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
