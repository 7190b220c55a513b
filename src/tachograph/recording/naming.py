"""Names: the kind and unit that a recorded name implies, and its names in Prometheus.

Units are UCUM (OpenTelemetry semantic conventions, "Instrument units"). The Prometheus side follows the OpenTelemetry
specification, "Prometheus and OpenMetrics Compatibility", as the collector's ``prometheus`` exporter carries it out,
so that one query works on a scraped page and behind a collector.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
KINDS: tuple[Kind, ...] = ("gauge", "counter", "histogram")

MAX_NAME_LENGTH = 1024
_DIGEST, _ROOM = 8, 116  # characters of what stands for the end of a name, and those that are left for it and a group
UNNAMED = "tachograph.unnamed"  # the scope of the group "" in the program's own SDK: a meter must have a name

# Upper bounds of histogram buckets by unit (values <= bound, as in the OpenTelemetry data model).
SECONDS_BOUNDARIES = (
    *(1e-5, 1e-4, 1e-3, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 300.0, 1800.0),
)
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
BYTES_BOUNDARIES = tuple(float(2**exponent) for exponent in range(10, 41, 2))
PLAIN_BOUNDARIES = (
    *(1e-6, 1e-5, 1e-4, 1e-3, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0),
    *(100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 100000.0, 1000000.0),
)

_TIME_SUFFIXES = {
    "ms": "ms",
    "milliseconds": "ms",
    "us": "us",
    "microseconds": "us",
    "ns": "ns",
    "nanoseconds": "ns",
    "seconds": "s",
}
_SUFFIXES = {**_TIME_SUFFIXES, "bytes": "By"}
_SUFFIX = re.compile(r"(?s)^(.*[^._])[._](" + "|".join(_SUFFIXES) + ")$")
_OUTCOMES = (".success", ".failure")
_DURATIONS = ("duration", "latency")

# UCUM to Prometheus words: OpenTelemetry specification, "Prometheus and OpenMetrics Compatibility", "Unit".
_UNIT_WORDS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "TiBy": "tibibytes",
    "KBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "1": "",
    "%": "percent",
}
_PER_WORDS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}
_CLASSIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CLASSIC_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Meaning(NamedTuple):
    """The meaning of a recorded name: the instrument's name without its unit suffix, the unit, the kind."""

    name: str
    unit: str
    kind: Kind


def legal(tag: object) -> str:
    """Return a tag as a name that can be stored and exported: NULs and lone surrogates are escaped, ends cut off."""
    name = str(tag).replace("\0", "\\x00")
    name = name.encode("utf-8", "backslashreplace").decode() or '""'
    if len(name) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: MAX_NAME_LENGTH - _ROOM]}…{digest}"
    return name


def group_and_name(tag: object) -> tuple[str, str]:
    """Return group and metric of a tag as TensorBoard has them: ``train/loss`` is ``loss`` of the group ``train``."""
    name = legal(tag)
    before, _, behind = name.partition("/")
    return (before, behind) if before and behind else ("", name)


