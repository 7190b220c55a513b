"""The filter of a list of runs: ``loss < 0.3 lr > 1e-4 tag:sweep -state:failed "some text"``; all terms have to hold.

A term is a comparison of a column with a value, a field with a colon, or a text that the run's names, tags or notes
hold; a minus before it turns it round. A column is one of the list's (``ranks``, ``config.lr``, ``min.loss``), or the
part behind the dot of a key: the configuration comes first, then the results, then the last value of a curve.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import isnan
from typing import Any, NamedTuple, get_args

from tachograph.runs.ending import State

FIELDS = ("id", "name", "notes", "program", "state", "tag")
_SEARCHED = ("id", "name", "program", "state", "notes")
_ALIASES = {"tag": "tags", "note": "notes", "started": "start"}
_BEHIND = ("config.", "summary.", "last.")  # where a key may be meant, the first that has it
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_OPERATOR = re.compile(r"\s*(<=|>=|==|!=|<|>|=)\s*")
_WORD = re.compile(r'(?:[^\s"<>=!]|!(?!=))+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_FIELD = re.compile(r"([A-Za-z_]+):")
_BLANKS = re.compile(r"\s*")
_UNITS = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]+)")
_WHOLE = re.compile(r"[+-]?\d{1,20}")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BYTES |= {f"{unit}iB": size for unit, size in _BYTES.items() if unit != "B"}
_TIMES = ("start", "last")


class FilterError(ValueError):
    """A filter cannot be read.

    Args:
        why: what is wrong, and what to write instead.
        position: of the character at which reading stopped, from 0.
    """

    def __init__(self, why: str, position: int) -> None:
        super().__init__(why)
        self.position = position


class Filter(NamedTuple):
    """A filter, read.

    Attributes:
        terms: each tells whether it holds for a run.
        columns: that are compared, as they were written.
    """

    terms: tuple[Callable[[Mapping[str, Any]], bool], ...]
    columns: tuple[str, ...]

    def holds(self, told: Mapping[str, Any]) -> bool:
        """Tell whether all terms hold for a run.

        Args:
            told: its columns by name.
        """
        return all(term(told) for term in self.terms)

    def unknown(self, known: Collection[str]) -> str:
        """Return a sentence about the first column that no run has; the empty string where all are known."""
        for name in self.columns:
            if not any(each in known for each in columns_meant(name)):
                short = dict.fromkeys([*known, *(each.partition(".")[2] for each in known)])
                near = get_close_matches(name, short, n=1)
                hint = f": did you mean {near[0]!r}?" if near else ""
                return f"no run has {name!r:.100}{hint}"
        return ""


def column_value(told: Mapping[str, Any], name: str) -> Any:
    """Return a run's value of a column, by its whole name or the part of it behind the dot; None for none."""
    return next((told[each] for each in columns_meant(name) if each in told), None)


def columns_meant(name: str) -> list[str]:
    """Return the columns that a name can stand for, the first one that a run has counts."""
    return [_ALIASES.get(name, name), *(before + name for before in _BEHIND)]


