"""Draft memory in a running engine: restarts, tenants, damage, and who writes when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drafters.test_memory import ANSWERS, BLANK, DAMAGE, NativeIndex, told
from tests.recipes import prompts
from wager import LLM, SamplingParams
from wager.drafters import remember, suffix, suffix_index
from wager.drafters.base import DraftQuery
from wager.drafters.memory import DraftMemory, read, save, tenant_id
from wager.drafters.memory_options import MIN_BYTES
from wager.drafters.ngram import MEMORY_SOURCE
from wager.drafters.suffix import PAST_SOURCE
from wager.errors import ConfigError

VOCAB = 288
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(params=["suffix", "ngram"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A file that nothing is wrong with, but for its tokenizer."""
    save(tmp_path / "memory", BLANK, ANSWERS)
    return tmp_path / "memory"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name == "wager-memory"]


def setting(method: str | list[str], path: Path | None, **options: Any) -> dict[str, Any]:
    given = {"method": method, "num_speculative_tokens": 6, "controller": "off", **options}
    if "ngram" in method:
        given |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    return given if path is None else given | {"draft_memory": str(path)}


def play(llm: LLM, seed: int = 11, salt: str = "") -> tuple[list[list[int]], tuple[int, ...]]:
    """The answers to twelve prompts, one at a time, and what drafting did."""
    llm.engine.stats.reset()
    llm.engine.pool.clear_cache()
    found = []
    for prompt in prompts(12, VOCAB, seed):
        name = llm.engine.add_request(prompt, PARAMS, cache_salt=salt)
        tokens: list[int] = []
        while llm.engine.has_work():
            for output in llm.engine.step():
                assert output.request_id == name
                tokens += output.outputs[0].token_ids
        found.append(tokens)
    counts = llm.engine.stats.counts
    return found, (counts.steps, counts.drafted_steps, counts.drafted, counts.accepted)


def from_memory(llm: LLM) -> int:
    """Accepted draft tokens that came from past answers."""
    by_source = llm.engine.stats.by_source
    return sum(by_source[s].accepted for s in (PAST_SOURCE, MEMORY_SOURCE) if s in by_source)


