"""Targets, heads and a hub that exist only here, for the tests of `wager methods`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.tiny import write_tiny_hf
from wager.bench.methods.find import Found, Way
from wager.errors import ModelError
from wager.models.facts.read import LayerCache, ModelFacts, read_facts


@cache
def _tiny() -> ModelFacts:
    """Facts of real files, for whatever the tests here do not set."""
    with tempfile.TemporaryDirectory() as directory:
        return read_facts(str(write_tiny_hf(Path(directory) / "tiny")))


def facts(name: str = "Qwen/Qwen3-8B", **changes: Any) -> ModelFacts:
    made = replace(
        _tiny(), name=name, source="hub", location=f"{name}@abc", architecture="Qwen3ForCausalLM",
        hidden_size=4096, vocab_size=151936, parameters=8_190_735_360, weight_bytes=16_381_470_720,
        kv_layers=(LayerCache("full", 2 * 8 * 128, 8),) * 36, tokenizer_hash="qwen", tensors=(),
    )  # fmt: skip
    return replace(made, **changes)


def head_facts(name: str, kind: str, **changes: Any) -> ModelFacts:
    speculative = {"kind": kind, **changes.pop("speculative", {})}
    made = facts(
        name, parameters=400_000_000, weight_bytes=800_000_000, num_layers=1, tokenizer_hash=None,
        kv_layers=(LayerCache("full", 2 * 8 * 128, 8),), speculative=speculative,
    )  # fmt: skip
    return replace(made, **changes)


def reader(*known: ModelFacts) -> Callable[..., ModelFacts]:
    by_name = {made.name: made for made in known}

    def read(name: str, *, tokenizer: bool = True) -> ModelFacts:
        if name not in by_name:
            raise ModelError(f"{name}: there is no such model on the hub")
        return by_name[name] if tokenizer else replace(by_name[name], tokenizer_hash=None)

    return read


@dataclass
class Model:
    id: str
    tags: list[str] | None = None


@dataclass
class Hub:
    """Answers as the hub's API does, over a list of models."""

    models: list[Model] = field(default_factory=list)
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def model_info(self, repo_id: str, *, timeout: float | None = None) -> Model:
        assert timeout
        self.asked.append(repo_id)
        if self.error is not None:
            raise self.error
        return next((m for m in self.models if m.id == repo_id), Model(repo_id))

    def list_models(
        self, *, filter: Any = None, search: str | None = None, sort: Any = None,
        limit: int | None = None,
    ) -> Iterable[Model]:  # fmt: skip
        assert search
        self.asked.append(f"{filter}:{search}")
        fitting = [
            m for m in self.models if filter in (m.tags or ()) and search.lower() in m.id.lower()
        ]
        return fitting[:limit]


def ways(found: Found, kind: str) -> list[Way]:
    return [way for way in found.ways if way.kind == kind]


def command(way: Way, engine: str) -> str:
    text = next(run.command for run in way.runs if run.engine == engine)
    assert text is not None
    return text
