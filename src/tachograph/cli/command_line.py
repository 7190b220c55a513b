"""What commands share: exit codes, error messages, groups of commands, and options that mean the same everywhere."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

FAILED = 1
WRONG_USAGE = 2
_LAST_PORT = 65535
_DEFAULT_STORE = "TACHOGRAPH_STORE, or ~/.local/state/tachograph"
_SECONDS_IN = {"ms": 1e-3, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Command(NamedTuple):
    """A command of ``tachograph``, or a subcommand of a group.

    Attributes:
        module: has ``command(arguments) -> exit code`` and ``build_parser()``, or ``SUBCOMMANDS`` for a group.
        summary: its line in the help, in the imperative.
    """

    module: str
    summary: str


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the nearest option of the same command."""

    def error(self, message: str) -> NoReturn:
        """Print in one line what is wrong with the command line, and exit with 2."""
        hinted = self.with_hint(message)
        more = "" if hinted.endswith("?)") else f"; see '{self.prog} --help'"
        self.exit(WRONG_USAGE, f"{self.prog}: {hinted}{more}\n")

    def with_hint(self, message: str) -> str:
        """Return an error message, with the nearest option if it is about an unknown one."""
        unknown = message.partition("unrecognized arguments: ")[2].split()
        name = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        options = [option for action in self._actions for option in action.option_strings]
        nearest = difflib.get_close_matches(name, options, n=1) if name else []
        return f"{message} (did you mean {nearest[0]}?)" if nearest else message


def parser(command: str, description: str, epilog: str | None = None) -> Parser:
    """Return a parser for ``tachograph COMMAND``; options cannot be abbreviated."""
    return Parser(prog=f"tachograph {command}", description=description, epilog=epilog, allow_abbrev=False)


