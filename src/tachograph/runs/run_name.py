"""The two-word name of a run, such as ``brisk-otter``: easier to tell apart and to say than its id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files


@cache
def _words() -> tuple[list[str], list[str]]:
    """Return the adjectives and the animals. Leave them as they are: with another word, runs have other names."""
    adjectives, animals = files("tachograph.runs").joinpath("run_names.txt").read_text("ascii").split("\n\n")
    return adjectives.split(), animals.split()


def two_words(run_id: str) -> str:
    """Return the name that every node gives a run, from its id alone."""
    digest = hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()
    adjectives, animals = _words()
    first = adjectives[int.from_bytes(digest[:4], "big") % len(adjectives)]
    second = animals[int.from_bytes(digest[4:8], "big") % len(animals)]
    return f"{first}-{second}"


def distinct_names(runs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a name for each run of a store, by id; no two are equal.

    Args:
        runs: pairs of an id and the name that somebody gave the run, empty for none; the oldest run first. A given name
            stays as it is. Of runs with the same two words, the second is called ``brisk-otter-2``.
    """
    listed = list(runs)
    taken = {given for _, given in listed if given}
    names = {}
    for run_id, given in listed:
        name = given or _free(two_words(run_id), taken)
        taken.add(name)
        names[run_id] = name
    return names


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
