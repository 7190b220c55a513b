"""A window below a millisecond ends the process with SIGFPE: the window's milliseconds divide the time."""

from datetime import timedelta

from torch.monitor import Aggregation, Stat

print("expected: a ValueError", flush=True)
stat = Stat("load", [Aggregation.SUM], timedelta(microseconds=1))
stat.add(1.0)
print("the process goes on")
