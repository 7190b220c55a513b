"""The program that runs: its name, and whether it is the own process of torchrun, or of ``accelerate launch``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from tachograph.identity.environment import clean, system_text, text

# ``accelerate launch`` runs torchrun's agent inside of its own process (accelerate, commands/launch.py).
_ACCELERATE, _ACCELERATE_LAUNCH = "accelerate.commands.accelerate_cli", "accelerate.commands.launch"
_AGENTS = ("torch.distributed.run", "torch.distributed.launch", _ACCELERATE_LAUNCH)
_SCRIPTS = {"torchrun": _AGENTS[0], "accelerate": _ACCELERATE, "accelerate-launch": _ACCELERATE_LAUNCH}
_AGENT_FLAGS = frozenset(
    {"-m", "--module", "--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env"}
)
_INTERPRETERS = ("python", "pypy")
_UNNAMED = "python"
_SHORT_OPTION = 2  # characters: a hyphen and a letter; the option's value follows


def program_name(
    orig_argv: Sequence[str] | None = None, *, argv: Sequence[str] | None = None, main: object = None
) -> str:
    """Return the program's name: a script's stem, or the module behind ``-m``; never the empty string.

    An agent has the name of the program that it launches: it and its ranks are one service, told apart by ``dl.role``.

    Args:
        orig_argv: the command with the interpreter and its options; by default this process's.
        argv: the program's arguments, which alone name the program in a process that ``multiprocessing`` made; by
            default this process's, and none for a command that is given.
        main: the module ``__main__``, for the same reason.
    """
    if orig_argv is not None:  # of another process, of which ours says nothing
        argv, main = argv or (), main or object()
    command, rest = _split(sys.orig_argv if orig_argv is None else orig_argv)
    if command in _AGENTS:
        command = (_accelerated(rest) if command == _ACCELERATE_LAUNCH else _launched(rest)) or command
    if not command:
        spec = getattr(sys.modules.get("__main__") if main is None else main, "__spec__", None)
        command = _module(str(getattr(spec, "name", ""))) or _stem((*(sys.argv if argv is None else argv), "")[0])
    return clean(command) or _UNNAMED


def is_agent(orig_argv: Sequence[str] | None = None) -> bool:
    """Tell whether the process is torchrun's own or ``accelerate launch``: it starts and watches a node's ranks."""
    return _split(sys.orig_argv if orig_argv is None else orig_argv)[0] in _AGENTS


def worker_parent() -> int | None:
    """Return the pid of the process whose child of multiprocessing this one is; None where it is no such child."""
    started = sys.modules.get("multiprocessing.process")
    parent = started.parent_process() if started is not None else None
    if parent is not None and parent.pid is not None:
        return int(parent.pid)
    return os.getppid() if "--multiprocessing-fork" in sys.orig_argv else None  # it is about to say so


STARTED_AS_HUB = "TACHOGRAPH__STARTED_AS_HUB"


def interpreter(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the Python interpreter, for a child process that runs a module of this package.

    In a frozen or embedding program, ``sys.executable`` may be the program itself. A child would run the program once
    more, which would start a child, and so on. So no process that was started as a hub starts another child.

    Args:
        environ: environment variables of this process.

    Raises:
        RuntimeError: there is no interpreter; the message says why.
    """
    if getattr(sys, "frozen", False):
        raise RuntimeError("this program is frozen and has no Python interpreter that could start another process")
    if not sys.executable:
        raise RuntimeError("sys.executable is not set, so there is no Python interpreter for another process")
    if text(environ, STARTED_AS_HUB):
        raise RuntimeError(
            f"sys.executable is {sys.executable}, which runs this program and is not a Python interpreter"
        )
    return sys.executable


def command_name(orig_argv: Sequence[str] | None = None) -> str:
    """Return the script's stem or the module that the interpreter was given; the empty string for code behind ``-c``.

    Args:
        orig_argv: the command with the interpreter and its options; by default this process's.
    """
    return _split(sys.orig_argv if orig_argv is None else orig_argv)[0]


