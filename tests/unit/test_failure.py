"""The exception that ends a process: its type and message, bounded, without secrets, whatever it is."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.identity.masking import masked_text
from tachograph.pipeline._failure import MOST_MESSAGE, MOST_TYPE, failure_of, raised
from tachograph.recording.registry import Registry


@given(message=st.text(), name=st.text(st.characters(categories=["L"]), min_size=1, max_size=400))
def test_it_is_bounded(message: str, name: str) -> None:
    """Of any message and any type."""
    found = failure_of(type(name, (Exception,), {})(message * 50))
    assert len(found.type) <= MOST_TYPE
    assert len(found.message) <= MOST_MESSAGE
    assert found.attributes() == {"exception.type": found.type, "exception.message": found.message}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no access to s3://ann:hunter2@bucket/x", "no access to s3://***@bucket/x"),
        ("401: api_key=12ab was refused", "401: api_key=*** was refused"),
        ('{"token": "12ab", "lr": 0.1}', '{"token": ***, "lr": 0.1}'),
        ("Caught KeyError in worker 0.\nKeyError: 'lr'", "Caught KeyError in worker 0.\nKeyError: 'lr'"),
        ("max_tokens=4096 is too much", "max_tokens=4096 is too much"),
    ],
)
def test_secrets_are_masked(message: str, expected: str) -> None:
    """As in the program's command line; the names of exceptions are none."""
    assert masked_text(message) == expected
    assert failure_of(ValueError(message)).message == expected


class Samples:
    """A dataset whose sample is broken, many calls deep: the text of the traceback is long."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> int:
        return even(40)


def even(depth: int) -> int:
    """Read the sample."""
    return odd(depth - 1)


def odd(depth: int) -> int:
    """Read the sample."""
    if depth < 0:
        raise ValueError("sample 17 is broken (token=hunter2)")
    return even(depth - 1)


@pytest.mark.process
@pytest.mark.torch
def test_a_data_loaders_worker_keeps_its_message() -> None:
    """The exception of a worker has its own message first, and the innermost frames of its traceback at the end."""
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(Samples(), num_workers=1)
    with pytest.raises(ValueError, match="sample 17") as caught:
        next(iter(loader))
    assert len(str(caught.value)) > 2 * MOST_MESSAGE
    failure = failure_of(caught.value)
    lines = failure.message.split("\n")
    assert failure.type == "ValueError"
    assert lines[:2] == ["sample 17 is broken (token=***)", "Caught ValueError in DataLoader worker process 0."]
    assert "raise ValueError" in failure.message
    assert len(failure.message) <= MOST_MESSAGE


def test_the_end_of_a_long_message_is_kept() -> None:
    """A long message keeps its first line and its end; a secret at the cut is masked."""
    secret = "\n".join(f"url {number} https://ann:hunter2@host/" for number in range(1000))
    message = failure_of(RuntimeError(f"three files are missing:\n{secret}\nsee the list above")).message
    assert message.startswith("three files are missing:\nurl 0 https://***@host/\n")
    assert message.endswith("https://***@host/\nsee the list above")
    assert "hunter2" not in message


HEAD = "Traceback (most recent call last):"
CALLS = '  File "a.py", line 1, in f\n    g()\n    ^^^'
CHAINED = (
    f"{HEAD}\n{CALLS}\nKeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n{HEAD}"
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"no frames\n{HEAD}", f"no frames\n{HEAD}"),
        (
            f"Caught it.\nOriginal {HEAD}\n{CALLS}\nKeyError: 3\na note\n",
            f"KeyError: 3\na note\nCaught it.\nOriginal {HEAD}\n{CALLS}",
        ),
        (f"{CHAINED}\n{CALLS}\nRuntimeError: two", f"two\n{CHAINED}\n{CALLS}"),
    ],
)
def test_the_exception_behind_a_traceback_comes_first(message: str, expected: str) -> None:
    """Texts of any library that hold a traceback: the last exception comes first, with its notes."""
    assert failure_of(RuntimeError(message)).message == expected


class Broken(Exception):  # noqa: N818 - a name of a program's own
    """An exception whose message cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


def test_a_message_that_cannot_be_had() -> None:
    """An exception whose __str__ fails costs its message, which is counted, and nothing else."""
    registry = Registry(enabled=True)
    assert failure_of(Broken(), registry) == ("Broken", "(its message cannot be read)")
    (errors,) = [metric for metric in registry.collect() if metric.name == "tachograph.errors"]
    assert [dict(point.attributes) for point in errors.points] == [{"where": "exit"}]


class Leaving:
    """A statement that looks, on its way out, for the exception that ends the process, as ``with start():`` does."""

    def __enter__(self) -> Leaving:  # noqa: PYI034 - there are no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self.found = raised()
        self.failure = None if self.found is None else failure_of(self.found)


def refuse() -> None:
    """Fail."""
    raise KeyError("lr")


def exit_for_it() -> None:
    """End the process where something fails, as a child of mp.spawn does."""
    try:
        refuse()
    except KeyError:
        sys.exit(1)


def test_the_exception_that_sys_exit_stands_for() -> None:
    """A child of mp.spawn ends by ``sys.exit(1)`` while it handles the exception; an exit by itself stays one."""
    with pytest.raises(SystemExit), Leaving() as leaving:
        exit_for_it()
    assert leaving.failure == ("KeyError", "'lr'")
    assert failure_of(SystemExit("no data")) == ("SystemExit", "no data")


@pytest.mark.parametrize("code", [None, 0])
def test_an_exit_without_a_code_is_none(code: int | None) -> None:
    """``with tachograph.start(): sys.exit()`` ends well."""
    with pytest.raises(SystemExit), Leaving() as leaving:
        sys.exit(code)
    assert leaving.found is None
