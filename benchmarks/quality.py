"""What int8 and int4 cost in quality: KL divergence to f32 and perplexity, beside llama.cpp's
q8_0 and q4_1.

    python -m benchmarks.quality [--chunks 40]

The method is that of llama.cpp's `llama-perplexity --kl-divergence`, done by it for q8_0 and q4_1
and here for int8 and int4: the text is cut into windows of 512 tokens, each computed from an empty
context, and the positions from the middle of a window to its last but one count (255 per window; 40
windows are 10,200 counted tokens). KL is sum p log(p / q), p of that engine's own f32, q of its
rounded weights, in natural units, averaged over the positions. Weights and KV types are those that
each engine takes by itself: f16 keys and values in both, unless the weights are f32.

All weights come from one 4-bit file, so in the layers int4 and q4_1 are the weights of f32: what
they lose is in the activations.

The text is the language reference that CPython ships as `pydoc_data.topics`, in order of topic;
its hash is part of the result, as it differs between versions of Python.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import Peers
from benchmarks.results import Aim, Result, at_most, ratio, table
from wager import LLM

WINDOW = 512
CHUNKS = 40
FIRST = WINDOW // 2
# (our weights, llama.cpp's kind)
PAIRS = (("int8", "q8_0"), ("int4", "q4_1"))


def text(chunks: int) -> str:
    """Enough of it for that many windows, at 3 to 6 characters a token."""
    return "\n\n".join(topics[name] for name in sorted(topics))[: 6 * WINDOW * chunks]


def windows(llm: LLM, chunks: int) -> list[list[int]]:
    """The token ids of each window."""
    ids = llm.tokenizer.encode(text(chunks), add_special=False)
    if len(ids) < chunks * WINDOW:
        raise ValueError(f"the text has {len(ids)} tokens, {chunks * WINDOW} are needed")
    return [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(chunks)]


def log_probabilities(llm: LLM, window: Sequence[int]) -> NDArray[np.float64]:
    """Natural log-probabilities of the counted positions, float64 [WINDOW - 1 - FIRST, V]."""
    logits = llm.logits(window)[FIRST : WINDOW - 1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


class Score:
    """What one window after the other says of ``q`` beside ``p``; see `log_probabilities`."""

    def __init__(self) -> None:
        self._divergences: list[NDArray[np.float64]] = []
        self._surprise = np.zeros(2)
        self._same = 0

    def add(self, p: NDArray[np.float64], q: NDArray[np.float64], follows: Sequence[int]) -> None:
        """``follows`` are the tokens that the text goes on with."""
        rows = np.arange(len(follows))
        self._surprise -= [p[rows, follows].sum(), q[rows, follows].sum()]
        self._same += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        self._divergences.append((np.exp(p) * (p - q)).sum(axis=1))

    def result(self) -> Result:
        kl = np.concatenate(self._divergences)
        base, other = np.exp(self._surprise / len(kl))
        return {
            "tokens": len(kl),
            "ppl_f32": float(base),
            "ppl": float(other),
            "kl": float(kl.mean()),
            "kl_error": float(kl.std(ddof=1) / np.sqrt(len(kl))),
            "kl_99": float(np.quantile(kl, 0.99)),
            "same_top": self._same / len(kl),
        }


def compare(base: LLM, others: Mapping[str, LLM], chunks: int) -> Result:
    """By name: perplexities of ``base`` and of the other, KL to ``base``, share of equal best
    tokens."""
    scores = {name: Score() for name in others}
    for window in windows(base, chunks):
        p = log_probabilities(base, window)
        for name, other in others.items():
            scores[name].add(p, log_probabilities(other, window), window[FIRST + 1 :])
    return {name: score.result() for name, score in scores.items()}


def _lines(peers: Peers, kind: str, *options: str) -> Iterator[str]:
    command = [
        peers.llama("llama-perplexity"), "-m", peers.gguf(kind), "-c", str(WINDOW), "-t", "2",
        "-tb", "2", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    yield from (done.stdout + done.stderr).splitlines()


def llama(peers: Peers, chunks: int) -> Result:
    """The same figures of llama.cpp's kinds, from its own tool."""
    with tempfile.TemporaryDirectory(prefix="wager-quality-") as folder:
        file, base = Path(folder) / "text", Path(folder) / "base"
        file.write_text(text(chunks), encoding="utf-8")
        common = ("-f", str(file), "--chunks", str(chunks), "--kl-divergence-base", str(base))
        for _ in _lines(peers, "f32", *common):
            pass
        return {
            kind: _printed("\n".join(_lines(peers, kind, *common, "--kl-divergence")))
            for _, kind in PAIRS
        }


def _printed(found: str) -> Result:
    def value(name: str) -> float:
        match = re.search(rf"^{re.escape(name)}\s*:\s*([-+0-9.e]+)", found, re.MULTILINE)
        if match is None:
            raise RuntimeError(f"llama-perplexity printed no {name!r}")
        return float(match.group(1))

    return {
        "ppl_f32": value("Mean PPL(base)"),
        "ppl": value("Mean PPL(Q)"),
        "kl": value("Mean    KLD"),
        "kl_99": value("99.0%   KLD"),
        "same_top": value("Same top p") / 100,
    }


def measure(llms: Mapping[str, LLM], peers: Peers, chunks: int = CHUNKS) -> Result:
    """By weight kind: ``wager`` and, where it is set up, ``llama.cpp``."""
    result: Result = {
        "text": hashlib.sha256(text(chunks).encode()).hexdigest(),
        "wager": compare(llms["f32"], {ours: llms[ours] for ours, _ in PAIRS}, chunks),
    }
    if peers.has("llama") and peers.has("models"):
        result["llama.cpp"] = llama(peers, chunks)
    return result


def report(result: Result) -> str:
    """One line per engine and kind."""
    rows = []
    for pair in PAIRS:
        for engine, kind in zip(("wager", "llama.cpp"), pair, strict=True):
            found = result.get(engine, {}).get(kind, {})
            f32, ppl = found.get("ppl_f32"), found.get("ppl")
            rest = [found.get(name) for name in ("kl", "kl_99", "same_top")]
            rows.append([f"{engine} {kind}", f32, ppl, ratio(ppl, f32), *rest])
    rows = [[f"{c:.5f}" if isinstance(c, float) else c for c in row] for row in rows]
    head = ["weights", "PPL f32", "PPL", "ratio", "mean KL", "99 % KL", "same best token"]
    tokens = result["wager"][PAIRS[0][0]]["tokens"]
    return f"Quality of rounded weights on {tokens} tokens:\n\n{table(head, rows)}"


def aims(result: Result) -> list[Aim]:
    """No worse than llama.cpp's kind of as many bits."""
    found = []
    for ours, theirs in PAIRS:
        mine, peer = result["wager"][ours], result.get("llama.cpp", {}).get(theirs, {})
        kl = ratio(mine["kl"], peer.get("kl"))
        ppl = ratio(mine["ppl"] / mine["ppl_f32"], ratio(peer.get("ppl"), peer.get("ppl_f32")))
        found += [
            at_most(f"{ours} KL to f32, of llama.cpp {theirs}'s", kl, 1.0, "x"),
            at_most(f"{ours} perplexity over f32's, of llama.cpp {theirs}'s", ppl, 1.0005, "x"),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="windows of 512 tokens")
    chunks = parser.parse_args().chunks
    kinds = ("f32", *(ours for ours, _ in PAIRS))
    llms = {kind: LLM("smollm2-135m", weights=kind, max_model_len=1024) for kind in kinds}
    result = measure(llms, Peers.find(), chunks)
    print(report(result))


if __name__ == "__main__":
    main()
