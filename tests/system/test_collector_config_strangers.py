"""Who may send to a gateway: agents with its token, by TLS where they are on other nodes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors import TOKEN, Collector, agent, gateway
from hubs import PROTOBUF, ask, command, request
from receivers import self_signed
from servers import wait_until

pytestmark = pytest.mark.otelcol


def send(to: Collector, name: str, **headers: str) -> int:
    """Send a gauge of this name; return the status that is answered."""
    body = request(1.0, name=name).SerializeToString()
    return ask(f"http://127.0.0.1:{to.http}", "/v1/metrics", body, content_type=PROTOBUF, **headers).status


def test_strangers_are_refused(tmp_path: Path) -> None:
    """Who sends to a gateway without its token, or with another, is refused, and nothing of it is shown."""
    with gateway(tmp_path) as through:
        assert send(through, "theirs") == 401
        assert send(through, "theirs", authorization="Bearer wrong") == 401
        assert send(through, "mine", authorization=f"Bearer {TOKEN}") == 200
        assert "mine{" in through.page()
        assert "theirs" not in through.page()


def test_an_agent_with_a_wrong_token_is_told(tmp_path: Path) -> None:
    """An agent that the gateway refuses says so, and what it was sent is not shown."""
    for name in ("agent", "gateway"):
        (tmp_path / name).mkdir()
    with (
        gateway(tmp_path / "gateway") as through,
        agent(tmp_path / "agent", through.http, GATEWAY_TOKEN="wrong") as near,  # noqa: S106 - it is none
    ):
        assert send(near, "theirs") == 200
        wait_until(lambda: "Unauthenticated" in near.server.log() or "401" in near.server.log(), 20, near.server.log)
        assert "theirs" not in through.page()


def test_agents_on_other_nodes_send_by_tls(tmp_path: Path) -> None:
    """With the layer for TLS an agent that knows the certificate delivers, one that does not delivers nothing."""
    key, certificate = self_signed(tmp_path)
    for name in ("knows", "does-not", "gateway"):
        (tmp_path / name).mkdir()
    files = {"CERTIFICATE": str(certificate), "KEY": str(key)}
    with gateway(tmp_path / "gateway", "gateway-tls", ports=None, **files) as through:
        to = f"https://127.0.0.1:{through.http}"
        with (
            agent(tmp_path / "knows", 0, ports=None, GATEWAY=to, GATEWAY_CA=str(certificate)) as knows,
            agent(tmp_path / "does-not", 0, ports=None, GATEWAY=to) as does_not,
        ):
            assert send(does_not, "theirs") == 200
            assert send(knows, "mine") == 200
            wait_until(lambda: "mine{" in through.page(), 20, knows.server.log)
            wait_until(lambda: "certificate signed by unknown authority" in does_not.server.log(), 20)
            time.sleep(0.5)
            assert "theirs" not in through.page()


def test_a_hub_may_take_the_gateways_place(tmp_path: Path) -> None:
    """An agent that is given the URL and the token of a hub delivers there."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with command(tmp_path, "--token-file", str(token)) as hub, agent(tmp_path, 0, GATEWAY=hub.url) as near:
        assert send(near, "mine") == 200
        wait_until(lambda: b"mine{" in ask(hub.url, "/metrics").body, 20, near.server.log)
