"""The Studio live: what comes into a run reaches whoever listens, soon and once, and listening holds nothing up."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from pathlib import Path
from typing import Any

from hub_requests import logs, metrics, number, rank
from hubs import PROTOBUF, Serving, ask, serving
from recorded_runs import points
from studio import Stream, Studio, studio

RUN = "a/run"


def send(url: str, *sent: tuple[str, Any], first: int = 1, stream: str = "s") -> None:
    """Send events and points as rank 0 of the run."""
    body = logs(rank(0, run=RUN), *sent, stream=stream, first=first).SerializeToString()
    assert ask(url, "/v1/logs", body, content_type=PROTOBUF).status == 200


def at(x: float, value: float, metric: str = "loss", **more: Any) -> tuple[str, dict[str, Any]]:
    """Return one point."""
    return "tachograph.metric", {"metric": metric, "x": x, "value": value, **more}


def test_points_come_within_seconds_in_a_chain(tmp_path: Path) -> None:
    """Each message says behind which number its points lie, so that whoever has those before can add them."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0), at(1, 2.0))
        with Studio(hub.url).live(RUN) as stream:
            _, _, hello = stream.next("hello")
            (line,) = Studio(hub.url).ask("runs", RUN, "curves", metric="loss")["curves"]
            assert hello == {"heads": {str(line["curve"]): line["seq"]}, "events": 0, "progress": [], "resumed": False}
            began = time.monotonic()
            send(hub.url, at(2, 3.0), at(3, float("nan")), first=3)
            send(hub.url, at(0, 5.0, branch=1), at(2, 6.0, min=4.0, max=9.0, min_x=0.5, max_x=1.5), first=5)
            found: list[Any] = []
            while not found or found[-1]["seq"] < 6:
                found += stream.next("points")[2]["curves"]
            assert time.monotonic() - began < 5
        assert [each["after"] for each in found] == [line["seq"], *(each["seq"] for each in found[:-1])]
        drawn = [(each["branch"], point) for each in found for point in each["points"]]
        assert drawn == [
            *((0, [2, 3]), (0, [3, None, "NaN"]), (1, [0, 5])),
            *((0, [0.5, 4]), (0, [1.5, 9]), (0, [2, 6])),
        ]


def test_new_curves_events_and_bars_are_told_of(tmp_path: Path) -> None:
    """A metric that comes up is new; events come whole; a loop's progress comes when it goes on."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0))
        with Studio(hub.url).live(RUN) as stream:
            stream.next("hello")
            send(hub.url, ("tachograph.definition", {"metric": "epochs", "progress": True}), ("hi", {"a": 1}), first=2)
            assert stream.next("events")[2]["events"][0]["attributes"] == {"a": 1}
            send(hub.url, at(0, 0.0, "epochs", total=3), first=4)
            (new,) = stream.next("points")[2]["new"]
            assert stream.next("progress")[2]["progress"][0]["count"] == 0
            send(hub.url, at(1, 2.0, "epochs", total=3, rate=1.5, eta=0.5), first=5)
            (entry,) = stream.next("points")[2]["curves"]
            assert (entry["curve"], entry["points"]) == (new, [[1, 2]])
            (bar,) = stream.next("progress")[2]["progress"]
            assert (bar["count"], bar["total"], bar["rate"], bar["eta"], bar["done"]) == (2, 3, 1.5, 0.5, False)
            with Studio(hub.url).live(RUN) as later:  # whoever has asked before that, and listens after it
                assert later.next("hello")[2]["progress"] == [bar]


def test_a_definition_that_comes_later_makes_a_curve_new(tmp_path: Path) -> None:
    """A page that has drawn a metric without its scale hears that there is more to know."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0))
        with Studio(hub.url).live(RUN) as stream:
            (curve,) = stream.next("hello")[2]["heads"]
            send(hub.url, ("tachograph.definition", {"metric": "loss", "units": "nats"}), first=2)
            assert stream.next("points")[2]["new"] == [int(curve)]


def test_too_many_points_are_only_told_of(tmp_path: Path) -> None:
    """Of a curve that more came to than a page draws at once it is said that it is stale."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0), at(0, 1.0, "other"))
        with Studio(hub.url).live(RUN) as stream:
            heads = stream.next("hello")[2]["heads"]
            loss = next(int(curve) for curve, seq in heads.items() if seq == 1)
            send(hub.url, *points([1.0] * 1500), at(1, 2.0, "other"), first=3)
            _, _, found = stream.next("points")
            assert found["stale"] == [loss]
            assert [each["points"] for each in found["curves"]] == [[[1, 2]]]


def test_blocks_that_are_joined_meanwhile_lose_nothing(tmp_path: Path) -> None:
    """However the hub puts points together in its file, each is streamed once."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 0.0))
        with Studio(hub.url).live(RUN) as stream:
            stream.next("hello")
            for x in range(1, 400):
                send(hub.url, at(x, x / 2), first=1 + x)
            found: list[Any] = []
            while not found or found[-1] != [399, 199.5]:
                found += [point for each in stream.next("points")[2]["curves"] for point in each["points"]]
        assert found == [[x, x / 2] for x in range(1, 400)]


