"""The timer: one thread of the process for everything that is due every so often, and for SIGTERM.

Its tasks are short, hold the interpreter a millisecond at most, and run nothing that may block: no code of the
program's, no driver, no library of others. A call that may block is made *beside* the timer, in another thread, one of
which stays for the next such call; so SIGTERM is noticed at once, even where one hangs. The threads are there as long
as there are tasks.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import select
import threading
import time
from collections.abc import Callable

from tachograph.recording import gil_yield
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.interrupts import free_within
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

_BYTES = 64  # read at once from a descriptor
_HURRY = 0.05  # seconds between two calls of a task that is hurried
_LATE = 0.01  # seconds after which a call is looked for that was expected while the one before was under way
_CLOSING_POLL = 0.001  # seconds between two looks whether its thread has ended
_MEMORY_AGAIN = 0.05  # seconds until work is tried again for which there was no memory

_log = logging.getLogger("tachograph")


class Task:
    """A task of the timer, from :meth:`Timer.every` until it is closed.

    Attributes:
        early: returns the seconds of :meth:`Timer.every`.
        runner: the thread that is in it; 0 where none is.

    Args:
        timer: calls it.
        name: in the log, and in the count of its errors.
        wait: returns the seconds until its next call; asked after each.
        call: its work; an exception is counted and said, and the task goes on.
        beside: tells before a call whether that may block.
        early: see :meth:`Timer.every`.
        registry: where its errors are counted.
    """

    def __init__(
        self,
        timer: Timer,
        name: str,
        wait: Callable[[], float],
        call: Callable[[], object],
        *,
        beside: Callable[[], bool],
        early: Callable[[], float],
        registry: Registry,
    ) -> None:
        self._timer, self._name, self._wait, self._called, self._beside = timer, name, wait, call, beside
        self._registry, self.early = registry, early
        self._log_once = LogOnce()
        self._woken = self._closed = False
        self._hurries_from = -math.inf
        self._under_way = threading.Lock()  # held while it is
        self.runner = 0
        self._due = time.monotonic() + wait()
        self._period = math.inf  # seconds between the last two such times

    @property
    def due(self) -> float:
        """When it is to be called, in seconds of the monotonic clock; infinity while it is."""
        if self._under_way.locked():
            return math.inf
        return -math.inf if self._woken else self._due

    @property
    def looked_at(self) -> float:
        """When it is to be looked at: :attr:`due`; while it is called, when the call after that is expected."""
        expected = self._due + self._period + _LATE
        return expected if self._under_way.locked() and expected > time.monotonic() else self.due

    def hurry(self) -> None:
        """Call :meth:`wake`, twenty times a second at most: else it costs next to nothing. Takes no lock."""
        if not self._woken and (now := time.monotonic()) >= self._hurries_from:
            self._hurries_from = now + _HURRY
            self.wake()

    def wake(self) -> None:
        """Call it as soon as possible. Takes no lock: it may be called wherever an object's last reference goes."""
        self._woken = True
        self._timer.wake()

    def begin(self) -> None:
        """Call it once: for the timer."""
        self._woken = False
        self._under_way.acquire()  # until it has run, in whichever thread
        try:
            is_beside = self._beside()
        except Exception:  # noqa: BLE001 - a call that cannot tell may block
            is_beside = True
        if is_beside:
            self._timer.beside(self._name, self._run)
        else:
            self._run()

    def _run(self) -> None:
        self.runner = threading.get_ident()
        try:
            if not self._closed:
                self._called()
        except BaseException as error:  # noqa: BLE001 - the one guard around background work: the others' work goes on
            with contextlib.suppress(MemoryError):
                self._registry.count_error(self._name)
                message = (
                    "%s: background task failed and will be retried "
                    "(further warnings are suppressed; see tachograph_errors_total on /metrics)"
                )
                self._log_once(type(error).__name__, message, self._name, level=logging.ERROR, exc_info=True)
        finally:
            last = self._due
            try:
                self._due = time.monotonic() + self._wait()
            except Exception:  # noqa: BLE001 - a clock that was set, say
                self._due = -math.inf
            self._period = self._due - last
            self.runner = 0
            self._under_way.release()
            if self.due + 2 * _LATE < self._timer.rests_until:
                self._timer.wake()

    def close(self, timeout: float = 0.0) -> bool:
        """Call it no more; tell whether no call is under way, or the one that was has ended within ``timeout``."""
        self._closed = True
        self._timer.remove(self)
        return self.runner == threading.get_ident() or free_within(self._under_way, timeout)


