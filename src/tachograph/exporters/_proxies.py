"""Which requests take a proxy: one rule for all that is sent over HTTP and gRPC.

A proxy cannot reach this machine's loopback, and has no business between a job and its own hub. For all else the
variables ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` count as ``requests`` reads them; gRPC reads
them by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from tachograph.identity.environment import text
from tachograph.logger.influx_target import is_loopback

_PORTS = {"http": 80, "https": 443}


def goes_direct(url: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a URL never takes a proxy: it is of loopback, or of the hub that ``tachograph run`` has begun."""
    where = _origin(url)
    if is_loopback(where[1]):
        return True
    return text(environ, "TACHOGRAPH_HUB") == "1" and where == _origin(text(environ, "TACHOGRAPH_ENDPOINT"))


def no_proxies(url: str) -> dict[str, None]:
    """Return the ``proxies`` with which ``requests`` takes none for a URL, whatever the environment says."""
    scheme, host, _ = _origin(url)
    # In these places requests looks for one: requests.utils.select_proxy.
    return dict.fromkeys((f"{scheme}://{host}", scheme, f"all://{host}", "all"))


def proxy_of(url: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the proxy's URL, which may hold a password; None where the URL takes none.

    Args:
        url: where a request goes.
        environ: says which hub is the job's own; the proxies are those of the process's environment.
    """
    if goes_direct(url, environ):
        return None
    from requests.utils import get_environ_proxies, select_proxy

    return select_proxy(url, get_environ_proxies(url))


def _origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, the host and the port of a URL; empty where it is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", "", None
