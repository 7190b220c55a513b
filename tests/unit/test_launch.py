"""The launch of a run: bounded, masked, and handed to the hub without loss; tags and notes of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import START, logs, rank
from tachograph import runs
from tachograph.hub.hub import Hub
from tachograph.identity.environment import Setting
from tachograph.identity.launch import HANDED, Launch, handed_launch, launch_of, notes_of, tags_of, versions
from tachograph.pipeline.settings import read_settings
from tachograph.recording.journal import RUN

LARGEST = 128 * 1024  # execve(2): MAX_ARG_STRLEN
# Of printable characters, and " " is one of them: what is left to filter is rare.
_PRINTABLE = st.characters(exclude_categories=["C", "Z"]) | st.just(" ")
TAGS = st.lists(
    st.text(_PRINTABLE, min_size=1, max_size=64).filter(lambda tag: tag.isprintable() and tag.strip()), max_size=64
)


@given(command=st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1), notes=st.text(max_size=10_000))
def test_a_launch_is_handed_over(command: list[str], notes: str) -> None:
    """The hub reads what the command has noted, whatever is in it."""
    launch = launch_of(command, records_program=True, tags=("a", "b"), notes=notes_of(Setting("--notes=", notes)))
    handed = launch.handed()
    assert handed[HANDED].isascii()
    assert handed_launch(handed) == launch


@given(letter=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), many=st.integers(1, 20_000))
def test_a_launch_fits_into_a_variable(letter: str, many: int) -> None:
    """However long the command line, the hub can be started with it; it says how much it leaves out."""
    for command in ([letter * many] * 3, [letter] * many):
        launch = launch_of(
            command,
            records_program=True,
            tags=tuple(f"{number:02}" + "\U0001f600" * 62 for number in range(64)),
            notes="\U0001f600" * 10_000,
        )
        assert len(HANDED) + 1 + len(launch.handed()[HANDED]) < LARGEST
        argv = launch.program["argv"]
        assert isinstance(argv, list)
        assert argv == command or argv[-1].endswith("…") or argv[-1] == f"… and {len(command) - len(argv) + 1} more"


def test_a_launch_has_no_secrets_and_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Secrets of the command line are masked before anything is written down; the folder and the host are there."""
    monkeypatch.chdir(tmp_path)
    launch = launch_of(["train.py", "--api-key", "hunter2"], records_program=True, tags=(), notes="")
    assert launch.program == {"argv": ["train.py", "--api-key", "***"], "cwd": str(tmp_path), "host": launch.host}
    assert launch_of(["train.py"], records_program=False, tags=("a",), notes="b").program == {}


def test_a_launch_without_program_stays_so() -> None:
    """Where no facts are wanted none are looked for."""
    launch = Launch(1, "host", {}, ("a",), "b")
    assert launch.completed({"PATH": "/usr/bin"}) == launch


def test_another_python_has_versions_of_its_own(tmp_path: Path) -> None:
    """Versions are left out where the job runs in another Python than tachograph does."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    known = {"argv": [str(other), "train.py"], "host": "h"}
    assert Launch(1, "h", known, (), "").completed({}).program == known
    ours = {"argv": [sys.executable, "train.py"], "host": "h"}
    assert Launch(1, "h", ours, (), "").completed({}).program["python"] == sys.version.split()[0]


@pytest.mark.torch
def test_versions_import_nothing() -> None:
    """The version of torch and its CUDA are read from its files."""
    pytest.importorskip("torch.version")  # reads no torch where it is loaded already
    found = versions()
    torch = sys.modules["torch"].version  # type: ignore[attr-defined]
    assert found["torch"] == version("torch")
    assert found.get("cuda") == torch.cuda


@pytest.mark.parametrize("given_", ["{}", "bm8=", "x", "é"])
def test_a_launch_that_is_none(given_: str) -> None:
    """A variable of somebody else's is an error that names it."""
    with pytest.raises(ValueError, match=HANDED):
        handed_launch({HANDED: given_})
    assert handed_launch({}) is None


@given(tags=TAGS)
def test_tags(tags: list[str]) -> None:
    """Tags are kept as they are, without blanks around them, each once."""
    assert tags_of(Setting("tags=", tags)) == tuple(dict.fromkeys(tag.strip() for tag in tags))


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ("baseline", TypeError, r"tags= must be a list of tags, not str: 'baseline'"),
        (b"baseline", TypeError, "tags= must be a list"),
        ({"a": 1}, TypeError, "tags= must be a list"),
        (3, TypeError, "tags= must be a list"),
        ([3], TypeError, "tags= must be a string, not int: 3"),
        (["a", " "], ValueError, "tags= is ' ': it must not be empty"),
        (["a" * 65], ValueError, "at most 64 characters"),
        (["a\nb"], ValueError, "printable"),
        ([str(number) for number in range(65)], ValueError, "tags= has 65 tags: a run has at most 64"),
    ],
)
def test_wrong_tags(value: Any, error: type[Exception], match: str) -> None:
    """A wrong tag is an error of start() that names it."""
    with pytest.raises(error, match=match):
        read_settings({}, tags=value)


