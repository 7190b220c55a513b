"""The attributes of one logged point, and the database that it goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.logger.influx_target import InfluxTarget

EVENT_NAME = "tachograph.point"
MEASUREMENT = "tachograph.measurement"
TAGS = "tachograph.tags"
FIELDS = "tachograph.fields"


class LoggerPoint(dict[str, Any]):
    """The attributes of a ``tachograph.point`` event.

    Attributes:
        to: the database that takes it; None where it goes only to the exporters of :func:`tachograph.start`.
    """

    __slots__ = ("to",)

    def __init__(self, attributes: dict[str, Any], to: InfluxTarget | None = None) -> None:
        super().__init__(attributes)
        self.to = to
