"""The other projects' drafters behind the clock of `benchmarks.streams`, in their own Python.

Run by `benchmarks.drafters`; reads one JSON object a line and answers each with one. Imported are
the libraries as they were installed, and they are called as vLLM 0.32 calls them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.streams import LOOKUP, Case, K, Subject, build, play

DEPTH, CACHED, LEAST = 24, 10_000, 0.1
"""vLLM's defaults for suffix decoding."""


class Rows:
    """vLLM's array of all token ids: its model runner keeps it, whatever drafts."""

    def __init__(self, case: Case) -> None:
        import numpy as np

        self.tokens = np.zeros((case.batch, case.room), np.int32)
        self.lengths = np.zeros(case.batch, np.int32)

    def append(self, request: int, tokens: list[int]) -> None:
        start = self.lengths[request]
        end = start + len(tokens)
        self.tokens[request, start:end] = tokens
        self.lengths[request] = end


class VllmNgram(Subject):
    """vLLM's `ngram`; observing is what its model runner does with committed tokens."""

    def __init__(self, case: Case) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        shortest, longest = LOOKUP
        config: Any = SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=K
            ),
            model_config=SimpleNamespace(max_model_len=case.room + K),
            scheduler_config=SimpleNamespace(max_num_seqs=case.batch),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
        self.proposer = NgramProposer(config)
        self.rows = Rows(case)
        self.sampled = [[0]] * case.batch
        self.propose()  # the first call compiles

    def start(self, request: int, prompt: list[int]) -> None:
        self.rows.append(request, prompt)

    def observe(self, request: int, tokens: list[int]) -> None:
        self.rows.append(request, tokens)

    def propose(self) -> list[int]:
        rows = self.rows
        drafts = self.proposer.propose(K, self.sampled, rows.lengths, rows.tokens)
        return [len(draft) for draft in drafts]

    def sizes(self) -> tuple[int | None, int | None]:
        return self.rows.tokens.nbytes, None


class ArcticSuffix(Subject):
    """arctic-inference's suffix decoding. It takes answers in token by token, so past answers cost
    nothing beside observing. The array of token ids is the model runner's and not timed."""

    def __init__(self, case: Case) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=CACHED)
        self.rows = Rows(case)
        self.waiting: list[tuple[int, list[int]]] = []

    def learn(self, answers: list[list[int]]) -> float | None:
        for number, answer in enumerate(answers):
            name = f"past {number}"
            self.cache.start_request(name, answer[:1])
            self.cache.add_active_response(name, answer)
            self.cache.stop_request(name)
        return None

    def start(self, request: int, prompt: list[int]) -> None:
        self.rows.append(request, prompt)
        self.cache.start_request(request, self.rows.tokens[request, : len(prompt)])

    def observe(self, request: int, tokens: list[int]) -> None:
        self.cache.add_active_response(request, tokens)
        self.waiting.append((request, tokens))

    def prepare(self, lengths: list[int]) -> None:
        for request, tokens in self.waiting:
            self.rows.append(request, tokens)
        self.waiting.clear()

    def propose(self) -> list[int]:
        found = []
        tokens, lengths = self.rows.tokens, self.rows.lengths
        for request in range(len(lengths)):
            end = lengths[request]
            pattern = tokens[request, max(0, end - DEPTH) : end]
            draft = self.cache.speculate(
                request, pattern, max_spec_tokens=K, max_spec_factor=1.0, min_token_prob=LEAST
            )
            found.append(len(draft.token_ids))
        return found

    def sizes(self) -> tuple[int | None, int | None]:
        # Counted by the library itself; other releases may not.
        trees = self.cache._local_trees.values()
        if not all(hasattr(tree, "estimate_memory") for tree in trees):
            return None, None
        texts = sum(tree.estimate_memory() for tree in trees)
        return texts, self.cache._global_tree.estimate_memory()


ARMS: dict[str, tuple[type[Any], bool]] = {
    "vLLM ngram": (VllmNgram, False),
    "arctic": (ArcticSuffix, False),
    "arctic, warm": (ArcticSuffix, True),
}
"""By name: the subject, and whether it takes in past answers first."""


def main() -> None:
    # Libraries print: what they say must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    case: Case | None = None
    subjects: dict[str, Subject] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        if "case" in asked:
            subjects.clear()
            case = Case(**asked["case"])
            answer = {}
            for name in asked["arms"]:
                make, warm = ARMS[name]
                started = time.perf_counter()
                subjects[name] = make(case)
                answer[name] = build(subjects[name], case, warm)
                print(f"{name}: built in {time.perf_counter() - started:.1f} s", file=sys.stderr)
        else:
            assert case is not None
            answer = play(subjects[asked["arm"]], case, asked["first"], asked["last"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
