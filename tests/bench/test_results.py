"""Figures and JSON against scripted answers whose right figures are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.bench.scripted import ARMS, ON, prompt, reply
from wager.arms import PLAIN
from wager.backend import Answer, Counters, Load
from wager.bench.figures import advice, cell, highest_speedup
from wager.bench.measure import Measurement
from wager.bench.results import (
    ArmResult,
    Cell,
    Report,
    ServerCounts,
    StartUp,
)
from wager.cli.files import check_writable, write
from wager.errors import ConfigError

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "bench.schema.json").read_text())
STEP_MS: dict[str, float | None] = {
    "1": 5.5, "2": 5.6, "3": 5.8, "5": 6.0, "9": 7.5, "17": None, "32": None,
}  # fmt: skip


def cell_of(
    plain: Sequence[Sequence[Answer]],
    spec: Sequence[Sequence[Answer]],
    clients: int | None = 1,
    expected: str | None = None,
    *,
    rate: float | None = None,
    counted: Counters | None = None,
    engine: str = "own",
    temperature: float = 0.0,
    seconds: float = 1.0,
) -> Cell:
    asked = [prompt(answers[0].prompt_id, expected, temperature) for answers in plain]
    target = Measurement(
        "w", Load(clients, rate), asked, ARMS, engine=engine, exact=engine == "own"
    )
    for arm, side in zip(ARMS, (plain, spec), strict=True):
        every = [answer for answers in side for answer in answers]
        target.take(arm, every, counted or Counters(), seconds)
    found = cell(target, ON)
    assert found is not None
    return found


def arm_result(name: str = ON.name, **more: Any) -> ArmResult:
    nothing = ServerCounts(None, None, None, None, None, None, None, 0)
    made = ArmResult(
        arm=name,
        method=name.partition(":")[0],
        options={},
        description="ngram, at most 8 draft tokens, lookup 2 to 5",
        command=None,
        version=None,
        effective={},
        startup_s=StartUp(),
        kv_tokens=None,
        kv_share_lost=None,
        draft_time_share=0.004,
        active=None,
        counters=nothing,
        identity=None,
        warnings=[],
        error=None,
    )
    return replace(made, **more)


def report(*cells: Cell, **more: Any) -> Report:
    made = Report(
        model="tiny",
        engine="own",
        weights="int8",
        kv="f16",
        threads=2,
        machine={"cpu": "some", "cores": 2, "memory": None, "isa": "avx2"},
        versions={"wager": "0", "python": "3", "numpy": "2"},
        complete=True,
        step_ms=STEP_MS,
        arms=[arm_result(PLAIN, description="no drafts"), arm_result()],
        cells=list(cells),
        verdicts=advice(cells),
    )
    return replace(made, **more)


def strict(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def valid(*cells: Cell) -> Any:
    found = strict(report(*cells).to_json())
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    return found


def test_figures_of_a_known_measurement() -> None:
    plain = [
        [reply("a", range(11), first=1.0, total=11.0, drafts=[(0, 0)] * 11)],
        [reply("b", range(5), first=1.0, total=3.0, drafts=[(0, 0)] * 5)],
    ]
    spec = [
        [reply("a", range(11), first=1.0, total=3.0, drafts=[(0, 0), (8, 8), (2, 0)])],
        [reply("b", range(5), first=1.0, total=4.0, drafts=[(0, 0), (4, 1), (0, 0), (2, 0)])],
    ]
    found = cell_of(plain, spec)
    assert found.plain_tok_s == 16 / 14
    assert found.spec_tok_s == 16 / 7
    assert found.speedup == 2.0
    assert found.plain_decode_tok_s == 14 / 12
    assert found.spec_decode_tok_s == 14 / 5
    assert found.decode_speedup == 12 / 5
    assert found.prefill_share == 2 / 14
    assert found.tokens_per_step == 16 / 7
    assert found.acceptance_length == (9 + 1 + 2 + 1) / 4
    assert found.coverage == 4 / 7
    assert (found.drafted, found.accepted, found.acceptance_rate) == (16, 9, 9 / 16)
    assert found.acceptance_by_position_unconditional == [0.5] + [0.25] * 7
    assert found.acceptance_by_position_conditional == [0.5, 0.5] + [1.0] * 6
    assert found.tokens_per_step_mean_of_requests == (11 / 3 + 5 / 4) / 2
    assert found.acceptance_rate_mean_of_requests == (8 / 10 + 1 / 6) / 2
    assert found.draft_figures_from == "requests"
    # 14 tokens after the first in 5 steps after the first; 12 s of plain decode against 5 s.
    assert found.verify_cost_estimated == pytest.approx((14 / 5) / (12 / 5))
    assert (found.outputs, found.identical, found.loops, found.followed) == (2, 2, 0, None)
    assert [r.steps for r in found.requests] == [3, 4]
    assert found.requests[0].plain_s == 11.0
    valid(found)


def test_keys_are_the_contract_in_its_order() -> None:
    found = valid(cell_of([[reply("a")]], [[reply("a")]]))
    assert list(found) == SCHEMA["required"]
    cell = SCHEMA["$defs"]["cell"]
    assert list(found["cells"][0]) == list(cell["properties"])
    # What came later is not required: older files do not have it.
    assert list(found["cells"][0]) == [*cell["required"], "by_source", "warm"]
    for kind, one in (
        ("request", found["cells"][0]["requests"][0]),
        ("arm", found["arms"][0]),
        ("verdict", found["verdicts"][0]),
        ("identity", found["cells"][0]["identity"]),
    ):
        assert list(one) == SCHEMA["$defs"][kind]["required"]


def test_clients_share_the_throughput_but_not_the_decode_rate() -> None:
    answers = [[reply("a", range(11), first=1.0, total=11.0)]]
    one, eight = cell_of(answers, answers), cell_of(answers, answers, clients=8)
    assert one.plain_tok_s == 1.0
    assert eight.plain_tok_s == 8.0
    assert one.plain_decode_tok_s == eight.plain_decode_tok_s == 1.0


def test_runs_of_a_prompt_are_its_median() -> None:
    plain = [[reply("a", total=t) for t in (4.0, 100.0, 5.0)]]
    spec = [[reply("a", total=t) for t in (2.0, 2.5, 0.1)]]
    found = cell_of(plain, spec)
    assert found.speedup == 2.5
    assert (found.requests[0].plain_s, found.requests[0].spec_s) == (5.0, 2.0)


def test_the_verdict_follows_the_interval_of_whole_requests() -> None:
    def times(values: Sequence[float], accepted: int = 2) -> list[list[Answer]]:
        drafts = [(0, 0), (4, accepted), *[(0, 0)] * (2 - accepted)]
        return [[reply(f"p{i}", range(4), total=t, drafts=drafts)] for i, t in enumerate(values)]

    slow, fast = times([2.0, 2.2, 1.8, 2.1, 1.9]), times([1.0, 1.1, 0.9, 1.05, 1.0])
    mixed = times([1.0, 4.4, 0.9, 3.0, 1.9])
    assert cell_of(slow, fast).verdict == "use"
    assert cell_of(fast, slow).verdict == "do not use"
    assert cell_of(slow, mixed).verdict == "no difference"
    assert cell_of(slow, slow).verdict == "no difference"
    assert cell_of(slow[:4], fast[:4]).verdict is None
    assert cell_of(slow[:4], fast[:4]).speedup_low is None
    wrong = times([1.0, 1.1, 0.9, 1.05, 1.0], accepted=0)
    assert cell_of(slow, wrong).verdict == "no difference"


def test_the_prompt_bounds_a_gain_of_one_client_only() -> None:
    requests = cell_of([[reply("a")]], [[reply("a", range(9), drafts=[(0, 0), (8, 7)])]]).requests
    assert highest_speedup(1, 0.5, requests) == pytest.approx(1 / (0.5 + 0.5 / 8))
    assert highest_speedup(8, 0.5, requests) == 8.0
    assert highest_speedup(1, None, requests) is None
    untold = [replace(requests[0], steps=None)]
    assert highest_speedup(1, 0.5, untold) is None
    # What the server counted in all stands in for it.
    assert highest_speedup(1, 0.5, untold, 4.0) == pytest.approx(1 / (0.5 + 0.5 / 4))
    assert highest_speedup(8, 0.5, untold, 4.0) == 4.0
    assert highest_speedup(1, 0.5, []) is None


def test_no_draft_at_all_is_null_not_zero_or_nan() -> None:
    found = cell_of([[reply("a")]], [[reply("a", drafts=[(0, 0)] * 3)]])
    assert found.acceptance_rate is None
    assert found.acceptance_length is None
    assert found.acceptance_by_position_unconditional is None
    assert (found.drafted, found.accepted, found.coverage) == (0, 0, 0.0)
    valid(found)


def test_an_engine_that_tells_no_counts_leaves_them_null() -> None:
    found = cell_of([[reply("a")]], [[reply("a", drafts=None)]])
    assert (found.tokens_per_step, found.drafted, found.requests[0].steps) == (None, None, None)
    assert (found.active, found.draft_figures_from) == (None, None)
    valid(found)


def test_replies_of_one_token_or_none_have_no_decode_speed() -> None:
    for tokens in ([5], []):
        short = [[reply("a", tokens, first=1.0, total=1.0)]]
        found = cell_of(short, short)
        assert found.decode_speedup is None
        assert found.plain_decode_tok_s is None
        valid(found)
    mixed = [[reply("a", [5], first=1.0, total=1.0)], [reply("b", range(5), 1.0, 3.0)]]
    assert cell_of(mixed, mixed).plain_decode_tok_s == 2.0


def test_replies_of_other_lengths_are_compared_per_token() -> None:
    plain = [[reply("a", range(10), first=0.0, total=10.0)]]
    spec = [[reply("a", range(5), first=0.0, total=2.5)]]
    found = cell_of(plain, spec)
    # Five tokens are missing, each of 2.5 / 4 s.
    assert found.speedup == pytest.approx(10.0 / (2.5 + 5 * 2.5 / 4))
    assert found.decode_speedup == pytest.approx((10 / 9) / (2.5 / 4))
    assert found.identical == 0


def test_the_prompt_takes_no_longer_for_a_longer_reply() -> None:
    """Equal arms stay equal however the lengths of their sampled replies fall: 5 s for the prompt,
    1 s for each later token, in both."""

    def took(name: str, tokens: int) -> list[Answer]:
        return [reply(name, range(tokens), first=5.0, total=5.0 + tokens - 1, drafts=None)]

    lengths = [(4, 16), (16, 4), (8, 2), (2, 8), (3, 12), (12, 3)]
    plain = [took(f"p{i}", a) for i, (a, _) in enumerate(lengths)]
    spec = [took(f"p{i}", b) for i, (_, b) in enumerate(lengths)]
    found = cell_of(plain, spec, engine="vllm", temperature=0.7)
    assert (found.speedup, found.verdict) == (pytest.approx(1.0), "no difference")


def test_seconds_and_tokens_of_runs_of_other_lengths_belong_together() -> None:
    """Both arms make a token a second; only the lengths of the two plain runs differ."""
    plain = [[reply("a", range(n), 1.0, float(n), drafts=None) for n in (8, 4)]]
    spec = [[reply("a", range(6), 1.0, 6.0, drafts=None) for _ in range(2)]]
    found = cell_of(plain, spec, engine="vllm")
    assert (found.speedup, found.decode_speedup, found.plain_tok_s) == (1.0, 1.0, 1.0)


def test_identical_means_every_run_of_both_arms() -> None:
    same = [reply("a"), reply("a")]
    other = [reply("a"), reply("a", tokens=[1, 2, 4])]
    assert cell_of([same], [same]).identical == 1
    assert cell_of([same], [other]).identical == 0
    assert cell_of([other], [same]).identical == 0


def test_followed_and_loops_are_counted() -> None:
    good, bad = "```\nx = 1\n```", "```\nx = 2\n```"
    spec = [[reply("a", text=good)], [reply("b", [3] * 80, text=bad)]]
    found = cell_of(spec, spec, expected="x = 1\n")
    assert (found.followed, found.loops, found.outputs) == (1, 1, 2)


def test_the_schema_refuses_what_is_not_the_contract() -> None:
    base = valid(cell_of([[reply("a")]], [[reply("a")]]))
    for damage in (
        {"schema": 1},
        {"extra": 1},
        {"step_ms": {"1": 5.0}},
        {"cells": [{**base["cells"][0], "verdict": "maybe"}]},
        {"cells": [{**base["cells"][0], "acceptance_rate": 1.2}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**base, **damage}, SCHEMA)


def test_nan_never_reaches_the_file(tmp_path: Path) -> None:
    bad = report(cell_of([[reply("a", total=float("nan"))]], [[reply("a")]]))
    path = tmp_path / "out.json"
    path.write_text("before")
    with pytest.raises(ValueError, match="JSON"):
        write(bad.to_json(), path, "json")
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    assert path.read_text() == "before"


def test_write_replaces_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write(report(cell_of([[reply("a")]], [[reply("a")]])).to_json(), path, "json")
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    assert strict(path.read_text())["schema"] == 2


def test_a_place_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json", "json")
    for path in (tmp_path, tmp_path / "missing" / "x.json"):
        with pytest.raises(ConfigError, match="json"):
            check_writable(path, "json")
