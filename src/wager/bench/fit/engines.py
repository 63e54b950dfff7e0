"""How each engine divides memory: what it keeps beside keys and values, and how it stores those.

Weights, keys and values follow from the files. Everything else (activations, graphs, the engine
itself) is estimated by the formulas here, which are shown with the result; where they were checked
against a real engine, docs/fit.md says so.

Sources: vLLM 0.32 (``v1/core/kv_cache_utils.py``, ``v1/worker/gpu_worker.py``,
``v1/worker/cpu_worker.py``, ``engine/arg_utils.py``, ``platforms/cpu.py``); llama.cpp b11434
(``llama_kv_cache``, ``sched_reserve``: what llama-server prints); SGLang
(``server_args.py``: how ``mem_fraction_static`` is chosen).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from wager.bench.fit.memory import GIB, MIB, Drafter, Engine, Part, Setting, up
from wager.models.facts.read import LayerCache, ModelFacts


class Vllm(Engine):
    """vLLM: blocks of one size, handed out from one pool to groups of layers."""

    # Its n-gram drafter searches token ids that it keeps anyway.
    index_bytes: Mapping[str, int] = {"suffix": 330}

    def __init__(self, target: ModelFacts, drafter: Drafter | None, setting: Setting) -> None:
        super().__init__(target, drafter, setting)
        self.block = 128 if setting.device == "cpu" else 16

    def reserve(self, context: int, clients: int) -> list[Part]:
        if self.setting.device == "cpu":
            processes = 2 + self.setting.tensor_parallel
            return [
                Part("engine", processes * _VLLM_PROCESS, "estimated",
                     f"{processes} processes with torch, {_VLLM_PROCESS >> 20} MiB each")
            ]  # fmt: skip
        return [self._activations(), self._graphs(), _CUDA]

    def _rows(self) -> tuple[int, int]:
        """Default max_num_batched_tokens and max_num_seqs of a server (get_batch_defaults)."""
        if self.setting.device == "cpu":
            return 2048, 128
        if self.setting.memory >= 160 * GIB:
            return 16384, 1024
        return (8192, 1024) if self.setting.memory >= 70 * GIB else (2048, 256)

    def _activations(self) -> Part:
        rows, seqs = self._rows()
        tp, facts = self.setting.tensor_parallel, self.target
        width = int(self.setting.width or 2)
        wide = 3 * _mlp_width(facts) // tp + 6 * facts.hidden_size
        layer = rows * width * wide
        sampler = seqs * (2 if self.drafter else 1) * facts.vocab_size * 16
        if layer >= sampler:
            how = f"{rows} rows x {wide} values x {width} B (the widest layer)"
        else:
            how = f"{seqs} requests x {facts.vocab_size} logits x 16 B, sorted"
            how += ", 2 rows each" if self.drafter else ""
        return Part("activations", max(layer, sampler), "estimated", how)

    def _graphs(self) -> Part:
        layers = self.target.num_layers + len(self.drafter.layers if self.drafter else ())
        each = 300 << 10
        return Part("CUDA graphs", layers * _CAPTURES * each, "estimated",
                    f"{layers} layers x {_CAPTURES} batch sizes x 300 KiB")  # fmt: skip

    def _blocks(self, context: int) -> tuple[float, int]:
        """(bytes of a block, blocks of one sequence). Layers with a window and layers without form
        groups of one size, which share the pool (``_get_kv_cache_groups_uniform_page_size``)."""
        kept = self.layers()
        windows = [item for item in kept if item[0].window is not None]
        full = [item for item in kept if item[0].window is None]
        if not windows or not full:
            return self.per_token() * self.block, self._count(kept[0][0], context) if kept else 0
        few, many = sorted((len(windows), len(full)))
        size = many if many < few * 1.5 else few
        count = sum(
            -(-len(group) // size) * self._count(group[0][0], context) for group in (full, windows)
        )
        return max(width for _, width in kept) * size * self.block, count

    def _count(self, layer: LayerCache, context: int) -> int:
        """Blocks of one sequence in a layer; a window may begin and end within a block."""
        if layer.window is None:
            return -(-context // self.block)
        # Two steps are in flight on a GPU (asynchronous scheduling), one on a CPU.
        flying = self._rows()[0] * (1 if self.setting.device == "cpu" else 2)
        seen = min(context, layer.window - 1 + flying)
        return -(-seen // self.block) + 1

    def sequence(self, context: int) -> int:
        size, count = self._blocks(context)
        return math.ceil(size * count) + self.state()

    def tokens(self, kv_bytes: int) -> int:
        size, count = self._blocks(self.setting.max_model_len)
        if self.state() or not size or not count:
            return super().tokens(kv_bytes)
        return int(int(kv_bytes / size) / count * self.setting.max_model_len)

    def lookahead(self) -> int:
        """Rows of the draft, and for a drafter with keys of its own as many slots again."""
        if self.drafter is None:
            return 0
        return self.drafter.k * (2 if self.drafter.layers else 1)


_CAPTURES: Final = 51
_VLLM_PROCESS: Final = 640 * MIB
_CUDA: Final = Part("CUDA and libraries", 600 * MIB, "estimated", "context, kernels, collectives")


class Sglang(Engine):
    """SGLang: the share for weights and KV is what its own formula leaves of the GPU."""

    block = 1

    def reserve(self, context: int, clients: int) -> list[Part]:
        gpu = self.setting.memory / MIB
        tp = self.setting.tensor_parallel
        prefill, graphs = self._sizes()
        reserved = 512 + max(prefill, 2048) * 1.5 + graphs * 2 + tp / 8 * 1024
        how = f"512 + {prefill} x 1.5 + {graphs} x 2 + {tp}/8 x 1024 MiB"
        if gpu > 60 * 1024 and reserved < 10 * 1024:
            reserved, how = 10 * 1024, "10 GiB, its least on a large GPU"
        if self.drafter is not None and self.drafter.method not in ("ngram", "suffix"):
            extra = 6 if self.drafter.method == "draft_model" else 2
            reserved += extra * 1024
            how += f", and {extra} GiB for a drafter"
        return [Part("activations and graphs", int(reserved * MIB), "estimated",
                     f"mem_fraction_static: {how}")]  # fmt: skip

    def _sizes(self) -> tuple[int, int]:
        """chunked_prefill_size and cuda_graph_max_bs that it chooses by the size of the GPU."""
        gib, small = self.setting.memory / GIB, self.setting.tensor_parallel < 4
        if gib < 20:
            return 2048, 8
        if gib < 35:
            return 2048, 24 if small else 80
        if gib < 60:
            return 4096, 32 if small else 160
        if gib < 90:
            return 8192, 256 if small else 512
        return (8192, 256 if small else 512) if gib < 160 else (16384, 512)

    def usable(self) -> int:
        return self.setting.memory


class LlamaCpp(Engine):
    """llama-server: keys and values of all slots are allocated at the start."""

    block = 256

    def reserve(self, context: int, clients: int) -> list[Part]:
        checked = clients * (1 + (self.drafter.k if self.drafter else 0))
        parts = [self._compute(self.target, context, checked, "compute buffer")]
        nbytes = clients * self.target.vocab_size * 4
        how = f"{clients} slots x {self.target.vocab_size} logits x 4 B"
        facts = self.drafter.facts if self.drafter else None
        if facts is not None:
            parts.append(self._compute(facts, context, clients, "draft compute buffer"))
            nbytes += clients * facts.vocab_size * 4
            how += ", and the draft's"
        parts.append(Part("output buffer", nbytes, "estimated", how))
        if self.drafter is not None and self.drafter.method == "ngram-mod":
            parts.append(Part("hash of n-grams", 16 * MIB, "estimated", "4 Mi cells x 4 B"))
        return parts

    def _compute(self, facts: ModelFacts, context: int, checked: int, name: str) -> Part:
        """The mask, five rows of hidden size, and the widest of three: the MLP's products, queries
        before and after attention, the logits of ``checked`` rows."""
        cells = up(context, self.block)
        rows = min(_UBATCH, cells)
        narrow = 5 * facts.hidden_size + 10
        wide = max(3 * _mlp_width(facts), 2 * facts.num_heads * facts.head_dim)
        logits = min(checked, rows) * facts.vocab_size * 4
        what = f"{wide} values each" if rows * 4 * wide >= logits else f"{checked} x logits"
        nbytes = rows * (cells * 2 + 4 * narrow) + max(rows * 4 * wide, logits)
        how = f"{rows} rows x ({cells} x 2 B + {narrow} x 4 B), and {what}"
        return Part(name, nbytes, "estimated", how)

    def sequence(self, context: int) -> int:
        cells = up(context, self.block)
        total = float(self.state())
        for layer, width in self.layers():
            kept = cells
            if layer.window is not None:
                kept = min(cells, up(layer.window + _UBATCH, self.block))
            total += kept * width
        return math.ceil(total)

    @property
    def _draft_kv(self) -> str:
        return "f16"  # -ctkd and -ctvd are options of their own

    def state(self) -> int:
        return self.target.state_bytes(4)


_UBATCH: Final = 512


class Own(Engine):
    """wager's own engine: packed weights, one pool of blocks that is touched as it is used."""

    index_bytes: Mapping[str, int] = {"ngram": 100, "suffix": 330}

    def _held(self, facts: ModelFacts, stored: int) -> int:
        # Packed: 32 bits, or 8 or 4 bits in groups of 32 with scales of 16.
        return int(facts.parameters * (self.setting.width or 4))

    def _as_stored(self, facts: ModelFacts) -> bool:
        return False

    def layers(self) -> list[tuple[LayerCache, float]]:
        """What lies before a window is kept as well."""
        return [
            (replace(layer, kind="full", window=None), size) for layer, size in super().layers()
        ]

    def reserve(self, context: int, clients: int) -> list[Part]:
        facts = self.target
        rows = min(_OWN_ROWS, context * clients)
        wide = 3 * (facts.intermediate_size or 0) + 6 * facts.hidden_size
        checked = clients * (1 + (self.drafter.k if self.drafter else 0))
        return [
            Part("engine", _OWN_PROCESS, "estimated", "Python, numpy, tokenizer (measured)"),
            Part("activations", rows * 4 * wide + checked * facts.vocab_size * 4, "estimated",
                 f"{rows} rows x {wide} values x 4 B, {checked} rows of logits"),
        ]  # fmt: skip

    def usable(self) -> int:
        return self.setting.memory


_OWN_ROWS: Final = 512
_OWN_PROCESS: Final = 64 * MIB

ENGINES: Final[dict[str, type[Engine]]] = {
    "own": Own, "vllm": Vllm, "sglang": Sglang, "llamacpp": LlamaCpp,
}  # fmt: skip


def _mlp_width(facts: ModelFacts) -> int:
    """Values of a row in the widest layer: of all experts that a token takes."""
    dense = facts.intermediate_size or 4 * facts.hidden_size
    experts = (facts.experts_per_token or 0) * (facts.expert_size or 0)
    return max(dense, experts)
