"""File descriptors: how many the hub may have."""

from __future__ import annotations

import contextlib
import resource

_MOST = 2**20  # what is more is no limit to anybody


def limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def raise_limit() -> None:
    """Raise the soft limit to the hard one, where the system lets us.

    Call it in the hub's own process only: programs that use select(2) rely on the soft limit (systemd.exec(5)).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _MOST):  # macOS says that there is no limit, and allows less
        with contextlib.suppress(OSError, ValueError):
            if wanted == resource.RLIM_INFINITY or wanted > soft:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return
