"""Computes with transformers what tests/parity compares with, and writes it to tests/data.

Needs torch, transformers, gguf and accelerate, and not wager:

    PYTHONPATH=. python scripts/make_reference.py [SMOLLM2.gguf]

The file is the one that `wager pull smollm2-135m` fetches; without it only the tiny models are
computed, and what is stored of SmolLM2 stays. tests/parity/test_live.py uses the same
functions, to compare with the transformers that is installed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.parity import cases

Arrays = dict[str, NDArray[Any]]


def load(directory: Path, **options: Any) -> Any:
    """The transformers model in float32, without end tokens, so that generation goes on.

    Raises ValueError where the files do not hold the tensors that transformers looks for.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True, **options
    )
    wrong = {what: names for what, names in found.items() if names}
    if wrong:
        raise ValueError(f"{directory}: {wrong}")
    model.generation_config.eos_token_id = None
    return model.eval()


def logits(model: Any, ids: NDArray[Any]) -> NDArray[np.float32]:
    """Logits of every position of one prompt, float32 [T, V]."""
    import torch

    with torch.inference_mode():
        result = model(torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]).logits[0]
    return np.asarray(result.numpy(), dtype=np.float32)


def greedy(model: Any, ids: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The greedy continuation, int32 [count], and the top-2 logit gap at each, float32 [count].

    The gap tells how far a token is from being another one: below the noise of float32 the next
    token is not defined by the model, only by the order of its sums.
    """
    import torch

    prompt = torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]
    with torch.inference_mode():
        result = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    tokens = result.sequences[0, prompt.shape[1] :].numpy().astype(np.int32)
    top = [torch.topk(step[0], 2).values.numpy() for step in result.logits]
    return tokens, np.array([a - b for a, b in top], dtype=np.float32)


def tiny_reference() -> Arrays:
    """For each tiny model its logits at TINY_POSITIONS and its greedy continuation."""
    arrays: Arrays = {}
    for name in cases.TINY:
        with tempfile.TemporaryDirectory() as folder:
            model = load(cases.tiny_model(name, Path(folder)))
            ids = cases.tiny_tokens(name)
            arrays[f"{name}.logits"] = logits(model, ids)[list(cases.TINY_POSITIONS)]
            tokens, gaps = greedy(model, ids[:40], cases.TINY_GREEDY)
            arrays[f"{name}.greedy"], arrays[f"{name}.gaps"] = tokens, gaps
    return arrays


def smollm2(file: Path) -> tuple[Any, list[list[int]]]:
    """The transformers model of a GGUF file, and the token ids of every prompt of `cases`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in cases.PROMPTS]
    return load(file.parent, gguf_file=file.name), prompts


def smollm2_reference(file: Path) -> Arrays:
    """Per prompt: token ids, logits of the last position at chosen ids, greedy continuation."""
    model, prompts = smollm2(file)
    arrays: Arrays = {}
    for i, ids in enumerate(prompts):
        last = logits(model, np.array(ids))[-1]
        top = np.sort(np.argsort(-last, kind="stable")[: cases.TOP_IDS])
        chosen = np.concatenate([top, cases.random_ids(len(last))]).astype(np.int32)
        tokens, gaps = greedy(model, np.array(ids), cases.GREEDY)
        arrays |= {
            f"{i}.prompt": np.array(ids, dtype=np.int32),
            f"{i}.ids": chosen,
            f"{i}.logits": last[chosen],
            f"{i}.greedy": tokens,
            f"{i}.gaps": gaps,
        }
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("gguf", type=Path, nargs="?", help="the SmolLM2 file")
    file = parser.parse_args().gguf
    cases.DATA.mkdir(exist_ok=True)
    made = {cases.TINY_FILE: tiny_reference()}
    if file is not None:
        made[cases.SMOLLM2_FILE] = smollm2_reference(file)
    for path, arrays in made.items():
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        gaps = [float(a.min()) for name, a in arrays.items() if name.endswith(".gaps")]
        print(f"{path.name}: {path.stat().st_size} bytes, smallest top-2 gap {min(gaps):.2e}")


if __name__ == "__main__":
    main()
