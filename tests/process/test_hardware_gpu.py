"""GPU metrics: what leaves of cards that are well and of others, through nvidia-ml-py and a real shared library."""

from __future__ import annotations

from ctypes.util import find_library
from pathlib import Path

import pytest

import gpus
from gpus import left_out, series, tells, values
from tachograph.hardware._gpu import TABLE
from tachograph.identity.extra import install_command

GIB = 1 << 30
DRIVER = find_library("nvidia-ml") is not None
ONCE = """
observation = watch()
time.sleep(0)
tell(**collected())
observation.close()
"""


@pytest.fixture(name="nvml", scope="session")
def compiled_nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a driver's library as it is today."""
    return str(gpus.compiled(tmp_path_factory.mktemp("nvml")))


@pytest.fixture(name="old_nvml", scope="session")
def compiled_old_nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of an old driver's library."""
    return str(gpus.compiled(tmp_path_factory.mktemp("old-nvml"), "-DOLD"))


def test_every_row_leaves_for_every_card(tmp_path: Path, nvml: str) -> None:
    """Each metric of the table is there for each card, in its unit, with what the driver says."""
    (told,), log = tells(tmp_path, ONCE, LD_LIBRARY_PATH=nvml)
    for row in TABLE:
        found = series(told, row.name)
        assert {seen.attributes["hw.gpu.index"] for seen in found} == {"0", "1"}, row.name
        assert {(seen.unit, seen.kind) for seen in found} == {(row.unit, row.kind)}
    assert values(told, "hw.gpu.memory.usage") == {"0": 1 * GIB, "1": 2 * GIB}
    assert values(told, "hw.gpu.memory.limit") == {"0": 80 * GIB, "1": 80 * GIB}
    assert values(told, "hw.power") == {"0": 100.0, "1": 101.0}
    (power,) = [seen for seen in series(told, "hw.power") if seen.attributes["hw.gpu.index"] == "1"]
    about = {"hw.id": "GPU-00000001-fake", "hw.name": "Fake H100 80GB", "hw.vendor": "NVIDIA", "hw.type": "gpu"}
    assert power.attributes == {**about, "hw.gpu.index": "1"}
    sent = [seen for seen in series(told, "hw.gpu.io") if seen.attributes["network.io.direction"] == "transmit"]
    assert [seen.value for seen in sent] == [1000, 2000]
    linked = values(told, "hw.gpu.nvlink.io", key="network.io.direction")
    assert linked == {"transmit": 2048, "receive": 2048}
    temperatures = values(told, "hw.temperature", key="hw.sensor_location")
    assert temperatures == {"gpu": 41, "memory": 55}
    assert values(told, "hw.gpu.throttled", key="hw.gpu.throttle.reason")["sw_power_cap"] == 1
    assert all(0 <= seen.value <= 1 for seen in series(told, "hw.gpu.utilization"))
    assert left_out(told) == 0
    assert "is not recorded" not in log


@pytest.mark.timing
def test_values_are_renewed_each_second(tmp_path: Path, nvml: str) -> None:
    """What is collected later is what the driver says later, though collecting asks the driver nothing."""
    program = """
watch()
time.sleep(0.5)
tell(**collected())
tell(**collected())
time.sleep(1.5)
tell(**collected())
"""
    told, _ = tells(tmp_path, program, LD_LIBRARY_PATH=nvml)
    first, again, later = (values(one, "hw.energy")["0"] for one in told)
    assert first == again < later
    assert max(one["took"] for one in told) < 0.5


def test_a_lost_card_is_left_out_and_counted(tmp_path: Path, nvml: str) -> None:
    """A card that falls off the bus takes its own series with it, is counted and said once; the others go on."""
    program = """
watch()
time.sleep(0.5)
tell(**collected())
until = time.monotonic() + 20
while (last := collected()) and "'0'" in str(last["points"]) and time.monotonic() < until:
    time.sleep(0.2)
time.sleep(1.2)
tell(**collected())
"""
    (before, after), log = tells(tmp_path, program, LD_LIBRARY_PATH=nvml, FAKE_NVML_LOST="0:40")
    assert set(values(before, "hw.power")) == {"0", "1"}
    assert {seen.attributes.get("hw.gpu.index", "1") for seen in series(after)} == {"1"}
    assert values(after, "hw.energy")["1"] > values(before, "hw.energy")["1"]
    assert (left_out(before), left_out(after)) == (0, 1)
    assert log.count("GPU-00000000-fake is not recorded") == 1
    assert "GPU is lost" in log


