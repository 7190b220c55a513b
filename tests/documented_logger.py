"""The documents' program of ``MetricsLogger``; only the import, and where the InfluxDB is, are others."""

from __future__ import annotations

_DOCUMENTED = """
from tachograph.logger import MetricsLogger
# Basic initialization with role
logger = MetricsLogger(
prefix="miner",
uid="123",
role="miner",
group="training_group"
)
# Basic metrics logging
logger.log(
measurement="training_step",
tags={"step": 42},
fields={"loss": 0.75}
)
# With custom InfluxDB settings
logger = MetricsLogger(
host="HOST",
port=PORT,
token="your-token",
org="your-org",
database="your-bucket",
prefix="validator",
uid="456",
role="validator"
)
# Basic metrics logging
logger.log(
measurement="training_step",
tags={"step": 42},
fields={"loss": 0.75}
)
# With system and GPU metrics
logger.log(
measurement="training_step",
tags={"batch": 100, "epoch": 5},
fields={"loss": 0.345, "accuracy": 0.92},
with_system_metrics=True,
with_gpu_metrics=True
)
# Logging metrics with lists that will be processed automatically
logger.log(
measurement="training_step",
tags={"step": 43},
fields={
"peer_ids": [1, 2, 3, 4], # Will be stored as string
"losses": [0.1, 0.2, 0.3, 0.4] # Will be stored as statistics
}
)
"""


def documented(base: str) -> str:
    """Return the program, writing to a server such as ``http://127.0.0.1:8086``."""
    host, _, port = base.removeprefix("http://").partition(":")
    return _DOCUMENTED.replace("HOST", host).replace("PORT", port)