class Watch:
    """A pipe that the timer reads, from :meth:`Timer.watch` until it is closed: both ends with it.

    A zero byte that is written to it only wakes the timer.

    Args:
        timer: reads it.
        read: its end that is read.
        write: the other one, which does not block.
        call: called with the bytes that were read.
    """

    def __init__(self, timer: Timer, read: int, write: int, call: Callable[[bytes], object]) -> None:
        self._timer, self.read, self._write, self._called = timer, read, write, call
        self.closed = self._lost = False

    def wake(self) -> None:
        """Make it readable."""
        with contextlib.suppress(OSError):  # it is full: then it is
            os.write(self._write, b"\0")

    def notice(self) -> None:
        """Read it: for the timer."""
        try:
            found = os.read(self.read, _BYTES).replace(b"\0", b"")
        except OSError:  # the program has closed every descriptor, as daemons do: another file may have the number next
            self.closed = self._lost = True
            return
        if found and not self.closed:
            self._called(found)

    def close(self) -> None:
        """Read it no more. Its ends are closed by the timer: they must not become another file's while it reads."""
        self.closed = True
        self._timer.wake()

    def release(self) -> None:
        """Close both ends: for the timer."""
        for descriptor in () if self._lost else (self.read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)


class _Beside:
    """A thread for calls that may block, one after the other.

    Args:
        name: of its first call.
        call: the first one.
        rests: called after each: tells whether it is to wait for another one.

    Raises:
        RuntimeError: no thread can be started any more: the interpreter is about to end.
    """

    def __init__(self, name: str, call: Callable[[], object], rests: Callable[[_Beside], bool]) -> None:
        self._calls: queue.SimpleQueue[tuple[str, Callable[[], object]] | None] = queue.SimpleQueue()
        self._rests = rests
        self.call(name, call)
        self._thread = threading.Thread(target=self._run, name=f"tachograph {name}", daemon=True)
        self._thread.start()

    def call(self, name: str, call: Callable[[], object]) -> None:
        """Call something, while it waits."""
        self._calls.put((name, call))

    def end(self) -> None:
        """End, while it waits."""
        self._calls.put(None)

    def _run(self) -> None:
        while (wanted := self._calls.get()) is not None:
            name, call = wanted
            threading.current_thread().name = f"tachograph {name}"
            gil_yield.begin()
            call()
            del wanted, call  # what they hold may go
            if not self._rests(self):
                return


