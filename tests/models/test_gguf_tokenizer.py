"""Tokenizers of GGUF files: cuts that are known, and the ids of SentencePiece itself.

``tokenizer_pieces.json`` holds two small vocabularies that the sentencepiece package (0.2.3) made
from this project's documentation, and its ids for some texts: ``llama`` as Llama 2 has it (BPE with
byte fallback, a space before the text), ``gemma`` as Gemma has it (none, and runs of space and line
ends as symbols of their own, which llama.cpp's converter writes with real spaces).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from tests.tiny_gguf import write_tiny_gguf, write_vocabulary
from wager import LLM, SamplingParams
from wager.errors import CorruptFile, UnsupportedModel
from wager.models.gguf_file import read_gguf
from wager.models.gguf_splits import RULES
from wager.models.gguf_tokenizer import from_gguf
from wager.models.tokenizer import BYTE_OF_SYMBOL, Tokenizer

PIECES = json.loads((Path(__file__).parent.parent / "data" / "tokenizer_pieces.json").read_text())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def cut(name: str, text: str) -> list[str]:
    """The words of a text under the rule of that name."""
    raw = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
           "normalizer": None, "pre_tokenizer": RULES[name].pre_tokenizer, "post_processor": None,
           "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}  # fmt: skip
    words = Backend.from_str(json.dumps(raw)).pre_tokenizer.pre_tokenize_str(text)
    return [bytes(BYTE_OF_SYMBOL[symbol] for symbol in word).decode() for word, _ in words]


# A bar stands between words.
TALK = "I'LL don't pay 12345.60, OK?!\n\n  x=a_B//c\r\n y"
CUTS: list[tuple[str, str, str]] = [
    (
        "gpt-2 mellum trillion a.x-4.0 granite-docling olmo", TALK,
        "I|'|LL| don|'t| pay| 12345|.|60|,| OK|?!|\n\n | x|=|a|_|B|//|c|\r\n| y",
    ),
    (
        "smollm starcoder refact minerva-7b", TALK,
        "I|'|LL| don|'t| pay| |1|2|3|4|5|.|6|0|,| OK|?!|\n\n | x|=|a|_|B|//|c|\r\n| y",
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 smaug-bpe dbrx deepseek-v3", TALK,
        "I|'LL| don|'t| pay| |123|45|.|60|,| OK|?!\n\n| | x|=a|_B|//|c|\r\n| y",
    ),
    (
        "qwen2 deepseek-r1-qwen qwen35 tekken", TALK,
        "I|'LL| don|'t| pay| |1|2|3|4|5|.|6|0|,| OK|?!\n\n| | x|=a|_B|//|c|\r\n| y",
    ),
    (
        "gpt-4o", TALK,
        "I'LL| don't| pay| |123|45|.|60|,| OK|?!\n\n| | x|=a|_B|//|c|\r\n| y",
    ),
    (
        "seed-coder", TALK,
        "I|'LL| don|'t| pay| |1|2|3|4|5|.|6|0|,| OK|?!|\n\n| | x|=a|_B|//|c|\r\n| y",
    ),
    (
        "deepseek-coder", TALK,
        "I|'|LL| don|'|t| pay| |1|2|3|4|5|.|6|0|,| OK|?!|\n|\n| | x|=|a|_|B|//|c|\r|\n| y",
    ),
    (
        "default", TALK,
        "I|'|LL| don|'|t| pay| |123|45|.|60|,| OK|?!|\n\n | x|=|a|_|B|//|c|\r\n| y",
    ),
    ("llama-bpe qwen2 dbrx", "HelloWorld e\u0301a ab//\n", "HelloWorld| e|\u0301a| ab|//\n"),
    ("qwen35", "HelloWorld e\u0301a ab//\n", "HelloWorld| e\u0301a| ab|//\n"),
    # Words end where small letters are followed by a capital; a path's stroke takes line ends.
    ("tekken gpt-4o", "HelloWorld ABCd e\u0301a a/\n/b", "Hello|World| ABCd| e\u0301a| a|/\n/|b"),
    ("deepseek-v3 deepseek-coder", "x \u4f60\u597d1\u4e16", "x| |\u4f60\u597d|1|\u4e16"),
    ("llama-bpe tekken", "x \u4f60\u597d1\u4e16", "x| \u4f60\u597d|1|\u4e16"),
    ("smollm qwen2", "\u00bd \u0663\u0664", "\u00bd| |\u0663|\u0664"),
    ("gpt-4o llama-bpe", "\u00bd \u0663\u0664", "\u00bd| |\u0663\u0664"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "text", "words"), CUTS)
def test_cuts(names: str, text: str, words: str) -> None:
    for name in names.split():
        assert cut(name, text) == words.split("|"), name


def test_every_rule_is_tested() -> None:
    assert {name for names, _, _ in CUTS for name in names.split()} == set(RULES)


@pytest.mark.parametrize("name", ["llama-bpe", "tekken", "falcon3"])
def test_words_that_are_tokens_are_not_merged(tmp_path: Path, name: str) -> None:
    """The tiny vocabulary has no merge that makes the whole of " 1"."""
    tokens = ["a", "b", "c", "ab", "abc"]
    made = {
        each: vocabulary(tmp_path / f"{each}.gguf", tokens, pre=each, merges=["b c"])
        for each in (name, "qwen2")
    }
    assert made[name].encode("abc", add_special=False) == [4]
    assert made["qwen2"].encode("abc", add_special=False) == [0, 5]


@pytest.mark.parametrize(
    ("name", "adds"), [("llama-bpe", True), ("tekken", True), ("smaug-bpe", False), ("dbrx", False)]
)
def test_bos_where_the_file_does_not_say(tmp_path: Path, name: str, adds: bool) -> None:
    silent = {"tokenizer.ggml.add_bos_token": None}
    path = write_tiny_gguf(tmp_path / "m.gguf", pre=name, metadata=silent)
    tokenizer = from_gguf(read_gguf(path))
    assert tokenizer.encode("")[:1] == ([1] if adds else [])
    stated = {"tokenizer.ggml.add_bos_token": not adds}
    path = write_tiny_gguf(tmp_path / "n.gguf", pre=name, metadata=stated)
    assert from_gguf(read_gguf(path)).encode("")[:1] == ([] if adds else [1])


def test_normalizers_of_the_models(tmp_path: Path) -> None:
    ids = {}
    for pre in ("qwen2", "deepseek-r1-qwen"):
        tokenizer = from_gguf(read_gguf(write_tiny_gguf(tmp_path / f"{pre}.gguf", pre=pre)))
        ids[pre] = [tokenizer.encode(text) for text in ("e\u0301", "\u00e9")]
    assert ids["qwen2"][0] == ids["qwen2"][1]
    assert ids["deepseek-r1-qwen"][0] != ids["deepseek-r1-qwen"][1]


@pytest.mark.parametrize("pre", ["superbpe", "deepseek-llm", "a-new-one", None, 7])
def test_rules_that_are_not_known(tmp_path: Path, pre: Any) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre})
    with pytest.raises(UnsupportedModel, match=rf"pre-tokenizer '?{pre}'? is not.*smollm.*tekken"):
        from_gguf(read_gguf(path))


def vocabulary(path: Path, tokens: list[str], **options: Any) -> Tokenizer:
    return from_gguf(read_gguf(write_vocabulary(path, tokens, **options)))


def pieces(path: Path, kind: str, **changes: Any) -> Tokenizer:
    ids = {"llama": (0, 1, 2), "gemma": (3, 2, 1)}[kind]
    stated = dict(zip(("unknown_token_id", "bos_token_id", "eos_token_id"), ids, strict=True))
    given = {key: PIECES[kind][key] for key in ("tokens", "scores", "types")}
    if kind == "gemma":
        stated["add_space_prefix"] = False
    return vocabulary(path, **{**given, **stated, **changes})


@pytest.mark.parametrize("kind", PIECES)
def test_ids_of_sentencepiece(tmp_path: Path, kind: str) -> None:
    tokenizer, cases = pieces(tmp_path / "m.gguf", kind), PIECES[kind]["cases"]
    assert len(cases) > 90
    for case in cases:
        text, ids = case["text"], case["ids"]
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == text.replace("\u2581", " ")
        # BOS is added where the file does not say it.
        assert tokenizer.encode(text) == [tokenizer.bos_id, *ids]
    assert tokenizer.strips_first_space == (kind == "llama")


def test_a_text_between_special_tokens_begins_anew(tmp_path: Path) -> None:
    """As in llama.cpp: a space before the text, and before what follows a special token."""
    tokenizer = pieces(tmp_path / "m.gguf", "llama")
    the = tokenizer.encode("the", add_special=False)
    assert tokenizer.encode("the<s>the</s>", add_special=False) == [*the, 1, *the, 2]
    assert tokenizer.decode([*the, 1, *the], skip_special=False) == "the<s> the"
    assert tokenizer.special_ids == {0, 1, 2}
    gemma = pieces(tmp_path / "g.gguf", "gemma")
    the = gemma.encode("the", add_special=False)
    assert gemma.encode("the<bos>the", add_special=False) == [*the, 2, *the]
    assert {gemma.special_id(f"<{side}_of_turn>") for side in ("start", "end")} < gemma.special_ids
    table = gemma.encode("<table>", add_special=False)
    assert len(table) == 1
    assert table[0] not in gemma.special_ids
    assert gemma.decode(table) == "<table>"


def test_space_after_special_tokens_of_phi3(tmp_path: Path) -> None:
    types = [3 if text in ("\u2581the", "\u2581a") else kind for text, kind in
             zip(PIECES["llama"]["tokens"], PIECES["llama"]["types"], strict=True)]  # fmt: skip
    ids = {text: PIECES["llama"]["tokens"].index(text) for text in ("\u2581the", "\u2581a")}
    phi = pieces(tmp_path / "p.gguf", "llama", architecture="phi3", types=types)
    step = phi.encode("step", add_special=False)
    assert phi.encode("\u2581the\n step", add_special=False) == [ids["\u2581the"], *step]
    assert phi.encode("</s>  step", add_special=False) == [2, *step]
    assert phi.encode("<s>  step", add_special=False) == [
        1, *phi.encode("  step", add_special=False)
    ]  # fmt: skip
    plain = pieces(tmp_path / "l.gguf", "llama", types=types)
    assert plain.encode("\u2581the\n step", add_special=False) == [
        ids["\u2581the"], *plain.encode("\n step", add_special=False)
    ]  # fmt: skip


def test_ends_that_are_marked_as_text(tmp_path: Path) -> None:
    types = PIECES["gemma"]["types"].copy()
    end = PIECES["gemma"]["tokens"].index("<end_of_turn>")
    for kind in (1, 4):
        types[end] = kind
        tokenizer = pieces(tmp_path / f"{kind}.gguf", "gemma", types=types)
        assert tokenizer.special_id("<end_of_turn>") == end
        assert tokenizer.encode("<end_of_turn>", add_special=False) == [end]


def test_characters_that_are_no_token(tmp_path: Path) -> None:
    """Without byte tokens there is the unknown one, once for a run."""
    small = {"tokens": ["<unk>", "<s>", "\u2581", "a", "\u2581a"], "types": [2, 3, 1, 1, 1],
             "scores": [0.0, 0.0, -2.0, -3.0, -1.0], "bos_token_id": 1}  # fmt: skip
    tokenizer = vocabulary(tmp_path / "m.gguf", **small)
    assert tokenizer.encode("a xyz a") == [1, 4, 2, 0, 4]


def test_runs_of_spaces_that_have_one_score(tmp_path: Path) -> None:
    """As in Llama 2 and Mistral: the leftmost pair is joined first, so runs grow from the left."""
    runs = ["\u2581" * count for count in (2, 4, 3, 8)]
    tokens = ["<unk>", "a", "\u2581", "\u2581a", *runs]
    tokenizer = vocabulary(
        tmp_path / "m.gguf", tokens, types=[2, *[1] * 7], add_space_prefix=False,
        scores=[0.0, -3.0, -4.0, -1.0, *[-1e9] * 4], bos_token_id=0, add_bos_token=False,
    )  # fmt: skip
    two, four, three, eight = 4, 5, 6, 7
    assert tokenizer.encode(" " * 4) == [four]
    assert tokenizer.encode(" " * 7) == [four, three]
    # The last one belongs to what follows: a higher score.
    assert tokenizer.encode(" " * 7 + "a") == [four, two, 3]
    # Nothing is five or six, so a second run grows until it makes eight of the first.
    assert tokenizer.encode(" " * 6) == [four, two]
    assert tokenizer.encode(" " * 8) == [eight]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"scores": [0.0] * 700}, UnsupportedModel,
         "have the same score, so nothing says which is made first; convert the model again"),
        ({"scores": [0.0] * 699}, CorruptFile, "are not 700 numbers, one for each token"),
        ({"scores": [float("nan")] * 700}, CorruptFile, "are not 700 numbers"),
        ({"remove_extra_whitespaces": True}, UnsupportedModel, "remove_extra_whitespaces is true"),
        ({"tokens": [*PIECES["llama"]["tokens"][:-1], "a" * 300]}, CorruptFile,
         "a token of 300 characters"),
        ({"add_eos_token": True}, UnsupportedModel, "adds EOS"),
        ({"types": [2, 3, 3, 1, *PIECES["llama"]["types"][4:]]}, CorruptFile,
         "255 of the 256 byte tokens are there"),
        ({"bos_token_id": 700}, CorruptFile, "bos_token_id 700 is not in the vocabulary"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        pieces(tmp_path / "m.gguf", "llama", **changes)
    assert len(str(caught.value).splitlines()) == 1


def test_other_kinds_of_tokenizers(tmp_path: Path) -> None:
    other = {"tokenizer.ggml.model": "t5"}
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=other)
    with pytest.raises(UnsupportedModel, match=r"tokenizer model 't5' is not.*'gpt2'.*'llama'"):
        from_gguf(read_gguf(path))


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}",
                                      "<|im_start|>{{ messages[0].content }}"])  # fmt: skip
def test_bos_is_there_once(tmp_path: Path, template: str) -> None:
    """A template that writes it, and a tokenizer that adds it."""
    adds = {"tokenizer.ggml.add_bos_token": True}
    path = write_tiny_gguf(tmp_path / "m.gguf", template=template, metadata=adds)
    llm = LLM(str(path), threads=1)
    talk = [{"role": "user", "content": "the"}]
    assert llm.tokenizer.encode("the")[0] == 1
    ids = llm.tokenizer.encode(llm.tokenizer.chat(talk), add_special=False)
    assert ids.count(1) == 1
    assert ids == llm.tokenizer.encode("the")
    assert llm.chat(talk, SamplingParams(max_tokens=1)).prompt_token_ids == ids
