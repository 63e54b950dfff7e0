"""Starts, asks and stops the real engines that `scripts/peers.sh` sets up.

One server at a time, on the loopback interface, in a process group of its own that is gone when the
context ends. Replies are streamed; tokens are counted by the server's own count at the end, never
by the pieces of text.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.replies import Ask, Reply

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 240.0
REPLY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0


class PeerError(Exception):
    """A peer did not start, or answered with something else than tokens."""


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


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running peer; see `llama_server` and `vllm_server`."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.port = port
        self.process = process
        self.log = log

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Return when the server says that it is healthy. Raises PeerError when it does not."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        tail = " | ".join(self.log_text().splitlines()[-5:])
        raise PeerError(f"{self.name} did not start: {tail}")

    def stop(self) -> None:
        """End the server and all processes that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue

    def ask_all(self, asks: Sequence[Ask]) -> list[Reply]:
        """Ask everything at once, one connection and one thread each; replies in order."""
        replies: list[Reply | BaseException] = [PeerError("no reply")] * len(asks)

        def run(index: int, ask: Ask) -> None:
            try:
                replies[index] = self.ask(ask)
            except BaseException as error:
                replies[index] = error

        threads = [threading.Thread(target=run, args=item) for item in enumerate(asks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return [reply for reply in replies if isinstance(reply, Reply)]

    def ask(self, ask: Ask) -> Reply:
        """Ask and read the stream to its end."""
        path, body = self.request(ask)
        reply = Reply(started=time.perf_counter())
        for event, now in self._events(path, body):
            self.read(event, now, reply)
        if not reply.tokens:
            raise PeerError(f"{self.name} answered without a token")
        return reply

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[Any, float]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise PeerError(f"{self.name}: {response.status} {response.read()[:300]!r}")
            for line in response:
                now = time.perf_counter()
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:]), now
        finally:
            connection.close()

    def tokens(self, ask: Ask) -> list[int]:
        """The ids of a whole answer."""
        raise NotImplementedError

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """Path and body of a streaming request."""
        raise NotImplementedError

    def read(self, event: Any, now: float, reply: Reply) -> None:
        """Take one event of the stream into the reply."""
        raise NotImplementedError


class LlamaServer(Server):
    """llama.cpp's own protocol, which tells token ids and draft counts."""

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        return "/completion", {
            "prompt": list(ask.prompt),
            "n_predict": ask.max_tokens,
            "temperature": ask.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": ask.seed,
            "ignore_eos": ask.ignore_eos,
            # A prompt that was seen before would be free; every engine computes each prompt.
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }

    def read(self, event: Any, now: float, reply: Reply) -> None:
        if "error" in event:
            raise PeerError(f"{self.name}: {event['error']}")
        reply.take(event.get("tokens") or [], now)
        timings = event.get("timings")
        if event.get("stop") and timings:
            reply.prompt_tokens = timings.get("prompt_n")
            reply.drafted = timings.get("draft_n")
            reply.accepted = timings.get("draft_n_accepted")
            # A token that ends within a character is not sent, not even its id.
            reply.count = timings["predicted_n"]

    def tokens(self, ask: Ask) -> list[int]:
        """The ids of a whole answer; not streamed, since a stream leaves some out."""
        path, body = self.request(ask)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": False}))
            return list(json.loads(connection.getresponse().read())["tokens"])
        finally:
            connection.close()


class VllmServer(Server):
    """The OpenAI protocol, with token ids."""

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {
            "prompt": list(ask.prompt),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "seed": ask.seed,
            "ignore_eos": ask.ignore_eos,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def read(self, event: Any, now: float, reply: Reply) -> None:
        if "error" in event:
            raise PeerError(f"{self.name}: {event['error']}")
        for choice in event.get("choices", ()):
            reply.take(choice.get("token_ids") or [], now)
        usage = event.get("usage")
        if usage:
            reply.prompt_tokens = usage.get("prompt_tokens")
            reply.count = usage["completion_tokens"]

    def tokens(self, ask: Ask) -> list[int]:
        """The ids of a whole answer."""
        return self.ask(ask).tokens

    def draft_counts(self) -> tuple[int, int]:
        """Tokens drafted and accepted since the start, over all requests."""
        drafted = accepted = 0.0
        for line in self.get("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("vllm:spec_decode_num_draft_tokens_total"):
                drafted += float(value)
            elif name.startswith("vllm:spec_decode_num_accepted_tokens_total"):
                accepted += float(value)
        return int(drafted), int(accepted)


def _end_with_parent() -> None:
    """Linux: the server gets SIGTERM when this process dies without having stopped it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def _running(
    kind: type[Server], name: str, command: Sequence[str], port: int, **environ: str
) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="wager-peer-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **environ},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        server = kind(name, port, process, log)
        try:
            server.wait_ready()
            yield server
        finally:
            server.stop()


@contextmanager
def llama_server(
    peers: Peers,
    kind: str,
    spec: Sequence[str] = (),
    *,
    clients: int = 1,
    context: int = 2048,
    threads: int = 2,
    port: int | None = None,
) -> Iterator[LlamaServer]:
    """llama-server over SmolLM2 of one GGUF kind; ``spec`` are its speculative options."""
    port = port or free_port()
    command = [
        peers.llama("llama-server"), "-m", peers.gguf(kind), "--host", "127.0.0.1",
        "--port", str(port), "-t", str(threads), "-tb", str(threads), "-np", str(clients),
        "-c", str(context * clients), "--metrics", *spec,
    ]  # fmt: skip
    with _running(LlamaServer, f"llama.cpp {kind}", command, port) as server:
        yield server


@contextmanager
def vllm_server(
    peers: Peers,
    spec: Mapping[str, Any] | None = None,
    *,
    clients: int = 8,
    context: int = 2048,
    threads: int = 2,
    port: int | None = None,
) -> Iterator[VllmServer]:
    """vLLM over SmolLM2 in float32; ``spec`` is its speculative config."""
    port = port or free_port()
    command = [
        str(peers.root / "vllm" / "serve"), peers.directory, "--host", "127.0.0.1",
        "--port", str(port), "--max-model-len", str(context), "--max-num-seqs", str(clients),
        "--no-enable-prefix-caching",
    ]  # fmt: skip
    if spec is not None:
        command += ["--speculative-config", json.dumps(spec)]
    cores = f"0-{threads - 1}" if threads > 1 else "0"
    with _running(
        VllmServer,
        "vLLM",
        command,
        port,
        VLLM_CPU_OMP_THREADS_BIND=cores,
        VLLM_CPU_KVCACHE_SPACE="2",
    ) as server:
        yield server
