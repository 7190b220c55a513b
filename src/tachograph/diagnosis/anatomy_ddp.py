"""The time for which backwards wait for other ranks' gradients, as DistributedDataParallel measures it itself.

It times its first ten steps and each hundredth (``torch/csrc/distributed/c10d/logger.cpp``). These figures are read by
the thread that made the module and trains it, once a second; its settings stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

_EVERY = 1_000_000_000  # nanoseconds between two looks: one takes 60 microseconds
_FIRST = 10  # iterations that are no sample
# A name of DistributedDataParallel that is no part of its documented interface (torch 2.1 to 2.15), and its figures.
_FIGURES = "_get_ddp_logging_data"
_ITERATION, _COMMUNICATION, _OVERLAP = "iteration", "backward_comm_time", "backward_compute_comm_overlap_time"


class Communication:
    """The communication of one thread's modules.

    Args:
        modules: those of all threads, each with the id of the thread that made it.
        failed: called with an exception of theirs, after which nothing more is read.

    Attributes:
        samples: steps that were timed.
        waited: nanoseconds of their backwards in which nothing was computed beside the communication.
    """

    def __init__(self, modules: WeakKeyDictionary[Any, int], failed: Callable[[Exception], object]) -> None:
        self.samples = self.waited = 0
        self._modules, self._failed = modules, failed
        self._thread, self._next = get_ident(), 0
        self._seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def read(self, now: int) -> None:
        """Take the figures of steps that were timed since the last look."""
        if now < self._next or not self._modules:
            return
        self._next = now + _EVERY
        for module, thread in list(self._modules.items()):
            if thread == self._thread:
                try:
                    self._take(module, getattr(module, _FIGURES)())
                except Exception as error:  # noqa: BLE001 - the border to a private name of torch
                    self._modules.pop(module, None)
                    self._failed(error)

    def _take(self, module: Any, figures: Any) -> None:
        iteration = figures.get(_ITERATION, 0)
        if iteration > max(_FIRST, self._seen.get(module, 0)):
            self._seen[module] = iteration
            self.samples += 1
            self.waited += max(0, figures[_COMMUNICATION] - figures[_OVERLAP])