def test_a_card_that_is_lost_from_the_start_hides_no_other(tmp_path: Path, nvml: str) -> None:
    """A card without a handle is counted; the others are there."""
    (told,), log = tells(tmp_path, ONCE, LD_LIBRARY_PATH=nvml, FAKE_NVML_LOST="0:0")
    assert set(values(told, "hw.power")) == {"1"}
    assert left_out(told) == 1
    assert log.count("GPU 0 is not recorded") == 1


@pytest.mark.timing
def test_a_card_that_blocks_blocks_nobody(tmp_path: Path, nvml: str) -> None:
    """While a card does not answer, collections take no time, the others are read; when it answers, it is back."""
    program = """
observation = watch(patience=0.7)

def until(cards):
    for _ in range(60):
        time.sleep(0.3)
        found = collected()
        tell(**found)
        if {a["hw.gpu.index"] for name, _, _, a, _ in found["points"] if name == "hw.energy"} == cards:
            return

until({"0", "1"})
until({"1"})
time.sleep(1.2)
tell(**collected())
until({"0", "1"})
observation.close()
"""
    told, log = tells(tmp_path, program, LD_LIBRARY_PATH=nvml, FAKE_NVML_HANG="0:25:4")
    assert max(one["took"] for one in told) < 0.5
    energy = [values(one, "hw.energy") for one in told]
    blocked = [found["1"] for found in energy if set(found) == {"1"}]
    assert blocked[-1] > blocked[0] >= 1
    assert set(energy[-1]) == {"0", "1"}
    assert left_out(told[-1]) == 1
    assert log.count("GPU-00000000-fake is not recorded") == 1


@pytest.mark.timing
def test_the_end_waits_for_no_card_that_blocks(tmp_path: Path, nvml: str) -> None:
    """Closing while a card does not answer takes a moment only, and leaves the library alone."""
    program = """
observation = watch(ready=0.5)
began = time.monotonic()
observation.close()
tell(took=time.monotonic() - began)
"""
    log = tmp_path / "calls"
    environ = {"LD_LIBRARY_PATH": nvml, "FAKE_NVML_HANG": "0:10:20", "FAKE_NVML_LOG": str(log)}
    (told,), _ = tells(tmp_path, program, **environ)
    assert told["took"] < 1
    assert log.read_text().split() == ["init"]


def test_slices_have_their_memory_and_their_card(tmp_path: Path, nvml: str) -> None:
    """A MIG slice has its own memory, and says of which card it is; what its card cannot say then is counted."""
    (told,), _ = tells(tmp_path, ONCE, LD_LIBRARY_PATH=nvml, FAKE_NVML_MIG="1:2")
    limits = values(told, "hw.gpu.memory.limit", key="hw.id")
    cut = {"MIG-00000001-0-fake": 10 * GIB, "MIG-00000001-1-fake": 10 * GIB}
    assert limits == {"GPU-00000000-fake": 80 * GIB, "GPU-00000001-fake": 80 * GIB, **cut}
    slices = [seen for seen in series(told) if seen.attributes.get("hw.id") in cut]
    assert {seen.attributes["hw.parent"] for seen in slices} == {"GPU-00000001-fake"}
    assert {seen.name for seen in slices} == {row.name for row in TABLE if row.slices}
    general = [seen for seen in series(told, "hw.gpu.utilization") if seen.attributes["hw.gpu.task"] == "general"]
    assert [seen.attributes["hw.id"] for seen in general] == ["GPU-00000000-fake"]
    assert left_out(told) == 2  # the card's utilization, and its memory's


