"""Types of fields in lines: whatever the encoder writes is read back, and changed in its types alone."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from influx_points import event
from tachograph.exporters.influxdb._field_types import FieldTypes, split_lines
from tachograph.exporters.influxdb._line import encoded
from tachograph.recording.journal import LogEvent

_NAMES = st.text(alphabet=st.sampled_from('ab ,="\\\n\t1i#é'), max_size=6)
_FIELDS = st.dictionaries(_NAMES, st.one_of(st.integers(), st.floats(), st.booleans(), _NAMES), max_size=4)
_TAGS = st.dictionaries(_NAMES, _NAMES, max_size=3)
_EVENTS = st.lists(
    st.builds(lambda n, f, t, m: event(n, f, t, measurement=m), st.integers(0, 99), _FIELDS, _TAGS, _NAMES)
)


def _no_pace() -> None:
    pass


@given(_EVENTS)
def test_lines_are_split_at_their_ends(events: list[LogEvent]) -> None:
    """A line end in a string, and a quotation mark in a name, end no line."""
    lines, _ = encoded(events, {}, _no_pace)
    assert split_lines(b"\n".join(lines)) == (lines or [b""])


@given(_EVENTS)
def test_nothing_but_a_type_is_changed(events: list[LogEvent]) -> None:
    """Lines whose fields have one type each stay byte for byte as they were encoded."""
    for each in events:
        lines, _ = encoded([each], {}, _no_pace)
        assert FieldTypes().decide(lines, refused=True, learned=False, pace=_no_pace) == (lines, [])


@given(_TAGS, _NAMES.filter(bool), _NAMES.filter(bool))
def test_any_name_has_a_type(tags: dict[str, str], field: str, measurement: str) -> None:
    """The integer of a field that has a float in the same batch is written as a float, whatever the names are."""
    points = [event(number, {field: value}, tags, measurement=measurement) for number, value in enumerate([3, 0.5])]
    lines, _ = encoded(points, {}, _no_pace)
    integers = [re.sub(rb"=3i (?=\d+$)", b"=3.0 ", line) for line in lines]
    assert FieldTypes().decide(lines, refused=False, learned=False, pace=_no_pace) == (integers, [])


def test_no_value_has_the_type_of_its_field() -> None:
    """No value is the zero of the type that its field has in the process, and a float before there is one."""
    types = FieldTypes()
    for value, zero in (("3i", b"0i"), ('"text"', b'""'), ("0.5", b"0"), ("7i", b"0")):
        types.learn("m", "f", value)
        assert types.decide([b"m f=0 1"], refused=False, learned=False, pace=_no_pace).lines == [b"m f=" + zero + b" 1"]
    assert types.decide([b"m g=0 1", b"m g=1i 2"], refused=False, learned=False, pace=_no_pace).lines == [
        b"m g=0i 1",
        b"m g=1i 2",
    ]
    assert types.decide([b"m h=0 1"], refused=False, learned=False, pace=_no_pace).lines == [b"m h=0 1"]
    assert types.decide([b"m h=1i 1"], refused=False, learned=False, pace=_no_pace).lines == [b"m h=1.0 1"]
