"""Secrets in command lines and configurations are masked, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.identity.masking import MASK, is_secret, masked, masked_arguments

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize(
    "name",
    [
        *["api_key", "apiKey", "API_KEY", "wandb.api-key", "token", "hf_token", "authToken", "client/secret", "auth"],
        *["db.credential", "aws_credentials", "password", "passwd", "DB_PASSWORD", "mypassword2", "SSHKey", "key2"],
    ],
)
def test_names_of_secrets(name: str) -> None:
    """A whole word of the name, split at separators and at capitals, or passw anywhere in it."""
    assert is_secret(name)
    assert masked(name, "hunter2") == MASK


@pytest.mark.parametrize("name", ["tokenizer", "keyboard", "author", "monkey", "lr", "secretary", "optimizer.keys", ""])
def test_names_of_other_things(name: str) -> None:
    """Words that only contain one of them say nothing of a secret."""
    assert not is_secret(name)
    assert masked(name, "gpt2") == "gpt2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgres://ann:hunter2@db/x", "postgres://***@db/x"),
        ("https://token@example.com/a?b=c@d", "https://***@example.com/a?b=c@d"),
        ("https://a:b@c@host/", "https://***@host/"),
        ("https://example.com/@user", "https://example.com/@user"),
        ("ann@example.com", "ann@example.com"),
    ],
)
def test_urls(text: str, expected: str) -> None:
    """User and password go out of a URL, whatever its name."""
    assert masked("data", text) == expected
    assert masked_arguments([text]) == [expected]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (["train.py", "--api-key=hunter2", "--lr=3"], ["train.py", "--api-key=***", "--lr=3"]),
        (["--api-key", "hunter2", "--lr", "3"], ["--api-key", "***", "--lr", "3"]),
        (["WANDB_API_KEY=hunter2", "python"], ["WANDB_API_KEY=***", "python"]),
        (["--use-auth", "--name", "x"], ["--use-auth", "--name", "x"]),
        (["--max-token", "4096", "--auth=true", "--token=1e3"], ["--max-token", "4096", "--auth=true", "--token=1e3"]),
        (["--tokenizer", "gpt2", "key"], ["--tokenizer", "gpt2", "key"]),
        (["--token=", "--password", ""], ["--token=", "--password", ""]),
        (["-e", "API_KEY=hunter2", "--db", "x://u:p@h"], ["-e", "API_KEY=***", "--db", "x://***@h"]),
        (["+logger.api_key=hunter2", "--env=API_KEY=a=b"], ["+logger.api_key=***", "--env=API_KEY=***"]),
        (
            ["bash", "-c", "env K=1 TOKEN='a b' x --api-key y -l 3"],
            ["bash", "-c", "env K=1 TOKEN=*** x --api-key *** -l 3"],
        ),
        (['{"api_key": "hunter2", "max_tokens": 3}'], ['{"api_key": ***, "max_tokens": 3}']),
        (["http://host/?a=1&token=x1&b=2"], ["http://host/?a=1&token=***&b=2"]),
        (
            ["--use-auth --name x", "key: 3, token=1e3", "tokenizer=a"],
            ["--use-auth --name x", "key: 3, token=1e3", "tokenizer=a"],
        ),
    ],
)
def test_command_lines(given_: list[str], expected: list[str]) -> None:
    """A secret is masked after = and as the next argument, within an argument, too; numbers and booleans stay."""
    assert masked_arguments(given_) == expected


@given(arguments=st.lists(words, max_size=8))
def test_no_argument_is_lost(arguments: list[str]) -> None:
    """There are as many arguments as before, and each is the same, or has a mask in it."""
    found = masked_arguments(arguments)
    assert len(found) == len(arguments)
    assert all(one == other or MASK in other for one, other in zip(arguments, found, strict=True))


@given(secret=st.text("abcdefghij", min_size=6, max_size=20), before=st.lists(words, max_size=4))
def test_a_secret_is_never_there(secret: str, before: list[str]) -> None:
    """Whatever comes before it, the value of --password=… is not there afterwards."""
    assert f"zz{secret}" not in "\n".join(masked_arguments([*before, f"--password=zz{secret}"]))
