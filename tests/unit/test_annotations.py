"""``tachograph runs edit`` and ``delete``: names, notes and tags of stored runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import START, Clock, logs, rank
from recorded_runs import points, record
from tachograph import runs
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.identity.launch import Launch
from tachograph.runs.annotations import MOST_NAME, Change, annotate, check_change
from tachograph.runs.store import StoreError, run_path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with two runs, which is the one that the environment names."""
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path))
    record(tmp_path, "a/run", *points([1.0]))
    record(tmp_path, "another", *points([1.0, 2.0]))
    return tmp_path


def run(*arguments: str) -> int:
    """Run a subcommand of ``tachograph runs`` and return its exit code."""
    return main(["runs", *arguments])


def edit(*arguments: str) -> int:
    """Run ``tachograph runs edit`` and return its exit code."""
    return run("edit", *arguments)


@pytest.mark.usefixtures("store")
def test_tags_notes_and_a_name_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said last counts; lists and descriptions have it, and the id is what it was."""
    assert edit("a/run", "--add-tag", "baseline", "--add-tag", "lr 3e-4") == 0
    assert capsys.readouterr().out == "name: -\ntags: baseline, lr 3e-4\nnotes: -\n"
    notes = "first line\nsecond"
    assert (
        edit("a/run", "--remove-tag", "lr 3e-4", "--add-tag", "best", "--notes", notes, "--name", " The best one ") == 0
    )
    assert capsys.readouterr().out == "name: The best one\ntags: baseline, best\nnotes: first line\nsecond\n"
    found = runs.open("a/run")
    assert (found.id, found.name, found.tags) == ("a/run", "The best one", ["baseline", "best"])
    assert found.notes == "first line\nsecond"
    first, second = runs.list()
    assert (first.id, first.name, first.tags) == ("a/run", "The best one", ("baseline", "best"))
    assert (second.name, second.tags) == ("", ())
    assert run("list", "--tag", "best") == 0
    heads, line = capsys.readouterr().out.splitlines()
    assert heads.split()[:2] == ["RUN", "NAME"]
    assert heads.split()[-1] == "TAGS"
    assert line.startswith("a/run  The best one  ")
    assert line.endswith("  baseline, best")
    assert run("show", "a/run") == 0
    said = capsys.readouterr().out
    assert said.startswith("run a/run\n")
    assert "\nname The best one\ntags baseline, best\n" in said
    assert "\nfirst line\nsecond\n" in said
    assert edit("a/run", "--name", "", "--notes", "") == 0
    assert (runs.open("a/run").name, runs.open("a/run").notes) == ("", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a/rum", "--add-tag", "x"), "there is no run 'a/rum' in {}: did you mean 'a/run'?"),
        (("ano", "--add-tag", "x"), "there is no run 'ano' in {}: did you mean 'another'?"),
        (("a/run",), "nothing to change: give --name, --notes, --add-tag or --remove-tag"),
        (("a/run", "--remove-tag", "beast"), "run 'a/run' does not have the tag 'beast' (it has 'best')"),
        (("a/run", "--add-tag", "x", "--remove-tag", "x"), "the tag 'x' is both added and removed"),
        (("a/run", "--add-tag", "\x1b[2J"), "--add-tag is '\\x1b[2J': a tag can contain only printable characters"),
        (("a/run", "--add-tag", "x" * 65), f"--add-tag is {'x' * 65!r}: a tag has at most 64 characters"),
        (("a/run", *(f"--add-tag={n}" for n in range(64))), "would have 65 tags: a run may have at most 64"),
        (("a/run", "--notes", "x" * 10_001), "--notes has 10001 characters: notes have at most 10,000"),
        (
            ("a/run", "--name", "two\nlines"),
            "--name is 'two\\nlines': a display name must have printable characters only",
        ),
        (("a/run", "--name", "x" * 201), "--name has 201 characters: a display name may have at most 200"),
    ],
    ids=lambda given: " ".join(given)[:30] if isinstance(given, tuple) else "",
)
def test_what_cannot_be_said_of_a_run(
    store: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the value and what is allowed, with exit code 2; the run stays as it was, and none is made."""
    assert edit("a/run", "--add-tag", "best") == 0
    capsys.readouterr()
    assert edit(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(store) in line
    found = runs.open("a/run")
    assert (found.tags, found.notes, found.name) == (["best"], "", "")
    assert len(runs.list()) == 2


@pytest.mark.usefixtures("store")
def test_control_characters_are_harmless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """No escape sequence of a note or of an id reaches the terminal."""
    assert edit("a/run", "--notes", "red \x1b[31m and \x07 bell") == 0
    assert run("show", "a/run") == 0
    assert run("delete", "--yes", "no\x1b[2Jrun") == 1
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\x07" not in said.out
    assert "red \ufffd[31m and \ufffd bell" in said.out


def test_a_run_that_a_hub_writes_is_tagged_and_not_deleted(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its points go on arriving, and the hub finds nothing wrong with its file."""
    for each in ("a/run", "another"):  # a hub that begins goes on with those that were just written
        assert run("delete", "--yes", each) == 0
    hub = Hub(store, run="live", clock=Clock())
    record(store, "a/run", *points([1.0]))
    record(store, "another", *points([1.0]))
    hub.receive_logs(logs(rank(0, run="live"), *points([1.0])))
    assert edit("live", "--add-tag", "watched", "--notes", "going well") == 0
    hub.receive_logs(logs(rank(0, run="live"), *points([2.0]), first=2))
    hub.tick()
    found = runs.open("live")
    assert (found.tags, found.notes) == (["watched"], "going well")
    assert [each.value for each in found.points("loss")] == [1.0, 2.0]
    assert run("delete", "--yes", "live", "a/run", "anotter", "another") == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"tachograph runs delete: there is no run 'anotter' in {store}: did you mean 'another'?",
        "tachograph runs delete: live: it is still being recorded",
    ]
    assert [line.partition(" (")[0] for line in said.out.splitlines()[-2:]] == ["deleted a/run", "deleted another"]
    assert [each.id for each in runs.list()] == ["live"]
    hub.close()
    assert run("delete", "--yes", "live", "live") == 0
    assert list(store.joinpath("runs").iterdir()) == []


def test_a_removed_tag_stays_removed(store: Path) -> None:
    """The hub says the tags of a run's start again and again; only a later start gives a removed one again."""
    hub = Hub(store, run="live", clock=Clock())
    launch = Launch(START, "host", {}, ("sweep", "baseline"), "of the start")
    hub.launched(launch)
    path = run_path(store, "live")
    annotate(path, check_change(remove=["sweep"], notes="of the user"), clock=lambda: START + 1)
    hub.launched(launch)
    found = runs.open("live")
    assert (found.tags, found.notes) == (["baseline"], "of the user")
    hub.launched(launch._replace(time_unix_nano=START + 2, notes="of the next start"))
    assert (found.tags, found.notes) == (["baseline", "sweep"], "of the next start")
    hub.close()


def test_many_at_once_lose_nothing(store: Path) -> None:
    """Threads that tag one run at the same time wait for one another."""
    path = run_path(store, "a/run")
    threads = [threading.Thread(target=annotate, args=(path, Change(add=(f"tag {n}",)))) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert runs.open("a/run").tags == sorted(f"tag {n}" for n in range(16))


def test_a_run_that_is_gone_or_damaged_is_an_error(store: Path) -> None:
    """It is not made anew, and nothing is left beside it."""
    gone = run_path(store, "gone")
    with pytest.raises(FileNotFoundError, match="the run was deleted"):
        annotate(gone, Change(add=("x",)))
    with pytest.raises(FileNotFoundError, match="the run has already been deleted"):
        runs.catalogue.delete_run_files(gone)
    assert not [each for each in store.joinpath("runs").iterdir() if each.name.startswith("gone")]
    broken = run_path(store, "broken")
    broken.write_text("no database at all" * 100)
    with pytest.raises(StoreError, match="cannot change the run: file is not a database"):
        annotate(broken, Change(name="x"))
    assert run("delete", "--yes", "broken") == 0


@given(
    add=st.lists(st.sampled_from("abcdef"), max_size=4),
    remove=st.lists(st.sampled_from("ghijkl"), max_size=4),
    notes=st.none() | st.text(max_size=50),
    name=st.none() | st.text(st.characters(exclude_categories=["C", "Z"]), max_size=MOST_NAME),
)
def test_a_change_keeps_what_it_is_given(
    add: list[str], remove: list[str], notes: str | None, name: str | None
) -> None:
    """Tags are there once, a name is what was typed, and notes have no control character but line ends and tabs."""
    found = check_change(add, remove, notes, name)
    assert (found.add, found.remove, found.name) == (tuple(dict.fromkeys(add)), tuple(dict.fromkeys(remove)), name)
    assert all(letter.isprintable() or letter in "\n\t\ufffd" for letter in found.notes or "")
    assert (found.notes is None) == (notes is None)
