"""wager's own server in a process of its own, and what is asked of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from wager.external.process import free_port
from wager.ops.base import BLOCK

MODEL: Final = "smollm2-135m"
CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
TIMEOUT_S: Final = 600.0
_STOP_S: Final = 60.0


@dataclass
class Server:
    """A server that is ready. ``ready`` is the line that says so."""

    url: str
    process: subprocess.Popen[str]
    ready: str

    @property
    def resident(self) -> int:
        """Bytes of it in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def kv_tokens(self) -> int:
        """Tokens that its KV pool has room for."""
        return int(self._get("/dashboard/live").json()["kv"]["blocks"]) * BLOCK

    def metrics(self) -> dict[str, float]:
        """The samples of its metrics page, summed over labels."""
        page = self._get("/metrics").text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def _get(self, path: str) -> httpx2.Response:
        with httpx2.Client(trust_env=False, timeout=30) as http:
            return http.get(self.url + path)


@contextmanager
def server(*options: str, speculation: Mapping[str, Any] | None = None) -> Iterator[Server]:
    """`wager serve` of the small model with these options, until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "wager", "serve", MODEL, "--port", str(port), *options]
    if speculation is not None:
        command += ["-sc", json.dumps(speculation)]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().strip()
            if " is ready after " not in ready:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)}: {ready} {log.read()[-2000:]}")
            yield Server(f"http://127.0.0.1:{port}", process, ready)
            process.terminate()
            process.wait(_STOP_S)
        finally:
            process.kill()


def client(connections: int) -> httpx2.AsyncClient:
    """For this many requests at a time."""
    limits = httpx2.Limits(max_connections=connections + 8, max_keepalive_connections=connections)
    return httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT_S, limits=limits)


async def asked(http: httpx2.AsyncClient, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to one request; a streamed one is put together. Raises RuntimeError for a refusal
    or a stream without its end."""
    path = CHAT if "messages" in body else TEXT
    if not body.get("stream"):
        reply = await http.post(url + path, json=body)
        if reply.status_code != 200:
            raise RuntimeError(f"HTTP {reply.status_code}: {reply.text[:300]}")
        return dict(reply.json())
    joined: dict[str, Any] = {}
    async for chunk in chunks(http, url + path, body):
        join(joined, chunk)
    return joined


async def chunks(
    http: httpx2.AsyncClient, url: str, body: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a stream. Raises RuntimeError."""
    async with http.stream("POST", url, json=body) as stream:
        if stream.status_code != 200:
            text = (await stream.aread()).decode(errors="replace")
            raise RuntimeError(f"HTTP {stream.status_code}: {text[:300]}")
        done = False
        async for event in httpx2.EventSource(stream):
            if event.data == "[DONE]":
                done = True
                continue
            chunk = json.loads(event.data)
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            yield chunk
        if not done:
            raise RuntimeError("the stream ended before the reply did")


def join(into: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    """Put a chunk to what came before it, in the form of a reply in one piece."""
    choices = into.setdefault("choices", [])
    for given in chunk["choices"]:
        while len(choices) <= given["index"]:
            choices.append({"text": "", "finish_reason": None})
        choice = choices[given["index"]]
        delta = given.get("delta") or {}
        choice["text"] += given.get("text") or delta.get("content") or ""
        choice["finish_reason"] = given["finish_reason"] or choice["finish_reason"]
    for name in ("usage", "speculation"):
        if chunk.get(name) is not None:
            into[name] = chunk[name]


def text_of(reply: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Text and reason of each choice, whichever route and form it came by."""
    found = []
    for choice in reply["choices"]:
        message = choice.get("message") or {}
        text = choice.get("text") or message.get("content") or ""
        found.append((text, choice["finish_reason"]))
    return found
