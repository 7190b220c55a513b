"""Samples of series in the store: fewer of them where a run's file is too large."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from tachograph.runs.store import Store

ROW = 28  # bytes of a sample in the file, measured
FLOOR = 1000  # samples of a series that are left to it at least: enough for a chart
_SHARE = 8  # of a file that its samples may always have, one in so many bytes: events take what they need
_AT_ONCE = 4096  # samples in one transaction
_LOGGED = 2**17  # samples that are gone, between two times that the log is taken over


def thin(store: Store, most_bytes: int, *, floor: int = FLOOR) -> int:
    """Where the file is too large, thin the older half of each series' samples; return how many went.

    Of two neighbours one is kept; a histogram's differences are added up. Samples are left alone where it is not they
    that take the room: an eighth of the limit is theirs. Events are never thinned.

    Args:
        store: the file.
        most_bytes: of its content.
        floor: samples of a series that are left to it at least.

    Raises:
        StoreError: it could not be written.
    """
    if store.size() <= most_bytes:
        return 0
    count = "SELECT count(*) FROM sample WHERE series = ?"
    series = [(row, shape, store.read(count, row)[0][0]) for row, shape in store.read("SELECT id, shape FROM series")]
    if sum(samples for _, _, samples in series) * ROW <= most_bytes // _SHARE:
        return 0
    gone = logged = 0
    for row, shape, samples in series:
        if samples - samples // 4 >= floor:
            fewer = _thin(store, row, samples // 2, is_histogram=shape == "histogram")
            gone, logged = gone + fewer, logged + fewer
        if logged >= _LOGGED:
            store.checkpoint()
            logged = 0
    return gone


def _thin(store: Store, row: int, older: int, *, is_histogram: bool) -> int:
    gone, after = 0, -1
    while older > 1:
        found = store.read(
            "SELECT time, value, total FROM sample WHERE series = ? AND time > ? ORDER BY time LIMIT ?",
            *(row, after, min(older, _AT_ONCE)),
        )
        if not found:
            break
        older -= _AT_ONCE
        kept = [_joined(one, two) if is_histogram else two or one for one, two in zip_longest(found[::2], found[1::2])]
        after = found[-1][0]
        with store.transaction() as connection:  # all of them: what leaves gaps in the pages frees none
            span = (row, found[0][0], after)
            connection.execute("DELETE FROM sample WHERE series = ? AND time BETWEEN ? AND ?", span)
            connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?)", [(row, *each) for each in kept])
        gone += len(found) - len(kept)
    return gone


def _joined(one: tuple[Any, ...], two: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if two is None:
        return one
    return two[0], (one[1] or 0) + (two[1] or 0), (one[2] or 0) + (two[2] or 0)
