"""Blocks: points of one branch of a curve, packed, bit for bit, and thinned for a chart.

A block has two parts, so that a chart reads no more than it draws: x and value of each point, and the other columns.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from itertools import pairwise
from math import inf, isfinite, isnan, nan
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from tachograph.recording.packed_points import ODD

PAIR = Struct("<dd")
_HEAD = "<qqq"  # number, time, and the further columns of the point, a bit each
_HEAD_BYTES = 24
_CELL = 8
HEAD_CELLS = 3  # before the further columns in the rest of a point
_MOST_EXACT = 2**53  # of integers that a float64 has no gaps between
MOST_COLUMNS = 48
THINNED = 3  # the level of blocks whose points stand for more of them than were recorded
# SQL: the part of a block that has more to draw than x and value of each point; NULL where it has none.
DRAWN_REST = "CASE WHEN form LIKE '%\"dmin\"%' OR form LIKE '%\"qnonfinite\"%' THEN rest END"
INTERVALS = re.compile(r'"dmin"|"qnonfinite"')  # the same, of a form
ODD_VALUES = dict(zip(ODD, (nan, inf, -inf), strict=True))  # by the column that says where they were first


class Sample(NamedTuple):
    """A point as a block holds it.

    Attributes:
        seq: its number in its stream.
        time_unix_nano: the time at which the value was recorded.
        more: its further columns, by name: floats, and integers of 64 bits.
    """

    seq: int
    time_unix_nano: int
    x: float
    value: float
    more: Mapping[str, int | float]


class Block(NamedTuple):
    """Points in the order of their numbers.

    Attributes:
        form: the further columns as JSON, each its type (``d`` for float64, ``q`` for int64) before its name.
        pairs: x and value of each point, in turn; float64, little-endian.
        rest: number, time, bits of the present columns, and these columns, of each point.
    """

    form: str
    pairs: bytes
    rest: bytes

    def crc(self) -> int:
        """Return the CRC-32 of the whole block."""
        return crc32(self.rest, crc32(self.pairs, crc32(self.form.encode())))


class Outline(NamedTuple):
    """A block without its points; extremes are of finite values, None where there are none."""

    seq0: int
    seq1: int
    n: int
    t0: int
    t1: int
    x0: float
    x1: float
    low: float | None
    high: float | None
    nonfinite: int


def pack(samples: Sequence[Sample]) -> Block:
    """Return a block of points, which must be in order."""
    columns = {
        name: place
        for place, name in enumerate(
            dict.fromkeys(_column(key, value) for sample in samples for key, value in sample.more.items())
        )
    }
    row = Struct(_HEAD + "".join(name[0] for name in columns))
    blank: list[int | float] = [0 if name[0] == "q" else 0.0 for name in columns]
    rest = bytearray()
    for sample in samples:
        cells, there = blank.copy(), 0
        for key, value in sample.more.items():
            place = columns[_column(key, value)]
            cells[place] = value
            there |= 1 << place
        rest += row.pack(sample.seq, sample.time_unix_nano, there, *cells)
    pairs = b"".join([PAIR.pack(sample.x, sample.value) for sample in samples])
    return Block(json.dumps(list(columns)), pairs, bytes(rest))


class PackedRows:
    """Rows of a table with one x and time each, whose columns become blocks: those of :func:`pack`, from slices.

    Args:
        times: of the rows, in nanoseconds; at least one.
        xs: theirs, all finite.
    """

    def __init__(self, times: array[int], xs: array[float]) -> None:
        self._pairs, self._rest = array("d", bytes(PAIR.size * len(xs))), array("q", bytes(_HEAD_BYTES * len(xs)))
        self._pairs[0::2], self._rest[1::3] = xs, times
        self._spans = min(times), max(times), min(xs), max(xs)

    def block(self, seqs: array[int], values: array[float]) -> tuple[Outline, Block]:
        """Return the block of a column, and its outline.

        Args:
            seqs: the numbers of its points, ascending.
            values: theirs.
        """
        self._rest[0::3], self._pairs[1::2] = seqs, values
        total = sum(values)
        finite = values if total - total == 0 else [value for value in values if isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (None, None)
        about = Outline(seqs[0], seqs[-1], len(values), *self._spans, low, high, len(values) - len(finite))
        return about, Block("[]", _little_endian(self._pairs), _little_endian(self._rest))


def _little_endian(column: array[Any]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _column(key: str, value: float) -> str:
    return ("d" if value.__class__ is float else "q") + key


def unpack(block: Block) -> Iterator[Sample]:
    """Yield the points of a block.

    Raises:
        ValueError: it is damaged.
    """
    columns, row = row_of_block(block)
    keys = [name[1:] for name in columns]
    full = (1 << len(keys)) - 1
    for (x, value), (seq, time, there, *cells) in zip(
        PAIR.iter_unpack(block.pairs), row.iter_unpack(block.rest), strict=True
    ):
        if there == full:
            more = dict(zip(keys, cells, strict=True))
        else:
            more = {key: cell for place, (key, cell) in enumerate(zip(keys, cells, strict=True)) if there >> place & 1}
        yield Sample(seq, time, x, value, more)


def row_of_block(block: Block) -> tuple[list[str], Struct]:
    """Return the names of a block's further columns, each behind its type, and the structure of a row in its rest.

    Raises:
        ValueError: it is damaged.
    """
    try:
        columns = json.loads(block.form)
    except (ValueError, RecursionError):
        columns = None
    if not isinstance(columns, list) or not all(isinstance(name, str) and name[:1] in ("d", "q") for name in columns):
        raise ValueError(f"the column description of a block is invalid: {block.form!r:.100}")
    row = Struct(_HEAD + "".join(name[0] for name in columns))
    n, left = divmod(len(block.pairs), PAIR.size)
    if left or len(block.rest) != n * row.size:
        raise ValueError(f"a block of {n} points has {len(block.rest)} bytes for the rest, not {n * row.size}")
    return columns, row


class PointColumns:
    """The points of a block as NumPy arrays: far faster than :func:`unpack` if there are many.

    Args:
        block: the block.

    Attributes:
        names: of the further columns, each behind its type.
        x: of each point.
        value: of each point.
        cells: the rest of each point as integers of 64 bits: number, time, bits of the present columns, and these.

    Raises:
        ImportError: NumPy is not installed.
        ValueError: the block is damaged.
    """

    def __init__(self, block: Block) -> None:
        import numpy as np

        self._np = np
        self.names, row = row_of_block(block)
        points = np.frombuffer(block.pairs, dtype="<f8").reshape(-1, 2)
        self.x, self.value = points[:, 0], points[:, 1]
        self.cells = np.frombuffer(block.rest, dtype="<i8").reshape(len(points), row.size // _CELL)

    def column(self, name: str, default: Any) -> tuple[Any, Any]:
        """Return a column's values, ``default`` where a point has none, and whether each point has one."""
        np = self._np
        if name not in self.names:
            return np.broadcast_to(default, self.x.shape), np.zeros(len(self.x), dtype=bool)
        place = self.names.index(name)
        is_present = (self.cells[:, 2] >> place) & 1 != 0
        cells = self.cells.view("<f8") if name[0] == "d" else self.cells
        return np.where(is_present, cells[:, HEAD_CELLS + place], default), is_present


