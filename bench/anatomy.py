"""Verdicts on programs with faults that were put into them, and on healthy ones.

``python bench/anatomy.py [CASE …]`` runs each case of ``bench/anatomy_job.py`` under ``tachograph run``, and compares
the verdicts with the one that is right: the first of a faulty program must be it, and a healthy one must have none.

"""

from __future__ import annotations

import argparse
import json
import os
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
LONG = {"leak": 32.0, "retained_graph": 32.0, "slow_first_epoch": 10.0, "compiled": 8.0, "recompiles": 8.0}
LONG |= {"late_allreduce": 45.0}  # DDP times each hundredth step


def run(case: str, store: Path) -> dict[str, Any]:
    """Run a case, and return its diagnosis."""
    command = [sys.executable, str(JOB), case, str(LONG.get(case, 5.0))]
    if case.startswith("rank_") or case in DISTRIBUTED:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command[1:]]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
    tachograph = [sys.executable, "-m", "tachograph"]
    options = ["--store", str(store), "--run-id", case, "--quiet"]
    subprocess.run([*tachograph, "run", *options, "--", *command], env=kept, check=False, timeout=180)  # noqa: S603
    told = subprocess.run(  # noqa: S603 - ours
        [*tachograph, "diagnose", case, "--store", str(store), "--json"], env=kept, check=False, capture_output=True
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def main() -> int:
    """Run the cases; return how many were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wrong, told = [], {}
    with tempfile.TemporaryDirectory() as name:
        for case in options.cases or [*FAULTS, *HEALTHY]:
            began = time.monotonic()
            found = run(case, Path(name))
            names = [each["name"] for each in found["verdicts"]]
            wanted = FAULTS.get(case)
            right = names[:1] == [wanted] if wanted else not names
            wrong += [] if right else [case]
            told[case] = {"wanted": wanted, "found": names, "right": right}
            line = found["verdicts"][0]["line"] if names else (found["goodput"] or {}).get("line", "no steps")
            took = time.monotonic() - began
            if options.out:  # at once: a bench that is cut short has its results
                options.out.write_text(json.dumps(told, indent=1), encoding="utf-8")
            print(f"{'right' if right else 'WRONG'}  {case:18} {took:5.1f} s  {names}  {line}", flush=True)
    print(f"{len(told) - len(wrong)} of {len(told)} right" + (f"; wrong: {', '.join(wrong)}" if wrong else ""))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
