"""What may differ between two sides: each pattern with what takes its place in an answer, and the reason."""

from __future__ import annotations

import re
from typing import NamedTuple


class Ignored(NamedTuple):
    """A part of answers that is not compared."""

    pattern: re.Pattern[str]
    shown: str
    reason: str


IGNORED = [
    Ignored(re.compile(r"127\.0\.0\.1:\d+"), "HUB", "the kernel chooses the port"),
    Ignored(re.compile(r'("pid": )\d+(, "store")'), r"\1PID\2", "the hub's own, in its announcement"),
    Ignored(re.compile(r"(Tachograph (?:hub|Studio) )\S+"), r"\1VERSION", "the package's version"),
    Ignored(re.compile(r'("(?:schema|tachograph\.schema)": ?)\d+'), r"\1SCHEMA", "the schema's number becomes another"),
    Ignored(re.compile(r"(tachograph-reads: )\d+"), r"\1SCHEMA", "the schema's number becomes another"),
    Ignored(re.compile(r'("(?:bytes|size)": ?)\d+'), r"\1BYTES", "the size of a file"),
    Ignored(re.compile(r"(?m)^(size +).*$"), r"\1BYTES", "the size of a file"),
    Ignored(re.compile(r"\b[0-9a-f]{16,32}\.doctor\b"), "RANDOM.doctor", "a random id of the hub's start"),
    Ignored(re.compile(r"(?m)^id: [0-9a-f]+-"), "id: RANDOM-", "a random id of the watcher of a live run"),
    Ignored(re.compile(r"(?m)^(?:system|process|hw)_.*\n"), "", "the hub's own process and its machine"),
]


def comparable(answer: str) -> str:
    """Return an answer without the parts that are not compared."""
    for each in IGNORED:
        answer = each.pattern.sub(each.shown, answer)
    return answer
