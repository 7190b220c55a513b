"""Line protocol, as InfluxDB's documentation has it, and read back by a reader of its own."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from influx_points import START, STREAM, event
from tachograph.exporters.influxdb._line import line
from tachograph.recording.journal import LogEvent

_TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\\"), min_size=1, max_size=12)
_FIELD = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12).map(str))


def made(found: LogEvent, resource: dict[str, Any] | None = None) -> str:
    """Return an event's line."""
    result = line(found, resource or {})
    assert result is not None
    return result.text.decode()


def split(text: str, at: str, *, quotes: bool = True) -> list[str]:
    """Split at a character that is not escaped, nor in a field's text; tags know no ``quotes``."""
    parts, quoted, place, before = [""], False, 0, ""
    while place < len(text):
        letter = text[place]
        if letter == "\\" and place + 1 < len(text):
            parts[-1] += text[place : place + 2]
            place, before = place + 2, ""
            continue
        quoted ^= letter == '"' and (quoted or (quotes and before == "="))
        if letter == at and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
        place, before = place + 1, letter
    return parts


def bare(text: str) -> str:
    """Take escapes away."""
    return re.sub(r"\\([,= ])", r"\1", text)


def value(text: str) -> Any:
    """Return a field's value."""
    if text.startswith('"'):
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    return int(text[:-1]) if text.endswith("i") else float(text)


def test_a_point_is_one_line() -> None:
    """A point is its measurement, its tags in order, its fields and its time in nanoseconds."""
    found = event(1, {"loss": 0.5, "n": 3, "s": 'a "b" \\c', "ok": True}, {"step": "4", "a b": "c,d=e"})
    assert made(found) == rf'train,a\ b=c\,d\=e,step=4 loss=0.5,n=3i,s="a \"b\" \\c",ok=true {START + 1}'


def test_integers_beyond_64_bits_are_floats() -> None:
    """A larger integer leaves as a float; one that no float holds is left out and counted."""
    assert made(event(1, {"n": 2**63})) == f"train,role=miner,uid=7 n=9.223372036854776e+18 {START + 1}"
    assert made(event(1, {"n": -(2**63)})) == f"train,role=miner,uid=7 n=-9223372036854775808i {START + 1}"
    result = line(event(1, {"n": 10**400, "m": 1}), {})
    assert result is not None
    assert result.nonfinite == 1


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left_out(number: float) -> None:
    """NaN and infinities leave the other fields alone, and a point without any other has no line."""
    result = line(event(1, {"loss": number, "n": 1}), {})
    assert result == (f"train,role=miner,uid=7 n=1i {START + 1}".encode(), 1)
    assert line(event(1, {"loss": number}), {}) == (b"", 1)


def test_a_line_end_does_not_end_the_line() -> None:
    r"""Outside of a string field a line's end is written as ``\n``, as the official client does."""
    text = made(event(1, {"a\nb": 1}, {"t\nu": "v\r\nw"}, measurement="m\nn"))
    assert text == f"m\\nn,t\\nu=v\\r\\nw a\\nb=1i {START + 1}"


def test_a_backslash_at_the_end_escapes_nothing() -> None:
    """A tag that ends in a backslash does not swallow what comes behind it."""
    assert made(event(1, {"n": 1}, {"path": "c:\\", "z": "1"})).startswith("train,path=c:\\\\ ,z=1 n=1i ")


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("a\\", r"a\\\ "),
        ("a\\\\", r"a\\\ "),
        ("a\\,b", r"a\\\,b"),
        ("a\\ b", r"a\\\ b"),
        ("a\\\\=b", r"a\\\=b"),
        ("a\\b", r"a\b"),
        ("\\\n", r"\\n"),
    ],
)
def test_backslashes_of_a_fields_key_are_in_pairs(key: str, written: str) -> None:
    """In a field's key servers read backslashes in pairs: one before a separator is two, and the line is taken."""
    assert made(event(1, {key: 1}, {})) == f"train {written}=1i {START + 1}"


def test_empty_tags_and_keys_are_left_out() -> None:
    """An empty tag or key, which line protocol has not, is left out."""
    assert made(event(1, {"n": 1, "": 2}, {"": "x", "y": ""})) == f"train n=1i {START + 1}"


def test_a_metric_is_a_line_of_its_group() -> None:
    """A point of a Metric is a line of its group and name, with x and who recorded it."""
    told = {"metric": "loss", "group": "training", "x": 3.0, "value": 0.5, "branch": 0}
    found = LogEvent("tachograph.metric", START, START, told, 1, 0, 0, 0, STREAM)
    who = {"dl.rank": 2, "dl.run.id": "r 1", "process.pid": 4}
    assert made(found, who) == f"training/loss,dl.rank=2,dl.run.id=r\\ 1 x=3.0,value=0.5,branch=0i {START}"


@pytest.mark.parametrize("measurement", ["#train", "\0#train", "#"])
def test_a_comment_is_no_line(measurement: str) -> None:
    """A measurement that begins with # would be a comment, which no escape prevents: it is an error."""
    with pytest.raises(ValueError, match="comment"):
        line(event(1, {"n": 1}, measurement=measurement), {})
    assert made(event(1, {"n": 1}, {}, measurement=" #a#")) == rf"\ #a# n=1i {START + 1}"


def test_other_events_have_no_line() -> None:
    """An event that is no point is none for InfluxDB."""
    assert line(LogEvent("torch.monitor.Stat", 1, 1, {"a": 1}, 1, 0, 0, 0, STREAM), {}) is None


@given(_TEXT, st.dictionaries(_TEXT, _TEXT, max_size=4), st.dictionaries(_TEXT, _FIELD, min_size=1, max_size=4))
def test_every_line_reads_back(measurement: str, tags: dict[str, str], fields: dict[str, Any]) -> None:
    """Whatever a point is called and holds, its line says the same again."""
    assume(not measurement.startswith("#"))
    result = line(event(1, fields, tags, measurement=measurement), {})
    assert result is not None
    if not result.text:
        return
    text, _, at = result.text.decode().rpartition(" ")
    head, *rest = split(text, " ", quotes=False)
    told = " ".join(rest)
    name, *pairs = split(head, ",", quotes=False)
    assert bare(name) == measurement
    assert {bare(key): bare(text) for key, text in (split(pair, "=", quotes=False) for pair in pairs)} == tags
    read = {bare(key): value(text) for key, text in (split(pair, "=") for pair in split(told, ","))}
    assert read == {
        key: float(each) if isinstance(each, int) and abs(each) >= 2**63 else each for key, each in fields.items()
    }
    assert int(at) == START + 1
