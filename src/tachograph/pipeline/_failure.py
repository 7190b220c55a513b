"""The exception that ends the process: its type, and its message, bounded and without secrets."""

from __future__ import annotations

import sys
from typing import NamedTuple

from tachograph.identity.masking import masked_message, split_cause
from tachograph.identity.program import signal_name
from tachograph.recording import registry as registries
from tachograph.recording.points import AttributeValue

FAILED = "tachograph.process.failure"  # an event, for hubs of ours alone
MOST_TYPE, MOST_MESSAGE = 200, 2000  # characters


class Failure(NamedTuple):
    """An exception, as far as it is told: the name of its type, and its message."""

    type: str
    message: str

    def attributes(self) -> dict[str, AttributeValue]:
        """Return those of the event :data:`FAILED` (OpenTelemetry, "Semantic conventions for exceptions")."""
        return {"exception.type": self.type, "exception.message": self.message}


def raised() -> BaseException | None:
    """Return the exception that ends this process; None where it ends well, and for ``sys.exit()`` without a code.

    CPython sets ``sys.last_value`` (and since 3.12 ``sys.last_exc``) before it calls ``sys.excepthook``, so the program
    may have any hook; ``sys.exit()`` sets neither, and nothing tells its code to exit handlers. A child of
    ``multiprocessing``, and a program in ``with tachograph.start()``, end while the exception is still on its way. In
    an interactive session the last exception is a cell's or a line's, after which the session went on.
    """
    found = sys.exc_info()[1]
    if found is None and not hasattr(sys, "ps1"):
        found = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return None if isinstance(found, GeneratorExit) or (isinstance(found, SystemExit) and not found.code) else found


def failure_of(error: BaseException, registry: registries.Registry = registries.default) -> Failure:
    """Return the type and the message of an exception; where torch tells of another process, those of that one.

    ``sys.exit(1)`` in an ``except`` block, as ``torch.multiprocessing`` has it, stands for the exception it handles.

    Args:
        error: the exception.
        registry: where a message is counted that cannot be had (``exit``).
    """
    if isinstance(error, SystemExit) and isinstance(error.__context__, Exception):
        error = error.__context__
    try:
        kind, message = _told_by_torch(error) or (type(error).__qualname__, str(error))
        message = masked_message(message, MOST_MESSAGE, kind)
    except Exception:  # noqa: BLE001 - the border to the program's __str__
        registry.count_error("exit")
        kind = type(error).__qualname__
        message = "(its message cannot be read)"
    return Failure(kind[:MOST_TYPE], message)


def _told_by_torch(error: BaseException) -> tuple[str, str] | None:
    """Return type and message where a launcher tells how a process of its own has ended; None for all others.

    torchrun's agent ends with ChildFailedError, which has the exit code of each rank, and the exception of those that
    have written torch's error file (``@record``). ``mp.spawn`` raises ProcessRaisedException, with the traceback of the
    child as text, or ProcessExitedException, with its exit code (torch/distributed/elastic/multiprocessing/errors,
    torch/multiprocessing/spawn.py). ``tachograph.runs.ending`` reads these sentences.
    """
    kind, module = type(error).__qualname__, type(error).__module__
    if kind == "ChildFailedError" and module.startswith("torch.distributed.elastic."):
        rank, first = error.get_first_failure()  # type: ignore[attr-defined]
        message = first.message.get("message", "") if isinstance(first.message, dict) else ""
        message = masked_message(str(message), MOST_MESSAGE)
        end = _end_of_process(f"rank {rank} (pid {first.pid})", first.exitcode)
        return kind, f"{end}: {message}" if message and first.exitcode >= 0 else end
    if kind == "ProcessExitedException" and module.startswith("torch.multiprocessing."):
        who = f"process {error.error_index} (pid {error.error_pid})"  # type: ignore[attr-defined]
        return kind, _end_of_process(who, error.exit_code)  # type: ignore[attr-defined]
    if kind == "ProcessRaisedException" and module.startswith("torch.multiprocessing."):
        cause, _ = split_cause(str(error).rstrip())
        who = f"process {error.error_index} (pid {error.error_pid})"  # type: ignore[attr-defined]
        return kind, f"{who}: {cause}" if cause else who
    return None


def _end_of_process(who: str, exit_code: int) -> str:
    """Return a sentence about the end of a process; a negative exit code is the number of a signal."""
    if exit_code < 0:
        return f"{who} was killed by {signal_name(-exit_code)}"
    return f"{who} ended with exit code {exit_code}"
