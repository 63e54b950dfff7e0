"""llama-server's own protocol (``/completion``), which tells token ids and draft counts.

Its OpenAI routes tell neither while streaming. Two habits of it matter here: tokens that a draft
brought in come as events of their own at the same moment, and a token that ends within a character
is left out of the stream, its id included, though it is counted at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wager.backend import Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external.openai import UNSENT, error_text
from wager.external.reply import Reply, ReplyError
from wager.types import FinishReason, TokenLogprob

COMPLETION: Final = "/completion"
_SEEDS: Final = (1 << 32) - 1
"""The largest 32-bit seed asks for a random one."""
_FINISH: Final[dict[str, FinishReason]] = {"eos": "stop", "word": "stop", "limit": "length"}
# llama-server's samplers with no counterpart in a request of ours, each at the value that does
# nothing: its defaults are not all neutral and may change.
_NEUTRAL: Final = {
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
}


def body(prompt: Prompt, text: str | Sequence[int]) -> dict[str, Any]:
    """A streaming request for ``text``: the prompt's own, its ids, or its chat in the template.

    Raises ConfigError for a sampling option that llama-server does not have.
    """
    params = prompt.params
    _check(params)
    asked: dict[str, Any] = {
        "prompt": text if isinstance(text, str) else list(text),
        "stream": True,
        "return_tokens": True,
        # A prompt that was seen before would be free; every arm computes each prompt.
        "cache_prompt": False,
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "temperature": params.temperature,
        "top_k": max(params.top_k, 0),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "ignore_eos": params.ignore_eos,
        "seed": -1 if params.seed is None else params.seed % _SEEDS,
        "stop": list(params.stop),
        **_NEUTRAL,
    }
    if params.logprobs is not None:
        asked["n_probs"] = max(params.logprobs, 1)
    return asked


def _check(params: SamplingParams) -> None:
    plain = SamplingParams()
    for name in ("n", "min_tokens", "stop_token_ids", "include_stop_str_in_output", *UNSENT):
        if getattr(params, name) != getattr(plain, name):
            raise ConfigError(f"{name}: llama-server has no such option; leave it out")


def read(event: Mapping[str, Any], reply: Reply) -> None:
    """Take one event of a ``/completion`` stream into the reply. Raises ReplyError."""
    if event.get("error"):
        raise ReplyError(error_text(event))
    ids = event.get("tokens")
    _read_logprobs(event, ids or (), reply)
    reply.take(str(event.get("content") or ""), ids or None)
    if event.get("stop"):
        _read_end(event, reply)


def _read_end(event: Mapping[str, Any], reply: Reply) -> None:
    reply.done = True
    reply.finish_reason = _FINISH.get(str(event.get("stop_type")))
    timings = event.get("timings") or {}
    count = timings.get("predicted_n", event.get("tokens_predicted"))
    reply.server_tokens = count if isinstance(count, int) else None
    reply.prompt_tokens = event.get("tokens_evaluated")
    reply.cached_tokens = timings.get("cache_n")
    reply.predicted_ms = timings.get("predicted_ms")
    if event.get("truncated"):
        reply.notes.append("the prompt did not fit and was cut")
    # `draft_n` and `draft_n_accepted` stand there too, but not how many steps carried a draft:
    # counts of a single request cannot be made of them, and are left to /metrics.


def _read_logprobs(event: Mapping[str, Any], ids: Sequence[int], reply: Reply) -> None:
    """Log-probabilities, unless a token lacks them: while drafting only a step's own do not."""
    if reply.prompt.params.logprobs is None or not ids or not reply.logprobs_known:
        return
    found = event.get("completion_probabilities") or ()
    if [item.get("id") for item in found] != list(ids):
        reply.logprobs, reply.logprobs_known = None, False
        return
    read_in = [
        TokenLogprob(
            item["id"],
            item["logprob"],
            tuple((other["id"], other["logprob"]) for other in item.get("top_logprobs") or ()),
        )
        for item in found
    ]
    reply.logprobs = [*(reply.logprobs or ()), *read_in]
