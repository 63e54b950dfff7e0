"""What fits into memory: a target, with a drafter and without, before anything is started.

Weights and the size of keys and values follow from the files; what else an engine keeps is
estimated (`wager.bench.fit.engines`). Both are labelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from wager.bench.fit.engines import ENGINES
from wager.bench.fit.memory import Drafter, Engine, Kind, Part, Setting, total
from wager.engine.memory import DEFAULT_KV_BYTES
from wager.errors import ConfigError
from wager.models import families
from wager.models.facts.read import KV_BITS, ModelFacts
from wager.models.gguf_file import BLOCKS
from wager.models.prequantised import INTEGERS, QUANT_METHODS
from wager.models.safetensors_file import READABLE
from wager.registry import drafter_names

# Methods without a model, and the draft length that engines give them when none is asked for.
FREE_METHODS: Final = {
    "ngram": 5, "suffix": 16, "ngram-simple": 48, "ngram-map-k": 48, "ngram-map-k4v": 48,
    "ngram-mod": 64, "ngram-cache": 8,
}  # fmt: skip
METHODS: Final = (*FREE_METHODS, "mtp")
"""What can be named instead of a model."""

_DEFAULT_K: Final = {"llamacpp": 3}
_HEAD_K: Final = 4
_ALIASES: Final = {
    "float32": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}  # fmt: skip
_KV_OF: Final = {
    "own": ("f32", "f16"),
    "vllm": ("f32", "f16", "bf16", "fp8"),
    "sglang": ("f32", "f16", "bf16", "fp8"),
    "llamacpp": ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
}
_WIDTHS: Final = {"f32": 4.0, "f16": 2.0, "bf16": 2.0}
_PACKED: Final = {"f32": 4.0, "bf16": 2.0, "int8": 34 / 32, "int4": 20 / 32}


@dataclass(frozen=True, slots=True)
class Side:
    """One way of running: without a drafter, or with it. Bytes are those of one device.

    ``left`` is what is left for keys and values (negative: how much is missing), ``kv_asked`` what
    all clients with the asked context take. The largest context is None where not even one token
    fits; ``clients_at`` is how many sequences of the asked context fit at once.
    """

    parts: list[Part]
    left: int
    kv_per_token: float
    state_per_sequence: int
    kv_tokens: int
    lookahead: int
    largest_one: int | None
    largest_all: int | None
    clients_at: float
    kv_asked: int
    host: list[Part]

    @property
    def starts(self) -> bool:
        """Whether one sequence of the asked context fits: what engines insist on."""
        return self.clients_at >= 1


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer: the setting, and both ways of running (``drafted`` None without a drafter)."""

    target: ModelFacts
    drafter: Drafter | None
    setting: Setting
    memory_kind: Kind
    memory_what: str
    memory_free: int | None
    usable: int
    kv_memory: int | None
    plain: Side
    drafted: Side | None
    notes: list[str]


def drafter_of(
    draft: str, target: ModelFacts, facts: ModelFacts | None, engine: str, k: int | None
) -> Drafter:
    """What a draft adds: ``facts`` are those of a draft model or head, None for a method.

    Raises ConfigError.
    """
    if facts is None:
        return _method(draft, target, engine, k)
    head = facts.speculative
    method = str(head["kind"]) if head else "draft_model"
    default = head.get("num_speculative_tokens") if head else None
    length = k or default or _DEFAULT_K.get(engine, _HEAD_K)
    layers = tuple(layer for layer in facts.kv_layers if layer.kind != "none")
    what = f"{facts.name} ({method})"
    return Drafter(what, method, int(length), facts.weight_bytes, layers, facts)


def _method(draft: str, target: ModelFacts, engine: str, k: int | None) -> Drafter:
    if draft in FREE_METHODS:
        if engine == "llamacpp":
            # Its own names; the two that it does not have stand for the nearest that it has.
            name = {"ngram": "ngram-simple"}.get(draft, draft)
            if name == "suffix":
                raise ConfigError(
                    "draft: llama.cpp has no suffix drafter; ngram-mod is the nearest"
                )
            return Drafter(name, name, k or FREE_METHODS[name])
        if engine == "sglang" and draft == "suffix":
            raise ConfigError("draft: SGLang has no suffix drafter; ngram is the nearest")
        name = draft.partition("-")[0]
        return Drafter(name, name, k or FREE_METHODS[name])
    if not target.mtp_layers:
        raise ConfigError(
            f"draft: {target.name} has no layers for multi-token prediction; "
            "'wager methods' lists what it has"
        )
    # A layer of multi-token prediction attends as the target's own layers do.
    like = max(target.kv_layers, key=lambda layer: layer.values)
    layer = replace(like, kind="full", window=None, state_values=0, state_f32=0)
    number = target.mtp_layers
    return Drafter(f"mtp, {number} layer(s) of the target", "mtp", k or number, target.mtp_bytes,
                   (layer,) * number)  # fmt: skip


