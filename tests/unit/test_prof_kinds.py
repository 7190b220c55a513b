"""@prof on classes, descriptors and callables other than functions."""

from __future__ import annotations

import abc
import functools
import operator
from typing import Any

import pytest

from front_door import calls, fresh_group, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic, prof


def plain(value: int, *, by: int = 1) -> float:
    """Divide."""
    return value / by


class Kind:
    """Has every sort of method."""

    def method(self, value: int) -> int:
        """Return the value."""
        return value

    def _private(self) -> int:
        return 1

    def __call__(self) -> int:
        """Return 2."""
        return 2

    @staticmethod
    def static(value: int) -> int:
        """Return the value."""
        return value

    @classmethod
    def made(cls) -> Kind:
        """Return one."""
        return cls()

    @property
    def size(self) -> int:
        """Return 7."""
        return 7

    class Nested:
        """Is left alone."""

    other_name = method
    default = lambda _self: 3  # noqa: E731 - a callable that is data, as a dataclass field's default


def test_a_class_stays_a_class_with_its_public_methods_profiled(group: str) -> None:
    """@prof on a class returns that class; its own public methods are profiled, once, and nothing else is."""
    fresh = type("Kind", (), dict(vars(Kind)))
    already = prof(Kind.method, group)
    fresh.again = already
    profiled = prof(group=group)(fresh)
    assert profiled is fresh
    one = profiled()
    assert (one.method(1), one._private(), one(), profiled.static(4), one.static(4), one.size) == (1, 1, 2, 4, 4, 7)
    assert isinstance(profiled.made(), fresh)
    assert (one.other_name(5), one.default()) == (5, 3)
    assert one.again(1) == 1
    assert prof(fresh, group) is fresh
    assert one.method(2) == 2
    assert calls(group) == {"Kind.method success": 3, "Kind.static success": 2, "Kind.made success": 1}


def test_subclasses_profile_what_they_define(group: str) -> None:
    """Methods inherited from a class that is not profiled stay as they are."""

    class Child(Kind):
        def mine(self) -> int:
            return self.method(1)

    prof(Child, group)
    assert Child().mine() == 1
    assert calls(group) == {f"{Child.__qualname__}.mine success": 1}


def test_descriptors_above_and_below(group: str) -> None:
    """@prof works above and below staticmethod, classmethod, property and cached_property, which stay what they are."""
    over: Any = prof(group=group)

    class Both:
        @over
        @staticmethod
        def a() -> str:
            return "a"

        @staticmethod
        @over
        def b() -> str:
            return "b"

        @over
        @classmethod
        def c(cls) -> str:
            return cls.__name__

        @classmethod
        @over
        def d(cls) -> str:
            return cls.__name__

        @over
        @property
        def e(self) -> str:
            """Say e."""
            return "e"

        @property
        @over
        def f(self) -> str:
            """Say f."""
            return "f"

        @over
        @f.setter
        def f(self, value: str) -> None:
            self.given = value

        @over
        @functools.cached_property
        def g(self) -> str:
            return "g"

        @functools.cached_property
        @over
        def h(self) -> str:
            return "h"

    one = Both()
    assert [one.a(), Both.b(), one.c(), Both.d(), one.e, one.f, one.g, one.g, one.h] == [
        "a", "b", "Both", "Both", "e", "f", "g", "g", "h",
    ]  # fmt: skip
    one.f = "new"
    assert one.given == "new"
    assert isinstance(vars(Both)["a"], staticmethod)
    assert isinstance(vars(Both)["c"], classmethod)
    assert (Both.e.__doc__, Both.f.__doc__) == ("Say e.", "Say f.")
    prefix = Both.__qualname__
    wanted = {f"{prefix}.{name} success": 1 for name in "abcdegh"} | {f"{prefix}.f success": 2}
    assert calls(group) == wanted


def test_a_cached_property_can_be_profiled_after_its_class(group: str) -> None:
    """A cached_property that knows its name already keeps it."""

    class Lazy:
        @functools.cached_property
        def width(self) -> int:
            return 3

    Lazy.width = prof(vars(Lazy)["width"], group)
    one = Lazy()
    assert one.width + one.width == 6
    assert calls(group) == {f"{Lazy.__qualname__}.width success": 1}


def test_abstract_methods_stay_abstract(group: str) -> None:
    """A class with a profiled abstract method cannot be instantiated."""

    class Shape(abc.ABC):
        @prof(group=group)
        @abc.abstractmethod
        def area(self) -> float:
            """Return the area."""

    with pytest.raises(TypeError, match="abstract"):
        Shape()  # type: ignore[abstract]


class Callable_:  # noqa: N801 - a name like any other
    """Can be called."""

    def __init__(self) -> None:
        self.kept = 5

    def __call__(self, value: int) -> int:
        """Add."""
        return value + self.kept


@pytest.mark.parametrize(
    ("make", "arguments", "result", "name"),
    [
        (lambda: functools.partial(plain, by=2), (6,), 3, "test_prof_kinds.plain"),
        (lambda: functools.partial(functools.partial(plain), by=2), (6,), 3, "test_prof_kinds.plain"),
        (lambda: functools.partial(Callable_()), (6,), 11, "Callable_.__call__"),
        (Callable_, (1,), 6, "Callable_.__call__"),
        (lambda: Kind().method, (4,), 4, "Kind.method"),
        (lambda: len, ([1, 2],), 2, "builtins.len"),
        (lambda: operator.itemgetter(1), ([1, 2],), 2, "itemgetter.__call__"),
        (lambda: functools.lru_cache(plain), (3,), 3, "test_prof_kinds.plain"),
    ],
)
def test_other_callables_get_a_sensible_name(
    make: Any, arguments: tuple[Any, ...], result: Any, name: str, group: str
) -> None:
    """Partials, callable objects, bound methods and built-in functions can be profiled under a name that fits."""
    fn = make()
    profiled = prof(fn, group)
    assert profiled(*arguments) == result
    assert profiled.__qualname__
    assert calls(group) == {f"{name} success": 1}
    assert elastic._get_metric_name(fn) == name
