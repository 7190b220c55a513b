"""The same programs, run against torchelastic and against ours: handlers get the same points."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from front_door import unconfigured  # noqa: F401 - a fixture
from tachograph import elastic

pytestmark = pytest.mark.torch
original = pytest.importorskip("torch.distributed.elastic.metrics")


@pytest.fixture(autouse=True)
def original_unconfigured() -> Iterator[None]:
    """Leave torchelastic as it was."""
    with (
        mock.patch.dict(original.api._metrics_map, clear=True),
        mock.patch.object(original.api, "_default_metrics_handler", original.NullMetricHandler()),
    ):
        yield


class Taken:
    """Makes handlers for either module, all of which write into one list; durations only by their type."""

    def __init__(self, metrics: ModuleType) -> None:
        self.metrics = metrics
        self.points: list[tuple[str, str, str, Any]] = []

    def handler(self, name: str) -> Any:
        """Return a handler that is an instance of the module's MetricHandler."""
        points = self.points

        class Handler(self.metrics.MetricHandler):  # type: ignore[name-defined, misc]
            def emit(self, metric_data: Any) -> None:
                assert abs(metric_data.timestamp - time.time()) < 60
                value = metric_data.value
                value = type(value) if metric_data.name.endswith(".ms") else value
                points.append((name, metric_data.group_name, metric_data.name, value))

        return Handler()


def values_and_groups(metrics: ModuleType, taken: Taken) -> None:
    """Record into groups with and without a handler."""
    metrics.put_metric("before", 1)
    metrics.configure(taken.handler("default"))
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2.5, "mine")
    metrics.configure(taken.handler("mine"), "mine")
    metrics.configure(taken.handler("empty"), "")
    metrics.configure(metrics.NullMetricHandler(), "quiet")
    metrics.put_metric("b", "text", "mine")
    metrics.put_metric("c", None, "")
    metrics.put_metric("d", 1, "quiet")
    metrics.put_metric(metric_name="e", metric_value=3, metric_group="mine")
    metrics.getStream("mine").add_value("f", 4)
    metrics.configure(taken.handler("second"), group="mine")
    metrics.put_metric("g", 5, "mine")


def profiled_functions(metrics: ModuleType, taken: Taken) -> None:
    """Profile what the original can profile."""
    metrics.configure(taken.handler("all"))

    @metrics.prof
    def inner(value: int) -> int:
        return 1 // value

    @metrics.prof()
    def other() -> None:
        return None

    class Kind:
        @metrics.prof(group="kind")
        def method(self, *args: int, **kwargs: int) -> Any:
            return args, kwargs

        @staticmethod
        @metrics.prof
        def static() -> str:
            return "s"

        @classmethod
        @metrics.prof
        def made(cls) -> Any:
            return cls()

        @property
        @metrics.prof
        def size(self) -> int:
            return 7

    assert inner(1) == 1
    with pytest.raises(ZeroDivisionError):
        inner(0)
    other()
    assert Kind().method(1, two=2) == ((1,), {"two": 2})
    assert Kind.static() == "s"
    assert isinstance(Kind.made(), Kind)
    assert Kind().size == 7
    module_level = metrics.prof(values_and_groups, "named")
    with pytest.raises(TypeError):
        module_level()


def deprecated(metrics: ModuleType, taken: Taken) -> None:
    """Use what is deprecated."""
    metrics.configure(taken.handler("all"))

    class Kind:
        @metrics.profile("old")
        def method(self) -> None:
            raise ValueError

        @metrics.profile()
        def other(self) -> None:
            return None

    with pytest.raises(ValueError, match=r"^$"):
        Kind().method()
    Kind().other()
    metrics.publish_metric("old", "name", 3)


def patched_stream(metrics: ModuleType, taken: Taken) -> None:
    """Replace getStream, as torchelastic's own tests do."""

    class Parent:
        @metrics.prof
        def run(self) -> None:
            return None

    class Child(Parent):
        @metrics.prof
        def run(self) -> None:
            super().run()

    stream = metrics.api.MetricStream("torchelastic", taken.handler("stream"))
    with mock.patch(f"{metrics.__name__}.api.getStream", return_value=stream):
        Child().run()
        metrics.put_metric("loss", 1, "elsewhere")
    Child().run()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("program", [values_and_groups, profiled_functions, deprecated, patched_stream])
def test_handlers_get_the_same_points(program: Callable[[ModuleType, Taken], None]) -> None:
    """A program written for torchelastic hands the same points to its handlers with only the import changed."""
    theirs, ours = Taken(original), Taken(elastic)
    program(original, theirs)
    program(elastic, ours)
    assert ours.points == theirs.points
    assert ours.points


def test_every_public_name_of_the_original_is_there() -> None:
    """Whatever the original's two modules offer, ours offers."""
    offered = {name for name in vars(original) if not name.startswith("__")} - {"Optional"}
    assert {name for name in {*offered, *original.api.__all__} if not hasattr(elastic, name)} == set()
    assert elastic.MetricData._fields == original.MetricData._fields


@pytest.mark.parametrize(
    "function",
    [
        values_and_groups,
        Taken.handler,
        Taken("x").handler,  # type: ignore[arg-type]
        len,
    ],
)
def test_names_are_the_same(function: Any) -> None:
    """_get_metric_name gives the name that torchelastic gives."""
    assert elastic._get_metric_name(function) == original.api._get_metric_name(function)


DOCUMENTED = """
{imports}
metrics.configure(metrics.ConsoleMetricHandler(), "foobar")
metrics.configure(metrics.ConsoleMetricHandler(), "Bar")

@metrics.prof{foobar}
def foo():
    pass

class Bar:
    @metrics.prof{bar}
    def baz(self):
        pass

foo()
Bar().baz()
"""


def test_the_documents_example_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The foobar / Bar example profiles into the group torchelastic, as in the original: its handlers get nothing."""
    for module in ("torch.distributed.elastic.metrics", "tachograph.elastic"):
        program = DOCUMENTED.format(imports=f"import {module} as metrics", foobar="", bar="")
        exec(program, {"__name__": "examples.foobar"})  # noqa: S102 - the documents' program
    assert capsys.readouterr().out == ""


def test_the_documents_example_with_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """With @prof(group=…) both modules print the same lines."""
    printed = []
    for module in ("torch.distributed.elastic.metrics", "tachograph.elastic"):
        program = DOCUMENTED.format(
            imports=f"import {module} as metrics", foobar="(group='foobar')", bar="(group='Bar')"
        )
        exec(program, {"__name__": "examples.foobar"})  # noqa: S102 - the documents' program
        out = re.sub(r"\[[0-9.]+\]\[", "[", capsys.readouterr().out)
        printed.append(re.sub(r"\.ms=[0-9]+$", ".ms=…", out, flags=re.MULTILINE).splitlines())
    assert printed[0] == printed[1] == [
        "[foobar]: foobar.foo.success=1",
        "[foobar]: foobar.foo.duration.ms=…",
        "[Bar]: Bar.baz.success=1",
        "[Bar]: Bar.baz.duration.ms=…",
    ]  # fmt: skip
