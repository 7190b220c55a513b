"""OTLP's spool: what a receiver that is away does not take waits on the disk, and nobody's disk fills unasked."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import programs
from places import TESTS
from scripted import Fast, counts, scripted
from servers import free_port, wait_until
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.recording.registry import Registry

SECRET = "s3cr3t-t0k3n"  # noqa: S105 - it is what must not be found on the disk


def exporter(port: int, folder: Path, registry: Registry, *, run_id: str = "r", **more: Any) -> OtlpExporter:
    """Return an exporter of logs that does not dawdle, with its store in ``folder``."""
    where = f"http://user:{SECRET}@127.0.0.1:{port}/v1/logs"
    settings = OtlpSettings("logs", "http/protobuf", where, headers=(("authorization", SECRET),), timeout=1.0)
    how: dict[str, Any] = {"spool_limit": 2**20, "first_back_off": 0.01, **more}
    return OtlpExporter({"logs": settings}, registry, store=folder, run_id=run_id, **how)


def put(out: OtlpExporter, *numbers: int) -> None:
    """Queue a request with these numbers."""
    out.put("logs", b"\n".join(b"%d" % number for number in numbers), len(numbers))


def files(folder: Path) -> list[Path]:
    """Return the files that wait on the disk."""
    return sorted((folder / "spool").rglob("*.spool"))


def size(found: list[Path]) -> int:
    """Return the bytes of files, one of which may just have been deleted."""
    total = 0
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_ten_minutes_without_a_receiver_lose_nothing(tmp_path: Path) -> None:
    """What was recorded while the receiver was away arrives once it is back, once each, in order, and is not counted.

    The ten minutes are those of a clock that runs 300 times as fast.
    """
    registry, port, clock = Registry(), free_port(), Fast(300)
    out = exporter(port, tmp_path, registry, clock=clock, first_back_off=0.5)
    began = clock()
    number = 0
    while clock() - began < 600:
        put(out, number, number + 1)
        number += 2
        time.sleep(0.01)
    assert files(tmp_path) != []
    with scripted(port=port) as there:
        assert out.flush(60 * 300)
        out.close(5)
    assert there.numbers == list(range(number))
    assert counts(registry, "dropped") == counts(registry, "resent") == {}
    assert files(tmp_path) == []


def test_without_a_limit_nothing_is_on_the_disk(tmp_path: Path) -> None:
    """Where no limit is asked for nothing is kept, and what is not delivered at the end is counted as before."""
    registry = Registry()
    out = exporter(free_port(), tmp_path, registry, spool_limit=0)
    put(out, 1, 2, 3)
    time.sleep(0.3)
    out.close(0.2)
    assert counts(registry, "dropped") == {"shutdown": 3}
    assert list(tmp_path.iterdir()) == []


def test_the_disks_share_is_kept_to(tmp_path: Path) -> None:
    """Beyond the limit the oldest goes, and is counted: what arrives and what is counted is what was recorded."""
    registry, port = Registry(), free_port()
    out = exporter(port, tmp_path, registry, spool_limit=4_000)
    for number in range(0, 3000, 10):
        put(out, *range(number, number + 10))
    wait_until(lambda: not out.queues[0].waiting)
    wait_until(lambda: size(files(tmp_path)) <= 4_000)
    with scripted(port=port) as there:
        out.flush(20)
        out.close(5)
    lost = counts(registry, "dropped")
    assert set(lost) == {"spool_full"}
    assert there.numbers == list(range(lost["spool_full"], 3000))


def test_the_end_leaves_what_is_not_delivered_to_the_same_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was not delivered before the end is counted by nobody: a later process of the run sends it, no other run."""
    registry, port = Registry(), free_port()
    out = exporter(port, tmp_path, registry)
    put(out, 1, 2, 3)
    began = time.monotonic()
    out.close(0.3)
    assert time.monotonic() - began < 1.5
    assert counts(registry, "dropped") == {}
    assert "'tachograph resend'" in caplog.text
    with scripted(port=port) as there:
        stranger = exporter(port, tmp_path, registry, run_id="another")
        put(stranger, 9)
        assert stranger.flush(10)
        stranger.close(1)
        assert there.numbers == [9]
        same = exporter(port, tmp_path, registry)
        wait_until(lambda: not files(tmp_path))
        same.close(5)
    assert there.numbers == [9, 1, 2, 3]
    assert counts(registry, "dropped") == {}


