"""Does the server stand load for a long time? Random requests, many of them given up.

    python -m benchmarks.soak [--minutes 10] [--clients 32] [--weights int8] [--seed 1]

Clients in a closed loop ask for everything at random: both routes, streamed or not, temperatures,
penalties, stops, schemas, and per request another draft length, another method or no drafts at all.
A part of the requests is given up at a random moment. Afterwards a sample of the answers is asked
for again, alone and without speculation: they must be equal. The KV blocks must all be back, and
the memory of the process must not have grown from the second third to the last, which less than six
minutes do not tell. Exit status 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.results import Aim, at_most, number, say, table
from benchmarks.serving import CHAT, TEXT, Server, asked, chunks, client, server, text_of
from wager.bench.workloads.generated import RECIPES, prompts

KINDS: Final = ("copy", "rename", "edit", "explain", "story", "words", "json")
METHODS: Final = ("suffix", "ngram")
SPECULATION: Final = {
    "method": list(METHODS), "num_speculative_tokens": 16, "controller": "off",
    "prompt_lookup_min": 2, "prompt_lookup_max": 5,
    # Past answers fill their memory within the run, so that it is flat afterwards.
    "suffix_decoding_max_bytes": 16 << 20,
}  # fmt: skip
SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 24},
                   "count": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["name", "count"], "additionalProperties": False,
}  # fmt: skip
CONTEXT: Final = 2048
KV_MEMORY: Final = "192MiB"
"""Less than what all clients together could ask for."""
SETTLED_S: Final = 120.0
"""Until then memory grows in any case, as the allocator's arenas do under a load that is new."""
GIVEN_UP: Final = 0.2
EACH_S: Final = 2.0
GROWTH: Final = 0.03


@dataclass
class Soak:
    """What happened. ``kept`` is a fair sample of the answers: each with its request."""

    sample: int
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    kept: list[tuple[dict[str, Any], list[tuple[str, str | None]]]] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)

    def answered(self, body: dict[str, Any], reply: Mapping[str, Any]) -> None:
        self.counts["answered"] += 1
        usage, told = reply["usage"], reply["speculation"]
        self.counts["tokens"] += usage["completion_tokens"]
        self.counts["drafted"] += told["drafted"]
        self.counts["accepted"] += told["accepted"]
        entry = (body, text_of(reply))
        if len(self.kept) < self.sample:
            self.kept.append(entry)
        elif (place := self.rng.randrange(self.counts["answered"])) < self.sample:
            self.kept[place] = entry


