"""Replayed by the rule of a real engine, its own answers give its own counts and drafts."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from benchmarks.peers import Peers

from tests.engines.conftest import require
from tests.recipes import prompts
from wager.arms import parse_arms
from wager.backend import Prompt
from wager.bench.logs.read import read_log
from wager.bench.replay.rules import settings
from wager.bench.replay.run import replayed
from wager.bench.replay.tokens import open_vocabulary
from wager.bench.workloads.generated import chosen
from wager.bench.workloads.generated import prompts as drawn
from wager.config import SamplingParams
from wager.drafters.base import DraftQuery
from wager.drafters.ngram import NgramDrafter
from wager.external.server import ServerBackend
from wager.types import DraftCounts

pytestmark = [pytest.mark.engines, pytest.mark.model]

MODEL = "smollm2-135m"
ARM = "ngram:k=8,min=3,max=3"
"""That of the fixture."""


def test_counts_equal_those_of_llama_server(llama: ServerBackend, tmp_path: Path) -> None:
    vocabulary = open_vocabulary(MODEL)
    tokenizer = vocabulary.tokenizer
    params = SamplingParams(temperature=0.0, max_tokens=48)
    requests = [tuple(ids) for ids in prompts(3, 1000, seed=2)]
    for recipe in chosen(["copy", "rename", "explain"]):
        for one in drawn(recipe, 2, tokenizer.vocab_size):
            messages = [{"role": role, "content": text} for role, text in one.messages or ()]
            text = tokenizer.chat(messages) if messages else one.text or ""
            requests.append(tuple(tokenizer.encode(text, add_special=not messages)))
    log, told = tmp_path / "log.jsonl", []
    with log.open("w") as file:
        for number, ids in enumerate(requests):
            path, body = llama.request(Prompt(str(number), params, token_ids=ids))
            reply = llama.post(path, body | {"stream": False})
            timings = reply["timings"]
            told.append((timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)))
            file.write(json.dumps({"request": {"prompt": list(ids)}, "response": reply}) + "\n")
    found = []
    for entry in read_log(log):
        replay = replayed(parse_arms(ARM), vocabulary, "llamacpp")
        replay.run([entry])
        assert not replay.bad
        counts: DraftCounts = replay.arms[0].total.counts
        found.append((counts.drafted, counts.accepted))
    assert found == told
    assert sum(drafted for drafted, _ in told) > sum(accepted for _, accepted in told) > 0


VLLM_DRAFTS = """
import json, sys
import numpy
from vllm.v1.spec_decode import ngram_proposer
find = ngram_proposer._find_longest_matched_ngram_and_propose_tokens
for line in sys.stdin:
    text, low, high, k = json.loads(line)
    found = find(numpy.array(text, dtype=numpy.int32), low, high, 1 << 20, k)
    print(json.dumps([int(token) for token in found]))
"""


def test_drafts_equal_those_of_vllm(peers: Peers) -> None:
    """The function that looks up, alone: no server is started."""
    require(peers, "vllm")
    rng, cases = random.Random(0), []
    for _ in range(3000):
        alphabet = rng.choice([2, 3, 5, 12])
        text = [rng.randrange(alphabet) for _ in range(rng.randint(1, 60))]
        low = rng.randint(1, 4)
        cases.append((text, low, rng.randint(low, 6), rng.randint(1, 9)))
    run = subprocess.run(
        [str(peers.root / "vllm/bin/python"), "-c", VLLM_DRAFTS],
        input="\n".join(map(json.dumps, cases)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    # What it says about the machine goes to standard output too.
    theirs = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert len(theirs) == len(cases)
    ours = []
    for text, low, high, k in cases:
        (arm,) = parse_arms(f"ngram:k={k},min={low},max={high}")
        config = settings(arm, "vllm").config
        assert config is not None
        drafter = NgramDrafter(config.methods[0], 100)
        drafter.start(1, text, "")
        ours.append(list(drafter.propose([DraftQuery(1, len(text), k)])[0].tokens))
    assert ours == theirs
    assert sum(bool(draft) for draft in ours) > 1000
