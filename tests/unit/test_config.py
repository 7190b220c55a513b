"""config() and summary(): dictionaries beside the curves, from the call to the store."""

from __future__ import annotations

import argparse
import array
import enum
import json
import math
import signal
import subprocess
import sys
import threading
from collections import OrderedDict, deque, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from tachograph.metric._config import MOST_KEYS, Dictionary
from tachograph.recording import journal
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
trees = st.recursive(scalars, lambda inner: st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20)


class Made:
    """A dictionary with a registry and a journal of its own."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.journal = Journal(self.registry)
        self.dictionary = Dictionary("tachograph.config", registry=self.registry, journal=self.journal)
        self.merge = self.dictionary.merge

    def logged(self) -> list[Mapping[str, Any]]:
        """Return what was logged."""
        found: list[Any] = [event.attributes["tachograph.config"] for event in self.journal.drain()]
        return found

    def dropped(self) -> float:
        """Return how much was counted as dropped."""
        points = [m.points for m in self.registry.collect() if m.name == "tachograph.dropped"]
        return sum(point.value for each in points for point in each)  # type: ignore[union-attr]


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"
    BLUE = (0, 0, 1)


@dataclass
class Optimizer:
    """A dataclass in another one."""

    lr: float = 0.1
    name: str = "adam"


@dataclass
class Arguments:
    """A dataclass."""

    epochs: int = 3
    optimizer: Optimizer = field(default_factory=Optimizer)


class Hostile:
    """An object of which nothing works."""

    def __getattribute__(self, name: str) -> Any:
        """Fail."""
        raise RuntimeError("hostile")


def test_nested_keys_have_dots() -> None:
    """Mappings, Namespaces and dataclasses are flattened, inside one another, too."""
    made = Made()
    made.merge({"model": OrderedDict(layers=2, heads={"num": 4}), "args": argparse.Namespace(seed=1), "o": Optimizer()})
    assert made.logged() == [
        {"model.layers": 2, "model.heads.num": 4, "args.seed": 1, "o.lr": 0.1, "o.name": "adam"},
    ]


@pytest.mark.parametrize("values", [argparse.Namespace(epochs=3), Arguments(), {"epochs": 3}])
def test_whatever_has_keys(values: object) -> None:
    """A Namespace, a dataclass and a mapping are taken as they are."""
    made = Made()
    made.merge(values)
    assert made.logged()[0]["epochs"] == 3


def test_values_keep_their_types() -> None:
    """Numbers, booleans and strings are as they were; what stands for a name is that name."""
    import numpy as np

    made = Made()
    point = namedtuple("point", "x y")  # noqa: PYI024 - such as a program has
    made.merge(
        {
            "int": 3,
            "large": 2**70,
            "float": 0.5,
            "nan": math.nan,
            "flag": True,
            "text": "a",
            "none": None,
            "path": Path("/data"),
            "color": Color.RED,
            "blue": Color.BLUE,
            "type": dict,
            "function": math.sqrt,
            "scalar": np.float32(0.5),
            "list": [1, 2],
            "mixed": [1, "a"],
            "tuple": point(1, 2),
            "bytes": [True],
        }
    )
    (found,) = made.logged()
    assert math.isnan(found["nan"])
    assert {key: value for key, value in found.items() if key != "nan"} == {
        "int": 3,
        "large": str(2**70),
        "float": 0.5,
        "flag": True,
        "text": "a",
        "none": None,
        "path": "/data",
        "color": "red",
        "blue": "BLUE",
        "type": "builtins.dict",
        "function": "math.sqrt",
        "scalar": 0.5,
        "list": [1, 2],
        "mixed": [1, "a"],
        "tuple": [1, 2],
        "bytes": [True],
    }
    assert found["flag"] is True
    assert made.dropped() == 0


json_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text("abc", max_size=20)
)
json_values = st.recursive(
    json_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text("abc", max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=st.lists(json_values, max_size=4))
def test_a_list_of_whatever_json_can_say_is_kept_as_it_is(value: list[Any]) -> None:
    """Items keep their types and their nesting: numbers of two types, null, lists in lists, mappings in lists."""
    made = Made()
    made.merge({"value": value})
    (config,) = made.logged()
    assert json.dumps(config["value"]) == json.dumps(value)
    assert made.dropped() == 0


def test_whatever_has_items_becomes_a_list() -> None:
    """Tuples, ranges, sets, queues, arrays and Pandas columns become lists, at any depth."""
    import numpy as np

    made = Made()
    made.merge(
        {
            "betas": (0.9, 1),
            "layers": [(1, (2, 3)), [4]],
            "range": range(2, 8, 2),
            "set": {7},
            "queue": deque([1, None]),
            "array": np.array([[1, 2], [3, 4]]),
            "typed": array.array("d", [0.5, 1.5]),
            "column": pd.Series([1.5, 2.5]),
            "empty": [np.zeros(0), {}, ()],
            "parts": [{"kernel": np.arange(2), "optimizer": Optimizer()}, argparse.Namespace(lr=range(2))],
        }
    )
    assert made.logged() == [
        {
            "betas": [0.9, 1],
            "layers": [[1, [2, 3]], [4]],
            "range": [2, 4, 6],
            "set": [7],
            "queue": [1, None],
            "array": [[1, 2], [3, 4]],
            "typed": [0.5, 1.5],
            "column": [1.5, 2.5],
            "empty": [[], {}, []],
            "parts": [{"kernel": [0, 1], "optimizer": {"lr": 0.1, "name": "adam"}}, {"lr": [0, 1]}],
        }
    ]
    assert made.dropped() == 0


def test_other_numbers_are_numbers() -> None:
    """A Decimal, a Fraction and an array with one element are numbers, at any depth."""
    import numpy as np

    made = Made()
    made.merge({"price": Decimal("0.25"), "share": Fraction(1, 4), "one": np.array([[0.25]]), "list": [Decimal(2)]})
    assert made.logged() == [{"price": 0.25, "share": 0.25, "one": 0.25, "list": [2.0]}]


def test_omegaconf_is_kept() -> None:
    """Hydra's configurations are kept, with their lists and references; a value that is missing costs itself alone."""
    OmegaConf = pytest.importorskip("omegaconf").OmegaConf  # noqa: N806 - the name of a class
    made = Made()
    text = "{lr: 0.1, betas: [0.9, 1], stages: [{width: 8}, {width: null}], copy: '${betas}'}"
    made.merge(OmegaConf.merge(OmegaConf.create(text), {"data": {"path": "???", "workers": 2}}))
    assert made.logged() == [
        {
            "lr": 0.1,
            "betas": [0.9, 1],
            "stages": [{"width": 8}, {"width": None}],
            "copy": [0.9, 1],
            "data.workers": 2,
        }
    ]
    assert made.dropped() == 1