def is_method(draft: str) -> bool:
    """Whether the word names a method and not a model."""
    return draft in METHODS


def choose_engine(target: ModelFacts) -> tuple[str, str | None]:
    """The engine that is meant when none is named, and why if it is not wager's own."""
    why = _not_own(target)
    if why is None:
        return "own", None
    return "llamacpp" if is_gguf(target) else "vllm", f"wager's own engine does not run {why}"


def is_gguf(target: ModelFacts) -> bool:
    """Whether the model is stored as GGUF."""
    return target.source == "gguf" or target.name.endswith(".gguf")


def _not_own(target: ModelFacts) -> str | None:
    """What keeps wager's own engine from running a model; None where it does."""
    gguf = is_gguf(target)
    if not families.runs(target.architecture, gguf=gguf):
        return target.architecture
    if any(layer.kind == "none" or layer.latent for layer in target.kv_layers):
        return "layers that keep no keys and values of each token"
    rounded = None if gguf else target.quantisation
    if rounded is not None and rounded.partition(" ")[0] not in QUANT_METHODS:
        return rounded
    types = BLOCKS if gguf else (*READABLE, *INTEGERS) if rounded else READABLE
    other = next((t.dtype for t in target.tensors if t.dtype not in types), None)
    return None if other is None else f"weights stored as {other}"


def kv_dtype(engine: str, asked: str, target: ModelFacts, width: float | None) -> str:
    """The type of keys and values as a key of KV_BITS. Raises ConfigError."""
    name = _ALIASES.get(asked, asked)
    if name == "auto":
        if engine == "llamacpp":
            return "f16"
        if engine == "own":
            return "f32" if width == _PACKED["f32"] else "f16"
        return "f32" if width == 4 else "bf16"
    allowed = _KV_OF[engine]
    if name not in KV_BITS or name not in allowed:
        raise ConfigError(
            f"kv-dtype: {asked!r} is no type of keys and values of {engine}; "
            f"it has: auto, {', '.join(allowed)}"
        )
    return name


def _packed_width(name: str, target: ModelFacts) -> float:
    """Bytes per weight on average: beside int4 the embedding and the head are int8."""
    if name != "int4" or not target.parameters:
        return _PACKED[name]
    tables = target.vocab_size * target.hidden_size * (1 if target.tied_head else 2)
    share = min(tables / target.parameters, 1.0)
    return share * _PACKED["int8"] + (1 - share) * _PACKED["int4"]


def weight_width(engine: str, asked: str, target: ModelFacts) -> tuple[float | None, str]:
    """Bytes that a plain float weight takes in an engine (None: as stored), and the type's name.

    Raises ConfigError.
    """
    name = _ALIASES.get(asked, asked)
    if engine == "llamacpp":
        if name != "auto":
            raise ConfigError("dtype: llama.cpp keeps the types of the GGUF file; leave it out")
        return None, target.dtype
    if engine == "own":
        if name == "auto":
            plain = target.quantisation is None and target.dtype in READABLE
            name = "int8" if not plain else "bf16" if target.dtype == "BF16" else "f32"
        if name not in _PACKED:
            raise ConfigError(
                f"dtype: {asked!r} is none of wager's own; it has: auto, {', '.join(_PACKED)}"
            )
        return _packed_width(name, target), name
    if name == "auto":
        # vLLM and SGLang compute float32 checkpoints in 16 bits unless they are told otherwise.
        name = {"float16": "f16"}.get(target.model_dtype or "", "bf16")
    if name not in _WIDTHS:
        raise ConfigError(f"dtype: {asked!r} must be auto, float32, float16 or bfloat16")
    return _WIDTHS[name], name


def fit(
    target: ModelFacts,
    drafter: Drafter | None,
    setting: Setting,
    *,
    memory_kind: Kind,
    memory_what: str,
    memory_free: int | None = None,
    kv_memory: int | None = None,
) -> Fit:
    """Work both ways out. ``kv_memory`` is what the engine is told to take for keys and values;
    None leaves it what the rest of the memory is."""
    plain = ENGINES[setting.engine](target, None, setting)
    drafted = ENGINES[setting.engine](target, drafter, setting) if drafter else None
    found = Fit(
        target=target,
        drafter=drafter,
        setting=setting,
        memory_kind=memory_kind,
        memory_what=memory_what,
        memory_free=memory_free,
        usable=plain.usable(),
        kv_memory=kv_memory,
        plain=_side(plain, kv_memory),
        drafted=_side(drafted, kv_memory) if drafted else None,
        notes=[],
    )
    found.notes.extend(_notes(found))
    if setting.engine == "own" and kv_memory is None and found.plain.left > DEFAULT_KV_BYTES:
        found.notes.append(
            f"wager's own engine takes {DEFAULT_KV_BYTES >> 20} MiB for keys and values (or one "
            "longest context, if that is more) unless kv_memory says otherwise"
        )
    return found


