"""A model in several GGUF files: any of them opens the whole, and what does not fit is one line."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.models.plain_ops import PlainOps
from tests.tiny_gguf import write_tiny_gguf
from wager.errors import CorruptFile, ModelError, UnsupportedModel, WagerError
from wager.models.facts.read import read_facts
from wager.models.gguf_file import SIZES
from wager.models.gguf_parts import part_names, read_whole
from wager.models.load import load_model, open_checkpoint
from wager.models.packed import packed_files
from wager.models.store import remove


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def parts(directory: Path, per_part: int = 8) -> list[Path]:
    """A model of 20 tensors in files of at most so many."""
    write_tiny_gguf(directory / "m.gguf", per_part=per_part)
    return sorted(directory.glob("*.gguf"))


def test_names() -> None:
    names = [f"a-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    assert all(part_names(name) == names for name in names)
    assert part_names("a.gguf") == ["a.gguf"]
    assert part_names("a-1-of-2.gguf") == ["a-1-of-2.gguf"]
    # A number beyond the count is no part of anything.
    assert part_names("a-00004-of-00003.gguf") == ["a-00004-of-00003.gguf"]
    assert part_names("a-00000-of-00003.gguf") == ["a-00000-of-00003.gguf"]
    # Neither is a count that would be a list of 99,999 names.
    assert len(part_names("a-00001-of-99999.gguf")) == 1


def test_any_part_opens_the_whole(tmp_path: Path) -> None:
    files = parts(tmp_path / "p")
    assert [file.name for file in files] == part_names("m-00001-of-00003.gguf")
    truth = load_model(str(write_tiny_gguf(tmp_path / "whole.gguf")), PlainOps())
    prints = set()
    for file in files:
        checkpoint = open_checkpoint(str(file))
        assert (checkpoint.name, checkpoint.path) == ("m", files[0])
        model = load_model(str(file), PlainOps())
        assert np.array_equal(model.embed, truth.embed)
        for ours, theirs in zip(model.layers, truth.layers, strict=True):
            assert np.array_equal(ours.qkv, theirs.qkv)
            assert np.array_equal(ours.down, theirs.down)
        assert model.tokenizer.encode("the thing") == truth.tokenizer.encode("the thing")
        assert model.generation == truth.generation
        prints.add(model.fingerprint)
    assert len(prints) == 1
    assert len(packed_files()) == 2
    assert remove(str(files[2]))[0]
    assert len(packed_files()) == 1
    facts = read_facts(str(files[1]))
    assert facts.parameters == read_facts(str(tmp_path / "whole.gguf")).parameters


def test_a_part_that_changed_is_noticed(tmp_path: Path) -> None:
    files = parts(tmp_path)
    before = open_checkpoint(str(files[0])).fingerprint
    raw = bytearray(files[2].read_bytes())
    raw[-40] ^= 1
    files[2].unlink()
    files[2].write_bytes(raw)
    assert open_checkpoint(str(files[0])).fingerprint != before


def set_number(file: Path, key: str, value: int) -> None:
    raw = bytearray(file.read_bytes())
    at = raw.index(key.encode()) + len(key)
    (kind,) = struct.unpack_from("<I", raw, at)
    code = {2: "<H", 5: "<i"}[kind]
    struct.pack_into(code, raw, at + 4, value)
    file.write_bytes(raw)


def another_model(files: list[Path]) -> None:
    writer = gguf.GGUFWriter(files[1], "qwen2")
    for key, value in (("no", 1), ("count", 3)):
        writer.add_uint16(f"split.{key}", value)
    writer.add_int32("split.tensors.count", 20)
    writer.add_tensor("a", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


HARMS: dict[str, tuple[Callable[[list[Path]], object], type[WagerError], str]] = {
    "a part is missing": (
        lambda files: files[1].unlink(), ModelError,
        r"m-00002-of-00003\.gguf: is missing; m-00001-of-00003\.gguf is one of 3 parts"),
    "another count": (
        lambda files: set_number(files[1], "split.count", 4), CorruptFile,
        r"m-00002-of-00003\.gguf: says that there are 4 parts \(split\.count\), its name that "
        r"there are 3"),
    "another place": (
        lambda files: set_number(files[2], "split.no", 1), CorruptFile,
        r"m-00003-of-00003\.gguf: says that it is part 2 \(split\.no\), its name that it is 3"),
    "the same part twice": (
        lambda files: shutil.copy(files[1], files[2]), CorruptFile,
        r"m-00003-of-00003\.gguf: says that it is part 2"),
    "tensors are missing": (
        lambda files: set_number(files[0], "split.tensors.count", 21), CorruptFile,
        r"m-00001-of-00003\.gguf: the parts hold 20 tensors, and there are 21 "
        r"\(split\.tensors\.count\)"),
    "another architecture": (
        another_model, CorruptFile,
        r"m-00002-of-00003\.gguf: is of architecture 'qwen2', the first part of 'llama'"),
    "a tensor in two parts": (
        lambda files: files[2].write_bytes(
            files[2].read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.0.ffn_down.weight")),
        CorruptFile, r"m-00003-of-00003\.gguf: tensor 'blk\.0\.ffn_down\.weight' is in another "
        r"part too"),
    "no count": (
        lambda files: files[1].write_bytes(
            files[1].read_bytes().replace(b"split.count", b"split.cuont")),
        CorruptFile, r"m-00002-of-00003\.gguf: split\.count is missing"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_parts_that_do_not_fit(tmp_path: Path, harm: str) -> None:
    files = parts(tmp_path)
    do, kind, message = HARMS[harm]
    do(files)
    for read in (lambda path: open_checkpoint(path), lambda path: read_facts(path)):
        with pytest.raises(kind, match=message) as caught:
            read(str(files[0]))
        assert len(str(caught.value).splitlines()) == 1


def test_a_part_that_is_named_as_if_it_were_whole(tmp_path: Path) -> None:
    files = parts(tmp_path)
    files[0].rename(tmp_path / "other.gguf")
    write_tiny_gguf(tmp_path / "odd.gguf", metadata={"split.count": "many"})
    for name, count in (("other", "3"), ("odd", "'many'")):
        with pytest.raises(UnsupportedModel, match=rf"is one of {count} parts \(split\.count\)"):
            read_whole(tmp_path / f"{name}.gguf", SIZES)


def test_one_part_alone(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m-00001-of-00001.gguf")
    assert open_checkpoint(str(tmp_path / "m-00001-of-00001.gguf")).name == "m"
