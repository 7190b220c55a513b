"""The instructions that this process executes outside the kernel, where the machine counts them: perf_event_open(2)."""

from __future__ import annotations

import ctypes
import os
import platform
from struct import pack_into

_NUMBER = {"x86_64": 298, "aarch64": 241}  # of the system call
_SIZE = 64  # bytes of struct perf_event_attr in its first version
_HARDWARE, _INSTRUCTIONS = 0, 1  # PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS
_INHERIT, _WITHOUT_KERNEL = 1 << 1, 1 << 5 | 1 << 6


class Instructions:
    """A counter of the calling thread and of those that begin after it.

    Attributes:
        why_not: the reason why nothing is counted; empty where it is.
    """

    def __init__(self) -> None:
        attributes = bytearray(_SIZE)
        flags = _INHERIT | _WITHOUT_KERNEL
        pack_into("<IIQQQQQ", attributes, 0, _HARDWARE, _SIZE, _INSTRUCTIONS, 0, 0, 0, flags)
        number = _NUMBER.get(platform.machine())
        self._descriptor, self.why_not = -1, ""
        if number is None or platform.system() != "Linux":
            self.why_not = f"not known how on {platform.system()} {platform.machine()}"
            return
        libc = ctypes.CDLL(None, use_errno=True)
        given = (ctypes.c_char * _SIZE).from_buffer(attributes)
        self._descriptor = libc.syscall(number, given, 0, -1, -1, 0)  # this process, on any processor
        if self._descriptor < 0:
            self.why_not = os.strerror(ctypes.get_errno())

    def __call__(self) -> int | None:
        """Return the instructions so far; None where they are not counted."""
        if self._descriptor < 0:
            return None
        return int.from_bytes(os.read(self._descriptor, 8), "little")
