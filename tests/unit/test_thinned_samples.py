"""Samples for a chart: few as they are, a week of them thinned, with every extreme and each counter's rise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hub_requests import SECOND, START
from recorded_runs import spoil
from tachograph.runs.file import RunFile, look
from tachograph.runs.store import run_path
from tachograph.studio.charts import samples
from tachograph.studio.thinned_samples import FEW, MOST
from watched_week import EVERY, MACHINE, Watched, store_week


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a run with a week of one gauge and of one counter."""
    store = tmp_path_factory.mktemp("week")
    store_week(store, "run", [MACHINE[0], MACHINE[5]])
    return run_path(store, "run")


def asked(path: Path, **more: Any) -> list[dict[str, Any]]:
    """Return the samples of all series of the machine."""
    with look(RunFile(path, looking=True)) as reading:
        query = "SELECT id FROM series WHERE scope = 'tachograph.hardware' ORDER BY id"
        return samples(reading, [row[0] for row in reading.rows(query)], **more)


def test_a_week_is_as_many_samples_as_a_chart_has_room_for(week: Path) -> None:
    """Two hundred a series, in order, from the first to the last; a spike of ten seconds is one of the extremes."""
    gauge, counter = asked(week)
    for each in (gauge, counter):
        assert len(each["time"]) <= MOST
        assert each["time"] == sorted(each["time"])
        assert each["time"][-1] == START
        assert 290 <= each["joined"] <= 310
    assert min(gauge["min"]) == 0.0
    assert 0.3 < max(zip(gauge["min"], gauge["value"], strict=True))[1] < 0.95
    assert max(gauge["max"]) == pytest.approx(0.9, abs=1e-4)
    assert len(json.dumps([gauge, counter])) < 30_000


def test_a_counters_rates_are_exact(week: Path) -> None:
    """Its samples are ones that were recorded: it rises between them as it did."""
    _, counter = asked(week)
    time, value = counter["time"], counter["value"]
    rates = [(value[at] - value[at - 1]) / ((time[at] - time[at - 1]) / SECOND) for at in range(1, len(time))]
    assert min(rates) == pytest.approx(2**20)
    assert max(rates) == pytest.approx(2**20)


def test_a_part_of_it_is_as_it_was_recorded(week: Path) -> None:
    """A window of an hour has every sample of it, and one before; so has what came since a time."""
    gauge, counter = asked(week, low=START - 3600 * SECOND)
    for each in (gauge, counter):
        assert "joined" not in each
        assert len(each["time"]) == 3600 // EVERY + 2
    assert len(asked(week, low=START)[0]["time"]) == 2


def test_of_a_window_of_a_counter_the_first_rate_is_known(week: Path) -> None:
    """Thinned, too, there is a sample from before the window."""
    low = START - 3 * 86_400 * SECOND + 1
    counter = asked(week, low=low, stretches=50)[1]
    assert counter["time"][0] <= low + 86_400 * SECOND
    assert len(counter["time"]) <= 50


@pytest.mark.parametrize("many", [1, FEW * MOST, FEW * MOST + 1])
def test_few_samples_are_left_alone(tmp_path: Path, many: int) -> None:
    """Up to twice as many as a chart has stretches are sent as they are, beyond that they are thinned."""
    gauge = Watched("system.memory.utilization", "1", "gauge", {}, float)
    store_week(tmp_path, "run", [gauge], seconds=(many - 1) * EVERY)
    (found,) = asked(run_path(tmp_path, "run"))
    assert ("joined" in found) is (many > FEW * MOST)
    assert (len(found["time"]) == many) is (many <= FEW * MOST)
    assert len(found["time"]) >= min(many, MOST - 1)


def test_damage_is_noted(tmp_path: Path) -> None:
    """A file whose samples are overwritten in part answers with what can be read."""
    store_week(tmp_path, "run", [MACHINE[0]], seconds=86_400)
    path = run_path(tmp_path, "run")
    assert spoil(path, lambda content: content.count(b"\x3f\xe0") > 20 or content[:1] == b"\x0a")
    file = RunFile(path, looking=True)
    with look(file) as reading:
        rows = [row[0] for row in reading.rows("SELECT id FROM series")]
        samples(reading, rows)
    assert file.damage
