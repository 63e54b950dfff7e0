"""The safetensors header and the index of shards, against lies."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.tiny import write_tiny_hf
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.safetensors_file import INDEX, MAX_HEADER, read_directory, read_safetensors

GOOD = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
}
DATA = bytes(range(32))


def write(path: Path, header: Any, data: bytes = DATA) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**GOOD, name: {**GOOD[name], **fields}}


def test_sound(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"__metadata__": {"format": "pt"}, **GOOD})
    tensors = read_safetensors(path, hashlib.sha256())
    assert tensors["a"].shape == (2, 3)
    assert tensors["b"].dtype == "F16"
    raw = path.read_bytes()
    for name, info in tensors.items():
        expected = load_file(path)[name]
        stored = np.frombuffer(raw, expected.dtype, expected.size, info.offset)
        assert np.array_equal(stored.reshape(info.shape), expected)


LIES: dict[str, tuple[Any, str]] = {
    "offset behind the file": (changed("b", shape=[400], data_offsets=[24, 824]), "truncated"),
    "offset before": (changed("b", data_offsets=[20, 28]), "begins at byte 20"),
    "gap": (changed("b", data_offsets=[28, 36]), "begins at byte 28"),
    "backwards": (changed("b", data_offsets=[32, 24]), "data_offsets hold -8"),
    "shape": (changed("a", shape=[3, 3]), "takes 36 bytes"),
    "negative": (changed("a", shape=[-2, -3]), "no sound shape"),
    "overflow": (changed("a", shape=[1 << 40, 1 << 40]), "elements"),
    "huge number": (b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b"]}}", "JSON"),
    "float": (changed("a", shape=[2.0, 3]), "no sound shape"),
    "bool": (changed("a", data_offsets=[False, 24]), "no sound data_offsets"),
    "offsets": (changed("a", data_offsets=[0]), "no sound data_offsets"),
    "dtype": (changed("a", dtype="F31"), "unknown dtype"),
    "dtype list": (changed("a", dtype=["F32"]), "unknown dtype"),
    "extra field": (changed("a", device="cpu"), "not described by"),
    "entry": ({**GOOD, "a": 7}, "not described by"),
    "metadata": ({**GOOD, "__metadata__": {"format": 1}}, "__metadata__"),
    "not JSON": (b"{]", "JSON"),
    "not UTF-8": (b'{"\xff": 1}', "JSON"),
    "a list": (b"[]", "not a JSON object"),
    "key twice": (b'{"a": 1, "a": 2}', "appears twice"),
    "deep": (b"[" * 100_000, "JSON"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_clear_line(tmp_path: Path, lie: str) -> None:
    header, fragment = LIES[lie]
    path = write(tmp_path / "m.safetensors", header)
    with pytest.raises(CorruptFile) as caught:
        read_safetensors(path, hashlib.sha256())
    assert fragment in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_types_that_are_not_supported_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", changed("a", dtype="F8_E4M3"))
    with pytest.raises(UnsupportedModel, match="F8_E4M3; what works: F32, F16, BF16"):
        read_safetensors(path, hashlib.sha256())


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    raw = write(tmp_path / "m.safetensors", GOOD).read_bytes()
    for length in range(len(raw)):
        (tmp_path / "cut.safetensors").write_bytes(raw[:length])
        with pytest.raises(CorruptFile):
            read_safetensors(tmp_path / "cut.safetensors", hashlib.sha256())
    (tmp_path / "cut.safetensors").write_bytes(raw + b"\0")
    with pytest.raises(CorruptFile, match="the file holds 33"):
        read_safetensors(tmp_path / "cut.safetensors", hashlib.sha256())


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, MAX_HEADER + 1])
def test_a_header_length_costs_no_memory(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length))
        # A hole in the file: it takes no space, but makes the shortest length possible.
        file.truncate(MAX_HEADER + 100)
    with pytest.raises(CorruptFile, match="the header claims"):
        read_safetensors(path, hashlib.sha256())


def test_shards(tmp_path: Path) -> None:
    whole = write_tiny_hf(tmp_path / "one")
    parts = write_tiny_hf(tmp_path / "three", shards=3)
    one, _ = read_directory(whole)
    three, _ = read_directory(parts)
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in three.items()}
    assert len({info.path for info in three.values()}) == 3


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "a/x.safetensors", "/x.safetensors", ".x.safetensors", "x.bin", 7,
             "x\0.safetensors", "a\\x.safetensors"],
)  # fmt: skip
def test_an_index_names_plain_files_only(tmp_path: Path, name: Any) -> None:
    directory = write_tiny_hf(tmp_path, shards=2)
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (directory / INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptFile, match="no plain name"):
        read_directory(directory)


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path, shards=2)
    sound = json.loads((directory / INDEX).read_text())
    files = sorted(set(sound["weight_map"].values()))

    def refuse(fragment: str, kind: type[ModelError], **changes: Any) -> None:
        place = {**sound["weight_map"], **changes}
        place = {tensor: file for tensor, file in place.items() if file}
        (directory / INDEX).write_text(json.dumps({"weight_map": place}))
        with pytest.raises(kind, match=fragment):
            read_directory(directory)

    at = sound["weight_map"]["model.norm.weight"]
    other = next(file for file in files if file != at)
    refuse("not placed there", CorruptFile, **{"model.norm.weight": other})
    refuse("not placed there", CorruptFile, **{"model.norm.weight": None})
    refuse("is missing", CorruptFile, **{"model.absent.weight": at})
    refuse("is missing", ModelError, **{"model.absent.weight": "absent.safetensors"})
    (directory / INDEX).write_text("{}")
    with pytest.raises(CorruptFile, match="no weight_map"):
        read_directory(directory)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle"):
        read_directory(tmp_path)
