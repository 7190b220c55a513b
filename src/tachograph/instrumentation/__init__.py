"""Instrumentors in OpenTelemetry's sense: telemetry of other libraries, recorded without a change to the program.

Its face beside the instrumentors: ``profiles`` and ``child_environment`` for the command ``run``; ``distro`` and
``logs_specs`` are entry points.
"""

from __future__ import annotations

from tachograph.instrumentation.torch_monitor import TorchMonitorInstrumentor
from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor

__all__ = ["TorchElasticInstrumentor", "TorchMonitorInstrumentor"]