def test_each_key_that_is_not_kept_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names every key whose value JSON cannot say, once each; values of the same type included."""
    made = Made()
    for _ in range(2):
        made.merge({"first": object(), "second": object(), "bytes": b"ab", "large": range(10**9)})
    messages = [record.getMessage() for record in caplog.records]
    assert [message for message in messages if "'first'" in message or "'second'" in message] == [
        "tachograph.config: dropped key 'first': object cannot be converted to JSON",
        "tachograph.config: dropped key 'second': object cannot be converted to JSON",
    ]
    assert "tachograph.config: dropped key 'large': it has more than 10,000 items" in messages
    assert len(messages) == 4
    assert made.dropped() == 8


@pytest.mark.process
@pytest.mark.torch
def test_names_of_torch() -> None:
    """A dtype and a device are kept by their names, a tensor of one element by its value."""
    torch = pytest.importorskip("torch")
    made = Made()
    tensors = {"tensor": torch.tensor(2.5), "one": torch.tensor([2]), "weights": torch.tensor([[1.0, 2.0]])}
    made.merge({"dtype": torch.float16, "device": torch.device("cpu"), "size": torch.zeros(2, 3).shape, **tensors})
    assert made.logged() == [
        {
            "dtype": "torch.float16",
            "device": "cpu",
            "size": [2, 3],
            "tensor": 2.5,
            "one": 2,
            "weights": [[1.0, 2.0]],
        }
    ]


def test_secrets_are_masked() -> None:
    """Strings of secret names are masked, at any depth and in lists; numbers are not."""
    made = Made()
    made.merge({"wandb": {"api_key": "hunter2", "keys": ["a"]}, "max_token": 4096, "auth": {"users": ["ann"]}})
    made.merge({"data": "s3://ann:hunter2@bucket/x", "stores": [{"name": "a", "password": "hunter2"}]})
    found = made.logged()[-1]
    assert found["wandb.api_key"] == "***"
    assert found["auth.users"] == ["***"]
    assert found["max_token"] == 4096
    assert found["data"] == "s3://***@bucket/x"
    assert found["stores"] == [{"name": "a", "password": "***"}]
    assert "hunter2" not in repr(found)


def test_an_event_for_each_change() -> None:
    """A second call adds keys, or gives them other values; a call that changes nothing logs nothing."""
    made = Made()
    for values in ({"lr": 0.1, "x": math.nan}, {"lr": 0.1, "x": math.nan}, {"seed": 1}, {}, {"lr": 0.2}):
        made.merge(values)
    assert [{key: value for key, value in each.items() if key != "x"} for each in made.logged()] == [
        {"lr": 0.1},
        {"lr": 0.1, "seed": 1},
        {"lr": 0.2, "seed": 1},
    ]


def test_what_cannot_be_kept_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """An object without a name, one that fails, and the keys after the 512th: counted, and the rest is kept."""
    made = Made()
    made.merge({"hostile": Hostile(), "object": object(), "array": [object()], "lr": 0.1})
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    made.merge({"loop": loop})
    assert made.logged()[0] == {"lr": 0.1}
    before = made.dropped()
    assert before >= 4
    made.merge({f"key{number}": number for number in range(MOST_KEYS + 10)})
    assert len(made.logged()[-1]) == MOST_KEYS
    assert made.dropped() - before == 11  # lr is one of them
    assert len([record for record in caplog.records if "512 keys" in record.getMessage()]) == 1


@pytest.mark.parametrize("values", [3, "lr=0.1", [("lr", 0.1)], None, Optimizer])
@pytest.mark.parametrize("call", [tachograph.config, tachograph.summary])
def test_something_else_is_a_type_error(call: Any, values: object) -> None:
    """What has no keys raises at the call, and the message names it and what to write instead."""
    with pytest.raises(TypeError, match=rf"tachograph\.{call.__name__}\(\) takes a mapping, an argparse Namespace or"):
        call(values)


@given(values=st.dictionaries(st.text(max_size=8), trees, max_size=5))
def test_any_tree_is_kept(values: dict[str, Any]) -> None:
    """Whatever a tree of plain values holds, nothing of it raises or is dropped, and each leaf has a key."""
    made = Made()
    made.merge(values)
    assert made.dropped() == 0
    leaves = [value for each in made.logged() for value in each.values()]
    assert all(value in (None, {}) or isinstance(value, str | bool | int | float) for value in leaves)


def test_threads_lose_no_key() -> None:
    """Eight threads that add keys at once leave all of them in the last event."""
    made = Made()
    threads = [
        threading.Thread(target=lambda first=first: [made.merge({f"{first}-{n}": n}) for n in range(50)])
        for first in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made.logged()[-1]) == 400


def test_a_signal_handler_may_call_in_the_middle_of_a_call() -> None:
    """A handler that adds keys while its own thread is at it neither waits for ever nor loses any."""
    made = Made()
    turns = iter(range(10_000))
    before = signal.signal(signal.SIGALRM, lambda *_: made.merge({f"handler{next(turns)}": 1}))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for number in range(200):
            made.merge({f"key{number}": number})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    handled = next(turns)
    assert handled > 0
    kept = made.logged()[-1]
    assert [key for key in kept if key.startswith("key")] == [f"key{number}" for number in range(200)]
    assert len(kept) == min(200 + handled, MOST_KEYS)


class Unnamed:
    """A key without a name."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("hostile")


def test_a_key_that_has_no_name_costs_itself_alone() -> None:
    """A key whose __str__ raises is counted; the others are kept."""
    made = Made()
    made.merge({Unnamed(): 1, "lr": 0.1})
    assert made.logged() == [{"lr": 0.1}]
    assert made.dropped() == 1


@pytest.mark.process
def test_the_module_loads_nothing_for_it() -> None:
    """Who records with a Metric alone pays for no argparse."""
    program = "import sys; from tachograph import Metric; print('argparse' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_it_is_an_event_of_the_process() -> None:
    """The public calls log an event each, with the dictionary under the event's own name."""
    journal.default.drain()
    tachograph.config({"lr": 0.1})
    tachograph.summary({"accuracy": 0.9})
    found: dict[str, Any] = {event.name: event.attributes for event in journal.default.drain()}
    assert found["tachograph.config"]["tachograph.config"]["lr"] == 0.1
    assert found["tachograph.summary"]["tachograph.summary"]["accuracy"] == 0.9


@pytest.mark.process
def test_the_calls_load_no_opentelemetry() -> None:
    """A program that only keeps its configuration has loaded nothing of OpenTelemetry."""
    program = "import sys, tachograph; tachograph.config({'lr': 1}); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
