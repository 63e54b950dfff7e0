"""`wager fit`: what fits into memory, with speculation and without, before anything is started."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wager.errors import ConfigError, ModelError
from wager.memory import parse_size

if TYPE_CHECKING:
    from wager.bench.fit.calculate import Fit
    from wager.bench.fit.memory import Device, Drafter, Kind
    from wager.memory import Memory
    from wager.models.facts.read import ModelFacts

ENGINES = ("own", "vllm", "llamacpp", "sglang")
_UTILIZATION = {"vllm": 0.92}
_NO_KV_OPTION = {
    "llamacpp": "llama-server has no such option, its room for keys and values follows from "
                "--max-model-len and --clients",
    "sglang": "SGLang has no such option; leave it out",
}  # fmt: skip

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A pulled name, a directory, a GGUF file, or a name on "
                                         "the hub: org/name, org/name@revision, org/name:Q4_K_M."),
]  # fmt: skip
Draft = Annotated[
    str | None,
    typer.Option("--draft", metavar="D", show_default=False,
                 help="A draft model or head (as MODEL), or a method: ngram, suffix, mtp, "
                      "ngram-mod, ..."),
]  # fmt: skip
Tokens = Annotated[
    int | None,
    typer.Option("--num-speculative-tokens", "-k", show_default=False,
                 help="Draft length. Default: the engine's or the head's own."),
]  # fmt: skip
MemorySize = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", show_default=False,
                 help="Of one device, e.g. 24GB or 24GiB. Default: what this machine has."),
]  # fmt: skip
KvMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="SIZE", show_default=False,
                 help="What the engine is told to take for keys and values at most."),
]  # fmt: skip
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", show_default=False,
                 help="Context per client in tokens. Default: the model's longest."),
]  # fmt: skip
Clients = Annotated[int, typer.Option("--clients", help="Requests in flight.")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", show_default=False,
                 help=f"{', '.join(ENGINES)}. Default: the first that runs the model."),
]  # fmt: skip
DeviceName = Annotated[
    str, typer.Option("--device", help="auto, cpu or gpu; auto takes a GPU where there is one.")
]
KvDtype = Annotated[str, typer.Option("--kv-dtype", help="Type of keys and values.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Type that weights are held in.")]
Utilization = Annotated[
    float | None,
    typer.Option("--gpu-memory-utilization", show_default=False,
                 help="Share of the memory that vLLM takes. Default: 0.92, as vLLM 0.32."),
]  # fmt: skip
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel-size", "-tp", help="Devices that share the model.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def fit(
    model: Model,
    draft: Draft = None,
    num_speculative_tokens: Tokens = None,
    memory: MemorySize = None,
    kv_memory: KvMemory = None,
    max_model_len: MaxModelLen = None,
    clients: Clients = 1,
    engine: Engine = None,
    device: DeviceName = "auto",
    kv_dtype: KvDtype = "auto",
    dtype: Dtype = "auto",
    gpu_memory_utilization: Utilization = None,
    tensor_parallel_size: TensorParallel = 1,
    as_json: Json = False,
) -> None:
    """Work out what fits into memory, with a drafter and without: weights, KV, context, clients."""
    _check_numbers(clients, max_model_len, num_speculative_tokens, tensor_parallel_size)
    _check_names(engine, device)
    from wager.bench.fit import calculate as work
    from wager.bench.fit.memory import Setting
    from wager.models.facts.read import read_facts

    given, room = (
        None if text is None else parse_size(text, option)
        for text, option in ((memory, "memory"), (kv_memory, "kv-memory"))
    )
    target = read_facts(model, tokenizer=draft is not None and not work.is_method(draft))
    chosen, why = (engine, None) if engine else work.choose_engine(target)
    _check_engine(chosen, target, engine, tensor_parallel_size, gpu_memory_utilization)
    if room is not None and chosen in _NO_KV_OPTION:
        raise ConfigError(f"kv-memory: {_NO_KV_OPTION[chosen]}")
    drafter = _drafter(draft, target, chosen, num_speculative_tokens)
    where, size, kind = _memory(chosen, device, given)
    width, _ = work.weight_width(chosen, dtype, target)
    setting = Setting(
        engine=chosen,
        device=where,
        memory=size.total,
        utilization=_utilization(chosen, gpu_memory_utilization),
        max_model_len=max_model_len or target.max_context,
        clients=clients,
        kv_dtype=work.kv_dtype(chosen, kv_dtype, target, width),
        width=width,
        tensor_parallel=tensor_parallel_size,
    )
    found = work.fit(
        target, drafter, setting, memory_kind=kind, memory_what=size.what, memory_free=size.free,
        kv_memory=room,
    )  # fmt: skip
    if why is not None:
        found.notes.insert(0, f"reckoned for {chosen}: {why}")
    if max_model_len is not None and max_model_len > target.max_context:
        found.notes.append(f"the model's own longest context is {target.max_context:,} tokens")
    if drafter is not None and work.is_method(draft or "") and drafter.method != draft:
        found.notes.append(f"{chosen} has no {draft}: reckoned as {drafter.method}")
    if where == "gpu" and tensor_parallel_size > size.devices and given is None:
        found.notes.append(f"this machine has {size.devices} GPU(s), not {tensor_parallel_size}")
    _show(found, as_json)


def _check_names(engine: str | None, device: str) -> None:
    if engine is not None and engine not in ENGINES:
        raise ConfigError(f"engine: must be one of {', '.join(ENGINES)}; got {engine!r}")
    if device not in ("auto", "cpu", "gpu"):
        raise ConfigError(f"device: must be auto, cpu or gpu; got {device!r}")


def _check_numbers(clients: int, context: int | None, k: int | None, tp: int) -> None:
    for name, value, high in (
        ("clients", clients, 1 << 16), ("max-model-len", context, 1 << 30),
        ("num-speculative-tokens", k, 1024), ("tensor-parallel-size", tp, 1024),
    ):  # fmt: skip
        if value is not None and not 1 <= value <= high:
            raise ConfigError(f"{name}: must be from 1 to {high}, got {value}")


def _check_engine(
    engine: str, target: ModelFacts, named: str | None, tp: int, utilization: float | None
) -> None:
    from wager.bench.fit.calculate import choose_engine, is_gguf

    if engine == "llamacpp" and not is_gguf(target):
        raise ConfigError(
            f"engine: llama.cpp runs GGUF files, and {target.name} is none; name its GGUF file "
            "(org/name:Q4_K_M on the hub)"
        )
    if engine == "vllm" and is_gguf(target):
        raise ConfigError(
            f"engine: vLLM 0.32 reads no GGUF files, and {target.name} is one; name the model that "
            "it was made from (a directory, or org/name on the hub)"
        )
    other, why = choose_engine(target)
    if named == "own" and why is not None:
        raise ConfigError(f"engine: {why}; take --engine {other}")
    if target.speculative is not None:
        raise ConfigError(
            f"{target.name}: is a draft head ({target.speculative['kind']}), which writes nothing "
            "on its own: name its target, and this one with --draft"
        )
    if engine in ("own", "llamacpp") and tp > 1:
        raise ConfigError(f"tensor-parallel-size: {engine} is reckoned on one device only")
    if utilization is not None and engine != "vllm":
        raise ConfigError(f"gpu-memory-utilization: is an option of vLLM, not of {engine}")


def _utilization(engine: str, asked: float | None) -> float:
    if asked is None:
        return _UTILIZATION.get(engine, 1.0)
    if not 0 < asked <= 1:
        raise ConfigError(f"gpu-memory-utilization: must be above 0 and at most 1, got {asked}")
    return asked


def _drafter(draft: str | None, target: ModelFacts, engine: str, k: int | None) -> Drafter | None:
    from wager.bench.fit.calculate import drafter_of, is_gguf, is_method
    from wager.models.facts.read import read_facts

    if draft is None:
        if k is not None:
            raise ConfigError("num-speculative-tokens: nothing drafts; add --draft")
        return None
    if is_method(draft):
        return drafter_of(draft, target, None, engine, k)
    try:
        facts = read_facts(draft)
    except ModelError as error:
        raise type(error)(f"draft: {str(error).removeprefix('model: ')}{_hint(draft)}") from None
    if engine == "vllm" and is_gguf(facts):
        raise ConfigError(f"draft: vLLM 0.32 reads no GGUF files, and {draft} is one")
    return drafter_of(draft, target, facts, engine, k)


def _hint(draft: str) -> str:
    """What a word that is neither a model nor a method may stand for."""
    from difflib import get_close_matches

    from wager.bench.fit.calculate import METHODS

    if "/" in draft or "." in draft:
        return ""
    near = get_close_matches(draft, METHODS, 1)
    if near:
        return f"; is the method {near[0]} meant?"
    return f"; methods are {', '.join(METHODS)}; any other needs its model, by path or name"


def _memory(engine: str, device: str, given: int | None) -> tuple[Device, Memory, Kind]:
    """(device, its memory, where the figure comes from)."""
    from wager.bench.fit.machine import gpu_memory
    from wager.memory import Memory, host_memory

    if engine == "own":
        if device == "gpu":
            raise ConfigError("device: wager's own engine runs on the CPU")
        device = "cpu"
    if given is not None:
        on_gpu = device == "gpu" or (device == "auto" and engine in ("vllm", "sglang"))
        return "gpu" if on_gpu else "cpu", Memory(given, None, "--memory"), "given"
    gpu = None if device == "cpu" else gpu_memory()
    if gpu is not None:
        return "gpu", gpu, "read from the machine"
    if device == "gpu":
        raise ConfigError("device: nvidia-smi finds no GPU here; give its size with --memory")
    host = host_memory()
    if host is None:
        raise ConfigError("memory: this machine does not tell how much it has; give --memory")
    return "cpu", host, "read from the machine"


def _show(found: Fit, as_json: bool) -> None:
    from wager.bench.fit import report as fit_report

    if as_json:
        print(json.dumps(fit_report.as_json(found), indent=1, allow_nan=False))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("plain", justify="right")
    if found.drafter is not None:
        table.add_column(f"with {found.drafter.method}, k {found.drafter.k}", justify="right")
    table.add_column("where from", overflow="fold")
    for what, plain, drafted, how in fit_report.rows(found):
        table.add_row(what, plain, *((drafted,) if found.drafter else ()), how)
    # A pipe has no width to wrap at.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(fit_report.heading(found), soft_wrap=True)
    console.print(table)
    console.print(fit_report.verdict(found), soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
