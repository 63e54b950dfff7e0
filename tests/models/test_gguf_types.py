"""Types of GGUF tensors: read as the gguf package reads them, wherever a piece begins."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models.logits import TEXT, logits_of
from tests.models.plain_ops import PlainOps
from tests.tiny_gguf import SCALES, random_blocks, write_tiny_gguf
from wager.errors import CorruptFile, UnsupportedModel
from wager.models.gguf_file import BLOCKS
from wager.models.load import load_model, open_checkpoint
from wager.ops.reference import ReferenceOps


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def in_the_file(path: Path, name: str) -> NDArray[np.float32]:
    """A tensor as the gguf package dequantises it."""
    tensors = gguf.GGUFReader(path).tensors
    stored = next(tensor for tensor in tensors if tensor.name == name)
    values: NDArray[np.float32] = gguf.quants.dequantize(np.array(stored.data), stored.tensor_type)
    return values


def test_every_type_that_is_read_is_tested() -> None:
    assert set(BLOCKS) == {"F32", "F16", "BF16", *SCALES}


@pytest.mark.parametrize("kind", SCALES)
def test_rows_of_a_type(tmp_path: Path, kind: str) -> None:
    path = write_tiny_gguf(
        tmp_path / "m.gguf", layers=1, hidden=256, heads=2, intermediate=512,
        types={"ffn_down.weight": kind, "ffn_up.weight": kind},
    )  # fmt: skip
    stored = open_checkpoint(str(path)).tensors
    for name, at in (("down", "blk.0.ffn_down.weight"), ("up", "blk.0.ffn_up.weight")):
        truth, tensor = in_the_file(path, at), stored[f"0.{name}"]
        assert np.ptp(truth) > 0
        for first, count in ((0, len(truth)), (0, 1), (7, 33), (len(truth) - 1, 1)):
            rows = tensor.read(first, count)
            assert rows.dtype == np.float32
            assert np.array_equal(rows, truth[first : first + count])


@pytest.mark.parametrize("kind", SCALES)
def test_blocks_mean_what_the_format_says(kind: str) -> None:
    """One block by hand, value for value: https://github.com/ggml-org/ggml, ``ggml-quants.c``."""
    items, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = random_blocks(kind, 1, items, seed=5)
    read = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])[0]
    by_hand = [value_of(kind, bytes(raw[0]), index) for index in range(items)]
    assert np.allclose(read, by_hand, rtol=1e-5, atol=1e-9)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def value_of(kind: str, block: bytes, index: int) -> float:
    def half(at: int) -> float:
        return float(np.frombuffer(block, "<f2", 1, at)[0])

    def signed(at: int) -> int:
        return int(np.frombuffer(block, "i1", 1, at)[0])

    def nibble(at: int) -> int:
        """Of 32 values in 16 bytes: the low halves are the first 16."""
        return block[at + index % 16] >> (4 if index >= 16 else 0) & 15

    if kind == "Q8_0":
        return half(0) * signed(2 + index)
    if kind == "Q4_0":
        return half(0) * (nibble(2) - 8)
    if kind == "Q4_1":
        return half(0) * nibble(4) + half(2)
    if kind == "IQ4_NL":
        return half(0) * _IQ4[nibble(2)]
    if kind in ("Q5_0", "Q5_1"):
        start = 2 if kind == "Q5_0" else 4
        fifth = int.from_bytes(block[start : start + 4], "little") >> index & 1
        quant = nibble(start + 4) | fifth << 4
        return half(0) * (quant - 16) if kind == "Q5_0" else half(0) * quant + half(2)
    if kind == "Q6_K":
        part, within = divmod(index, 128)
        quarter, place = divmod(within, 32)
        low = block[64 * part + place + 32 * (quarter % 2)] >> 4 * (quarter // 2) & 15
        high = block[128 + 32 * part + place] >> 2 * quarter & 3
        return half(208) * signed(192 + index // 16) * ((low | high << 4) - 32)
    sub, place = divmod(index, 32)
    scales = block[4:16]
    if sub < 4:
        scale, low = scales[sub] & 63, scales[sub + 4] & 63
    else:
        scale = scales[sub + 4] & 15 | scales[sub - 4] >> 6 << 4
        low = scales[sub + 4] >> 4 | scales[sub] >> 6 << 4
    start = 16 if kind == "Q4_K" else 48
    quant = block[start + 32 * (sub // 2) + place] >> 4 * (sub % 2) & 15
    if kind == "Q5_K":
        quant |= (block[16 + place] >> sub & 1) << 4
    return half(0) * scale * quant - half(2) * low


def test_a_file_of_mixed_types(tmp_path: Path) -> None:
    """As ``Q4_K_M`` is: finer where it counts, and rows of q and k in another order."""
    types = {"attn_v.weight": "Q6_K", "ffn_down.weight": "Q6_K", "token_embd.weight": "Q6_K",
             "attn_output.weight": "Q5_K"}  # fmt: skip
    path = write_tiny_gguf(
        tmp_path / "m.gguf", tensor_type="Q4_K", types=types, hidden=256, intermediate=256,
    )  # fmt: skip
    model = load_model(str(path), PlainOps(), "f32")
    layer = model.layers[1]
    query = in_the_file(path, "blk.1.attn_q.weight").reshape(4, 32, 2, 256)
    assert np.array_equal(layer.qkv[:256], query.swapaxes(1, 2).reshape(256, 256))
    assert np.array_equal(layer.qkv[-128:], in_the_file(path, "blk.1.attn_v.weight"))
    assert np.array_equal(layer.down, in_the_file(path, "blk.1.ffn_down.weight"))
    assert np.array_equal(layer.out, in_the_file(path, "blk.1.attn_output.weight"))
    assert np.array_equal(model.embed, in_the_file(path, "token_embd.weight"))
    assert open_checkpoint(str(path)).weights == "int8"


@pytest.mark.parametrize("kind", SCALES)
def test_a_type_end_to_end(tmp_path: Path, kind: str) -> None:
    path = write_tiny_gguf(
        tmp_path / "m.gguf", tensor_type=kind, layers=1, hidden=256, intermediate=256
    )
    auto = load_model(str(path), ReferenceOps())
    assert auto.weights == "int8"
    coarse, fine = (logits_of(load_model(str(path), ReferenceOps(), w)) for w in ("auto", "f32"))
    assert coarse.shape == (len(TEXT), 288)
    assert np.ptp(fine) > 0
    assert np.abs(coarse - fine).max() < 0.1 * np.ptp(fine)


def test_a_width_that_is_no_multiple_of_the_block(tmp_path: Path) -> None:
    raw = write_tiny_gguf(
        tmp_path / "m.gguf", hidden=256, intermediate=512, types={"ffn_down.weight": "Q6_K"}
    ).read_bytes()
    name = b"blk.0.ffn_down.weight"
    at = raw.index(name) + len(name) + 4
    (tmp_path / "n.gguf").write_bytes(raw[:at] + (480).to_bytes(8, "little") + raw[at + 8 :])
    with pytest.raises(CorruptFile) as caught:
        open_checkpoint(str(tmp_path / "n.gguf"))
    assert (
        str(caught.value)
        .partition(" (at byte")[0]
        .endswith(
            "tensor 'blk.0.ffn_down.weight' has rows of 480 values; Q6_K comes in blocks of 256"
        )
    )


@pytest.mark.parametrize("kind", ["Q2_K", "IQ4_XS", "MXFP4"])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", hidden=256, intermediate=256)
    raw, name = path.read_bytes(), b"blk.0.ffn_down.weight"
    at = raw.index(name) + len(name) + 4 + 16
    number = int(gguf.GGMLQuantizationType[kind]).to_bytes(4, "little")
    path.write_bytes(raw[:at] + number + raw[at + 4 :])
    with pytest.raises(UnsupportedModel, match=f"is stored as {kind}; what works: F32.*Q6_K"):
        open_checkpoint(str(path))
