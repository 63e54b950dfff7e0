"""Servers over a tiny model whose template knows tools and reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server.harness import Live, serving
from tests.recipes import ngram
from tests.tiny import write_tiny_hf

# Hermes-style calls; `enable_thinking` opens the reasoning in the prompt, as Qwen's templates do.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n<tools>' }}"
    "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    '{{ \'</tools>\\n<tool_call>{"name": , "arguments": }</tool_call><|im_end|>\\n\' }}{% endif %}'
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] %}{{ message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}"
)
CALLS = TEMPLATE.replace("<think>", "(think)")
"""The same without reasoning: where a call is forced, it begins with the first token."""
CONTEXT = 2048


def write_served(directory: Path, template: str = TEMPLATE, context: int = CONTEXT) -> Path:
    """The model of the exactness tests, with room for templates and another template."""
    write_tiny_hf(directory, seed=1, sharpness=4.0, max_context=context)
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["chat_template"] = template
    path.write_text(json.dumps(settings), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def served_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def calls_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("calls"), CALLS)


@pytest.fixture(scope="session")
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a context of 96 tokens."""
    return write_served(tmp_path_factory.mktemp("short"), context=96)


@pytest.fixture(scope="module")
def plain(served_path: Path) -> Iterator[Live]:
    """The yardstick: no speculation, one request at a time, in one piece, without a cache."""
    with serving(served_path, max_num_seqs=1, prefix_cache=False) as live:
        yield live


@pytest.fixture(scope="module")
def betting(served_path: Path) -> Iterator[Live]:
    """Always drafts, up to 16 tokens; several requests at a time, prompts in chunks."""
    with serving(
        served_path, speculation=ngram(16, low=1, high=4), max_num_seqs=16, max_batch_tokens=64
    ) as live:
        yield live
