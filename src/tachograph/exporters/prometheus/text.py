"""Numbers, names and labels as Prometheus's text formats and OpenMetrics write them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from tachograph.recording.naming import is_classic_label, is_classic_name, prometheus_label
from tachograph.recording.values import Number, as_float

SCOPE_LABEL = "otel_scope_name"
_LARGEST_PLAIN = 2**63  # beyond it an integer is written as a float
_PLACES_BEFORE_EXPONENT, _SMALLEST_EXPONENT, _JSON_PLACES, _JSON_SMALLEST = 6, -4, 21, -6

# Go's encoding/json, with which the collector writes a list, also escapes what JavaScript takes for line ends.
_GO_JSON = str.maketrans({code: f"\\u{ord(code):04x}" for code in "\u2028\u2029"})
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def number(value: Number) -> str:
    """Return a sample's value; an integer beyond 64 bits as the nearest float."""
    if -_LARGEST_PLAIN <= value <= _LARGEST_PLAIN:
        return repr(value)
    value = as_float(value)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def boundary(value: float, *, openmetrics: bool) -> str:
    """Return a bucket's upper bound as the label ``le``.

    OpenMetrics wants a float that shows to be one (``10.0``); the classic text is as Go's client library has it, with
    which the collector writes its page (``10``), so that the label is the same on both ways.
    """
    if not math.isfinite(value):
        return number(value)
    text = _go_float(value, _PLACES_BEFORE_EXPONENT, _SMALLEST_EXPONENT)
    return text + ".0" if openmetrics and "." not in text and "e" not in text else text


def _go_float(value: float, largest: int, smallest: int) -> str:
    """Return the shortest digits of a float, with an exponent from ``10**largest`` and below ``10**smallest`` on."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - it is a letter only for what is not finite
    minus, text = "-" if sign else "", "".join(map(str, digits))
    power = exponent + len(digits) - 1
    if value and not smallest <= power < largest:
        return f"{minus}{text[0]}{'.' if text[1:] else ''}{text[1:]}e{power:+03d}"
    if exponent >= 0:
        return minus + text + "0" * exponent
    text = text.rjust(1 - exponent, "0")
    return f"{minus}{text[:exponent]}.{text[exponent:]}"


def sum_is_counter(total: Number, boundaries: Sequence[float]) -> bool:
    """Tell whether a histogram's sum may stand in OpenMetrics, where it is a counter.

    OpenMetrics 1.0, "Histogram": none beside negative bounds. ``prometheus_client``'s parser also refuses the whole
    page for a sum below zero, and for a ``_count`` without its ``_sum``: then both are left out, and the bucket
    ``+Inf`` is the count. The classic text has no such rule.
    """
    return total >= 0 and (not boundaries or boundaries[0] >= 0)


def label_value(value: object) -> str:
    """Return an attribute's value as a label's: text as it is, anything else as the collector writes it, in JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a lone surrogate would spoil the whole page
    if isinstance(value, list | tuple):
        parts = (json.dumps(part, ensure_ascii=False) if isinstance(part, str) else label_value(part) for part in value)
        return label_value(f"[{','.join(parts)}]".translate(_GO_JSON))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        text = _go_float(value, _JSON_PLACES, _JSON_SMALLEST)
        return text.replace("e-0", "e-")
    return number(value) if isinstance(value, int | float) else str(value)


def label_names(attributes: Iterable[tuple[str, object]], *, utf8: bool, reserved: str = "") -> dict[str, str]:
    """Return attributes as labels, without those that are empty, which Prometheus takes for absent.

    Attributes whose keys become the same label are joined with ``;`` in the order of their keys (OpenTelemetry
    specification, "Prometheus and OpenMetrics Compatibility", "Metric Attributes").

    Args:
        attributes: sorted by key.
        utf8: keep the characters of the keys.
        reserved: a label that the sample has already: ``le`` on a bucket. An attribute's becomes ``exported_le``, as
            Prometheus does with a label that it adds itself.
    """
    labels: dict[str, str] = {}
    for key, value in attributes:
        name = prometheus_label(legible(key), utf8=utf8)
        if name == reserved:
            name = "exported_" + name
        elif name.startswith("__"):  # reserved for Prometheus: __name__ would rename the sample
            name = "key" + name
        text = label_value(value)
        labels[name] = f"{labels[name]};{text}" if name in labels else text
    return {name: text for name, text in labels.items() if text}


def legible(name: str) -> str:
    """Return a name without lone surrogates, and without NUL, which ends Prometheus's parser: no scraper takes them."""
    return name.encode("utf-8", "replace").decode().replace("\0", "_")


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as they stand between the braces, sorted by name."""
    return ",".join(f'{_label_name(name)}="{escaped(labels[name])}"' for name in sorted(labels))


def _label_name(name: str) -> str:
    return name if is_classic_label(name) else f'"{escaped(name)}"'


def sample(name: str, labels: str) -> str:
    """Return the beginning of a sample's line, up to its value. A name that is not classic stands in the braces."""
    if not is_classic_name(name):
        labels = f'"{escaped(name)}",{labels}' if labels else f'"{escaped(name)}"'
        name = ""
    return f"{name}{{{labels}}} " if labels else f"{name} "


def family_name(name: str) -> str:
    """Return a family's name as it stands behind ``# TYPE``."""
    return name if is_classic_name(name) else f'"{escaped(name)}"'


def escaped(text: str) -> str:
    """Return text as it stands in quotes."""
    return text.translate(_ESCAPES)


def help_text(text: str, *, openmetrics: bool) -> str:
    """Return a description as it stands behind ``# HELP``."""
    text = text.encode("utf-8", "replace").decode()
    return text.translate(_ESCAPES if openmetrics else _HELP_ESCAPES)
