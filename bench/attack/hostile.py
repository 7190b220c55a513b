"""Hostile values of every type that a wire or an API carries, between plain ones."""

from __future__ import annotations

import time
from random import Random
from typing import Any, TypeVar

Each = TypeVar("Each")

SECOND = 10**9
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\n",
        "a\nb",
        "a\r\nb",
        "\t",
        '"',
        '\\"',
        "\\",
        "a\\",
        "'",
        "`",
        "#",
        "# EOF",
        "# TYPE a b",
    ),
    *(
        "{}",
        '{a="b"}',
        ",",
        "=",
        "a=b,c=d",
        "a b",
        "a.b",
        "a-b",
        "a/b",
        "..",
        "../../up",
        "/",
        "//",
        ".",
        "~",
        "-",
        "--",
    ),
    *(
        "é",
        "été",
        "日本",
        "\U0001f600",
        "\u202e",
        "\u2028",
        "\ufeff",
        "\ufffe",
        "\x7f",
        "\x1b[31m",
        "\ud7ff",
        "a\u0301",
    ),
    *("1", "1abc", "0", "-1", "nan", "inf", "1e999", "true", "null", "None", "%s", "%00", "%", "{0}", "${HOME}"),
    *("_", "__", "__name__", ":", "a:b", "le", "quantile", "job", "instance", "time", "otel_scope_name", "target_info"),
    *("up", "a_total", "a_count", "a_sum", "a_bucket", "a_created", "a_info", "total", "_total", "dl_rank", "dl.rank"),
    *("'; DROP TABLE event; --", "=1+1", "@a", "+1", "<script>", "a" * 255, "é" * 300, "a" * 1024, "a" * 1025),
)
HUGE = ("a" * 20_000, "é" * 40_000, "\n" * 5_000, '"' * 70_000)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-9, 5e-324, 1e300, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**53 + 2)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
INTS = (0, 1, -1, 2, 255, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63))
UNSIGNED = (0, 1, 2, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
TIMES = (0, 1, 10**9, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_LETTERS = "".join(map(chr, (*range(1, 0x500), 0x2028, 0x65E5, 0xFEFF, 0xFFFF, 0x1F600, 0x10FFFF)))
APART = (0, 1, SECOND, 59 * SECOND, 61 * SECOND, 3600 * SECOND, 10 * 365 * 86_400 * SECOND)


def text(random: Random, *, huge: float = 0.002) -> str:
    """Return a text; at the rate ``huge`` a very long one."""
    chosen = random.random()
    if chosen < huge:
        return random.choice(HUGE)
    if chosen < 0.8:
        return random.choice(TEXTS)
    if chosen < 0.9:
        return random.choice(TEXTS) + random.choice(TEXTS)
    return "".join(random.choices(_LETTERS, k=random.randint(1, 9)))


def number(random: Random) -> float:
    """Return a float: one of three is odd, one of twenty not finite."""
    chosen = random.random()
    if chosen < 0.05:
        return random.choice(NOT_FINITE)
    return random.choice(FLOATS) if chosen < 0.33 else random.uniform(-10, 1000)


def integer(random: Random) -> int:
    """Return a signed integer of 64 bits."""
    return random.choice(INTS) if random.random() < 0.3 else random.randint(-3, 1000)


def unsigned(random: Random) -> int:
    """Return an unsigned integer of 64 bits."""
    return random.choice(UNSIGNED) if random.random() < 0.1 else random.randint(0, 1000)


def moment(random: Random) -> int:
    """Return nanoseconds since the epoch: mostly now, or as far from it as a wrong clock is, or farther."""
    chosen = random.random()
    if chosen < 0.6:
        return time.time_ns()
    if chosen < 0.85:
        return max(0, time.time_ns() + random.choice((-1, 1)) * random.choice(APART))
    return random.choice(TIMES)


def plain(random: Random, depth: int = 3) -> Any:
    """Return any value that JSON has, nested a little."""
    chosen = random.randrange(8 if depth else 5)
    if chosen == 0:
        return text(random)
    if chosen == 1:
        return number(random)
    if chosen == 2:
        return random.choice((*INTS, 10**30, -(10**400)))
    if chosen < 5:
        return random.choice((None, True, False))
    if chosen == 5:
        return {text(random): plain(random, depth - 1) for _ in range(random.randrange(3))}
    return [plain(random, depth - 1) for _ in range(random.randrange(4))]


class Nothing:
    """An object of no type that an API expects, whose ``repr`` is long."""

    def __repr__(self) -> str:
        return "<an object of no use" + " at all" * 100 + ">"


def thing(random: Random, usual: tuple[Any, ...] = ()) -> Any:
    """Return an object for an argument: one of three is of those that are usual there."""
    if usual and random.random() < 0.33:
        return random.choice(usual)
    chosen = random.randrange(10)
    if chosen < 5:
        return plain(random, 2)
    odd: tuple[Any, ...] = (
        *(
            b"bytes",
            b"",
            object(),
            Nothing(),
            int,
            len,
            (),
            {1: 2},
            {"a"},
            range(3),
            1j,
            "\udcff",
            "\ud800a",
            "a" * 10_000,
        ),
        *(10**5000, -1, 0, 65_535, 65_536, float("nan"), float("inf"), Ellipsis, NotImplemented, ValueError("value")),
    )
    return random.choice(odd)