class Requests:
    """Bodies without end, the same for the same seed."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._made = 0
        self._vocab_size = vocab_size
        self._stock: list[Any] = []

    def next(self) -> dict[str, Any]:
        """One body."""
        rng = self._rng
        if not self._stock:
            for kind in KINDS:
                self._stock += prompts(RECIPES[kind], 40, self._vocab_size, self._seed + self._made)
            rng.shuffle(self._stock)
        prompt = self._stock.pop()
        self._made += 1
        body: dict[str, Any] = {"seed": self._made, "max_tokens": rng.randint(4, 128)}
        if prompt.messages is not None:
            body["messages"] = [{"role": r, "content": text} for r, text in prompt.messages]
        else:
            body["prompt"] = prompt.text if prompt.text is not None else list(prompt.token_ids)
        body["temperature"] = rng.choice([0, 0, 0.7, 1.0])
        self._vary(body)
        own = rng.randrange(6)
        if own == 0:
            body["speculation"] = {"enabled": False}
        elif own < 4:
            body["speculation"] = {"num_speculative_tokens": rng.randint(1, 16)}
        elif own == 4:
            body["speculation"] = {"method": rng.choice(METHODS)}
        if rng.random() < 0.5:
            body.update(stream=True, stream_options={"include_usage": True})
        return body

    def _vary(self, body: dict[str, Any]) -> None:
        rng = self._rng
        for name, share, values in (
            ("top_p", 0.2, (0.8, 0.95)), ("top_k", 0.2, (20, 50)), ("min_p", 0.1, (0.05,)),
            ("frequency_penalty", 0.1, (0.5, -0.5)), ("presence_penalty", 0.1, (0.6,)),
            ("repetition_penalty", 0.1, (1.1,)), ("stop", 0.15, (["."], ["\n\n", " the"])),
            ("n", 0.1, (2,)), ("ignore_eos", 0.2, (True,)), ("min_tokens", 0.1, (4,)),
        ):  # fmt: skip
            if rng.random() < share:
                body[name] = rng.choice(values)
        if "messages" in body and rng.random() < 0.1:
            body.pop("min_tokens", None)
            form = {"name": "one", "schema": SCHEMA, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}


async def fill(url: str, tokens: int) -> None:
    """Use every KV block once: what was never written to takes no memory yet, and would look like
    a leak later."""
    async with client(1) as http:
        for number in range(-(-tokens // (CONTEXT - 8))):
            ids = random.Random(number).choices(range(1000, 49000), k=CONTEXT - 8)
            await asked(http, url, {"prompt": ids, "max_tokens": 1})


async def load(running: Server, soak: Soak, requests: Requests, minutes: float, many: int) -> None:
    """Ask for so long, with so many clients."""
    until = time.monotonic() + 60 * minutes
    async with client(many) as http:

        async def one() -> None:
            while time.monotonic() < until:
                body = requests.next()
                try:
                    if soak.rng.random() < GIVEN_UP:
                        await give_up(http, running.url, body, soak)
                    else:
                        soak.answered(body, await asked(http, running.url, body))
                except Exception as error:
                    soak.counts["errors"] += 1
                    soak.errors.append(f"{type(error).__name__}: {error} to {body}"[:500])

        async def watch() -> None:
            began = time.monotonic()
            while True:
                soak.memory.append((time.monotonic() - began, running.resident))
                await asyncio.sleep(EACH_S)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(one() for _ in range(many)))
        watching.cancel()


async def give_up(http: Any, url: str, body: dict[str, Any], soak: Soak) -> None:
    """Go away: after some events of a stream, or after a random time."""
    soak.counts["given up"] += 1
    path = CHAT if "messages" in body else TEXT
    if body.get("stream"):
        left = soak.rng.randint(0, 40)
        async with aclosing(chunks(http, url + path, body)) as events:
            async for _ in events:
                left -= 1
                if left < 0:
                    return
        return
    try:
        await asyncio.wait_for(asked(http, url, body), soak.rng.expovariate(2.0))
    except asyncio.TimeoutError:
        return


async def again(url: str, soak: Soak) -> list[str]:
    """The sample once more, each alone and without speculation: what differs."""
    different = []
    async with client(1) as http:
        for body, text in soak.kept:
            plain = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
            plain["speculation"] = {"enabled": False}
            found = text_of(await asked(http, url, plain))
            if found != text:
                different.append(f"{body}: {text!r} is {found!r} alone"[:1000])
    return different


def settled(running: Server) -> dict[str, float]:
    """The metrics once nothing runs or waits any more; at most a minute is waited for that."""
    until = time.monotonic() + 60
    while True:
        found = running.metrics()
        busy = found["wager:num_requests_running"] + found["wager:num_requests_waiting"]
        if not busy or time.monotonic() > until:
            return found
        time.sleep(0.2)


def growth(memory: list[tuple[float, int]]) -> float | None:
    """How much larger the process was in the last third than in the second, by medians. None where
    the second one begins too early to tell."""
    third = len(memory) // 3
    if not third or memory[third][0] < SETTLED_S:
        return None
    middle = statistics.median(size for _, size in memory[third : 2 * third])
    last = statistics.median(size for _, size in memory[2 * third :])
    return last / middle - 1


def report(
    soak: Soak, seconds: float, found: Mapping[str, float], different: list[str]
) -> tuple[str, list[Aim]]:
    """The figures, and what had to hold."""
    counts = soak.counts
    mib = [size / (1 << 20) for _, size in soak.memory]
    grown = growth(soak.memory)
    rows: list[list[object]] = [
        ["seconds", seconds],
        ["requests answered", counts["answered"]],
        ["given up by their client", counts["given up"]],
        ["errors", counts["errors"]],
        ["tokens/s of answered requests", counts["tokens"] / seconds],
        ["share of draft tokens accepted",
         counts["accepted"] / counts["drafted"] if counts["drafted"] else None],
        ["answers asked for again", len(soak.kept)],
        ["memory, MiB: first, median, last", f"{mib[0]:.0f}, {statistics.median(mib):.0f}, "
                                             f"{mib[-1]:.0f}"],
        ["preemptions", found.get("wager:num_preemptions_total", math.nan)],
    ]  # fmt: skip
    aims = [
        at_most("answers that differ from their solo reruns", float(len(different)), 0),
        at_most("errors", float(counts["errors"]), 0),
        at_most("share of KV blocks in use afterwards", found["wager:kv_cache_usage_perc"], 0),
        at_most("memory, last third over the second", grown, GROWTH),
    ]
    return table(["what", "figure"], [[a, number(b)] for a, b in rows]), aims


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--sample", type=int, default=200, help="answers to ask for again")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    soak = Soak(options.sample, random.Random(options.seed))
    with server(
        "--weights",
        options.weights,
        "--max-model-len",
        str(CONTEXT),
        "--kv-memory",
        KV_MEMORY,
        speculation=SPECULATION,
    ) as running:
        say(running.ready)
        asyncio.run(fill(running.url, running.kv_tokens()))
        requests = Requests(options.seed, 49152)
        started = time.monotonic()
        asyncio.run(load(running, soak, requests, options.minutes, options.clients))
        seconds = time.monotonic() - started
        found = settled(running)
        say(f"{soak.counts['answered']} answers; asking for {len(soak.kept)} of them again")
        different = asyncio.run(again(running.url, soak))
    text, aims = report(soak, seconds, found, different)
    print(text)
    print()
    print(table(["what", "aim", "found", "met"], [aim.row for aim in aims]))
    for line in (*soak.errors[:10], *different[:10]):
        print(line, file=sys.stderr)
    sys.exit(0 if all(aim.met is not False for aim in aims) else 1)


if __name__ == "__main__":
    main()
