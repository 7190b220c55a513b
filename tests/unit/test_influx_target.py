"""Which InfluxDB arguments and variables name."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.logger.influx_target import InfluxTarget

TOKEN = "s3cr3t-t0k3n"  # noqa: S105 - it is what must not be found


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("custom.influxdb.host", "https://custom.influxdb.host:8086"),
        ("10.0.0.7", "https://10.0.0.7:8086"),
        ("localhost", "http://localhost:8086"),
        ("127.0.0.1", "http://127.0.0.1:8086"),
        ("127.8.9.1:99", "http://127.8.9.1:99"),
        ("::1", "http://[::1]:8086"),
        ("[::1]:99", "http://[::1]:99"),
        ("2001:db8::1", "https://[2001:db8::1]:8086"),
        ("http://influx", "http://influx:8086"),
        ("https://localhost:1/", "https://localhost:1"),
        (" https://influx/behind/proxy/ ", "https://influx:8086/behind/proxy"),
    ],
)
def test_host(host: str, url: str) -> None:
    """A bare host is https, a loopback one http; a URL says what it is, and both may have a port."""
    found = InfluxTarget.read({}, host=host)
    assert found is not None
    assert found.url == url
    assert (found.database, found.org, found.token) == ("tplr", "tplr", "")


def test_variables_stand_in_for_arguments() -> None:
    """Each argument that is not given is read from its variable."""
    environ = {
        "INFLUXDB_HOST": "influx",
        "INFLUXDB_PORT": "99",
        "INFLUXDB_DATABASE": "bucket",
        "INFLUXDB_TOKEN": TOKEN,
        "INFLUXDB_ORG": "us",
    }
    assert InfluxTarget.read(environ) == InfluxTarget("https://influx:99", "bucket", "us", TOKEN)
    floats = InfluxTarget.read({**environ, "INFLUXDB_INTEGERS": "float"})
    assert floats == InfluxTarget("https://influx:99", "bucket", "us", TOKEN, integers="float")
    assert InfluxTarget.read({**environ, "INFLUXDB_INTEGERS": "float"}, integers="integer") == InfluxTarget.read(
        environ
    )
    given = InfluxTarget.read(environ, host="http://a:1", database="b", org="c", token="d")  # noqa: S106 - no secret
    assert given == InfluxTarget("http://a:1", "b", "c", "d")
    assert InfluxTarget.read(environ, host="http://a:1", port=7) == InfluxTarget("http://a:7", "bucket", "us", TOKEN)


def test_a_wrong_type_of_integers() -> None:
    """A type of integers that there is not is a ValueError that names the variable or the argument."""
    with pytest.raises(ValueError, match=r"^INFLUXDB_INTEGERS must be"):
        InfluxTarget.read({"INFLUXDB_HOST": "influx", "INFLUXDB_INTEGERS": "floats"})
    with pytest.raises(ValueError, match=r"^integers must be"):
        InfluxTarget.read({"INFLUXDB_HOST": "influx"}, integers="")


@pytest.mark.parametrize("environ", [{}, {"INFLUXDB_HOST": ""}, {"INFLUXDB_HOST": " ", "INFLUXDB_PORT": "99"}])
def test_no_host(environ: dict[str, str]) -> None:
    """Without a host there is no database."""
    assert InfluxTarget.read(environ) is None
    assert InfluxTarget.read({"INFLUXDB_HOST": "influx"}, host="") is None


@pytest.mark.parametrize("port", ["eight", "0", "65536", "-1", "8086.0"])
def test_bad_port(port: str) -> None:
    """A port that is none is an error that names the variable, with or without a host."""
    for environ in ({"INFLUXDB_PORT": port}, {"INFLUXDB_PORT": port, "INFLUXDB_HOST": "influx"}):
        with pytest.raises(ValueError, match=f"INFLUXDB_PORT must be a port from 1 to 65535: '{port}'"):
            InfluxTarget.read(environ)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"host": 7}, TypeError, "host must be a host name or a URL, not int"),
        ({"host": "ftp://influx"}, ValueError, "must be a host name, or a URL like"),
        ({"host": "http://influx?db=a"}, ValueError, "must be a host name, or a URL like"),
        ({"host": "http://influx:x"}, ValueError, "is neither a host name nor a URL"),
        ({"host": "in flux"}, ValueError, "without white space"),
        ({"host": "influx", "port": True}, TypeError, "port must be a port"),
        ({"host": "influx", "port": 8086.0}, TypeError, "port must be a port"),
        ({"host": "influx", "port": 0}, ValueError, "port must be a port"),
        ({"host": "influx", "token": 7}, TypeError, "token must be a string, not int"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """What is none is an error at once that says what to write."""
    with pytest.raises(error, match=message):
        InfluxTarget.read({}, **arguments)


def test_secrets_stay_secret() -> None:
    """Neither the text of a target nor an error shows a token or a password."""
    assert TOKEN not in repr(InfluxTarget("http://a:1", token=TOKEN))
    with pytest.raises(ValueError, match="token=") as raised:
        InfluxTarget.read({}, host=f"https://me:{TOKEN}@influx")
    assert TOKEN not in str(raised.value)
