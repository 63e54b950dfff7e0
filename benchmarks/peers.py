"""The real engines that `scripts/peers.sh` sets up: where they are, and how they are asked here.

They are started and read by `wager.external`; one server at a time, on the loopback interface.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wager.arms import PLAIN, Arm, parse_arms
from wager.backend import Answer, Backend, Load, Prompt
from wager.external.engines import open_backend
from wager.external.server import ServerBackend, ServerOptions

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 240.0
REPLY_TIMEOUT_S = 300.0
AT_ONCE = Load(rate=1e9)
"""Every request right away, and nothing after them."""


class PeerError(Exception):
    """A peer answered with something else than tokens."""


@dataclass(frozen=True)
class Peers:
    """The folder that `scripts/peers.sh` filled. Each part may be missing."""

    root: Path

    @classmethod
    def find(cls) -> Peers:
        """The folder in WAGER_PEERS, else `.peers` beside the project."""
        return cls(Path(os.environ.get("WAGER_PEERS") or ROOT / ".peers"))

    def has(self, part: str) -> bool:
        """True when ``vllm``, ``llama`` or ``models`` is set up."""
        return (self.root / part / ".ready").exists()

    def llama(self, tool: str) -> str:
        return str(self.root / "llama" / tool)

    def gguf(self, kind: str) -> str:
        """SmolLM2 as ``f32``, ``bf16``, ``q8_0`` or ``q4_1``."""
        return str(self.root / "models" / f"smollm2-{kind}.gguf")

    @property
    def directory(self) -> str:
        """SmolLM2 in Hugging Face layout, float32."""
        return str(self.root / "models" / "smollm2-f32")

    def llama_server(
        self,
        kind: str,
        *,
        clients: int = 1,
        context: int = 2048,
        threads: int = 2,
        arguments: Sequence[str] = (),
    ) -> ServerBackend:
        """llama-server over SmolLM2 of one GGUF kind; nothing is started yet."""
        options = _options(self.llama("llama-server"), clients, context, threads, arguments)
        return open_backend("llamacpp", self.gguf(kind), options)

    def vllm_server(
        self,
        *,
        clients: int = 8,
        context: int = 2048,
        threads: int = 2,
        arguments: Sequence[str] = (),
    ) -> ServerBackend:
        """vLLM over SmolLM2 in float32; nothing is started yet."""
        program = str(self.root / "vllm" / "serve")
        options = _options(program, clients, context, threads, arguments)
        return open_backend("vllm", self.directory, options)


def _options(
    program: str, clients: int, context: int, threads: int, arguments: Sequence[str]
) -> ServerOptions:
    return ServerOptions(
        program=program,
        arguments=tuple(arguments),
        max_model_len=context,
        max_clients=clients,
        threads=threads,
        start_timeout_s=START_TIMEOUT_S,
        request_timeout_s=REPLY_TIMEOUT_S,
    )


def arm(text: str = PLAIN) -> Arm:
    """The one arm that a text spells, plain decoding without one."""
    (found,) = parse_arms(text)
    return found


@contextmanager
def running(server: ServerBackend, arm: Arm) -> Iterator[ServerBackend]:
    """The server, started for an arm; gone, with its logs, when the context ends."""
    try:
        server.start(arm)
        yield server
    finally:
        server.close()


def ask(backend: Backend, prompts: Sequence[Prompt]) -> list[Answer]:
    """All at once; answers in the order of the prompts. Raises PeerError for a failed one."""
    found = {answer.prompt_id: answer for answer in backend.stream(prompts, AT_ONCE)}
    answers = [found[prompt.id] for prompt in prompts]
    for answer in answers:
        if answer.error is not None or not answer.tokens:
            raise PeerError(f"{backend.name}: {answer.error or 'answered without a token'}")
    return answers
