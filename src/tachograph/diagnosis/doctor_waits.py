"""Waits of ranks for each other: operations aligned by the name of their process group and their number.

Never by torch's id of a group, which differs between ranks. Source of the rules: which rank is late, and where two call
different operations under one number, follows from the flight recorder's entries and from sequence numbers alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# Operations of which all ranks have to give tensors of one size and type; of others they may differ.
_ALIKE = ("all_reduce", "allreduce", "broadcast", "all_gather", "allgather")


class Operation(NamedTuple):
    """An operation that a rank has begun.

    Attributes:
        group: the name of the process group.
        number: of the operation in its group.
        created: nanoseconds since the epoch.
    """

    group: str
    number: int
    name: str
    sizes: str
    types: str
    done: bool
    created: int

    @property
    def shape(self) -> tuple[str, str, str]:
        """The part that has to be alike in all ranks: the name, and of some operations sizes and types."""
        return (self.name, self.sizes, self.types) if self.name in _ALIKE else (self.name, "", "")


class Wait(NamedTuple):
    """A rank in an operation that does not end.

    Attributes:
        late: ranks that have not begun it.
    """

    rank: int
    operation: Operation
    members: tuple[int, ...]
    late: tuple[int, ...]


class Mismatch(NamedTuple):
    """An operation that ranks call differently, and the ranks by how they call it."""

    group: str
    number: int
    ranks: Mapping[tuple[str, str, str], tuple[int, ...]]

    @property
    def guilty(self) -> tuple[int, ...]:
        """The minority; all of them where there is none."""
        sizes = sorted(self.ranks.values(), key=len)
        if len(sizes) == 2 and len(sizes[0]) < len(sizes[1]):  # noqa: PLR2004 - else there is no majority
            return sizes[0]
        return tuple(sorted(rank for ranks in sizes for rank in ranks))


class Alignment(NamedTuple):
    """The ranks beside each other: who waits, and where they differ."""

    waits: Mapping[int, Wait]
    mismatch: Mismatch | None


class RankGroups(NamedTuple):
    """A rank's own view: its groups with their members and last numbers, and the operations in its flight recorder."""

    members: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, int]
    operations: Sequence[Operation]


def operations_of(entries: Iterable[Sequence[Any]]) -> list[Operation]:
    """Return the collective operations in the entries of a pulse."""
    return [
        Operation(group, number, name.rpartition(":")[2], str(sizes), ",".join(map(str, types)), done, created)
        for group, number, p2p, name, sizes, types, done, created in entries
        if not p2p
    ]


def members_of(ranges: str) -> tuple[int, ...]:
    """Return the ranks of ``0-3,6``."""
    found: list[int] = []
    for part in filter(None, ranges.split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def aligned(views: Mapping[int, RankGroups]) -> Alignment:
    """Return who waits for whom."""
    reached: dict[tuple[int, str], int] = {}
    begun: dict[tuple[int, str, int], Operation] = {}
    pending: dict[tuple[int, str], Operation] = {}
    members: dict[str, tuple[int, ...]] = {}
    for rank, view in views.items():
        members |= view.members
        for group, number in view.numbers.items():
            reached[rank, group] = number
        for group in {each.group for each in view.operations}:  # not its number: send and receive may count there, too
            reached[rank, group] = max(each.number for each in view.operations if each.group == group)
        for each in view.operations:
            begun[rank, each.group, each.number] = each
            if not each.done:
                pending.setdefault((rank, each.group), each)
    waits: dict[int, Wait] = {}
    mismatch = None
    for (rank, group), each in sorted(pending.items(), key=lambda pair: pair[1].created):
        ranks = members.get(group) or tuple(sorted(other for other, name in reached if name == group))
        late = [other for other in ranks if other in views and reached.get((other, group), 0) < each.number]
        waits[rank] = Wait(rank, each, ranks, tuple(late))
        mismatch = mismatch or _mismatch(begun, ranks, group, each.number)
    return Alignment(waits, mismatch)


def _mismatch(
    begun: Mapping[tuple[int, str, int], Operation], ranks: Sequence[int], group: str, number: int
) -> Mismatch | None:
    found: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        each = begun.get((rank, group, number))
        if each is not None:
            found[each.shape].append(rank)
    if len(found) < 2:  # noqa: PLR2004 - they are alike
        return None
    return Mismatch(group, number, {shape: tuple(of) for shape, of in found.items()})


def roots(waits: Mapping[int, Wait], unable: Iterable[int]) -> Counter[int]:
    """Return the ranks at the end of each chain of waits, with the number of chains that lead there.

    Args:
        waits: of the ranks.
        unable: ranks that have gone, or give no sign: where all have begun an operation, it waits for these.
    """
    stuck, found = set(unable), Counter[int]()
    for rank, wait in waits.items():
        if rank in stuck:
            continue
        for first in wait.late or tuple(other for other in wait.members if other in stuck):
            found[_root(waits, stuck, first, rank)] += 1
    return found


def _root(waits: Mapping[int, Wait], stuck: set[int], rank: int, begin: int) -> int:
    path = [begin]
    while rank in waits and rank not in stuck and rank not in path:
        path.append(rank)
        following = [other for other in waits[rank].late if other != rank]
        if not following:
            break
        rank = following[0]
    return rank
