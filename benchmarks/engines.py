"""Whole requests beside llama-server and vLLM: copy and explain, 1 and 8 clients.

Every engine gets the same token ids, sampling settings and limits (`wager.bench.workloads`), the
same two threads, an empty prefix cache, and the machine for itself; servers run one after the
other, and the second round goes through the arms backwards with other prompts. Peers are asked over
HTTP on the loopback interface, wager runs in this process. Tokens are counted by their ids. Each
engine keeps its own KV type (llama.cpp f16; vLLM and wager f32 with f32 weights).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.peers import Peers, Server, llama_server, vllm_server
from benchmarks.replies import Ask, Reply, rates
from benchmarks.results import Aim, Result, Store, at_least, ratio, table
from wager import LLM, SamplingParams
from wager.bench.measure import DEFAULT_SPECULATION
from wager.bench.workloads import RECIPES, prompts
from wager.config import SpeculationConfig

WORKLOADS = ("copy", "explain")
CLIENTS = (1, 8)
MOST_CLIENTS = max(CLIENTS)
ONE_CLIENT_PROMPTS = 3
ROUNDS = 2
CONTEXT = 2048
KINDS = (("f32", "f32"), ("int8", "q8_0"))
VLLM_SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": 8,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5,
}

# llama.cpp drafts from the text by several methods; the fastest of these on each workload counts.
LLAMA_SETTINGS: dict[str, tuple[str, ...]] = {
    "ngram-simple 12/48": (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "12",
        "--spec-ngram-simple-size-m", "48", "--spec-ngram-simple-min-hits", "1",
    ),
    "ngram-simple 3/16": (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3",
        "--spec-ngram-simple-size-m", "16", "--spec-ngram-simple-min-hits", "1",
    ),
    "ngram-mod 24/48/64": (
        "--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "24",
        "--spec-ngram-mod-n-min", "48", "--spec-ngram-mod-n-max", "64",
    ),
    "ngram-mod 12/8/32": (
        "--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "12",
        "--spec-ngram-mod-n-min", "8", "--spec-ngram-mod-n-max", "32",
    ),
    "ngram-map-k 6/16": (
        "--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "6",
        "--spec-ngram-map-k-size-m", "16", "--spec-ngram-map-k-min-hits", "1",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Round:
    """One cell of one arm in one round; ``decode`` holds the clients' own rates (tokens/s)."""

    workload: str
    clients: int
    decode: list[float]
    tokens: int
    seconds: float
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None

    @classmethod
    def of(cls, workload: str, clients: int, groups: Iterable[Sequence[Reply]]) -> Round:
        """Groups ran one after the other, the replies of a group together."""
        decode: list[float] = []
        drafted: list[int | None] = []
        accepted: list[int | None] = []
        tokens, seconds = 0, 0.0
        for group in groups:
            found = rates(group)
            decode += [rate for r in group if (rate := r.decode_rate) is not None]
            drafted += [r.drafted for r in group]
            accepted += [r.accepted for r in group]
            tokens += found.tokens
            seconds += found.tokens / found.total
        return cls(workload, clients, decode, tokens, seconds, _sum(drafted), _sum(accepted))


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class Asks:
    """The requests of every cell, by round; encoded once, by wager's own tokenizer."""

    def __init__(self, llm: LLM) -> None:
        need = 1 + ROUNDS * (ONE_CLIENT_PROMPTS + MOST_CLIENTS)
        self._all: dict[str, list[Ask]] = {}
        for name in WORKLOADS:
            self._all[name] = []
            for prompt in prompts(RECIPES[name], need, llm.engine.vocab_size):
                params = prompt.params
                if prompt.messages is not None:
                    said = [{"role": r, "content": c} for r, c in prompt.messages]
                    ids = llm.chat_ids(said)
                else:
                    ids = llm.prompt_ids(prompt.text or "")
                self._all[name].append(
                    Ask(
                        ids,
                        params.max_tokens or 1,
                        params.temperature,
                        params.seed or 0,
                        params.ignore_eos,
                    )
                )

    def probe(self, workload: str) -> Ask:
        """Outside every round: to warm up with, and to choose a setting by."""
        return self._all[workload][0]

    def groups(self, workload: str, clients: int, number: int) -> list[list[Ask]]:
        """What is asked one after the other; each group at once."""
        size = ONE_CLIENT_PROMPTS + MOST_CLIENTS
        mine = self._all[workload][1 + number * size : 1 + (number + 1) * size]
        if clients == 1:
            return [[ask] for ask in mine[:ONE_CLIENT_PROMPTS]]
        return [mine[ONE_CLIENT_PROMPTS : ONE_CLIENT_PROMPTS + clients]]


def cells() -> list[tuple[str, int]]:
    return [(workload, clients) for clients in CLIENTS for workload in WORKLOADS]


# wager, in this process