def check_name(name: object, what: str = "metric name") -> str:
    """Return ``name`` where it can name a metric or a group.

    Raises:
        TypeError: it is not a string.
        ValueError: it is longer than 1,024 characters, or holds a lone surrogate, which UTF-8 cannot carry. A metric
            name may not be empty or hold a NUL, either: for one such name, Prometheus 3 refuses a whole page.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {type(name).__name__}: {name!r:.100}")
    if not name and what == "metric name":
        raise ValueError(f"{what} must not be empty")
    if "\0" in name and what == "metric name":
        raise ValueError(
            f"{what} {name!r:.100} contains a NUL character, which Prometheus does not allow in names: remove it"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"{what} has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed: {name[:60]!r}…")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {name!r:.100} is not valid Unicode: {error.reason}") from None
    return name


@lru_cache(maxsize=4096)
def meaning(recorded: str) -> Meaning:
    """Return the meaning of a recorded name: ``step.duration.ms`` is a histogram ``step.duration`` in ``ms``."""
    if recorded.endswith(_OUTCOMES):
        return Meaning(recorded, "", "counter")
    match = _SUFFIX.match(recorded)
    if match and not re.search(r"(^|[._])per$", match[1]):
        unit = _SUFFIXES[match[2]]
        return Meaning(match[1], unit, "gauge" if unit == "By" else "histogram")
    last_word = re.split(r"[._]", recorded)[-1]
    return Meaning(recorded, "", "histogram" if last_word in _DURATIONS else "gauge")


def check_boundaries(boundaries: Sequence[float], whose: str) -> tuple[float, ...]:
    """Return a histogram's boundaries, as given to ``whose`` name in messages.

    Raises:
        TypeError: one is not a number.
        ValueError: they are not finite, or do not ascend.
    """
    try:
        bounds = tuple(float(bound) for bound in boundaries)
    except (TypeError, ValueError):
        raise TypeError(f"the boundaries of {whose} must be numbers: {boundaries!r:.100}") from None
    if any(bound - bound for bound in bounds) or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(f"the boundaries of {whose} must be finite and ascending: {boundaries!r:.100}")
    return bounds


def default_boundaries(unit: str) -> tuple[float, ...]:
    """Return the bucket boundaries of a histogram for which none were declared, for values in ``unit``."""
    if unit in _PER_SECOND:
        return tuple(round(bound * _PER_SECOND[unit], 9) for bound in SECONDS_BOUNDARIES)
    return BYTES_BOUNDARIES if unit == "By" else PLAIN_BOUNDARIES


def _unit_words(unit: str) -> tuple[str, str]:
    main, _, per = unit.partition("/")
    main, per = main.strip(), per.strip()
    main = "" if "{" in main or "}" in main else _UNIT_WORDS.get(main, main)
    per = "" if "{" in per or "}" in per else _PER_WORDS.get(per, per)
    return _words(main), "per_" + _words(per) if per else ""


def _words(text: str) -> str:
    return "_".join(re.findall(r"[a-zA-Z0-9:]+", text))


@lru_cache(maxsize=4096)
def prometheus_name(name: str, unit: str, kind: Kind, *, utf8: bool = False) -> str:
    """Return the name of the metric family, with its unit and ``_total`` as suffixes.

    Args:
        name: the instrument's name.
        unit: its unit (UCUM); an annotation such as ``{call}`` leaves no trace.
        kind: a counter ends in ``_total``, a gauge without dimension (``1``) in ``_ratio``.
        utf8: keep the characters of the name, for a scraper that asked for ``escaping=allow-utf-8``.
    """
    tokens = [name] if utf8 else [token for token in re.split(r"[^a-zA-Z0-9:]+", name) if token]
    seen = set(re.split(r"[^a-zA-Z0-9:]+", name))
    main, per = _unit_words(unit)
    tokens += [word for word in (main, per) if word and word not in seen]
    for word, wanted in (("total", kind == "counter"), ("ratio", kind == "gauge" and unit == "1")):
        if wanted:
            tokens = [token.removesuffix("_" + word) if utf8 else token for token in tokens if token != word]
            tokens = [*filter(None, tokens), word]
    full = "_".join(tokens)
    if utf8:
        return full
    return "_" + full if not full or full[0].isdigit() else full


@lru_cache(maxsize=4096)
def prometheus_label(key: str, *, utf8: bool = False) -> str:
    """Return the label's name for an attribute's key."""
    if utf8 and key:
        return key
    label = re.sub(r"[^a-zA-Z0-9_]", "_", key)
    if not label or label[0].isdigit():
        return "key_" + label
    if label.startswith("__") or label == "_":  # the collector drops such a series; Prometheus reserves the names
        return "key" + label
    return label


def is_classic_name(name: str) -> bool:
    """Tell whether a metric name needs no quotes in the Prometheus text formats."""
    return _CLASSIC_NAME.fullmatch(name) is not None


def is_classic_label(label: str) -> bool:
    """Tell whether a label name needs no quotes in the Prometheus text formats."""
    return _CLASSIC_LABEL.fullmatch(label) is not None
