"""The Studio's API: questions, answered from the file of a run."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from tachograph.diagnosis.verdict_run import diagnosis
from tachograph.runs.blocks import exact, spelled
from tachograph.runs.catalogue import UnknownRunError, located
from tachograph.runs.ending import Ending, ending
from tachograph.runs.file import Look, RunFile, look
from tachograph.runs.file_lock import in_use
from tachograph.runs.kept_calls import kept_calls
from tachograph.runs.losses import losses
from tachograph.runs.members import Member, dictionary, members, notes, program
from tachograph.runs.newest_points import newest_points
from tachograph.runs.queries import read_newest_event_number
from tachograph.runs.store import StoreError
from tachograph.runs.window import Drawing
from tachograph.runs.x_axis import XAxis
from tachograph.studio._arrivals import since
from tachograph.studio._trace_url import trace_url
from tachograph.studio.charts import charts, curves, lines, newest_samples, samples, series
from tachograph.studio.faults import faults
from tachograph.studio.occurrences import events_for_a_browser, incidents
from tachograph.studio.overview import Overview, about, begun, functions, progress
from tachograph.studio.spreads import MOST_COLUMNS, spreads
from tachograph.studio.thinned_samples import MOST as MOST_STRETCHES

if TYPE_CHECKING:  # whoever answers questions from a store without a server needs no Starlette
    from starlette.responses import Response

MOST_PARTS = 2000  # of a query
_TRIES = 3  # where a hub begins to write the file that is read


class Question:
    """A request, parsed.

    Args:
        scope: of ASGI.

    Attributes:
        path: the parts of the path behind ``/api``, decoded: a part may hold a slash.

    Raises:
        Unanswered: the query has too many parts.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        raw = scope.get("raw_path") or scope["path"].encode()
        self.path = [unquote(part) for part in raw.decode("latin-1").partition("?")[0].split("/")[2:]]
        try:
            query = scope.get("query_string", b"").decode("latin-1")
            self._query = parse_qs(query, keep_blank_values=True, max_num_fields=MOST_PARTS)
        except ValueError:
            raise Unanswered(HTTPStatus.BAD_REQUEST, f"a query may have at most {MOST_PARTS} parts") from None

    def text(self, name: str) -> str | None:
        """Return the query's value of a name; None where there is none."""
        return next(iter(self._query.get(name, ())), None)

    def texts(self, name: str) -> list[str]:
        """Return all values of a name, in order."""
        return self._query.get(name, [])

    def number(self, name: str, default: float) -> float:
        """Return a finite number; ``default`` where the query has none.

        Raises:
            Unanswered: it is no number.
        """
        given = self.text(name)
        try:
            found = float(given) if given else default
        except ValueError:
            found = float("nan")
        if given and not isfinite(found):
            raise Unanswered(HTTPStatus.BAD_REQUEST, f"{name} must be a finite number, not {given!r:.100}")
        return found

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a whole number within bounds.

        Raises:
            Unanswered: it is none.
        """
        given = self.text(name)
        return default if not given else _whole(name, given, least, most)

    def rank(self) -> int | None:
        """Return the rank of the query; None for all.

        Raises:
            Unanswered: it is no number.
        """
        given = self.text("rank")
        return None if not given else _whole("rank", given, 0, 2**63 - 1)

    def wholes(self, name: str, *, most: int) -> list[int]:
        """Return whole numbers, each once.

        Raises:
            Unanswered: one is none, or there are more than ``most``.
        """
        found = list(dict.fromkeys(_whole(name, given, 0, 2**63 - 1) for given in self.texts(name)))
        if len(found) > most:
            raise Unanswered(HTTPStatus.BAD_REQUEST, f"at most {most} {name} at once, not {len(found)}")
        return found


def _whole(name: str, given: str, least: int, most: int) -> int:
    if given.isascii() and given.isdecimal() and len(given) < 20 and least <= int(given) <= most:  # noqa: PLR2004
        return int(given)
    raise Unanswered(
        HTTPStatus.BAD_REQUEST, f"{name} must be a whole number from {least} to {most}, not {given!r:.100}"
    )


_GZIP_LEVEL = 1
_WORTH_IT = 1024  # bytes, from which on an answer is compressed


class Unanswered(Exception):  # noqa: N818 - an answer, not a fault
    """An answer that is an error: a status and a sentence.

    Args:
        status: of the HTTP answer.
        why: a sentence for the reader.
        near: the run that may have been meant; empty for none.
    """

    def __init__(self, status: HTTPStatus, why: str, *, near: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.near = near


def text(data: Any) -> str:
    """Return data as JSON; NaN and infinities, which JSON has not, as strings: ProtoJSON."""
    try:
        return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(spelled(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def encoded(data: Mapping[str, Any], *, gzipped: bool) -> tuple[bytes, bool]:
    """Return the bytes of an answer, and whether they are compressed; lone surrogates become question marks.

    Args:
        data: a JSON object; each item of its lists is encoded by itself, so that other threads run in between.
        gzipped: compress it, unless it is small.
    """
    body = "".join(_parts(data)).encode("utf-8", "replace")
    if not gzipped or len(body) < _WORTH_IT:
        return body, False
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=31)
    return compressor.compress(body) + compressor.flush(), True


def _parts(data: Mapping[str, Any]) -> Iterable[str]:
    separator = "{"
    for key, value in data.items():
        yield f"{separator}{text(key)}:"
        separator = ","
        if isinstance(value, list):
            yield "[" + ",".join(map(text, value)) + "]"
        else:
            yield text(value)
    yield "}\n" if data else "{}\n"


def answer(body: bytes, *, gzipped: bool, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return an answer that is not cached."""
    from starlette.responses import Response

    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    return Response(body, status, {**headers, **({"Content-Encoding": "gzip"} if gzipped else {})})


