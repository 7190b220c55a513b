"""The last event of a process, at receivers that are no hub of ours: its exception's type, and never the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from launches import base, events, run_program
from programs import run
from receivers import Receiver, receiving


def last_word(receiver: Receiver) -> tuple[str, str]:
    """Return the reason, and the type of the exception; the message has not arrived in any form."""
    assert not any(b"boom" in body for _, _, body in receiver.requests)
    assert "tachograph.process.failure" not in {event.name for event in events(receiver)}
    (end,) = [event for event in events(receiver) if event.name == "tachograph.process.end"]
    return end.attributes["reason"], end.attributes.get("error.type", "")


ENDINGS = {
    "an exception": ("raise ValueError('boom')", "exception", "ValueError"),
    "a hook of the program's own": (
        "sys.excepthook = lambda *_: print('caught')\nraise ValueError('boom')",
        *("exception", "ValueError"),
    ),
    "no hook": ("del sys.excepthook\nraise ValueError('boom')", "exception", "ValueError"),
    "Ctrl-C": ("raise KeyboardInterrupt", "sigint", "KeyboardInterrupt"),
    "an interactive session": ("sys.ps1 = 'In : '\nraise ValueError('boom')", "exit", ""),
    "an exception that was handled": (
        "try:\n    raise ValueError('boom')\nexcept ValueError:\n    pass",
        *("exit", ""),
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_reason_and_no_message(tmp_path: Path, ending: str) -> None:
    """No hook is replaced, and none is needed; the exception of a cell or a line does not end a session."""
    source, reason, kind = ENDINGS[ending]
    with receiving() as receiver:
        done = run_program(
            tmp_path,
            f"import sys, tachograph\ntachograph.put_metric('loss', 0.5)\n{source}",
            options=("--no-hub", "--endpoint", base(receiver)),
        )
        assert last_word(receiver) == (reason, kind)
    assert ("caught" in done.stdout) is ("own" in ending)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing(tmp_path: Path, method: str) -> None:
    """Its exception is told while it is on its way: it never reaches an except hook."""
    program = f"""
        import multiprocessing, os
        def work():
            os.environ["RANK"] = "1"
            import tachograph
            tachograph.put_metric("loss", 0.5)
            raise ValueError("boom")
        if __name__ == "__main__":
            child = multiprocessing.get_context("{method}").Process(target=work)
            child.start()
            child.join()
    """
    with receiving() as receiver:
        done = run_program(
            tmp_path, program, options=("--no-hub", "--endpoint", base(receiver)), TACHOGRAPH_HELPERS="true"
        )
        assert "ValueError: boom" in done.stderr
        assert "tachograph/pipeline" not in done.stderr  # its traceback is the program's own
        found = [event for event in events(receiver) if event.name == "tachograph.process.end"]
        told = {event.attributes["reason"]: event.attributes.get("error.type", "") for event in found}
        assert not any(b"boom" in body for _, _, body in receiver.requests)
    assert told == {"exit": "", "exception": "ValueError"}


def test_a_program_with_start_tells_other_receivers_nothing_of_itself(tmp_path: Path) -> None:
    """Begin, end and exception of a process with ``start()`` are for hubs of ours; the program's own events leave."""
    program = """
        import tachograph
        tachograph.start(metrics="otlp", logs="otlp")
        tachograph.put_metric("loss", 0.5)
        raise ValueError("boom")
    """
    with receiving() as receiver:
        done = run(tmp_path, program, OTEL_EXPORTER_OTLP_ENDPOINT=base(receiver))
        assert "boom" in done.stderr
        assert not any(b"boom" in body or b"tachograph.process" in body for _, _, body in receiver.requests)
        assert any(b"loss" in body for _, _, body in receiver.requests)
