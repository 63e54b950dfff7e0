"""`wager bench` over scripted servers: the figures of known streams, to the token."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.external.stub import DONE, Script, Stub, counters, delta, text, usage
from wager.cli.main import main

CLOCK_S = 0.02
Scripts = Callable[[int, dict[str, Any]], Script]
Measure = Callable[..., dict[str, Any]]
ENGINE_0, ENGINE_1 = 'engine="0"', 'engine="1"'


def tokens(number: int, per_piece: int = 1, every_s: float = 0.01) -> Script:
    """Pieces of ``per_piece`` tokens, one every ``every_s`` seconds."""
    pieces = [
        (every_s * i, text("x" * per_piece, ids=range(per_piece * i, per_piece * (i + 1))))
        for i in range(number // per_piece)
    ]
    end = pieces[-1][0] if pieces else 0.0
    last = [text("", ids=[], finish="length"), usage(number, 5), DONE]
    return Script([*pieces, *((end, event) for event in last)])


class Pages:
    """A metrics page that grows with each reading, by as much as its two engines drafted."""

    def __init__(self, reset_at: int | None = None) -> None:
        self.reset_at = reset_at

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, reading: int) -> str:
        at = reading
        if self.reset_at is not None and reading >= self.reset_at:
            at = 0
        zero, one = 10 * at, 100 + 30 * at
        return counters(
            spec_decode_num_drafts={ENGINE_0: zero, ENGINE_1: one},
            spec_decode_num_draft_tokens={ENGINE_0: 4 * zero, ENGINE_1: 4 * one},
            spec_decode_num_accepted_tokens={ENGINE_0: 2 * zero, ENGINE_1: 3 * one},
        )


@pytest.fixture
def measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Measure:
    def run(
        off: Script | Scripts,
        on: Script | Scripts,
        pages: Sequence[str | None] = (None,),
        max_tokens: int = 64,
        status: int = 0,
    ) -> dict[str, Any]:
        file = tmp_path / "run.json"
        with Stub(_all(off), owner="vllm") as plain, Stub(_all(on), pages, owner="vllm") as spec:
            ended = main(
                [
                    *("bench", "-", "--engine", "url"),
                    *("--url-off", plain.url, "--url-on", spec.url, "--arms", "plain,ngram"),
                    *("--workload", "copy", "--clients", "2", "--prompts", "2"),
                    *("--max-tokens", str(max_tokens), "--identity", "0", "--json", str(file)),
                ]
            )
        out = capsys.readouterr()
        assert ended == status, out.err
        if status:
            return {"error": out.err}
        found = json.loads(file.read_text(), parse_constant=_not_json)
        found["printed"] = out.out
        return dict(found)

    return run


def _all(script: Script | Scripts) -> Scripts:
    return script if callable(script) else lambda number, body: script


def _not_json(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def test_a_method_that_never_drafted_is_not_active(measure: Measure) -> None:
    """The counters are there and stay at zero; nothing is divided by them."""
    zero = {ENGINE_0: 0.0}
    page = counters(
        spec_decode_num_drafts=zero,
        spec_decode_num_draft_tokens=zero,
        spec_decode_num_accepted_tokens=zero,
    )
    found = measure(tokens(8), tokens(8), pages=[page])
    (cell,) = found["cells"]
    assert cell["status"] == "NOT ACTIVE"
    assert cell["active"] is False
    assert (cell["drafted"], cell["accepted"]) == (0, 0)
    assert cell["acceptance_rate"] is None
    assert cell["acceptance_length"] is None
    assert "NOT ACTIVE" in found["printed"]
    assert "nan" not in found["printed"].lower()


def test_pieces_are_not_tokens(measure: Measure) -> None:
    """Ten pieces of five tokens, 100 ms apart, beside one token every 100 ms."""
    found = measure(
        lambda _, body: tokens(min(10, body["max_tokens"]), 1, 0.1),
        # The warm-up asks for fewer.
        lambda _, body: tokens(min(50, body["max_tokens"] // 5 * 5), 5, 0.1),
    )
    (cell,) = found["cells"]
    assert cell["chunk_gap_s"]["plain"]["p50"] == pytest.approx(0.1, abs=CLOCK_S)
    assert cell["chunk_gap_s"]["spec"]["p50"] == pytest.approx(0.1, abs=CLOCK_S)
    assert cell["tpot_s"]["plain"]["p50"] == pytest.approx(0.1, abs=CLOCK_S)
    assert cell["tpot_s"]["spec"]["p50"] == pytest.approx(0.02, abs=CLOCK_S / 5)
    assert cell["spec_decode_tok_s"] == pytest.approx(50, rel=0.1)
    assert [request["tokens"] for request in cell["requests"]] == [50, 50]


@pytest.mark.parametrize("number", [0, 1])
def test_replies_too_short_for_a_rate(measure: Measure, number: int) -> None:
    """Excluded, and said so; no figure is infinite, negative or made up."""
    found = measure(tokens(number), tokens(number))
    (cell,) = found["cells"]
    assert cell["excluded"]["plain"] == cell["excluded"]["spec"] > 0
    assert cell["tpot_s"]["spec"]["p50"] is None
    assert cell["spec_decode_tok_s"] is None
    assert (cell["ttft_s"]["spec"]["p50"] is None) == (number == 0)


def test_the_first_token_is_one_of_reasoning(measure: Measure) -> None:
    """A role at once, reasoning after 200 ms, the answer after 400."""
    thinking = Script(
        [
            (0.0, delta(role="assistant", content="")),
            (0.2, delta(reasoning_content="hm")),
            (0.4, delta(content="yes")),
            *((0.4, event) for event in (delta("stop"), usage(2, 5), DONE)),
        ]
    )
    (cell,) = measure(thinking, thinking)["cells"]
    for arm in ("plain", "spec"):
        assert cell["ttft_s"][arm]["p50"] == pytest.approx(0.2, abs=CLOCK_S)


def test_cumulative_counters_of_two_engines(measure: Measure) -> None:
    """Per reading 10 and 30 drafts of 4; 2 and 3 accepted of each: 11/16, not 2/4."""
    found = measure(tokens(8), tokens(8), pages=Pages())
    (cell,) = found["cells"]
    assert cell["draft_figures_from"] == "server"
    assert cell["acceptance_rate"] == 11 / 16
    assert cell["acceptance_length"] == 1 + 110 / 40
    # What was there before the first reading belongs to nobody.
    counted = next(arm for arm in found["arms"] if arm["arm"] == "ngram")["counters"]
    assert counted["drafted"] == 4 * counted["drafts"]
    assert counted["drafts"] % 40 == 0
    assert counted["resets"] == 0


def test_counters_that_start_again(measure: Measure) -> None:
    """A reset in the middle leaves nothing to divide, and shows."""
    found = measure(tokens(8), tokens(8), pages=Pages(reset_at=5))
    arm = next(arm for arm in found["arms"] if arm["arm"] == "ngram")
    assert arm["counters"]["resets"] == 1
    (cell,) = found["cells"]
    assert cell["drafted"] is None
    assert cell["acceptance_rate"] is None
    assert cell["active"] is None


def test_counters_that_are_not_shown(measure: Measure) -> None:
    """Absent is not zero, and not inactive either."""
    (cell,) = measure(tokens(8), tokens(8))["cells"]
    assert cell["status"] == "measured"
    assert cell["active"] is None
    assert cell["drafted"] is None
    assert cell["acceptance_rate"] is None


def test_a_server_that_stops_heeding_the_length(measure: Measure) -> None:
    """Longer replies go on for ever; each is ended, and none counts as an answer."""
    endless = Script([(0.002 * i, text("x", ids=[i])) for i in range(10_000)])

    def on(_: int, body: dict[str, Any]) -> Script:
        return tokens(body["max_tokens"]) if body["max_tokens"] <= 16 else endless

    found = measure(lambda _, body: tokens(body["max_tokens"]), on)
    (cell,) = found["cells"]
    assert cell["errors"]["plain"] == 0
    assert cell["errors"]["spec"] == 4
    assert cell["speedup"] is None


def test_a_server_that_never_heeds_the_length(measure: Measure) -> None:
    """Where not even a warm-up gets a reply, the run ends with the reason."""
    endless = Script([(0.002 * i, text("x")) for i in range(10_000)])
    found = measure(tokens(8), endless, max_tokens=8, status=2)
    assert "9 tokens came where at most 8 were asked for" in found["error"]
