"""Every family as a GGUF file: the same model as its twin in Hugging Face layout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.models.logits import logits_of
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_weights import TINY_FAMILIES
from wager.errors import CorruptFile, UnsupportedModel
from wager.models.load import load_model, open_checkpoint
from wager.models.packed import load_packed, plan
from wager.ops.reference import ReferenceOps
from wager.shape import LayerKind, ModelConfig

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.0, 1.25, 1.5, 1.5, 2.0],
            "long_factor": [1.0, 2.0, 2.5, 4.0, 8.0, 16.0]}  # fmt: skip

# The keys that GGUF has no place for are at what llama.cpp takes for granted.
TWINS: dict[str, dict[str, Any]] = {
    "llama": {"tied": False},
    "llama, biases": {"config": {"attention_bias": True}},
    "llama, llama3": {"config": {"rope_scaling": LLAMA3}},
    "llama, linear": {"config": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}},
    "mistral": {},
    "qwen2": {"config": {"use_sliding_window": False}},
    "qwen3": {"head_dim": 32},
    "qwen3, yarn": {"config": {"rope_scaling": YARN}},
    "qwen3, yarn in full": {
        "config": {"rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0,
                                    "attention_factor": 1.25}}
    },
    "smollm3": {"layers": 4, "config": {"no_rope_layer_interval": 4}},
    "phi3": {"tied": False},
    "phi3, no window": {"config": {"sliding_window": None}},
    "phi3, longrope": {
        "config": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32}
    },
    "phi3, longrope, short": {
        "config": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 500}
    },
    "gemma2": {"config": {"query_pre_attn_scalar": 32}, "head_dim": 32},
    "gemma3": {"config": {"query_pre_attn_scalar": 16}},
    "gemma3, six layers": {
        "layers": 6, "config": {"query_pre_attn_scalar": 16, "sliding_window_pattern": 6}
    },
    "gemma3, linear": {
        "config": {"query_pre_attn_scalar": 16,
                   "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    },
    "qwen3moe": {"tied": False},
    "mixtral": {"config": {"norm_topk_prob": True}},
    "olmo2": {"tied": False},
    "granite": {},
    "granite, biases": {"config": {"attention_bias": True}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def rounded(value: Any) -> Any:
    """Numbers as GGUF keeps them."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(rounded(each) for each in value)
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


def config_of(path: Path) -> ModelConfig:
    return open_checkpoint(str(path)).config


def test_no_family_is_left_out() -> None:
    assert {name.partition(",")[0] for name in TWINS} == set(TINY_FAMILIES)


