"""The parts of a command line that commands share: exit codes, error messages, numbers, and the options of InfluxDB."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

FAILED, WRONG_USAGE = 1, 2
_LAST_PORT = 65535


class Parser(argparse.ArgumentParser):
    """A parser that names the nearest option where there is none of a given name."""

    def error(self, message: str) -> NoReturn:
        """Say that the usage is wrong, and exit with 2."""
        super().error(self.hinted(message))

    def hinted(self, message: str) -> str:
        """Return an error's message, with the nearest option where it is about an unknown one."""
        unknown = message.partition("unrecognized arguments: ")[2].split()
        name = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        near = difflib.get_close_matches(name, set(_options_of(self)), n=1) if name else []
        return f"{message}: did you mean {near[0]}?" if near else message


def _options_of(parsed: argparse.ArgumentParser) -> Iterator[str]:
    for action in parsed._actions:  # noqa: SLF001 - argparse lists them nowhere else
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the same
            for each in action.choices.values():
                yield from _options_of(each)


def parser(command: str, description: str, epilog: str | None = None) -> Parser:
    """Return a parser for the command line of ``tachograph COMMAND``; options are not abbreviated."""
    return Parser(prog=f"tachograph {command}", description=description, epilog=epilog, allow_abbrev=False)


def fail(command: str, why: str, code: int) -> int:
    """Say the reason of a failure on stderr, and return the exit code ``code``."""
    if sys.stderr is not None:  # it is closed: the exit code is left
        sys.stderr.write(f"tachograph {command}: {why}\n")
    return code


def reason(error: Exception) -> str:
    """Return an error in one line, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error.args[0] if error.args else error)


def add_influxdb(made: argparse.ArgumentParser) -> None:
    """Add the options that say where InfluxDB is; :func:`influxdb` reads them."""
    add = made.add_argument
    add("--host", help="of InfluxDB (default: INFLUXDB_HOST); the token is read from INFLUXDB_TOKEN only")
    add("--port", help="of InfluxDB (default: INFLUXDB_PORT, else 8086)")
    add("--database", help="of InfluxDB, or its bucket (default: INFLUXDB_DATABASE, else tplr)")
    add("--org", help="of InfluxDB (default: INFLUXDB_ORG, else tplr)")


def influxdb(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :meth:`tachograph.logger.influx_target.InfluxTarget.read`."""
    return {"host": options.host, "port": options.port, "database": options.database, "org": options.org}


def number(given: str, allowed: str) -> int:
    """Read an option that is a number from 0 on, with nine digits at most.

    Raises:
        argparse.ArgumentTypeError: it is none; the message says ``allowed``.
    """
    if not (given.isascii() and given.isdecimal() and len(given) < 10):  # noqa: PLR2004 - fits into 32 bits
        raise argparse.ArgumentTypeError(f"{allowed}, not {given!r:.100}")
    return int(given)


def port(given: str) -> int:
    """Read an option that is a port; 0 stands for any free one.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    allowed = f"a port is a number from 0 to {_LAST_PORT}"
    found = number(given, allowed)
    if found > _LAST_PORT:
        raise argparse.ArgumentTypeError(allowed)
    return found


def seconds(given: str) -> float:
    """Read an option that is a number of seconds, from 0 on.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"seconds are a number from 0 on, not {given!r:.100}")
    return found
