"""The ticks of a collection: how far apart they are."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tachograph.exporters.batch import Batch
from tachograph.pipeline._collection import Collection
from tachograph.pipeline._process_identity import GivenIdentity
from tachograph.pipeline._providers import Providers
from tachograph.pipeline.destinations import Route, Routes
from tachograph.pipeline.event_feed import EventFeed
from tachograph.pipeline.settings import Settings, read_settings
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry


class Taken:
    """A destination that was busy some seconds ago, and counts what it is given."""

    def __init__(self, ago: float, *, skips: bool) -> None:
        self._busy_at, self.batches = time.monotonic() - ago, 0
        self.route = Route(self, metrics=True, busy_at=lambda: self._busy_at, skips=lambda: skips)

    def __call__(self, batch: Batch) -> None:
        """Take a batch."""
        self.batches += bool(batch.metrics)

    def flush(self, timeout: float) -> bool:  # noqa: ARG002 - as destinations are called
        """Return True."""
        return True

    def close(self, timeout: float) -> None:
        """Do nothing."""

    def reset_in_child(self) -> None:
        """Do nothing."""


@pytest.fixture
def settings() -> Settings:
    """Return those of a pipeline that exports each second."""
    return read_settings({}, interval=1.0, set_global=False)


@pytest.fixture
def collections() -> Iterator[list[Collection]]:
    """Return a list for collections that end with the test."""
    made: list[Collection] = []
    yield made
    for each in made:
        each.stop()
        each.close()


@pytest.mark.parametrize(
    ("ago", "skips", "ticks", "collects"),
    [
        (5.0, True, 1.0, 1.0),
        (60.0, True, 5.0, 5.0),
        (3600.0, True, 10.0, 10.0),
        (60.0, False, 5.0, 1.0),  # it gets each collection, as the specification says
        (-float("inf"), True, 1.0, 1.0),  # it does not tell
    ],
)
def test_the_longer_nothing_has_come_the_rarer_it_is_looked_for(
    settings: Settings, collections: list[Collection], *, ago: float, skips: bool, ticks: float, collects: float
) -> None:
    """A tick comes later by a twelfth of the time without news, and a collection where its receiver allows it."""
    registry = Registry()
    journal, routes, taken = Journal(registry), Routes(), Taken(ago, skips=skips)
    routes.attach(taken.route)
    providers = Providers(settings, registry, joins=False, joins_logs=False)
    collection = Collection(
        settings,
        registry,
        identity=GivenIdentity(settings, announces=False, journal=journal),
        events=EventFeed(journal, registry),
        routes=routes,
        providers=providers,
        on_known=lambda: None,
    )
    collections.append(collection)
    registry.group("g").instrument("loss").record(1.0)
    began = collection._due = time.monotonic()
    collection._tick()
    lasted = time.monotonic() - began
    assert taken.batches == 1
    assert ticks - lasted <= collection._every <= ticks + lasted + 0.1
    assert collects - lasted - 0.1 <= collection._due - began <= collects + lasted + 0.1
