"""``tachograph top`` in a terminal: what its screen shows while a run goes on, and how it leaves."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import hub_requests
from hub_requests import logs, metrics, rank
from hubs import Serving, serving
from programs import environment, write
from recorded_runs import DEFINITION, points, record
from tachograph.hub.hub import Hub
from tachograph.runs.store import path_of
from terminals import Terminal, terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m[bold red]na\nme[/]\u202e\x9b5n ../ '; DROP TABLE <b>"
ABOUT = {"metric": "loss", "group": "training", "units": "nats", "x_units": "epoch"}


def tell(hub: Hub, number: int, first: int, *values: float, metric: str = "loss") -> None:
    """Let a hub receive points of a rank, whose x and numbers go on from ``first``."""
    sent = [(name, {**point, "x": point["x"] + first}) for name, point in points(values, metric, group="training")]
    events = (DEFINITION, ABOUT), *sent
    hub.receive_logs(logs(rank(number, run="job"), *events, stream=f"s{number}", first=2 * first + 1))
    hub.tick()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Serving]:
    """Return a hub that has received points of two ranks."""
    with serving(tmp_path / "store") as found:
        tell(found.hub, 0, 0, 3.5, 2.5)
        tell(found.hub, 1, 0, 3.5, 1.5)
        yield found


def left(screen: Terminal) -> None:
    """Check that a terminal is as it was before."""
    assert not screen.alternate
    assert screen.cursor
    assert screen.echoes()


def test_the_screen_follows_a_run(tmp_path: Path, hub: Serving) -> None:
    """What is recorded while the screen is open appears on it, and ``q`` leaves the terminal as it was."""
    with terminal(tmp_path, "top", "--url", hub.url, "--interval", "0.2") as screen:
        shown = screen.wait("training / loss", "1.5", "2.5", "nats", "1 epoch")
        assert screen.alternate
        assert not screen.cursor
        assert shown.startswith("job ")
        tell(hub.hub, 0, 10, 0.625)
        tell(hub.hub, 1, 10, 0.125)
        screen.wait("0.125", "0.375", "0.625", "10 epoch")
        tell(hub.hub, 0, 20, 9.75, metric="new")
        screen.wait("training / new", "9.75")
        hub.hub.receive_logs(logs(rank(0, run="job"), ("checkpoint", {"step": 3}), stream="s0", first=900))
        screen.wait("EVENTS", "checkpoint", "step=3")
        tell(hub.hub, 1, 1000, *(place / 1000 for place in range(700)))  # more than a stream tells at once
        screen.wait("0.699", "1,699 epoch")
        screen.press(b"q")
        assert screen.end() == 0
        left(screen)


def test_what_is_lost_shows(tmp_path: Path, hub: Serving) -> None:
    """The head says how many points are lost, and a table their reasons and destinations, as soon as the hub knows."""
    counts = {("queue_full", "journal"): 1200, ("no_number", "registry"): 34}
    with terminal(tmp_path, "top", "--url", hub.url, "--interval", "0.2") as screen:
        screen.wait("training / loss", "1.5")
        sent = [
            hub_requests.number(
                "tachograph.dropped", lost, kind="counter", attributes={"reason": reason, "destination": destination}
            )
            for (reason, destination), lost in counts.items()
        ]
        hub.hub.receive_metrics(metrics(rank(0, run="job"), *sent, scope="tachograph"))
        hub.hub.kept()  # saved, as it is every five seconds
        shown = screen.wait("1234 points lost", "LOST", "queue_full", "journal", "1,200", "no_number", "34", timeout=40)
        assert "dropped" not in shown
        screen.press(b"q")
        assert screen.end() == 0


LONG = """
import sys, time
from pathlib import Path
import tachograph

loss = tachograph.Metric("loss")
stop = Path(sys.argv[1])

@tachograph.prof
def step(number):
    time.sleep(0.05)
    if number % 10 == 9:
        raise ValueError(number)

for number in tachograph.progress(range(100_000), "steps"):
    try:
        step(number)
    except ValueError:
        pass
    loss.record(number)
    tachograph.put_metric("load.duration.ms", 20, "train")
    if stop.exists():
        break
