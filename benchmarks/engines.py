"""Whole requests beside llama-server and vLLM: copy and explain, 1 and 8 clients.

Every engine gets the same token ids, sampling settings and limits (`wager.bench.workloads`), the
same two threads, an empty prefix cache, and the machine for itself; servers run one after the
other, and the second round goes through the arms backwards with other prompts. Peers are asked over
HTTP on the loopback interface, wager runs in this process. Tokens are counted by their ids. Each
engine keeps its own KV type (llama.cpp f16; vLLM and wager f32 with f32 weights).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from benchmarks.peers import Peers, arm, ask, running
from benchmarks.results import Aim, Result, Store, at_least, ratio, table
from wager import LLM, SamplingParams
from wager.arms import Arm
from wager.backend import Answer, Backend, Counters, Prompt
from wager.bench.backend import EngineBackend
from wager.bench.counters import total
from wager.bench.latency import count_of, decode
from wager.bench.measure import DEFAULT_ARM
from wager.bench.workloads.generated import RECIPES, prompts

WORKLOADS = ("copy", "explain")
CLIENTS = (1, 8)
MOST_CLIENTS = max(CLIENTS)
ONE_CLIENT_PROMPTS = 3
ROUNDS = 2
CONTEXT = 2048
KINDS = (("f32", "f32"), ("int8", "q8_0"))
# llama.cpp drafts from the text by several methods; the fastest of these on each workload counts.
LLAMA_SETTINGS = {
    "ngram-simple 12/48": "ngram-simple:size-n=12,size-m=48,min-hits=1",
    "ngram-simple 3/16": "ngram-simple:size-n=3,size-m=16,min-hits=1",
    "ngram-mod 24/48/64": "ngram-mod:n-match=24,n-min=48,n-max=64",
    "ngram-mod 12/8/32": "ngram-mod:n-match=12,n-min=8,n-max=32",
    "ngram-map-k 6/16": "ngram-map-k:size-n=6,size-m=16,min-hits=1",
}


def llama_arm(name: str) -> Arm:
    """The arm of a name in LLAMA_SETTINGS, or plain: options there go without ``spec-METHOD-``."""
    method, _, options = LLAMA_SETTINGS.get(name, "plain").partition(":")
    spelt = ",".join(f"spec-{method}-{option}" for option in options.split(",") if option)
    return arm(f"{method}:{spelt}" if spelt else method)


@dataclass(frozen=True)
class Rates:
    """One round of replies that ran together. Rates are tokens per second.

    ``decode`` are the clients' own rates, first token to last; ``total`` counts the tokens of all
    clients from the first request to the last token, prompts included.
    """

    decode: list[float]
    total: float
    tokens: int


def rates(answers: Sequence[Answer]) -> Rates:
    """Sum up replies that were asked for at the same time."""
    own = [1.0 / found.per_token for a in answers if (found := decode(a)) is not None]
    tokens = sum(count_of(a) or 0 for a in answers)
    return Rates(own, tokens / max(a.chunks[-1][0] for a in answers), tokens)


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
    def of(
        cls, workload: str, clients: int, groups: Iterable[Sequence[Answer]], counted: Counters
    ) -> Round:
        """Groups ran one after the other, the replies of a group together."""
        decoded: list[float] = []
        tokens, seconds = 0, 0.0
        for group in groups:
            found = rates(group)
            decoded += found.decode
            tokens += found.tokens
            seconds += found.tokens / found.total
        return cls(
            workload, clients, decoded, tokens, seconds,
            counted.drafted, counted.accepted, counted.steps,
        )  # fmt: skip


class Asks:
    """The requests of every cell, by round; encoded once, by wager's own tokenizer."""

    def __init__(self, llm: LLM) -> None:
        need = 1 + ROUNDS * (ONE_CLIENT_PROMPTS + MOST_CLIENTS)
        self._all = {
            name: [
                _encoded(prompt, llm)
                for prompt in prompts(RECIPES[name], need, llm.engine.vocab_size)
            ]
            for name in WORKLOADS
        }

    def probe(self, workload: str) -> Prompt:
        """Outside every round: to warm up with, and to choose a setting by."""
        return self._all[workload][0]

    def groups(self, workload: str, clients: int, number: int) -> list[list[Prompt]]:
        """What is asked one after the other; each group at once."""
        size = ONE_CLIENT_PROMPTS + MOST_CLIENTS
        mine = self._all[workload][1 + number * size : 1 + (number + 1) * size]
        if clients == 1:
            return [[prompt] for prompt in mine[:ONE_CLIENT_PROMPTS]]
        return [mine[ONE_CLIENT_PROMPTS : ONE_CLIENT_PROMPTS + clients]]


