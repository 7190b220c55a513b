"""Verdicts: the right one for each fault, and none where a training is well or not known well enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.diagnosis.phases import PHASES
from tachograph.diagnosis.verdict import NAMES, Verdict, own_times, scores, verdicts
from tachograph.diagnosis.window import MemorySample, Totals, Window, windows_of

MS = 1e6
GIB = 2**30


def window(rank: int | None = None, steps: int = 100, **phases: float) -> Window:
    """Return a window of steps whose phases take so many milliseconds, beside 30 of computing."""
    known = {name: phases.pop(name, default) for name, default in (("forward", 10), ("backward", 20), ("optimizer", 2))}
    more = {name: value for name, value in phases.items() if name in PHASES}
    rest = {name: value for name, value in phases.items() if name not in PHASES}
    times = {name: ms * MS * steps for name, ms in {**known, **more}.items()}
    return Window(rank, steps, times)._replace(**rest)  # type: ignore[arg-type]


def only(*windows: Window) -> Verdict:
    """Return the one verdict."""
    (found,) = verdicts(windows)
    return found


def test_a_training_that_is_well_has_none() -> None:
    """Neither a small wait nor the rare checkpoint is worth a word, nor is a tiny model that waits a little."""
    assert verdicts([window(data_wait=1.5, checkpoint=0.5, evaluation=3, other=1, gradients=1, checkpoints=3)]) == []
    assert verdicts([window(steps=5000, forward=0.1, backward=0.2, optimizer=0.1, data_wait=0.1)]) == []
    assert verdicts([]) == []


def test_few_steps_say_nothing() -> None:
    """Below twenty steps there is no verdict, however bad they look."""
    assert verdicts([window(steps=19, data_wait=500)]) == []


def test_input() -> None:
    """Waiting for data is told with its share, its loader's workers and its cost."""
    found = only(window(data_wait=48, workers=0))
    assert (found.name, found.severity) == ("input_bound", "critical")
    assert found.title == "60% of the step is spent waiting for data"
    assert "num_workers=0" in found.evidence
    assert found.cost == pytest.approx(2160)
    assert found.line().endswith("less work per sample")
    assert only(window(data_wait=4)).severity == "warning"


def test_every_rank_or_some() -> None:
    """A verdict names the ranks that it is about."""
    assert only(*(window(rank, data_wait=48) for rank in range(4))).title.endswith("on every rank")
    saves = [20 * (rank < 2) for rank in range(4)]
    some = [window(rank, checkpoint=ms, checkpoints=3, backward=40 - ms) for rank, ms in enumerate(saves)]
    found = {each.name: each for each in verdicts(some)}
    assert found["checkpoint_bound"].ranks == (0, 1)
    assert found["checkpoint_bound"].title.endswith("on ranks 0, 1")


@pytest.mark.parametrize(
    ("phase", "name"),
    [("gradients", "gradients_bound"), ("other", "overhead_bound"), ("evaluation", "evaluation_bound")],
)
def test_phases_that_take_too_much(phase: str, name: str) -> None:
    """A phase that has no business to take as much as the model does is named."""
    assert only(window(**{phase: 30})).name == name


def test_checkpoints() -> None:
    """Checkpoints are a verdict once two have ended: a single one may be the last."""
    assert only(window(checkpoint=10, checkpoints=2)).name == "checkpoint_bound"
    assert verdicts([window(checkpoint=10, checkpoints=1)]) == []


def test_compilations() -> None:
    """Compilations that go on are a storm; a few of the beginning are none."""
    assert only(window(compile=20, compiled=30)).name == "compile_storm"
    assert verdicts([window(compile=20, compiled=3)]) == []


def test_overflows() -> None:
    """A scaler that leaves out one step in ten is told, one that found its scale is not."""
    assert only(window(skipped=20)).name == "overflow_loop"
    assert verdicts([window(skipped=4)]) == []


def growing(a_second: float, seconds: int = 60, noise: float = 0) -> list[MemorySample]:
    """Return samples of a memory that grows by so many bytes a second."""
    return [MemorySample(at, int(GIB + at * a_second + noise * (at % 2))) for at in range(seconds)]


def test_memory() -> None:
    """Memory that grows without end is told where it is used up within a day."""
    found = only(window(steps=1000, memory=growing(8 << 20), limit=16 * GIB))
    assert (found.name, found.severity) == ("memory_creep", "critical")
    assert "480 MiB per minute" in found.evidence
    assert verdicts([window(steps=1000, memory=growing(8 << 20), limit=2**50)]) == []
    assert verdicts([window(steps=1000, memory=growing(0, noise=2e8), limit=4 * GIB)]) == []
    assert verdicts([window(steps=1000, memory=growing(8 << 20, seconds=15), limit=16 * GIB)]) == []


@pytest.mark.parametrize("phase", ["forward", "data_wait", "gradients", "other", "checkpoint"])
def test_a_straggler(phase: str) -> None:
    """The rank that the others wait for is named, with the phase in which it is slow; all steps last as long."""
    more = {phase: 12.0 + 10 * (phase == "forward")}
    waited = 12.0
    some = [window(rank, **(more if rank == 2 else {"backward": 20 + waited})) for rank in range(4)]
    found = verdicts(some)[0]
    assert (found.name, found.ranks) == ("straggler", (2,))
    assert f"12 ms more per step {'waiting for data' if phase == 'data_wait' else ''}" in found.evidence
    assert "and the others wait 12 ms for it" in found.evidence
    assert all(each.name != "input_bound" for each in verdicts(some))