def test_an_old_driver_gives_what_it_has(tmp_path: Path, old_nvml: str) -> None:
    """What the library lacks is asked for by its older name, else its row is left out and counted once."""
    program = ONCE.replace("sleep(0)", "sleep(2.2)")
    (told,), log = tells(tmp_path, program, LD_LIBRARY_PATH=old_nvml, FAKE_NVML_DEVICES="1")
    assert values(told, "hw.gpu.memory.usage") == {"0": 2 * GIB}  # with what the driver reserves
    assert values(told, "hw.gpu.throttled", key="hw.gpu.throttle.reason")["sw_power_cap"] == 1
    assert values(told, "hw.temperature", key="hw.sensor_location") == {"gpu": 40}
    missing = {"hw.energy", "hw.gpu.io", "hw.gpu.nvlink.io"}
    there = {row.name for row in TABLE} - missing
    assert {seen.name for seen in series(told)} & {row.name for row in TABLE} == there
    assert left_out(told) == len(missing) + 1  # and the memory's temperature
    assert log.count("Function Not Found") == 4


def test_a_card_without_a_counter_has_the_others(tmp_path: Path, nvml: str) -> None:
    """What a card does not support is counted once a card, said once, and not asked for again."""
    program = ONCE.replace("sleep(0)", "sleep(2.2)")
    (told,), log = tells(tmp_path, program, LD_LIBRARY_PATH=nvml, FAKE_NVML_NO_ECC="1")
    assert set(values(told, "hw.errors", key="error.type")) == {"pcie.replay"}
    assert left_out(told) == 2
    assert log.count("hw.errors is not recorded") == 1


def test_critical_errors_are_counted(tmp_path: Path, nvml: str) -> None:
    """An XID that the driver reports becomes an error of its card, by number."""
    (told,), _ = tells(tmp_path, ONCE, LD_LIBRARY_PATH=nvml, FAKE_NVML_XID="1:79")
    (found,) = [seen for seen in series(told, "hw.errors") if seen.attributes["error.type"] == "xid.79"]
    assert (found.value, found.attributes["hw.id"]) == (1, "GPU-00000001-fake")


@pytest.mark.parametrize(("which", "count"), [("cards", 2), ("all", 1)])
def test_where_no_events_can_be_watched_the_rest_is_there(tmp_path: Path, nvml: str, which: str, count: int) -> None:
    """Without XIDs, of a card or at all, one count and the other errors."""
    (told,), _ = tells(tmp_path, ONCE, LD_LIBRARY_PATH=nvml, FAKE_NVML_NO_EVENTS=which)
    assert set(values(told, "hw.errors", key="error.type")) == {"ecc.corrected", "ecc.uncorrected", "pcie.replay"}
    assert left_out(told) == count


def test_a_row_that_fails_now_and_then_comes_back(tmp_path: Path, nvml: str) -> None:
    """An error that says nothing for ever leaves a row out once, counted; the next second it is asked for again."""
    program = """
watch()
for _ in range(6):  # on a busy machine a second may be seen twice
    time.sleep(1)
    tell(**collected())
"""
    told, log = tells(tmp_path, program, LD_LIBRARY_PATH=nvml, FAKE_NVML_FLAKY="1", FAKE_NVML_DEVICES="1")
    there = [len(series(one, "hw.power")) for one in told]
    assert 1 in there[there.index(0) :]
    assert left_out(told[-1]) >= 1
    assert log.count("hw.power is not recorded") == 1
    assert all(series(one, "hw.temperature") for one in told)


def test_a_lost_card_is_asked_again_after_a_minute(tmp_path: Path, nvml: str) -> None:
    """As long it is not asked; where it answers then, after a reset, it is back."""
    program = """
from tachograph.hardware._gpu import Gpu
from tachograph.hardware._nvml import Nvml

now = 1000.0
nvml = Nvml()
gpu = Gpu(nvml.cards()[0], lambda *_: None, clock=lambda: now)
answers = [len(gpu())]
import os, ctypes
setenv = ctypes.CDLL(None).setenv
setenv(b"FAKE_NVML_LOST", b"0:0", 1)
try:
    gpu()
except nvml.api.NVMLError_GpuIsLost:
    answers.append("lost")
setenv(b"FAKE_NVML_LOST", b"", 1)
for now in (1030.0, 1061.0):
    found = gpu()
    answers.append(found and len(found))
tell(answers=answers)
"""
    (told,), _ = tells(tmp_path, program, LD_LIBRARY_PATH=nvml)
    everything = told["answers"][0]
    assert everything >= len(TABLE) - 1
    assert told["answers"] == [everything, "lost", None, everything]


