"""Who the process has said that it is: what ``start()`` was given, for what else has to say the same."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tachograph.identity.resource import SERIES_KEYS
from tachograph.recording.points import AttributeValue


class Announced:
    """The resource attributes of the process's pipeline, also after its end: series go on under the same labels.

    Attributes:
        labels: keys of those that are labels on each Prometheus series.
    """

    def __init__(self) -> None:
        self.labels: Sequence[str] = SERIES_KEYS
        self._attributes: Mapping[str, AttributeValue] = {}
        self._pid = 0

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The resource attributes; none before the first ``start()``, and in a forked child before its own."""
        return self._attributes if self._pid == os.getpid() else {}

    def announce(self, attributes: Mapping[str, AttributeValue], labels: Sequence[str]) -> None:
        """Take over what a pipeline sends."""
        self._attributes, self.labels, self._pid = attributes, labels, os.getpid()


announced = Announced()
