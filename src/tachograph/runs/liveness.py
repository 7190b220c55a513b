"""The rule who is alive: a process that has been silent for five of its export intervals is lost."""

from __future__ import annotations

NODE = "node"  # the role of what a hub says of its machine: no process of the job
SECOND = 1_000_000_000
INTERVALS = 5  # of silence after which a process is lost
_LEAST_SILENCE = 5 * SECOND
_UNKNOWN_INTERVAL = 10 * SECOND  # until the second export tells


def longest_silence(interval: int) -> int:
    """Return the nanoseconds of silence after which a process is lost; its export interval is 0 while unknown."""
    return max(_LEAST_SILENCE, INTERVALS * (interval or _UNKNOWN_INTERVAL))
