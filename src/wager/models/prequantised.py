"""Weights that others rounded to 4 or 8 bits: GPTQ, AWQ and compressed-tensors checkpoints.

They are read as what they stand for, (level - zero) * scale, row by row; packing to our own int4 or
int8 follows. Layouts: https://github.com/ModelCloud/GPTQModel (``qweight`` packed along the inputs,
``qzeros`` along the outputs, one less than the zero in its first format),
https://github.com/casper-hansen/AutoAWQ (both packed along the outputs, in an order of its own),
https://github.com/vllm-project/compressed-tensors (``weight_packed`` along the inputs, levels and
zeros moved up by half their range).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wager.errors import CorruptFile, UnsupportedModel
from wager.models.checkpoint import STORED_DTYPES, StoredTensor, quoted, read_block, widen
from wager.models.fields import Fields
from wager.models.safetensors_file import TensorInfo
from wager.ops.base import F32

Levels = NDArray[np.int32]
Parts = Mapping[str, TensorInfo]
Method = Literal["gptq", "awq", "compressed-tensors"]
QUANT_METHODS: Final = get_args(Method)

INTEGERS: Final[dict[str, np.dtype[Any]]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
_WORD: Final = 32
# The tensor that stands for a weight, and those that belong to it.
_PACKED: Final = {
    "gptq": ("qweight", ("qzeros", "scales", "g_idx")),
    "awq": ("qweight", ("qzeros", "scales")),
    "compressed-tensors": (
        "weight_packed", ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    ),
}  # fmt: skip
# In which of the eight columns of a word AWQ puts its values, lowest first.
_AWQ_ORDER: Final = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the matrices of a checkpoint were rounded. ``less`` is what stored zeros are short of."""

    method: Method
    bits: int
    less: int = 0


def read_scheme(path: Path, raw: Mapping[str, Any]) -> Scheme | None:
    """``quantization_config`` of a config.json; None where there is none.

    Raises UnsupportedModel for schemes that cannot be read, CorruptFile for nonsense.
    """
    fields = Fields(path, raw).table("quantization_config")
    if not fields.raw:
        return None
    method = fields.get("quant_method")
    if method == "gptq":
        layout = fields.get("checkpoint_format") or "gptq"
        _must(path, "checkpoint_format", layout, ("gptq", "gptq_v2"))
        _must(path, "dynamic", fields.get("dynamic") or None, (None,))
        return Scheme("gptq", _bits(fields, "bits"), 1 if layout == "gptq" else 0)
    if method == "awq":
        _must(path, "version", str(fields.get("version") or "gemm").lower(), ("gemm",))
        return Scheme("awq", _bits(fields, "bits", "w_bit", allowed=(4,)))
    if method == "compressed-tensors":
        return _compressed(path, fields)
    raise UnsupportedModel(
        f"{path}: quantization_config: method {quoted(method)} is not supported; what works: "
        "gptq, awq, compressed-tensors (pack-quantized)"
    )


def _compressed(path: Path, fields: Fields) -> Scheme:
    _must(path, "format", fields.get("format"), ("pack-quantized",))
    _must(path, "kv_cache_scheme", fields.get("kv_cache_scheme"), (None,))
    groups = fields.table("config_groups").raw
    found = set()
    for name in groups:
        group = fields.table("config_groups").table(name)
        _must(path, "input_activations", group.get("input_activations"), (None,))
        weights = group.table("weights")
        _must(path, "type", weights.get("type") or "int", ("int",))
        found.add(_bits(weights, "num_bits"))
    if len(found) != 1:
        raise UnsupportedModel(
            f"{path}: quantization_config: weights of {len(found)} widths are not supported; one is"
        )
    return Scheme("compressed-tensors", found.pop())


