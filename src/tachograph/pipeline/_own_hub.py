"""The hub of a program that has asked for one: ``start(hub=True)``."""

from __future__ import annotations

import logging
import os
import sys

from tachograph.identity.environment import JOB_HUB, setting, text
from tachograph.identity.launch import RECORD_PROGRAM, launch_of
from tachograph.identity.program import worker_parent
from tachograph.identity.rank import rank_attributes, speaks_for_node
from tachograph.pipeline.hub_process import HubProcess
from tachograph.pipeline.settings import Settings
from tachograph.recording import timer
from tachograph.recording.interrupts import pass_on
from tachograph.recording.registry import Registry

_LOOK = 0.5  # seconds between looks at it
_ENDS_WITHIN = 2.0  # seconds that a shutdown() waits for its end: it stays longer where a Prometheus scrapes it
_MAKES_ROOM = 5.0  # seconds that the next one waits for it

_log = logging.getLogger("tachograph")


class OwnHub:
    """A hub that this process has started: it ends with it, also where that is killed.

    It is no child of the process, so that a program which waits for all of its children does not wait for it. In a
    forked child it is the parent's: what the child sends there arrives, and its end is not the child's.

    Args:
        settings: of the pipeline that sends to it.
        registry: counts the errors of its upkeep.

    Attributes:
        url: its base URL.
        is_over: it was asked to end.

    Raises:
        ImportError: this installation is incomplete.
        RuntimeError: it could not start; the message says why.
        OSError: no process could be started.
    """

    def __init__(self, settings: Settings, registry: Registry) -> None:
        arguments = ["--run-id", settings.run_id, "--store", str(settings.store), "--quiet"]
        given = setting(os.environ, "", None, RECORD_PROGRAM)
        records = given.boolean() if given else True
        launch = launch_of(sys.orig_argv, records_program=records, tags=settings.tags, notes=settings.notes)
        process = HubProcess(arguments, {**os.environ, **launch.handed()}, detached=True)
        self.url, self.is_over = process.url, False
        self._process: HubProcess | None = process
        self._upkeep = timer.default.every(
            "hub", lambda: _LOOK, process.look_after, beside=lambda: not process.runs, registry=registry
        )
        _say(f"live at {process.page} (metrics at {process.url}/metrics)")

    @property
    def is_borrowed(self) -> bool:
        """Whether it is the hub of the process that this one was forked from, and was live then."""
        return self._process is None and not self.is_over

    def end(self, *, exiting: bool = False) -> None:
        """Let it end, once it has taken the last exports.

        Args:
            exiting: this process ends as well: nobody waits.
        """
        if self._process is None:
            return
        self.is_over = True
        self._upkeep.close(_LOOK)
        self._process.ask_to_end()
        if not exiting:
            self._process.wait(_ENDS_WITHIN)

    def make_room(self) -> None:
        """End it at once, for the next one: it may have stayed for a last scrape."""
        if self._process is None:
            return
        self.is_over = True
        self._upkeep.close(_LOOK)
        for _ in range(2):  # the second signal ends what the first one has asked to end
            self._process.ask_to_end()
        self._process.wait(_MAKES_ROOM)
        self._process.close()

    def reset_in_child(self) -> None:
        """Leave it to the parent process, after a fork."""
        if self._process is not None:
            self._process.close()
            self._process = None


def hub_for(settings: Settings, registry: Registry, before: OwnHub | None) -> OwnHub | None:
    """Return the hub that a ``start()`` has asked for; None, after a line in the log, where there is none for it.

    Args:
        settings: of the pipeline.
        registry: where a failure is counted.
        before: the last one of this process.
    """
    if not settings.hub:
        return None
    if before is not None and before.is_borrowed:
        return before
    is_first = speaks_for_node(rank_attributes(os.environ), os.environ, os.getpid()) and worker_parent() is None
    if not is_first or text(os.environ, JOB_HUB):
        say_no_hub()
        return None
    if before is not None:
        before.make_room()
    try:
        return OwnHub(settings, registry)
    except (ImportError, RuntimeError, OSError) as error:
        registry.count_error("hub")
        _log.warning("start(hub=True) could not start a hub, continuing with the other destinations: %s", error)
        return None


def say_no_hub() -> None:
    """Log that this process starts no hub."""
    _log.warning(
        "start(hub=True) did not start a hub in this process: under `tachograph run` all processes share one, and "
        "otherwise only the first process on each machine (local rank 0) starts one"
    )


def _say(line: str) -> None:
    try:
        sys.stderr.write(f"tachograph: {line}\n")
        sys.stderr.flush()
    except Exception as error:  # noqa: BLE001 - the border to the program's stderr: closed, None, or its own object
        pass_on(error)
