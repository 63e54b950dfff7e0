"""Options that several verbs share, so that each is spelt and explained once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.config import EngineConfig
from wager.errors import ConfigError
from wager.speculation import SpeculationConfig

if TYPE_CHECKING:
    from wager.engine.llm import LLM

ENGINE = "Engine"

MODEL_HELP = (
    "A directory in Hugging Face layout, a GGUF file, a pulled name, ORG/REPO[:QUANT] pulled from "
    "the hub, or ollama:NAME."
)
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Tokenizer = Annotated[
    str,
    typer.Option("--tokenizer", metavar="MODEL", show_default=False,
                 help="Whose tokens: a pulled name, a directory, a GGUF file or a name on the "
                      "hub. No weights are read."),
]  # fmt: skip
Weights = Annotated[
    str, typer.Option("--weights", help="auto, f32, bf16, int8 or int4.", rich_help_panel=ENGINE)
]
Kv = Annotated[
    str, typer.Option("--kv", help="Type of keys and values: auto, f32 or f16.",
                      rich_help_panel=ENGINE)
]  # fmt: skip
Threads = Annotated[
    int | None, typer.Option("--threads", help="Default: the physical cores.",
                             rich_help_panel=ENGINE)
]  # fmt: skip
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", help="Longest context in tokens. Default: the model's.",
                 rich_help_panel=ENGINE),
]  # fmt: skip
Ops = Annotated[
    str,
    typer.Option("--ops", help="Op set: auto, native or reference.", rich_help_panel=ENGINE),
]
DraftMemory = Annotated[
    Path | None,
    typer.Option("--draft-memory", metavar="FILE", show_default=False,
                 help="Past answers on disk, for suffix and ngram (docs/memory.md): the same as "
                      '"draft_memory" in the config. bench only reads it.'),
]  # fmt: skip


def with_memory(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """A speculative config with --draft-memory FILE. Raises ConfigError."""
    if any(key.replace("-", "_") == "draft_memory" for key in config):
        raise ConfigError("draft-memory: the config names one too; leave out one of the two")
    return {**config, "draft_memory": str(file)}


def load(model: str, config: EngineConfig, speculation: SpeculationConfig | None = None) -> LLM:
    """Load a model; the heavy imports of a verb happen here."""
    from wager.engine.llm import LLM

    return LLM(model, speculation=speculation, config=config)


def engine_config(**options: Any) -> EngineConfig:
    """Checked before anything heavy is imported or read."""
    return EngineConfig(**options)
