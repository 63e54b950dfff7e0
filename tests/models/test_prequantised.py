"""Checkpoints that others rounded: what is read is what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models.plain_ops import PlainOps
from tests.tiny import Shape, random_weights, write_stored, write_tiny_hf
from wager.errors import CorruptFile, UnsupportedModel
from wager.models.load import load_model, open_checkpoint
from wager.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
Made = tuple[Arrays, F32]

GROUP = 32
CODES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(values: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Values [r, c] as 32-bit words [r, c / per word], the first in the lowest bits."""
    per = 32 // bits
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // per) * per), np.uint32)
    padded[:, :columns] = values
    split = padded.reshape(rows, -1, per)
    found = np.zeros(split.shape[:2], np.uint32)
    for place in range(per):
        found |= split[:, :, order[place] if order else place] << np.uint32(place * bits)
    return found.view(np.int32)


def drawn(n: int, k: int, bits: int, seed: int) -> tuple[NDArray[Any], NDArray[Any], F32]:
    """Levels [n, k], zeros and scales [n, groups]."""
    rng, top = np.random.default_rng(seed), 1 << bits
    groups = k // GROUP
    scales = rng.uniform(0.001, 0.01, (n, groups)).astype(np.float16).astype(np.float32)
    return rng.integers(0, top, (n, k)), rng.integers(1, top, (n, groups)), scales


def exact(levels: NDArray[Any], zeros: NDArray[Any], scales: F32, group_of: NDArray[Any]) -> F32:
    centred = (levels - zeros[:, group_of]).astype(np.float32)
    found: F32 = centred * scales[:, group_of]
    return found


def gptq(n: int, k: int, seed: int, bits: int = 4, less: int = 1, ordered: bool = False) -> Made:
    levels, zeros, scales = drawn(n, k, bits, seed)
    group_of = np.arange(k) // GROUP
    if ordered:
        group_of = np.random.default_rng(seed).permutation(group_of)
    arrays = {
        "qweight": words(levels, bits).T,
        "qzeros": words((zeros - less).T, bits),
        "scales": scales.T.astype(np.float16),
        "g_idx": group_of.astype(np.int32),
    }
    return arrays, exact(levels, zeros, scales, group_of)