def _split(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the program in a command, and its arguments; ``accelerate launch`` is one name."""
    name, rest = _named(command)
    if name == _ACCELERATE and rest[:1] == ["launch"]:
        return _ACCELERATE_LAUNCH, rest[1:]
    return name, rest


def _named(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the script or module in a command, and its arguments.

    Of the interpreter's options, ``-c`` and ``-m`` end the list, and ``-W``, ``-X`` and one long one take a value
    (CPython documentation, "Command line and environment").
    """
    if not command:
        return "", []
    rest = list(command[1:])
    if not PurePath(command[0]).name.lower().startswith(_INTERPRETERS):
        return _stem(command[0]), rest
    while rest:
        argument = rest.pop(0)
        if argument.startswith("--"):
            rest = rest[argument == "--check-hash-based-pycs" :]
        elif argument == "-" or not argument.startswith("-"):
            return _stem(argument), rest
        else:
            letter, value = _ending(argument[1:])
            if letter and not value and rest:
                value = rest.pop(0)
            if letter in ("c", "m"):
                return _module(value) if letter == "m" else "", rest
    return "", []


def _ending(letters: str) -> tuple[str, str]:
    """Return the letter in a group of short options that takes a value, and the value where it is attached."""
    for index, letter in enumerate(letters):
        if letter in "cmWX":
            return letter, letters[index + 1 :]
    return "", ""


def _stem(path: str) -> str:
    if path in ("", "-", "-c", "-m"):
        return ""
    found = PurePath(path)
    if found.parts[-3:] == ("torch", "distributed", "run.py"):
        return _AGENTS[0]
    if found.name in _SCRIPTS:
        return _SCRIPTS[found.name]
    return found.parent.name or "main" if found.stem == "__main__" else found.stem


def _module(name: str) -> str:
    return name.removesuffix(".__main__")


def _launched(arguments: Sequence[str]) -> str:
    """Return the script or module that torchrun was told to launch; all options but a few take a value."""
    rest = list(arguments)
    module = False
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            continue
        if not argument.startswith("-"):
            return _module(argument) if module else _stem(argument)
        module |= argument in ("-m", "--module")
        attached = "=" in argument or (not argument.startswith("--") and len(argument) > _SHORT_OPTION)
        if argument not in _AGENT_FLAGS and not attached:
            rest = rest[1:]
    return ""


def _accelerated(arguments: Sequence[str]) -> str:
    """Return the script or module that ``accelerate launch`` was told to launch.

    Its 120 options are not told apart by whether they take a value: none of them takes a path of Python's.
    """
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=True):
        if argument in ("-m", "--module"):
            return "" if following.startswith("-") else _module(following)
        if argument.endswith(".py"):
            return _stem(argument)
    return ""