"""


def test_a_job_is_watched_to_its_end(tmp_path: Path) -> None:
    """Under ``tachograph run`` progress, functions, durations and the end of the job show without being asked for."""
    stop = tmp_path / "stop"
    program = write(tmp_path, LONG)
    line = [sys.executable, "-m", "tachograph", "run", "--run-id", "job", "--port", "0", "--linger", "60"]
    job = subprocess.Popen(
        [*line, "--", sys.executable, str(program), str(stop)],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    with job:
        try:
            assert job.stderr is not None
            url = re.findall(r"http://127\.0\.0\.1:\d+", job.stderr.readline())[0]
            with terminal(tmp_path, "top", "--url", url, "--interval", "0.2") as screen:
                screen.wait("\u25cf running", "PROGRESS", "steps", "of 100,000")
                screen.wait("METRIC", "FUNCTION", "__main__.step", "ValueError", "/s")
                screen.wait("train / load.duration", "20 ms", timeout=40)
                stop.touch()
                screen.wait("\u25cf finished", "tachograph.process.end", "reason=exit")
                screen.press(b"q")
                assert screen.end() == 0
        finally:
            while job.poll() is None:  # a signal that comes before the job has ended is the job's, and ends no linger
                job.send_signal(signal.SIGINT)
                time.sleep(0.5)


def test_a_store_is_followed_without_a_hub_to_ask(tmp_path: Path, hub: Serving) -> None:
    """With ``--store`` the screen shows what a hub writes into it, while it does."""
    with terminal(tmp_path, "top", "--store", str(tmp_path / "store"), "--interval", "0.2") as screen:
        screen.wait("training / loss", "1.5", "2.5")
        tell(hub.hub, 0, 10, 0.625)
        tell(hub.hub, 1, 10, 0.125)
        screen.wait("0.125", "0.375", "0.625")


def test_a_hub_that_goes_away_comes_back(tmp_path: Path) -> None:
    """The screen keeps what it knows, says that the hub is away, and goes on by itself when it is there again."""
    first = ExitStack()
    found = first.enter_context(serving(tmp_path / "store"))
    port = int(found.url.rpartition(":")[2])
    with terminal(tmp_path, "top", "--url", found.url, "job", "--interval", "0.2") as screen:
        with first:
            tell(found.hub, 0, 0, 3.5)
            screen.wait("3.5")
        assert "3.5" in screen.wait("trying again")
        with serving(tmp_path / "store", port=port) as second:
            tell(second.hub, 0, 10, 0.75)
            screen.wait("0.75", absent="trying again")
            screen.press(b"q")
            assert screen.end() == 0


def test_a_hub_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """Where nothing answers, the screen says so in words, and does not end."""
    with terminal(tmp_path, "top", "--url", "http://127.0.0.1:1") as screen:
        screen.wait("the hub at http://127.0.0.1:1 does not answer", "trying again")
        screen.press(b"q")
        assert screen.end() == 0


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "SIGHUP"])
def test_whatever_ends_it_leaves_the_terminal_as_it_was(tmp_path: Path, how: str) -> None:
    """Ctrl-C and signals end it without a trace."""
    record(tmp_path / "store", "job", *points([1.25]))
    with terminal(tmp_path, "top", "--store", str(tmp_path / "store")) as screen:
        screen.wait("1.25")
        if how == "Ctrl-C":
            screen.press(b"\x03")
        else:
            screen.process.send_signal(getattr(signal, how))
        assert screen.end() == 0
        left(screen)
        assert "Traceback" not in screen.screen


def test_it_can_be_suspended(tmp_path: Path) -> None:
    """Ctrl-Z gives the terminal back, and ``fg`` takes it again."""
    record(tmp_path / "store", "job", *points([1.25]))
    with terminal(tmp_path, "top", "--store", str(tmp_path / "store")) as screen:
        screen.wait("1.25")
        screen.process.send_signal(signal.SIGTSTP)
        deadline = time.monotonic() + 10
        while (screen.alternate or not screen.echoes()) and time.monotonic() < deadline:
            screen._read(0.1)
        left(screen)
        os.waitid(os.P_PID, screen.process.pid, os.WSTOPPED)  # it gives the terminal back first
        screen.process.send_signal(signal.SIGCONT)
        screen.wait("1.25")
        assert screen.alternate
        screen.press(b"q")
        assert screen.end() == 0


def test_keys_scroll_and_change_what_is_shown(tmp_path: Path) -> None:
    """Arrows, PageDown, End and Tab scroll, ``r`` gives each rank a row, and a resized terminal is drawn anew."""
    for number in range(3):
        sent = [each for metric in range(60) for each in points([metric + number / 4], f"metric {metric:02}")]
        record(tmp_path / "store", "job", *sent, ("checkpoint", {"step": 3}), number=number)
    with terminal(tmp_path, "top", "--store", str(tmp_path / "store"), lines=20) as screen:
        shown = screen.wait("METRIC", "MEDIAN", "metric 00", "lines 1 to")
        assert "metric 30" not in shown
        screen.press(b"\x1b[B\x1bOB")
        screen.wait("lines 3 to", absent="metric 00")
        screen.press(b"\x1b[A")
        screen.wait("lines 2 to", "metric 00")
        screen.press(b"\x1b[6~")
        screen.wait("metric 14", absent="metric 00")
        screen.press(b"\x1b[5~\x1b[5~")
        screen.wait("metric 00")
        screen.press(b"\t")
        screen.wait("EVENTS", "checkpoint")
        screen.press(b"\x1b[H")
        screen.wait("metric 00", "0.25")
        screen.press(b"r")
        screen.wait("RANK", "metric 00", absent="MEDIAN")
        screen.press(b"r")
        screen.wait("MEDIAN")
        screen.resize(50, 80)
        shown = screen.wait("metric 59")
        assert max(map(len, shown.splitlines())) <= 50
        screen.resize(12, 3)
        screen.press(b"q")
        assert screen.end() == 0


def test_keys_filter_and_sort_metrics(tmp_path: Path) -> None:
    """``/`` takes a filter, points at a character that it cannot read, and Esc leaves it; ``s`` changes the order."""
    record(tmp_path / "store", "job", *points([1.0, 2.0], "accuracy"), *points([3.0, 5.0]), *points([7.0], "zeal"))
    with terminal(tmp_path, "top", "--store", str(tmp_path / "store"), lines=30) as screen:
        screen.wait("METRIC", "accuracy", "loss", "zeal")
        screen.press(b"/l(o")
        screen.wait("/l(o", "unterminated subpattern at character 2")
        screen.press(b"\n")
        screen.wait("/l(o")
        screen.press(b"\x7f\x7fo\n")
        screen.wait("filter lo", "loss", absent="accuracy")
        screen.press(b"/\x15zea")
        screen.wait("zeal", absent="loss")
        screen.press(b"\x1b")
        screen.wait("filter lo", "loss", absent="zeal")
        screen.press(b"/\x15\n")
        screen.wait("accuracy", "zeal")
        screen.press(b"ss")
        shown = screen.wait("sorted by value")
        assert [shown.index(name) for name in ("zeal", "loss", "accuracy")] == sorted(
            shown.index(name) for name in ("zeal", "loss", "accuracy")
        )
        screen.press(b"q")
        assert screen.end() == 0
        left(screen)


def test_another_run_can_be_chosen(tmp_path: Path) -> None:
    """``l`` lists the runs of a store and of a hub; Enter shows the one that is marked, Esc the one before."""
    store = tmp_path / "store"
    record(store, "early", *points([1.25]))
    record(store, "late", *points([2.75]), day=1)
    with serving(store) as found:
        for source in (("--url", found.url), ("--store", str(store))):
            with terminal(tmp_path, "top", *source, "late", "--interval", "0.2") as screen:
                screen.wait("2.75")
                screen.press(b"l")
                screen.wait("RUNS", "early", "> ", "late")
                screen.press(b"\x1b")
                screen.wait("2.75", absent="RUNS")
                screen.press(b"l")
                screen.wait("RUNS", "early")
                screen.press(b"G\n")
                assert screen.wait("1.25", absent="RUNS").startswith("early ")
                screen.press(b"q")
                assert screen.end() == 0


def test_plots_fill_the_lines_that_are_free(tmp_path: Path) -> None:
    """Metrics are plotted below the tables, down to the last line but two; a small terminal has none."""
    record(tmp_path / "store", "job", *points([x * 0.5 for x in range(50)]), *points([1.0, math.nan, 2.0], "odd"))
    with terminal(tmp_path, "top", "--store", str(tmp_path / "store"), columns=130, lines=40) as screen:
        screen.wait("loss  24.5", "odd  2")
        while screen._read(0.5):  # the rest of the drawing
            pass
        shown = screen.screen.splitlines()
        assert len(shown) == 40
        assert max(map(len, shown)) <= 130
        assert any("\u2801" <= letter <= "\u28ff" for letter in shown[-3])
        assert "\u00d7" in shown[-3]
        screen.resize(80, 12)
        screen.wait("loss", absent="loss  24.5")
        screen.press(b"q")
        assert screen.end() == 0


def test_names_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    """Escape sequences, markup and the like in names are shown as they are spelled, and nothing else happens."""
    about = {"metric": HOSTILE, "group": HOSTILE, "units": HOSTILE, "x_units": HOSTILE}
    sent = points([math.nan, 2.75], HOSTILE, group=HOSTILE)
    record(tmp_path / "store", HOSTILE, (DEFINITION, about), *sent, (HOSTILE, {HOSTILE: HOSTILE, "state": HOSTILE}))
    with serving(tmp_path / "store") as found:
        for source in (("--url", found.url), ("--store", str(tmp_path / "store"))):
            with terminal(tmp_path, "top", *source, HOSTILE, columns=400) as screen:
                shown = screen.wait("2.75", "EVENTS", r"\x1b]0;owned\x07\x1b[2J")
                assert r"\x1b[31m[bold red]na\nme[/]\u202e\x9b5n ../ '; DROP TABLE <b>" in shown
                screen.press(b"q")
                assert screen.end() == 0


def test_a_run_that_is_deleted_meanwhile_is_missed_in_words(tmp_path: Path) -> None:
    """The screen keeps what it has of a run whose file is gone, says so, and shows it when it is there again."""
    store = tmp_path / "store"
    record(store, "job", *points([1.25]))
    with terminal(tmp_path, "top", "--store", str(store), "job", "--interval", "0.2", columns=200) as screen:
        screen.wait("1.25")
        path_of(store, "job").rename(store / "elsewhere")
        screen.wait("1.25", "trying again")
        (store / "elsewhere").rename(path_of(store, "job"))
        screen.wait("1.25", absent="trying again")


def test_a_file_that_is_overwritten_does_not_end_the_screen(tmp_path: Path) -> None:
    """A file that is none any more, and then is one again, leaves the screen as it is."""
    store = tmp_path / "store"
    record(store, "job", *points([1.25]))
    whole = path_of(store, "job").read_bytes()
    with terminal(tmp_path, "top", "--store", str(store), "--interval", "0.2") as screen:
        screen.wait("1.25")
        path_of(store, "job").write_bytes(b"no database" * 1000)
        screen.wait("1.25", "trying again")
        path_of(store, "job").write_bytes(whole)
        screen.wait("1.25", absent="trying again")


def test_an_unknown_run_ends_it_in_words(tmp_path: Path) -> None:
    """Nobody waits before a screen for a run that does not exist."""
    record(tmp_path / "store", "job", *points([1.25]))
    with serving(tmp_path / "store") as found:
        for source in (("--url", found.url), ("--store", str(tmp_path / "store"))):
            with terminal(tmp_path, "top", *source, "jib") as screen:
                assert screen.end() == 2
                left(screen)
                assert "there is no run 'jib'" in screen.screen
                assert "did you mean 'job'?" in screen.screen
