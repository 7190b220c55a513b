"""Kills programs that log with other recorders, and with ours: ``python bench/attack/peers.py --rounds 20``.

A program logs a number each millisecond, and ends itself at a random moment: by SIGKILL, SIGTERM, ``os._exit``, or an
exception that nothing catches. A second later, when its helper processes have ended as well, each recorder's own reader
lists the numbers on the disk. Missing ones are reported in seconds of logging: the median and the most of all rounds.

wandb (offline) and trackio (local) are installed from PyPI into the environment ``--venv``, made where there is none.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from results import Results, arguments

PROGRAM = Path(__file__).with_name("peer_program.py")
# The last wandb whose own reader of its files comes with it is 0.29.
PEERS = ("wandb>=0.28,<0.30", "trackio>=0.43,<0.44")
HOWS = ("SIGKILL", "SIGTERM", "os._exit", "exception")
_SETTLED = 1.0  # seconds
_AT_ONCE = 3  # programs: they mostly wait
_TIME_LIMIT = 120.0
_TEMPORARY = "tachograph-peers-"


class Recorder(NamedTuple):
    """A recorder, and the way to run it.

    Attributes:
        title: as the table has it.
        name: as the program has it.
        python: the interpreter that has it.
        wrapper: a command that runs the program; ``{folder}`` in it is the store.
    """

    title: str
    name: str
    python: str
    wrapper: Sequence[str] = ()


class Unavailable(Exception):  # noqa: N818 - a finding
    """A recorder does not run here; the message says why."""


def main() -> int:
    """Kill, and return the exit status."""
    parser = arguments("peers")
    parser.add_argument("--rounds", type=int, default=20, help="programs an end and recorder (default %(default)s)")
    parser.add_argument(
        "--venv", type=Path, help="where wandb and trackio are, or are put (default: a temporary folder)"
    )
    parser.add_argument("--only", help="recorders whose names begin so")
    options = parser.parse_args()
    results = Results("peers", options.seed)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY) as made:
        peers = environment(options.venv or Path(made) / "venv")
        run = [sys.executable, "-m", "tachograph", "run", "--quiet", "--port", "0", "--run-id", "peer"]
        for recorder in (
            Recorder("TensorBoard, torch's SummaryWriter", "tensorboard", sys.executable),
            Recorder("wandb, offline", "wandb", peers),
            Recorder("trackio, local", "trackio", peers),
            Recorder("Tachograph, tachograph run", "tachograph", sys.executable, (*run, "--store", "{folder}", "--")),
            Recorder("Tachograph, start() with jsonl", "jsonl", sys.executable),
        ):
            if options.only is None or recorder.name.startswith(options.only):
                _kill_all(recorder, options.rounds, results)
    return results.end(options.out)


def environment(folder: Path) -> str:
    """Return the interpreter of an environment with the recorders that are no dependency of ours."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], stdout=subprocess.DEVNULL, check=False)
    return str(python)


def _kill_all(recorder: Recorder, rounds: int, results: Results) -> None:
    version = _version(recorder)
    for how in HOWS:
        row = results.row(f"{recorder.title}{version}: {how}")
        chance = random.Random(f"{results.seed} {recorder.name} {how}")
        moments = [chance.uniform(1.2, 2.7) for _ in range(rounds)]
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                lost = list(pool.map(partial(_killed, recorder, how), moments))
        except Unavailable as error:
            row.outcome = f"NOT TRIED: it does not run here: {error}"
            print(f"SKIPPED {row.attack}: {error}", flush=True)
            return
        row.tried = len(lost)
        row.outcome = f"lost: median {statistics.median(lost):.2f} s, at most {max(lost):.2f} s"
        print(f"{row.attack}: {row.outcome}", flush=True)


def _version(recorder: Recorder) -> str:
    package = {"jsonl": "", "tachograph": "", "tensorboard": "torch"}.get(recorder.name, recorder.name)
    code = f"from importlib.metadata import version; print(version({package!r}))"
    found = (
        subprocess.run([recorder.python, "-c", code], capture_output=True, text=True, check=False) if package else None
    )
    return f" {found.stdout.strip()}" if found is not None and found.returncode == 0 else ""


def _killed(recorder: Recorder, how: str, seconds: float) -> float:
    """Let one program end; return the seconds of logging that are missing.

    Raises:
        Unavailable: it did not come to log, or could not be read back.
    """
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, ignore_cleanup_errors=True) as name:
        folder, notes = Path(name) / "kept", Path(name) / "notes"
        folder.mkdir()
        environment = clean(folder)
        wrapper = [part.replace("{folder}", str(folder)) for part in recorder.wrapper]
        program = [*wrapper, recorder.python, str(PROGRAM), "log", recorder.name, folder, notes, how, str(seconds)]
        ended = subprocess.run(
            program, cwd=name, env=environment, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False
        )
        if not notes.exists():
            raise Unavailable(ended.stderr.strip().rpartition("\n")[2][:300] or f"exit status {ended.returncode}")
        time.sleep(_SETTLED)
        reader = [recorder.python, str(PROGRAM), "read", recorder.name, folder]
        said = subprocess.run(
            reader, cwd=name, env=environment, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False
        )
        kept = notes.read_bytes()
    if said.returncode:
        raise Unavailable(f"what it left cannot be read: {said.stderr.strip().rpartition(chr(10))[2][:300]}")
    times = [moment for (moment,) in struct.iter_unpack("<d", kept)]
    found = set(json.loads(said.stdout.splitlines()[-1]))
    missing = sum(number not in found for number in range(1, len(times) + 1))
    return missing / len(times) * (times[-1] - times[0])


def clean(folder: Path) -> Mapping[str, str]:
    """Return the environment of a program whose recorder keeps all in ``folder``, and asks no server."""
    prefixes = ("OTEL_", "TACHOGRAPH_", "WANDB_", "TRACKIO_", "HF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    local = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    return {**kept, **local, "TACHOGRAPH_STORE": str(folder), "TACHOGRAPH_SYSTEM_METRICS": "false"}


if __name__ == "__main__":
    if find_spec("tensorboard") is None:
        sys.exit("TensorBoard is missing: pip install tensorboard")
    sys.exit(main())
