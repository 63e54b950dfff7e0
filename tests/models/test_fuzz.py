"""Damaged headers: 100,000 seeded mutations end in a result or in a ModelError, never otherwise.

The address space is limited to little more than what is in use, so that an allocation that a lie
asks for would be a MemoryError, even one that is never touched.
"""

from __future__ import annotations

import io
import json
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf, write_vocabulary
from tests.tiny_weights import TINY_FAMILIES
from wager.errors import ModelError
from wager.models import gguf_config, gguf_file, gguf_tokenizer, hf_config, safetensors_file
from wager.models.rope import rope_table

GGUF_MUTATIONS = 60_000
SAFETENSORS_MUTATIONS = 40_000
PIECES_MUTATIONS = 10_000
CONFIG_MUTATIONS = 1_000
"""Of each family."""
HEADROOM = 192 << 20
NUMBERS = (0, 1, 2, 7, 8, 9, 31, 32, 255, 1 << 16, 1 << 22, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
           1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
SHAPE = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 32, "vocab": 264}
_YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
         "mscale_all_dim": 0.8, "original_max_position_embeddings": 64}  # fmt: skip
_LONG = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
SCALED: dict[str, dict[str, Any]] = {
    "qwen2": {"rope_scaling": _YARN, "layer_types": ["sliding_attention"]},
    "qwen3": {"rope_scaling": {**_YARN, "rope_type": "llama3", "low_freq_factor": 1.0,
                               "high_freq_factor": 4.0}},
    "phi3": {"rope_scaling": _LONG, "original_max_position_embeddings": 64},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma3": {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0},
                                   "sliding_attention": {"rope_theta": 5000.0}}},
}  # fmt: skip
"""Keys of rotary tables and layers, to be damaged like the others."""


@pytest.fixture
def little_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def mutate(base: bytes, header: int, rng: random.Random) -> bytes:
    """One to three changes, most within the first ``header`` bytes."""
    data = bytearray(base)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(min(header, len(data)) or 1) if data else 0
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.randrange(256)
        elif kind == 2:
            data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        elif kind == 3:
            data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            del data[at : at + rng.randrange(1, 64)]
        else:
            other = rng.randrange(len(data) + 1)
            data[at:at] = data[other : other + rng.randrange(1, 64)]
    return bytes(data)


def mutate_text(base: bytes, rng: random.Random) -> bytes:
    """Like `mutate`, with changes that leave JSON sound more often."""
    data = base
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.randrange(4)
        digits = [i for i in range(len(data)) if 48 <= data[i] <= 57]
        if kind == 0 and digits:
            at = rng.choice(digits)
            number = rng.choice(
                (*NUMBERS, -1, 10**400, "1e999", "NaN", "null", '"x"', "[[]]", "{}")
            )
            data = data[:at] + str(number).encode() + data[at + 1 :]
        elif kind == 1:
            words = (b"F32", b"shape", b"dtype", b"data_offsets", b"true", b"null", b"llama", b"[")
            old, new = rng.choice(words), rng.choice((b"F64", b"Q4_K", b"", b'"', b"[", b"{", b"0"))
            data = data.replace(old, new, 1)
        else:
            data = mutate(data, len(data), rng)
    return data


def count_refused(attempts: int, attempt: Callable[[random.Random], None], seed: int) -> int:
    """How many of the attempts end in a ModelError. Anything else fails the test, with its seed."""
    refused = 0
    for number in range(attempts):
        message = ""
        try:
            attempt(random.Random(seed * 1_000_000 + number))
        except ModelError as error:
            message = str(error)
            refused += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number} of seed {seed}") from error
        assert len(message.splitlines()) <= 1, message
        assert len(message) < 1000, message
    return refused


@pytest.mark.usefixtures("little_memory")
def test_gguf(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", **SHAPE)
    base = path.read_bytes()
    header = len(gguf_file.read_gguf(path).header)
    assert header < 8192

    def attempt(rng: random.Random) -> None:
        check(mutate(base, header, rng))

    def check(data: bytes) -> None:
        file = gguf_file.parse_gguf(io.BytesIO(data), len(data), path)
        for info in file.tensors.values():
            assert 0 < info.offset <= info.offset + info.nbytes <= len(data)
        gguf_config.read_config(file)
        gguf_tokenizer.tokenizer_json(file)

    check(base)
    refused = count_refused(GGUF_MUTATIONS, attempt, seed=1)
    # Most changes are fatal; some hit a name or a weight and are not.
    assert GGUF_MUTATIONS // 2 < refused < GGUF_MUTATIONS


@pytest.mark.usefixtures("little_memory")
def test_pieces(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a"]
    path = write_vocabulary(
        tmp_path / "m.gguf", tokens, types=[2, 3, *[6] * 256, 1, 1, 1],
        scores=[0.0] * 258 + [-2.0, -3.0, -1.0], unknown_token_id=0,
    )  # fmt: skip
    base = path.read_bytes()

    def attempt(rng: random.Random) -> None:
        data = mutate(base, len(base), rng)
        file = gguf_file.parse_gguf(io.BytesIO(data), len(data), path)
        gguf_tokenizer.tokenizer_json(file)

    refused = count_refused(PIECES_MUTATIONS, attempt, seed=4)
    assert PIECES_MUTATIONS // 3 < refused < PIECES_MUTATIONS


@pytest.mark.usefixtures("little_memory")
def test_safetensors(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path, **SHAPE) / "model.safetensors"
    base = path.read_bytes()
    (length,) = struct.unpack("<Q", base[:8])
    text, rest = base[8 : 8 + length], base[8 + length :]

    def attempt(rng: random.Random) -> None:
        if rng.randrange(2):
            data = mutate(base, 8 + length, rng)
        else:
            changed = mutate_text(text, rng)
            data = struct.pack("<Q", len(changed)) + changed + rest
        tensors, _ = safetensors_file.parse_safetensors(io.BytesIO(data), len(data), path)
        for info in tensors.values():
            width = safetensors_file.WIDTHS[info.dtype]
            elements = 1
            for item in info.shape:
                elements *= item
            assert info.offset + elements * width <= len(data)

    refused = count_refused(SAFETENSORS_MUTATIONS, attempt, seed=2)
    assert SAFETENSORS_MUTATIONS // 2 < refused < SAFETENSORS_MUTATIONS


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_config(tmp_path: Path, family: str) -> None:
    made = write_tiny_hf(tmp_path, family=family, config=SCALED.get(family), **SHAPE)
    path = made / "config.json"
    base = json.dumps(json.loads(path.read_bytes())).encode()
    hf_config.read_config(path, safetensors_file.parse_json(base, path))

    def attempt(rng: random.Random) -> None:
        data = mutate_text(base, rng)
        config, _ = hf_config.read_config(path, safetensors_file.parse_json(data, path))
        for rope in config.ropes:
            with np.errstate(all="raise"):
                assert np.isfinite(rope_table(rope, config.head_dim, 2)).all()

    refused = count_refused(CONFIG_MUTATIONS, attempt, seed=3 + sum(map(ord, family)))
    assert CONFIG_MUTATIONS // 4 < refused < CONFIG_MUTATIONS