def test_ranks_alike_are_no_stragglers() -> None:
    """Small differences, and ranks that train different things, are none; nor is one that nobody waits for."""
    alike = [window(rank, forward=10 + 0.3 * rank) for rank in range(4)]
    assert verdicts(alike) == []
    assert set(scores(alike)) == {0, 1, 2, 3}
    assert scores([window(0, steps=100), window(1, steps=50, forward=60)]) == {}
    assert scores([window(0), window(1, forward=60)]) == {}  # as many steps by chance, at another pace
    assert verdicts([window(rank, forward=10 + 40 * (rank == 1)) for rank in range(4)]) == []


def test_two_ranks() -> None:
    """One of a pair is the straggler, by the whole of its excess."""
    found = only(window(0, backward=40), window(1, forward=30))
    assert (found.ranks, found.name) == ((1,), "straggler")
    assert found.share == pytest.approx(20 / 52)


def looks(step: Callable[[int], dict[str, float]], steps: int = 240) -> list[Totals]:
    """Return the totals that a rank logs about once a second, of steps whose phases take so many milliseconds.

    Args:
        step: returns the phases of a step by its number.
        steps: how many.
    """
    totals = list[Totals]()
    phases = dict.fromkeys(PHASES, 0.0)
    told = 0.0
    for number in range(1, steps + 1):
        for phase, ms in step(number).items():
            phases[phase] += ms * MS
        if sum(phases.values()) >= told + 1000 * MS or number == steps:
            told = sum(phases.values())
            totals.append({"steps": number, "phases": list(phases.values()), "last": told})
    return totals


COMPUTE = {"forward": 20.0, "backward": 26.0, "optimizer": 2.0}
PAUSE = 6000.0


@pytest.mark.parametrize("phase", ["forward", "data_wait", "other"])
def test_a_lone_pause_makes_no_straggler(phase: str) -> None:
    """A rank that stops for six seconds of seventeen, once, does not hold up the others, who waited for it once."""
    paused = looks(lambda number: COMPUTE | ({phase: PAUSE} if number == 140 else {}))
    waited = looks(lambda number: COMPUTE | ({"backward": PAUSE} if number == 140 else {}))
    some = windows_of([(0, waited), (1, paused)], recent=False)
    assert verdicts(some) == []
    assert scores(some)[1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("phase", ["data_wait", "gradients", "other"])
def test_a_lone_pause_is_no_fault_of_the_program(phase: str) -> None:
    """One stop of six seconds is neither slow data nor work between the steps, of a program without ranks."""
    paused = looks(lambda number: COMPUTE | ({phase: PAUSE} if number == 140 else {}))
    assert verdicts(windows_of([(None, paused)], recent=False)) == []


@pytest.mark.parametrize("every", [1, 10])
def test_a_rank_that_is_slow_again_and_again_is_a_straggler(every: int) -> None:
    """In each step, or in each tenth, by the same time on the whole."""
    slow = looks(lambda number: COMPUTE | ({"forward": 20.0 + 12 * every} if number % every == 0 else {}))
    waits = looks(lambda number: COMPUTE | ({"backward": 26.0 + 12 * every} if number % every == 0 else {}))
    found = only(*windows_of([(0, waits), (1, slow)], recent=False))
    assert (found.name, found.ranks) == ("straggler", (1,))
    assert found.share == pytest.approx(12 / 60, abs=0.03)


def test_communication() -> None:
    """All ranks wait for gradients: told by the one that waits least, unless one is slow; three timed steps or more."""
    network = [window(rank, backward=60, samples=3, waited=(30 + 5 * rank) * MS) for rank in range(4)]
    found = only(*network)
    assert (found.name, found.severity, found.ranks) == ("communication_bound", "warning", (0, 1, 2, 3))
    assert found.share == pytest.approx(30 / 72)
    assert "30 ms of 72 ms per step, in 3 steps timed by DDP" in found.evidence
    assert verdicts([each._replace(samples=2) for each in network]) == []
    assert verdicts([*network[:3], network[3]._replace(waited=10 * MS)]) == []
    assert verdicts([*network[:3], window(3, backward=60)]) == []
    assert verdicts(network[:1]) == []
    slow = [window(rank, **({"forward": 30} if rank == 2 else {"backward": 40})) for rank in range(4)]
    waits = [each._replace(samples=3, waited=20 * MS) for each in slow]
    assert [each.name for each in verdicts(waits)] == ["straggler"]


def test_the_device_has_the_last_word() -> None:
    """What the host waits for while the device works is no wait for data."""
    busy = {"data_wait": 1 * MS * 50, "forward": 40 * MS * 50, "backward": 60 * MS * 50}
    assert verdicts([window(data_wait=60, device=busy, device_steps=50)]) == []
    idle = {**busy, "data_wait": 60 * MS * 50}
    found = only(window(data_wait=60, device=idle, device_steps=50))
    assert found.title.startswith("The device is idle 38% of the time")
    # The host waits in clipping for the device, which computes the backward meanwhile.
    assert verdicts([window(gradients=60, device=busy, device_steps=50)]) == []


@given(
    st.lists(
        st.dictionaries(st.sampled_from(PHASES), st.floats(0, 1e3), max_size=9),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 1000),
)
def test_any_window_is_judged(found: list[dict[str, float]], steps: int) -> None:
    """No window makes a rule fail; a share is one, and own times are never negative."""
    some = [Window(rank, steps, {name: ms * MS for name, ms in each.items()}) for rank, each in enumerate(found)]
    for verdict in verdicts(some):
        assert verdict.name in NAMES
        assert 0 <= verdict.share <= 1
        assert verdict.line()
        assert verdict.data()["cost_seconds_an_hour"] <= 3600
    assert all(own >= -1e-6 for own in own_times(some))
