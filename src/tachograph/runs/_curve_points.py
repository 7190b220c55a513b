"""The points of curves in the blocks of a run's file, read as far as damage allows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tachograph.runs.blocks import DRAWN_REST, Block, Raw, Sample, unpack
from tachograph.runs.recorded import Curve, CurveSummary, Moment, add_intervals, extreme_moment, last_moment

if TYPE_CHECKING:
    from tachograph.runs.file import RunFile

Place = tuple[int, int, int]  # of a block: its id, and its first and last number


class CurvePoints:
    """The points of a file's curves.

    A block that cannot be read is left out, and is noted in the file's damage.

    Args:
        file: of the run.
    """

    def __init__(self, file: RunFile) -> None:
        self._file = file

    def summaries(self, curves: Iterable[Curve]) -> list[CurveSummary]:
        """Return the last, the smallest and the largest value of each curve that has points.

        Of each curve it reads three blocks of points at most.
        """
        found = []
        outlines = "SELECT id, seq0, seq1, n, min, max FROM block WHERE curve = ? ORDER BY seq0"
        try:
            with self._file.snapshot() as connection:
                for curve in curves:
                    blocks = []
                    try:
                        for block in connection.execute(outlines, (curve.number,)):
                            blocks.append(block)  # noqa: PERF402 - those before the damage count
                    except sqlite3.DatabaseError as error:
                        self._file.note(str(error))
                    if blocks:
                        found.append(self._summary(connection, curve, blocks))
        except sqlite3.DatabaseError as error:
            self._file.note(str(error))
        return found

    def _summary(self, connection: sqlite3.Connection, curve: Curve, blocks: Sequence[tuple[Any, ...]]) -> CurveSummary:
        def found(moment: Callable[[Block], Moment | None], block: Sequence[Any]) -> Moment | None:
            try:
                return moment(self._checked(connection, block[0])[1])
            except (sqlite3.DatabaseError, ValueError) as error:
                self._note_points(block[:3], error)
                return None

        last = found(last_moment, max(blocks, key=lambda block: block[2]))
        low = min((block for block in blocks if block[4] is not None), key=lambda block: block[4], default=None)
        high = max((block for block in blocks if block[5] is not None), key=lambda block: block[5], default=None)
        return CurveSummary(
            curve,
            sum(block[3] for block in blocks),
            last,
            None if low is None else found(partial(extreme_moment, column="min"), low),
            None if high is None else found(partial(extreme_moment, column="max"), high),
        )

    def raw(self, curve: Curve) -> dict[int, Raw]:
        """Return the points of each branch of a curve, as they are to be thinned for a chart."""
        found: dict[int, Raw] = {}
        plain = f"SELECT branch, form, pairs, {DRAWN_REST} FROM block WHERE curve = ? ORDER BY seq0"  # noqa: S608 - a constant
        for branch, form, xy, rest in self._file.rows(plain, curve.number):
            raw = found.setdefault(branch, Raw.empty())
            if rest is None:
                raw.pairs.append(xy)
            else:
                add_intervals(raw, Block(form, xy, rest))
        return found

    def samples(self, curve: Curve) -> Iterator[tuple[int, Sample]]:
        """Return an iterator over the points of a curve in recording order, each with its branch; it holds a block."""
        try:
            with self._file.snapshot() as connection:
                for together in _together(self._places(connection, curve)):
                    found = [each for place in together for each in self._block(connection, place)]
                    if len(together) > 1:  # requests came out of order
                        found.sort(key=lambda each: each[1].seq)
                    yield from found
        except sqlite3.DatabaseError as error:
            self._file.note(str(error))

    def _places(self, connection: sqlite3.Connection, curve: Curve) -> list[Place]:
        find = "SELECT id, seq0, seq1 FROM block{} WHERE curve = ? ORDER BY seq0"
        try:
            return connection.execute(find.format(""), (curve.number,)).fetchall()
        except sqlite3.DatabaseError as error:
            self._file.note(str(error))
        found = []
        try:  # without the index; and in no order, as far as it goes
            for row in connection.execute(
                "SELECT id, seq0, seq1 FROM block NOT INDEXED WHERE curve = ?", (curve.number,)
            ):
                found.append(row)  # noqa: PERF402 - rows before the damage count
        except sqlite3.DatabaseError as error:
            self._file.note(str(error))
        return sorted(found, key=lambda row: row[1])

    def _block(self, connection: sqlite3.Connection, place: Place) -> list[tuple[int, Sample]]:
        try:
            branch, block = self._checked(connection, place[0])
            return [(branch, sample) for sample in unpack(block)]
        except (sqlite3.DatabaseError, ValueError) as error:
            self._note_points(place, error)
            return []

    def _checked(self, connection: sqlite3.Connection, number: int) -> tuple[int, Block]:
        """Return the branch and the points of a block.

        Raises:
            sqlite3.DatabaseError: it cannot be read.
            ValueError: it is not as it was written.
        """
        find = "SELECT branch, crc, form, pairs, rest FROM block WHERE id = ?"
        ((branch, crc, *parts),) = connection.execute(find, (number,))
        block = Block(*parts)
        if block.crc() != crc:
            raise ValueError("not what was written")
        return branch, block

    def _note_points(self, place: Sequence[int], error: Exception) -> None:
        self._file.note(f"points {place[1]} to {place[2]} of a stream: {error}")


def _together(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Yield blocks in order; those whose numbers overlap are in one list."""
    together: list[Place] = []
    end = 0
    for place in places:
        if together and place[1] > end:
            yield together
            together = []
        together.append(place)
        end = max(end, place[2])
    if together:
        yield together
