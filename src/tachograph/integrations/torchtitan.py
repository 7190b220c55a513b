"""The handler of torchtitan's structured logger, which needs no more than the standard library's ``logging``.

Source: ``torchtitan/observability/structured_logger/structured_logging.py`` of torchtitan 0.3.
"""

from __future__ import annotations

import logging
from typing import Any

from tachograph.instrumentation.bridges.trainers import note

_LIBRARY = "torchtitan"
_END = "_end"


class _Handler(logging.Handler):
    """Records scalars and the durations of spans.

    Args:
        source: the group of its values.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record."""
        kind, value = str(getattr(record, "log_type_name", "")), getattr(record, "value", None)
        if value is None:
            return
        if kind == "metric_value":
            name = f"{self._source}/{getattr(record, 'event_name', None)}"
            note(_LIBRARY, "take", {name: value}, getattr(record, "step", None))
        elif kind.endswith(_END):
            note(_LIBRARY, "distribution", f"{self._source}/{kind.removesuffix(_END)}.duration.ms", value)


def register_tachograph_handler(
    structured_logger: logging.Logger,
    rank: int,  # noqa: ARG001 - as it is called
    source: str,
    output_dir: str,  # noqa: ARG001 - as it is called
    **_more: Any,
) -> None:
    """Record the scalars and spans of torchtitan's structured logger, in each rank.

    torchtitan calls this function if ``TITAN_STRUCT_LOGGER_HANDLERS`` names it:
    ``tachograph.integrations.torchtitan.register_tachograph_handler``. To keep torchtitan's own JSON lines file, let
    the variable also name ``torchtitan.observability.structured_logger.jsonl_handler.register_jsonl_handler``.

    A scalar of ``log_trace_scalar`` becomes a curve over the step, and a span of ``log_trace_span`` a value of the
    histogram ``<span>.duration`` in milliseconds. Their group is the source (``trainer``).

    Args:
        structured_logger: the logger that the handler is added to.
        rank: the rank of the process; not used.
        source: the source of the records.
        output_dir: a folder for files; not used.
    """
    structured_logger.addHandler(_Handler(source))