def _side(engine: Engine, kv_memory: int | None) -> Side:
    setting = engine.setting
    context, clients = setting.max_model_len, setting.clients
    usable = engine.usable()

    def need(length: int, number: int) -> int:
        """Bytes beside keys and values."""
        return total(engine.weights()) + total(engine.reserve(length, number))

    def room(length: int, number: int) -> int:
        left = usable - need(length, number)
        return left if kv_memory is None else min(kv_memory, left)

    def holds(length: int, number: int) -> bool:
        # Slots for drafts count towards the context; engines cut drafts at its end.
        slots = min(length + engine.lookahead(), max(context, length))
        return number * engine.sequence(slots) <= room(length, number)

    longest = engine.target.max_context
    left = room(context, clients)
    one = engine.sequence(context)
    return Side(
        parts=engine.weights() + engine.reserve(context, clients),
        left=left,
        kv_per_token=engine.per_token(),
        state_per_sequence=engine.state(),
        kv_tokens=engine.tokens(left) if left > 0 else 0,
        lookahead=engine.lookahead() * clients,
        largest_one=_largest(lambda n: holds(n, 1), longest),
        largest_all=_largest(lambda n: holds(n, clients), longest),
        clients_at=_clients(engine, context, holds, left, one),
        kv_asked=clients * one,
        host=engine.host(),
    )


def _clients(
    engine: Engine, context: int, holds: Callable[[int, int], bool], left: int, one: int
) -> float:
    """How many sequences of the context fit at once."""
    if engine.setting.engine == "llamacpp":
        # Its slots are whole, and more of them take more of the rest.
        return float(_largest(lambda n: holds(context, n), 1 << 16) or 0)
    if engine.setting.engine == "vllm":
        return engine.tokens(left) / context if left > 0 else 0.0
    return max(left, 0) / one if one else 0.0


def _largest(holds: Callable[[int], bool], high: int) -> int | None:
    """The largest n from 1 to ``high`` for which it holds, where it holds for all smaller ones."""
    if not holds(1):
        return None
    low = 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _notes(found: Fit) -> list[str]:
    """What a reader has to know beside the figures."""
    setting, notes = found.setting, list(found.target.notes)
    if found.drafter is not None and found.drafter.facts is not None:
        notes.extend(f"{found.drafter.facts.name}: {note}" for note in found.drafter.facts.notes)
        notes.extend(_vocabularies(found.target, found.drafter))
    if found.drafter is not None and setting.engine == "own":
        method, known = found.drafter.method, drafter_names()
        if method not in known:
            notes.append(
                f"wager's own engine does not draft by {method} yet (it has {', '.join(known)}): "
                "the figures are what it would take"
            )
    if setting.tensor_parallel > 1:
        notes.append(
            f"figures are those of one of {setting.tensor_parallel} devices; norms are counted as "
            "shared out"
        )
    if any(layer.window is not None for layer in found.target.kv_layers):
        notes.append("layers with a sliding window keep their last tokens only: KV per token falls "
                     "once a context is longer")  # fmt: skip
    state = found.plain.state_per_sequence
    if state and found.drafter is not None:
        notes.append("recurrent state is counted once per draft token more, to take back refused "
                     "drafts")  # fmt: skip
    free, needed = found.memory_free, total(found.plain.parts) + found.plain.kv_asked
    least = min(side.left for side in (found.plain, found.drafted) if side is not None)
    if found.kv_memory is not None and least < found.kv_memory:
        notes.append(
            f"kv-memory: {found.kv_memory / 1e9:.2f} GB were asked for, but there is not as much: "
            "the engine would not start with it"
        )
    if free is not None and free < needed:
        notes.append(f"only {free / 1e9:.2f} GB of it are free now; this takes {needed / 1e9:.2f}")
    return notes


def _vocabularies(target: ModelFacts, drafter: Drafter) -> list[str]:
    facts = drafter.facts
    if facts is None or facts.speculative is not None:
        return []
    if facts.tokenizer_hash and target.tokenizer_hash:
        if facts.tokenizer_hash != target.tokenizer_hash:
            return ["the draft model has another tokenizer than the target: most engines refuse it"]
    elif facts.vocab_size != target.vocab_size:
        return [f"vocabularies differ in size: {target.vocab_size} and {facts.vocab_size}"]
    return []
