"""Instrumentation scopes: which of them are ours, and what they say of themselves beside their name.

Source: OpenTelemetry specification, "Instrumentation Scope" and "Telemetry Schemas".
"""

from __future__ import annotations

from tachograph.recording.own_metrics import OWN_GROUP
from tachograph.version import __version__

# The semantic conventions that the names in our scopes follow.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"


def scope_origin(name: str) -> tuple[str | None, str | None]:
    """Return the version and the schema URL of a scope: ours for ``tachograph`` and below it, None for a user's group.

    They stand in the order in which OpenTelemetry's ``get_meter``, ``get_tracer`` and ``get_logger`` take them.
    """
    ours = name == OWN_GROUP or name.startswith(f"{OWN_GROUP}.")
    return (__version__, SCHEMA_URL) if ours else (None, None)
