"""The address of an InfluxDB, and the options of a writer to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

DATABASE = "tplr"
ORG = "tplr"
PORT = 8086
QUEUE_SIZE = 600_000
BATCH_SIZE = 1_000
BATCH_SIZES = {"validator": 10_000}  # by role

_PORTS = range(1, 65_536)


@dataclass(frozen=True)
class MertricsLoggerWriteOptions:
    """Options of a logger's writes to InfluxDB, spelled as in the original.

    Attributes:
        batch_size: the maximum number of points in one write.
    """

    batch_size: int = 5_000


@dataclass(frozen=True, slots=True)
class InfluxTarget:
    """One InfluxDB, as one writer uses it.

    Attributes:
        url: ``scheme://host:port``, with a path where the server has one.
        database: the bucket (v2) or the database (v1).
        org: the organisation (v2).
        token: "" to send no Authorization header.
        batch_size: points in one write, at most.
        concurrency: writes at a time, at most.
        queue_size: points that wait in memory, at most; those that came last stay, even where they are more.
        integers: ``"integer"`` to write integers as integers, ``"float"`` to write all numbers as floats.

    Raises:
        ValueError: no HTTP header can carry the token.
    """

    url: str
    database: str = DATABASE
    org: str = ORG
    token: str = field(default="", repr=False)
    batch_size: int = BATCH_SIZE
    concurrency: int = 1
    queue_size: int = QUEUE_SIZE
    integers: str = "integer"

    def __post_init__(self) -> None:
        """Refuse a wrong token here: the first write would do so in a message that shows it."""
        if not self.token.isprintable() or not _is_latin1(self.token):
            raise ValueError(
                "the token (token= or INFLUXDB_TOKEN; not shown here) contains a character that HTTP headers do not "
                "allow, such as a line break"
            )

    @property
    def place(self) -> tuple[str, str, str]:
        """The database itself, without the way of writing to it: loggers with the same place share it."""
        return self.url, self.database, self.org

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        *,
        host: str | None = None,
        port: int | str | None = None,
        database: str | None = None,
        token: str | None = None,
        org: str | None = None,
        batch_size: int = BATCH_SIZE,
        concurrency: int = 1,
        queue_size: int = QUEUE_SIZE,
        integers: str | None = None,
    ) -> InfluxTarget | None:
        """Return the target that arguments, or else the ``INFLUXDB_*`` variables, name; None where no host is given.

        A host may be a URL with its scheme, and a port; a bare host is https, a loopback address http. A port as
        argument wins over the URL's, which wins over ``INFLUXDB_PORT``. White space around a text is none of it, as
        that of a token read from a file.

        Raises:
            ValueError: a host, a port, a token or a type of integers that is none; the message names where it was
                given.
            TypeError: an argument is of another type.
        """
        where, told = ("host", host) if host is not None else ("INFLUXDB_HOST", environ.get("INFLUXDB_HOST"))
        if not isinstance(told, str | None):
            raise TypeError(f"host must be a host name or a URL, not {type(told).__name__}: {told!r:.100}")
        said = {
            name: _text(name, value, environ, default)
            for name, value, default in (("database", database, DATABASE), ("token", token, ""), ("org", org, ORG))
        }
        by_variable = _port("INFLUXDB_PORT", environ["INFLUXDB_PORT"]) if environ.get("INFLUXDB_PORT") else None
        integer_type = _integer_type(integers, environ)
        by_argument = None if port is None else _port("port", port)
        if not told or told.isspace():
            return None
        parts = _split(where, told.strip())
        number = by_argument or parts.port or by_variable or PORT
        return cls(
            f"{parts.scheme}://{_bracketed(parts.hostname or '')}:{number}{parts.path.rstrip('/')}",
            **said,
            batch_size=batch_size,
            concurrency=concurrency,
            queue_size=queue_size,
            integers=integer_type,
        )


def _integer_type(given: str | None, environ: Mapping[str, str]) -> str:
    if given is None:
        name = "INFLUXDB_INTEGERS"
        value = environ.get(name, "").strip() or "integer"
    else:
        name = "integers"
        value = given
    if value not in {"integer", "float"}:
        raise ValueError(f'{name} must be "integer" or "float", not {value!r:.100}')
    return value


def _text(name: str, value: object, environ: Mapping[str, str], default: str) -> str:
    if value is None:
        value = environ.get(f"INFLUXDB_{name.upper()}", "")
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")  # never the value: it may be the token
    return value.strip() or default


def _is_latin1(text: str) -> bool:
    """Tell whether a text has only characters that HTTP headers can carry: RFC 9110, "Field Values"."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _port(where: str, given: object) -> int:
    wrong = f"{where} must be a port from 1 to 65535: {given!r:.100}"
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError(wrong)
    try:
        number = int(given)
    except ValueError:
        raise ValueError(wrong) from None
    if number not in _PORTS:
        raise ValueError(wrong)
    return number


def _split(where: str, host: str) -> SplitResult:
    """Return the parts of a URL, or of a bare host; never its credentials, which it must not have."""
    try:
        parts = urlsplit(host if "://" in host else f"//{_bracketed(host)}")
        parts.port  # noqa: B018 - reading it is what checks it
    except ValueError as error:
        raise ValueError(f"{where} is neither a host name nor a URL: {error}") from None
    if "@" in parts.netloc:
        raise ValueError(f"{where} contains credentials: pass them as token= or INFLUXDB_TOKEN")
    if parts.scheme not in {"", "http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{where} must be a host name, or a URL like https://host:8086: {host!r:.100}")
    if any(letter.isspace() or not letter.isprintable() for letter in host):
        raise ValueError(f"{where} must be a host name without white space: {host!r:.100}")
    scheme = parts.scheme or ("http" if is_loopback(parts.hostname) else "https")
    return parts._replace(scheme=scheme)


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host  # noqa: PLR2004 - IPv6
    except ValueError:
        return host


def is_loopback(host: str) -> bool:
    """Tell whether a host name or an address is this machine's loopback."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
