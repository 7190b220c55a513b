"""Sources of runs: a hub, or a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tachograph.cli.hub_client import HubClient, RefusedError, UnavailableError
from tachograph.studio.snapshot import Json, answers_from_store


class RunSource(Protocol):
    """A place with runs, which answers the questions of the API."""

    where: str  # for people

    def ask(self, path: str, **query: Any) -> Json:
        """Return the answer to a question below ``/api``.

        Raises:
            UnavailableError: the place cannot be read now.
            RefusedError: there is no such run, or it may not be read.
        """

    def no_run(self) -> str:
        """Return in words that there is no run."""


class ServedRuns:
    """The runs that a hub or a Studio serves."""

    def __init__(self, client: HubClient) -> None:
        self.where = client.url
        self._client = client

    def ask(self, path: str, **query: Any) -> Json:
        """See :meth:`RunSource.ask`."""
        answer: Json = self._client.get(f"/api{path}", **query)
        return answer

    def no_run(self) -> str:
        """See :meth:`RunSource.no_run`."""
        return f"the hub at {self.where} has not received any run yet"


class StoredRuns:
    """The runs in a folder, whether a hub writes them or not."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._answer = answers_from_store(folder)

    def ask(self, path: str, **query: Any) -> Json:
        """See :meth:`RunSource.ask`."""
        try:
            return self._answer(path, **query)
        except LookupError as error:
            raise RefusedError(str(error)) from error
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
            raise UnavailableError(why) from error

    def no_run(self) -> str:
        """See :meth:`RunSource.no_run`."""
        return f"there is no run in {self.where} yet"


def default_run(runs: Sequence[Json], own: str = "") -> str:
    """Return the id of the run to show if none is named, or an empty string if there is no run.

    That is the hub's own run, once it has more than the hub itself in it; else the newest live or recorded one.

    Args:
        runs: as the API lists them, the newest first.
        own: the hub's run, if there is a hub.
    """
    mine = [run for run in runs if run["id"] == own]
    with_job = [run for run in mine if run["points"] or run["ranks"] or run["processes"] > 1]
    recorded = [run for run in runs if run["points"]]
    live = [run for run in recorded if run["state"] == "running"]
    candidates = with_job or live or recorded or mine or runs
    return str(candidates[0]["id"]) if candidates else ""
