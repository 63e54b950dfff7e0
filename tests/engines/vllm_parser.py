"""Run by vLLM's own Python, not by pytest: what its parser and its config say to commands.

Reads a JSON list of argument lists (what follows ``vllm``) from standard input and the path of a
small model from the command line; writes one JSON object per command: ``error`` (null where it
was accepted), ``checked`` (arguments, keys or whole) and the config in effect.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter
from vllm.config import ModelConfig, ParallelConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.entrypoints.cli.benchmark.latency import BenchmarkLatencySubcommand
from vllm.entrypoints.cli.benchmark.serve import BenchmarkServingSubcommand
from vllm.entrypoints.cli.benchmark.throughput import BenchmarkThroughputSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

# Methods whose config can be checked to the end with the small model alone.
WHOLE = ("ngram", "ngram_gpu", "suffix", "draft_model", "custom_class")
EFFECTIVE = (
    "method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max",
    "rejection_sample_method", "num_speculative_tokens_per_batch_size",
)  # fmt: skip


class RefusedError(Exception):
    """What the parser would print before it exits."""


class Parser(FlexibleArgumentParser):
    def error(self, message: str) -> Any:
        raise RefusedError(message)


def parsers() -> dict[tuple[str, ...], Any]:
    known: dict[tuple[str, ...], Any] = {("serve",): make_arg_parser(Parser())}
    for name, command in (
        ("serve", BenchmarkServingSubcommand),
        ("throughput", BenchmarkThroughputSubcommand),
        ("latency", BenchmarkLatencySubcommand),
    ):
        known["bench", name] = Parser()
        command.add_cli_args(known["bench", name])
    return known


def check_keys(config: dict[str, Any]) -> None:
    """Every key exists, and its value has the type that the field wants."""
    known = SpeculativeConfig.__dataclass_fields__
    hints = SpeculativeConfig.__annotations__
    for key, value in config.items():
        if key not in known:
            raise RefusedError(f"unknown key {key}")
        TypeAdapter(hints[key]).validate_python(value)


def check(
    words: list[str], known: dict[tuple[str, ...], Any], model: str, target: ModelConfig
) -> dict[str, Any]:
    command = next(c for c in known if tuple(words[: len(c)]) == c)
    parsed = known[command].parse_args(words[len(command) :])
    config = getattr(parsed, "speculative_config", None)
    if config is None:
        return {"checked": "arguments"}
    check_keys(config)
    if config["method"] not in WHOLE:
        return {"checked": "keys"}
    if config["method"] == "draft_model":
        config = {**config, "model": model}
    made = SpeculativeConfig(
        **config, target_model_config=target, target_parallel_config=ParallelConfig()
    )
    return {"checked": "whole", **{key: getattr(made, key) for key in EFFECTIVE}}


def main() -> None:
    model = sys.argv[1]
    target = ModelConfig(model=model, tokenizer=model, dtype="float32")
    known = parsers()
    for words in json.load(sys.stdin):
        try:
            said = {"error": None, **check(words, known, model, target)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print("SAID " + json.dumps(said))


if __name__ == "__main__":
    main()
