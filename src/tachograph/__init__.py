"""Training telemetry on OpenTelemetry."""

from __future__ import annotations

from tachograph.version import __version__

__all__ = ["__version__"]
