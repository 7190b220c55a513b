"""What an exporter to InfluxDB lost: counted, and said once a reason."""

from __future__ import annotations

import logging

from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

NAME = "influxdb"
CLIENT = "client"  # said once: it does not load

_log = logging.getLogger("tachograph")


class Losses:
    """Counts and says; used by several threads.

    Args:
        registry: where it is counted, and where durations are.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._said: set[str] = set()

    def count(self, count: int, reason: Reason, why: str) -> None:
        """Count points, or fields, that are lost, and say it."""
        self.add(count, reason)
        self.say_lost(reason, why)

    def add(self, count: int, reason: Reason) -> None:
        """Count points, or fields, that are lost; the program's log handlers, which may take their time, wait."""
        self._registry.count_dropped(reason, NAME, count)

    def say_lost(self, reason: Reason, why: str) -> None:
        """Say that something is lost, once a reason."""
        self.say(reason, f"data was lost ({reason}; further losses are counted): {why}")

    def say(self, what: str, message: str) -> None:
        """Say something, unless its like was said before."""
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s: %s", NAME, message)

    def blame(self, what: str, message: str) -> None:
        """Count an error of our own, or of a library."""
        self._registry.count_error(NAME)
        self.say(what, message)

    def took(self, seconds: float) -> None:
        """Record how long an attempt took."""
        self._registry.export_duration.record(seconds, {"destination": NAME})
