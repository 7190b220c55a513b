"""Where a run is read from."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from tachograph.cli.top.picture import Json, Picture

RETRY = 2.0  # seconds between two attempts to reach what is away
_BREATH = 0.2


class Away(Exception):  # noqa: N818 - it may come back
    """The source cannot be read now; the message says which one, and why."""


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """There is no such run, or it may not be read; the message says which ones there are, or what is missing."""


class Source(Protocol):
    """Reads a run into a picture."""

    @property
    def where(self) -> str:
        """Where the run is read from, for people."""

    def fill(self, picture: Picture) -> None:
        """Read all there is, once.

        Raises:
            Away: see there.
            Refused: see there.
        """

    def follow(self, picture: Picture, stop: threading.Event) -> None:
        """Read all there is and what is new, until ``stop`` is set, or until that is to begin again.

        Raises:
            Away: see there.
            Refused: see there.
        """

    def close(self) -> None:
        """Let go of what it has open; it can be read again."""


def newest(runs: Sequence[Json], own: str = "") -> str:
    """Return the id of the run that is shown where none is named; there must be one.

    That is the hub's own, where it has recorded anything but the hub; else the newest that is live, or was recorded.

    Args:
        runs: as the API lists them, the newest first.
        own: the hub's run, where there is a hub.
    """
    mine = [each for each in runs if each["id"] == own]
    job = [each for each in mine if each["points"] or each["ranks"] or each["processes"] > 1]
    recorded = [each for each in runs if each["points"]]
    live = [each for each in recorded if each["state"] == "live"]
    return str((job or live or recorded or mine or runs)[0]["id"])


def keep_up(source: Source, picture: Picture, stop: threading.Event) -> None:
    """Keep a picture up to date until ``stop`` is set, whatever happens to the source meanwhile."""
    while not stop.is_set():
        if trouble := _kept_up(source, picture, stop):
            _say(picture, f"{trouble}; trying again")
        stop.wait(RETRY if trouble else _BREATH)


def _kept_up(source: Source, picture: Picture, stop: threading.Event) -> str:
    """Keep it up to date while that goes well, and return in words why it no longer does."""
    try:
        source.follow(picture, stop)
    except Away as error:
        return str(error)
    except Refused as error:
        if not picture.about:  # and never was there anything: it is the question that is wrong
            picture.refused = str(error)
        return str(error)
    except Exception as error:  # noqa: BLE001 - the border to another version's answers: the screen stays, and says so
        return f"what {source.where} says is not understood: {type(error).__name__}: {error}"
    return ""


def _say(picture: Picture, trouble: str) -> None:
    with picture.lock:
        picture.trouble = trouble
        picture.version += 1
