from __future__ import annotations

import ast
from random import Random

import pytest

from wager.bench.workloads import agent
from wager.bench.workloads.checks import followed
from wager.bench.workloads.generated import RECIPES, chosen, prompts
from wager.bench.workloads.prompts import Prompt
from wager.errors import ConfigError

VOCAB = 49152


def content(prompt: Prompt) -> str | tuple[int, ...]:
    if prompt.messages is not None:
        return prompt.messages[-1][1]
    return prompt.text if prompt.text is not None else prompt.token_ids or ()


@pytest.mark.parametrize("name", RECIPES)
def test_prompts_differ_and_are_the_same_every_time(name: str) -> None:
    drawn = prompts(RECIPES[name], 40, VOCAB)
    assert drawn == prompts(RECIPES[name], 40, VOCAB)
    assert drawn[:16] == prompts(RECIPES[name], 16, VOCAB)
    assert len({content(p) for p in drawn}) == 40
    assert len({p.id for p in drawn}) == 40
    assert len({p.params.seed for p in drawn}) == 40
    assert content(drawn[0]) != content(prompts(RECIPES[name], 1, VOCAB, seed=1)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_each_prompt_is_of_one_kind(name: str) -> None:
    for prompt in prompts(RECIPES[name], 16, VOCAB):
        given = [prompt.messages, prompt.text, prompt.token_ids]
        assert sum(g is not None for g in given) == 1
        assert (prompt.messages is not None) == RECIPES[name].chat
        turned = name == "flip" and prompt.params.temperature == 0.0
        assert (prompt.expected is not None) == (name in ("rename", "edit") or turned)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("copy", 0.0), ("agent", 0.0), ("words", 0.0), ("explain", 0.7), ("story", 1.0),
        ("random", 1.0),
    ],
)  # fmt: skip
def test_sampling_settings(name: str, temperature: float) -> None:
    assert {p.params.temperature for p in prompts(RECIPES[name], 16, VOCAB)} == {temperature}


def test_flip_changes_with_every_request() -> None:
    drawn = prompts(RECIPES["flip"], 15, VOCAB)
    assert [p.params.temperature for p in drawn] == [0.0, 1.0] * 7 + [0.0]
    assert all("Rename" in str(content(p)) for p in drawn[::2])
    assert all("story" in str(content(p)) for p in drawn[1::2])


def test_copy_goes_on_for_256_tokens() -> None:
    for prompt in prompts(RECIPES["copy"], 16, VOCAB):
        assert prompt.params.max_tokens == 256
        assert prompt.params.ignore_eos


def test_words_are_200_of_30() -> None:
    used = set()
    for prompt in prompts(RECIPES["words"], 16, VOCAB):
        words = str(prompt.text).split()
        assert len(words) == 200
        used.update(words)
    assert len(used) == 30


@pytest.mark.parametrize("vocab", [64, VOCAB])
def test_random_ids_are_of_the_vocabulary(vocab: int) -> None:
    for prompt in prompts(RECIPES["random"], 16, vocab):
        assert prompt.token_ids is not None
        assert len(prompt.token_ids) == 200
        assert 0 <= min(prompt.token_ids) <= max(prompt.token_ids) < vocab


def test_an_agent_takes_ten_turns_and_repeats_what_it_saw() -> None:
    drawn = prompts(RECIPES["agent"], 40, VOCAB)
    assert {p.params.max_tokens for p in drawn} == {256, 64}
    assert all(p.params.ignore_eos for p in drawn)
    for start in range(0, 40, agent.TURNS):
        texts = [str(p.text) for p in drawn[start : start + agent.TURNS]]
        head = texts[0].partition("$")[0]
        assert [text.startswith(head) for text in texts] == [True] * agent.TURNS
        # Two modules, and no turn of another session.
        written = {text.rpartition("$ cat > ")[2].partition(" ")[0] for text in texts}
        files = [name for name in written if name.endswith(".py")]
        assert len({name.removeprefix("test_") for name in files}) == 2
        for text in texts:
            assert len(text) <= agent.MOST_CHARACTERS + len(head)
            # What a turn begins to write, a file or a line of pytest, stands before it.
            *before, asked = text.split("$ cat >")
            first = asked.partition("<<'EOF'\n")[2]
            seen = "$ cat >".join(before)
            assert ("FAILED test_" if first.startswith("Still failing") else first) in seen


def test_the_files_of_an_agent_are_python() -> None:
    rng = Random(3)
    for _ in range(20):
        module = agent._module(rng, "stock")
        ast.parse(module.source)
        ast.parse(module.test_source)
        before = module.source
        changed = module.functions[0].with_default(1)
        module.functions[0] = changed
        assert f"{changed.parameter}=1):" in module.source
        lines = zip(before.splitlines(), module.source.splitlines(), strict=True)
        assert sum(a != b for a, b in lines) == 1


@pytest.mark.parametrize("name", ["rename", "edit"])
def test_code_is_python_before_and_after(name: str) -> None:
    for prompt in prompts(RECIPES[name], 64, VOCAB):
        before = str(content(prompt)).split("```python\n")[1].split("```")[0]
        after = prompt.expected or ""
        ast.parse(before)
        ast.parse(after)
        assert before != after
        assert len(before.splitlines()) == len(after.splitlines())
        assert followed(f"```python\n{after}```", after)
        assert not followed(f"```python\n{before}```", after)


def test_rename_changes_every_use_and_nothing_else() -> None:
    for prompt in prompts(RECIPES["rename"], 64, VOCAB):
        text = str(content(prompt))
        old, new = text.split("`")[1], text.split("`")[3]
        before = text.split("```python\n")[1].split("```")[0]
        names = {n.id for n in ast.walk(ast.parse(prompt.expected or "")) if hasattr(n, "id")}
        assert old in {n.id for n in ast.walk(ast.parse(before)) if hasattr(n, "id")}
        assert new in names
        assert old not in names
        assert new not in before


def test_edit_changes_three_marked_lines_of_forty() -> None:
    for prompt in prompts(RECIPES["edit"], 32, VOCAB):
        before = str(content(prompt)).split("```python\n")[1].split("```")[0].splitlines()
        after = (prompt.expected or "").splitlines()
        assert len(before) == 40
        changed = [a for a, b in zip(before, after, strict=True) if a != b]
        assert len(changed) == 3
        assert all("# change " in line for line in changed)


def test_max_tokens_only_lowers_limits() -> None:
    assert {p.params.max_tokens for p in prompts(RECIPES["copy"], 4, VOCAB, max_tokens=32)} == {32}
    assert {p.params.max_tokens for p in prompts(RECIPES["classify"], 4, VOCAB, max_tokens=32)} == {
        8
    }


def test_chosen_refuses_what_does_not_exist() -> None:
    assert [r.name for r in chosen(["random", "copy"])] == ["random", "copy"]
    for names in (["copi"], ["copy", "copy"], [""], []):
        with pytest.raises(ConfigError, match="workload"):
            chosen(names)
