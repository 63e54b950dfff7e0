"""What int8 costs in quality: KL divergence to f32 and perplexity, beside llama.cpp's q8_0.

    python -m benchmarks.quality [--chunks 40]

The method is that of llama.cpp's `llama-perplexity --kl-divergence`, done by it for q8_0 and here
for int8: the text is cut into windows of 512 tokens, each computed from an empty context, and the
positions from the middle of a window to its last but one count (255 per window; 40 windows are
10,200 counted tokens). KL is sum p log(p / q), p of that engine's own f32, q of its 8-bit weights,
in natural units, averaged over the positions. Weights and KV types are those that each engine takes
by itself: int8 runs with f16 keys and values here as q8_0 does there.

The text is the language reference that CPython ships as `pydoc_data.topics`, in order of topic;
its hash is part of the result, as it differs between versions of Python.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
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


def compare(base: LLM, other: LLM, chunks: int) -> Result:
    """Perplexities of both, KL of ``other`` to ``base``, share of equal best tokens."""
    divergences: list[NDArray[np.float64]] = []
    surprise = {"base": 0.0, "other": 0.0}
    same = count = 0
    for window in windows(base, chunks):
        p, q = log_probabilities(base, window), log_probabilities(other, window)
        follows = window[FIRST + 1 :]
        rows = np.arange(len(follows))
        surprise["base"] -= float(p[rows, follows].sum())
        surprise["other"] -= float(q[rows, follows].sum())
        same += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        count += len(follows)
        divergences.append((np.exp(p) * (p - q)).sum(axis=1))
    kl = np.concatenate(divergences)
    return {
        "tokens": count,
        "ppl_f32": float(np.exp(surprise["base"] / count)),
        "ppl": float(np.exp(surprise["other"] / count)),
        "kl": float(kl.mean()),
        "kl_error": float(kl.std(ddof=1) / np.sqrt(count)),
        "kl_99": float(np.quantile(kl, 0.99)),
        "same_top": same / count,
    }


def _lines(peers: Peers, kind: str, *options: str) -> Iterator[str]:
    command = [
        peers.llama("llama-perplexity"), "-m", peers.gguf(kind), "-c", str(WINDOW), "-t", "2",
        "-tb", "2", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    yield from (done.stdout + done.stderr).splitlines()


def llama(peers: Peers, chunks: int) -> Result:
    """The same figures of q8_0, from llama.cpp's own tool."""
    with tempfile.TemporaryDirectory(prefix="wager-quality-") as folder:
        file, base = Path(folder) / "text", Path(folder) / "base"
        file.write_text(text(chunks), encoding="utf-8")
        common = ("-f", str(file), "--chunks", str(chunks), "--kl-divergence-base", str(base))
        for _ in _lines(peers, "f32", *common):
            pass
        found = "\n".join(_lines(peers, "q8_0", *common, "--kl-divergence"))

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


def measure(llms: dict[str, LLM], peers: Peers, chunks: int = CHUNKS) -> Result:
    """``wager`` and, where it is set up, ``llama.cpp``."""
    result: Result = {
        "text": hashlib.sha256(text(chunks).encode()).hexdigest(),
        "wager": compare(llms["f32"], llms["int8"], chunks),
    }
    if peers.has("llama") and peers.has("models"):
        result["llama.cpp"] = llama(peers, chunks)
    return result


def report(result: Result) -> str:
    """One line per engine."""
    rows = []
    for engine, kind in (("wager", "int8"), ("llama.cpp", "q8_0")):
        found = result.get(engine, {})
        f32, ppl = found.get("ppl_f32"), found.get("ppl")
        rest = [found.get(name) for name in ("kl", "kl_99", "same_top")]
        rows.append([f"{engine} {kind}", f32, ppl, ratio(ppl, f32), *rest])
    rows = [[f"{c:.5f}" if isinstance(c, float) else c for c in row] for row in rows]
    head = ["weights", "PPL f32", "PPL 8-bit", "ratio", "mean KL", "99 % KL", "same best token"]
    return f"Quality of 8-bit weights on {result['wager']['tokens']} tokens:\n\n{table(head, rows)}"


def aims(result: Result) -> list[Aim]:
    """No worse than q8_0."""
    mine, theirs = result["wager"], result.get("llama.cpp", {})
    kl = ratio(mine["kl"], theirs.get("kl"))
    ppl = ratio(mine["ppl"] / mine["ppl_f32"], ratio(theirs.get("ppl"), theirs.get("ppl_f32")))
    return [
        at_most("int8 KL to f32, of llama.cpp q8_0's", kl, 1.0, "x"),
        at_most("int8 perplexity over f32's, of llama.cpp q8_0's", ppl, 1.0005, "x"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="windows of 512 tokens")
    chunks = parser.parse_args().chunks
    llms = {kind: LLM("smollm2-135m", weights=kind, max_model_len=1024) for kind in ("f32", "int8")}
    result = measure(llms, Peers.find(), chunks)
    print(report(result))


if __name__ == "__main__":
    main()
