"""Loading: both layouts give one model, every tensor once, and bad input one clear line."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.plain_ops import PlainOps
from tests.tiny import (
    Shape,
    random_weights,
    write_safetensors,
    write_tiny_hf,
)
from tests.tiny_gguf import write_tiny_gguf
from wager.errors import ConfigError, CorruptFile, ModelError, UnsupportedModel
from wager.models import packed
from wager.models.load import Model, load_model, open_checkpoint, resolve
from wager.models.packed import packed_files, packing_id
from wager.models.paths import packed_dir
from wager.ops.reference import ReferenceOps


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def load(path: Path, weights: Any = "auto", ops: PlainOps | None = None, **options: Any) -> Model:
    return load_model(str(path), ops or PlainOps(), weights, **options)


def assert_same_weights(left: Model, right: Model) -> None:
    for name in ("embed", "head", "final_norm"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    for ours, theirs in zip(left.layers, right.layers, strict=True):
        for name in ("attn_norm", "qkv", "out", "mlp_norm", "gate_up", "down"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_are_those_of_the_file(tmp_path: Path, tied: bool) -> None:
    model = load(write_tiny_hf(tmp_path / "hf", tied=tied, head_dim=32, seed=3))
    truth = random_weights(Shape(2, 64, 4, 2, 32, 128, 288, tied), 3)
    layer, prefix = model.layers[1], "model.layers.1."
    assert np.array_equal(layer.qkv[:128], truth[prefix + "self_attn.q_proj.weight"])
    assert np.array_equal(layer.qkv[128:192], truth[prefix + "self_attn.k_proj.weight"])
    assert np.array_equal(layer.qkv[192:], truth[prefix + "self_attn.v_proj.weight"])
    assert np.array_equal(layer.out, truth[prefix + "self_attn.o_proj.weight"])
    assert np.array_equal(layer.gate_up[:128], truth[prefix + "mlp.gate_proj.weight"])
    assert np.array_equal(layer.gate_up[128:], truth[prefix + "mlp.up_proj.weight"])
    assert np.array_equal(layer.down, truth[prefix + "mlp.down_proj.weight"])
    assert np.array_equal(layer.attn_norm, truth[prefix + "input_layernorm.weight"])
    assert np.array_equal(layer.mlp_norm, truth[prefix + "post_attention_layernorm.weight"])
    assert np.array_equal(model.embed, truth["model.embed_tokens.weight"])
    assert (model.head is model.embed) == tied
    if not tied:
        assert np.array_equal(model.head, truth["lm_head.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_gguf_and_hugging_face_give_one_model(tmp_path: Path, tied: bool) -> None:
    hf = load(write_tiny_hf(tmp_path / "hf", tied=tied, heads=4, kv_heads=1))
    gguf = load(write_tiny_gguf(tmp_path / "m.gguf", tied=tied, heads=4, kv_heads=1))
    assert_same_weights(hf, gguf)
    assert gguf.config.norm_eps == pytest.approx(hf.config.norm_eps)
    assert gguf.config.tied_head == tied
    assert (gguf.config.vocab_size, gguf.config.max_context) == (288, 512)
    assert np.array_equal(gguf.ropes[0], hf.ropes[0])
    text = "the thing <|im_end|> in 1 hour\n\n"
    assert gguf.tokenizer.encode(text) == hf.tokenizer.encode(text)
    assert gguf.tokenizer.vocab_size == hf.tokenizer.vocab_size == 288
    assert gguf.tokenizer.bos_id == hf.tokenizer.bos_id == 1
    assert gguf.generation.eos_ids == hf.generation.eos_ids == (0, 2)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_narrow_types(tmp_path: Path, dtype: str) -> None:
    hf = load(write_tiny_hf(tmp_path / "hf", dtype=dtype))
    gguf = load(write_tiny_gguf(tmp_path / "m.gguf", tensor_type=dtype))
    assert np.array_equal(hf.embed, gguf.embed)
    assert np.array_equal(hf.layers[0].qkv, gguf.layers[0].qkv)
    whole = load(write_tiny_hf(tmp_path / "f32"))
    assert hf.weights == gguf.weights == {"F16": "f32", "BF16": "bf16"}[dtype]
    assert np.abs(hf.embed - whole.embed).max() < 0.01 * np.abs(whole.embed).max()


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.01), ("Q4_0", 0.14), ("Q4_1", 0.12)])
def test_quantised_files(tmp_path: Path, kind: str, error: float) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", tensor_type=kind)
    assert load(path).weights == "int8"
    model, whole = load(path, "f32"), load(write_tiny_gguf(tmp_path / "f.gguf"))
    for name in ("qkv", "out", "gate_up", "down"):
        ours, truth = getattr(model.layers[0], name), getattr(whole.layers[0], name)
        assert not np.array_equal(ours, truth)
        assert np.abs(ours - truth).max() < error * np.abs(truth).max()


def test_shards_and_one_file_give_one_model(tmp_path: Path) -> None:
    one = load(write_tiny_hf(tmp_path / "one", tied=False))
    three = load(write_tiny_hf(tmp_path / "three", tied=False, shards=3))
    assert_same_weights(one, three)
    assert one.fingerprint != three.fingerprint


def test_int8_and_f32(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "hf", tied=False)
    exact, small = load(path), load(path, "int8")
    assert exact.weights == "f32"
    assert small.packed_bytes < exact.packed_bytes / 2
    assert exact.fingerprint != small.fingerprint
    assert np.abs(small.head - exact.head).max() < 0.02 * np.abs(exact.head).max()
    assert np.array_equal(small.final_norm, exact.final_norm)


@pytest.mark.parametrize("stored", ["Q4_1", "Q4_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_layers_of_a_4_bit_file_are_the_same_at_int4(
    tmp_path: Path, stored: str, tied: bool
) -> None:
    """The embedding and the head are kept in 8 bits."""
    path = str(write_tiny_gguf(tmp_path / "m.gguf", tensor_type=stored, tied=tied))
    ops = ReferenceOps()
    model, truth, coarse = (load_model(path, ops, kind) for kind in ("int4", "f32", "int8"))
    assert model.weights == "int4"
    assert model.packed_bytes < coarse.packed_bytes
    assert len({model.fingerprint, truth.fingerprint, coarse.fingerprint}) == 3
    for ours, theirs in zip(model.layers, truth.layers, strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            mine, its = getattr(ours.weights, name), getattr(theirs.weights, name)
            for row in range(mine.shape[0]):
                assert np.array_equal(mine.row(row), its.row(row)), name
    for name in ("embed", "head"):
        assert np.array_equal(getattr(model, name).weight, getattr(coarse, name).weight), name
    # The second start maps what the first one packed.
    again = load_model(path, ops, "int4")
    assert np.array_equal(again.layers[1].weights.down.weight, model.layers[1].weights.down.weight)
    assert len(packed_files()) == 3


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_widths_that_groups_cannot_take(tmp_path: Path, kind: str) -> None:
    path = write_tiny_hf(tmp_path / "hf", hidden=48, heads=4, intermediate=80)
    assert load(path).weights == "f32"
    message = f"weights: {kind} needs widths that are multiples of 32"
    with pytest.raises(ConfigError, match=message):
        load(path, kind)


def test_a_packing_is_named_by_all_that_it_packs() -> None:
    class OtherTables(ReferenceOps):
        """Packs int8, and so what int4 keeps in 8 bits, in another way."""

        def pack_into(self, out: Any, weight: Any, first_row: int, n: int, kind: Any) -> None:
            turned = weight[:, ::-1].copy() if kind == "int8" else weight
            super().pack_into(out, turned, first_row, n, kind)

    ours, other = ReferenceOps(), OtherTables()
    assert len({packing_id(ours, kind) for kind in ("f32", "int8", "int4")}) == 3
    assert packing_id(ours, "f32") == packing_id(other, "f32")
    assert packing_id(ours, "int8") != packing_id(other, "int8")
    assert packing_id(ours, "int4") != packing_id(other, "int4")


def test_packed_weights_are_mapped_at_the_next_start(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "hf")
    first, again = PlainOps(), PlainOps()
    made, mapped = load(path, ops=first), load(path, ops=again)
    assert_same_weights(made, mapped)
    assert first.packed_rows - again.packed_rows == 288 + 2 * (128 + 64 + 256 + 64)
    assert not mapped.embed.flags.writeable
    assert [(file.weights, file.source) for file in packed_files()] == [("f32", str(path))]
    # Other weights get a file of their own.
    load(path, "int8")
    assert len(packed_files()) == 2


@pytest.mark.parametrize("harm", ["truncate", "header", "data", "empty", "other"])
def test_a_damaged_packed_file_is_made_again(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_hf(tmp_path / "hf")
    truth = load(path)
    (file,) = packed_dir().glob("*.packed")
    raw = bytearray(file.read_bytes())
    if harm == "header":
        raw[60] ^= 1
    elif harm == "data":
        raw[-1000] ^= 1
    elif harm != "other":
        raw = raw[: {"truncate": -1, "empty": 0}[harm]]
    file.unlink()  # The model above still maps the sound one.
    file.write_bytes(bytes(raw) if harm != "other" else b"something else" * 10_000)
    ops = PlainOps()
    assert_same_weights(load(path, ops=ops), truth)
    assert ops.packed_rows > 1000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "again" in caplog.text
    ops = PlainOps()
    load(path, ops=ops)
    assert ops.packed_rows < 200


def test_a_model_that_changed_is_packed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load(write_tiny_hf(tmp_path / "hf", seed=1))
    changed = load(write_tiny_hf(tmp_path / "hf", seed=2))
    assert "the model changed" in caplog.text
    assert len(packed_files()) == 1
    assert_same_weights(changed, load(write_tiny_hf(tmp_path / "fresh", seed=2)))


def test_another_packing_gets_another_file(tmp_path: Path) -> None:
    class Reversed(PlainOps):
        def pack_into(self, out: Any, weight: Any, first_row: int, n: int, kind: str) -> None:
            super().pack_into(out, weight[:, ::-1].copy(), first_row, n, kind)

    path = write_tiny_hf(tmp_path / "hf")
    load(path)
    model = load(path, ops=Reversed())
    assert len(packed_files()) == 2
    assert np.array_equal(model.embed[:, ::-1], load(path).embed)


def test_without_a_cache_the_weights_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    truth = load(path)
    (tmp_path / "file").write_text("a file, so no directory can be made under it")
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "file" / "home"))
    assert_same_weights(load(path), truth)
    assert "cannot keep packed weights" in caplog.text
    assert "cannot keep the parsed tokenizer" in caplog.text


def test_nothing_is_left_half_written(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path / "hf")
    weights = random_weights(Shape(2, 64, 4, 2, 16, 128, 288, True), 0)
    weights["model.layers.1.mlp.down_proj.weight"][3, 4] = np.nan
    write_safetensors(directory / "model.safetensors", weights)
    with pytest.raises(CorruptFile, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        load(directory)
    weights["model.layers.1.mlp.down_proj.weight"][3, 4] = 0
    weights["model.norm.weight"][5] = np.inf
    write_safetensors(directory / "model.safetensors", weights)
    with pytest.raises(CorruptFile, match=r"model\.norm\.weight.*not finite"):
        load(directory)
    assert list(packed_dir().iterdir()) == []


def test_packing_takes_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q8_0", heads=6, hidden=96, kv_heads=2)
    truth = load(path)
    monkeypatch.setattr("wager.models.packed.CHUNK_BYTES", 1)
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "other"))
    ops = PlainOps()
    assert_same_weights(load(path, ops=ops), truth)
    # The known matrix that names a packing is the largest then.
    assert ops.largest_piece <= 101 * 96 * 4


def test_the_context_can_be_shortened_only(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "hf", max_context=512)
    assert load(path).ropes[0].shape == (512, 16)
    assert load(path, max_context=100).ropes[0].shape == (100, 16)
    for bad in (0, 513):
        with pytest.raises(ConfigError, match="max_model_len: must be from 1 to 512"):
            load(path, max_context=bad)


def test_more_rows_than_tokens(tmp_path: Path) -> None:
    model = load(write_tiny_hf(tmp_path / "hf", vocab=320, tokenizer_vocab=270))
    assert (model.config.vocab_size, model.tokenizer.vocab_size) == (320, 270)
    model = load(write_tiny_gguf(tmp_path / "m.gguf", vocab=320, tokenizer_vocab=270))
    assert (model.config.vocab_size, model.tokenizer.vocab_size) == (320, 270)


def test_a_wrong_tokenizer(tmp_path: Path) -> None:
    for path in (
        write_tiny_hf(tmp_path / "hf", vocab=270, tokenizer_vocab=288),
        write_tiny_gguf(tmp_path / "m.gguf", vocab=270, tokenizer_vocab=288),
    ):
        with pytest.raises(ModelError, match="knows 288 tokens, the embedding has 270 rows"):
            load(path)
    assert not packed_dir().exists()


def test_a_tied_head_that_is_stored_too(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path / "hf")
    weights = random_weights(Shape(2, 64, 4, 2, 16, 128, 288, True), 0)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    write_safetensors(directory / "model.safetensors", weights)
    assert load(directory).packed_bytes == load(write_tiny_hf(tmp_path / "plain")).packed_bytes
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    write_safetensors(directory / "model.safetensors", weights)
    with pytest.raises(UnsupportedModel, match="differs from the embedding"):
        load(directory)


@pytest.mark.parametrize(
    ("change", "kind", "fragment"),
    [
        ({"model.norm.weight": None}, ModelError, "tensor model.norm.weight is missing"),
        ({"model.layers.0.self_attn.q_proj.bias": 64}, UnsupportedModel, "is a bias"),
        ({"model.layers.2.mlp.up_proj.weight": 64}, UnsupportedModel, "not part of a llama"),
        ({"model.norm.weight": 63}, CorruptFile, r"is \[63\], the config asks for \[64\]"),
    ],
)
def test_every_tensor_counts(
    tmp_path: Path, change: dict[str, Any], kind: type[ModelError], fragment: str
) -> None:
    directory = write_tiny_hf(tmp_path / "hf")
    weights = random_weights(Shape(2, 64, 4, 2, 16, 128, 288, True), 0)
    for name, size in change.items():
        weights.pop(name, None)
        if size is not None:
            weights[name] = np.zeros(size, dtype=np.float32)
    write_safetensors(directory / "model.safetensors", weights)
    with pytest.raises(kind, match=fragment):
        load(directory)


def test_old_rotary_buffers_are_no_weights(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path / "hf")
    weights = random_weights(Shape(2, 64, 4, 2, 16, 128, 288, True), 0)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, dtype=np.float32)
    write_safetensors(directory / "model.safetensors", weights)
    load(directory)


def test_resolve(tmp_path: Path, home: Path) -> None:
    directory = write_tiny_hf(tmp_path / "hf")
    assert resolve(str(directory)) == directory
    with pytest.raises(ModelError, match="wager pull smollm2-135m"):
        resolve("smollm2-135m")
    with pytest.raises(ModelError, match="no file or directory 'nonsense'"):
        resolve("nonsense")
    with pytest.raises(UnsupportedModel, match=r"neither a directory .* nor a GGUF file"):
        resolve(str(directory / "config.json"))
    pulled = home / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    pulled.parent.mkdir(parents=True)
    pulled.touch()
    assert resolve("smollm2-135m") == pulled


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)


def test_a_truncated_gguf_is_one_line(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    raw = path.read_bytes()
    for part in (0, 3, 100, len(raw) // 2, len(raw) - 100):
        path.write_bytes(raw[:part])
        with pytest.raises(CorruptFile, match=r"truncated|ends at byte"):
            load(path)


def test_the_error_of_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(path))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CorruptFile, match="changed while it was read"):
        checkpoint.tensors["norm"].read(0, 64)


def test_unfinished_files_go_after_a_day(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "hf")
    load(path)
    (file,) = packed_dir().glob("*.packed")
    file.unlink()
    for name, age in (("old", 2 * 86400), ("new", 0)):
        unfinished = packed_dir() / f".{file.name}.{name}"
        unfinished.touch()
        os.utime(unfinished, (time.time() - age, time.time() - age))
    load(path)
    assert {left.name for left in packed_dir().iterdir()} == {file.name, f".{file.name}.new"}


def test_packed_weights_of_another_order_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older version may have left them: as many bytes, in other places."""
    path, ops = write_tiny_hf(tmp_path / "hf"), PlainOps()
    expected = load(path).layers[0].out
    made = packed.plan

    def turned(*given: Any) -> dict[str, packed.Piece]:
        pieces, end = dict(reversed(made(*given).items())), 0
        for name, piece in pieces.items():
            pieces[name] = replace(piece, offset=end)
            end += -(-piece.nbytes // 64) * 64
        return pieces

    with monkeypatch.context() as patch:
        patch.setattr(packed, "plan", turned)
        assert np.array_equal(load_model(str(path), ops, "f32").layers[0].out, expected)
        assert ops.packed_rows
    ops = PlainOps()
    assert np.array_equal(load_model(str(path), ops, "f32").layers[0].out, expected)
    assert ops.packed_rows