@pytest.mark.parametrize("driver", [["/nowhere"], ["/nowhere", "/"]])
@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"LD_LIBRARY_PATH": ""}, marks=pytest.mark.skipif(DRIVER, reason="NVIDIA's own library is here")),
        {"FAKE_NVML_NO_DRIVER": "1"},
    ],
)
def test_without_a_driver_the_rest_is_there(
    tmp_path: Path, nvml: str, environ: dict[str, str], driver: list[str]
) -> None:
    """No library, or no driver behind it: no GPU series, one line, a count where GPUs should be; the rest is there."""
    program = ONCE.replace("watch()", f"watch(driver={driver})")
    (told,), log = tells(tmp_path, program, **{"LD_LIBRARY_PATH": nvml, **environ})
    assert not [seen for seen in series(told) if seen.name.startswith("hw.")]
    assert series(told, "system.memory.limit")
    assert left_out(told) == ("/" in driver)
    assert log.count("hw.* metrics are not recorded") == 1


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, nvml: str) -> None:
    """Without nvidia-ml-py and psutil nothing is there, and the log says what to install."""
    program = 'sys.modules["pynvml"] = sys.modules["psutil"] = None\n' + ONCE.replace(
        "watch()", 'watch(process=True, driver=["/"])'
    )
    (told,), log = tells(tmp_path, program, LD_LIBRARY_PATH=nvml)
    assert {seen.name for seen in series(told)} == {"tachograph.errors"}
    assert log.count(f"is not installed: {install_command('hardware')}") == 2  # psutil's, and nvidia-ml-py's
    assert {where: left_out(told, where) for where in ("system", "process", "gpu")} == dict.fromkeys(
        ("system", "process", "gpu"), 1
    )


def test_the_library_is_given_back(tmp_path: Path, nvml: str) -> None:
    """After closing there are no series of hardware, and NVML was shut down as often as initialised."""
    log = tmp_path / "calls"
    program = ONCE + "tell(**collected())\n"
    (_, after), _ = tells(tmp_path, program, LD_LIBRARY_PATH=nvml, FAKE_NVML_LOG=str(log))
    assert series(after) == []
    assert log.read_text().split() == ["init", "shutdown"]


@pytest.mark.usefixtures("untraced")
def test_a_forked_child_says_nothing_and_touches_nothing(tmp_path: Path, nvml: str) -> None:
    """A child has no series of hardware before it asks for them itself; its parent's go on."""
    program = """
import os
observation = watch(process=True)
time.sleep(0.5)
tell(**collected())
child = os.fork()
if not child:
    tell(**collected())
    mine = watch(process=True)
    time.sleep(0.5)
    tell(**collected())
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.7)
tell(**collected())
observation.close()
"""
    (before, inherited, own, parent), _ = tells(tmp_path, program, LD_LIBRARY_PATH=nvml)
    assert [seen for seen in series(inherited) if not seen.name.startswith("tachograph.")] == []
    names = {seen.name for seen in series(before)}
    assert {seen.name for seen in series(own)} >= names - {"process.cpu.utilization"}
    assert values(parent, "hw.energy")["0"] > values(before, "hw.energy")["0"]


def test_two_observations_of_one_registry_say_nothing_twice(tmp_path: Path, nvml: str) -> None:
    """The node is observed once a registry, whoever asks."""
    program = "other = watch(process=True)\n" + ONCE + "tell(**collected())\n"
    (both, one), _ = tells(tmp_path, program, LD_LIBRARY_PATH=nvml)
    for told in (both, one):
        keys = [(seen.name, *sorted(seen.attributes.items())) for seen in series(told)]
        assert len(keys) == len(set(keys))
    assert series(one, "hw.power")
