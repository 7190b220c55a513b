"""Threads that log events with a Python handler wait for each other for ever, and the interpreter with them.

The registry's mutex is held while the handler runs, which needs the GIL; another thread waits for the mutex while it
holds the GIL.
"""

import faulthandler
import os
import threading
from datetime import datetime

from torch.monitor import Event, log_event, register_event_handler

# Its thread needs no GIL: after ten seconds it prints the threads and ends the process with 1.
faulthandler.dump_traceback_later(10, exit=True)
register_event_handler(lambda event: None)


def log() -> None:
    """Log many events."""
    event = Event("load", datetime.now(), {"a": 1})
    for _ in range(50_000):
        log_event(event)


threads = [threading.Thread(target=log) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all threads have ended, as expected", flush=True)
os._exit(0)  # past the other bug, of the end of the interpreter
