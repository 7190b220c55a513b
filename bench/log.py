"""``log()`` of five values beside other trackers: the call, and the end of the program.

``python bench/log.py [--venv FOLDER]``. Each round runs one program a tracker, in turn, so that noise falls on all of
them: it logs a dictionary of five floats with a step, so many times, and ends as its documentation says. Printed are
the medians of all rounds: microseconds a call, and seconds from the last call to the end of the process. wandb
(offline) and trackio (local) are installed from PyPI into the environment ``--venv``, made where there is none; one
that does not run is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "attack"))

from race import Goal, report

from peers import clean, environment

TIME_LIMIT = 300.0
_PROGRAM = """
import json, sys, time
from pathlib import Path
name, folder, calls = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
end = None
if name == "tachograph":
    from tachograph import log
elif name == "wandb":
    import wandb
    run = wandb.init(mode="offline", project="p", dir=folder, settings=wandb.Settings(console="off", silent=True))
    def log(values, step): run.log(values, step=step)
    end = run.finish
elif name == "trackio":
    import trackio
    trackio.init(project="p", name="p")
    def log(values, step): trackio.log(values, step=step)
    end = trackio.finish
elif name == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(str(folder))
    def log(values, step):
        for key, value in values.items():
            writer.add_scalar(key, value, step)
    end = writer.close
a, b, c, d, e = 0.1, 0.2, 0.3, 0.4, 0.5
log({"loss": a, "lr": b, "acc": c, "grad_norm": d, "throughput": e}, step=0)
began = time.perf_counter()
for step in range(1, calls):
    log({"loss": a, "lr": b, "acc": c, "grad_norm": d, "throughput": e}, step=step)
took = time.perf_counter() - began
print(json.dumps([took / (calls - 1) * 1e6, time.time()]), flush=True)
if end is not None:
    end()
"""


def main() -> int:
    """Measure, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="programs of each (default %(default)s)")
    parser.add_argument("--calls", type=int, default=25_000, help="of log() a program (default %(default)s)")
    parser.add_argument("--venv", type=Path, help="where wandb and trackio are, or are put")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tachograph-log-", ignore_cleanup_errors=True) as made:
        peers = environment(options.venv or Path(made) / "venv")
        run = [sys.executable, "-m", "tachograph", "run", "--quiet", "--port", "0", "--", sys.executable]
        sides = {
            "tachograph": run,
            "tensorboard": [sys.executable],
            "wandb": [peers],
            "trackio": [peers],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(options.rounds):
            for name, command in list(sides.items()):
                folder = Path(made) / f"{name}-{number}"
                folder.mkdir()
                try:
                    found[name].append(_measured(name, command, folder, options.calls))
                except (subprocess.SubprocessError, ValueError, IndexError) as error:
                    print(f"LEFT OUT {name}: it does not run here: {error}", file=sys.stderr)
                    del sides[name], found[name]
    calls, ends = ({name: statistics.median(column) for name, column in columns.items()} for columns in _columns(found))
    limits = {"trackio": 2 / 12}  # two microseconds where trackio takes twelve
    goals = [
        Goal(f"log() / {name}'s (us)", calls["tachograph"], calls[name], limits.get(name, 1.0), "us")
        for name in list(calls)[1:]
    ]
    goals.append(Goal("the end, of the hub, too (ms)", ends["tachograph"] * 1e3, 1000, 1.0, "ms"))
    goals += [Goal(f"the end / {name}'s (ms)", ends["tachograph"] * 1e3, ends[name] * 1e3, 5.0, "ms") for name in ends][
        1:
    ]
    kept = report(f"{options.calls:,} calls of log() with five values, and the end", goals)
    return 1 if options.check and not kept else 0


def _columns(found: dict[str, list[tuple[float, float]]]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    calls = {name: [call for call, _ in rounds] for name, rounds in found.items()}
    return calls, {name: [end for _, end in rounds] for name, rounds in found.items()}


def _measured(name: str, command: list[str], folder: Path, calls: int) -> tuple[float, float]:
    """Run one program; return its microseconds a call, and the seconds of its end.

    Raises:
        subprocess.SubprocessError: it fails, or takes too long.
        ValueError, IndexError: it says nothing.
    """
    program = [*command, "-c", _PROGRAM, name, str(folder), str(calls)]
    done = subprocess.run(  # noqa: S603 - a recorder's own interpreter
        program, cwd=folder, env=clean(folder), capture_output=True, text=True, timeout=TIME_LIMIT, check=True
    )
    ended = time.time()
    line = next(line for line in done.stdout.splitlines() if line.startswith("["))
    call, last = json.loads(line)
    return float(call), ended - float(last)


if __name__ == "__main__":
    sys.exit(main())
