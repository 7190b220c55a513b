"""Values that come from a device, in a curve's buffer: as far as they have arrived, they become numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from tachograph.recording._throttle import STRIDE
from tachograph.recording.losses import Losses
from tachograph.recording.values import Number, Pending


class Arrived(NamedTuple):
    """What there is of a chunk.

    ``taken`` is how much of the chunk the ``chunk`` of numbers stands for: what cannot be read is not in it. ``newest``
    is the last number that has arrived, at ``moment``; None where a plain one was recorded after it.
    """

    chunk: list[Any]
    taken: int
    newest: Number | None
    moment: float


def arrived(chunk: list[Any], losses: Losses) -> Arrived:
    """Return what there is of a chunk: everything before the first value that is still on its way.

    Args:
        chunk: values, x and times in turn.
        losses: where those are counted that cannot be read: their device has failed.
    """
    found: list[Any] = []
    taken, newest, moment = len(chunk), None, -inf
    for place in range(0, len(chunk), STRIDE):
        value = chunk[place]
        if not isinstance(value, Pending):
            newest = None
        elif not value.ready():
            taken = place
            break
        else:
            value = losses.arrived(value)
            if value is None:
                continue
            newest, moment = value, chunk[place + 2]
        found += value, chunk[place + 1], chunk[place + 2]
    return Arrived(found, taken, newest, moment)


def plain(buffer: Sequence[Any], place: int) -> list[Number]:
    """Return the values from a place in a buffer on that come from no device."""
    values = buffer[place::STRIDE]
    if not set(map(type, values)) - {Pending}:
        return []
    return [value for value in values if not isinstance(value, Pending)]
