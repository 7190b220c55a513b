"""The ways in which a run ends, and how each is told: the rows of the table in ``docs/runs.md``."""

from __future__ import annotations

import signal
from typing import NamedTuple

SIMPLE = """
    import os, signal, sys, threading, time
    import tachograph
    tachograph.put_metric("loss", 0.5)
    {}
"""
# Ranks of torchrun; the first one waits, so that it is ended by its launcher.
RANKS = """
    import os, signal, time
    import torch.distributed as dist
    import tachograph
    dist.init_process_group("gloo")
    tachograph.put_metric("loss", 0.5)
    if dist.get_rank() == 1:
        {}
    time.sleep(60)
"""
COLLECTIVE = RANKS.replace("time.sleep(60)", "dist.barrier()")
SPAWNED = """
    import os, signal, time
    import torch.distributed as dist, torch.multiprocessing as mp
    import tachograph
    def work(rank, path):
        dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
        tachograph.put_metric("loss", 0.5)
        if rank == 1:
            {}
        time.sleep(60)
    if __name__ == "__main__":
        mp.spawn(work, args=(os.path.abspath("meeting"),), nprocs=2)
"""
# The hub is the child of the run that is no job.
KILL_THE_HUB = """
    words = ["pgrep", "-P", str(os.getppid()), "-f", "hub --run-id"]
    import subprocess
    os.kill(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout), signal.SIGKILL)
    time.sleep(4)
    tachograph.put_metric("loss", 0.4)
"""
REFUSED = "raise ValueError('no access to https://ann:hunter2@host/data, api_key=12ab')"


class RunEnd(NamedTuple):
    """A way in which a run ends.

    Attributes:
        title: of the row.
        program: what the program does at its end.
        brief: the state in ``runs list``, on the page, and in the last line of ``run``.
        words: how ``runs show`` tells it, a regular expression.
        alone: the state without ``tachograph run``; None where that is not tried.
        failure: the process that failed first and its exception, as the page and the line before the last one have it.
        code: of ``tachograph run``.
        source: the program around it.
    """

    title: str
    program: str
    brief: str
    words: str
    alone: str | None
    failure: str
    code: int
    source: str = SIMPLE

    @property
    def name(self) -> str:
        """The name of the case."""
        return self.title.replace("`", "")

    def row(self) -> str:
        """Return its row in the table."""
        told = f"`{self.failure}`" if self.failure else "-"
        return f"| {self.title} | {self.brief} | {self.alone or '-'} | {told} |"


ENDS = (
    RunEnd("it returns normally", "pass", "finished", "finished", "finished", "", 0),
    RunEnd("`sys.exit(3)`", "sys.exit(3)", "failed (exit code 3)", "failed with exit code 3", "finished", "", 3),
    RunEnd(
        "an exception",
        REFUSED,
        "failed (exit code 1)",
        "failed with exit code 1: ValueError: no access to",
        "failed",
        "ValueError: no access to https://***@host/data, api_key=***",
        1,
    ),
    RunEnd(
        "an exception in a thread; the main thread continues",
        "worker = threading.Thread(target=lambda: 1 / 0); worker.start(); worker.join()",
        *("finished", "finished", "finished", "", 0),
    ),
    RunEnd(
        "Ctrl-C: `KeyboardInterrupt`",
        "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT)",
        *("killed (SIGINT)", "killed by SIGINT", "killed (SIGINT)", "", 128 + signal.SIGINT),
    ),
    RunEnd(
        "SIGTERM",
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        *("killed (SIGTERM)", "killed by SIGTERM", "killed (SIGTERM)", "", 128 + signal.SIGTERM),
    ),
    RunEnd(
        "SIGKILL, for example because memory ran out",
        "time.sleep(2.5); os.kill(os.getpid(), signal.SIGKILL)",
        *("killed (SIGKILL)", "killed by SIGKILL", "lost", "", 128 + signal.SIGKILL),
    ),
    RunEnd(
        "`os._exit(1)`",
        "time.sleep(2.5); os._exit(1)",
        *("failed (exit code 1)", "failed with exit code 1", "lost", "", 1),
    ),
    RunEnd(
        "an exception in rank 1 under `torchrun`",
        "raise KeyError('lr')",
        "failed (exit code 1)",
        "failed with exit code 1; rank 1 failed first: KeyError: 'lr'",
        None,
        "rank 1 failed first: KeyError: 'lr'",
        1,
        RANKS,
    ),
    RunEnd(
        "SIGKILL of rank 1 under `torchrun`",
        "time.sleep(2); os.kill(os.getpid(), signal.SIGKILL)",
        "failed (exit code 1)",
        "failed with exit code 1; rank 1 failed first: killed by SIGKILL",
        None,
        "rank 1 failed first: killed by SIGKILL",
        1,
        RANKS,
    ),
    RunEnd(
        "`os._exit(3)` of rank 1 under `torchrun`, rank 0 is in `all_reduce`",
        "time.sleep(1); os._exit(3)",
        "failed (exit code 1)",
        "failed with exit code 1; rank 1 failed first: exit code 3",
        None,
        "rank 1 failed first: exit code 3",
        1,
        COLLECTIVE,
    ),
    RunEnd(
        "an exception in a child of `mp.spawn`",
        "raise KeyError('lr')",
        "failed (exit code 1)",
        "failed with exit code 1; rank 1 failed first: KeyError: 'lr'",
        None,
        "rank 1 failed first: KeyError: 'lr'",
        1,
        SPAWNED,
    ),
    RunEnd(
        "`os._exit(3)` in a child of `mp.spawn`",
        "time.sleep(1); os._exit(3)",
        "failed (exit code 1)",
        "failed with exit code 1; rank 1 failed first: exit code 3",
        None,
        "rank 1 failed first: exit code 3",
        1,
        SPAWNED,
    ),
    RunEnd("the hub is killed; the program continues", KILL_THE_HUB, "finished", "finished", None, "", 0),
)
HEAD = "| How the program ends | `runs list`, the page, the last line | without `tachograph run` | the first failure |"


def table() -> str:
    """Return the table of ``docs/runs.md``."""
    return "\n".join([HEAD, "| --- | --- | --- | --- |", *(end.row() for end in ENDS)]) + "\n"
