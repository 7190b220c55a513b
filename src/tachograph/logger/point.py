"""The attributes of one logged point, and the database that it goes to."""

from __future__ import annotations

from collections.abc import Collection
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
        fields_without_value: the fields that are 0.0 because their value is None or an empty list: InfluxDB gets the
            zero of the field's type.
    """

    __slots__ = ("fields_without_value", "to")

    def __init__(
        self,
        attributes: dict[str, Any],
        to: InfluxTarget | None = None,
        *,
        fields_without_value: Collection[str] = (),
    ) -> None:
        super().__init__(attributes)
        self.to = to
        self.fields_without_value = fields_without_value
