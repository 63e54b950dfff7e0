"""The header parser against lies, one at a time, and against the gguf package's own reader."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.tiny_gguf import write_tiny_gguf
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.gguf_file import GgufFile, parse_gguf, read_gguf

NAME = Path("model.gguf")


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    raw = text(name) + struct.pack("<I", len(sizes))
    raw += b"".join(struct.pack("<Q", size) for size in sizes)
    return raw + struct.pack("<IQ", kind, offset)


def file(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file of these parts and ``data`` zero bytes of tensor data."""
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    raw = magic + struct.pack("<IQQ", version, tensor_count, entry_count)
    raw += b"".join(entries) + b"".join(tensors)
    if data:
        raw += b"\0" * (-len(raw) % 32) + b"\0" * data
    return raw


def parse(raw: bytes) -> GgufFile:
    return parse_gguf(io.BytesIO(raw), len(raw), NAME)


def test_reads_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q8_0")
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert (
        ours.strings("tokenizer.ggml.tokens") == theirs.fields["tokenizer.ggml.tokens"].contents()
    )
    types = ours.numbers("tokenizer.ggml.token_type")
    assert types.tolist() == theirs.fields["tokenizer.ggml.token_type"].contents()
    for key in ("general.architecture", "llama.rope.freq_base", "llama.block_count"):
        assert ours.metadata[key] == theirs.fields[key].contents()
    assert ours.metadata["tokenizer.ggml.add_bos_token"] is False
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for their in theirs.tensors:
        our = ours.tensors[their.name]
        assert our.type == their.tensor_type.name
        assert our.shape == tuple(reversed(their.shape.tolist()))
        assert (our.offset, our.nbytes) == (their.data_offset, their.n_bytes)


def test_every_scalar_type_is_read() -> None:
    values = {0: ("<B", 200), 1: ("<b", -5), 2: ("<H", 60000), 3: ("<h", -300), 4: ("<I", 1 << 31),
              5: ("<i", -7), 6: ("<f", 0.5), 10: ("<Q", 1 << 63), 11: ("<q", -1),
              12: ("<d", 0.1)}  # fmt: skip
    entries = [entry(f"k{kind}", kind, struct.pack(*value)) for kind, value in values.items()]
    arrays = [
        entry(f"a{kind}", 9, struct.pack("<IQ", kind, 2) + 2 * struct.pack(*value))
        for kind, value in values.items()
    ]
    parsed = parse(file([*entries, *arrays, entry("t", 7, b"\x01")]))
    assert {key: parsed.metadata[f"k{key}"] for key in values} == {
        k: v[1] for k, v in values.items()
    }
    assert parsed.metadata["t"] is True
    for kind, (_, value) in values.items():
        assert parsed.numbers(f"a{kind}").tolist() == [value, value]


