"""The table: rows of all sections in the order of the page."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import elastic_rows
import ends_rows
import logger_rows
import metric_rows
import monitor_rows
import odd_rows
import torch_rows
from rows import Row, Section

SECTIONS: tuple[Section, ...] = (
    elastic_rows.section,
    monitor_rows.section,
    logger_rows.section,
    metric_rows.section,
    torch_rows.section,
    odd_rows.section,
    ends_rows.section,
)
ROWS: tuple[Row, ...] = tuple(row for section in SECTIONS for row in section.rows)


def by_name(name: str) -> Row:
    """Return the row with this name."""
    return next(row for row in ROWS if row.name == name)


@cache
def has_torch() -> bool:
    """Tell whether PyTorch is installed."""
    return find_spec("torch") is not None


def shared() -> list[Row]:
    """Return the rows that share a process, which ends in an exit."""
    return [row for row in ROWS if row.ends == "exit" and (has_torch() or not row.torch)]
