"""From recorded requests to tokens: text, ids, templates, end tokens, tokenizers without models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from tests.hub import fake_hub, point_library_at
from tests.models.test_tokenizer import PIECES
from tests.tiny import ADDS_BOS, SPECIALS, tokenizer_json
from tests.tiny_gguf import write_tiny_gguf
from wager.arms import parse_arms
from wager.bench.logs.records import Recorded
from wager.bench.replay.report import Asked, notes
from wager.bench.replay.run import replayed
from wager.bench.replay.tokens import Vocabulary, open_vocabulary
from wager.errors import ModelError, RequestError
from wager.models.tokenizer import Tokenizer


@pytest.fixture
def vocabulary(tiny_path: Path) -> Vocabulary:
    return open_vocabulary(str(tiny_path))


def text(prompt: str, answer: str, **more: Any) -> Recorded:
    return Recorded(1, "prompt and completion", text=prompt, answer=answer, **more)


def test_text_becomes_tokens_and_an_end_token(vocabulary: Vocabulary) -> None:
    encode = vocabulary.tokenizer.encode
    cut = vocabulary.tokens(text("the cat", " and the"))
    assert cut.answer == encode(" and the", add_special=False)
    assert (cut.ended, cut.room) == (False, len(cut.answer))
    ended = vocabulary.tokens(text("the cat", " and the", ending="end", max_tokens=50))
    # <|im_end|>, which the chat template writes, not <|endoftext|>, which is one of the ends too.
    assert ended.answer == [*cut.answer, 2]
    assert (ended.ended, ended.room, ended.ends) == (True, 50, {0, 2})
    own = vocabulary.tokens(text("a", "b", ending="end", end_token=9, stop_token_ids=(9,)))
    assert (own.answer[-1], own.ends) == (9, {0, 2, 9})


def test_no_space_comes_before_an_answer_that_has_none() -> None:
    """SentencePiece puts one before any text; behind a prompt it would be the answer's own."""
    vocabulary = Vocabulary(PIECES, frozenset(), None)
    encode = PIECES.encode
    for prompt, answer in (("a", "e"), ("the", " the"), ("the a", "h")):
        tokens = vocabulary.tokens(text(prompt, answer))
        assert tokens.prompt + tokens.answer == encode(prompt + answer)
        assert PIECES.decode(tokens.prompt + tokens.answer) == prompt + answer
    # Where the two would grow together, the prompt stays what it was.
    grown = vocabulary.tokens(text("t", "he"))
    assert grown.prompt == encode("t")
    assert grown.answer == encode("he", add_special=False)


def test_a_start_token_that_is_written_out_is_not_doubled() -> None:
    """Prompts that a server logged begin with it; the tokenizer adds it too."""
    raw = {**tokenizer_json(288), "post_processor": ADDS_BOS}
    backend = Backend.from_str(json.dumps(raw))
    tokenizer = Tokenizer(backend, name="x", digest="", vocab_size=288, bos_id=1)
    vocabulary = Vocabulary(tokenizer, frozenset(), None)
    bare = vocabulary.tokens(text("the cat", "a")).prompt
    assert bare[0] == 1
    assert vocabulary.tokens(text(f"{SPECIALS[1]}the cat", "a")).prompt == bare


def test_a_chat_goes_through_the_template(vocabulary: Vocabulary) -> None:
    chat = Recorded(1, "x", messages=(("user", "hi"),), answer="ho")
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    tokens = vocabulary.tokens(chat)
    assert tokens.prompt == vocabulary.tokenizer.encode(expected, add_special=False)


def test_recorded_ids_are_used_as_they_are(vocabulary: Vocabulary) -> None:
    recorded = text("the", "the", prompt_ids=(7, 8), answer_ids=(9, 10, 2), ending="end")
    tokens = vocabulary.tokens(recorded)
    assert (tokens.prompt, tokens.answer) == ([7, 8], [9, 10, 2])