def test_a_restart_keeps_the_warm_figures(
    method: str, make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    # In one process: cold, then warm. Suffix decoding remembers that far without a file.
    one = make_llm(speculation=setting(method, None if method == "suffix" else tmp_path / "one"))
    plain, cold = play(one)
    again, warm = play(one)
    assert plain == again
    assert warm[3] > cold[3]
    # The same with a restart in between.
    path = tmp_path / "two"
    first = make_llm(speculation=setting(method, path))
    assert play(first) == (plain, cold)
    first.engine.close()
    assert len(told(read(path))) == 12
    second = make_llm(speculation=setting(method, path))
    assert play(second) == (plain, warm)
    assert from_memory(second) > 0


def test_without_speculation_the_same_is_said(
    method: str, make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    llm = make_llm()
    plain, _ = play(llm)
    for _ in range(3):
        llm.set_speculation(setting(method, tmp_path / "memory"))
        assert play(llm)[0] == plain
    # What changes the method writes: the third found what the second had added.
    llm.set_speculation(None)
    assert len(told(read(tmp_path / "memory"))) == 36


def test_tenants_never_meet_in_the_file(
    method: str, make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    path = tmp_path / "memory"
    first = make_llm(speculation=setting(method, path))
    play(first, salt="alice")
    first.engine.close()
    assert {tenant for tenant, _ in told(read(path))} == {tenant_id("alice")}
    second = make_llm(speculation=setting(method, path, draft_memory_read_only=True))
    seen = {}
    for salt in ("bob", "", "alice"):
        second.reset_caches()
        play(second, salt=salt)
        # The first request of a tenant has no past but the file's.
        seen[salt] = from_memory(second)
    assert seen["alice"] > max(seen["bob"], seen[""])
    cold = make_llm(speculation=setting(method, tmp_path / "none"))
    play(cold, salt="bob")
    assert seen["bob"] == seen[""] == from_memory(cold)


@pytest.mark.parametrize("kind", ["empty", "truncated body", "byte of the body", "newer version"])
def test_the_engine_goes_on_without_a_damaged_file(
    kind: str,
    method: str,
    make_llm: Callable[..., LLM],
    sound: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage, reason = DAMAGE[kind]
    sound.write_bytes(damage(sound.read_bytes()))
    before = sound.read_bytes()
    with caplog.at_level(logging.WARNING):
        llm = make_llm(speculation=setting(method, sound))
    (said,) = caplog.messages
    assert str(sound) in said
    assert reason in said
    plain = make_llm(speculation=setting(method, sound.with_name("fresh")))
    assert play(llm) == play(plain)
    llm.engine.close()
    assert sound.read_bytes() == before


def test_another_tokenizers_file_is_left_alone(
    make_llm: Callable[..., LLM], sound: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = sound.read_bytes()
    with caplog.at_level(logging.WARNING):
        llm = make_llm(speculation=setting("suffix", sound))
    assert "is of another tokenizer" in caplog.text
    play(llm)
    llm.engine.close()
    assert sound.read_bytes() == before


def test_a_file_that_is_damaged_later_is_left_alone(
    make_llm: Callable[..., LLM], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "memory"
    llm = make_llm(speculation=setting("suffix", path))
    play(llm)
    path.write_bytes(b"something else")
    with caplog.at_level(logging.WARNING):
        llm.engine.close()
    assert "is no draft memory" in caplog.text
    assert path.read_bytes() == b"something else"


def test_a_file_that_cannot_be_written_waits(
    make_llm: Callable[..., LLM],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "memory"
    monkeypatch.setattr(remember, "SAVE_ANSWERS", 4)
    tries: list[int] = []

    def fails(*given: Any) -> None:
        tries.append(len(given[2]))
        raise OSError(28, "No space left on device")

    llm = make_llm(speculation=setting("suffix", path))
    with monkeypatch.context() as broken:
        broken.setattr(remember, "save", fails)
        plain, _ = play(llm)
        until(lambda: bool(tries))
        assert play(llm)[0] == plain
        # The thread does not try again with each of the twenty answers.
        assert len(tries) < 5
    assert "No space left on device" in caplog.text
    llm.engine.close()
    assert len(told(read(path))) == 24


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("trigger", ["answers", "time"])
def test_it_is_saved_while_the_engine_runs(
    trigger: str, make_llm: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash would leave."""
    path = tmp_path / "memory"
    if trigger == "answers":
        monkeypatch.setattr(remember, "SAVE_ANSWERS", 5)
    else:
        monkeypatch.setattr(remember, "SAVE_SECONDS", 0.05)
    llm = make_llm(speculation=setting("suffix", path))
    play(llm)
    until(lambda: path.exists() and len(told(read(path))) >= 5)
    llm.engine.close()
    assert len(told(read(path))) == 12


def test_two_engines_write_one_file(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    path = tmp_path / "memory"
    first = make_llm(speculation=setting("suffix", path))
    second = make_llm(speculation=setting("suffix", path))
    one, two = play(first, seed=1)[0], play(second, seed=2)[0]
    second.engine.close()
    first.engine.close()
    assert [tokens for _, tokens in told(read(path))] == two + one


def test_of_two_methods_one_writes(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    path = tmp_path / "memory"
    llm = make_llm(speculation=setting(["ngram", "suffix"], path))
    found, _ = play(llm)
    llm.engine.close()
    assert [tokens for _, tokens in told(read(path))] == found


def test_the_bound_holds_and_is_kept(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    path = tmp_path / "memory"
    llm = make_llm(speculation=setting("suffix", path, draft_memory_size=MIN_BYTES))
    for seed in range(6):
        play(llm, seed)
    llm.engine.close()
    found = read(path)
    assert found is not None
    assert found.max_bytes == MIN_BYTES
    assert MIN_BYTES / 2 < path.stat().st_size <= MIN_BYTES
    # Without one of its own, an engine keeps the file's bound.
    llm.set_speculation(setting("suffix", path))
    last, _ = play(llm, seed=9)
    llm.engine.close()
    assert path.stat().st_size <= MIN_BYTES
    assert [tokens for _, tokens in told(read(path))][-12:] == last


def test_reset_caches_makes_it_as_new(
    method: str, make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    path = tmp_path / "memory"
    first = make_llm(speculation=setting(method, path))
    play(first, seed=1)
    first.engine.close()
    llm = make_llm(speculation=setting(method, path))
    fresh = play(llm, seed=2)
    assert play(llm, seed=2) != fresh
    llm.reset_caches()
    assert play(llm, seed=2) == fresh
    llm.reset_caches()
    llm.engine.close()
    assert len(told(read(path))) == 12


def test_only_read(method: str, make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with pytest.raises(ConfigError, match="is not there, and is only to be read"):
        make_llm(speculation=setting(method, path, draft_memory_read_only=True))
    first = make_llm(speculation=setting(method, path))
    play(first)
    first.engine.close()
    before = path.read_bytes()
    llm = make_llm(speculation=setting(method, path, draft_memory_read_only=True))
    play(llm)
    llm.engine.close()
    assert path.read_bytes() == before


def test_a_place_where_no_file_can_be(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^draft_memory: .* there is no directory"):
        make_llm(speculation=setting("suffix", tmp_path / "no" / "memory"))


def test_a_link_goes_on_pointing_to_the_file(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "memory")
    llm = make_llm(speculation=setting("suffix", tmp_path / "link"))
    play(llm)
    llm.engine.close()
    assert (tmp_path / "link").is_symlink()
    assert len(told(read(tmp_path / "memory"))) == 12


def test_loading_pushes_nothing_out(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    """The index drops half of its answers at a time."""
    path = tmp_path / "memory"
    tokenizer = make_llm().tokenizer
    answers = [(tenant_id(""), [n, n + 1, n + 2]) for n in range(40)]
    save(path, DraftMemory(tokenizer.hash, tokenizer.vocab_size), answers)
    for kept, held in ((1, 1), (2, 1), (7, 7), (8, 7), (100, 40)):
        llm = make_llm(
            speculation=setting("suffix", path, suffix_decoding_max_cached_requests=kept)
        )
        assert llm.engine.drafters is not None
        index = llm.engine.drafters.members[0].drafter._index  # type: ignore[attr-defined]
        assert index.past_answers == held


def test_ngram_looks_at_its_own_text_first(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    path = tmp_path / "memory"
    llm = make_llm(speculation=setting("ngram", path))
    drafter = llm.engine.drafters.members[0].drafter  # type: ignore[union-attr]
    drafter.start(1, [50, 51], "")
    drafter.observe(1, [60, 61, 62, 63, 64])
    drafter.release(1)
    drafter.start(2, [60, 61, 7, 60, 61], "")
    drafter.start(3, [9, 60, 61], "")
    drafter.start(4, [9, 60, 61], "another tenant")
    own, memory_, none = drafter.propose(
        [DraftQuery(2, 5, 2), DraftQuery(3, 3, 2), DraftQuery(4, 3, 2)]
    )
    assert (own.tokens, own.source) == ((7, 60), "ngram")
    assert (memory_.tokens, memory_.source, memory_.match_length) == ((62, 63), MEMORY_SOURCE, 2)
    assert none.tokens == ()
    for request in (2, 3, 4):
        drafter.release(request)


@pytest.mark.skipif(NativeIndex is None, reason="the extension is not built")
def test_both_forms_of_the_index_say_the_same(
    method: str, make_llm: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory"
    first = make_llm(speculation=setting(method, path))
    play(first)
    first.engine.close()
    read_only = setting(method, path, draft_memory_read_only=True)
    native = play(make_llm(speculation=read_only))
    monkeypatch.setattr(suffix, "index_class", lambda: suffix_index.SuffixIndex)
    assert play(make_llm(speculation=read_only)) == native


def test_steps_do_not_wait_for_the_disk(
    make_llm: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that takes for ever holds up nothing but `close`."""
    monkeypatch.setattr(remember, "SAVE_ANSWERS", 1)
    go, begun = threading.Event(), threading.Event()
    whole = remember.save

    def slow(*given: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return whole(*given)

    monkeypatch.setattr(remember, "save", slow)
    llm = make_llm(speculation=setting("suffix", tmp_path / "memory"))
    play(llm)
    assert begun.wait(60)
    play(llm)
    go.set()
    llm.engine.close()
    assert len(told(read(tmp_path / "memory"))) == 24