def parse_filter(text: str) -> Filter:
    """Return a filter.

    Raises:
        FilterError: it cannot be read.
    """
    terms: list[Callable[[Mapping[str, Any]], bool]] = []
    columns: list[str] = []
    at = _after_blanks(text, 0)
    while at < len(text):
        negative = text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace()
        term, column, at = _term(text, at + negative)
        terms.append(_negated(term) if negative else term)
        columns += [column] if column else []
        at = _after_blanks(text, at)
    return Filter(tuple(terms), tuple(dict.fromkeys(columns)))


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _negated(term: Callable[[Mapping[str, Any]], bool]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda told: not term(told)


def _term(text: str, at: int) -> tuple[Callable[[Mapping[str, Any]], bool], str, int]:
    field = _FIELD.match(text, at)
    if field:
        return _of_field(text, field)
    word, end = _token(text, at, "expected a column, a text or a field such as tag: here")
    compared = _OPERATOR.match(text, end)
    if not compared:
        return _text(word), "", end
    place = compared.end()
    value, end = _token(text, place, f"missing value after {compared[1]!r}")
    return _comparison(word, compared[1], value, place), word, end


def _token(text: str, at: int, missing: str) -> tuple[str, int]:
    """Return a word, or a quoted text, and the place behind it."""
    if text[at : at + 1] == '"':
        quoted = _QUOTED.match(text, at)
        if not quoted:
            raise FilterError("this quote is not closed", at)
        return re.sub(r"\\(.)", r"\1", quoted[1]), quoted.end()
    word = _WORD.match(text, at)
    if not word:
        raise FilterError(missing, at)
    return word[0], word.end()


def _of_field(text: str, field: re.Match[str]) -> tuple[Callable[[Mapping[str, Any]], bool], str, int]:
    name = field[1].lower()
    if name not in FIELDS:
        near = get_close_matches(name, FIELDS, n=1)
        hint = f"did you mean {near[0]}:?" if near else f"the fields are {', '.join(f'{each}:' for each in FIELDS)}"
        raise FilterError(
            f"unknown field {field[0]!r:.100}: {hint} (quote a text that contains a colon)", field.start()
        )
    value, end = _token(text, field.end(), f"missing value after {field[0]!r}")
    wanted = value.lower()
    states = get_args(State)
    if name == "state" and wanted not in states:
        near = get_close_matches(wanted, states, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the states are {', '.join(states)}"
        raise FilterError(f"unknown state {value!r:.100}: {hint}", field.end())
    if name == "state":
        return lambda told: told.get("state") == wanted, "", end
    if name == "tag":
        return lambda told: any(fnmatchcase(tag.lower(), wanted) for tag in told.get("tags") or ()), "", end
    return lambda told: wanted in str(told.get(name) or "").lower(), "", end


def _text(wanted: str) -> Callable[[Mapping[str, Any]], bool]:
    text = wanted.lower()

    def holds(told: Mapping[str, Any]) -> bool:
        if any(text in str(told.get(name) or "").lower() for name in _SEARCHED):
            return True
        return any(text in tag.lower() for tag in told.get("tags") or ())

    return holds


def _comparison(column: str, sign: str, value: str, place: int) -> Callable[[Mapping[str, Any]], bool]:
    """Return a comparison; a run without a value is never among those that match."""
    compare, wanted = _OPERATORS[sign], _number(column, value)
    if wanted is None and sign not in ("=", "==", "!="):
        raise FilterError(f"expected a number after {sign!r}, not {value!r:.100}", place)
    text = value.lower()

    def holds(told: Mapping[str, Any]) -> bool:
        found = column_value(told, column)
        if found is None and not _is_null(told, column):
            return False
        if isinstance(found, tuple | list):
            return any(str(each).lower() == text for each in found) != (sign == "!=")
        if isinstance(found, bool) or not isinstance(found, int | float) or wanted is None:
            shown = "null" if found is None and text == "null" else str(found).lower()
            return sign in ("=", "==", "!=") and compare(shown, text)
        if isnan(wanted):
            return isnan(found) != (sign == "!=")
        return compare(found, wanted)

    return holds


def _is_null(told: Mapping[str, Any], name: str) -> bool:
    """Tell whether a configuration or a summary has the key, and None as its value."""
    return any(each in told for each in columns_meant(name) if each.startswith(("config.", "summary.")))


def _number(column: str, value: str) -> float | None:
    """Return a value as a number, in the column's unit: seconds, bytes, nanoseconds since the epoch; None for none."""
    column = _ALIASES.get(column, column)
    try:
        if column in _TIMES:
            return datetime.fromisoformat(value).timestamp() * 1e9
        return int(value) if _WHOLE.fullmatch(value) else float(value)  # integers stay exact
    except (ValueError, OverflowError):
        pass
    found = _UNITS.fullmatch(value)
    units: Mapping[str, int] = {"duration": _SECONDS, "size": _BYTES}.get(column, {})
    return float(found[1]) * units[found[2]] if found and found[2] in units else None