def test_an_end_token_in_the_middle_did_not_end_it(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.tokens(text("a", "", answer_ids=(5, 2, 6)))
    assert tokens.ends == frozenset()
    assert vocabulary.tokens(text("a", "", answer_ids=(5, 2), ignore_eos=True)).ends == frozenset()


def test_the_context_limits_too(tiny_path: Path) -> None:
    vocabulary = open_vocabulary(str(tiny_path), max_model_len=10)
    tokens = vocabulary.tokens(text("", "", prompt_ids=(5,) * 4, answer_ids=(6, 2), ending="end"))
    assert (tokens.room, tokens.context) == (6, 6)
    assert vocabulary.checks.beyond_context == 0
    cut = vocabulary.tokens(text("", "", prompt_ids=(5,) * 9, answer_ids=(6, 7, 8), ending="cut"))
    assert (cut.room, cut.context) == (3, 3)
    assert vocabulary.checks.beyond_context == 1


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (text("", "b"), "no tokens"),
        (text("a", ""), "empty"),
        (text("a", "b", answer_ids=(5, 99999)), "99999"),
        (Recorded(1, "x", answer="b"), "missing"),
    ],
)
def test_what_cannot_be_replayed(vocabulary: Vocabulary, recorded: Recorded, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        vocabulary.tokens(recorded)


def test_a_log_that_contradicts_the_tokenizer_is_noticed(tiny_path: Path) -> None:
    vocabulary = open_vocabulary(str(tiny_path))
    replay = replayed(parse_arms("ngram:k=2"), vocabulary)
    right = vocabulary.tokenizer.encode("abcabc", add_special=False)
    stated = {"prompt_tokens": 1, "answer_tokens": len(right)}
    replay.run(
        [
            text("a", "abcabc", answer_ids=tuple(right), **stated),
            text("a", "abcabc", answer_ids=(40, 41), prompt_tokens=9, answer_tokens=7),
        ]
    )
    said = "\n".join(notes(replay, Asked("x", "t")))
    assert "WRONG TOKENIZER? in 1 of 2" in said
    assert "1 of 2 prompts have another length" in said
    assert "1 of 2 answers have another number" in said


def test_tokenizers_without_a_model(tmp_path: Path, tiny_path: Path) -> None:
    """Any architecture: only the tokenizer's own files count."""
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((tiny_path / name).read_bytes())
    (other / "config.json").write_text('{"architectures": ["Qwen9ForCausalLM"]}')
    whole = open_vocabulary(str(tiny_path))
    for name in (other, other / "tokenizer.json", write_tiny_gguf(tmp_path / "tiny.gguf")):
        found = open_vocabulary(str(name))
        assert (found.ends, found.turn_end) == (whole.ends, whole.turn_end) == ({0, 2}, 2)
        assert found.tokenizer.encode("the cat") == whole.tokenizer.encode("the cat")
    with pytest.raises(ModelError):
        open_vocabulary(str(tmp_path / "nowhere"))


def test_names_on_the_hub(tmp_path: Path, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's files and no weights; afterwards from the cache, without the hub."""
    shutil.copytree(tiny_path, tmp_path / "repos/org/name")
    (tmp_path / "repos/org/empty").mkdir()
    (tmp_path / "repos/org/empty/config.json").write_text("{}")
    with fake_hub(tmp_path / "repos") as hub:
        point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache")
        assert open_vocabulary("org/name@main").turn_end == 2
        assert hub.served["org/name/tokenizer.json"] > 0
        assert not any("safetensors" in name for name in hub.served)
        with pytest.raises(ModelError, match=r"org/missing: there is no such model"):
            open_vocabulary("org/missing")
        with pytest.raises(ModelError, match=r"org/name: has no revision 'v9'"):
            open_vocabulary("org/name@v9")
        with pytest.raises(ModelError, match=r"org/empty has no tokenizer\.json"):
            open_vocabulary("org/empty")
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache", offline=True)
    assert open_vocabulary("org/name").turn_end == 2
    with pytest.raises(ModelError, match=r"^org/missing: "):
        open_vocabulary("org/missing")
