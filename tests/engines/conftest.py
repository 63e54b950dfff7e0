"""The real engines, each started once with n-gram speculation, on the loopback interface."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from benchmarks.peers import LlamaServer, Peers, VllmServer, llama_server, vllm_server

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
def llama(peers: Peers) -> Iterator[LlamaServer]:
    require(peers, "llama")
    options = (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3",
        "--spec-ngram-simple-size-m", "8", "--spec-ngram-simple-min-hits", "1",
        # Keys and values as wager holds them beside f32 weights, so that tokens can be compared.
        "-ctk", "f32", "-ctv", "f32",
    )  # fmt: skip
    with llama_server(peers, "f32", options, clients=CLIENTS) as server:
        yield server


@pytest.fixture(scope="module")
def vllm(peers: Peers) -> Iterator[VllmServer]:
    require(peers, "vllm")
    spec = {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    with vllm_server(peers, spec, clients=CLIENTS) as server:
        yield server
