"""The real engines, each started once with n-gram speculation, on the loopback interface."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from benchmarks.peers import Peers, arm, running

from wager.external.server import ServerBackend

CLIENTS = 4


def require(peers: Peers, part: str) -> None:
    """Skip where a peer was not set up; fail where WAGER_PEERS says that it was."""
    if not (peers.has(part) and peers.has("models")):
        reason = f"no {part} in {peers.root}; run scripts/peers.sh {peers.root}"
        if os.environ.get("WAGER_PEERS"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def peers() -> Peers:
    return Peers.find()


@pytest.fixture(scope="module")
def llama(peers: Peers) -> Iterator[ServerBackend]:
    require(peers, "llama")
    # Keys and values as wager holds them beside f32 weights, so that tokens can be compared.
    kv = ("-ctk", "f32", "-ctv", "f32")
    server = peers.llama_server("f32", clients=CLIENTS, arguments=kv)
    with running(server, arm("ngram:k=8,min=3,max=3")):
        yield server


@pytest.fixture(scope="module")
def vllm(peers: Peers) -> Iterator[ServerBackend]:
    require(peers, "vllm")
    server = peers.vllm_server(clients=CLIENTS)
    with running(server, arm("ngram:k=8,min=2,max=5")):
        yield server
