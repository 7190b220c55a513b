"""The program that runs: what it is called, and whether it is torchrun's own process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath

from tachograph.identity.environment import clean

_AGENTS = ("torch.distributed.run", "torch.distributed.launch")
_AGENT_FLAGS = frozenset(
    {"-m", "--module", "--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env"}
)
_INTERPRETERS = ("python", "pypy")
_UNNAMED = "python"
_SHORT_OPTION = 2  # characters: a hyphen and a letter; what follows is the option's value


def program_name(
    orig_argv: Sequence[str] | None = None, *, argv: Sequence[str] | None = None, main: object = None
) -> str:
    """Return what the program is called: a script's stem, or the module behind ``-m``; never the empty string.

    torchrun goes by the name of what it launches: it and its ranks are one service, told apart by ``dl.role``.

    Args:
        orig_argv: the command with the interpreter and its options; by default this process's.
        argv: the program's arguments, which alone name the program in a process that ``multiprocessing`` made.
        main: the module ``__main__``, for the same reason.
    """
    command, rest = _split(sys.orig_argv if orig_argv is None else orig_argv)
    if command in _AGENTS:
        command = _launched(rest) or command
    if not command:
        spec = getattr(sys.modules.get("__main__") if main is None else main, "__spec__", None)
        command = _module(str(getattr(spec, "name", ""))) or _stem((*(sys.argv if argv is None else argv), "")[0])
    return clean(command) or _UNNAMED


def is_agent(orig_argv: Sequence[str] | None = None) -> bool:
    """Tell whether the process is torchrun's own, which starts and watches the ranks of a node."""
    return _split(sys.orig_argv if orig_argv is None else orig_argv)[0] in _AGENTS


def command_name(orig_argv: Sequence[str] | None = None) -> str:
    """Return the script's stem or the module that the interpreter was given; the empty string for code behind ``-c``.

    Args:
        orig_argv: the command with the interpreter and its options; by default this process's.
    """
    return _split(sys.orig_argv if orig_argv is None else orig_argv)[0]


def _split(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the program in a command, and its arguments.

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
    if found.name == "torchrun" or found.parts[-3:] == ("torch", "distributed", "run.py"):
        return _AGENTS[0]
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
