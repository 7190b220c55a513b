"""Hardware metrics: CPU, memory, disks, network, GPUs, and torch's CUDA allocator.

Its face: :func:`observe`, and ``snapshot`` for the fields of a logger's point. Each table of metrics is a module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tachograph.recording.registry import Registry

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the batches of data-loader workers; only its size is read


class Closer(Protocol):
    """An observation, until it is closed."""

    def close(self, timeout: float = ...) -> None:
        """End the observation, within ``timeout`` seconds."""


def observe(registry: Registry, *, node: bool, process: bool, folders: Iterable[str] | None = None) -> Closer:
    """Add hardware metrics to a registry, until the returned observation is closed.

    Needs the extra ``hardware``: a missing library is counted, and named in one line of the log. A forked child has no
    hardware metrics before it calls this itself.

    Args:
        registry: the series appear in its group ``tachograph.hardware``.
        node: the machine, for one process a node: ``system.*``, ``hw.*``. GPUs are read each second, file systems
        every 15 seconds, the rest at each collection.
        process: this process: ``process.*``, and ``torch.cuda.memory.*`` once it has initialised CUDA itself.
        folders: whose file systems are observed with the node; by default the working directory and shared memory.
    """
    from tachograph.hardware._observation import Observation

    if folders is None:
        folders = (".", SHARED_MEMORY)
    return Observation(registry, node=node, process=process, folders=folders)