def test_whoever_comes_back_gets_what_was_missed(tmp_path: Path) -> None:
    """With the id of the last message the stream goes on behind it; with one that nobody knows it begins anew."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0))
        with Studio(hub.url).live(RUN) as stream:
            stream.next("hello")
            send(hub.url, at(1, 2.0), first=2)
            cursor, _, _ = stream.next("points")
            send(hub.url, at(2, 3.0), first=3)
            missed = stream.next("points")
        with Studio(hub.url).live(RUN, Last_Event_ID=cursor) as stream:
            assert stream.next("hello")[2]["resumed"] is True
            assert stream.next("points") == missed
        with Studio(hub.url).live(RUN, Last_Event_ID="00000000-5") as stream:
            assert stream.next("hello")[2]["resumed"] is False


def test_samples_and_the_run_itself_come_too(tmp_path: Path) -> None:
    """What the hub saves of series is streamed, and how the run stands when that changes."""
    with studio(tmp_path) as hub:
        send(hub.url, ("tachograph.process.start", {}))
        with hub.live(RUN) as stream:
            stream.next("hello")
            body = metrics(rank(0, run=RUN), number("temperature", 5.5, time=time.time_ns())).SerializeToString()
            assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
            (sample,) = stream.next("samples")[2]["samples"]
            assert sample["value"] == [5.5]
            send(hub.url, ("tachograph.process.end", {"reason": "exit"}), first=2)
            while stream.next("run")[2]["state"] != "finished":
                pass


def test_a_stream_has_heartbeats_and_says_what_it_is(tmp_path: Path) -> None:
    """The headers are those of server-sent events, nothing keeps it, and a quiet one is not silent."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0))
        with Studio(hub.url).live(RUN) as stream:
            assert stream.response.getheader("content-type") == "text/event-stream; charset=utf-8"
            assert stream.response.getheader("cache-control") == "no-store"
            assert stream.response.readline() == b"retry: 1000\n"
            stream.next("hello")
            assert stream.response.readline() == b":\n"


def test_streams_end_at_once_with_the_hub(tmp_path: Path) -> None:
    """However many listen, and whether or not they read, the hub ends as soon as without them."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0))
        listening = [_listen(hub) for _ in range(20)]
        began = time.monotonic()
    took = time.monotonic() - began
    for stream, connection in listening:
        stream.rest()
        connection.close()
    assert took < 2


def test_a_listener_that_reads_nothing_holds_nothing_up(tmp_path: Path) -> None:
    """While somebody listens and never reads, points are received and others hear of them."""
    with serving(tmp_path) as hub:
        send(hub.url, *(at(0, 1.0, f"m{i}") for i in range(50)))
        deaf = socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /api/runs/a%2Frun/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with Studio(hub.url).live(RUN) as stream:
            stream.next("hello")
            for turn in range(1, 4):
                first = 1 + 50 * 200 * (turn - 1) + 50
                send(hub.url, *(at(turn, 2.0, f"m{i % 50}") for i in range(50 * 200)), first=first)
                assert stream.next("points")[2]["curves"]
        began = time.monotonic()
        deaf.close()
    assert time.monotonic() - began < 5


def test_there_is_a_limit_to_listeners(tmp_path: Path) -> None:
    """The 65th page is told so, and let in when another one has gone."""
    with serving(tmp_path) as hub:
        send(hub.url, at(0, 1.0))
        listening = [_listen(hub) for _ in range(64)]
        with Studio(hub.url).live(RUN) as stream:
            assert stream.response.status == 503
            assert b"64 live pages are open" in stream.response.read()
        listening.pop()[1].close()
        deadline = time.monotonic() + 10
        status = 503
        while status == 503 and time.monotonic() < deadline:
            with Studio(hub.url).live(RUN) as stream:
                status = stream.response.status
        assert status == 200
        for _, connection in listening:
            connection.close()


def test_many_questions_at_once_are_all_answered(tmp_path: Path) -> None:
    """Answers are read beside each other, and receiving goes on meanwhile."""
    with serving(tmp_path) as hub:
        send(hub.url, *points([float(x) for x in range(2000)]))
        found: list[int] = []

        def read() -> None:
            found.append(Studio(hub.url).ask("runs", RUN, "curves", metric="loss")["curves"][0]["points"])

        threads = [threading.Thread(target=read) for _ in range(20)]
        for thread in threads:
            thread.start()
        send(hub.url, at(5000, 1.0), first=2001)
        for thread in threads:
            thread.join()
        assert len(found) == 20
        assert set(found) <= {2000, 2001}


def _listen(hub: Serving) -> tuple[Stream, http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=20)
    connection.request("GET", "/api/runs/a%2Frun/live")
    stream = Stream(connection.getresponse())
    assert stream.response.status == 200
    return stream, connection
