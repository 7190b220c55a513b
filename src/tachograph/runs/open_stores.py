"""Open stores, bounded in number, as each takes six descriptors; the least recently used is closed first."""

from __future__ import annotations

import contextlib
import resource
import threading
from itertools import islice
from typing import Protocol

_MOST = 2**20  # descriptors: more than any hub needs


def descriptor_limit() -> int:
    """Return the most descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one, where the system lets us.

    Call it in the hub's own process only: programs that use select(2) rely on the soft limit (systemd.exec(5)).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _MOST):  # macOS reports no limit, and allows less
        with contextlib.suppress(OSError, ValueError):
            if wanted == resource.RLIM_INFINITY or wanted > soft:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return


EACH = 6  # descriptors of an open file: database, log and lock, those of the checkpoints, and the claim
_MOST_OPEN, _MOST_CLAIMED = 128, 16_384
_SHARE = 8  # one in this many descriptors is for open files, and one for claims


class Resting(Protocol):
    """A file that can be closed for a while: it is opened again when it is used again."""

    def rest(self) -> bool:
        """Close the file, and keep the claim; False where it is in use just now."""

    def let_go(self) -> bool:
        """Close the file and release the claim; False where it is in use just now."""


class OpenStores:
    """The open files, and those that are closed and still claimed.

    Args:
        most_open: the most files open at once; None for as many as the limit of descriptors allows, up to 128.
        most_claimed: the most claimed files; None for the same, up to 16,384. A file without a claim may be deleted.
    """

    def __init__(self, most_open: int | None = None, most_claimed: int | None = None) -> None:
        share = descriptor_limit() // _SHARE
        self._most_open = max(2, min(share // EACH, _MOST_OPEN)) if most_open is None else most_open
        self._most_claimed = max(2, min(share, _MOST_CLAIMED)) if most_claimed is None else most_claimed
        self._lock = threading.Lock()
        self._open: dict[Resting, None] = {}  # the least recently used first
        self._claimed: dict[Resting, None] = {}

    def use(self, store: Resting) -> None:
        """Note that a file is used; close the least recently used ones beyond the limits, unless in use just now."""
        with self._lock:
            for held in (self._open, self._claimed):
                held.pop(store, None)
                held[store] = None
            over_open, over_claimed = len(self._open) - self._most_open, len(self._claimed) - self._most_claimed
            resting = list(islice(self._open, max(0, over_open)))
            released = list(islice(self._claimed, max(0, over_claimed)))
        for each in resting:
            if each is not store and each.rest():
                with self._lock:
                    self._open.pop(each, None)
        for each in released:
            if each is not store and each.let_go():
                self.forget(each)

    def forget(self, store: Resting) -> None:
        """Remove a file that is closed for good."""
        with self._lock:
            self._open.pop(store, None)
            self._claimed.pop(store, None)