def join(blocks: Sequence[tuple[Outline, Block]]) -> tuple[Outline, Block]:
    """Return one block with the points of several, in the order of their numbers.

    Raises:
        ValueError: one of them is damaged.
    """
    ordered = sorted(blocks, key=lambda each: each[0].seq0)
    outlines = [outline for outline, _ in ordered]
    apart = all(one.seq1 < after.seq0 for one, after in pairwise(outlines))
    if apart and len({block.form for _, block in ordered}) == 1:
        parts = [block for _, block in ordered]
        whole = Block(parts[0].form, b"".join(each.pairs for each in parts), b"".join(each.rest for each in parts))
    else:
        whole = pack(sorted((sample for _, block in ordered for sample in unpack(block)), key=lambda each: each.seq))
    return _around(outlines), whole


def outline(samples: Sequence[Sample]) -> Outline:
    """Return the outline of points; the extremes of intervals count as theirs."""
    seqs, times, xs = [s.seq for s in samples], [s.time_unix_nano for s in samples], [s.x for s in samples]
    values = [each for sample in samples for each in extremes(sample)]
    lost = sum(int(s.more.get("nonfinite", 0 if isfinite(s.value) else 1)) for s in samples)
    low, high = (min(values), max(values)) if values else (None, None)
    return Outline(min(seqs), max(seqs), len(samples), min(times), max(times), min(xs), max(xs), low, high, lost)