class Timer:
    """The caller of all tasks that are due, in one thread.

    Attributes:
        rests_until: when it looks for tasks again, on the monotonic clock; infinity while it does not rest.
    """

    def __init__(self) -> None:
        self._is_closed = False
        self.reset_in_child()

    def reset_in_child(self) -> None:
        """Forget every task, after a fork: each part of the child begins its own again."""
        self._changing = threading.RLock()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._tasks: tuple[Task, ...] = ()
        self._watches: tuple[Watch, ...] = ()
        self._polled: tuple[tuple[Watch, ...], select.poll | None] = (), None
        self._ident: int | None = 0  # of its thread; 0 for none
        self.rests_until = math.inf
        self._beside: _Beside | None = None  # it waits for a call

    def every(
        self,
        name: str,
        wait: float | Callable[[], float],
        call: Callable[[], object],
        *,
        beside: bool | Callable[[], bool] = False,
        early: float | Callable[[], float] = 0.0,
        registry: Registry = registries.default,
    ) -> Task:
        """Call something every so often, until the returned task is closed.

        At the end of the interpreter, where no thread can be started any more, nothing is called.

        Args:
            name: in the log, and in the count of its errors.
            wait: seconds between two calls; or a callable that returns those until the next one.
            call: never waits for anything, unless it is called beside.
            beside: it may block, or a callable tells before a call whether that one may: it is called in another
                thread, and never twice at once.
            early: seconds by which a call may come too early, with that of another task: one wake-up for both; or a
                callable that returns them.
            registry: where its errors are counted.
        """
        seconds = wait if callable(wait) else lambda: wait
        blocks = beside if callable(beside) else lambda: beside
        comes_early = early if callable(early) else lambda: early
        task = Task(self, name, seconds, call, beside=blocks, early=comes_early, registry=registry)
        with self._changing:
            self._tasks = tuple(sorted((*self._tasks, task), key=lambda task: task.early()))
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end
                self._start()
        self.wake()
        return task

    def watch(self, read: int, write: int, call: Callable[[bytes], object]) -> Watch:
        """Call something with the bytes that come by a pipe, until the returned watch is closed.

        Args:
            read: the end that is read.
            write: the other one, which does not block; both are closed by the timer.
            call: called with the bytes, in the timer's thread.

        Raises:
            RuntimeError: no thread can be started any more: the interpreter is about to end.
        """
        watch = Watch(self, read, write, call)
        with self._changing:
            self._start()
            self._watches = (*self._watches, watch)
        self.wake()
        return watch

    def _start(self) -> None:
        if not self._ident and not self._is_closed:
            thread = threading.Thread(target=self._run, name="tachograph timer", daemon=True)
            thread.start()
            self._ident = thread.ident

    def remove(self, task: Task) -> None:
        """Call a task no more."""
        with self._changing:
            self._tasks = tuple(other for other in self._tasks if other is not task)
        self.wake()

    def wake(self) -> None:
        """Look at once for tasks that are due. Takes no lock."""
        if not self._ident or self._ident == threading.get_ident():  # the latter looks before it rests
            return
        self._wakes.put(None)
        for watch in self._watches:
            watch.wake()

    def beside(self, name: str, call: Callable[[], object]) -> None:
        """Call something that may block, in another thread."""
        with self._changing:
            waiting, self._beside = self._beside, None
        try:
            if waiting is None:
                _Beside(name, call, self._stays)
            else:
                waiting.call(name, call)
        except (RuntimeError, MemoryError):  # the interpreter is about to end, or there is no memory for a thread
            call()

    def _stays(self, beside: _Beside) -> bool:
        """Tell a thread that has made its call whether it is to wait for the next one: one of them is."""
        with self._changing:
            if not self._ident or self._beside is not None:
                return False
            self._beside = beside
            return True

    def close(self, timeout: float) -> None:
        """Call no task any more, also none that comes later, and end its threads, within ``timeout`` seconds."""
        self._is_closed = True
        deadline = time.monotonic() + timeout
        for task in self._tasks:
            task.close(max(deadline - time.monotonic(), 0.0))
        for watch in self._watches:
            watch.close()
        while self._ident and time.monotonic() < deadline:
            time.sleep(_CLOSING_POLL)

    def is_current(self) -> bool:
        """Tell whether this is its thread, which waits for nothing."""
        return self._ident == threading.get_ident()

    def tasks(self) -> tuple[Task, ...]:
        """Return its tasks."""
        return self._tasks

    @property
    def running(self) -> bool:
        """Tell whether its thread is there."""
        return bool(self._ident)

    def is_at_work(self) -> bool:
        """Tell whether this thread is in one of the tasks, for which no caller waits."""
        mine = threading.get_ident()
        return any(task.runner == mine for task in self._tasks)

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Wait, and begin the tasks that are due; False where there is nothing more to do."""
        try:
            if not self._goes_on():
                return False
            self._rest()
            gil_yield.begin()
            is_at_work = False
            for task in self._tasks:
                if task.due - (task.early() if is_at_work else 0.0) <= time.monotonic():
                    is_at_work = True
                    task.begin()
        except MemoryError:  # the program may give some back
            time.sleep(_MEMORY_AGAIN)
        return True

    def _release_closed(self) -> None:
        closed = [watch for watch in self._watches if watch.closed]
        if not closed:
            return
        for watch in closed:
            watch.release()
        self._watches = tuple(watch for watch in self._watches if watch not in closed)

    def _goes_on(self) -> bool:
        with self._changing:
            self._release_closed()
            if not self._tasks and not self._watches and self._ident == threading.get_ident():
                self._ident = 0
                if self._beside is not None:
                    self._beside.end()
                    self._beside = None
            return self._ident == threading.get_ident()

    def _rest(self) -> None:
        """Wait until something is due, or comes by a pipe, or the timer is woken."""
        # A task that ends meanwhile wakes it: rests_until is infinity until it is known.
        self.rests_until = due = min([task.looked_at for task in self._tasks], default=math.inf)
        left = None if due == math.inf else max(due - time.monotonic(), 0.0)
        watches = self._watches
        if not watches:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=left)
        elif self._wakes.empty():
            polled, poll = self._polled
            if poll is None or polled is not watches:
                poll = select.poll()  # not before: eventlet removes it, and nothing is watched in its programs
                for watch in watches:
                    poll.register(watch.read, select.POLLIN)
                self._polled = watches, poll
            for descriptor, _ in poll.poll(None if left is None else math.ceil(left * 1000)):
                for watch in watches:
                    if watch.read == descriptor:
                        self._guarded(watch.notice)
        self.rests_until = math.inf
        while not self._wakes.empty():
            self._wakes.get_nowait()

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - as for a task
            registries.default.count_error("timer")
            _log.exception("could not handle a signal")


default = Timer()

at_fork("timer", in_child=default.reset_in_child)
