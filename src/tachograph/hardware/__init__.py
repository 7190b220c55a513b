"""Hardware metrics: CPU, memory, disks, network, GPUs, and torch's CUDA allocator.

Its face: :func:`observe`, and ``snapshot`` for the fields of a logger's point. Each table of metrics is a module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tachograph.recording.registry import Registry

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where data-loader workers hand over their batches; it is only looked at


class Closer(Protocol):
    """An observation, to be closed."""

    def close(self, timeout: float = ...) -> None:
        """Observe no more, within ``timeout`` seconds."""


def observe(registry: Registry, *, node: bool, process: bool, folders: Iterable[str] | None = None) -> Closer:
    """Let a registry say what the hardware does, until what is returned is closed.

    Needs the extra ``hardware``: what of it is missing is said in one line of the log, and counted. A process that is
    forked from this one says nothing about hardware before it calls this itself.

    Args:
        registry: the series appear in its group ``tachograph.hardware``.
        node: the machine, for one process a node: ``system.*``, ``hw.*``. GPUs are read each second, the rest when
            somebody collects.
        process: this process: ``process.*``, and ``torch.cuda.memory.*`` once it has initialised CUDA itself.
        folders: whose file systems are observed with the node; by default the working directory and shared memory.
    """
    from tachograph.hardware._observation import Observation

    if folders is None:
        folders = (".", SHARED_MEMORY)
    return Observation(registry, node=node, process=process, folders=folders)
