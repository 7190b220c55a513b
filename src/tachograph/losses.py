"""What was not recorded: counted, and said once."""

from __future__ import annotations

import logging

from tachograph.values import Number, Pending, read

_log = logging.getLogger("tachograph")


class Losses:
    """What a series could not take: values that are no number, values beyond the buffer's limit, non-finite ones."""

    __slots__ = ("name", "negative", "no_number", "nonfinite", "overflow")

    def __init__(self, name: str) -> None:
        self.name = name
        self.forget()

    def forget(self) -> None:
        """Begin to count anew, in place: recorders hold on to this record."""
        self.no_number = 0
        self.overflow = 0
        self.negative = 0
        self.nonfinite = 0

    def read(self, value: object) -> Number | Pending | None:
        """Return ``value`` as a number; what is none is counted, and said once."""
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - the border to user code: any object's __float__ or item() may fail
            if not self.no_number:
                _log.warning("%s: a value was not recorded (further ones are counted): %s", self.name, error)
            self.no_number += 1
            return None

    def refuse_negative(self, count: int) -> None:
        """Count values that would have made a counter go backwards."""
        if count and not self.negative:
            _log.warning("%s: a negative value was not added to a counter (further ones are counted)", self.name)
        self.negative += count