_KILLED = """
    import sys, time
    sys.path[:0] = {folders!r}
    from pathlib import Path
    from test_otlp_spool import exporter, files, put
    from tachograph.recording.registry import Registry
    out = exporter({port}, Path("."), Registry())
    for number in range(0, 60, 2):
        put(out, number, number + 1)
    while not files(Path(".")) or out.queues[0].waiting:
        time.sleep(0.02)
    print("spooled", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_had_spooled_is_sent_by_the_next(tmp_path: Path) -> None:
    """After SIGKILL in the middle of a request the next process of the run sends the rest, and that request again.

    That one may have arrived, so it is counted: ``tachograph.resent``, which is no loss.
    """
    port = free_port()
    program = _KILLED.format(folders=[str(TESTS), str(Path(__file__).parent)], port=port)
    with subprocess.Popen(
        [sys.executable, str(programs.write(tmp_path, program))],
        cwd=tmp_path,
        env=programs.environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spooled\n"
        with scripted(["takes", "takes", "silent"], port) as there:
            wait_until(lambda: there.asked == 3)
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            assert there.numbers == [0, 1, 2, 3, 4, 5]
    registry = Registry()
    with scripted(port=port) as there:
        out = exporter(port, tmp_path, registry)
        wait_until(lambda: not files(tmp_path))
        out.close(5)
    assert there.numbers == list(range(4, 60))
    assert counts(registry, "resent") == {"otlp": 2}
    assert counts(registry, "dropped") == {}


def test_an_attempt_whose_answer_was_lost_is_counted_when_it_is_made_again(tmp_path: Path) -> None:
    """A request that was taken and not answered comes again: the doubles are counted, and nothing is lost."""
    registry = Registry()
    with scripted(["reset"]) as there:
        out = exporter(there.server_port, tmp_path, registry)
        put(out, 1, 2, 3)
        assert out.flush(10)
        out.close(1)
    assert there.numbers == [1, 2, 3, 1, 2, 3]
    assert counts(registry, "resent") == {"otlp": 3}
    assert counts(registry, "dropped") == {}


def test_what_was_on_its_way_at_the_end_is_counted_by_the_next(tmp_path: Path) -> None:
    """A request that the end has cut off may have arrived: the next process of the run, which sends it, counts it."""
    first, second = Registry(), Registry()
    with scripted(["silent"]) as there:
        out = exporter(there.server_port, tmp_path, first)
        put(out, 1, 2, 3)
        put(out, 4)
        wait_until(lambda: there.asked == 1)
        out.close(0.2)
        after = exporter(there.server_port, tmp_path, second)
        wait_until(lambda: not files(tmp_path))
        after.close(5)
        assert there.numbers == [1, 2, 3, 1, 2, 3, 4]
    assert (counts(first, "resent"), counts(second, "resent")) == ({}, {"otlp": 3})
    assert counts(first, "dropped") == counts(second, "dropped") == {}


def test_no_secret_is_on_the_disk(tmp_path: Path) -> None:
    """Neither a file of the spool nor its name holds a header or a user, and only its owner can read it."""
    out = exporter(free_port(), tmp_path, Registry())
    put(out, 1, 2, 3)
    out.close(0.2)
    (file,) = files(tmp_path)
    assert SECRET.encode() not in file.read_bytes()
    assert SECRET not in str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in list(file.parents)[:3])


def test_a_pipeline_has_it_where_the_variable_is_set(tmp_path: Path) -> None:
    """With TACHOGRAPH_SPOOL_LIMIT what a program recorded waits for its receiver; without it, it does not."""
    program = """
        import tachograph
        with tachograph.start(logs="otlp", run_id="r"):
            tachograph.Metric("loss", group="g", throttle=None).record(0.5)
    """
    for limit, kept in (("1000000", True), ("", False), ("0", False)):
        folder = tmp_path / f"limit {limit}"
        folder.mkdir()
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "TACHOGRAPH_SPOOL_LIMIT": limit}
        done = programs.run(folder, program, **where)
        assert done.returncode == 0, done.stderr
        assert bool(files(folder / "store")) == kept
