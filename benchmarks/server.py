"""What the server adds: to the time of a first token, to a token, and to answers with a form.

    python -m benchmarks.server [--weights int8] [--prompts 24] [--skip overhead]

1. The first token with speculation over that without, at 1 and 8 clients: two servers, asked the
   same prompts in turn (A B B A), each with a cache of its own that no prompt is in.
2. Tokens per second at 8 clients through the server over those of the library in this process, in
   turn, without speculation and with it. The server's client works on the same cores.
3. Sixteen requests at a time for JSON of a schema, with n-gram drafts: how many are valid, what
   share of the draft tokens was accepted, and the time against that without drafts.

Ratios within one run; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import jsonschema

from benchmarks.results import FOLDER, Aim, Result, Store, at_least, at_most, table
from benchmarks.serving import MODEL, asked, client, server, text_of
from wager import LLM
from wager.arms import PLAIN, Arm, parse_arms
from wager.backend import Answer, Backend, Load, Prompt
from wager.bench.backend import EngineBackend
from wager.bench.workloads.generated import RECIPES, prompts
from wager.external.url import UrlBackend, UrlOptions

PARTS: Final = ("first", "overhead", "json")
CONTEXT: Final = 2048
DRAFTS: Final = {"method": "auto"}
FIXED: Final = {
    "method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5,
    "controller": "off",
}  # fmt: skip
CLIENTS: Final = (1, 8)
WORKLOADS: Final = ("copy", "explain")
TOKENS: Final = 64
JSON_REQUESTS: Final = 16
JSON_ROUNDS: Final = 4
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "status": {"enum": ["open", "closed", "in progress", "unknown"]},
        **{name: {"type": "integer", "minimum": 0, "maximum": 9999} for name in
           ("apples", "pears", "plums")},
    },
    "required": ["status", "apples", "pears", "plums"],
    "additionalProperties": False,
}  # fmt: skip


def drawn(count: int) -> list[Prompt]:
    """Half to copy, half free text; the same on every machine."""
    each = [prompts(RECIPES[name], count // 2, 49152, 6, TOKENS) for name in WORKLOADS]
    return [prompt for pair in zip(*each, strict=True) for prompt in pair]


@contextmanager
def asking(url: str) -> Iterator[Backend]:
    """A server as a backend; it decodes as it was started to."""
    backend = UrlBackend(UrlOptions(url_off=url))
    backend.start(Arm(PLAIN))
    try:
        yield backend
    finally:
        backend.close()


def run(backend: Backend, load: Sequence[Prompt], clients: int) -> tuple[list[Answer], float]:
    """All answers, in the order of the prompts, and the seconds until the last one was there.

    Raises RuntimeError where one failed.
    """
    started = time.perf_counter()
    found, seconds = {}, 0.0
    for answer in backend.stream(load, Load(clients=clients)):
        if answer.error is not None:
            raise RuntimeError(f"{answer.prompt_id}: {answer.error}")
        found[answer.prompt_id] = answer
        seconds = time.perf_counter() - started
    return [found[prompt.id] for prompt in load], seconds


# 1. The first token


def first_token(options: Sequence[str], count: int) -> Result:
    """By number of clients: median milliseconds to the first token of both arms, and the median of
    the ratios of single prompts."""
    result: Result = {}
    load = drawn(count)
    with (
        server(*options) as off,
        server(*options, speculation=DRAFTS) as on,
        asking(off.url) as plain,
        asking(on.url) as drafting,
    ):
        for clients in CLIENTS:
            times: dict[str, list[list[float]]] = {"off": [], "on": []}
            for backend in (plain, drafting):
                run(backend, load[:clients], clients)  # the controller's first plain steps
            for name in ("off", "on", "on", "off"):
                answers, _ = run(plain if name == "off" else drafting, load, clients)
                times[name].append([1e3 * (a.first_token_s or 0.0) for a in answers])
            means = {
                name: [statistics.fmean(both) for both in zip(*runs, strict=True)]
                for name, runs in times.items()
            }
            ratios = [b / a for a, b in zip(means["off"], means["on"], strict=True)]
            result[str(clients)] = {
                "off": statistics.median(means["off"]),
                "on": statistics.median(means["on"]),
                "ratio": statistics.median(ratios),
            }
    return result


# 2. Tokens per second


def overhead(options: Sequence[str], count: int, weights: str) -> Result:
    """By arm: tokens per second of the library and through the server, medians of two runs each."""
    result: Result = {}
    load = drawn(count)
    llm = LLM(MODEL, weights=weights, max_model_len=CONTEXT)
    library = EngineBackend(llm)
    try:
        for name, arm, config in (
            ("plain", Arm(PLAIN), None),
            ("ngram", parse_arms("ngram:k=8,min=2,max=5")[0], FIXED),
        ):
            with server(*options, speculation=config) as running, asking(running.url) as remote:
                rates: dict[str, list[float]] = {"library": [], "server": []}
                for side in ("library", "server", "server", "library"):
                    if side == "library":
                        library.start(arm)
                    answers, seconds = run(library if side == "library" else remote, load, 8)
                    rates[side].append(sum(a.tokens or 0 for a in answers) / seconds)
                result[name] = {side: statistics.median(found) for side, found in rates.items()}
    finally:
        llm.close()
    return result


# 3. JSON of a schema


def json_body(number: int, drafts: bool) -> dict[str, Any]:
    """One of many that share their beginning and their form."""
    example = json.dumps({"status": "closed", "apples": 12, "pears": 40, "plums": 7})
    text = (
        f"Report {number}: {number % 7 + 2} apples, {number % 11} pears and {number % 5 + 20} "
        f"plums are left, and the case is open. Write the report as JSON, as in: {example}"
    )
    form = {"name": "report", "schema": SCHEMA, "strict": True}
    return {
        "messages": [{"role": "user", "content": text}], "temperature": 0.7, "seed": number,
        "max_tokens": 200, "response_format": {"type": "json_schema", "json_schema": form},
        "speculation": {"enabled": drafts},
    }  # fmt: skip


def json_answers(options: Sequence[str]) -> Result:
    """Sixteen at a time, with drafts and without, in turn."""
    counts = {"asked": 0, "valid": 0, "same": 0, "drafted": 0, "accepted": 0}
    seconds: dict[bool, list[float]] = {False: [], True: []}

    async def batch(url: str, start: int, drafts: bool) -> list[dict[str, Any]]:
        async with client(JSON_REQUESTS) as http:
            bodies = [json_body(start + n, drafts) for n in range(JSON_REQUESTS)]
            return list(await asyncio.gather(*(asked(http, url, body) for body in bodies)))

    with server(*options, speculation=FIXED) as running:
        asyncio.run(batch(running.url, 9000, True))
        for number in range(JSON_ROUNDS):
            found: dict[bool, list[dict[str, Any]]] = {}
            for drafts in (False, True) if number % 2 else (True, False):
                started = time.perf_counter()
                found[drafts] = asyncio.run(batch(running.url, 100 * number, drafts))
                seconds[drafts].append(time.perf_counter() - started)
            for plain, reply in zip(found[False], found[True], strict=True):
                counts["asked"] += 1
                counts["valid"] += valid(text_of(reply)[0])
                counts["same"] += text_of(plain) == text_of(reply)
                counts["drafted"] += reply["speculation"]["drafted"]
                counts["accepted"] += reply["speculation"]["accepted"]
    return {
        **counts,
        "plain_s": statistics.median(seconds[False]),
        "drafts_s": statistics.median(seconds[True]),
    }


def valid(answer: tuple[str, str | None]) -> bool:
    """Whether it ended by itself and keeps to the schema."""
    text, reason = answer
    if reason != "stop":
        return False
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


# What is printed


def report(found: Result) -> str:
    """A table for each part that was measured."""
    sections = []
    if "first" in found:
        rows = [[clients, r["off"], r["on"], r["ratio"]] for clients, r in found["first"].items()]
        head = ["clients", "plain, ms", "speculation, ms", "ratio of single prompts, median"]
        sections.append(f"Time to the first token (measured):\n\n{table(head, rows)}")
    if "overhead" in found:
        rows = [[arm, r["library"], r["server"], 100 * (1 - r["server"] / r["library"])]
                for arm, r in found["overhead"].items()]  # fmt: skip
        head = ["arm", "library, tokens/s", "server, tokens/s", "lost, %"]
        sections.append(f"8 clients (measured):\n\n{table(head, rows)}")
    if "json" in found:
        r = found["json"]
        share = r["accepted"] / r["drafted"] if r["drafted"] else None
        rows = [[r["asked"], r["valid"], r["same"], share, r["plain_s"] / r["drafts_s"]]]
        head = ["requests", "valid", "equal to plain ones", "share of drafts accepted", "speed-up"]
        sections.append(f"JSON of a schema, 16 at a time (measured):\n\n{table(head, rows)}")
    return "\n\n".join(sections)


def aims(found: Result) -> list[Aim]:
    """What was to be reached."""
    made = []
    for clients, r in found.get("first", {}).items():
        made.append(at_most(f"first token, speculation over plain, {clients} clients", r["ratio"],
                            1.05, "x"))  # fmt: skip
    if "overhead" in found:
        r = found["overhead"]["plain"]
        lost = 100 * (1 - r["server"] / r["library"])
        made.append(at_most("server over library, 8 clients, tokens/s lost", lost, 3.0, " %"))
    if "json" in found:
        r = found["json"]
        made.append(at_least("JSON answers that are valid", 100 * r["valid"] / r["asked"], 100.0,
                             " %"))  # fmt: skip
        made.append(at_least("and equal to plain ones", 100 * r["same"] / r["asked"], 100.0, " %"))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--skip", default="", help=f"comma list of: {', '.join(PARTS)}")
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    given = parser.parse_args()
    skipped = {part for part in given.skip.split(",") if part}
    if unknown := skipped - set(PARTS):
        parser.error(f"--skip: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    options = ["--weights", given.weights, "--max-model-len", str(CONTEXT)]
    store = Store(given.fresh, FOLDER / "server")
    measures = {
        "first": lambda: first_token(options, given.prompts),
        "overhead": lambda: overhead(options, given.prompts, given.weights),
        "json": lambda: json_answers(options),
    }
    found = {part: store.get(f"{part}-{given.weights}-{given.prompts}", measures[part])
             for part in PARTS if part not in skipped}  # fmt: skip
    print(report(found))
    print()
    print(table(["what", "aim", "found", "met"], [aim.row for aim in aims(found)]))


if __name__ == "__main__":
    main()
