"""Two-word names of runs: from the id alone, and distinct in a store."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.runs.run_name import distinct_names, two_words

IDS = st.text(min_size=1, max_size=60)


@pytest.mark.process
def test_every_node_gives_the_same_name() -> None:
    """Another process, with another hash seed, calls the run the same."""
    code = "from tachograph.runs.run_name import two_words; print(two_words('sweep-20261128-104134-03cb'))"
    line = [sys.executable, "-c", code]
    other = subprocess.run(line, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}).stdout.strip()
    assert two_words("sweep-20261128-104134-03cb") == other
    assert other.count("-") == 1


@given(IDS)
def test_a_name_is_two_plain_words(run_id: str) -> None:
    """It fits into a path, a URL and a shell as it is."""
    first, second = two_words(run_id).split("-")
    assert first.isascii()
    assert first.isalpha()
    assert second.isascii()
    assert second.isalpha()


@given(st.lists(IDS, unique=True, max_size=30))
def test_no_two_runs_of_a_store_have_one_name(ids: list[str]) -> None:
    """Whatever their ids are."""
    names = distinct_names((each, "") for each in ids)
    assert len(set(names.values())) == len(ids)


def test_a_given_name_stays_and_others_avoid_it() -> None:
    """A run that somebody named as another would be called keeps its name; the other gets a number."""
    words = two_words("run-a")
    assert distinct_names([("run-a", ""), ("run-b", words)]) == {"run-a": f"{words}-2", "run-b": words}