def signal_name(number: int) -> str:
    """Return the name of a signal, as ``SIGKILL``; ``signal 99`` for one without."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


FOLDER = "TACHOGRAPH__STARTED"
_DESCRIBED = 5  # of those that are left
_LONGEST = 1024  # bytes that are read of a mark, or of a helper's notes
_HELPER = "helper-"
_UNDELIVERED = "undelivered-"
_STATUS = "status"
_SIGNALS, _MOST_CODE = 128, 255


def mark_start(environ: Mapping[str, str], rank: object, program: str) -> None:
    """Write a mark that this process has started; without a mark where it cannot be written."""
    path = _path(environ)
    if path is not None:
        with contextlib.suppress(OSError):
            path.write_text(f"{'' if rank is None else rank}\n{program}", encoding="utf-8", errors="replace")


def unmark_start(environ: Mapping[str, str]) -> None:
    """Remove the mark: this process is no part of the job, or not yet."""
    path = _path(environ)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def _path(environ: Mapping[str, str]) -> Path | None:
    folder = text(environ, FOLDER)
    return Path(system_text(folder), str(os.getpid())) if folder else None


def note_helper(environ: Mapping[str, str], values: int) -> bool:
    """Note for the job's hub how many values a helper has recorded, which nothing delivers: the process ends.

    Returns:
        Whether it is the first note of the job; where there is no such hub, True.
    """
    path = _path(environ)
    if path is None:
        return True
    with contextlib.suppress(OSError):
        with path.with_name(f"{_HELPER}{path.name}").open("a", encoding="ascii") as file:
            file.write(f"{values}\n")
        try:
            path.with_name(f"{_HELPER}said").touch(exist_ok=False)
        except FileExistsError:
            return False
    return True


class Undelivered(NamedTuple):
    """Amounts that a process of the job could not deliver to the hub by its end.

    Attributes:
        pid: of the process.
        rank: its rank; None where it has none.
        program: its name.
        given_up: points, records and spans that were not sent.
        unanswered: those that were sent, and not answered in time: the hub may have received them.
    """

    pid: int
    rank: int | None
    program: str
    given_up: int
    unanswered: int


def note_undelivered(environ: Mapping[str, str], rank: object, program: str, given_up: int, unanswered: int) -> None:
    """Note for ``tachograph run`` how much this process could not deliver: see :class:`Undelivered`."""
    path = _path(environ)
    if path is not None:
        note = f"{given_up} {unanswered}\n{'' if rank is None else rank}\n{program}"
        with contextlib.suppress(OSError):
            path.with_name(f"{_UNDELIVERED}{path.name}").write_text(note, encoding="utf-8", errors="replace")


def note_status(folder: Path | None, status: int) -> None:
    """Note for the job's hub how the job has ended: see :meth:`StartMarks.status`; nothing where there is no folder."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        (folder / _STATUS).write_text(str(status), encoding="ascii")


class StartMarks:
    """The start marks of a job's processes, as the hub reads them, and the notes of its helpers.

    Args:
        folder: of :data:`FOLDER`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def heard(self, pid: int) -> None:
        """Remove the mark of a process that has reported."""
        with contextlib.suppress(OSError):
            (self._folder / str(pid)).unlink()

    def left(self) -> dict[str, Any]:
        """Return the number of processes that have not reported; of the first, rank (if any), program and pid."""
        try:
            pids = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
        except OSError:
            return {"processes": 0, "first": []}
        return {"processes": len(pids), "first": [self._described(pid) for pid in islice(pids, _DESCRIBED)]}

    def status(self) -> int | None:
        """Return the exit code of the job, negative for the number of the signal that killed it; None where unknown."""
        with contextlib.suppress(OSError, ValueError), (self._folder / _STATUS).open("rb") as file:
            found = int(file.read(_LONGEST))
            return found if -_SIGNALS < found <= _MOST_CODE else None
        return None

    def of_helpers(self) -> int:
        """Return how many values helpers have recorded, which nothing delivers."""
        values = 0
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{_HELPER}[0-9]*"):
                with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
                    values += sum(map(int, file.read(_LONGEST).split()))
        return values

    def undelivered(self) -> list[Undelivered]:
        """Return the amounts that processes could not deliver by their end, by pid."""
        found = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{_UNDELIVERED}[0-9]*"):
                with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
                    amounts, _, described = file.read(_LONGEST).decode(errors="replace").partition("\n")
                    given_up, unanswered = amounts.split()
                    who = _rank_and_program(described)
                    pid = int(path.name.removeprefix(_UNDELIVERED))
                    found.append(Undelivered(pid, *who, int(given_up), int(unanswered)))
        return sorted(found)

    def _described(self, pid: int) -> dict[str, Any]:
        described = ""
        with contextlib.suppress(OSError), (self._folder / str(pid)).open("rb") as file:
            described = file.read(_LONGEST).decode(errors="replace")
        rank, program = _rank_and_program(described)
        return {"pid": pid, "rank": rank, "program": program}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _rank_and_program(described: str) -> tuple[int | None, str]:
    """Return the rank and the name of the program in a mark, which any process of the job may have written."""
    rank, _, program = described.partition("\n")
    shown = "".join(letter if letter.isprintable() else "?" for letter in clean(program))
    return int(rank) if rank.isdecimal() else None, shown[:80]