def ask_wager(llm: LLM, asks: Sequence[Ask]) -> list[Reply]:
    """All at once into the engine; replies in order."""
    llm.reset_caches()
    replies: dict[str, Reply] = {}
    for ask in asks:
        params = SamplingParams(
            temperature=ask.temperature, seed=ask.seed, max_tokens=ask.max_tokens,
            ignore_eos=ask.ignore_eos,
        )  # fmt: skip
        started = time.perf_counter()
        replies[llm.engine.add_request(ask.prompt, params)] = Reply(started)
    while llm.engine.has_work():
        for output in llm.engine.step():
            replies[output.request_id].take(output.outputs[0].token_ids, time.perf_counter())
    return list(replies.values())


def wager_rounds(llm: LLM, asks: Asks, number: int) -> Result:
    """Plain and speculative alternate from group to group: A B, B A, A B, ..."""
    arms: dict[str, SpeculationConfig | None] = {"plain": None, "ngram": DEFAULT_SPECULATION}
    found: dict[str, list[Result]] = {name: [] for name in arms}
    for workload, clients in cells():
        replies: dict[str, list[list[Reply]]] = {name: [] for name in arms}
        counts = {name: [0, 0, 0] for name in arms}
        for index, group in enumerate(asks.groups(workload, clients, number)):
            order = list(arms) if (index + number) % 2 == 0 else list(arms)[::-1]
            for name in order:
                llm.set_speculation(arms[name])
                before = llm.engine.stats.snapshot().counts
                replies[name].append(ask_wager(llm, group))
                after = llm.engine.stats.snapshot().counts
                for i, field in enumerate(("drafted", "accepted", "steps")):
                    counts[name][i] += getattr(after, field) - getattr(before, field)
        for name in arms:
            drafted, accepted, steps = counts[name]
            record = asdict(Round.of(workload, clients, replies[name]))
            record |= {"drafted": drafted, "accepted": accepted, "steps": steps}
            found[name].append(record)
    llm.set_speculation(None)
    return {"arms": found}


# Servers


def server_rounds(server: Server, asks: Asks, number: int, chosen: Sequence[str]) -> Result:
    """All cells of the chosen workloads on a running server."""
    warm = asks.probe("copy")
    server.ask(Ask(warm.prompt, 16, ignore_eos=True))
    return {
        "rounds": [
            asdict(
                Round.of(
                    workload,
                    clients,
                    [server.ask_all(group) for group in asks.groups(workload, clients, number)],
                )
            )
            for workload, clients in cells()
            if workload in chosen
        ]
    }


def probe_llama(peers: Peers, kind: str, asks: Asks) -> Result:
    """Decode rate of each n-gram setting, one prompt per workload, and the best of each."""
    found: dict[str, dict[str, float | None]] = {workload: {} for workload in WORKLOADS}
    for name, options in LLAMA_SETTINGS.items():
        with llama_server(peers, kind, options, clients=MOST_CLIENTS, context=CONTEXT) as server:
            for workload in WORKLOADS:
                server.ask(Ask(asks.probe("explain").prompt, 8, ignore_eos=True))
                found[workload][name] = server.ask(asks.probe(workload)).decode_rate
    best = {w: max(by, key=lambda name: by[name] or 0.0) for w, by in found.items()}
    return {"rates": found, "best": best}


def measure(store: Store, llms: dict[str, LLM], peers: Peers) -> Result:
    """All arms, all rounds. Returns by arm the list of its rounds, and the llama.cpp settings."""
    asks = Asks(llms["f32"])
    arms: dict[str, list[Result]] = {}
    settings: Result = {}
    llama = peers.has("llama") and peers.has("models")
    if llama:
        for _, kind in KINDS:
            settings[kind] = store.get(
                f"engines-choice-{kind}", partial(probe_llama, peers, kind, asks)
            )
    for number in range(ROUNDS):
        plan = ["wager f32", "wager int8"]
        plan += [f"llama.cpp {kind}" for _, kind in KINDS] if llama else []
        plan += ["vLLM f32"] if peers.has("vllm") and peers.has("models") else []
        for arm in plan if number % 2 == 0 else plan[::-1]:
            engine, _, kind = arm.partition(" ")
            label = f"engines-{number + 1}-{arm.replace(' ', '-')}"
            if engine == "wager":
                found = store.get(label, partial(wager_rounds, llms[kind], asks, number))
                for name, rounds in found["arms"].items():
                    arms.setdefault(f"{arm} {name}", []).extend(rounds)
            elif engine == "vLLM":
                _vllm(store, peers, asks, number, label, arms)
            else:
                _llama(store, peers, asks, number, label, kind, settings[kind]["best"], arms)
    return {"arms": arms, "settings": settings}