def test_wrong_notes() -> None:
    """Notes are a text of 10,000 characters; its control characters are no terminal's business."""
    with pytest.raises(TypeError, match="notes= must be a string, not int: 3"):
        read_settings({}, notes=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="notes= has 10001 characters"):
        read_settings({}, notes="a" * 10_001)
    assert read_settings({}, notes=" a\r\n\tb\x1b[2J\udcff ").notes == "a\n\tb\ufffd[2J\ufffd"


def test_tags_and_notes_are_no_setting_of_the_delivery() -> None:
    """A second start() may add tags: it is the same pipeline."""
    one, other = (read_settings({}, tags=tags, notes=tags[0]) for tags in (["a"], ["b"]))
    assert (one, one.tags, other.tags) == (other, ("a",), ("b",))


@pytest.mark.parametrize("value", ["maybe", "2", "no"])
def test_record_program_is_true_or_false(value: str) -> None:
    """Another word is an error that names the variable."""
    with pytest.raises(ValueError, match=r"TACHOGRAPH_RECORD_PROGRAM is .*: expected one of 'true', 'false'"):
        read_settings({"TACHOGRAPH_RECORD_PROGRAM": value})
    read_settings({"TACHOGRAPH_RECORD_PROGRAM": "False"})


def described(folder: Path, *said: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return tags and notes of a run after these events, a second apart."""
    hub = Hub(folder, run="run")
    for number, attributes in enumerate(said):
        hub.receive_logs(logs(rank(0, run="run"), (RUN, attributes), first=number + 1, stream="one"))
    hub.close()
    found = runs.open("run", folder)
    assert len(list(found.events(RUN))) == len(said)
    return found.tags, found.notes


def test_tags_add_up_and_newer_notes_win(tmp_path: Path) -> None:
    """Each event adds its tags, and its notes take the place of earlier ones; no notes take none."""
    said = [{"tags": ["b", "a"], "notes": "one"}, {"tags": ["c", "a"], "notes": "two"}, {"tags": ["d"]}]
    assert described(tmp_path, *said) == (["a", "b", "c", "d"], "two")


@pytest.mark.parametrize(
    "hostile",
    [
        {"tags": "a", "notes": 3},
        {"tags": [1, 2], "notes": "x" * 10_001},
        {"tags": ["x" * 65], "notes": True},
        {"tags": {"a": 1}, "notes": [1]},
        {},
    ],
)
def test_events_of_this_name_that_are_none(tmp_path: Path, hostile: Mapping[str, Any]) -> None:
    """They stay events, and change neither tags nor notes."""
    assert described(tmp_path, {"tags": ["a"], "notes": "one"}, hostile) == (["a"], "one")


def test_a_run_has_64_tags(tmp_path: Path) -> None:
    """However many events bring some."""
    tags, _ = described(tmp_path, *({"tags": [f"{one}-{other}" for other in range(40)]} for one in range(3)))
    assert len(tags) == 64
    assert [each.tags for each in runs.list(tmp_path)] == [tuple(tags)]


def test_a_launch_is_kept_once_and_over_restarts(tmp_path: Path) -> None:
    """A hub that learns more adds it, one that starts again changes nothing; a further start of the run is another."""
    first, other = {"argv": ["a"]}, {"argv": ["b"]}
    told = ((START, first), (START, {**first, "git.dirty": False}), (START, {**first, "git.dirty": True}))
    for time, facts in (*told, (START + 1, other)):
        hub = Hub(tmp_path, run="run")
        hub.launched(Launch(time, "one", {**facts, "host": "one"}, ("t",), "notes"))
        hub.close()
    run = runs.open("run", tmp_path)
    assert run.programs == [{"argv": ["a"], "git.dirty": False, "host": "one"}, {"argv": ["b"], "host": "one"}]
    assert run.program == run.programs[-1]
    assert (run.tags, run.notes) == (["t"], "notes")


def test_a_launch_outlives_the_file(tmp_path: Path) -> None:
    """Where the run's file is deleted, the one that takes its place has the launch, too."""
    hub = Hub(tmp_path, run="run")
    hub.launched(Launch(START, "one", {"argv": ["a"], "host": "one"}, ("t",), ""))
    hub.store.unlink()
    hub.tick()
    hub.close()
    assert runs.open("run", tmp_path).program == {"argv": ["a"], "host": "one"}
    assert runs.open("run", tmp_path).tags == ["t"]


def test_hosts_that_differ_are_listed(tmp_path: Path) -> None:
    """A run whose processes were on several machines names all of them."""
    hub = Hub(tmp_path, run="run")
    hub.launched(Launch(START, "one", {"argv": ["a"], "host": "one"}, (), ""))
    for number, host in enumerate(("one", "two", "three")):
        hub.receive_logs(logs(rank(number, run="run", **{"host.name": host}), ("e", {}), stream=f"s{number}"))
    hub.close()
    assert runs.open("run", tmp_path).program["host"] == ["one", "three", "two"]