def refusal(refused: Unanswered) -> Response:
    """Return the sentence as ``{"error": …}``, with the run that may have been meant as ``near``."""
    said = {"error": str(refused), **({"near": refused.near} if refused.near else {})}
    found = answer(encoded(said, gzipped=False)[0], gzipped=False, status=refused.status)
    if refused.status == HTTPStatus.UNAUTHORIZED:
        found.headers["WWW-Authenticate"] = "Bearer"
    return found


PAIRS = 2000
MOST_PAIRS = 20_000
MOST_SERIES = 500  # in one request for samples
MOST_CURVES = 4000  # in one request for points that have come since
MOST_EVENTS = 10_000
MOST_FUNCTIONS = 300  # in an answer about their calls
MOST_SAMPLES = 1000  # of a series, the newest
MOST_NEWEST = 1000  # points of a curve


class Api:
    """Answers questions; each method may be called from several threads at once.

    Args:
        folder: the store.
        run: the hub's own.
        clock: nanoseconds since the epoch.
        abandoned: asked now and then whether to stop reading.
        writable: whether the page may change runs, as it is told.
        standing: returns the ranks of a live run as they stand; None where nothing is known of them.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        clock: Callable[[], int],
        abandoned: Callable[[], bool],
        *,
        writable: bool = False,
        standing: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._own = run
        self._clock = clock
        self._abandoned = abandoned
        self._writable, self._standing = writable, standing
        self._overview = Overview(folder, clock, abandoned)

    def ask(self, question: Question) -> dict[str, Any]:
        """Return the answer.

        Raises:
            Unanswered: there is none; it says why.
            Abandoned: reading was to stop.
        """
        match question.path:
            case ["runs"]:
                return {"now": self._clock(), "run": self._own, "runs": self._listed()}
            case ["runs", run]:
                return self._read(run, lambda reading: self._run(reading, run))
            case ["runs", run, "calls"]:
                return self._read(run, self._calls)
            case ["runs", run, "doctor"]:
                return self._read(run, lambda reading: {"live": self._standing(run), "incidents": incidents(reading)})
            case ["runs", run, "faults"]:
                return self._read(run, self._faults)
            case ["runs", run, ("curves" | "arrivals" | "samples" | "spreads" | "events") as what]:
                return self._read(run, lambda reading: _ASKED[what](reading, question))
        raise Unanswered(HTTPStatus.NOT_FOUND, "not found; see /api/runs")

    def _read(self, run: str, answered: Callable[[Look], dict[str, Any]]) -> dict[str, Any]:
        for _ in range(_TRIES):
            with self.reading(run) as reading:
                found = answered(reading)
            if not reading.file.changed:
                break
        return {**found, **({"damage": list(reading.file.damage)} if reading.file.damage else {})}

    def _listed(self) -> list[dict[str, Any]]:
        try:
            return self._overview.runs()
        except StoreError as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"{error.strerror} ({error.filename})") from error

    @contextlib.contextmanager
    def reading(self, run: str) -> Iterator[Look]:
        """Lend a look at a run's file.

        Raises:
            Unanswered: there is no such run, or it cannot be read at all.
        """
        try:
            with look(RunFile(located(run, self._folder), looking=True), self._abandoned) as reading:
                yield reading
        except UnknownRunError as error:
            raise Unanswered(HTTPStatus.NOT_FOUND, str(error), near=error.near) from error
        except LookupError as error:
            raise Unanswered(HTTPStatus.NOT_FOUND, str(error.args[0])) from error
        except StoreError as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"cannot read the run {run!r:.200}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"cannot read the run {run!r:.200}: {error}") from error

    def line_of(self, reading: Look, run: str, found: list[Member]) -> dict[str, Any]:
        """Return the entry of a run in the list of runs."""
        said = about(reading, run, found, self._clock(), written=in_use(reading.file.path))
        return {**said, "damage": list(reading.file.damage)}

    def ending_of(self, reading: Look, found: list[Member]) -> Ending:
        """Return how a run has ended, as of now."""
        return ending(reading, found, self._clock(), written=in_use(reading.file.path))

    def _calls(self, reading: Look) -> dict[str, Any]:
        found = kept_calls(reading.rows)
        listed = [
            {
                "function": each.function,
                "slowest": [call._asdict() for call in each.slowest],
                "failed": [call._asdict() for call in each.failed],
            }
            for each in found[:MOST_FUNCTIONS]
        ]
        return {"calls": listed, "more": max(0, len(found) - MOST_FUNCTIONS), "trace_url": trace_url(os.environ)}

    def _faults(self, reading: Look) -> dict[str, Any]:
        now = self._clock()
        found, more = faults(reading, now, written=in_use(reading.file.path))
        lost = [{**each._asdict(), "why": each.why} for each in losses(reading.rows)]
        goes_on = self.ending_of(reading, members(reading)).state == "running"
        told = diagnosis(reading, now if goes_on else 0, recent=goes_on).goodput
        goodput = None if told is None else told.data()
        return {"now": now, "faults": [each.data() for each in found], "more": more, "losses": lost, "goodput": goodput}

    def _run(self, reading: Look, run: str) -> dict[str, Any]:
        now, found, drawn = self._clock(), members(reading), curves(reading)
        written = in_use(reading.file.path)
        by_process, together = functions(reading)
        listed = {
            "processes": [_process(each, now, written=written) for each in found],
            "charts": charts(reading, drawn),
            "progress": progress(reading, drawn),
            "series": series(reading),
            "functions": by_process,
            "functions_together": together,
            "losses": [{**each._asdict(), "why": each.why} for each in losses(reading.rows)],
            "config": exact(dictionary(reading.rows, "config")),
            "summary": exact(dictionary(reading.rows, "summary")),
            "program": exact(program(reading.rows)),
            "notes": notes(reading.rows),
        }
        return {"now": now, "writable": self._writable, "run": self.line_of(reading, run, found), **listed}


def _process(each: Member, now: int, *, written: bool) -> dict[str, Any]:
    newest = each.newest
    named = {"instance": each.instance, "rank": each.rank, "role": each.role, "pid": newest.pid}
    times = {"starts": len(each.starts), "first": each.starts[0].first, "last": newest.last, "ended": newest.ended}
    host = str(each.resource.get("host.name", ""))
    return {**named, "host": host, **times, "lost": each.lost(now, written=written)}


def _curves(reading: Look, question: Question) -> dict[str, Any]:
    """Answer ``?metric=NAME``, or ``?curve=N&newest=K`` for the last points of curves, as they were recorded."""
    if newest := question.whole("newest", 0, most=MOST_NEWEST):
        numbers = question.wholes("curve", most=MOST_SERIES)
        return {"curves": [each._asdict() for each in newest_points(reading, numbers, newest)]}
    metric = question.text("metric")
    if not metric:
        raise Unanswered(HTTPStatus.BAD_REQUEST, "no metric given: add ?metric=NAME")
    how = Drawing(
        question.whole("pairs", PAIRS, least=1, most=MOST_PAIRS),
        question.number("low", -inf),
        question.number("high", inf),
        _axis(reading, question.text("x") or "own"),
        bool(question.whole("knots", 0, most=1)),
    )
    return {"curves": lines(reading, metric, group=question.text("group"), rank=question.rank(), how=how)}


def _arrivals(reading: Look, question: Question) -> dict[str, Any]:
    given = [each.partition(":") for each in (question.text("after") or "").split(",") if each]
    if len(given) > MOST_CURVES:
        raise Unanswered(HTTPStatus.BAD_REQUEST, f"at most {MOST_CURVES} curves at once, not {len(given)}")
    most = 2**63 - 1
    known = {_whole("after", curve, 0, most): _whole("after", head, 0, most) for curve, _, head in given}
    return since(reading, known, question.whole("newer", most))


def _axis(reading: Look, wanted: str) -> XAxis:
    """Return the x axis of a name."""
    match wanted:
        case "own":
            return XAxis()
        case "step":
            return XAxis("number")
        case "wall":
            return XAxis("time")
        case "relative":
            return XAxis("time", begun(reading, members(reading)))
    raise Unanswered(HTTPStatus.BAD_REQUEST, f"x must be own, step, relative or wall, not {wanted!r:.100}")


def _samples(reading: Look, question: Question) -> dict[str, Any]:
    numbers = question.wholes("series", most=MOST_SERIES)
    if newest := question.whole("newest", 0, most=MOST_SAMPLES):
        return {"samples": newest_samples(reading, numbers, newest)}
    low, high = question.whole("low", 0), question.whole("high", 2**63 - 1)
    stretches = question.whole("stretches", MOST_STRETCHES, least=1, most=MOST_PAIRS)
    return {"samples": samples(reading, numbers, low=low, high=high, stretches=stretches)}


def _spreads(reading: Look, question: Question) -> dict[str, Any]:
    numbers = question.wholes("series", most=MOST_SERIES)
    low, high = question.whole("low", 0), question.whole("high", 2**63 - 1)
    columns = question.whole("columns", MOST_COLUMNS, least=1, most=MOST_COLUMNS)
    return spreads(reading, numbers, low=low, high=high, columns=columns)


def _events(reading: Look, question: Question) -> dict[str, Any]:
    """Answer ``?after=NUMBER``; with ``&newest=K`` the last K of these events, whatever their names."""
    limit, after = question.whole("limit", 1000, least=1, most=MOST_EVENTS), question.whole("after", 0)
    if newest := question.whole("newest", 0, most=MOST_EVENTS):
        limit, after = newest, max(after, read_newest_event_number(reading.rows) - newest)
    found, more = events_for_a_browser(reading, after=after, limit=limit, names=question.texts("name"))
    return {"events": found, "more": more}


_ASKED: dict[str, Callable[[Look, Question], dict[str, Any]]] = {
    "curves": _curves,
    "arrivals": _arrivals,
    "samples": _samples,
    "spreads": _spreads,
    "events": _events,
}