def extremes(sample: Sample) -> list[float]:
    """Return the finite values of a point: its own, and its interval's extremes."""
    told = (sample.value, sample.more.get("min"), sample.more.get("max"))
    return [float(value) for value in told if value is not None and isfinite(value)]


def told(sample: Sample) -> list[tuple[float, float]]:
    """Return x and value of those that an interval tells beside its last one: extremes, and the first of each odd kind.

    If it tells only the number of values that are not finite, as earlier versions did, they are NaN at its x.
    """
    x, more = sample.x, sample.more
    found: list[tuple[float, float]] = []
    if "min" in more and "max" in more:
        found = [(more.get("min_x", x), more["min"]), (more.get("max_x", x), more["max"])]
    odd = [(more[name], value) for name, value in ODD_VALUES.items() if isfinite(more.get(name, nan))]
    if not odd and more.get("nonfinite", 0) > (not isfinite(sample.value)):
        odd = [(x, nan)]
    return found + odd


def kind_of(value: float) -> str:
    """Return the name of a value that is not finite: ``NaN``, ``Infinity`` or ``-Infinity``, as ProtoJSON has them."""
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def spelled(value: Any) -> Any:
    """Return a value for JSON: NaN and infinities by their names."""
    if isinstance(value, float) and not isfinite(value):
        return kind_of(value)
    if isinstance(value, dict):
        return {key: spelled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(each) for each in value]
    return value


