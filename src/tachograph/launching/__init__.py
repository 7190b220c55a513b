"""``tachograph run``: a job is started with telemetry in each of its processes, and with no change to its code."""
