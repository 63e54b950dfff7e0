"""`wager run`: one answer, or a chat."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.cli import options
from wager.cli.bench_options import json_object
from wager.config import SamplingParams
from wager.errors import ConfigError, RequestError
from wager.speculation import SpeculationConfig

if TYPE_CHECKING:
    from wager.engine.llm import LLM


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told beside the answers."""

    stats: bool
    explain: bool
    no_color: bool


SAMPLING = "Sampling (default: the model's generation config)"

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", show_default=False,
                   help="What to answer; - reads standard input. Without it: a chat."),
]  # fmt: skip
Speculation = Annotated[
    str | None,
    typer.Option("--speculative-config", "-sc", metavar="JSON", show_default=False,
                 help="Draft and verify, e.g. "
                      '{"method": "ngram", "num_speculative_tokens": 8}. '
                      "Without it: plain decoding."),
]  # fmt: skip
Raw = Annotated[
    bool, typer.Option("--raw", help="Send PROMPT as it is, without the chat template.")
]
System = Annotated[str | None, typer.Option("--system", help="System message.", show_default=False)]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", help="Longest answer. Default: what the context has left.",
                 rich_help_panel=SAMPLING),
]  # fmt: skip
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=SAMPLING)
]
TopK = Annotated[int | None, typer.Option("--top-k", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option("--top-p", rich_help_panel=SAMPLING)]
MinP = Annotated[float | None, typer.Option("--min-p", rich_help_panel=SAMPLING)]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Same seed, same answer.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End before this text; repeatable.", rich_help_panel=SAMPLING),
]
Stats = Annotated[bool, typer.Option("--stats", help="Say afterwards what speculation did.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say afterwards what the controller decided, and why.")
]
NoColor = Annotated[
    bool, typer.Option("--no-color", help="Accepted draft tokens in no other colour.")
]


def run(
    model: options.ModelName,
    prompt: Prompt = None,
    speculative_config: Speculation = None,
    draft_memory: options.DraftMemory = None,
    raw: Raw = False,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    stats: Stats = False,
    explain: Explain = False,
    no_color: NoColor = False,
    weights: options.Weights = "auto",
    kv: options.Kv = "auto",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
    ops: options.Ops = "auto",
) -> None:
    """Answer PROMPT, or chat (/clear starts anew, /exit or end of file ends).

    On a terminal, tokens that a draft foretold show in another colour.
    """
    speculation = _speculation(speculative_config, draft_memory)
    own = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    chosen: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    chosen.update(max_tokens=max_tokens, seed=seed, stop=tuple(stop or ()))
    SamplingParams(**chosen)
    config = options.engine_config(
        weights=weights, kv=kv, threads=threads, max_model_len=max_model_len, ops=ops,
        max_num_seqs=1,
    )  # fmt: skip
    text = sys.stdin.read() if prompt == "-" else prompt
    if text == "":
        raise RequestError("prompt: is empty")
    if text is None and raw:
        raise ConfigError("raw: a chat needs the chat template; give a PROMPT with --raw")
    if raw and system is not None:
        raise ConfigError("system: has no place in a raw prompt; leave out --raw or --system")
    if explain and (speculation is None or speculation.controller == "off"):
        raise ConfigError(
            "explain: there is no controller at work; give a --speculative-config, and leave "
            '"controller" on'
        )
    with options.load(model, config, speculation) as llm:
        if speculation is not None:
            print(f"speculation: {speculation.describe()}", file=sys.stderr)
        telling = Telling(stats, explain, no_color)
        _converse(llm, text, chosen, telling, raw=raw, system=system)


def _speculation(text: str | None, memory: Path | None) -> SpeculationConfig | None:
    if memory is None:
        return SpeculationConfig.parse(text)
    example = '{"method": "suffix", "num_speculative_tokens": 8}'
    if text is None:
        raise ConfigError(f"draft-memory: nothing drafts; add --speculative-config '{example}'")
    given = json_object("speculative-config", text, example)
    return SpeculationConfig.parse(options.with_memory(given, memory))


def _converse(
    llm: LLM,
    text: str | None,
    chosen: dict[str, Any],
    telling: Telling,
    *,
    raw: bool,
    system: str | None,
) -> None:
    from wager.cli.chat import Session

    session = Session(llm, chosen, telling, system=system)
    if text is None:
        session.chat()
    else:
        session.once(text, raw=raw)