def _must(path: Path, key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        may = " or ".join("left out" if item is None else repr(item) for item in allowed)
        raise UnsupportedModel(
            f"{path}: quantization_config: {key} is {quoted(value)}; it must be {may}"
        )


def _bits(fields: Fields, *keys: str, allowed: tuple[int, ...] = (4, 8)) -> int:
    bits = fields.need(*keys)
    _must(Path(fields.path), keys[0], bits, allowed)
    return bits


def unpacked(
    scheme: Scheme, infos: Mapping[str, TensorInfo]
) -> tuple[dict[str, StoredTensor], dict[str, TensorInfo]]:
    """The weights that are stored in a packed form, under their plain names, and what is left.

    Raises CorruptFile where the parts of one do not fit each other, UnsupportedModel for whole
    numbers beside them.
    """
    stem, others = _PACKED[scheme.method]
    left = dict(infos)
    found = {}
    for name in [name for name in infos if name.endswith(f".{stem}")]:
        layer = name.removesuffix(stem)
        parts = {key: left.pop(layer + key) for key in (stem, *others) if layer + key in left}
        shape, read = _READERS[scheme.method](scheme, name, parts)
        found[f"{layer}weight"] = StoredTensor(name, shape, read)
    for name, info in left.items():
        if info.dtype in INTEGERS:
            raise UnsupportedModel(
                f"{info.path}: tensor {quoted(name)} is stored as {info.dtype} and belongs to no "
                f"packed weight; what works: {', '.join(STORED_DTYPES)}"
            )
    return found, left


def _gptq(
    scheme: Scheme, name: str, parts: Parts
) -> tuple[tuple[int, int], Callable[[int, int], F32]]:
    weight, scales, zeros = (_part(name, parts, key) for key in ("qweight", "scales", "qzeros"))
    per_word = _WORD // scheme.bits
    groups, n = _matrix(name, scales)
    k = _matrix(name, weight)[0] * per_word
    expected = {
        "qweight": (k // per_word, n),
        "qzeros": (groups, -(-n // per_word)),
        "scales": (groups, n),
    }
    _check(name, parts, expected | ({"g_idx": (k,)} if "g_idx" in parts else {}))
    group_of = _group_of(name, parts.get("g_idx"), k, groups)

    def read(first: int, count: int) -> F32:
        levels = _along_rows(_columns(weight, first, count), scheme.bits)
        low, high = first // per_word, -(-(first + count) // per_word)
        zero = _along_columns(_columns(zeros, low, high - low), scheme.bits)
        zero = zero[:, first - low * per_word :][:, :count]
        # What counts down from 0 stands for the highest level.
        zero = (zero + scheme.less) & ((1 << scheme.bits) - 1) if scheme.less else zero
        return _weights(levels, zero, _scales(scales, first, count), group_of)

    return (n, k), read


def _awq(
    scheme: Scheme, name: str, parts: Parts
) -> tuple[tuple[int, int], Callable[[int, int], F32]]:
    weight, scales, zeros = (_part(name, parts, key) for key in ("qweight", "scales", "qzeros"))
    per_word = _WORD // scheme.bits
    (groups, n), k = _matrix(name, scales), _matrix(name, weight)[0]
    words = -(-n // per_word)
    _check(name, parts, {"qweight": (k, words), "qzeros": (groups, words), "scales": (groups, n)})
    group_of = _group_of(name, None, k, groups)

    def columns(info: TensorInfo, first: int, count: int) -> Levels:
        low, high = first // per_word, -(-(first + count) // per_word)
        found = _along_columns(_columns(info, low, high - low), scheme.bits)
        ordered = found.reshape(len(found), -1, per_word)[:, :, _AWQ_ORDER]
        return ordered.reshape(len(found), -1)[:, first - low * per_word :][:, :count]

    def read(first: int, count: int) -> F32:
        scale = _scales(scales, first, count)
        return _weights(
            columns(weight, first, count), columns(zeros, first, count), scale, group_of
        )

    return (n, k), read


def _compressed_tensors(
    scheme: Scheme, name: str, parts: Parts
) -> tuple[tuple[int, int], Callable[[int, int], F32]]:
    weight, scales = (_part(name, parts, key) for key in ("weight_packed", "weight_scale"))
    shape = _part(name, parts, "weight_shape")
    if shape.shape != (2,) or shape.dtype not in INTEGERS:
        raise CorruptFile(f"{shape.path}: tensor {name}: weight_shape is not two whole numbers")
    n, k = (int(size) for size in read_block(shape.path, INTEGERS[shape.dtype], shape.offset, 2))
    per_word, middle = _WORD // scheme.bits, 1 << scheme.bits - 1
    groups = _matrix(name, scales)[1]
    expected = {"weight_packed": (n, -(-k // per_word)), "weight_scale": (n, groups)}
    if "weight_zero_point" in parts:
        expected["weight_zero_point"] = (-(-n // per_word), groups)
    _check(name, parts, expected)
    group_of = _group_of(name, parts.get("weight_g_idx"), k, groups)

    def read(first: int, count: int) -> F32:
        levels = _along_columns(_rows(weight, first, count), scheme.bits)[:, :k] - middle
        zero = np.zeros((count, groups), np.int32)
        if (stored := parts.get("weight_zero_point")) is not None:
            low, high = first // per_word, -(-(first + count) // per_word)
            found = _along_rows(_rows(stored, low, high - low), scheme.bits) - middle
            zero = found[first - low * per_word :][:count]
        data = read_block(
            scales.path, STORED_DTYPES[scales.dtype],
            scales.offset + first * groups * STORED_DTYPES[scales.dtype].itemsize, count * groups,
        )  # fmt: skip
        scale = widen(data, scales.dtype).reshape(count, groups)
        return _weights(levels.T, zero.T, scale.T, group_of)

    return (n, k), read


_READERS: Final = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}


def _weights(levels: Levels, zero: Levels, scale: F32, group_of: NDArray[np.int64]) -> F32:
    """[k, n] levels and [groups, n] zeros and scales as weights [n, k]."""
    centred = (levels - zero[group_of]).astype(np.float32)
    return np.ascontiguousarray((centred * scale[group_of]).T)


def _part(name: str, parts: Parts, key: str) -> TensorInfo:
    if key not in parts:
        raise CorruptFile(f"tensor {name}: its {key} is missing")
    return parts[key]


def _matrix(name: str, info: TensorInfo) -> tuple[int, int]:
    if len(info.shape) != 2 or not all(info.shape):
        raise CorruptFile(f"{info.path}: tensor {name}: a part of it is no matrix")
    return info.shape[0], info.shape[1]


def _check(name: str, parts: Parts, expected: Mapping[str, tuple[int, ...]]) -> None:
    for key, shape in expected.items():
        info = _part(name, parts, key)
        if info.shape != shape:
            raise CorruptFile(
                f"{info.path}: tensor {name}: its {key} is {list(info.shape)}; beside the others "
                f"it must be {list(shape)}"
            )
        integer = key not in ("scales", "weight_scale")
        if info.dtype not in (("I32",) if integer else STORED_DTYPES):
            raise CorruptFile(f"{info.path}: tensor {name}: its {key} is stored as {info.dtype}")


def _group_of(name: str, info: TensorInfo | None, k: int, groups: int) -> NDArray[np.int64]:
    """The group of each input: stated, or groups of one size."""
    if info is None:
        if k % groups:
            raise CorruptFile(f"tensor {name}: {k} inputs do not make {groups} groups of one size")
        return np.arange(k) // (k // groups)
    if info.shape != (k,) or info.dtype != "I32":
        raise CorruptFile(f"{info.path}: tensor {name}: its g_idx is not {k} whole numbers")
    stated = read_block(info.path, INTEGERS["I32"], info.offset, k).astype(np.int64)
    if stated.min() < 0 or stated.max() >= groups:
        raise CorruptFile(f"{info.path}: tensor {name}: its g_idx names a group that is not there")
    return stated


def _along_columns(words: Levels, bits: int) -> Levels:
    """Words [r, c] as values [r, c * per word], the lowest bits first."""
    shifts = np.arange(0, _WORD, bits, dtype=np.int32)
    values = words[:, :, None] >> shifts & ((1 << bits) - 1)
    return values.reshape(len(words), -1).astype(np.int32)


def _along_rows(words: Levels, bits: int) -> Levels:
    """Words [r, c] as values [r * per word, c], the lowest bits first."""
    return np.ascontiguousarray(_along_columns(np.ascontiguousarray(words.T), bits).T)


def _rows(info: TensorInfo, first: int, count: int) -> Levels:
    columns = info.shape[1]
    offset = info.offset + 4 * first * columns
    data = read_block(info.path, INTEGERS["I32"], offset, count * columns)
    return data.reshape(count, columns)


def _columns(info: TensorInfo, first: int, count: int) -> Levels:
    return _slice(info, INTEGERS["I32"], first, count)


def _scales(info: TensorInfo, first: int, count: int) -> F32:
    return widen(_slice(info, STORED_DTYPES[info.dtype], first, count), info.dtype)


def _slice(info: TensorInfo, dtype: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
    """Columns of a matrix. Mapped only for as long as they are copied."""
    try:
        mapped = np.memmap(info.path, dtype, "r", info.offset, info.shape)
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{info.path}: ends early; it changed while it was read") from error
    return np.array(mapped[:, first : first + count])