def _vllm(
    store: Store, peers: Peers, asks: Asks, number: int, label: str, arms: dict[str, list[Result]]
) -> None:
    for name, spec in (("plain", None), ("ngram", VLLM_SPECULATION)):

        def run(spec: Mapping[str, Any] | None = spec) -> Result:
            with vllm_server(peers, spec, clients=MOST_CLIENTS, context=CONTEXT) as server:
                found = server_rounds(server, asks, number, WORKLOADS)
                if spec is not None:
                    found["drafted"], found["accepted"] = server.draft_counts()
                    if not found["drafted"]:
                        raise RuntimeError("vLLM drafted nothing: speculation was not active")
                return found

        arms.setdefault(f"vLLM f32 {name}", []).extend(store.get(f"{label}-{name}", run)["rounds"])


def _llama(
    store: Store,
    peers: Peers,
    asks: Asks,
    number: int,
    label: str,
    kind: str,
    best: dict[str, str],
    arms: dict[str, list[Result]],
) -> None:
    settings = {"plain": WORKLOADS} | {
        name: tuple(w for w in WORKLOADS if best[w] == name) for name in sorted(set(best.values()))
    }
    for name, chosen in settings.items():

        def run(name: str = name, chosen: Sequence[str] = chosen) -> Result:
            options = LLAMA_SETTINGS.get(name, ())
            with llama_server(
                peers, kind, options, clients=MOST_CLIENTS, context=CONTEXT
            ) as server:
                return server_rounds(server, asks, number, chosen)

        key = f"{label}-{name.replace(' ', '-').replace('/', '-')}"
        found = store.get(key, run)["rounds"]
        arm = "plain" if name == "plain" else "ngram"
        arms.setdefault(f"llama.cpp {kind} {arm}", []).extend(found)


# Summaries


def figure(result: Result, arm: str, workload: str, clients: int, what: str) -> float | None:
    """``decode``: median of the clients' rates; ``total``: all tokens / all seconds; ``steps``:
    committed tokens per step."""
    rounds = [
        r
        for r in result["arms"].get(arm, ())
        if (r["workload"], r["clients"]) == (workload, clients)
    ]
    if not rounds:
        return None
    if what == "decode":
        own = [rate for r in rounds for rate in r["decode"]]
        return statistics.median(own) if own else None
    tokens = sum(r["tokens"] for r in rounds)
    if what == "steps":
        steps = [r["steps"] for r in rounds]
        return None if None in steps else float(tokens / sum(steps))
    return float(tokens / sum(r["seconds"] for r in rounds))


ENGINES = ("wager f32", "llama.cpp f32", "vLLM f32", "wager int8", "llama.cpp q8_0")


def report(result: Result) -> str:
    """One line per engine, workload and number of clients."""
    rows = []
    for workload in WORKLOADS:
        for clients in CLIENTS:
            for engine in ENGINES:
                plain, ngram = (
                    [
                        figure(result, f"{engine} {m}", workload, clients, w)
                        for w in ("decode", "total")
                    ]
                    for m in ("plain", "ngram")
                )
                kind = engine.split()[-1]
                setting = result["settings"].get(kind, {}).get("best", {}).get(workload)
                rows.append(
                    [workload, clients, engine, plain[0], ngram[0], ratio(ngram[0], plain[0]),
                     plain[1], ngram[1], ratio(ngram[1], plain[1]),
                     figure(result, f"{engine} ngram", workload, clients, "steps"),
                     setting if engine.startswith("llama") else ""]
                )  # fmt: skip
    head = [
        "workload", "clients", "engine", "plain decode", "n-gram decode", "x", "plain total",
        "n-gram total", "x", "tokens/step", "setting",
    ]  # fmt: skip
    return (
        "Whole requests, tokens/s (decode: one client, first token to last, median; total: all "
        "clients, prompts included):\n\n" + table(head, rows)
    )


def aims(result: Result) -> list[Aim]:
    """The lines about copy of the table of aims."""

    def decode(arm: str) -> float | None:
        return figure(result, arm, "copy", 1, "decode")

    found = []
    for ours, theirs, own, label in (("f32", "f32", 6.0, "f32"), ("int8", "q8_0", 4.0, "int8")):
        steps = figure(result, f"wager {ours} ngram", "copy", 1, "steps")
        note = f"{steps:.2f} tokens/step of at most 9" if steps else ""
        mine = decode(f"wager {ours} ngram")
        plain = ratio(mine, decode(f"wager {ours} plain"))
        found.append(at_least(f"copy, k=8, {label}, of own plain", plain, own, note=note))
        peer = ratio(mine, decode(f"llama.cpp {theirs} ngram"))
        found.append(at_least(f"copy, {label}, of llama.cpp {theirs}'s best n-gram", peer, 2.0))
    vllm = ratio(decode("wager f32 ngram"), decode("vLLM f32 ngram"))
    found.append(at_least("copy, f32, of vLLM's n-gram k=8", vllm, 3.0))
    return found
