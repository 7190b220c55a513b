"""Hardware as sources of a registry: read at each collection; reads that may block have a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tachograph.hardware import _cuda_memory as cuda_memory
from tachograph.hardware import _filesystem as filesystem
from tachograph.hardware import _process as process
from tachograph.hardware import _system as system
from tachograph.hardware._gpu import Gpu, Xids
from tachograph.hardware._nvml import Card, MissingError, Nvml
from tachograph.hardware._process import ProcessState
from tachograph.hardware._sampler import PATIENCE, SCOPE, Reading, Sampler, metrics
from tachograph.hardware._system import Machine
from tachograph.identity.extra import install_command
from tachograph.recording.forking import at_fork
from tachograph.recording.log import LogOnce
from tachograph.recording.points import MetricPoints
from tachograph.recording.registry import Registry

GPUS_EVERY = 1.0  # seconds
FILE_SYSTEMS_EVERY = 15.0
DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl")  # one of them is there where NVIDIA's driver is
_FIRST_TURN = 0.1  # seconds that a process's first collection waits for the first turn of a sampler
_CLOSING = 0.2


class Observation:
    """The hardware metrics of a registry, until it is closed.

    A part (``node``, ``process``) that another observation of the same registry has is left out.

    Args:
        registry: where the series appear, in the group ``tachograph.hardware``.
        node: observe the machine: ``system.*`` and ``hw.*``, one process a node.
        process: observe this process: ``process.*`` and ``torch.cuda.memory.*``.
        folders: their file systems are observed with the node.
        patience: seconds that a card or a file system may take to answer, before the others go on without it.
        driver: paths of which one exists where there should be GPUs: else it is no error that there are none.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        node: bool,
        process: bool,
        folders: Iterable[str],
        patience: float = PATIENCE,
        driver: Iterable[str] = DRIVER,
    ) -> None:
        self._patience, self._driver = patience, tuple(driver)
        self.registry = registry
        self._log_once = LogOnce()
        self._reading = threading.Lock()
        self._sources: list[Callable[[], Iterator[MetricPoints]]] = []
        self._samplers: list[Sampler[list[Reading]]] = []
        self._nvml: Nvml | None = None
        there = [other for other in _live if other.registry is registry]
        self.node: bool = node and registry.enabled and not any(other.node for other in there)
        self.process: bool = process and registry.enabled and not any(other.process for other in there)
        _live.append(self)
        if self.node:
            self._observe_node(folders)
        if self.process:
            self._observe_process()

    def _observe_node(self, folders: Iterable[str]) -> None:
        # The monotonic clock counts from the boot; the driver's counters cannot be older.
        boot = time.time_ns() - time.monotonic_ns()
        try:
            machine = Machine()
        except ImportError as error:
            self._fail("system", "psutil", error)
        else:
            boot = machine.booted or boot
            self._add(boot, partial(system.readings, machine, partial(self._fail, "system")))
        failed = partial(self._fail, "system")
        found = tuple(folders)
        self._sample(boot, FILE_SYSTEMS_EVERY, lambda: filesystem.find(found), failed)
        self._sample(boot, GPUS_EVERY, self._gpus, partial(self._fail, "gpu"))

    def _observe_process(self) -> None:
        try:
            this = ProcessState()
        except ImportError as error:
            self._fail("process", "psutil", error)
            began = time.time_ns()
        else:
            began = this.began
            self._add(began, partial(process.readings, this, partial(self._fail, "process")))
        self._add(began, partial(cuda_memory.readings, partial(self._fail, "gpu")))

    def _add(self, start: int, read: Callable[[], Iterable[Reading]]) -> None:
        def source() -> Iterator[MetricPoints]:
            with self._reading:  # a scrape and an export may collect at once
                found = list(metrics(read(), start))
            yield from found

        self._sources.append(source)
        self.registry.group(SCOPE).sources.append(source)

    def _sample(
        self,
        start: int,
        every: float,
        find: Callable[[], Mapping[str, Callable[[], list[Reading] | None]]],
        failed: Callable[[str, Exception], None],
    ) -> None:
        sampler: Sampler[list[Reading]] = Sampler(find, every=every, failed=failed, patience=self._patience)

        def read() -> Iterator[Reading]:
            sampler.wait(_FIRST_TURN)
            for listed in sampler.latest():
                yield from listed

        sampler.start()
        self._samplers.append(sampler)
        self._add(start, read)

    def _gpus(self) -> dict[str, Callable[[], list[Reading] | None]]:
        self._nvml = nvml = Nvml()
        left_out = partial(self._fail, "gpu")
        cards: list[Card] = nvml.cards(lambda index, error: left_out(f"GPU {index}", error))
        found: dict[str, Callable[[], list[Reading] | None]] = {card.uuid: Gpu(card, left_out) for card in cards}
        whole = [card for card in cards if not card.parent]
        if whole:
            try:
                found["XIDs"] = Xids(whole, left_out)
            except nvml.api.NVMLError as error:
                left_out("hw.errors", error)
        return found

    def _fail(self, where: str, name: str, error: Exception) -> None:
        """Count a part that is left out, and log it once; a machine without GPUs lacks nothing."""
        if isinstance(error, MissingError) and not any(Path(path).exists() for path in self._driver):
            self._log_once(name, "hw.* metrics are not recorded: %s", error, level=logging.INFO)
            return
        self.registry.count_error(where)
        if isinstance(error, ImportError):
            message = "%s.* metrics are not recorded because psutil is not installed: %s"
            self._log_once(name, message, where, install_command("hardware"))
        elif isinstance(error, MissingError):
            self._log_once(name, "hw.* metrics are not recorded: %s", error)
        else:
            message = (
                "%s is not recorded: %s (further warnings are suppressed; see tachograph_errors_total on /metrics)"
            )
            self._log_once(name, message, name, error)

    def close(self, timeout: float = _CLOSING) -> None:
        """End the observation, within ``timeout`` seconds."""
        self.forget()
        deadline = time.monotonic() + timeout
        idle = [sampler.close(max(0.0, deadline - time.monotonic())) for sampler in self._samplers]
        if self._nvml is not None and all(idle):  # a call that blocks would block this one, too
            self._nvml.close()
            self._nvml = None

    def forget(self) -> None:
        """Remove the series and touch nothing else, as a forked child does: the threads are the parent's."""
        if self in _live:
            _live.remove(self)
        sources = self.registry.group(SCOPE).sources
        sources[:] = [source for source in sources if source not in self._sources]


_live: list[Observation] = []


def _after_fork_in_child() -> None:
    for observation in _live[:]:
        observation.forget()


at_fork("hardware", in_child=_after_fork_in_child)