@pytest.mark.parametrize("twin", TWINS)
def test_both_layouts_are_one_model(tmp_path: Path, twin: str) -> None:
    options = {"family": twin.partition(",")[0], "seed": 4, **TWINS[twin]}
    paths = (
        write_tiny_hf(tmp_path / "hf", **options),
        write_tiny_gguf(tmp_path / "m.gguf", **options),
    )
    hf, ours = (open_checkpoint(str(path)) for path in paths)
    assert asdict(ours.config) == rounded(asdict(hf.config))
    ops = ReferenceOps()
    truth, packed = load_packed(hf, ops, "f32"), load_packed(ours, ops, "f32")
    pieces = plan(hf.config, ops, "f32")
    assert pieces == plan(ours.config, ops, "f32")
    for name, piece in pieces.items():
        if len(piece.shape) == 1:
            assert np.array_equal(packed.vector(name), truth.vector(name)), name
        else:
            mine, its = packed.matrix(name, ops).weight, truth.matrix(name, ops).weight
            assert np.array_equal(mine, its), name
    expected, logits = (logits_of(load_model(str(path), ops)) for path in paths)
    assert np.ptp(expected) > 0.5
    assert np.allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_partial_rotary(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", family="phi3")
    assert config_of(path).ropes[0].dims == 12
    wrong = write_tiny_gguf(
        tmp_path / "n.gguf", family="phi3", metadata={"phi3.rope.dimension_count": 18}
    )
    with pytest.raises(CorruptFile, match=r"rope\.dimension_count is 18; a head has 16"):
        config_of(wrong)


def test_windows(tmp_path: Path) -> None:
    mistral = write_tiny_gguf(tmp_path / "m.gguf", family="mistral", layers=3)
    assert config_of(mistral).kinds == (LayerKind(24),) * 3
    gemma = write_tiny_gguf(tmp_path / "g.gguf", family="gemma2", layers=3)
    assert config_of(gemma).kinds == (LayerKind(20), LayerKind(), LayerKind(20))
    other = {"gemma2.attention.sliding_window_pattern": [False, True, True]}
    gemma = write_tiny_gguf(tmp_path / "o.gguf", family="gemma2", layers=3, metadata=other)
    assert config_of(gemma).kinds == (LayerKind(), LayerKind(20), LayerKind(20))


def test_granite_without_rotary(tmp_path: Path) -> None:
    """The one family that turns positions off by a key that says something else elsewhere."""
    off = {"granite.rope.scaling.finetuned": False}
    path = write_tiny_gguf(tmp_path / "m.gguf", family="granite", metadata=off)
    assert config_of(path).kinds == (LayerKind(rope=None),) * 2
    on = {"granite.rope.scaling.finetuned": True}
    path = write_tiny_gguf(tmp_path / "n.gguf", family="granite", metadata=on)
    assert config_of(path).kinds == ()
    llama = {"llama.rope.scaling.finetuned": False}
    path = write_tiny_gguf(tmp_path / "l.gguf", metadata=llama)
    assert config_of(path).kinds == ()


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_of_the_gemmas(tmp_path: Path, family: str, layers: int) -> None:
    """Their queries are scaled by the width of a head's share, which the file does not say."""
    sizes = {"hidden": 64, "heads": 2, "head_dim": 16, "intermediate": 32, "kv_heads": 1}
    path = write_tiny_gguf(tmp_path / "m.gguf", family=family, layers=layers, **sizes)
    assert config_of(path).attention_scale == pytest.approx(32**-0.5)
    path = write_tiny_gguf(tmp_path / "n.gguf", family=family, layers=4, **sizes)
    assert config_of(path).attention_scale == pytest.approx(16**-0.5)


@pytest.mark.parametrize(
    ("family", "metadata", "fragment"),
    [
        ("olmo2", {"olmo2.attention.sliding_window": 64}, "olmo2.attention.sliding_window' = 64"),
        ("qwen3", {"qwen3.attention.sliding_window": 64}, "qwen3.attention.sliding_window' = 64"),
        ("llama", {"llama.attention.scale": 0.5}, "llama.attention.scale' = 0.5"),
        ("qwen2", {"qwen2.rope.scaling.yarn_log_multiplier": 0.5}, "yarn_log_multiplier' = 0.5"),
        ("gemma3", {"gemma3.attn_logit_softcapping": 50.0}, "attn_logit_softcapping' = 50.0"),
        ("gemma2", {"gemma2.rope.scaling.attn_factor": 1.5}, "attn_factor' = 1.5"),
        ("granite", {"granite.expert_count": 8}, "granite.expert_count' = 8"),
        ("phi3", {"phi3.rope.scaling.type": "longrope"}, "'longrope' without its factors"),
    ],
)
def test_settings_refused_by_name(
    tmp_path: Path, family: str, metadata: dict[str, Any], fragment: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", family=family, metadata=metadata)
    with pytest.raises(UnsupportedModel) as caught:
        config_of(path)
    assert fragment in str(caught.value)


def test_settings_that_change_nothing(tmp_path: Path) -> None:
    metadata = {"qwen3.rope.scaling.yarn_ext_factor": 1.0, "qwen3.expert_count": 0,
                "qwen3.rope.scaling.yarn_log_multiplier": 0.0}  # fmt: skip
    plain = write_tiny_gguf(tmp_path / "a.gguf", family="qwen3")
    stated = write_tiny_gguf(tmp_path / "b.gguf", family="qwen3", metadata=metadata)
    assert config_of(plain) == config_of(stated)


def test_one_of_the_longrope_tables_is_missing(tmp_path: Path) -> None:
    config = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32}
    path = write_tiny_gguf(tmp_path / "m.gguf", family="phi3", config=config)
    raw = path.read_bytes().replace(b"rope_factors_short.weight", b"rope_factors_shirt.weight")
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match=r"one of rope_factors_long\.weight"):
        config_of(path)


def test_names_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    """What the twins above hold: fused tensors, both norms, no bias where there is none."""
    path = write_tiny_gguf(tmp_path / "m.gguf", family="phi3", layers=1)
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert {"blk.0.attn_qkv.weight", "blk.0.ffn_up.weight"} < names
    assert not any("ffn_gate" in name or "attn_q." in name for name in names)
