"""The table of runs, as the API answers it: filtered, sorted, grouped, a window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from many_runs import sweep
from studio import Studio, alone
from tachograph.runs.annotations import annotate, check_change
from tachograph.runs.catalogue import delete_run_files
from tachograph.runs.store import run_path

MANY = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a sweep."""
    folder = tmp_path_factory.mktemp("store")
    sweep(folder, MANY)
    return folder


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Studio]:
    """Return a Studio over it."""
    with alone(store) as found:
        while found.ask("table")["unread"]:
            pass
        yield found


def ids(answer: Any) -> list[str]:
    """Return the ids of an answer's runs."""
    return [each["run"]["id"] for each in answer["items"] if "run" in each]


def test_a_window_of_the_table_has_the_columns_that_are_asked_for(served: Studio) -> None:
    """Facts come with each run; keys of its configuration, results and curves where they are asked for."""
    found = served.ask(
        "table", limit=3, offset=1, column=["lr", "config.model", "last.loss", "min.loss", "none"], names=1
    )
    assert (found["total"], found["matched"], found["rows"]) == (MANY, MANY, MANY)
    assert ids(found) == [f"sweep-{number:05}" for number in (58, 57, 56)]  # the newest first
    (first, *_) = found["items"]
    told = {"lr": 1e-4 * 1.5 ** (58 % 12), "config.model": "small", "last.loss": 1.1, "min.loss": 1.1, "none": None}
    assert first["columns"] == pytest.approx(told)
    assert first["run"]["tags"] == ["even", "sweep"]
    assert found["columns"].items() >= {"config.lr": MANY, "summary.best": MANY, "max.accuracy": MANY}.items()


def test_the_table_is_filtered_and_sorted_over_all_runs(served: Studio) -> None:
    """The order is that of all runs, not of a window; the number that match is told."""
    found = served.ask("table", filter="best < 0.1 tag:even state:failed", sort="best", limit=2)
    wanted = [number for number in range(MANY) if 1 / (number + 1) < 0.1 and not number % 2 and number % 5 == 4]
    assert found["matched"] == len(wanted)
    assert ids(found) == [f"sweep-{number:05}" for number in wanted[:-3:-1]]
    assert ids(served.ask("table", sort="-lr", limit=1))[0] in [f"sweep-{number:05}" for number in range(11, MANY, 12)]


def test_groups_have_heads_among_the_rows(served: Studio) -> None:
    """A group's head has its value and how many runs it has; the rows are the runs and the heads."""
    found = served.ask("table", group="model", limit=500)
    assert found["rows"] == MANY + 2
    heads = [(place, each["group"], each["runs"]) for place, each in enumerate(found["items"]) if "group" in each]
    assert heads == [(0, "large", MANY // 2), (MANY // 2 + 1, "small", MANY // 2)]


def test_a_filter_that_cannot_be_read_points_at_the_character(served: Studio) -> None:
    """The answer is a sentence, and the place in the filter; an unknown column is a hint, no error."""
    found = served.ask("table", filter="tag:sweep lr > big")
    assert found == {"error": "expected a number after '>', not 'big'", "at": 15}
    found = served.ask("table", filter="bst < 1")
    assert (found["matched"], found["hint"]) == (0, "no run has 'bst': did you mean 'best'?")


def test_a_change_is_in_the_next_answer(store: Path, served: Studio) -> None:
    """Runs are kept by the times and sizes of their files: one that is tagged, renamed or deleted is read again."""
    annotate(run_path(store, "sweep-00007"), check_change(add=["chosen"], name="The seventh"))
    found = served.ask("table", filter="tag:chosen")
    assert [each["run"]["name"] for each in found["items"]] == ["The seventh"]
    assert delete_run_files(run_path(store, "sweep-00008"))
    again = served.ask("table", filter="id:sweep-00008")
    assert (again["total"], again["matched"]) == (MANY - 1, 0)
    assert again["version"] > found["version"]
