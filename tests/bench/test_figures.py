"""Cells of engines that tell less than our own, and advice, from scripted answers."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import pytest

from tests.bench.scripted import reply, silent
from tests.bench.test_results import SCHEMA, arm_result, cell_of, report, strict, valid
from wager.backend import Answer, Counters, SourceCounts
from wager.bench.figures import advice
from wager.bench.identity import Identity
from wager.bench.results import Cell, StartUp
from wager.bench.verdicts import OverLoads


def test_nothing_drafted_is_not_active_and_gets_no_verdict() -> None:
    """An arm that never drafted was plain decoding, whatever its times were."""
    plain = [[reply(f"p{i}", total=2.0, drafts=[(0, 0)] * 3)] for i in range(6)]
    spec = [[reply(f"p{i}", total=1.0, drafts=[(0, 0)] * 3)] for i in range(6)]
    found = cell_of(plain, spec)
    assert (found.active, found.status, found.verdict) == (False, "NOT ACTIVE", None)
    assert "not one token was drafted" in found.reason
    valid(found)
    server = cell_of(plain, [[silent(a[0])] for a in spec], counted=Counters(drafted=0, drafts=0))
    assert (server.active, server.status, server.verdict) == (False, "NOT ACTIVE", None)
    assert server.acceptance_rate is None
    # Not known is not the same as nothing.
    unknown = cell_of(plain, [[silent(a[0])] for a in spec])
    assert (unknown.active, unknown.status, unknown.verdict) == (None, "measured", "use")


def test_server_counters_stand_in_for_the_counts_of_requests() -> None:
    counted = Counters(
        drafts=40, drafted=160, accepted=100, accepted_at=(36, 28, 20, 16), generated=200
    )
    found = cell_of([[reply("a")]], [[silent(reply("a"))]], counted=counted)
    assert found.draft_figures_from == "server"
    assert (found.drafted, found.accepted, found.acceptance_rate) == (160, 100, 100 / 160)
    # 200 tokens less 100 accepted ones were committed by as many steps of a request.
    assert found.tokens_per_step == 2.0
    assert found.coverage == 0.4
    assert found.acceptance_length == 1 + 100 / 40
    assert found.acceptance_by_position_unconditional == [0.9, 0.7, 0.5, 0.4]
    conditional = found.acceptance_by_position_conditional
    assert conditional == pytest.approx([0.9, 0.7 / 0.9, 0.5 / 0.7, 0.8])
    assert found.tokens_per_step_mean_of_requests is None
    assert found.acceptance_rate_mean_of_requests is None
    valid(found)


def test_drafts_by_source_are_the_counters_over_all_parts() -> None:
    counted = Counters(drafted=8, by_source={"suffix": SourceCounts(2, 8, 5)})
    twice = [[reply("a")], [reply("b")]]
    found = cell_of(twice, twice, counted=counted)
    assert found.by_source == {"suffix": SourceCounts(2, 8, 5)}
    found = replace(found, warm=50)
    written = valid(found)["cells"][0]
    assert written["by_source"] == {"suffix": {"drafts": 2, "drafted": 8, "accepted": 5}}
    assert written["warm"] == 50
    assert cell_of(twice, twice).by_source is None
    # Of replies that all failed the counters tell nothing.
    bad = [[replace(answers[0], error="gone")] for answers in twice]
    assert cell_of(twice, bad, counted=counted).by_source is None


def test_a_server_that_contradicts_itself_is_not_believed() -> None:
    counted = Counters(drafts=10, drafted=40, accepted=12, accepted_at=(4, 8))
    found = cell_of([[reply("a")]], [[silent(reply("a"))]], counted=counted)
    assert found.acceptance_by_position_conditional is None
    # The target's own token counted as accepted: a rate above 1.
    bonus = Counters(drafts=10, drafted=40, accepted=50, accepted_at=(12, 8), generated=60)
    odd = cell_of([[reply("a")]], [[silent(reply("a"))]], counted=bonus)
    assert (odd.drafted, odd.accepted, odd.acceptance_rate) == (40, None, None)
    assert (odd.tokens_per_step, odd.acceptance_length) == (None, None)
    assert odd.acceptance_by_position_unconditional is None
    valid(found, odd)


def test_pooled_and_mean_of_requests_of_a_scripted_trace() -> None:
    """10 steps of 5 tokens and 100 steps of 2: 2.27 pooled, 3.5 as the mean of the requests."""
    plain = [[reply("a", range(50))], [reply("b", range(200))]]
    spec = [
        [reply("a", range(50), drafts=[(4, 4)] * 10)],
        [reply("b", range(200), drafts=[(1, 1)] * 100)],
    ]
    found = cell_of(plain, spec)
    assert found.tokens_per_step == 250 / 110
    assert found.tokens_per_step_mean_of_requests == 3.5


def test_failed_replies_are_counted_and_in_no_figure() -> None:
    bad = replace(reply("b", total=99.0), error="gone")
    twice = [[reply("a"), reply("a")], [reply("b"), reply("b")]]
    found = cell_of(twice, [[reply("a"), reply("a")], [bad, bad]])
    assert (found.outputs, found.errors.plain, found.errors.spec) == (1, 0, 2)
    assert found.notes == ["failed: gone (2 replies)"]
    assert found.speedup == 1.0
    nothing = cell_of([[reply("b")]], [[bad]])
    assert (nothing.outputs, nothing.speedup, nothing.verdict) == (0, None, None)
    assert nothing.requests == []
    valid(found, nothing)


def test_many_failures_leave_no_verdict() -> None:
    """Those that did not fail are no fair sample: perhaps the short ones alone were in time."""
    plain = [[reply(f"p{i}", total=2.0), reply(f"p{i}", total=2.0)] for i in range(10)]
    fast = [[reply(f"p{i}", total=1.5), reply(f"p{i}", total=1.5)] for i in range(10)]

    def lose(arm: list[list[Answer]], number: int) -> list[list[Answer]]:
        gone = [[a[0], replace(a[1], error="gone")] for a in arm[:number]]
        return [*gone, *arm[number:]]

    assert cell_of(plain, lose(fast, 1)).verdict == "use"
    found = cell_of(plain, lose(fast, 2))
    assert (found.verdict, found.status, found.speedup) == (None, "measured", 2.0 / 1.5)
    assert found.reason.startswith("10 % of an arm's replies failed")
    assert cell_of(lose(plain, 2), fast).verdict is None
    valid(found)


def test_replies_that_all_failed_say_nothing_about_drafting() -> None:
    bad = [[replace(reply(f"p{i}"), error="HTTP 400")] for i in range(6)]
    found = cell_of(
        [[reply(f"p{i}")] for i in range(6)], bad, counted=Counters(drafted=0, drafts=0)
    )
    assert (found.active, found.status, found.verdict) == (None, "measured", None)
    assert "replies failed" in found.reason
    valid(found)


def test_tokens_behind_the_end_of_a_reply_bring_nothing() -> None:
    """vLLM counts them as accepted: ten steps of nine tokens, of which two replies used 80."""
    counted = Counters(steps=12, drafts=10, drafted=80, accepted=80, generated=82)
    found = cell_of([[reply("a")]], [[silent(reply("a"))]], counted=counted)
    assert found.tokens_per_step == 82 / 12
    assert (found.acceptance_length, found.acceptance_rate) == (9.0, 1.0)


def test_the_own_engine_that_drafted_nothing_had_nothing_to_draft_from() -> None:
    idle = [[reply(f"p{i}", drafts=[(0, 0)] * 3)] for i in range(6)]
    assert cell_of(idle, idle).reason.endswith("plain decoding: there was nothing to draft from")
    other = cell_of(idle, idle, engine="vllm")
    assert other.reason.endswith("or the method did not reach the engine")


def test_sampled_replies_of_another_engine_are_not_compared() -> None:
    other = [[reply("a", tokens=[1, 2, 4])]]
    sampled = cell_of([[reply("a")]], other, engine="vllm", temperature=0.7)
    assert (sampled.identical, sampled.identity.compared) == (None, 0)
    assert sampled.requests[0].identical is None
    greedy = cell_of([[reply("a")]], other, engine="vllm")
    assert (greedy.identical, greedy.identity.compared) == (0, 1)
    own = cell_of([[reply("a")]], other, temperature=0.7)
    assert (own.identical, own.requests[0].identical) == (0, False)
    valid(sampled, greedy)


def test_text_is_compared_where_no_ids_are_told() -> None:
    spec = [[silent(reply("a", text="so"))]]
    found = cell_of([[reply("a", text="so")]], spec, engine="vllm")
    assert (found.identical, found.identity.unit, found.loops) == (1, "text", None)
    valid(found)


def test_throughput_at_a_rate_is_of_the_wall_clock() -> None:
    answers = [[reply("a", range(8))], [reply("b", range(12))]]
    found = cell_of(answers, answers, None, rate=2.0, seconds=4.0)
    assert (found.clients, found.rate, found.plain_tok_s) == (None, 2.0, 5.0)
    valid(found)


def test_a_reply_of_unknown_length_has_no_speed_up() -> None:
    unknown = replace(reply("a"), tokens=None, token_ids=None)
    found = cell_of([[reply("a")]], [[unknown]], engine="url")
    assert (found.speedup, found.requests[0].tokens) == (None, None)
    valid(found)


def test_runs_that_differ_much_are_pointed_out() -> None:
    """The second server of the plain arm was half again as slow, which no other prompt tells."""
    plain = [[reply(f"p{i}", total=2.0), reply(f"p{i}", total=3.0)] for i in range(6)]
    spec = [[reply(f"p{i}", total=2.0), reply(f"p{i}", total=2.1)] for i in range(6)]
    found = cell_of(plain, spec, engine="vllm")
    assert found.speedup_low == found.speedup_high
    assert [note.partition(":")[0] for note in found.notes] == [
        "runs of the same prompts differ by 50 % (plain)"
    ]
    assert cell_of(spec, spec).notes == []
    # Longer replies take longer; a token does not.
    longer = [[reply("a", range(4), total=4.0), reply("a", range(8), total=8.0)]]
    assert cell_of(longer, longer, engine="vllm").notes == []


def test_arms_that_did_not_run_back_are_pointed_out() -> None:
    once, twice = [[reply("a")]], [[reply("a"), reply("a")]]
    assert cell_of(once, once).notes[0].startswith("ended before the arms had run there and back")
    assert cell_of(twice, twice).notes == []


def test_doubts_about_replies_are_told_once() -> None:
    doubtful = replace(reply("a"), notes=["odd timings"])
    found = cell_of([[reply("a"), reply("a")]], [[doubtful, replace(doubtful)]])
    assert found.notes == ["odd timings (2 replies)"]
    valid(found)


def test_advice_is_given_per_workload_and_arm() -> None:
    def times(speed: float, clients: int) -> Cell:
        plain = [[reply(f"p{i}", total=t)] for i, t in enumerate([2.0, 2.2, 1.8, 2.1, 1.9])]
        drafts = [(8, 7)]
        spec = [[replace(a[0], total_s=a[0].total_s / speed)] for a in plain]
        spec = [[replace(a[0], counts=reply("x", drafts=drafts).counts)] for a in spec]
        return cell_of(plain, spec, clients)

    cells = [times(2.0, 1), times(1.5, 4), times(0.8, 8)]
    (found,) = advice(cells)
    assert (found.verdict, found.below) == ("use below 8 clients", 8)
    assert found.reason.startswith("0.80x at 8 clients: ")
    valid(*cells)


def test_the_schema_takes_every_form_of_advice() -> None:
    for verdict in ("use", "use below 8 clients", "use below 0.5 requests/s", "no difference",
                    "do not use", None):  # fmt: skip
        found = report(verdicts=[OverLoads("w", "a", verdict, None, "why")])
        jsonschema.validate(strict(found.to_json()), SCHEMA, cls=jsonschema.Draft202012Validator)
    wrong = strict(report(verdicts=[OverLoads("w", "a", "use below", None, "why")]).to_json())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_an_arm_of_another_engine_is_in_the_contract() -> None:
    arm = arm_result(
        command=["serve", "--port", "1"],
        version="0.32",
        effective={"k": 4, "nested": {"a": None}},
        startup_s=StartUp(cold=60.0, warm=20.0, any=30.0),
        kv_tokens=1000,
        kv_share_lost=-0.1,
        identity=Identity(0, 0, None, [], None),
        warnings=["async scheduling is off"],
        error="ended",
    )
    found = report(engine="vllm", weights=None, kv=None, threads=None, complete=False, arms=[arm])
    machine = {**found.machine, "isa": None}
    text = replace(found, machine=machine).to_json()
    jsonschema.validate(strict(text), SCHEMA, cls=jsonschema.Draft202012Validator)