def dispatch(
    program: str,
    commands: Mapping[str, Command],
    arguments: Sequence[str],
    group: argparse.ArgumentParser,
    elsewhere: Mapping[str, str] | None = None,
) -> int:
    """Run the command that the first argument names, and return its exit code; 2 for wrong usage.

    Args:
        program: the words before the command, such as ``tachograph runs``.
        commands: the commands by name.
        arguments: the rest of the command line.
        group: the parser whose help is printed if there is no command.
        elsewhere: names that are commands of another group, with the words to write instead.
    """
    if not arguments:
        group.print_help(sys.stderr)
        return WRONG_USAGE
    name = arguments[0]
    if name in commands:
        return int(import_module(commands[name].module).command(arguments[1:]))
    if name.startswith("-"):
        group.parse_args(arguments[:1])
        return WRONG_USAGE
    moved = (elsewhere or {}).get(name.lower())
    nearest = [moved] if moved else difflib.get_close_matches(name.lower(), commands, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the commands are {', '.join(commands)}"
    sys.stderr.write(f"{program}: unknown command {name!r:.100}: {hint}\n")
    return WRONG_USAGE


def group_parser(
    program: str, commands: Mapping[str, Command], description: str, examples: str = ""
) -> argparse.ArgumentParser:
    """Return a parser whose help lists commands with one line each."""
    width = max(map(len, commands)) + 2
    lines = "\n".join(f"  {name:{width}}{command.summary}" for name, command in commands.items())
    examples = f"\n\n{examples}" if examples else ""
    return Parser(
        prog=program,
        usage=f"{program} COMMAND [options]",
        description=f"{description}{examples}\n\ncommands:\n{lines}",
        epilog=f"Run '{program} COMMAND --help' for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def fail(command: str, why: str, code: int, *, more_lines: Sequence[str] = ()) -> int:
    """Print the reason of a failure to stderr in one line, and lines below it; return the exit code ``code``."""
    from tachograph.runs import printable  # it loads the store's modules, which a job does not wait for

    if sys.stderr is not None:  # if it is closed, only the exit code is left
        lines = [f"tachograph {command}: {printable(why)}", *map(printable, more_lines)]
        sys.stderr.write("".join(f"{line}\n" for line in lines))
    return code


def print_errors(name: str) -> Callable[[Callable[[Sequence[str]], int]], Callable[[Sequence[str]], int]]:
    """Return a decorator that prints the errors of a command in one line: wrong arguments, the store, a missing extra.

    Their exit code is 2.
    """

    def decorate(command: Callable[[Sequence[str]], int]) -> Callable[[Sequence[str]], int]:
        def checked(arguments: Sequence[str]) -> int:
            try:
                return command(arguments)
            except BrokenPipeError:
                return stop_output()
            except (LookupError, ValueError, OSError, ImportError) as error:
                return fail(name, reason(error), WRONG_USAGE)

        return checked

    return decorate


def reason(error: Exception) -> str:
    """Return an error in one line, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error.args[0] if error.args else error)


def stop_output() -> int:
    """Close the broken standard output so that the interpreter does not complain at exit; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def add_store(to: argparse.ArgumentParser, text: str = "The folder with the runs") -> None:
    """Add ``--store``."""
    to.add_argument("--store", type=Path, metavar="DIR", help=f"{text} (default: {_DEFAULT_STORE})")


def add_run(to: argparse.ArgumentParser, *, default: str = "") -> None:
    """Add the positional ``RUN``; with a default it can be left out."""
    text = "The run's id" + (f" (default: {default})" if default else "")
    if default:
        to.add_argument("run", metavar="RUN", nargs="?", help=text)
    else:
        to.add_argument("run", metavar="RUN", help=text)


def add_host_and_port(to: argparse.ArgumentParser, usual_port: int) -> None:
    """Add ``--host`` and ``--port`` of a server."""
    host = "The address to listen on; any other than loopback needs a token (default: %(default)s)"
    to.add_argument("--host", default="127.0.0.1", help=host)
    ports = f"The port to listen on; 0 for any free one (default: {usual_port}, or the next free one)"
    to.add_argument("--port", type=port, metavar="N", help=ports)


def add_token_file(to: argparse.ArgumentParser) -> None:
    """Add ``--token-file`` of a server."""
    text = "Require the bearer token in this file on every request (default: the token in TACHOGRAPH_HUB_TOKEN)"
    to.add_argument("--token-file", type=Path, metavar="FILE", help=text)


def add_url(to: argparse.ArgumentParser, text: str) -> None:
    """Add ``--url``, the address of a server that the command talks to."""
    to.add_argument("--url", metavar="URL", help=text)


def add_yes(to: argparse.ArgumentParser) -> None:
    """Add ``--yes``."""
    to.add_argument("--yes", action="store_true", help="Do not ask for confirmation")


def add_json(to: argparse.ArgumentParser, text: str = "Print JSON") -> None:
    """Add ``--json``."""
    to.add_argument("--json", action="store_true", help=text)


def number(value: str, expected: str) -> int:
    """Parse an option that is a whole number of at most nine digits.

    Raises:
        argparse.ArgumentTypeError: it is not; the message says what is ``expected``.
    """
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise argparse.ArgumentTypeError(f"expected {expected}, not {value!r:.100}")
    return int(value)


def port(value: str) -> int:
    """Parse an option that is a port; 0 stands for any free one.

    Raises:
        argparse.ArgumentTypeError: it is not a port.
    """
    expected = f"a port from 0 to {_LAST_PORT}"
    parsed = number(value, expected)
    if parsed > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"expected {expected}, not {value!r:.100}")
    return parsed


def duration(value: str) -> float:
    """Parse an option that is a duration such as ``30s`` or ``5m``, and return seconds; a bare number is in seconds.

    Raises:
        argparse.ArgumentTypeError: it is not a duration.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(ms|[smhdw]?)", value)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a duration such as 30s, 5m, 12h or 30d, not {value!r:.100}")
    return float(match[1]) * _SECONDS_IN[match[2]]


def positive_duration(value: str) -> float:
    """Parse a duration that must not be zero.

    Raises:
        argparse.ArgumentTypeError: it is zero, or not a duration.
    """
    seconds = duration(value)
    if not seconds:
        raise argparse.ArgumentTypeError(f"expected a duration above 0, not {value!r:.100}")
    return seconds
