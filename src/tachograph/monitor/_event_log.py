"""The event log: into the journal, and to each handler, synchronously, in the thread that logs.

The timer, which closes the windows of Stats, calls no handler: they get those events in one thread of their own.

A handler is never in two threads at once, and no handler is called inside another one: an event that a handler logs is
handed out after the event that the handler was given. So no thread waits for a handler while it is in another one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from tachograph.identity.torch_compile import hide_calls
from tachograph.monitor.event import Event, data_value_t, made, unix_nano
from tachograph.monitor.stat_window import Entry
from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import LIMIT, Journal, Later
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch
from tachograph.recording.trace_context import PROVIDER, TRACE, current_span

_SHORTEST_WAIT, _LONGEST_WAIT = 0.00005, 0.002
CHAIN = 4096  # events that may be logged while a thread hands out its events, and that handlers get then

_log = logging.getLogger("tachograph")

Handler = Callable[[Event], object]


class EventHandlerHandle:
    """The handle that :func:`~tachograph.monitor.register_event_handler` returns. It cannot be instantiated."""

    __slots__ = ("active", "callback", "owner", "said", "token")
    callback: Handler
    active: bool
    said: bool
    owner: int  # the thread that is in it
    # The only token: the thread that has taken it calls the handler. A deque and no lock: taking it either happens or
    # raises, so that an interrupt right after it cannot leave it taken; putting it back twice does nothing; and both
    # take a fifth of the time of a lock in a with statement. Equal callbacks share it.
    token: deque[bool]

    def __init__(self) -> None:
        raise TypeError("EventHandlerHandle cannot be instantiated: call register_event_handler(callback)")


class _Outgoing:
    """The events that one thread has still to hand out, and whether it is doing so."""

    __slots__ = ("active", "pending", "thread")

    def __init__(self) -> None:
        self.pending: deque[Event] = deque()
        self.active = False
        self.thread = threading.get_ident()


class _Local(threading.local):
    """A thread's own :class:`_Outgoing`."""

    def __init__(self) -> None:
        self.outgoing = _Outgoing()


