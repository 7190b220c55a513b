"""``tachograph top --once``: what it prints of a run is what was recorded."""

from __future__ import annotations

import http.server
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from hub_requests import Clock, histogram, logs, metrics, number, rank
from hubs import command, serving
from programs import environment
from recorded_runs import DEFINITION, Recorded, points, record, record_histograms, spoil
from studio import record as record_program
from tachograph import runs
from tachograph.cli import main
from tachograph.cli.top.legible import shown_number
from tachograph.hub.hub import Hub
from tachograph.identity.extra import install_command
from tachograph.runs.store import run_path

SECRET = "a-token"  # noqa: S105 - of a test's own hub
TIMES = "\u00d7"
BLOCKS = re.compile(f"[▁▂▃▄▅▆▇█{TIMES}]+")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what is printed wide enough for every column."""
    monkeypatch.setenv("COLUMNS", "160")


def top(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Return what the command prints; where it fails, what it says about that."""
    assert main(["top", "--once", *arguments]) == code
    printed = capsys.readouterr()
    assert (printed.err if code == 0 else printed.out) == ""
    return printed.out if code == 0 else printed.err


def line(printed: str, beginning: str) -> list[str]:
    """Return the cells of the line that begins so."""
    (found,) = [each for each in printed.splitlines() if each.startswith(beginning)]
    return found.removeprefix(beginning).split()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a run of three ranks."""
    about = {"metric": "loss", "group": "training", "scale": "loss", "units": "nats", "x_units": "epoch"}
    for place, values in enumerate(([4.0, 2.5], [3.0, 1.25, 0.5], [9.0, math.nan])):
        sent = points(values, group="training", branch=0)
        record(tmp_path, "a/run", (DEFINITION, about), *sent, *points([1000 + place], "speed"), number=place)
    return tmp_path


def test_the_newest_values_of_all_ranks_are_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A metric has the smallest, the middle and the largest of its ranks' newest values, its rank, units, x, points."""
    printed = top(capsys, "--store", str(store))
    assert "3 ranks" in printed
    cells = line(printed, "training / loss  NaN on rank 2")
    assert cells[:5] == ["0.5", "1.5", "2.5", "0", "nats"]
    assert cells[-4:] == ["2", "epoch", "-", "7"]
    assert line(printed, "speed")[:4] == ["1,000", "1,001", "1,002", "2"]


def test_what_went_wrong_comes_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Above all tables are the faults of the run, each with its rank and its place."""
    printed = top(capsys, "--store", str(store))
    assert line(printed, "loss: first NaN")[-3:-1] == ["2", "1"]
    assert printed.index("PROBLEM") < printed.index("METRIC")


def test_a_filter_and_an_order_choose_metrics(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--filter`` takes a text or a regular expression of any case, ``--sort`` an order of the metrics."""
    ordered = top(capsys, "--store", str(store), "--sort", "name")
    assert ordered.index("training / loss ") < ordered.index("speed ")
    by_value = top(capsys, "--store", str(store), "--sort", "value", "--filter", "^SPE|loss")
    assert by_value.index("training / loss ") < by_value.index("speed ")  # it has a NaN
    assert "training / loss " not in top(capsys, "--store", str(store), "--filter", "speed")


