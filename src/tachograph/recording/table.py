"""A small table as HTML, which objects show of themselves in a notebook."""

from __future__ import annotations

from collections.abc import Mapping


def table_html(rows: Mapping[str, object]) -> str:
    """Return a table of names and values; a row whose value is None, or an empty text, is left out."""
    from html import escape

    head = "<th style='text-align:left'>"
    said = {key: str(value) for key, value in rows.items() if value is not None}
    cells = (f"<tr>{head}{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in said.items() if value)
    return f"<table>{''.join(cells)}</table>"