def exact(value: Any) -> Any:
    """Return a value for a browser, whose numbers round integers beyond 2^53: these become strings, as in ProtoJSON."""
    if isinstance(value, int):
        return value if abs(value) <= _MOST_EXACT else str(value)
    if isinstance(value, dict):
        return {key: exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


def _around(outlines: Iterable[Outline]) -> Outline:
    seq0, seq1, n, t0, t1, x0, x1, low, high, nonfinite = zip(*outlines, strict=True)
    return Outline(
        min(seq0),
        max(seq1),
        sum(n),
        min(t0),
        max(t1),
        min(x0),
        max(x1),
        min((each for each in low if each is not None), default=None),
        max((each for each in high if each is not None), default=None),
        sum(nonfinite),
    )


class Bucket(NamedTuple):
    """A group of points with neighboring x values. Without finite values, the extremes are NaN at the first point's x.

    Attributes:
        low_x: x of the smallest value; of the first one if there are several.
        high_x: x of the largest value; of the first one if there are several.
        points: their number.
        nonfinite: number of values that are NaN or infinite.
    """

    low_x: float
    low: float
    high_x: float
    high: float
    points: int
    nonfinite: int


class Raw(NamedTuple):
    """A branch of a curve.

    Attributes:
        pairs: x and value of its points, in turn, as float64.
        extremes: x and value of those that :func:`told` returns, in turn.
        hidden: x of points whose interval has further values that are not finite, and the number of these; in turn.
    """

    pairs: list[bytes]
    extremes: MutableSequence[float]
    hidden: MutableSequence[float]

    @staticmethod
    def empty() -> Raw:
        """Return a branch without points."""
        return Raw([], array("d"), array("d"))

    def add(self, samples: Iterable[Sample]) -> None:
        """Add the samples' further columns: points within their intervals, and counts of values not finite."""
        for sample in samples:
            for point in told(sample):
                self.extremes.extend(point)
            others = int(sample.more.get("nonfinite", 0)) - (not isfinite(sample.value))
            if others > 0:
                self.hidden.extend((sample.x, others))


def thin(raw: Raw, pairs: int) -> list[Bucket]:
    """Return at most ``pairs`` buckets, equally wide in x, in order; empty ones are left out.

    Args:
        raw: the branch; every x is finite.
        pairs: the most buckets.
    """
    try:
        import numpy as np
    except ImportError:
        return thin_slowly(raw, pairs)
    points = np.frombuffer(b"".join(raw.pairs)).reshape(-1, 2)
    if not len(points):
        return []
    # No array of this size is made without need: allocating it takes longer than computing with it.
    xs, values = np.ascontiguousarray(points[:, 0]), points[:, 1]
    finite = np.isfinite(values)
    count: Any = None
    bad: Any = None
    if raw.extremes or raw.hidden or not finite.all():
        told, hidden = (np.array(each, dtype=float).reshape(-1, 2) for each in (raw.extremes, raw.hidden))
        count = np.repeat([1, 0], [len(xs), len(told) + len(hidden)])
        bad = np.concatenate([~finite, np.zeros(len(told)), hidden[:, 1]]).astype(np.int64)
        xs = np.concatenate([xs, told[:, 0], hidden[:, 0]])
        values = np.concatenate([values, told[:, 1], np.full(len(hidden), nan)])
    if (xs[1:] < xs[:-1]).any():
        order = np.argsort(xs, kind="stable")
        xs, values = xs[order], values[order]
        count, bad = (count, bad) if count is None else (count[order], bad[order])
    starts = np.unique(np.concatenate([[0], np.searchsorted(xs, _edges(float(xs[0]), float(xs[-1]), pairs))]))
    starts = starts[starts < len(xs)]
    low = high = values
    counted = np.diff(starts, append=len(xs)), np.zeros(len(starts), dtype=np.int64)
    if count is not None:
        finite = np.isfinite(values)
        low, high = np.where(finite, values, inf), np.where(finite, values, -inf)
        counted = np.add.reduceat(count, starts), np.add.reduceat(bad, starts)
    slices = list(pairwise([*starts.tolist(), len(xs)]))
    least = [begin + low[begin:end].argmin() for begin, end in slices]
    most = [begin + high[begin:end].argmax() for begin, end in slices]
    columns = (xs[least], low[least], xs[most], high[most], *counted, xs[starts])
    return [_bucket(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def thin_slowly(raw: Raw, pairs: int) -> list[Bucket]:
    """Return the buckets of :func:`thin`, without NumPy."""
    points = array("d", b"".join(raw.pairs))
    xs, values = points[0::2], points[1::2]
    if not xs:
        return []
    extremes, at = raw.extremes[1::2], raw.extremes[0::2]
    edges = _edges(min((*xs, *at)), max((*xs, *at)), pairs)
    found: dict[int, list[Any]] = {}

    def bucket(x: float) -> list[Any]:
        place = bisect_right(edges, x)
        known = found.get(place)
        if known is None:
            known = found[place] = [inf, inf, inf, -inf, 0, 0, x]
        return known

    for x, value in zip(at, extremes, strict=True):
        known = bucket(x)
        if isfinite(value):
            _stretch(known, x, value)
        else:
            known[6] = min(known[6], x)
    for x, value in zip(xs, values, strict=True):
        known = bucket(x)
        known[4] += 1
        if isfinite(value):
            _stretch(known, x, value)
        else:
            known[5] += 1
            known[6] = min(known[6], x)
    for x, others in zip(raw.hidden[0::2], raw.hidden[1::2], strict=True):
        bucket(x)[5] += int(others)
    return [_bucket(found[place]) for place in sorted(found)]


def _edges(low: float, high: float, pairs: int) -> list[float]:
    """Return the beginning of each bucket but the first: a sum of two products cannot overflow, a difference can."""
    return sorted(low * (1 - place / pairs) + high * (place / pairs) for place in range(1, pairs))


def _stretch(known: list[Any], x: float, value: float) -> None:
    if (value, x) < (known[1], known[0]):
        known[0], known[1] = x, value
    if value > known[3] or (value == known[3] and x < known[2]):
        known[2], known[3] = x, value


def _bucket(known: Sequence[Any]) -> Bucket:
    _, low, _, high, points, nonfinite, x = known
    return Bucket(x, nan, x, nan, points, nonfinite) if low > high else Bucket(*known[:6])
