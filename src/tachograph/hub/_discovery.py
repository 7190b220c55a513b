"""What the hub says about itself: where Prometheus scrapes it, whether it is well, and what there is to see."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

_INDEX = """Tachograph hub {version}

/          the Studio, for browsers: every run, live and stored
/api/runs  the same as JSON
/metrics   every process of this node, for Prometheus
/sd        this hub as a target, for Prometheus's http_sd_configs
/healthz   whether it is well, and what it has received
/v1/metrics, /v1/logs, /v1/traces   post OTLP here (protobuf or JSON, gzip)
"""


def targets(authority: str, summary: Mapping[str, Any]) -> bytes:
    """Return the hub as the one target of its node. Source: Prometheus, "Writing HTTP service discovery".

    Args:
        authority: host and port by which the scraper reached the hub; so it will reach it again.
        summary: of the hub. Its run is in ``__meta_tachograph_run``, for relabelling: the series have ``dl_run_id``.
    """
    labels = {"__meta_tachograph_run": str(summary["run"]), "__meta_tachograph_host": socket.gethostname()}
    return json.dumps([{"targets": [authority], "labels": labels}]).encode() + b"\n"


def health(summary: Mapping[str, Any]) -> bytes:
    """Return ``{"status": "ok", …}`` with what was received; nothing that a stranger should not read."""
    counts = {name: summary[name] for name in ("points", "events", "dropped")}
    return json.dumps({"status": "ok", **counts, "lost": len(summary["lost"])}).encode() + b"\n"


def index(version: str) -> bytes:
    """Return what there is to see, as plain text."""
    return _INDEX.format(version=version).encode()
