"""Ids equal to a reference, and text equal to whole decoding however it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tests.tiny import SPECIALS, tokenizer_json, write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.errors import CorruptFile, ModelError, RequestError, UnsupportedModel
from wager.models.gguf_file import read_gguf
from wager.models.gguf_tokenizer import from_gguf
from wager.models.hf_tokenizer import from_directory
from wager.models.load import open_checkpoint
from wager.models.paths import tokenizers_dir
from wager.models.tokenizer import Tokenizer

DATA = Path(__file__).parent.parent / "data" / "tokenizer_smollm2.json"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "model" not in request.keywords:
        monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def make(raw: dict[str, Any]) -> Tokenizer:
    backend = Backend.from_str(json.dumps(raw))
    return Tokenizer(backend, name="test", digest="", vocab_size=backend.get_vocab_size())


TINY = make(tokenizer_json(288))


def pieces() -> Tokenizer:
    """SentencePiece as Llama 2 has it: spaces as a block, bytes as a fallback."""
    words = ["▁the", "▁", "t", "h", "e", "▁a", "é"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [("t", "h"), ("▁", "the"), ("th", "e")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True,
                                 fuse_unk=True))  # fmt: skip
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, name="test", digest="", vocab_size=len(vocab))


PIECES = pieces()
SOME_TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("the in a\n\t12🙂é👨\u200d👩\u0301")
)


@pytest.mark.model
def test_smollm2_gives_the_ids_of_the_reference(tmp_path: Path) -> None:
    tokenizer = open_checkpoint("smollm2-135m").tokenizer()
    cases = json.loads(DATA.read_text())
    assert len(cases) > 100
    for case in cases:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"], skip_special=False) == case["text"]
    assert tokenizer.vocab_size == 49152
    assert tokenizer.bos_id == 1


@pytest.mark.model
def test_smollm2_chat() -> None:
    tokenizer = open_checkpoint("smollm2-135m").tokenizer()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.chat(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.chat(messages[1:], add_generation_prompt=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )
    assert tokenizer.encode(tokenizer.chat(messages), add_special=False)[:2] == [1, 9690]


@pytest.mark.parametrize("tokenizer", [TINY, PIECES], ids=["bytes", "pieces"])
@given(text=SOME_TEXT)
@settings(deadline=None)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("tokenizer", [TINY, PIECES], ids=["bytes", "pieces"])
@given(ids=st.lists(st.integers(0, 287)), prompt=st.lists(st.integers(3, 287), max_size=3))
@settings(max_examples=300, deadline=None)
def test_streaming_equals_whole(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> None:
    stream = tokenizer.stream()
    parts, seen = [], ""
    for token in ids:
        parts.append(stream.push(token))
        seen += parts[-1]
        assert not parts[-1].endswith("\ufffd") or "\ufffd" in tokenizer.decode(ids)
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids)
    assert tokenizer.decode(ids).startswith(seen)
    # After a prompt the text goes on: nothing is taken from its beginning.
    after = tokenizer.stream(prompt)
    text = "".join(map(after.push, ids)) + after.flush()
    if prompt and tokenizer.strips_first_space:
        text = text.removeprefix(" ")
    assert text == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 287)), skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_decoding_equals_the_tokenizers_library(ids: list[int], skip: bool) -> None:
    expected = TINY._backend.decode(ids, skip_special_tokens=skip)
    assert TINY.decode(ids, skip_special=skip) == expected


def test_pieces_decode_as_the_tokenizers_library() -> None:
    for text in ("the the a", " two  spaces", "é à 🙂 \n", ""):
        ids = PIECES.encode(text)
        assert PIECES.decode(ids) == PIECES._backend.decode(ids) == text


def test_bytes_of_a_character_are_held_back() -> None:
    ids = TINY.encode("a🙂b")
    assert len(ids) == 6
    stream = TINY.stream()
    assert [stream.push(token) for token in ids] == ["a", "", "", "", "🙂", "b"]
    assert stream.flush() == ""
    stream = TINY.stream()
    assert "".join(stream.push(token) for token in ids[:4]) == "a"
    assert stream.flush() == "\ufffd"


def test_special_tokens_are_no_text() -> None:
    ids = TINY.encode("a<|im_end|>b")
    assert 2 in ids
    assert TINY.decode(ids) == "ab"
    assert TINY.decode(ids, skip_special=False) == "a<|im_end|>b"
    assert TINY.special_ids == {0, 1, 2}
    assert TINY.special_id("<|im_end|>") == 2
    assert TINY.special_id("e") is None


def test_unknown_ids_and_broken_text() -> None:
    assert TINY.decode([288, 1 << 31, -1, TINY.encode("a")[0]]) == "a"
    with pytest.raises(RequestError, match="prompt: is not valid Unicode"):
        TINY.encode("a\ud800")


def test_the_parsed_form_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = read_gguf(write_tiny_gguf(tmp_path / "m.gguf"))
    first = from_gguf(file)
    (kept,) = tokenizers_dir().iterdir()
    assert from_gguf(file).encode("the thing") == first.encode("the thing")
    assert caplog.text == ""
    kept.write_bytes(kept.read_bytes()[:-10])
    assert from_gguf(file).encode("the thing") == first.encode("the thing")
    assert "building the tokenizer again" in caplog.text
    assert Backend.from_file(str(kept)).get_vocab_size() == 288


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("gpt-2", "in 123\n  a", 7),
        ("smollm", "in 123\n  a", 8),
        ("llama-bpe", "in 123\n  a", 8),
        ("qwen2", "in 123\n  a", 8),
    ],
)
def test_pre_tokenizers(tmp_path: Path, pre: str, text: str, parts: int) -> None:
    tokenizer = from_gguf(read_gguf(write_tiny_gguf(tmp_path / "m.gguf", pre=pre, vocab=298)))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    # Only the first keeps " 1" together: the others split before a digit.
    assert len(ids) == parts


def test_directories(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path)
    assert from_directory(directory).has_chat_template
    (directory / "tokenizer_config.json").unlink()
    bare = from_directory(directory)
    assert not bare.has_chat_template
    assert bare.bos_id is None
    with pytest.raises(RequestError, match="no chat template"):
        bare.chat([{"role": "user", "content": "Hi"}])
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert from_directory(directory).chat([{"role": "user", "content": "Hi"}]) == "Hi!"
    (directory / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(CorruptFile, match=r"no sound tokenizer\.json"):
        from_directory(directory)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        from_directory(directory)
    (directory / "tokenizer.model").touch()
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.model but no tokenizer\.json"):
        from_directory(directory)


TALK = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = [
    {"name": "tool_use", "template": "T{{ tools | length }}"},
    {"name": "default", "template": "{{bos_token}}D"},
    {"name": "rag", "template": "R"},
]


def with_settings(path: Path, template: object) -> Tokenizer:
    directory = write_tiny_hf(path)
    settings = {"chat_template": template, "bos_token": {"content": SPECIALS[1]}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return from_directory(directory)


def with_files(path: Path) -> Tokenizer:
    tokenizer = with_settings(path, "of the settings")
    assert tokenizer.chat(TALK) == "of the settings"
    (path / "additional_chat_templates").mkdir()
    for one in NAMED:
        name = f"additional_chat_templates/{one['name']}"
        file = "chat_template" if one["name"] == "default" else name
        (path / f"{file}.jinja").write_text(one["template"])
    return from_directory(path)


def in_gguf(path: Path) -> Tokenizer:
    return from_gguf(read_gguf(write_tiny_gguf(path / "m.gguf", template=NAMED)))


@pytest.mark.parametrize("made", [lambda path: with_settings(path, NAMED), with_files, in_gguf])
def test_templates_by_name(tmp_path: Path, made: Callable[[Path], Tokenizer]) -> None:
    """The one for tools where there are tools."""
    tokenizer = made(tmp_path)
    assert tokenizer.bos_id == 1
    assert tokenizer.chat(TALK) == tokenizer.chat(TALK, tools=[]) == "<|im_start|>D"
    assert tokenizer.chat(TALK, tools=TOOLS) == "T1"
    assert tokenizer.chat_template == tokenizer.template_text(tools=False) == "{{bos_token}}D"
    assert tokenizer.template_text(tools=True) == "T{{ tools | length }}"


def test_a_template_that_has_no_company(tmp_path: Path) -> None:
    alone = with_settings(tmp_path / "a", [{"name": "chatml", "template": "C"}])
    assert alone.chat(TALK) == "C"
    assert alone.template_text(tools=True) == "C"
    # Which of these is meant nobody can know.
    two = [{"name": "one", "template": "1"}, {"name": "two", "template": "2"}]
    assert not with_settings(tmp_path / "b", two).has_chat_template
    for broken in ([{"name": "default"}], [5], {"default": "x"}, 7, None):
        assert not with_settings(tmp_path / "c", broken).has_chat_template


def test_other_decoders_are_refused(tmp_path: Path) -> None:
    raw = tokenizer_json(288)
    raw["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(UnsupportedModel, match="decoder is WordPiece"):
        make(raw)
    raw["decoder"] = None
    with pytest.raises(UnsupportedModel, match="decoder is missing"):
        make(raw)


@pytest.mark.parametrize(
    ("pre_tokenizer", "strips"),
    [(pre_tokenizers.Metaspace(), True), (pre_tokenizers.Metaspace(prepend_scheme="never"), False)],
)
def test_metaspace(pre_tokenizer: Any, strips: bool) -> None:
    vocab = {"▁": 0, "a": 1, "b": 2, "▁a": 3}
    backend = Backend(models.BPE(vocab, [("▁", "a")]))
    backend.pre_tokenizer = pre_tokenizer
    scheme = "always" if strips else "never"
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer = Tokenizer(backend, name="test", digest="", vocab_size=4)
    assert tokenizer.strips_first_space is strips
    for ids in ([3, 2, 3], [1, 3], [0, 3]):
        assert tokenizer.decode(ids) == backend.decode(ids)
