"""Blocks: points of one branch of a curve, packed, bit for bit.

A block has two parts, so that a chart reads only what it draws: x and value of each point, and everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import NamedTuple
from zlib import crc32

PAIR = Struct("<dd")
_HEAD = "<qqq"  # number, time, and which of the further columns the point has, a bit each
_HEAD_BYTES = 24
_CELL = 8
MOST_COLUMNS = 48


class Sample(NamedTuple):
    """A point as a block holds it.

    Attributes:
        seq: its number in its stream.
        time_unix_nano: when the value was recorded.
        more: what else it says, by name: floats, and integers of 64 bits.
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
        rest: number, time, columns that are there, and the further columns of each point.
    """

    form: str
    pairs: bytes
    rest: bytes

    def crc(self) -> int:
        """Return the CRC-32 of all of it."""
        return crc32(self.rest, crc32(self.pairs, crc32(self.form.encode())))


class Outline(NamedTuple):
    """What is known of a block without its points; extremes are of finite values, None where there are none."""

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
    """Return a block with these points, which must be in order."""
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


def _column(key: str, value: float) -> str:
    return ("d" if value.__class__ is float else "q") + key


def unpack(block: Block) -> Iterator[Sample]:
    """Yield the points of a block.

    Raises:
        ValueError: it is damaged.
    """
    try:
        columns: list[str] = json.loads(block.form)
        row = Struct(_HEAD + "".join(name[0] for name in columns))
        keys = [name[1:] for name in columns]
    except (ValueError, TypeError, LookupError, RecursionError, StructError) as error:
        raise ValueError(f"a block's columns are not legible: {block.form!r:.100}") from error
    n, left = divmod(len(block.pairs), PAIR.size)
    if left or len(block.rest) != n * row.size:
        raise ValueError(f"a block of {n} points has {len(block.rest)} bytes for the rest, not {n * row.size}")
    full = (1 << len(keys)) - 1
    for (x, value), (seq, time, there, *cells) in zip(
        PAIR.iter_unpack(block.pairs), row.iter_unpack(block.rest), strict=True
    ):
        if there == full:
            more = dict(zip(keys, cells, strict=True))
        else:
            more = {key: cell for place, (key, cell) in enumerate(zip(keys, cells, strict=True)) if there >> place & 1}
        yield Sample(seq, time, x, value, more)


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
    """Return what there is to know of points; the extremes of intervals count as theirs."""
    seqs, times, xs = [s.seq for s in samples], [s.time_unix_nano for s in samples], [s.x for s in samples]
    values = [each for sample in samples for each in extremes(sample)]
    lost = sum(int(s.more.get("nonfinite", 0 if isfinite(s.value) else 1)) for s in samples)
    low, high = (min(values), max(values)) if values else (None, None)
    return Outline(min(seqs), max(seqs), len(samples), min(times), max(times), min(xs), max(xs), low, high, lost)


def extremes(sample: Sample) -> list[float]:
    """Return the finite values that a point tells of."""
    told = (sample.value, sample.more.get("min"), sample.more.get("max"))
    return [float(value) for value in told if value is not None and isfinite(value)]


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
