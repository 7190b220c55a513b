"""Verdicts on programs with faults that were put into them, and on healthy ones.

``python bench/anatomy.py [CASE …]`` runs each case of ``bench/anatomy_job.py`` under ``tachograph run``, and compares
the verdicts with the one that is right: the first of a faulty program must be it, and a healthy one must have none.

``--traceml VENV/bin/traceml`` runs them under TraceML instead (``pip install traceml-ai==0.5.0`` beside torch), for as
long, with the two calls that it asks for, and shows what it says: its first diagnosis, and the warnings of its
sections. Its names are others, so nothing is called right or wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent / "anatomy_job.py"
FAULTS = {
    "slow_dataset": "input_bound",
    "heavy_transform": "input_bound",
    "slow_worker": "input_bound",
    "slow_collate": "input_bound",
    "page_cache": "input_bound",
    "recompiles": "compile_storm",
    "checkpoints": "checkpoint_bound",
    "sleep_after_step": "overhead_bound",
    "slow_logger": "overhead_bound",
    "items": "overhead_bound",
    "collections": "overhead_bound",
    "clipping": "gradients_bound",
    "overflow": "overflow_loop",
    "evaluation": "evaluation_bound",
    "leak": "memory_creep",
    "retained_graph": "memory_creep",
    "rank_compute": "straggler",
    "rank_input": "straggler",
    "rank_checkpoint": "straggler",
    "rank_throttled": "straggler",
    "late_allreduce": "communication_bound",
}
DISTRIBUTED = ("ddp", "late_allreduce")  # beside those that begin with "rank_"
HEALTHY = (
    *("healthy", "tiny", "workers", "compiled", "accumulation", "overflow_at_first", "rare_checkpoint"),
    *("rare_evaluation", "slow_first_epoch", "item", "ddp"),
)
LEAST = 12.0  # seconds of a case
LONG = {"leak": 32.0, "retained_graph": 32.0, "late_allreduce": 45.0}  # growth of 20 s; DDP times each hundredth step
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}


def ranks_of(case: str) -> int:
    """Return the processes of a case."""
    return 2 if case.startswith("rank_") or case in DISTRIBUTED else 1


def run(case: str, store: Path) -> dict[str, Any]:
    """Run a case, and return its diagnosis."""
    command = [sys.executable, str(JOB), case, str(LONG.get(case, LEAST))]
    if ranks_of(case) > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command[1:]]
    tachograph = [sys.executable, "-m", "tachograph"]
    options = ["--store", str(store), "--run-id", case, "--quiet"]
    whole = [*tachograph, "run", *options, "--", *command]
    subprocess.run(whole, env=ENVIRONMENT, check=False, timeout=240)  # noqa: S603 - ours
    asked = [*tachograph, "diagnose", case, "--store", str(store), "--json"]
    told = subprocess.run(asked, env=ENVIRONMENT, check=False, capture_output=True)  # noqa: S603 - ours
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def run_traceml(traceml: Path, case: str, folder: Path) -> tuple[list[str], str]:
    """Run a case under TraceML; return its diagnoses but for mere information, the first one first, and a line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(traceml), "run", str(JOB), "--run-name", case, "--logs-dir", str(folder)]
    command += ["--nproc-per-node", str(ranks_of(case)), "--master-port", port]
    command += ["--args", case, str(LONG.get(case, LEAST))]
    subprocess.run(command, env=ENVIRONMENT, check=False, stdout=subprocess.DEVNULL, timeout=360)  # noqa: S603 - ours
    told = json.loads((folder / case / "final_summary.json").read_text(encoding="utf-8"))
    first = told["primary_diagnosis"]
    sections = [told[name].get("diagnosis") or {} for name in ("step_time", "step_memory", "system", "process")]
    found = {each["kind"]: each["severity"] for each in (first, *sections) if each and each["kind"] != "NO_GPU"}
    names = [f"{kind} ({level})" for kind, level in found.items() if level != "info" or kind == first["kind"]]
    return names, first["summary"]


def main() -> int:
    """Run the cases; return how many were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--traceml", type=Path, metavar="COMMAND")
    options = parser.parse_args()
    wrong, told = [], {}
    with tempfile.TemporaryDirectory() as name:
        for case in options.cases or [*FAULTS, *HEALTHY]:
            began = time.monotonic()
            wanted = FAULTS.get(case)
            if options.traceml:
                names, line = run_traceml(options.traceml, case, Path(name))
                right, word = None, "     "
            else:
                found = run(case, Path(name))
                names = [each["name"] for each in found["verdicts"]]
                right = names[:1] == [wanted] if wanted else not names
                word = "right" if right else "WRONG"
                wrong += [] if right else [case]
                line = found["verdicts"][0]["line"] if names else (found["goodput"] or {}).get("line", "no steps")
            told[case] = {"wanted": wanted, "found": names, "right": right, "line": line}
            took = time.monotonic() - began
            if options.out:  # at once: a bench that is cut short has its results
                options.out.write_text(json.dumps(told, indent=1), encoding="utf-8")
            print(f"{word}  {case:18} {took:5.1f} s  {names}  {line}", flush=True)
    if not options.traceml:
        print(f"{len(told) - len(wrong)} of {len(told)} right" + (f"; wrong: {', '.join(wrong)}" if wrong else ""))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