def test_a_filter_that_cannot_be_read_is_marked(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says why a filter is none, and points at the character."""
    said = top(capsys, "--store", str(store), "--filter", "lo(ss", code=2)
    assert "missing ), unterminated subpattern at character 3" in said
    *_, shown, mark = said.splitlines()
    assert shown[mark.index("^")] == "("


def test_each_rank_can_have_a_row(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--ranks`` shows each rank's newest value, what is not finite as such, and its newest points as a curve."""
    printed = top(capsys, "--store", str(store), "--ranks").splitlines()
    (first,) = [place for place, each in enumerate(printed) if each.startswith("training / loss")]
    rows = [each.split()[-8:] for each in printed[first : first + 3]]
    assert [row[-8:-5] for row in rows] == [["0", "2.5", "nats"], ["1", "0.5", "nats"], ["2", "NaN", "nats"]]
    assert [row[-5] for row in rows] == ["█▁", "█▃▁", f"▄{TIMES}"]


def test_bars_of_ranks_are_the_slowest_first_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a row for each rank a terminal of 80 columns says whose bar it is, too."""
    monkeypatch.setenv("COLUMNS", "80")
    loop = {"metric": "steps", "units": "item", "lower": 0.0, "upper": 200.0, "progress": True}
    for place, many in enumerate((150.0, 120.0, 140.0)):
        told = [(DEFINITION, loop), *points([many], "steps", total=200, rate=2.0)]
        record(tmp_path, "run", *told, number=place)
    bars = [each for each in top(capsys, "--store", str(tmp_path), "--ranks").splitlines() if each.startswith("steps")]
    assert [each[-6:] for each in bars] == ["rank 1", "rank 2", "rank 0"]


@pytest.mark.process
def test_a_hub_and_its_store_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a real run the hub's API and the file itself give the same numbers, and they are what was recorded."""
    record_program(tmp_path, "real")
    recorded = runs.open("real", tmp_path / "store")
    with command(tmp_path) as hub:
        served = top(capsys, "--url", hub.url, "real")
        hub.process.terminate()
        hub.end()
    stored = top(capsys, "real", "--store", str(tmp_path / "store"))
    plain = [re.sub(" +", " ", BLOCKS.sub("", each)) for each in (served, stored)]
    assert plain[0].splitlines()[2:] == plain[1].splitlines()[2:]
    for metric in ("loss", "accuracy", "raw"):
        name = f"training / {metric}" if metric != "raw" else metric
        *_, last = recorded.points(metric)
        cells = line(stored, name)
        assert cells[0] == shown_number(last.value)
        assert shown_number(last.x) in cells
        assert cells[-1] == str(len(list(recorded.points(metric))))
    assert line(stored, "loops / epochs  __main__.train")[1:6] == ["100", "%", "3", "of", "3"]
    function = line(stored, "__main__.step")
    assert function[0] == "30"
    assert function[-2:] == ["3", "ValueError"]


@pytest.mark.process
@pytest.mark.parametrize(("value", "shown"), [(math.nan, "NaN"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_bar_whose_value_is_no_number_is_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float, shown: str
) -> None:
    """JSON spells out what is not finite: read from a hub, a bar has what the file has."""
    definition = (DEFINITION, {"metric": "epochs", "progress": True, "upper": 10.0})
    record(tmp_path, "run", definition, *points([1.0, value], "epochs"))
    with serving(tmp_path) as hub:
        served = top(capsys, "--url", hub.url, "run")
    stored = top(capsys, "run", "--store", str(tmp_path))
    for printed in (served, stored):
        cells = line(printed, "epochs")
        assert cells[cells.index("%") + 1 :][:3] == [shown, "of", "10"]


@pytest.mark.process
def test_a_resumed_run_is_told_as_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where x went back, or the process was started anew, the newest value counts, not that with the largest x."""
    hub = Hub(tmp_path, run="run")
    first = points([float(x) for x in range(1000)], branch=0)
    again = [(name, {**each, "x": each["x"] + 500, "branch": 1}) for name, each in points([0.25, 0.75])]
    hub.receive_logs(logs(rank(0), *first, *again, stream="a"))
    hub.receive_logs(logs(rank(1), *first, stream="b"))
    hub.receive_logs(logs(rank(1, pid=300, restart=1), *points([0.125], branch=0), stream="c"))
    hub.close()
    with serving(tmp_path) as served:
        for source in (("--url", served.url), ("--store", str(tmp_path))):
            cells = line(top(capsys, *source, "run"), "loss")
            assert [cells[0], cells[2]] == ["0.125", "0.75"]
            assert cells[-1] == "2003"


def test_the_slowest_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Functions and durations say which rank is slowest, and how many times the median its mean is."""
    clock = Clock()
    hub = Hub(tmp_path, clock=clock)
    for place, seconds in enumerate((1.0, 1.0, 4.0)):
        name = {"code.function.name": "step"}
        hub.receive_metrics(
            metrics(
                rank(place),
                histogram("function.duration", [1, 0, 1], total=2 * seconds, attributes=name),
                number("function.calls", 2, kind="counter", attributes={**name, "outcome": "success"}),
                histogram("load", [1, 0, 0], total=1000 * seconds, unit="ms"),
                histogram("dl.step.phase.duration", [1, 0, 0], total=seconds, attributes={"dl.step.phase": "forward"}),
                histogram("dl.step.phase.duration", [1, 0, 0], total=0.5, attributes={"dl.step.phase": "data_wait"}),
            )
        )
    hub.close()
    printed = top(capsys, "--store", str(tmp_path))
    assert line(printed, "step")[:3] == ["6", "2", "s"]
    assert line(printed, "step")[-3:] == ["rank", "2", f"{TIMES}4.00"]
    assert line(printed, "train / phase data_wait")[:2] == ["500", "ms"]
    assert line(printed, "train / phase forward") == [
        "2",
        "s",
        "-",
        "-",
        "1",
        "s",
        "4",
        "s",
        "rank",
        "2",
        f"{TIMES}4.00",
    ]
    assert line(printed, "train / load") == ["2", "s", "-", "-", "1", "s", "4", "s", "rank", "2", f"{TIMES}4.00"]


@pytest.mark.parametrize("length", [40, 160])
def test_long_names_leave_the_state_and_the_end_of_the_path(
    tmp_path: Path, length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long the names of the run and of the store, the state and both ends of each are on the screen."""
    deep = tmp_path.joinpath(*["a-folder-of-a-deep-tree" for _ in range(length // 20)], "store")
    run = "begin" + "-" * (length - 20) + "end"
    record(deep, run, *points([1.0]))
    state, where, *_ = top(capsys, "--store", str(deep)).splitlines()
    assert "● unknown" in state
    assert state.startswith("begin")
    assert "end " in state
    assert where.startswith(str(tmp_path)[:10])
    assert where.endswith("/store")
    assert max(map(len, (state, where))) <= 160


@pytest.mark.process
def test_percentiles_of_durations_are_those_of_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of functions and of the last ten seconds p50 and p99 are within 2.2 %, over all ranks, from hub and store."""
    ranks = [[0.0104] * 90 + [0.0107] * 10, [0.0104] * 100, [0.0104] * 100, [0.0104 + 0.22] * 2]
    name = {"code.function.name": "step", "outcome": "success"}
    both = [Recorded("step.duration", [[5.0] * 50, values], place) for place, values in enumerate(ranks)]
    both += [each._replace(name="function.duration", attributes=name) for each in both]
    record_histograms(tmp_path, "run", *both)
    with serving(tmp_path) as hub:
        for source in (("--url", hub.url), ("--store", str(tmp_path))):
            printed = top(capsys, *source, "run")
            assert "±" not in printed
            cells = line(printed, "training / step.duration")
            assert [float(each) for each in cells[2:6:2]] == pytest.approx([10.4, 10.7], rel=0.022)
            cells = line(printed, "step")
            assert [float(each) for each in cells[3:7:2]] == pytest.approx([10.4, 5], rel=0.022)
            assert cells[4:7:2] == ["ms", "s"]
            assert "rough" not in printed


def test_percentiles_that_are_rough_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where quantiles may be more than 2.2 % off, the column says by how much."""
    name = {"code.function.name": "step", "outcome": "success"}
    values = [0.011] * 50
    function = Recorded("function.duration", [values], attributes=name)
    coarse = Recorded("step.duration", [[0.01 * 1.5**place for place in range(20)]], most=20)
    record_histograms(tmp_path, "a", function._replace(exact=False))
    record_histograms(tmp_path, "b", function, coarse)
    printed = top(capsys, "--store", str(tmp_path), "a")
    assert "P50 ±148%" in printed
    assert line(printed, "step")[3:5] == ["17.5", "ms"]
    printed = top(capsys, "--store", str(tmp_path), "b")
    title, other = (each for each in printed.splitlines() if "P50" in each)
    assert "±" not in title
    assert "P50 ±41%" in other


def test_what_went_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Restarts, lost ranks, what was dropped, and events, but no windows of Stats, are told."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {"interval": 1.0}), stream="a"))
    lost = {"reason": "queue_full", "destination": "otlp"}
    hub.receive_metrics(
        metrics(rank(0), number("tachograph.dropped", 7, kind="counter", attributes=lost), scope="tachograph")
    )
    clock.forward(60)
    hub.receive_logs(
        logs(
            rank(0, pid=200, restart=1),
            ("tachograph.process.start", {"interval": 1.0}),
            ("torch.monitor.Stat", {"wait.mean": 1.0}),
            ("torchelastic.worker.status", {"state": "FAILED", "global_rank": 0}),
            stream="b",
        )
    )
    hub.close()
    printed = top(capsys, "--store", str(tmp_path))
    head = printed.splitlines()[0]
    assert "1 restart" in head
    assert "1 lost: rank 0" in head
    assert "7 points lost" in head
    assert line(printed, "queue_full") == ["otlp", "7"]
    assert "state=FAILED" in printed
    assert "torch.monitor.Stat" not in printed


def test_names_are_only_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that a run says reaches the terminal as anything but text; markup stays as it is."""
    name = "\x1b[2J[bold red]x[/] :smile: \u202e\x00\x7f\x9b \ud800"
    record(tmp_path, "run", *points([1.0], name.replace("\ud800", "")), (name.replace("\ud800", ""), {"a\nb": "c\rd"}))
    printed = top(capsys, "--store", str(tmp_path))
    assert all(each.isprintable() for each in printed.split("\n"))
    assert r"\x1b[2J[bold red]x[/] :smile: \u202e\x00\x7f\x9b" in printed
    assert r"a\nb=c\rd" in printed


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the address of a server that is no hub; what it answers may be said by the test."""
    body: bytes = getattr(request, "param", b"<p>welcome")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/runs" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.process
def test_once_the_job_has_ended_the_store_is_read(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a hub that answers, and without an address, the run is that of the usual store."""
    monkeypatch.setattr("tachograph.cli.hub_client.DEFAULT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("TACHOGRAPH_HUB", raising=False)
    monkeypatch.setenv("TACHOGRAPH_STORE", str(store))
    assert top(capsys) == top(capsys, "--store", str(store))


@pytest.mark.process
@pytest.mark.parametrize("stranger", [b"a collector"], indirect=True)
def test_another_server_on_the_port_of_a_hub_is_passed_over(
    store: Path, stranger: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that listens on 4318 does not keep the newest run of the store from being shown."""
    monkeypatch.setattr("tachograph.cli.hub_client.DEFAULT_URL", stranger)
    monkeypatch.delenv("TACHOGRAPH_HUB", raising=False)
    monkeypatch.setenv("TACHOGRAPH_STORE", str(store))
    assert top(capsys) == top(capsys, "--store", str(store))


@pytest.mark.process
def test_what_cannot_be_shown_is_said_in_words(
    store: Path, tmp_path: Path, stranger: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown run, no run, no hub, no address: each has its words and its exit code."""
    here = ("--store", str(store))
    assert "there is no run 'a/ran' in" in top(capsys, *here, "a/ran", code=2)
    assert "there is no run in" in top(capsys, "--store", str(tmp_path / "none"), code=1)
    (tmp_path / "file").write_text("")
    for run in ((), ("x")):
        assert "Not a directory" in top(capsys, "--store", str(tmp_path / "file"), *run, code=1)
    assert "does not answer: Connection refused; to watch a run that has ended, use --store " in top(
        capsys, "--url", "http://127.0.0.1:1", code=1
    )
    assert "such as http://127.0.0.1:4318, not 'ftp://x'" in top(capsys, "--url", "ftp://x", code=2)
    assert "not both" in top(capsys, "--url", "http://127.0.0.1:1", *here, code=2)
    assert "is not a Tachograph hub" in top(capsys, "--url", stranger, code=2)
    assert "is not a Tachograph hub" in top(capsys, "--url", stranger, "x", code=2)
    with serving(tmp_path / "other") as hub:
        assert "there is no run 'x'" in top(capsys, "--url", hub.url, "x", code=2)
        record(tmp_path / "other", "x", *points([6.5]))
        assert "6.5" in top(capsys, "--url", hub.url)
    for given in ("0", "x", "-1", "inf"):
        with pytest.raises(SystemExit):
            main(["top", "--interval", given])


@pytest.mark.process
@pytest.mark.parametrize("stranger", [b'{"runs": [{}]}', b"[1]", b'"runs"', b"{}"], indirect=True)
def test_answers_of_another_kind_are_no_harm(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What another version, or another program, answers with is said to be not understood."""
    assert "unexpected response" in top(capsys, "--url", stranger, code=1)


@pytest.mark.process
@pytest.mark.parametrize("stranger", [b"[" * 100_000], indirect=True)
def test_an_answer_that_is_nested_too_deeply_is_no_harm(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that JSON's decoder gives up on is none of a hub."""
    assert "is not a Tachograph hub" in top(capsys, "--url", stranger, code=2)


@pytest.mark.process
def test_the_environment_names_the_hub_and_its_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within ``tachograph run`` the job's hub is asked by default, else that of TACHOGRAPH_HUB; with the token."""
    record(tmp_path, "x", *points([6.5]))
    with serving(tmp_path, token=SECRET) as hub:
        assert "set TACHOGRAPH_HUB_TOKEN" in top(capsys, "--url", hub.url, code=2)
        monkeypatch.setenv("TACHOGRAPH_HUB_TOKEN", SECRET)
        monkeypatch.setenv("TACHOGRAPH_HUB", hub.url.removeprefix("http://"))
        assert "6.5" in top(capsys)
        monkeypatch.setenv("TACHOGRAPH_HUB", "http://127.0.0.1:9")
        monkeypatch.setenv("TACHOGRAPH__HUB", hub.url)
        assert "6.5" in top(capsys)


@pytest.mark.process
def test_a_damaged_run_is_shown_as_far_as_it_can_be_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is damaged is said; a file that is none at all is said, too."""
    path = run_path(store, "a/run")
    spoil(path, lambda page: b"speed" in page and page[0] == 13)
    assert "damaged: " in top(capsys, "--store", str(store))
    path.write_bytes(b"no database" * 1000)
    assert "cannot read" in top(capsys, "--store", str(store), code=1)
    with serving(store) as hub:
        assert "cannot read" in top(capsys, "--url", hub.url, "a/run", code=1)


@pytest.mark.process
@pytest.mark.parametrize(("missing", "said"), [("rich", install_command("top")), ("starlette", "a/run")])
def test_it_needs_only_its_own_extra(store: Path, missing: str, said: str) -> None:
    """Without rich it says what to install; a store is read without what a hub needs."""
    program = f"import sys; sys.modules[{missing!r}] = None; import tachograph.cli; sys.exit(tachograph.cli.main())"
    line = [sys.executable, "-c", program, "top", "--once", "--store", str(store)]
    done = subprocess.run(line, env=environment(store), capture_output=True, text=True, timeout=60, check=False)
    assert said in done.stdout + done.stderr
    assert done.returncode == (2 if missing == "rich" else 0)


def test_a_run_with_nothing_in_it_is_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A metric that is defined and has no points is no row; a run without anything has its header."""
    record(tmp_path, "run", (DEFINITION, {"metric": "later", "group": "g"}))
    printed = top(capsys, "--store", str(tmp_path))
    assert printed.startswith("run ")
    assert "later" not in printed


@pytest.mark.process
def test_the_newest_event_is_found_among_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However many events a run has, the last ones are shown."""
    record(tmp_path, "run", *((f"event {place}", {"value": place}) for place in range(5000)))
    with serving(tmp_path) as hub:
        for source in (("--url", hub.url), ("--store", str(tmp_path))):
            printed = top(capsys, *source, "run")
            assert "event 4999" in printed
            assert "event 4988" in printed
            assert "event 4987" not in printed


def test_the_middle_value_is_the_median(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With an even number of finite values the middle is between the two."""
    assert line(top(capsys, "--store", str(store)), "training / loss  NaN on rank 2")[1] == f"{median([2.5, 0.5])}"
