"""The library's front door: a model, its engine, and text in and out.

llm = LLM("smollm2-135m", speculation={"method": "ngram", "num_speculative_tokens": 8})
for answer in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
    print(answer.outputs[0].text)
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from wager.config import EngineConfig, SamplingParams
from wager.engine.costs import CHECK_BUDGET_S, START_BUDGET_S
from wager.engine.engine import Engine
from wager.errors import ConfigError, RequestError, WagerError
from wager.models.load import Model, load_model
from wager.models.paths import cache_dir
from wager.ops.base import F32, choose
from wager.runtime.kv import blocks_for
from wager.runtime.target import Span
from wager.speculation import SpeculationConfig
from wager.types import CompletionOutput, RequestOutput

Prompt: TypeAlias = str | Sequence[int]
Speculation: TypeAlias = SpeculationConfig | Mapping[str, Any] | str | None


class LLM:
    """A model that answers. ``model`` is a pulled name, a directory or a GGUF file.

    ``speculation`` takes vLLM's ``speculative_config`` keys (docs/speculation.md); None is plain
    decoding. Engine options are the fields of `EngineConfig`, given as ``config`` or as keywords.
    Use it from one thread; close it, or use it in a ``with`` statement, to stop its threads.
    """

    def __init__(
        self,
        model: str,
        *,
        speculation: Speculation = None,
        config: EngineConfig | None = None,
        **engine_options: Any,
    ) -> None:
        self.config = _engine_config(config, engine_options)
        parsed = SpeculationConfig.parse(speculation)
        ops = choose(self.config.ops, self.config.threads)
        try:
            self.model: Model = load_model(
                model, ops, self.config.weights, self.config.max_model_len
            )
            self.engine = Engine(self.model, self.config, parsed)
        except BaseException:
            ops.close()
            raise
        self.tokenizer = self.model.tokenizer
        self._times_known = False
        self._know_step_times()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is to last, and stop the threads. The object must not be used afterwards."""
        self.engine.close()
        self.model.ops.close()

    # Answers

    def generate(
        self,
        prompts: Sequence[Prompt] | str,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts (text, or token ids), batched; one output per prompt, in order.

        ``params`` is one for all or one for each; None takes the model's own sampling defaults.
        Raises RequestError, before anything runs, if one of the prompts cannot be served.
        """
        batch = [prompts] if isinstance(prompts, str) else list(prompts)
        each = self._params_for(batch, params)
        names: list[str] = []
        try:
            for prompt, one in zip(batch, each, strict=True):
                names.append(self.engine.add_request(self.prompt_ids(prompt), one))
        except WagerError:
            self._abort(names)
            raise
        collected = {name: Collector() for name in names}
        try:
            while any(not c.finished for c in collected.values()):
                for output in self.engine.step():
                    if output.request_id in collected:
                        collected[output.request_id].add(output)
        except BaseException:
            self._abort(names)
            raise
        return [collected[name].output() for name in names]

    def chat(
        self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None
    ) -> RequestOutput:
        """Answer a conversation of ``{"role", "content"}`` messages, by the chat template."""
        return self.generate([self.chat_ids(messages)], params)[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt piece by piece: each item holds what is new. Leaving early aborts."""
        name = self.engine.add_request(self.prompt_ids(prompt), params or self.default_params())
        finished = False
        try:
            while not finished:
                for output in self.engine.step():
                    if output.request_id == name:
                        finished = output.finished
                        yield output
        finally:
            if not finished:
                self._abort([name])

    def logits(self, ids: Sequence[int]) -> F32:
        """Logits of every position of a token sequence, [len(ids), V], by the ordinary path."""
        engine = self.engine
        blocks = engine.pool.take(blocks_for(len(ids)))
        if blocks is None or not ids:
            raise RequestError(f"logits: {len(ids)} tokens do not fit into the KV pool")
        try:
            step = self.config.max_batch_tokens
            parts = []
            for start in range(0, len(ids), step):
                piece = list(ids[start : start + step])
                parts.append(engine.target.forward([Span(piece, start, blocks, len(piece))]).logits)
            return np.concatenate(parts)
        finally:
            engine.pool.release(blocks)

    # Settings

    def set_speculation(self, speculation: Speculation) -> None:
        """Change the method, or decode plainly with None; the weights stay. While idle."""
        self.engine.set_speculation(SpeculationConfig.parse(speculation))
        self._know_step_times()

    def reset_caches(self) -> None:
        """Empty the prefix cache and what drafters learnt across requests. While idle."""
        self.engine.reset_caches()

    def default_params(self) -> SamplingParams:
        """The model's own sampling defaults (its generation config)."""
        own = self.model.generation
        return SamplingParams(temperature=own.temperature, top_k=own.top_k, top_p=own.top_p)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a text prompt, special tokens added as the tokenizer wants; ids as given."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        return [int(token) for token in prompt]

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens itself."""
        return self.tokenizer.encode(self.tokenizer.chat(messages), add_special=False)

    def _params_for(
        self, batch: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None:
            params = self.default_params()
        if isinstance(params, SamplingParams):
            return [params] * len(batch)
        if len(params) != len(batch):
            raise RequestError(f"params: {len(params)} for {len(batch)} prompts")
        return list(params)

    def _abort(self, names: Sequence[str]) -> None:
        """Abort and let the engine report it to nobody."""
        for name in names:
            self.engine.abort(name)
        if not self.engine.scheduler.has_work() and self.engine.has_work():
            self.engine.step()

    @property
    def _costs_path(self) -> Path:
        ops = self.model.ops
        kind = f"{self.model.fingerprint[:32]}-{self.engine.kv}-{ops.instruction_set}-{ops.threads}"
        return cache_dir() / "costs" / f"{kind}.json"

    def _know_step_times(self) -> None:
        """What steps take on this machine, once there is speculation that is judged by it."""
        if self._times_known or self.engine.speculation is None:
            return
        costs = self.engine.costs
        budget = CHECK_BUDGET_S if costs.load(self._costs_path) else START_BUDGET_S
        costs.measure_start(self.engine.max_model_len, budget)
        costs.save(self._costs_path)
        self.engine.times.refresh()
        self._times_known = True


class Collector:
    """Puts the deltas of one request together into one output."""

    def __init__(self) -> None:
        self.finished = False
        self._last: RequestOutput | None = None
        self._choices: dict[int, CompletionOutput] = {}

    def add(self, delta: RequestOutput) -> None:
        self._last = delta
        self.finished = delta.finished
        for new in delta.outputs:
            whole = self._choices.get(new.index)
            if whole is None:
                self._choices[new.index] = new
                continue
            whole.token_ids.extend(new.token_ids)
            whole.text += new.text
            whole.accepted_flags.extend(new.accepted_flags)
            if whole.logprobs is not None and new.logprobs is not None:
                whole.logprobs.extend(new.logprobs)
            whole.finish_reason, whole.stop_reason = new.finish_reason, new.stop_reason

    def output(self) -> RequestOutput:
        if self._last is None:
            raise AssertionError("a request without an output")
        self._last.outputs = [self._choices[index] for index in sorted(self._choices)]
        return self._last


_Item: TypeAlias = RequestOutput | BaseException


class AsyncLLM:
    """The same for asyncio: the engine steps in a thread of its own, requests share its batches.

        async with AsyncLLM("smollm2-135m") as llm:
            async for piece in llm.stream("Once upon a time"):
                print(piece.outputs[0].text, end="")

    Cancelling the consumer of a stream aborts its request.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.llm = LLM(model, **options)
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._streams: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[_Item]]] = {}
        self._closed = False
        # Nothing is put in behind the last command that the engine's thread looks at.
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="wager-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort what runs and stop the engine."""
        with self._door:
            self._closed = True
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Answer one prompt; run several at once with ``asyncio.gather``."""
        collector = Collector()
        async for piece in self.stream(prompt, params):
            collector.add(piece)
        return collector.output()

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, cache_salt: str = ""
    ) -> AsyncIterator[RequestOutput]:
        """Answer one prompt piece by piece: each item holds what is new."""
        ids = self.llm.prompt_ids(prompt)
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[_Item] = asyncio.Queue()
        ticket: dict[str, str] = {}
        with self._door:
            if self._closed:
                raise ConfigError("AsyncLLM: is closed")
            self._commands.put(
                (ids, params or self.llm.default_params(), cache_salt, loop, inbox, ticket)
            )
        finished = False
        try:
            while not finished:
                item = await inbox.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            if not finished:
                self._commands.put(ticket)

    # In the engine's thread

    def _run(self) -> None:
        engine = self.llm.engine
        try:
            while self._take_commands(wait=not engine.has_work()):
                if engine.has_work():
                    for output in engine.step():
                        self._deliver(output)
            error: BaseException = ConfigError("AsyncLLM: closed while the request was running")
        except BaseException as caught:
            error = caught
        with self._door:
            self._closed = True
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, tuple):
                self._streams[f"waiting-{len(self._streams)}"] = command[3:5]
        for name in list(self._streams):
            self._send(name, error)
        self.llm.close()

    def _take_commands(self, wait: bool) -> bool:
        """Act on what was asked for; False when it is time to stop."""
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if command is None:
                return False
            if isinstance(command, dict):
                self.llm.engine.abort(command.get("name", ""))
            else:
                self._add(*command)

    def _add(
        self,
        ids: list[int],
        params: SamplingParams,
        salt: str,
        loop: asyncio.AbstractEventLoop,
        inbox: asyncio.Queue[_Item],
        ticket: dict[str, str],
    ) -> None:
        try:
            name = self.llm.engine.add_request(ids, params, cache_salt=salt)
        except Exception as error:
            # Whatever is wrong with it, one request never ends the others.
            loop.call_soon_threadsafe(inbox.put_nowait, error)
            return
        ticket["name"] = name
        self._streams[name] = (loop, inbox)

    def _deliver(self, output: RequestOutput) -> None:
        self._send(output.request_id, output)
        if output.finished:
            self._streams.pop(output.request_id, None)

    def _send(self, name: str, item: _Item) -> None:
        target = self._streams.get(name)
        if target is not None and not target[0].is_closed():
            target[0].call_soon_threadsafe(target[1].put_nowait, item)


def _engine_config(config: EngineConfig | None, options: Mapping[str, Any]) -> EngineConfig:
    if config is not None:
        if options:
            raise ConfigError(
                f"config: given together with {', '.join(sorted(options))}; use one or the other"
            )
        return config
    known = set(EngineConfig.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise ConfigError(
                f"{name}: is not an engine option; there are: {', '.join(sorted(known))}"
            )
    return EngineConfig(**options)
