"""Processes that run side by side under one ``service.instance.id``: programs that were started without a rank."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from tachograph.hub.processes import Attributes, Process, start_of

MOST = 256  # of one id that are told apart


def free_instance(processes: Mapping[str, Process], instance: str, attributes: Attributes) -> str:
    """Return what a start is called: its id, and ``#2`` or more behind it where another one of that id is running.

    A restart, which begins when the one before is over, goes on under its name. That the one before is running can be
    told on the hub's own machine only; those with a rank, and those of another restart count, are their launcher's.

    Args:
        processes: those of the run, by what they are called.
        instance: the id.
        attributes: the resource of the start.
    """
    start = start_of(attributes)
    if instance not in processes or "dl.rank" in attributes:
        return instance
    names = [instance, *(f"{instance}#{number}" for number in range(2, MOST + 1))]
    for name in names:
        process = processes.get(name)
        if process is not None and start in process.incarnations:
            return name
    if attributes.get("host.name") != socket.gethostname():
        return instance
    for name in names:
        process = processes.get(name)
        current = None if process is None else process.current
        if current is None or current.ended or current.key.restart != start.restart or not is_running(current.key.pid):
            return name
    return instance


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine is there, and not only waits for its parent to take note of its end."""
    if pid <= 0:
        return False
    with contextlib.suppress(OSError, IndexError):  # proc(5): the state comes after the name, which may hold anything
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
