"""Ports that the job's hub leaves alone: OTLP endpoints on this machine listen there, or will do so later."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

_LOOKUP_TIMEOUT = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


def local_ports(endpoints: Sequence[str]) -> list[int]:
    """Return the ports of those endpoints that are on this machine, without duplicates.

    An endpoint counts as local if its host cannot be looked up within a second: the hub can use another port.

    Args:
        endpoints: URLs, or ``host:port`` as gRPC takes it. Those that are neither are passed over.
    """
    ports: dict[int, None] = {}
    for endpoint in endpoints:
        try:
            parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            continue
        if port and parts.hostname and port not in ports and _is_local(parts.hostname):
            ports[port] = None
    return list(ports)


def _is_local(host: str) -> bool:
    result: list[bool] = []
    # getaddrinfo() has no timeout of its own, and a job does not wait for a name server that is down.
    lookup = threading.Thread(target=lambda: result.append(_has_address(host)), daemon=True)
    lookup.start()
    lookup.join(_LOOKUP_TIMEOUT)
    return result[0] if result else True


def _has_address(host: str) -> bool:
    """Tell whether this machine has one of the host's addresses: only then a socket can be bound to it."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False
