"""Exceptions that a signal handler of the program raises in the middle of our code: they are the program's.

A time-out by SIGALRM, or PyTorch's SIGCHLD handler where a data-loader worker has died, raises wherever the main thread
is. A guard around the program's objects that took it for an error of theirs would leave the program waiting.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import CodeType, TracebackType

# In CPython, other threads and signal handlers run only after a call or a jump back: a stretch without any is
# one step (Python/ceval.c, CHECK_EVAL_BREAKER). Without that, every value goes through the buffer.
ATOMIC = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
# From CPython 3.12 on (seen in 3.12.1 and 3.13.0) the table of exceptions has a gap: in a with statement it leaves out
# a loop's jump back. An exception that a signal handler raises there leaves the lock held, for ever. So a loop under a
# lock that the main thread takes is a function of its own, whose call is in the table.


def free_within(lock: threading.Lock, seconds: float) -> bool:
    """Wait until no thread holds a lock; False where one still does after ``seconds``, negative ones being no limit.

    A with statement then takes it, and waits for another thread that was quicker. After ``acquire(timeout=…)`` an
    exception of a signal handler would come before any ``try``, and leave the lock held for ever.
    """
    given_up = time.monotonic() + seconds
    while lock.locked() and seconds >= 0:
        if time.monotonic() >= given_up:
            return False
        time.sleep(_LOOK_AGAIN)
    return True


_LOOK_AGAIN = 0.0005  # seconds


def pass_on(error: Exception) -> None:
    """Raise ``error`` again where a signal handler has raised it; call it first in a guard of the calling thread."""
    if threading.get_ident() != threading.main_thread().ident:
        return
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    reached: TracebackType | None = error.__traceback__
    while reached is not None and handlers:
        if reached.tb_frame.f_code in handlers:
            raise error
        reached = reached.tb_next


def _code(handler: object) -> CodeType | None:
    """Return the code of a handler in Python: of a function, a method, a partial, or an object that can be called."""
    while hasattr(handler, "func"):
        handler = handler.func
    called = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004 - its code
    code = getattr(getattr(called, "__func__", called), "__code__", None)
    return code if isinstance(code, CodeType) else None
