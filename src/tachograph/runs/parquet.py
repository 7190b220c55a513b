"""Rows of an export as Parquet, through pyarrow: the extra ``parquet`` brings it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, BinaryIO

from tachograph.identity.extra import install_command

_AT_ONCE = 65_536  # rows of a row group
_TIME = "time_unix_nano"
_TEXTS = frozenset({"run", "metric", "group", "units", "stream", "attributes"})
_WHOLE = frozenset({"rank", "execution", "branch", "count", "nonfinite", "seq", _TIME})

WriteParquet = Callable[[Sequence[str], Iterable[Sequence[Any]], BinaryIO], None]


def parquet_writer() -> WriteParquet:
    """Return a function that writes columns and rows, 65,536 rows at a time: NaN is NaN, None is null.

    Texts are strings; counts, ranks, numbers and ``time_unix_nano`` 64-bit integers; other columns float64. ``time`` is
    added beside ``time_unix_nano``: the same as a timestamp in UTC. A foreign sender's count that is not whole is null.

    Raises:
        ImportError: pyarrow is not installed.
    """
    try:
        arrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(f"Parquet needs pyarrow: {install_command('parquet')}") from None
    times = arrow.timestamp("ns", tz="UTC")

    def write(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: BinaryIO) -> None:
        types = [
            arrow.string() if name in _TEXTS else arrow.int64() if name in _WHOLE else arrow.float64()
            for name in columns
        ]
        reads = [str if name in _TEXTS else _whole if name in _WHOLE else float for name in columns]
        time = columns.index(_TIME)
        schema = arrow.schema([*zip(columns, types, strict=True), ("time", times)])
        listed = iter(rows)
        with parquet.ParquetWriter(out, schema) as writer:
            while some := list(islice(listed, _AT_ONCE)):
                arrays = [
                    arrow.array([None if cell is None else read(cell) for cell in cells], of)
                    for cells, read, of in zip(zip(*some, strict=True), reads, types, strict=True)
                ]
                writer.write_table(arrow.Table.from_arrays([*arrays, arrays[time].cast(times)], schema=schema))

    return write


def _whole(cell: float) -> int | None:
    return int(cell) if cell == cell // 1 else None
