"""The answer of `wager fit` for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from wager.bench.fit.calculate import Fit, Side
from wager.bench.fit.memory import Part, Setting, total
from wager.bench.spelling import NA


def verdict(found: Fit) -> str:
    """One or two sentences: whether it runs, and what drafting costs."""
    plain, setting = found.plain, found.setting
    if plain.largest_one is None:
        return f"Does not fit: {_short(plain)}."
    said = _starts(plain, setting, "")
    if found.drafted is None or found.drafter is None:
        return said
    drafted, label = found.drafted, found.drafter.label
    if drafted.largest_one is None:
        return f"{said} With {label} it does not fit: {_short(drafted)}."
    lost = 1 - drafted.kv_tokens / plain.kv_tokens if plain.kv_tokens else 0.0
    if not drafted.starts and plain.starts:
        return f"{said} {_starts(drafted, setting, f'with {label} ')}"
    if lost <= 0:
        return f"{said} {label} takes no room for keys and values."
    before, after = (min(int(s.clients_at), setting.clients) for s in (plain, drafted))
    left = f", and {after} of {setting.clients} clients fit" if after < before else ""
    return f"{said} {label} takes {100 * lost:.1f} % of the room for keys and values{left}."


def _short(side: Side) -> str:
    used = total(side.parts)
    return (
        f"{used / 1e9:.2f} GB are needed before the first token, "
        f"{(used + side.left) / 1e9:.2f} GB are there"
    )


def _starts(side: Side, setting: Setting, prefix: str) -> str:
    context = f"{setting.max_model_len:,} tokens"
    if not side.starts:
        said = (
            f"{prefix}one context of {context} does not fit: start it with a max-model-len of at "
            f"most {side.largest_one:,}."
        )
    elif side.clients_at < setting.clients:
        said = (
            f"{prefix}fits for {int(side.clients_at)} of {setting.clients} clients with {context} "
            f"each; all {setting.clients} fit with {side.largest_all or 0:,}."
        )
    else:
        each = "client" if setting.clients == 1 else "clients"
        said = f"{prefix}fits: {setting.clients} {each} with {context} each."
    return said[0].upper() + said[1:]


def as_json(found: Fit) -> dict[str, Any]:
    """The answer as plain values; bytes are whole numbers."""
    target = found.target
    record: dict[str, Any] = {
        "model": {
            "name": target.name, "location": target.location, "architecture": target.architecture,
            "layers": target.num_layers, "parameters": target.parameters, "dtype": target.dtype,
            "quantisation": target.quantisation, "max_context": target.max_context,
        },
        "setting": {
            **asdict(found.setting), "memory_kind": found.memory_kind,
            "memory_what": found.memory_what, "memory_free": found.memory_free,
            "usable": found.usable,
        },
        "draft": None if found.drafter is None else {
            "label": found.drafter.label, "method": found.drafter.method,
            "num_speculative_tokens": found.drafter.k,
        },
        "plain": _side_json(found.plain),
        "drafted": None if found.drafted is None else _side_json(found.drafted),
        "notes": found.notes,
        "verdict": verdict(found),
    }  # fmt: skip
    return record


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "parts": [asdict(part) for part in side.parts],
        "host_parts": [asdict(part) for part in side.host],
        "left_for_kv": side.left,
        "kv_bytes_per_token": side.kv_per_token,
        "state_bytes_per_sequence": side.state_per_sequence,
        "kv_tokens": side.kv_tokens,
        "lookahead_slots": side.lookahead,
        "largest_context_one_client": side.largest_one,
        "largest_context_all_clients": side.largest_all,
        "clients_at_max_model_len": round(side.clients_at, 3),
        "starts": side.starts,
    }


def size(nbytes: float) -> str:
    """Bytes for people, in powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:,.2f} {unit}"
    return f"{nbytes:,.0f} B"


def heading(found: Fit) -> str:
    """What is asked: the model, the engine and the memory."""
    target, setting = found.target, found.setting
    kind = target.quantisation or target.dtype
    model = f"{target.name}: {target.num_layers} layers, {target.parameters / 1e6:,.1f} M weights"
    share = f" x {setting.utilization:g}" if found.usable != setting.memory else ""
    memory = f"{size(setting.memory)}{share} ({found.memory_kind}: {found.memory_what})"
    devices = f" on {setting.tensor_parallel} devices" if setting.tensor_parallel > 1 else ""
    return (
        f"{model}, {kind}\n{setting.engine} ({setting.device}){devices}, memory {memory}, "
        f"KV {setting.kv_dtype}, {setting.clients} x {setting.max_model_len:,} tokens"
    )


def rows(found: Fit) -> Iterator[tuple[str, str, str, str]]:
    """(what, plain, with the drafter, where the figure comes from), line by line."""
    yield from _part_rows(found, lambda side: side.parts)
    each = [found.plain, found.drafted]

    def row(name: str, text: str, spell: Any) -> tuple[str, str, str, str]:
        left, right = (NA if side is None else spell(side) for side in each)
        return name, left, right if found.drafted else "", text

    limited = any(side is not None and side.left == found.kv_memory for side in each)
    limit = "--kv-memory, at most " if limited else ""
    yield row("left for KV", f"estimated: {limit}memory less the above", lambda s: size(s.left))
    yield row("KV per token", "from files", lambda s: size(s.kv_per_token))
    if found.plain.state_per_sequence:
        yield row("state per sequence", "from files", lambda s: size(s.state_per_sequence))
    yield row("KV tokens", "estimated: left for KV / KV per token", lambda s: f"{s.kv_tokens:,}")
    yield row("lookahead slots", "drafts of all clients", lambda s: f"{s.lookahead:,}")
    clients = found.setting.clients
    yield row("largest context, 1 client", _LIMIT, lambda s: _tokens(s.largest_one))
    if clients > 1:
        name = f"largest context, {clients} clients"
        yield row(name, _LIMIT, lambda s: _tokens(s.largest_all))
    name = f"clients at {found.setting.max_model_len:,} tokens"
    whole = ", whole slots" if found.setting.engine == "llamacpp" else ""
    yield row(name, f"estimated: KV tokens / context{whole}", lambda s: f"{s.clients_at:,.1f}")
    yield from _part_rows(found, lambda side: side.host, " (host)")


_LIMIT: Final = "estimated: at most the model's own"


def _tokens(count: int | None) -> str:
    return "none" if count is None else f"{count:,}"


def _part_rows(found: Fit, of: Any, suffix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """One line per use of memory that either way has."""
    plain: dict[str, Part] = {part.name: part for part in of(found.plain)}
    drafted: dict[str, Part] = {p.name: p for p in of(found.drafted)} if found.drafted else {}
    order = list(plain)
    for index, name in enumerate(drafted):
        if name not in plain:
            order.insert(index, name)
    for name in order:
        part = drafted.get(name) or plain[name]
        left = size(plain[name].nbytes) if name in plain else "-"
        right = size(drafted[name].nbytes) if name in drafted else "-"
        yield name + suffix, left, right if found.drafted else "", f"{part.kind}: {part.how}"
