"""The benchmark of drafting: what is played, and what its tables say where peers are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.peers import Peers
from benchmarks.streams import ANSWER, ANSWERS, KINDS, MIXED, MOST, make_case

from benchmarks import drafters


@pytest.mark.parametrize("kind", [*KINDS, MIXED])
def test_a_case_is_the_same_every_time(kind: str) -> None:
    case = make_case(kind, 300, 7, 20)
    assert case == make_case(kind, 300, 7, 20)
    assert [len(prompt) for prompt in case.prompts] == [300] * 7
    assert [len(answer) for answer in case.past] == [ANSWER] * ANSWERS
    assert {len(tokens) for step in case.commits for tokens in step} == set(range(1, MOST + 1))
    assert all(len(step) == 7 for step in case.commits)


def test_texts_go_on_where_the_prompt_ends() -> None:
    case = make_case("period 7", 100, 1, 30)
    text = case.prompts[0] + [token for (tokens,) in case.commits for token in tokens]
    assert text == [(text[0] + i) % 7 for i in range(len(text))]


def test_without_peers_their_columns_are_not_available(tmp_path: Path) -> None:
    result = drafters.measure(Peers(tmp_path), (64,), (1, 8), {1: 12, 8: 12})
    assert len(result["cells"]) == len(KINDS) + 1
    for cell in result["cells"]:
        assert set(cell["arms"]) == set(drafters.OWN)
        assert all(arm["propose"] > 0 and arm["observe"] > 0 for arm in cell["arms"].values())
        assert cell["arms"]["ngram"]["drafted"] == cell["arms"]["ngram_gpu"]["drafted"]
    by_kind = {cell["kind"]: cell["arms"] for cell in result["cells"]}
    assert by_kind["period 7"]["ngram"]["drafted"] == 8
    text = drafters.report(result)
    assert "n/a: vLLM ngram, arctic, arctic, warm (scripts/peers.sh did not set them up)." in text
    own, other = drafters.aims(result)[:2], drafters.aims(result)[2:]
    assert all(aim.met is not None for aim in own)
    assert all(aim.met is None for aim in other)


def test_a_peer_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    """A Python without the libraries, in the place of the peers' one."""
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    (tmp_path / "suffix").mkdir()
    for part in ("vllm", "suffix"):
        (tmp_path / part / ".ready").touch()
    (tmp_path / "vllm" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    case = make_case("period 7", 10, 1, 1)
    with drafters.peer_process(Peers(tmp_path)) as other:
        assert other is not None
        with pytest.raises(RuntimeError, match="No module named 'vllm'"):
            other.build(case)
