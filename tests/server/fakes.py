"""An engine that says what it is told to, step by step, behind the real application.

`FakeLLM` stands in for `AsyncLLM`: a real tokenizer, no model. What it says is a script: steps,
each a list of `Say`, one per choice that progressed. `Client` plays requests to the application
over it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.server.asgi import Exchange, played
from tests.server.metrics_fakes import engine
from tests.tiny import ADDS_BOS, CHAT_TEMPLATE, SPECIALS, tokenizer_json
from wager.config import EngineConfig, SamplingParams
from wager.engine.snapshot import Snapshot
from wager.models.hf_tokenizer import from_directory
from wager.models.tokenizer import Tokenizer
from wager.server.answers import ChatAnswer, ChatChunk, TextAnswer
from wager.server.app import create_app
from wager.server.options import ServerOptions
from wager.types import CompletionOutput, DraftCounts, FinishReason, RequestOutput, TokenLogprob

NAME = "tiny"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
VOCABULARY = 288
CONTEXT = 1024

TALK_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    'Call as <tool_call>{"name": ..., "arguments": ...}</tool_call>: {{ tools | tojson }}'
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""Knows tools, as Hermes models do, and can open the reasoning itself."""


def tokenizer(
    directory: Path, template: str = CHAT_TEMPLATE, *, adds_bos: bool = False
) -> Tokenizer:
    """The byte-level tokenizer of the tiny models, with this chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    raw = tokenizer_json(VOCABULARY) | ({"post_processor": ADDS_BOS} if adds_bos else {})
    settings = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "add_bos_token": False}
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(template)
    return from_directory(directory)


@dataclass(frozen=True)
class Say:
    """What one choice gains in a step. ``drafted`` tokens were proposed; where some were, all of
    ``ids`` but the last are accepted ones."""

    text: str = ""
    ids: Sequence[int] = ()
    finish: FinishReason | None = None
    stop: int | str | None = None
    index: int = 0
    drafted: int = 0


Step = Sequence[Say]
Script = Sequence[Step]


@dataclass(frozen=True)
class Asked:
    """What the engine was asked."""

    prompt: list[int]
    params: SamplingParams
    cache_salt: str
    request_id: str


@dataclass(eq=False)
class FakeLLM:
    """``script`` is what every request is answered with, or makes it from what was asked; an
    exception is raised before anything is said. ``hang`` keeps every request waiting behind its
    last step, ``cached`` tokens of each prompt come from the cache."""

    tokenizer: Tokenizer
    script: Script | Exception | Callable[[Asked], Script | Exception] = ()
    hang: bool = False
    cached: int = 0
    broken: Exception | None = None
    asked: list[Asked] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    waiting: int = 0
    running: int = 0
    stalled_s: float | None = None
    failed: BaseException | None = None
    snapshot: Snapshot = field(default_factory=lambda: Snapshot.of(engine()))

    def __post_init__(self) -> None:
        own = SimpleNamespace(
            max_model_len=CONTEXT, vocab_size=VOCABULARY, speculation=None, kv="f32"
        )
        generation = SimpleNamespace(eos_ids=(0, 2))
        self.llm = SimpleNamespace(
            tokenizer=self.tokenizer,
            engine=own,
            model=SimpleNamespace(tokenizer=self.tokenizer, generation=generation, weights="f32"),
            config=EngineConfig(max_num_seqs=4),
            default_params=lambda: SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
        )

    async def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        cache_salt: str = "",
        request_id: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        asked = Asked(list(prompt), params, cache_salt, request_id)
        self.asked.append(asked)
        script = self.script(asked) if callable(self.script) else self.script
        if isinstance(script, Exception):
            raise script
        answer = _Answer(asked, self.cached)
        done = False
        try:
            for step in script:
                await asyncio.sleep(0)
                yield answer.output(step)
            if self.broken is not None:
                raise self.broken
            if self.hang:
                await asyncio.Event().wait()
            done = True
        finally:
            if not done:
                self.aborted.append(request_id)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


class _Answer:
    """Turns steps into the deltas that the engine gives."""

    def __init__(self, asked: Asked, cached: int) -> None:
        self._asked = asked
        self._cached = cached
        self._counts = [DraftCounts() for _ in range(asked.params.n)]
        self._left = set(range(asked.params.n))
        self._begun = False

    def output(self, step: Step) -> RequestOutput:
        params = self._asked.params
        prompt_logprobs = None
        if not self._begun and params.prompt_logprobs is not None:
            rest = self._asked.prompt[1:]
            prompt_logprobs = [None, *(logprob(t, params.prompt_logprobs) for t in rest)]
        self._begun = True
        outputs = [self._choice(say) for say in step]
        return RequestOutput(
            request_id=self._asked.request_id,
            prompt_token_ids=self._asked.prompt,
            outputs=outputs,
            finished=not self._left,
            cached_tokens=self._cached,
            first_token_s=0.5,
            total_s=1.0 if not self._left else None,
            queue_s=0.1,
            prompt_logprobs=prompt_logprobs,
            draft_ms=1.0,
            verify_ms=2.0,
        )

    def _choice(self, say: Say) -> CompletionOutput:
        counts, asked = self._counts[say.index], self._asked.params.logprobs
        accepted = max(len(say.ids) - 1, 0) if say.drafted else 0
        if say.ids:
            counts.record(say.drafted, accepted, len(say.ids))
        if say.finish is not None:
            self._left.discard(say.index)
        return CompletionOutput(
            index=say.index,
            token_ids=list(say.ids),
            text=say.text,
            finish_reason=say.finish,
            stop_reason=say.stop,
            logprobs=None if asked is None else [logprob(token, asked) for token in say.ids],
            accepted_flags=[j < accepted for j in range(len(say.ids))],
            counts=counts,
        )


def logprob(token: int, count: int) -> TokenLogprob:
    """An invented one: the token itself is the second most likely."""
    top = [((token + 1) % VOCABULARY, -0.25), (token, -0.5), ((token + 2) % VOCABULARY, -2.0)]
    return TokenLogprob(token, -0.5, tuple(top[:count]))


def spelled(
    tokenizer: Tokenizer,
    text: str,
    sizes: Iterable[int] = (),
    finish: FinishReason | None = "stop",
    index: int = 0,
) -> list[list[Say]]:
    """A script that writes a text as the engine would: tokens in steps of these ``sizes`` (then one
    by one), bytes of an unfinished character kept back."""
    ids = tokenizer.encode(text, add_special=False)
    stream = tokenizer.stream((0,))
    wanted = iter(sizes)
    steps: list[list[Say]] = []
    while ids:
        size = max(next(wanted, 1), 1)
        now, ids = ids[:size], ids[size:]
        piece = "".join(map(stream.push, now))
        if not ids:
            piece += stream.flush()
        end = None if ids else finish
        steps.append([Say(piece, now, end, index=index, drafted=size - 1)])
    return steps


class Client:
    """The application over an engine. ``post`` takes JSON bodies, whose model is filled in."""

    def __init__(self, llm: FakeLLM, **options: Any) -> None:
        self.llm = llm
        given: Any = llm
        self.app = create_app(given, ServerOptions(served_names=(NAME, "alias"), **options))
        self.service = self.app.state.service

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> Exchange:
        return played(self.app, **self.request(path, body, **headers))

    def request(self, path: str, body: Mapping[str, Any], **headers: str) -> dict[str, Any]:
        """The arguments of an `Exchange`."""
        sent = [("content-type", "application/json"), *headers.items()]
        content = json.dumps({"model": NAME, **body}).encode()
        return {"path": path, "body": content, "headers": sent}

    def get(self, path: str) -> Exchange:
        return played(self.app, method="GET", path=path, body=b"", headers=())

    def whole(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A reply in one piece, which has the form that is documented."""
        reply = self.post(path, body)
        assert reply.status == 200, reply.text
        (ChatAnswer if path == CHAT else TextAnswer).model_validate_json(reply.text)
        found = json.loads(reply.text)
        assert {"usage", "speculation", "timings"} <= set(found)
        return dict(found)

    def events(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream that ends well; each has the form that is documented."""
        reply = self.post(path, {**body, "stream": True})
        assert reply.status == 200, reply.text
        return chunks(reply, path)

    def refused(self, path: str, body: Mapping[str, Any], status: int = 400) -> dict[str, Any]:
        """The error of a refusal."""
        reply = self.post(path, body)
        assert reply.status == status, reply.text
        return reply.error


def chunks(reply: Exchange, path: str) -> list[dict[str, Any]]:
    """The events before ``[DONE]``, held against their model."""
    assert reply.header("content-type") == "text/event-stream; charset=utf-8"
    *events, done, end = reply.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    found = []
    for one in events:
        assert one.startswith("data: ")
        assert "\n" not in one
        text = one.removeprefix("data: ")
        (ChatChunk if path == CHAT else TextAnswer).model_validate_json(text)
        found.append(json.loads(text))
    heads = {(c["id"], c["object"], c["created"], c["model"]) for c in found}
    assert len(heads) == 1
    _check_ends(found)
    return found


def _check_ends(found: Sequence[Mapping[str, Any]]) -> None:
    """A reason is null until the last chunk of its choice, and then is there."""
    ended: dict[int, bool] = {}
    for chunk in found:
        for choice in chunk["choices"]:
            assert not ended.get(choice["index"]), "after the end of a choice"
            ended[choice["index"]] = choice["finish_reason"] is not None
    assert all(ended.values())


def text_of(found: Sequence[Mapping[str, Any]], index: int = 0) -> str:
    """The text of one choice of a completion, put together."""
    return "".join(
        choice["text"] for chunk in found for choice in chunk["choices"] if choice["index"] == index
    )


@dataclass
class Message:
    """A streamed message, put together as a client does."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    tokens: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, found: Sequence[Mapping[str, Any]], index: int = 0) -> Message:
        message = cls()
        choices = [c for chunk in found for c in chunk["choices"] if c["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        for choice in choices:
            message._add(choice)
        return message

    def _add(self, choice: Mapping[str, Any]) -> None:
        delta = choice["delta"]
        self.content += delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(self.calls):
                self.calls.append({"id": part["id"], **part["function"]})
            else:
                assert "id" not in part
                self.calls[part["index"]]["arguments"] += part["function"]["arguments"]
        self.reason = choice["finish_reason"] or self.reason
        if choice["logprobs"] is not None:
            self.tokens += choice["logprobs"]["content"]
