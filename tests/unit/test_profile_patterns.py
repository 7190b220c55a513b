"""What a ``--prof`` pattern means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.instrumentation.profiles import Pattern, parse


@pytest.mark.parametrize(
    "wrong", ["", "train_step", "pkg/train.py:step", "a:b:c", ":f", "m:", "m:f()", "m: f", "a..b:f", "m:.f"]
)
def test_a_wrong_pattern_is_an_error(wrong: str) -> None:
    """The message names the pattern, and what to write."""
    with pytest.raises(ValueError, match=r"use package\.module:function") as error:
        parse(wrong)
    assert repr(wrong) in str(error.value)


def test_a_pattern_is_a_string() -> None:
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="must be a string"):
        parse(None)  # type: ignore[arg-type]


WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)


@given(module=st.lists(WORDS, min_size=1, max_size=3), function=st.lists(WORDS, min_size=1, max_size=3))
def test_a_plain_name_means_itself(module: list[str], function: list[str]) -> None:
    """A pattern without wildcards matches that module and function, private or not, and reads back as written."""
    pattern = parse(f"{'.'.join(module)}:{'.'.join(function)}")
    assert pattern == Pattern(".".join(module), ".".join(function))
    assert pattern.names_module(".".join(module))
    assert pattern.names_function(".".join(function))
    assert pattern.may_name(function[0])
    assert parse(str(pattern)) == pattern


@given(function=st.lists(WORDS, min_size=1, max_size=3), wanted=st.text("ab_.*?", min_size=1, max_size=6))
def test_what_may_be_named_is_not_overlooked(function: list[str], wanted: str) -> None:
    """Whatever a pattern names in a class or as a function, the name that the script defines is looked at."""
    pattern = Pattern("m", wanted)
    if pattern.names_function(".".join(function)):
        assert pattern.may_name(function[0])


def test_wildcards_leave_python_and_us_alone() -> None:
    """A module's wildcard means neither the standard library nor what delivers; spelled out, it does."""
    assert not any(parse("*:*").names_module(name) for name in ("json", "json.decoder", "tachograph.elastic"))
    assert parse("js*:*").names_module("jsonish")
    assert parse("json*:dumps").names_module("json.decoder") is False
    assert parse("json.*:dumps").names_module("json.decoder")