LIES = {
    "magic": (file(magic=b"GGML"), "not a GGUF file"),
    "entry count": (file(counts=(0, 1 << 40)), "number of metadata entries"),
    "tensor count": (file(counts=(1 << 63, 0)), "number of tensors"),
    "more entries than there are": (file(counts=(0, 5)), "truncated"),
    "key length": (file([struct.pack("<Q", 1 << 50)]), "length of a metadata key"),
    "string length": (file([entry("k", 8, struct.pack("<Q", 1 << 40))]), "length of the value"),
    "string past the end": (file([entry("k", 8, struct.pack("<Q", 1000))]), "truncated"),
    "key not UTF-8": (file([struct.pack("<Q", 2) + b"\xff\xfe"]), "not UTF-8"),
    "value type": (file([entry("k", 13, b"")]), "unknown value type 13"),
    "bool": (file([entry("k", 7, b"\x02")]), "neither true nor false"),
    "same key twice": (file([entry("k", 0, b"\0")] * 2), "appears twice"),
    "array length": (file([entry("k", 9, struct.pack("<IQ", 4, 1 << 60))]), "array length"),
    "array past the end": (file([entry("k", 9, struct.pack("<IQ", 4, 100))]), "truncated"),
    "strings past the end": (file([entry("k", 9, struct.pack("<IQ", 8, 100))]), "truncated"),
    "a string in an array": (
        file([entry("k", 9, struct.pack("<IQQ", 8, 1, (1 << 64) - 1))]), "truncated"),
    "array of arrays": (file([entry("k", 9, struct.pack("<IQ", 9, 1))]), "array of arrays"),
    "array type": (file([entry("k", 9, struct.pack("<IQ", 99, 1))]), "unknown type 99"),
    "alignment": (file([entry("general.alignment", 4, struct.pack("<I", 24))]), "power of two"),
    "alignment zero": (file([entry("general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
    "alignment text": (file([entry("general.alignment", 8, text("32"))]), "alignment"),
    "rank": (file(tensors=[tensor("t", [1] * 5)]), "5 dimensions"),
    "rank zero": (file(tensors=[tensor("t", [])]), "0 dimensions"),
    "size": (file(tensors=[tensor("t", [1 << 50])]), "a size of tensor"),
    "product of sizes": (file(tensors=[tensor("t", [1 << 30, 1 << 30])]), "elements"),
    "size zero": (file(tensors=[tensor("t", [0])]), "0 elements"),
    "tensor type": (file(tensors=[tensor("t", [32], kind=77)], data=128), "has type 77"),
    "row and block": (file(tensors=[tensor("t", [33], kind=8)], data=128), "rows of 33 values"),
    "offset not aligned": (file(tensors=[tensor("t", [8], offset=4)], data=128), "not aligned"),
    "offset": (file(tensors=[tensor("t", [8], offset=1 << 40)], data=128), "ends at byte"),
    "data cut": (file(tensors=[tensor("t", [32])], data=127), "ends at byte"),
    "same tensor twice": (file(tensors=[tensor("t", [8])] * 2, data=128), "appears twice"),
    "overlap": (
        file(tensors=[tensor("a", [16]), tensor("b", [8], offset=32)], data=128), "overlap"),
    "tensor name": (file(tensors=[tensor("n" * 300, [8])], data=128), "length of a tensor name"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_clear_line(lie: str) -> None:
    raw, fragment = LIES[lie]
    with pytest.raises(CorruptFile) as caught:
        parse(raw)
    assert fragment in str(caught.value)
    assert str(caught.value).startswith("model.gguf: ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("raw", "fragment"),
    [
        (file(version=1), "is GGUF version 1; 2 and 3 work: convert the model again with a newer "),
        (file(version=4), "is GGUF version 4; 2 and 3 work: update wager"),
        (file(version=3 << 24), "is a big-endian GGUF; little-endian works: convert the model "),
        (file(version=2 << 24), "is a big-endian GGUF"),
        (file(tensors=[tensor("t", [256], kind=10)], data=256), "Q2_K; what works: F32, F16, BF16"),
        (file(tensors=[tensor("t", [256], kind=23)], data=256), "IQ4_XS"),
    ],
)
def test_what_is_not_supported_is_named(raw: bytes, fragment: str) -> None:
    with pytest.raises(UnsupportedModel, match=fragment):
        parse(raw)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", layers=1, hidden=32, heads=2, kv_heads=1,
                           intermediate=32, vocab=264)  # fmt: skip
    raw = path.read_bytes()
    header = len(read_gguf(path).header)
    # The writer pads the last tensor; what is behind its data may go.
    end = max(info.offset + info.nbytes for info in read_gguf(path).tensors.values())
    for length in [*range(0, header, 7), header, header + 1, end // 2, end - 1]:
        with pytest.raises(CorruptFile):
            parse(raw[:length])
    assert parse_gguf(io.BytesIO(raw[:end]), end, path).tensors == read_gguf(path).tensors


def test_a_file_that_lies_about_its_own_size() -> None:
    raw = file([entry("k", 8, text("value"))])
    with pytest.raises(CorruptFile, match="truncated"):
        parse_gguf(io.BytesIO(raw[:30]), len(raw), NAME)


def test_strings_that_are_not_utf8_are_refused_when_asked_for() -> None:
    array = struct.pack("<IQ", 8, 2) + text("ok") + struct.pack("<Q", 1) + b"\xff"
    parsed = parse(file([entry("k", 9, array), entry("n", 0, b"\1")]))
    with pytest.raises(CorruptFile, match="not UTF-8"):
        parsed.strings("k")
    for key, fragment in (("n", "not an array"), ("absent", "missing")):
        with pytest.raises(CorruptFile, match=fragment):
            parsed.strings(key)
    with pytest.raises(CorruptFile, match="not an array of numbers"):
        parsed.numbers("k")


@pytest.mark.parametrize("version", [2, 3])
def test_versions_and_alignment(version: int) -> None:
    raw = file(
        [entry("general.alignment", 4, struct.pack("<I", 64))],
        [tensor("a", [4, 2]), tensor("b", [3], offset=64)],
        version=version,
    )
    raw += b"\0" * (-len(raw) % 64) + np.arange(32, dtype="<f4").tobytes()
    parsed = parse(raw)
    assert parsed.tensors["a"].shape == (2, 4)
    assert parsed.tensors["b"].offset % 64 == 0
    assert parsed.tensors["b"].offset == parsed.tensors["a"].offset + 64


def test_a_big_endian_file_of_the_gguf_package(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("a", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="big-endian"):
        read_gguf(tmp_path / "m.gguf")


def test_a_model_of_version_2(tmp_path: Path) -> None:
    """The two differ in the number alone."""
    path = write_tiny_gguf(tmp_path / "m.gguf")
    raw = path.read_bytes()
    assert raw[4:8] == struct.pack("<I", 3)
    path.write_bytes(raw[:4] + struct.pack("<I", 2) + raw[8:])
    old = read_gguf(path)
    assert old.strings("tokenizer.ggml.tokens")[:2] == ["<|endoftext|>", "<|im_start|>"]
    assert len(old.tensors) == 20


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")
