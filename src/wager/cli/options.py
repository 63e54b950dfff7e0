"""Options that several verbs share, so that each is spelt and explained once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.config import EngineConfig
from wager.speculation import SpeculationConfig

if TYPE_CHECKING:
    from wager.engine.llm import LLM

ENGINE = "Engine"

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A pulled name, a directory in Hugging Face layout, or a GGUF file."
    ),
]
Weights = Annotated[
    str, typer.Option("--weights", help="auto, f32 or int8.", rich_help_panel=ENGINE)
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


def load(model: str, config: EngineConfig, speculation: SpeculationConfig | None = None) -> LLM:
    """Load a model; the heavy imports of a verb happen here."""
    from wager.engine.llm import LLM

    return LLM(model, speculation=speculation, config=config)


def engine_config(**options: Any) -> EngineConfig:
    """Checked before anything heavy is imported or read."""
    return EngineConfig(**options)
