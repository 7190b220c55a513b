"""The overhead of Tachograph in a real DDP loop with 100 recorded values a step, and its effect on the weights.

``python bench/overhead.py``: ranks train on gloo in steps of 50 ms and send to a hub on this machine, once in each
block. What a step costs the process, on against off, in alternating blocks of a second: seconds of the processor, and
instructions where the machine counts them. Judged is the upper bound of the 95 % interval of both (Student's t, over
the log ratios of the pairs). Beside it stands a control of the same run, off against off: a difference that is no
larger is noise. Of the processor's time it is shown how much the recording itself takes, and how much our threads: both
are measured by themselves, so that other load of the machine says little about them; the rest is what we do to the
program's own work, or noise. The time by the clock is shown beside: it says more about a busy machine than about us,
and such a machine needs more ``--pairs``. Then two ranks train the same 200 steps under ``tachograph run`` and without:
weights and random states must be the same, bit for bit.

``--doctor`` measures the hang doctor alone: no block records, and some of them send pulses, one a second. Judged are
the step, and the processor's time of a pulse: the difference of all our threads, which have little else to do then.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from race import keep

JOB = Path(__file__).parent / "overhead_job.py"
# Half of the cores: the rest is for the hub and our threads, as on a machine with a GPU.
RANKS = max(1, min(4, (os.cpu_count() or 1) // 2))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
GOAL = 0.003
GOAL_DOCTOR, GOAL_PULSE = 0.01, 0.001  # of the step; seconds of the processor, with its POST
PAIRS = 40
STEPS = 200
TIME_LIMIT = 900
UNITS = {"processor": (1e6, "us"), "instructions": (1e-3, "thousand"), "seconds": (1e6, "us")}
T_95 = 1.685  # one-sided 95 % of Student's t with 39 degrees of freedom; more pairs need less


def run(command: list[str], folder: Path, **variables: str) -> None:
    """Run a job to its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
    environment = {**kept, "TACHOGRAPH_STORE": str(folder / "store"), **variables}
    subprocess.run(command, env=environment, check=True, timeout=TIME_LIMIT)  # noqa: S603 - our own command


def cost(pairs: int, *, doctor: bool = False) -> bool:
    """Measure the overhead, of all or of the hang doctor alone, and tell whether it is within the goal."""
    goal = GOAL_DOCTOR if doctor else GOAL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = folder / "result.json"
        announce, told = os.pipe()
        hub = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--store", str(folder / "hub")]
        with subprocess.Popen([*hub, "--announce", str(told)], pass_fds=[told]) as process:  # noqa: S603 - ours
            os.close(told)
            with os.fdopen(announce) as lines:
                job = [*TORCHRUN, str(RANKS), str(JOB), "--pairs", str(pairs), "--result", str(result)]
                job += ["--doctor"] if doctor else []
                try:
                    run(job, folder, OTEL_EXPORTER_OTLP_ENDPOINT=json.loads(lines.readline())["url"])
                finally:
                    process.terminate()
        found = json.loads(result.read_text())
    step = statistics.median(off["seconds"] for _, off in found["pairs"]) * 1e3
    print(f"\nstep of {step:.2f} ms, {len(found['pairs'])} pairs; goal {goal:.1%} at most")
    kept = True
    added: dict[str, dict[str, float]] = {}
    for what, unit in UNITS.items():
        costs = [(on[what], off[what]) for on, off in found["pairs"]]
        if None in costs[0]:
            print(f"{what:<13}not counted by this machine: {found['why_not']}")
            continue
        mean, upper = _added(costs)
        added[what] = {"mean": mean, "at_most": upper}
        judged = what != "seconds"
        kept = kept and (not judged or upper <= goal)
        verdict = "not judged" if not judged else "ok" if upper <= goal else "MISSED"
        more = statistics.median(on - off for on, off in costs) * unit[0]
        print(f"{what:<13}{mean:+.2%} in the mean, {upper:+.2%} at most, {more:+,.1f} {unit[1]}  {verdict}")
        same, most = _added([(again[what], off[what]) for again, off in found["control"]])
        print(f"{'':<13}{same:+.2%} in the mean, {most:+.2%} at most, of off against off: what is no more is noise")
    for part, of in (("recording", "100 values a step"), ("threads", "ours"))[doctor:]:
        of_step = statistics.mean(on[part] for on, _ in found["pairs"]) * 1e3
        print(f"{part:<13}{of_step / step:+.2%} of the step, {of_step * 1e3:,.1f} us: {of}")
    if doctor:
        for what, pairs_of in (("a pulse", found["pairs"]), ("off", found["control"])):
            each = [on["threads"] / on["seconds"] - off["threads"] / off["seconds"] for on, off in pairs_of]
            added[what] = {"mean": statistics.mean(each), "at_most": _at_most(each)}
            mean, most = (value * 1e3 for value in added[what].values())
            print(f"{what:<13}{mean:.2f} ms of the processor, {most:.2f} ms at most")
        kept = kept and added["a pulse"]["at_most"] <= GOAL_PULSE
    keep("doctor" if doctor else "pairs", {"step_ms": step, "added": added, **found})
    return kept


def _added(costs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return how much more one side of pairs takes than the other: in the mean, and at most."""
    ratios = [math.log(one / other) for one, other in costs]
    return math.expm1(statistics.mean(ratios)), math.expm1(_at_most(ratios))


def _at_most(taken: list[float]) -> float:
    """Return the upper bound of the mean's 95 % interval."""
    return statistics.mean(taken) + T_95 * statistics.stdev(taken) / math.sqrt(len(taken))


def harmless() -> bool:
    """Train the same with and without, and tell whether weights and random states are the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {}
        for what, before in (("off", []), ("on", [sys.executable, "-m", "tachograph", "run", "--port", "0", "--"])):
            result = folder / f"{what}.json"
            disabled = {"OTEL_SDK_DISABLED": "true"} if what == "off" else {}
            run([*before, *TORCHRUN, "2", str(JOB), "--steps", str(STEPS), "--result", str(result)], folder, **disabled)
            found[what] = json.loads(result.read_text())
    for state, digest in found["off"].items():
        print(f"{state:<8} {digest[:16]}… {'the same' if found['on'][state] == digest else 'CHANGED'}")
    return bool(found["on"] == found["off"])


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of blocks of a second; 0: only look for harm")
    parser.add_argument("--doctor", action="store_true", help="measure what the hang doctor adds")
    options = parser.parse_args()
    if options.check and 0 < options.pairs < PAIRS:
        parser.error(f"--check judges {PAIRS} pairs or more, not {options.pairs}")
    kept = [not options.pairs or cost(options.pairs, doctor=options.doctor), options.doctor or harmless()]
    sys.exit(1 if options.check and not all(kept) else 0)


if __name__ == "__main__":
    main()