def _encoded(prompt: Prompt, llm: LLM) -> Prompt:
    """The same request in token ids, so that every engine computes the same."""
    if prompt.messages is not None:
        ids = llm.chat_ids([{"role": role, "content": text} for role, text in prompt.messages])
    else:
        ids = llm.prompt_ids(prompt.text or "")
    return replace(prompt, messages=None, text=None, token_ids=tuple(ids))


def cells() -> list[tuple[str, int]]:
    return [(workload, clients) for clients in CLIENTS for workload in WORKLOADS]


# wager, in this process


def wager_rounds(llm: LLM, asks: Asks, number: int) -> Result:
    """Plain and speculative alternate from group to group: A B, B A, A B, ..."""
    backend = EngineBackend(llm)
    arms = {"plain": arm(), "ngram": DEFAULT_ARM}
    found: dict[str, list[Result]] = {name: [] for name in arms}
    for workload, clients in cells():
        answers: dict[str, list[list[Answer]]] = {name: [] for name in arms}
        counts: dict[str, list[Counters]] = {name: [] for name in arms}
        for index, group in enumerate(asks.groups(workload, clients, number)):
            order = list(arms) if (index + number) % 2 == 0 else list(arms)[::-1]
            for name in order:
                backend.start(arms[name])
                before = backend.counters()
                answers[name].append(ask(backend, group))
                counts[name].append(backend.counters().since(before))
        for name in arms:
            found[name].append(
                asdict(Round.of(workload, clients, answers[name], total(counts[name])))
            )
    llm.set_speculation(None)
    return {"arms": found}


# Servers


def server_rounds(server: Backend, asks: Asks, number: int, chosen: Sequence[str]) -> Result:
    """All cells of the chosen workloads on a running server."""
    warm_up(server, asks.probe("copy"), 16)
    rounds = []
    for workload, clients in cells():
        if workload in chosen:
            before = server.counters()
            answers = [ask(server, group) for group in asks.groups(workload, clients, number)]
            counted = server.counters().since(before)
            rounds.append(asdict(Round.of(workload, clients, answers, counted)))
    return {"rounds": rounds}


def warm_up(server: Backend, prompt: Prompt, tokens: int) -> None:
    ask(server, [replace(prompt, params=SamplingParams(max_tokens=tokens, ignore_eos=True))])


def probe_llama(peers: Peers, kind: str, asks: Asks) -> Result:
    """Decode rate of each n-gram setting, one prompt per workload, and the best of each."""
    found: dict[str, dict[str, float | None]] = {workload: {} for workload in WORKLOADS}
    for name in LLAMA_SETTINGS:
        server = peers.llama_server(kind, clients=MOST_CLIENTS, context=CONTEXT)
        with running(server, llama_arm(name)):
            for workload in WORKLOADS:
                warm_up(server, asks.probe("explain"), 8)
                (answer,) = ask(server, [asks.probe(workload)])
                took = decode(answer)
                found[workload][name] = 1.0 / took.per_token if took else None
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
        for name in plan if number % 2 == 0 else plan[::-1]:
            engine, _, kind = name.partition(" ")
            label = f"engines-{number + 1}-{name.replace(' ', '-')}"
            if engine == "wager":
                found = store.get(label, partial(wager_rounds, llms[kind], asks, number))
                for which, rounds in found["arms"].items():
                    arms.setdefault(f"{name} {which}", []).extend(rounds)
            elif engine == "vLLM":
                _vllm(store, peers, asks, number, label, arms)
            else:
                _llama(store, peers, asks, number, label, kind, settings[kind]["best"], arms)
    return {"arms": arms, "settings": settings}


def _vllm(
    store: Store, peers: Peers, asks: Asks, number: int, label: str, arms: dict[str, list[Result]]
) -> None:
    for name, wanted in (("plain", arm()), ("ngram", DEFAULT_ARM)):

        def run(wanted: Arm = wanted) -> Result:
            server = peers.vllm_server(clients=MOST_CLIENTS, context=CONTEXT)
            with running(server, wanted):
                found = server_rounds(server, asks, number, WORKLOADS)
            if wanted.speculation is not None and not any(r["drafted"] for r in found["rounds"]):
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
            server = peers.llama_server(kind, clients=MOST_CLIENTS, context=CONTEXT)
            with running(server, llama_arm(name)):
                return server_rounds(server, asks, number, chosen)

        key = f"{label}-{name.replace(' ', '-').replace('/', '-')}"
        found = store.get(key, run)["rounds"]
        which = "plain" if name == "plain" else "ngram"
        arms.setdefault(f"llama.cpp {kind} {which}", []).extend(found)


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