def awq(n: int, k: int, seed: int) -> Made:
    levels, zeros, scales = drawn(n, k, 4, seed)
    arrays = {
        "qweight": words(levels.T, 4, AWQ_ORDER),
        "qzeros": words(zeros.T, 4, AWQ_ORDER),
        "scales": scales.T.astype(np.float16),
    }
    return arrays, exact(levels, zeros, scales, np.arange(k) // GROUP)


def compressed(n: int, k: int, seed: int, bits: int = 4, symmetric: bool = True) -> Made:
    levels, zeros, scales = drawn(n, k, bits, seed)
    arrays: Arrays = {
        "weight_packed": words(levels, bits),
        "weight_scale": scales.astype(np.float16),
        "weight_shape": np.array([n, k], np.int64),
    }
    if symmetric:
        zeros[:] = 1 << bits - 1
    else:
        arrays["weight_zero_point"] = words(zeros.T, bits).T
    return arrays, exact(levels, zeros, scales, np.arange(k) // GROUP)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}


def in_groups(bits: int = 4, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP}
    group = {"targets": ["Linear"], "weights": weights, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    }


Way = tuple[dict[str, Any], Callable[..., Made], dict[str, Any]]
WAYS: dict[str, Way] = {
    "gptq": (GPTQ, gptq, {}),
    "gptq, in the order of activations": (GPTQ, gptq, {"ordered": True}),
    "gptq in 8 bits": ({**GPTQ, "bits": 8}, gptq, {"bits": 8}),
    "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq, {"less": 0}),
    "awq": (AWQ, awq, {}),
    "compressed-tensors": (in_groups(), compressed, {}),
    "compressed-tensors with zeros": (in_groups(), compressed, {"symmetric": False}),
    "compressed-tensors in 8 bits": (in_groups(8), compressed, {"bits": 8}),
}


def write(path: Path, tensors: Arrays) -> None:
    write_stored(
        path, {name: (CODES[a.dtype.name], a.shape, a.tobytes()) for name, a in tensors.items()}
    )


def rounded_model(
    directory: Path, way: Way, change: Callable[[Arrays], None] = lambda _: None
) -> dict[str, F32]:
    """A tiny model whose matrices are rounded; returns what they stand for."""
    setting, make, options = way
    write_tiny_hf(directory, config={"quantization_config": setting})
    tensors: Arrays = {}
    truth = {}
    plain = random_weights(Shape(2, 64, 4, 2, 16, 128, 288, True), 0)
    for number, (name, weight) in enumerate(plain.items()):
        if "proj" not in name:
            tensors[name] = weight
            continue
        arrays, truth[name] = make(*weight.shape, number, **options)
        layer = name.removesuffix("weight")
        tensors |= {layer + key: array for key, array in arrays.items()}
    change(tensors)
    write(directory / "model.safetensors", tensors)
    return truth


@pytest.mark.parametrize("name", WAYS)
def test_what_is_read_is_what_was_meant(name: str, tmp_path: Path) -> None:
    truth = rounded_model(tmp_path, WAYS[name])
    checkpoint = open_checkpoint(str(tmp_path))
    parts = {"self_attn.q_proj": "q", "mlp.gate_proj": "gate", "mlp.down_proj": "down"}
    for stored, part in parts.items():
        tensor = checkpoint.tensors[f"1.{part}"]
        weight = truth[f"model.layers.1.{stored}.weight"]
        assert np.array_equal(tensor.read(0, tensor.shape[0]), weight)
        # In pieces that begin within a word.
        assert np.array_equal(tensor.read(13, 9), weight[13:22])
    assert load_model(str(tmp_path), PlainOps()).weights == "int8"


def test_levels_of_four_bits_stay_as_they_are(tmp_path: Path) -> None:
    """Symmetric ones: a minimum of 8 steps is exact in half precision."""
    truth = rounded_model(tmp_path, WAYS["compressed-tensors"])
    ops = ReferenceOps()
    model = load_model(str(tmp_path), ops, "int4")
    rows = ops.embed(model.layers[0].weights.down, np.arange(64, dtype=np.int32))
    assert np.array_equal(rows, truth["model.layers.0.mlp.down_proj.weight"])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"quant_method": "bitsandbytes"}, "method 'bitsandbytes' is not supported"),
        ({"quant_method": "fp8"}, "method 'fp8'"),
        ({**GPTQ, "bits": 3}, "bits is 3; it must be 4 or 8"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({**GPTQ, "dynamic": {"-:.*": {}}}, "dynamic is"),
        ({**AWQ, "version": "gemv"}, "version is 'gemv'; it must be 'gemm'"),
        ({**AWQ, "bits": 8}, "bits is 8"),
        ({**in_groups(), "format": "float-quantized"}, "format is 'float-quantized'"),
        (in_groups(input_activations={"num_bits": 8}), "input_activations is"),
        ({**in_groups(), "config_groups": {}}, "weights of 0 widths"),
    ],
)
def test_other_ways_are_refused_by_name(setting: dict[str, Any], says: str, tmp_path: Path) -> None:
    write_tiny_hf(tmp_path, config={"quantization_config": setting})
    with pytest.raises(UnsupportedModel) as caught:
        open_checkpoint(str(tmp_path))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("way", "key", "value", "says"),
    [
        ("gptq", "scales", None, "its scales is missing"),
        ("gptq", "qzeros", np.zeros((2, 7), np.int32), "its qzeros is [2, 7]"),
        ("gptq", "g_idx", np.full(64, 9, np.int32), "names a group that is not there"),
        ("gptq", "scales", np.zeros((2, 64), np.int32), "its scales is stored as I32"),
        ("awq", "qweight", np.zeros((63, 8), np.int32), "do not make 2 groups"),
        ("awq", "qweight", np.zeros((64, 8), np.float32), "its qweight is stored as F32"),
        ("compressed-tensors", "weight_shape", np.zeros(2, np.int64), "beside the others"),
        ("compressed-tensors", "weight_shape", np.zeros(3, np.int64), "two whole numbers"),
    ],
)
def test_parts_that_do_not_fit(
    way: str, key: str, value: NDArray[Any] | None, says: str, tmp_path: Path
) -> None:
    name = f"model.layers.0.self_attn.q_proj.{key}"

    def change(tensors: Arrays) -> None:
        assert name in tensors
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value

    rounded_model(tmp_path, WAYS[way], change)
    with pytest.raises(CorruptFile) as caught:
        open_checkpoint(str(tmp_path))
    assert says in str(caught.value)


def test_whole_numbers_that_belong_to_nothing(tmp_path: Path) -> None:
    def change(tensors: Arrays) -> None:
        tensors["model.layers.0.mlp.g_idx"] = np.zeros(4, np.int32)

    rounded_model(tmp_path, WAYS["gptq"], change)
    with pytest.raises(UnsupportedModel, match="belongs to no packed weight"):
        open_checkpoint(str(tmp_path))
