"""The ends of random programs' processes, and the expected outcome of each."""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

# All arrives; all from before the signal; all but the last second.
Ending = Literal["orderly", "signalled", "cut"]


class Outside(NamedTuple):
    """A signal that is sent from outside, some seconds after the program's first note, so many times."""

    signal: int
    after: float
    times: int = 1


class End(NamedTuple):
    """An end of a process: its last lines, its exit status (minus a signal's number), and the expected arrivals."""

    lines: str
    status: int
    ending: Ending = "orderly"


_SELF = "os.kill(os.getpid(), signal.{})\ntime.sleep(60)"
# How often, and how.
OF_PROGRAMS: dict[str, tuple[int, End]] = {
    "the last statement": (4, End("", 0)),
    "sys.exit": (3, End("sys.exit(3)", 3)),
    "an exception": (4, End("raise ValueError('planned')", 1)),
    "KeyboardInterrupt": (
        4,
        End("signal.signal(signal.SIGINT, signal.default_int_handler)\n" + _SELF.format("SIGINT"), -2),
    ),
    "SIGTERM of its own": (6, End(_SELF.format("SIGTERM"), -15, "signalled")),
    "SIGTERM in another thread": (
        3,
        End(
            "threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()\ntime.sleep(60)",
            -15,
            "signalled",
        ),
    ),
    "SIGTERM with a handler of its own": (
        4,
        End(
            "def handler(*_):\n    late.batch(20)\n    sys.exit(7)\nsignal.signal(signal.SIGTERM, handler)\n"
            + _SELF.format("SIGTERM"),
            7,
        ),
    ),
    "SIGTERM from outside": (8, End("time.sleep(60)", -15, "signalled")),
    "SIGTERM twice": (3, End("time.sleep(60)", -15, "signalled")),
    "SIGTERM in a C call": (2, End("ctypes.CDLL(None).pause()\ntime.sleep(60)", -15, "signalled")),
    "SIGKILL of its own": (5, End(_SELF.format("SIGKILL"), -9, "cut")),
    "SIGKILL from outside": (8, End("time.sleep(60)", -9, "cut")),
    "os._exit": (5, End("os._exit(4)", 4, "cut")),
    "os._exit in an exit handler": (3, End("atexit.register(os._exit, 5)", 5, "cut")),
    "os.abort": (1, End("os.abort()", -6, "cut")),
    "a segmentation fault": (1, End("ctypes.string_at(0)", -11, "cut")),
    "SIGHUP": (1, End(_SELF.format("SIGHUP"), -1, "cut")),
    "values in exit handlers": (4, End("atexit.register(late.batch, 20)", 0)),
    "an exit handler that raises": (2, End("atexit.register(int, 'planned')", 0)),
    "RecursionError": (5, End("late.down(2)", 1)),
    "MemoryError, in large steps": (4, End("hoard(2**25)", 1)),
    "MemoryError, in small steps": (4, End("hoard(2**16)", 1)),
    "busy daemon threads": (
        3,
        End("threading.Thread(target=late.work, args=(60, 5, 0.01), daemon=True).start()\ntime.sleep(0.2)", 0),
    ),
    "busy threads": (3, End("threading.Thread(target=late.work, args=(0.7, 5, 0.01)).start()", 0)),
}
FROM_OUTSIDE = {
    "SIGTERM from outside": Outside(signal.SIGTERM, 0.0),
    "SIGTERM twice": Outside(signal.SIGTERM, 0.0, 2),
    "SIGTERM in a C call": Outside(signal.SIGTERM, 0.0),
    "SIGKILL from outside": Outside(signal.SIGKILL, 0.0),
}
OF_CHILDREN: dict[str, End] = {
    "return": End("", 0),
    "sys.exit": End("sys.exit(3)", 3),
    "exception": End("raise ValueError('planned')", 1),
    "SIGTERM": End(_SELF.format("SIGTERM"), -15, "signalled"),
    "os._exit": End("os._exit(4)", 4, "cut"),
    "SIGKILL": End(_SELF.format("SIGKILL"), -9, "cut"),
}
