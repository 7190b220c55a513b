"""torchtitan's structured logger, with our handler: python examples/torchtitan_handler.py."""

import os
import time

from torchtitan.observability import structured_logger as logger

import tachograph

os.environ["TITAN_STRUCT_LOGGER_HANDLERS"] = "tachograph.integrations.torchtitan.register_tachograph_handler"
with tachograph.start(hub=True) as pipeline:
    logger.init_structured_logger(source="trainer", output_dir="out")
    for step in range(1, 6):
        logger.set_step(step)
        with logger.log_trace_span("fwd_bwd"):
            time.sleep(0.01)
        logger.log_trace_scalar({"local_valid_tokens": 512 * step})
    print("recorded:", pipeline.hub_url)