class EventLog:
    """Takes events, and gives them to the journal and to the handlers.

    Args:
        journal: takes every event, for the exporters.
        registry: counts the exceptions of handlers.

    Attributes:
        log_event: logs an event; see :func:`~tachograph.monitor.log_event`.
    """

    log_event: Callable[[Event], None]

    def __init__(self, journal: Journal, registry: Registry) -> None:
        self.journal = journal
        self._registry = registry
        self._keep(())
        self._log_once = LogOnce()
        self._beside = False
        self._local = _Local()
        self.reset_in_child()
        self.log_event = self._logger()

    def reset_in_child(self) -> None:
        """Release every lock: the threads that held them are gone."""
        self._changing = threading.Lock()
        self._local.outgoing = _Outgoing()  # no other thread is left
        self._waiting: dict[int, EventHandlerHandle] = {}
        self._handed_over: deque[tuple[Event, Sequence[EventHandlerHandle]]] = deque()
        self._wakes: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beside = False
        tokens: dict[int, deque[bool]] = {}
        for handle in self._handles:
            handle.owner = 0
            handle.token = tokens.setdefault(id(handle.token), _one_token())

    def _keep(self, handles: tuple[EventHandlerHandle, ...]) -> None:
        self._handles = handles
        self._only = handles[0] if len(handles) == 1 else None  # ready for each event

    def outgoing(self) -> deque[Event]:
        """Return the events that wait for this thread's :meth:`hand_out`."""
        return self._local.outgoing.pending

    def register(self, callback: Handler) -> EventHandlerHandle:
        """Call ``callback`` with every event from now on; see :func:`~tachograph.monitor.register_event_handler`."""
        if not callable(callback):
            raise TypeError(f"an event handler must be callable, not {type(callback).__name__}: {callback!r:.100}")
        handle = EventHandlerHandle.__new__(EventHandlerHandle)
        handle.callback, handle.active, handle.said, handle.owner = callback, True, False, 0
        with self._changing:
            same = next((other for other in self._handles if other.callback == callback), None)
            handle.token = _one_token() if same is None else same.token
            self._keep((*self._handles, handle))
        self._start()
        return handle

    def unregister(self, handle: EventHandlerHandle) -> None:
        """Unregister a handler; see :func:`~tachograph.monitor.unregister_event_handler`."""
        if not isinstance(handle, EventHandlerHandle):
            raise TypeError(
                f"unregister_event_handler takes what register_event_handler returned, not {type(handle).__name__}"
            )
        with self._changing:
            if handle not in self._handles:
                raise ValueError("this event handler is not registered")
            self._keep(tuple(other for other in self._handles if other is not handle))
            handle.active = False
        self._await_end_of(handle)

    def _await_end_of(self, handle: EventHandlerHandle) -> None:
        """Wait until no other thread is in a handler, unless that thread waits, directly or not, for this one."""
        me = threading.get_ident()
        self._waiting[me] = handle
        try:
            while handle.owner and not self._waits_for(handle, me):
                time.sleep(_SHORTEST_WAIT)
        finally:
            del self._waiting[me]

    def _waits_for(self, handle: EventHandlerHandle | None, thread: int) -> bool:
        seen: set[int] = set()
        while handle is not None and handle.owner not in seen:
            if handle.owner == thread:
                return True
            seen.add(handle.owner)
            handle = self._waiting.get(handle.owner)
        return False

    def _logger(self) -> Callable[[Event], None]:  # noqa: C901, PLR0915 - see log_event
        """Return :attr:`log_event`: variables of the function around it are read faster than attributes."""
        journal, local, modules, state, now = self.journal, self._local, sys.modules, switch, time.time_ns
        hand, failed = self._hand, self._failed
        tracing: Callable[[str], object] | None = None  # once the program has OpenTelemetry's API

        def log_event(event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 - a call costs as much as all of it
            """Log an event: pass it to the exporters, if any, and to every handler, in this thread.

            This returns when every handler has returned. Inside a handler it returns at once, and handlers receive the
            new event after the current one. An exception of a handler is counted and logged once; the other handlers
            still run.

            Raises:
                TypeError: the argument is not an :class:`~tachograph.monitor.Event`.
            """
            nonlocal tracing
            try:
                nano = event._unix_nano  # noqa: SLF001 - its properties take three times as long
            except AttributeError:
                wrong = f"not {type(event).__name__}: {event!r:.100}"
                raise TypeError(f"log_event takes a tachograph.monitor.Event, {wrong}") from None
            if nano is None:
                nano = unix_nano(event)
            events = journal.taking
            if events is not None and state.on:
                if len(events) >= journal.half:
                    journal.make_room(1)
                if tracing is None and TRACE in modules:
                    tracing = vars(modules[TRACE]).get  # that of an attribute of the module takes twice as long
                if tracing is None or tracing(PROVIDER) is None:
                    events.append((event._name, nano, now(), event._data, 0, 0, 0))  # noqa: SLF001
                else:
                    events.append((event._name, nano, now(), event._data, *current_span()))  # noqa: SLF001
            handle = self._only
            if handle is None and not self._handles:
                return
            outgoing = local.outgoing
            if outgoing.active:
                outgoing.pending.append(event)
                return
            outgoing.active, thread = True, outgoing.thread
            try:
                if handle is None:
                    hand(event, self._handles, thread)
                else:  # as _try does it, without its call, which takes as long as that of the handler
                    token, taken = handle.token, True
                    try:
                        token.pop()
                        handle.owner = thread
                        if handle.active:
                            callback = handle.callback  # an attribute that is called is looked for as a method first
                            callback(event)
                    except Exception as error:  # noqa: BLE001 - see _try
                        taken = handle.owner == thread or not _is_empty(error)
                        failed(handle, error, taken)
                    finally:
                        if taken:
                            handle.owner = 0
                            token.append(True)
                    if not taken:
                        hand(event, (handle,), thread)
            finally:
                outgoing.active = False
            if outgoing.pending:
                self.hand_out()

        return log_event

    def entry(self, name: str, nano: int, data: dict[str, data_value_t] | Later) -> Entry:
        """Return an event of Tachograph's for :meth:`enter`.

        Takes no lock and runs none of the program's code. The data is not copied, and may be made
        :data:`~tachograph.recording.journal.Later`.
        """
        if not self._handles:
            return [(name, nano, time.time_ns(), data, 0, 0, 0)], []
        known = data[0](*data[1:]) if isinstance(data, tuple) else data
        event = made(name, nano, datetime.fromtimestamp(nano / 1e9), known)  # noqa: DTZ006 - local, as the original's
        return [(name, nano, time.time_ns(), known, 0, 0, 0)], [event]

    def enter(self, entry: Entry) -> None:
        """Put an event into the journal, and keep it until this thread's :meth:`hand_out`: each once.

        Called again after an interrupt, it does the rest. Takes no lock and runs none of the program's code.
        """
        events, handed = entry
        self.journal.take_over(events)
        while handed:
            event, keep = handed[-1], self._local.outgoing.pending.append
            # One step, see interrupts.ATOMIC: an interrupt comes before it or after it.
            del handed[-1]
            keep(event)

    def hand_out(self, *, wait: bool = True) -> None:
        """Give this thread's events to the handlers, unless this thread is doing so already.

        If each event that a handler gets leads to another one (the handler, or a trace function, logs it), handlers
        get :data:`CHAIN` of these, and the others are counted; exporters get them all.

        Args:
            wait: for handlers that are in another thread; else another thread hands the event out.
        """
        outgoing = self._local.outgoing
        pending, left = outgoing.pending, len(outgoing.pending) + CHAIN
        while pending and not outgoing.active:  # again, where a signal handler logged right before the end
            outgoing.active = True
            try:
                while pending and left:
                    left -= 1
                    self._hand_oldest(outgoing, wait=wait)
                if pending:
                    self._give_up(pending)
                    return  # a trace function may have logged again
            finally:
                outgoing.active = False

    def _hand_oldest(self, outgoing: _Outgoing, *, here: bool = True, wait: bool = True) -> None:
        """Give the oldest event to handlers; those that an interrupt keeps from it get it in another thread.

        Args:
            outgoing: this thread's.
            here: else another thread hands it out.
            wait: for handlers that are in another thread; else another thread hands it out.
        """
        event, rest = outgoing.pending[0], list(self._handles)
        # No call before the block, see interrupts.ATOMIC.
        del outgoing.pending[0]
        try:
            while here and self._try(event, tuple(rest), outgoing.thread, rest):
                if not wait:
                    break
                self._await_token(rest[0].token)
            if rest:
                self._ask_to_hand(event, rest)
        except BaseException:
            if rest:
                self._ask_to_hand(event, rest)
            raise

    def _give_up(self, pending: deque[Event]) -> None:
        lost = len(pending)
        pending.clear()
        self._registry.count_dropped("feedback", "handler", lost)
        message = (
            "event handlers keep logging events from inside handlers: the rest is exported, but not passed to "
            "handlers (further warnings are suppressed; see tachograph_dropped_total on /metrics)"
        )
        self._log_once("feedback", message)

    def hand_over(self) -> None:
        """Ask another thread to hand out this one's events, unless this one is doing so already."""
        outgoing = self._local.outgoing
        while outgoing.pending and not outgoing.active:
            self._hand_oldest(outgoing, here=False)

    def hand_out_beside(self) -> None:
        """Hand out the events of threads that cannot wait, in one thread, which begins once there is a handler."""
        self._beside = True
        self._start()

    def _start(self) -> None:
        with self._changing:
            if not self._beside or not self._handles or self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="tachograph handlers", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end: finish() hands out
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        wakes = self._wakes
        while True:
            asked = wakes.get()
            self._hand_out_for_others()
            if asked is not None:
                asked.set()

    def finish(self, timeout: float) -> None:
        """Hand out the events of threads that could not wait, within ``timeout`` seconds: the process ends."""
        if self._thread is None:
            self._hand_out_for_others()
        elif self._thread is not threading.current_thread():
            handed_out = threading.Event()
            self._wakes.put(handed_out)
            handed_out.wait(timeout)

    def _hand_out_for_others(self) -> None:
        outgoing = self._local.outgoing
        while self._handed_over and not outgoing.active:
            event, handles = self._handed_over.popleft()
            outgoing.active = True
            try:
                self._hand(event, handles, outgoing.thread)
            finally:
                outgoing.active = False
            self.hand_out()

    def _ask_to_hand(self, event: Event, rest: list[EventHandlerHandle]) -> None:
        """Have another thread give an event to handlers, and take them out of the list: each once, as in enter()."""
        if len(self._handed_over) >= LIMIT:
            with contextlib.suppress(IndexError):  # the other thread has taken them meanwhile
                self._handed_over.popleft()
                self._registry.count_dropped("queue_full", "handler")
        handed, keep = (event, tuple(rest)), self._handed_over.append
        del rest[:]
        keep(handed)
        if self._wakes.empty():  # else the thread has still to look
            self._wakes.put(None)

    def _hand(self, event: Event, handles: Sequence[EventHandlerHandle], thread: int) -> None:
        while handles := self._try(event, handles, thread):
            self._await_token(handles[0].token)

    @hide_calls
    def _try(
        self,
        event: Event,
        handles: Sequence[EventHandlerHandle],
        thread: int,
        rest: list[EventHandlerHandle] | None = None,
    ) -> Sequence[EventHandlerHandle]:
        """Give an event to one handler after the other; return those from the first on that another thread is in.

        Args:
            event: given.
            handles: of the handlers.
            thread: this one.
            rest: the same handlers; each goes out of it as its turn comes.
        """
        for handle in handles:
            token = handle.token
            taken = True
            try:
                token.pop()
                handle.owner = thread
                if rest is not None:
                    del rest[0]
                if handle.active:
                    callback = handle.callback
                    callback(event)
            except Exception as error:  # noqa: BLE001 - the border to user code: it must not break training
                taken = handle.owner == thread or not _is_empty(error)
                self._failed(handle, error, taken)
            finally:
                if taken:
                    handle.owner = 0
                    token.append(True)
            if not taken:
                return handles[handles.index(handle) :]
        return ()

    def _await_token(self, token: deque[bool]) -> None:
        pause = _SHORTEST_WAIT
        while not token:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)

    def _failed(self, handle: EventHandlerHandle, error: Exception, taken: bool) -> None:
        """Count an exception of a handler; do nothing where it only says that another thread is in it."""
        pass_on(error)
        if not taken:
            return
        self._registry.count_error("handler")
        if not handle.said:
            handle.said = True
            message = (
                "event handler %r raised: %r (further warnings are suppressed; see tachograph_errors_total on /metrics)"
            )
            _log.warning(message, handle.callback, error, exc_info=error)


def _is_empty(error: Exception) -> bool:
    """Tell whether a deque had nothing: a signal handler's exception, which comes right after it has, has its frame."""
    return type(error) is IndexError and getattr(error.__traceback__, "tb_next", None) is None


def _one_token() -> deque[bool]:
    return deque([True], maxlen=1)


default = EventLog(journals.default, registries.default)
hide_calls(default.log_event)
default.log_event.__module__ = "tachograph.monitor"  # where pickle finds it
default.log_event.__qualname__ = "log_event"

at_fork("event_log", in_child=default.reset_in_child)
