"""Models beyond the small one: random weights in the shapes of Qwen2.5-1.5B, int8, and 7B, int4.

    python -m benchmarks.shapes [1.5B|7B]

Written as bfloat16 safetensors, one file a layer, so that it never is in memory whole (3 and 15 GB
of disk). Loaded twice in fresh processes, with a cache directory of their own: the first packs the
weights, the second maps them. Random weights say nothing about the answers, everything about time
and memory.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from tests.tiny import tokenizer_json

from benchmarks.results import Aim, Result, at_most, child, table
from wager.bench.results import STEP_CONTEXT
from wager.types import WeightKind

ROWS = (1, 2, 5, 9, 17)
CHUNK = 1 << 22


@dataclass(frozen=True)
class Shape:
    """Sizes of a model of the Qwen2 family, and the weights it is run with."""

    name: str
    weights: WeightKind
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocab,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }

    def shards(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Tensor shapes by name, by file."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        table = (self.vocab, self.hidden)
        files: dict[str, dict[str, tuple[int, ...]]] = {
            "embed.safetensors": {
                "model.embed_tokens.weight": table,
                "model.norm.weight": (self.hidden,),
            }
        }
        if not self.tied:
            files["head.safetensors"] = {"lm_head.weight": table}
        for i in range(self.layers):
            at = f"model.layers.{i}."
            files[f"layer-{i:02d}.safetensors"] = {
                f"{at}input_layernorm.weight": (self.hidden,),
                f"{at}self_attn.q_proj.weight": (queries, self.hidden),
                f"{at}self_attn.q_proj.bias": (queries,),
                f"{at}self_attn.k_proj.weight": (keys, self.hidden),
                f"{at}self_attn.k_proj.bias": (keys,),
                f"{at}self_attn.v_proj.weight": (keys, self.hidden),
                f"{at}self_attn.v_proj.bias": (keys,),
                f"{at}self_attn.o_proj.weight": (self.hidden, queries),
                f"{at}post_attention_layernorm.weight": (self.hidden,),
                f"{at}mlp.gate_proj.weight": (self.intermediate, self.hidden),
                f"{at}mlp.up_proj.weight": (self.intermediate, self.hidden),
                f"{at}mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
        return files


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("1.5B", "int8", 1536, 8960, 28, 12, 2, 128, 151936, True),
        Shape("7B", "int4", 3584, 18944, 28, 28, 4, 128, 152064, False),
    )
}


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
    """One safetensors file of bfloat16: normal numbers of deviation 0.02, norms of ones."""
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {
            "dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size],
        }  # fmt: skip
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            left = int(np.prod(shape))
            if len(shape) == 1:
                file.write(np.full(left, 0x3F80, "<u2").tobytes())
                continue
            while left:
                count = min(left, CHUNK)
                numbers = rng.standard_normal(count, dtype=np.float32) * np.float32(0.02)
                file.write((numbers.view("<u4") >> 16).astype("<u2").tobytes())
                left -= count


def write_model(directory: Path, shape: Shape) -> None:
    """The whole model, in Hugging Face layout."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    place = {}
    for file, shapes in shape.shards().items():
        write_shard(directory / file, shapes, rng)
        place.update(dict.fromkeys(shapes, file))
    for name, content in (
        ("model.safetensors.index.json", {"metadata": {}, "weight_map": place}),
        ("config.json", shape.config()),
        ("tokenizer.json", tokenizer_json(288)),
    ):
        (directory / name).write_text(json.dumps(content))


def memory() -> dict[str, float]:
    """Megabytes (10^6) of this process: resident, of which anonymous, and the highest so far."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in {"VmRSS", "RssAnon", "VmHWM"}:
            fields[name] = int(value.split()[0]) * 1024 / 1e6
    return {"resident": fields["VmRSS"], "anonymous": fields["RssAnon"], "peak": fields["VmHWM"]}


def load(directory: str, weights: WeightKind, with_steps: bool) -> Result:
    """In a fresh process: load, one token, and, if asked for, steps and their limits."""
    from benchmarks import kernels
    from benchmarks.steps import limit_ms, native_ops
    from wager import LLM, SamplingParams

    started = time.perf_counter()
    llm = LLM(directory, weights=weights, max_model_len=1024, max_num_seqs=4)
    loaded = time.perf_counter() - started
    llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=1))
    result: Result = {
        "load_s": loaded,
        "memory": memory(),
        "packed_mb": llm.model.packed_bytes / 1e6,
    }
    if with_steps:
        probes = [kernels.rates(native_ops(llm))]
        result["steps"] = {
            str(rows): statistics.median(llm.engine.costs.measure(rows, STEP_CONTEXT, 5))
            for rows in ROWS
        }
        probes.append(kernels.rates(native_ops(llm)))
        machine = kernels.best(probes)
        result["limits"] = [limit_ms(llm, rows, machine) for rows in ROWS]
    llm.close()
    return result


def measure(name: str = "1.5B") -> Result:
    """Write the model, load it twice."""
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory(prefix="wager-shapes-") as folder:
        directory = Path(folder) / "model"
        started = time.monotonic()
        write_model(directory, shape)
        written = time.monotonic() - started
        home = str(Path(folder) / "home")
        first = child("benchmarks.shapes", str(directory), shape.weights, WAGER_HOME=home)
        mapped = child("benchmarks.shapes", str(directory), shape.weights, "steps", WAGER_HOME=home)
    return {"shape": name, "written_s": written, "first": first, "mapped": mapped}


def report(result: Result) -> str:
    """Steps beside their limit; loading; memory."""
    shape = SHAPES[result["shape"]]
    steps = [result["mapped"]["steps"][str(r)] for r in ROWS]
    least = result["mapped"]["limits"]
    rows: list[list[object]] = [
        [f"wager {shape.weights}", *steps],
        ["limit", *least],
        ["of the limit", *(step / bound for step, bound in zip(steps, least, strict=True))],
    ]
    loading = [
        [name, run["load_s"], run["packed_mb"], run["memory"]["resident"], run["memory"]["peak"]]
        for name, run in (("first (packs)", result["first"]), ("later (maps)", result["mapped"]))
    ]
    return "\n\n".join(
        (
            f"Shape of Qwen2.5-{shape.name}, random weights, {shape.weights}, ms per step, context "
            f"{STEP_CONTEXT}:",
            table(["rows", *map(str, ROWS)], rows),
            table(["load", "s", "packed MB", "resident MB", "peak MB"], loading),
        )
    )


def aims(result: Result) -> list[Aim]:
    """The 9-row step near its limit, the resident size near the packed weights."""
    one, shape = result["mapped"], SHAPES[result["shape"]]
    what = f"{shape.name} shape"
    steps = one["steps"]
    v8 = steps["9"] / steps["1"]
    of_limit = steps["9"] / one["limits"][ROWS.index(9)]
    size = one["memory"]["resident"] / one["packed_mb"]
    return [
        Aim(
            f"v(8), {shape.weights}, {what}",
            "<= 1.70, or <= 1.35x the limit",
            f"{v8:.2f}, {of_limit:.2f}x the limit",
            v8 <= 1.70 or of_limit <= 1.35,
        ),
        at_most(f"resident after load, of packed, {what}", size, 1.2, "x"),
    ]


def main() -> None:
    given = sys.argv[1:]
    if len(given) > 1:
        print(json.dumps(load(given[0], cast("WeightKind", given[1]), given[2:] == ["steps"])))
    else:
        print(report(measure(*given)))


if __name__ == "__main__":
    main()
