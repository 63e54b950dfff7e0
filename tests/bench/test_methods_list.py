"""The package's list of heads and families, and how names are matched with it."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

from wager.bench.methods.heads import KINDS, compare, families, family_of, heads, matching_heads

HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
LIST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["heads", "families"],
    "additionalProperties": False,
    "properties": {
        "heads": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["target", "head", "kind", "source"],
                "additionalProperties": False,
                "properties": {
                    "target": {"type": "string", "pattern": f"^{HUB_ID}$"},
                    "head": {"type": ["string", "null"], "pattern": f"^{HUB_ID}$"},
                    "kind": {"enum": list(KINDS)},
                    "source": {"type": "string", "pattern": "^https://"},
                    "note": {"type": "string", "minLength": 1},
                },
            },
        },
        "families": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "models"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "models": {
                        "type": "array",
                        "minItems": 2,
                        "items": {
                            "type": "object",
                            "required": ["id", "parameters"],
                            "additionalProperties": False,
                            "properties": {
                                "id": {"type": "string", "pattern": f"^{HUB_ID}$"},
                                "parameters": {"type": "integer", "minimum": 1_000_000},
                            },
                        },
                    },
                },
            },
        },
    },
}


# The list itself


def test_the_list_is_well_formed() -> None:
    text = (files("wager.bench.methods") / "heads.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(text), LIST_SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_list_holds_forty_targets_and_every_kind() -> None:
    assert len({head.target.lower() for head in heads()}) >= 40
    assert {head.kind for head in heads()} == set(KINDS)


def test_no_pair_is_listed_twice() -> None:
    pairs = [(h.target.lower(), (h.head or "").lower(), h.kind) for h in heads()]
    assert len(pairs) == len(set(pairs))


def test_a_head_is_missing_only_where_it_is_part_of_the_target() -> None:
    assert {head.kind for head in heads() if head.head is None} <= {"mtp", "dspark"}
    assert not [head for head in heads() if head.head == head.target]


def test_every_source_is_a_page_of_a_host() -> None:
    for head in heads():
        parts = urlsplit(head.source)
        assert parts.hostname in {"github.com", "huggingface.co", "docs.vllm.ai", "docs.sglang.io"}
        assert len(parts.path.strip("/").split("/")) >= 2


def test_families_name_a_model_once() -> None:
    ids = [model.id.lower() for family in families() for model in family.models]
    assert len(ids) == len(set(ids))


def test_the_page_lists_what_the_package_knows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+/[\w.-]+) \| (.+) \|$", page, re.MULTILINE)
    expected: dict[str, Counter[str]] = {}
    for head in heads():
        expected.setdefault(head.target, Counter())[head.kind] += 1
    assert f"heads for {len(expected)} targets" in page
    written = {
        target: Counter(
            {
                found[1]: int(found[2] or 1)
                for part in kinds.split(", ")
                if (found := re.fullmatch(r"(\w+)(?: \((\d+)\))?", part))
            }
        )
        for target, kinds in rows
    }
    assert written == expected


# Names


@pytest.mark.parametrize(
    ("name", "target", "match"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "exact"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B", "exact"),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B", "copy"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", "copy"),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "Qwen/Qwen3-8B", "copy"),
        ("bartowski/Qwen_Qwen3-8B-GGUF", "Qwen/Qwen3-8B", "copy"),
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen/Qwen3-8B", "copy"),
        ("Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf", "Qwen/Qwen3-8B", "copy"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "copy"),
        ("SmolLM2 135M Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "copy"),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B", "tuning"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507", "tuning"),
        ("Qwen/Qwen3-14B", "Qwen/Qwen3-8B", None),
        ("Qwen/Qwen3-80B", "Qwen/Qwen3-8B", None),
        ("Qwen/Qwen2.5-Coder-7B", "Qwen/Qwen2.5-7B", None),
        ("nex-agi/Qwen3-32B-Nex-N1", "Qwen/Qwen3-32B", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B", None),
        ("", "Qwen/Qwen3-8B", None),
    ],
)
def test_names(name: str, target: str, match: str | None) -> None:
    assert compare(name, target) == match


def test_exact_matches_come_first() -> None:
    found = matching_heads(["zai-org/GLM-4.7-Flash"])
    assert [(head.kind, match) for head, match in found] == [("mtp", "exact"), ("eagle3", "exact")]
    names = ["deepseek-ai/DeepSeek-V4-Flash"]
    assert [(head.kind, match) for head, match in matching_heads(names)] == [
        ("mtp", "exact"), ("dspark", "tuning"),
    ]  # fmt: skip


def test_family() -> None:
    found = family_of(["/models/Qwen2.5-Coder-7B-Instruct"])
    assert found is not None
    assert (found[0].name, found[1]) == ("Qwen2.5-Coder", "copy")
    assert family_of(["tiny", "model"]) is None
