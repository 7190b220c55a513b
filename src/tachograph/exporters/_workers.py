"""Workers: the daemon threads in which queues deliver, untraced. A network destination has its own, files share one."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from opentelemetry import context

from tachograph.exporters.delivery import Changes, Clock, LossReport
from tachograph.recording.forking import at_fork

HANGS = 1.0  # seconds after which a job that others wait behind gets them another thread
AWAITED_HANGS = 0.1  # the same, where a flush or the end waits
_SOONEST = 0.001
# Instrumented HTTP and gRPC libraries would trace our own requests, and each export make the next one.
_UNTRACED = context.Context({"suppress_instrumentation": True})
_AFTER_A_BUG = 1.0

_log = logging.getLogger("tachograph")

Job = Callable[[], None]


class Served(Protocol):
    """A queue, as its workers see it: they call it with :attr:`Workers.lock` held.

    Attributes:
        losses: of the destination.
    """

    losses: LossReport

    def next_job(self, now: float) -> Job | None:
        """Return something to do; None where there is nothing yet."""

    def idle_until(self, now: float) -> float:
        """Return when there may be something to do without a change, after ``now``."""

    def is_through(self) -> bool:
        """Tell whether all that was queued is done."""


class Workers:
    """Daemon threads that do the jobs of queues, in turn.

    If several queues share them, one whose job hangs (a file on a dead NFS server, a terminal that nobody reads)
    holds up no other: from the next :meth:`start` for another one on, a further thread serves those, until the job
    returns. There is at most one such thread for each queue that hangs.

    Args:
        name: of the threads, behind ``tachograph``.
        threads: how many there are while nothing hangs, and jobs of one queue at a time.
        prepare: called by each of them first.
        clock: seconds, monotonic.

    Attributes:
        lock: held while the queues that are served here change.
        changed: notified of each such change.
        is_prepared: whether one has prepared itself.
    """

    def __init__(self, name: str, threads: int = 1, *, prepare: Job = lambda: None, clock: Clock | None = None) -> None:
        self._name, self._size, self._prepare, self._clock = name, threads, prepare, clock or Clock()
        self.reset_in_child()

    def reset_in_child(self) -> None:
        """Forget threads and queues, after a fork: queues that go on in the child join again."""
        self.lock, self.changed = threading.RLock(), Changes()
        self.is_prepared = False
        self._threads: set[threading.Thread] = set()
        self._queues: list[Served] = []
        self._under_way: dict[threading.Thread, tuple[Served, float]] = {}

    def join(self, queue: Served) -> None:
        """Serve a queue from now on: once threads are started, which in a forked child may be never."""
        with self.lock:
            self._queues.append(queue)

    def leave(self, queue: Served) -> None:
        """Serve a queue no longer; the threads end with the last one."""
        with self.lock:
            self._queues = [other for other in self._queues if other is not queue]
            self.changed.notify_all()

    def start(self, queue: Served, patience: float = HANGS) -> bool:
        """Start the threads that are missing, and tell whether one is there for a queue.

        None starts while the interpreter shuts down (CPython 3.12).

        Args:
            queue: which is to be served.
            patience: seconds after which another queue's job is taken to hang.
        """
        with self.lock:
            held = 0
            if self._under_way and len(self._queues) > 1:  # mostly nothing is
                self._under_way = {thread: job for thread, job in self._under_way.items() if thread.is_alive()}
                now, threads = self._clock(), self._threads
                jobs = [job for thread, job in self._under_way.items() if thread in threads]
                held = sum(other is not queue and now - since > patience for other, since in jobs)
            if len(self._threads) < self._size + held:
                self._start_threads(self._size + held)
            return len(self._threads) > held

    def _start_threads(self, wanted: int) -> None:
        while len(self._threads) < wanted:
            thread = threading.Thread(target=self._run, name=f"tachograph {self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.add(thread)

    @property
    def are_alive(self) -> bool:
        """Whether there is a thread."""
        return any(thread.is_alive() for thread in self._threads)

    def hangs_since(self, queue: Served) -> float:
        """Return the seconds for which a job of a queue has lasted; 0 where none is done."""
        with self.lock:
            return max((self._clock() - since for of, since in self._under_way.values() if of is queue), default=0.0)

    def _run(self) -> None:
        me = threading.current_thread()
        context.attach(_UNTRACED)
        try:
            self._prepare()
            self.is_prepared = True
            self._work(me)
        finally:  # there may have been no memory for it to go on
            with self.lock:
                self._threads.discard(me)
                self._under_way.pop(me, None)

    def _work(self, me: threading.Thread) -> None:
        while True:
            with self.lock:
                self._under_way.pop(me, None)
                found = self._taken(me, self._queues, now := self._clock())
                if found is None:
                    # One that was added for a job that hung leaves once that has returned.
                    if not self._queues or len(self._threads - self._under_way.keys()) > self._size:
                        self._threads.discard(me)
                        return
                    change, until = self.changed.next(), min(queue.idle_until(now) for queue in self._queues)
            if found is None:
                self._await(change, until - now)
            else:
                _do(*found)

    def work_here(self, queue: Served, deadline: float) -> None:
        """Do a queue's jobs in the calling thread, until it is through or ``deadline``."""
        me = threading.current_thread()
        token = context.attach(_UNTRACED)
        try:
            self._prepare()
            while True:
                with self.lock:
                    self._under_way.pop(me, None)
                    found = self._taken(me, [queue], now := self._clock())
                    if found is None:
                        if queue.is_through() or now >= deadline:
                            return
                        change, until = self.changed.next(), min(queue.idle_until(now), deadline)
                if found is None:
                    self._await(change, until - now)
                else:
                    _do(*found)
        finally:
            context.detach(token)

    def _await(self, change: threading.Lock, seconds: float) -> None:
        if not self._clock.wait(change, max(seconds, _SOONEST)):
            self.changed.forget(change)

    def _taken(self, me: threading.Thread, queues: Iterable[Served], now: float) -> tuple[Served, Job] | None:
        for queue in queues:
            at_it = sum(other is queue for other, _ in self._under_way.values())
            if at_it < self._size and (job := queue.next_job(now)) is not None:
                self._under_way[me] = queue, now
                if len(self._queues) > 1 and queue in self._queues:  # the others have their turn
                    self._queues = [*(other for other in self._queues if other is not queue), queue]
                return queue, job
        return None


def _do(queue: Served, job: Job) -> None:
    try:
        job()
    except Exception as error:  # noqa: BLE001 - the thread shall live on
        with contextlib.suppress(MemoryError):
            queue.losses.blame("bug", f"a bug in tachograph: {type(error).__name__}: {error}")
            _log.debug(queue.losses.destination, exc_info=True)
        time.sleep(_AFTER_A_BUG)


FILES = Workers("files")  # of all destinations that write to this machine
at_fork("file_writer", in_child=FILES.reset_in_child)
