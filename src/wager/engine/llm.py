"""The library's front door: a model, its engine, and text in and out.

llm = LLM("smollm2-135m", speculation={"method": "ngram", "num_speculative_tokens": 8})
for answer in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
    print(answer.outputs[0].text)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from wager.types import CompletionOutput, RequestOutput, TokenLogprob

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
        return SamplingParams(
            temperature=own.temperature,
            top_k=own.top_k,
            top_p=own.top_p,
            min_p=own.min_p,
            repetition_penalty=own.repetition_penalty,
        )

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
        costs = self.engine.costs
        if costs.cells or self.engine.speculation is None:
            return
        budget = CHECK_BUDGET_S if costs.load(self._costs_path) else START_BUDGET_S
        costs.measure_start(self.engine.max_model_len, budget)
        costs.save(self._costs_path)


class Collector:
    """Puts the deltas of one request together into one output."""

    def __init__(self) -> None:
        self.finished = False
        self._last: RequestOutput | None = None
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._choices: dict[int, CompletionOutput] = {}

    def add(self, delta: RequestOutput) -> None:
        self._last = delta
        self.finished = delta.finished
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
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
        self._last.prompt_logprobs = self._prompt_logprobs
        self._last.outputs = [self._choices[index] for index in sorted(self._choices)]
        return self._last


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
