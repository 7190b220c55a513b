"""Zero code's start in each Python process of a job, which has this folder in front of its PYTHONPATH.

``tachograph run`` and ``torchrun --logs-specs tachograph`` put it there.

It runs at the start of every interpreter, helpers too, so it decides first and imports after. Whether it fails or not,
the program starts as without it: the next ``sitecustomize`` on the path is run as Python itself would run it.
"""
# ruff: noqa: INP001 - a folder on the path, no package

from __future__ import annotations

import os
import sys


def _asked() -> bool:
    environ = os.environ
    variables = ("TACHOGRAPH__HUB", "TACHOGRAPH__ENDPOINT", "TACHOGRAPH__INSTRUMENT")
    return (
        any(environ.get(name) for name in variables) and environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
    )


def _concerned() -> bool:
    """Tell whether this process may be part of the job itself, and not only an auxiliary process of it."""
    environ = os.environ
    owner = environ.get("TACHOGRAPH__OWNER", "").rpartition(":")[2]
    helpers_record = environ.get("TACHOGRAPH_HELPERS", "").strip().lower() in ("true", "1")
    if owner.isdigit() and int(owner) != os.getpid() and not helpers_record:
        return False
    # Code behind -c is most likely auxiliary; but not a child of multiprocessing, which may become a rank.
    return (
        _program() != "-c"
        or "--multiprocessing-fork" in sys.orig_argv
        or bool(environ.get("RANK"))
        or _started_by_run()
    )


def _program() -> str:
    """Return the interpreter's first argument behind its options (two take a value): a path, ``-c`` or ``-m``."""
    arguments = iter(sys.orig_argv[1:])
    for argument in arguments:
        if argument[:1] != "-" or argument in ("-", "--"):
            return argument
        letters = "" if argument[:2] == "--" else argument[1:]
        for place, letter in enumerate(letters, 2):
            if letter in "cm":
                return "-" + letter
            if letter in "WX":
                if place == len(argument):
                    next(arguments, None)
                break
    return ""


def _mark() -> None:
    """Mark that this process has started: see :mod:`tachograph.identity.program`, which may not load here."""
    folder = os.environ.get("TACHOGRAPH__STARTED")
    rank = os.environ.get("RANK", "")
    # A child of multiprocessing is part of the job once it has a rank.
    if folder and (rank or "--multiprocessing-fork" not in sys.orig_argv):
        name = os.path.basename(_program())  # noqa: PTH119
        name = f"python {name}" if name[:1] == "-" else name
        try:
            with open(os.path.join(folder, str(os.getpid())), "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH118, PTH123
                file.write(f"{rank}\n{name}")
        except OSError:
            pass


class _UntilTorch:
    """A finder that loads nothing until torch comes: an auxiliary process that joins a process group becomes a rank."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Have the telemetry begin with the process group, and return the other finders' spec of its module."""
        if name != "torch.distributed.distributed_c10d":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type] # see below
        try:
            from tachograph.identity.process_group import group_watch

            group_watch.on_join.append(_begin)
            group_watch.begin()
        except Exception as error:  # noqa: BLE001 - the border to the program's import
            _say(error)
        for finder in list(sys.meta_path):
            found = finder.find_spec(name, path, target)  # type: ignore[arg-type] # as it came
            if found is not None:
                return found
        return None


def _begin() -> None:
    from tachograph.instrumentation._zero_code import begin

    begin(directly=_started_by_run())


def _say(error: Exception) -> None:
    import contextlib
    import logging

    with contextlib.suppress(Exception):  # a closed stderr: this logger guards itself only once tachograph is loaded
        prefix = "" if "tachograph.recording.log" in sys.modules else "tachograph: "  # which adds it
        message = f"{prefix}could not start telemetry, continuing without it: %r"
        logging.getLogger("tachograph").warning(message, error)


def _die_of_sigint() -> None:
    """End as a program does that Ctrl-C ends: CPython would end with status 1 here, and a shell go on with its loop."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def _started_by_run() -> bool:
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:  # noqa: PTH123 - pathlib is not imported yet
            words = file.read(65536).split(b"\0")
    except OSError:  # no /proc: no more is known
        return True
    names = [word.rpartition(b"/")[2] for word in words]
    return (b"tachograph", b"run") in zip(names, names[1:], strict=False)  # noqa: RUF007 - itertools would be one more import


def _run_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


try:
    if _asked() and _concerned():
        _mark()
        _begin()
    elif _asked():
        sys.meta_path.insert(0, _UntilTorch())  # type: ignore[arg-type] # the specs that it returns are others'
except Exception as error:  # noqa: BLE001 - the border to the program: it starts, with telemetry or without
    _say(error)
except KeyboardInterrupt:
    _die_of_sigint()
finally:
    _run_next()
