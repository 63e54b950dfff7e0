"""Expectations of `wager tune`, its checks, and the parts that it is made of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.bench.tune_sim import Simulated, tokens_per_step, tune, wish
from wager.arms import PLAIN
from wager.backend import Answer, Prompt
from wager.bench.estimate import StepTable
from wager.bench.report import console
from wager.bench.run import Run
from wager.bench.statistics import Ratio
from wager.bench.tune import check as tune_check
from wager.bench.tune import rounds as tune_rounds
from wager.bench.tune.choice import Expected, Noise, Pairs, expected, inside, together, visit_noise
from wager.bench.tune.predict import Acceptance, LookedCost, looked_cost, of_cell, table_cost
from wager.bench.tune.report import show, why
from wager.bench.tune.search import Tuner, arm_from
from wager.bench.tune.space import Family, families, ranges, scheduled
from wager.errors import ConfigError

Capture = pytest.CaptureFixture[str]


# Expectations


def drawn(random: Random, count: int, spread: float) -> Pairs:
    plain = [random.uniform(0.8, 1.2) for _ in range(count)]
    spec = [t / 1.5 * math.exp(random.gauss(0.0, spread)) for t in plain]
    return Pairs("w", tuple(plain), tuple(spec))


def test_prediction_intervals_hold_for_new_measurements() -> None:
    random = Random(1)
    hits = 0
    for _ in range(300):
        first = expected("w", 1, [drawn(random, 8, 0.2)], None, 2)
        assert first is not None
        hits += inside(first, together([drawn(random, 8, 0.2)])) is True
    # 95 % of 300 are 285; three standard deviations are 11.
    assert 270 <= hits <= 297


def test_they_hold_where_servers_differ_too() -> None:
    asked = wish("draft_model:model=D,k=4,suffix:k=4")
    hits = 0
    for seed in range(0, 200, 2):
        runs = []
        for place, name in enumerate(("decide", "check")):
            tuner = Tuner(Simulated(noise=0.05, seed=seed + place), asked, lambda: 100)
            runs.append(tuner.measure(name, [f.arm(4) for f in asked.families], 8))
        (one,) = tune_rounds.expectations(runs[0], runs[0].plan.arms[1])
        (row,) = tune_check.check(replace_arms(runs[1]), [one])
        hits += row.inside is True
    # 95 of 100 are meant to; intervals that hold for all would say nothing.
    assert 89 <= hits <= 99


def replace_arms(run: Run) -> Run:
    """The same with its first arm as the tuned one."""
    return replace(run, plan=replace(run.plan, arms=run.plan.arms[:2]))


def test_noise_of_the_runs_widens_the_prediction() -> None:
    parts = [drawn(Random(2), 8, 0.1)]
    quiet, loud = (expected("w", 1, parts, noise, 2) for noise in (None, Noise(0.1, 3)))
    assert quiet is not None
    assert loud is not None
    assert (loud.measured_low or 9) < (quiet.measured_low or 0)
    assert (loud.low or 1) < (quiet.low or 0) < (quiet.measured_low or 0)
    assert (quiet.measured_high or 9) < (quiet.high or 9) < (loud.high or 0)


@pytest.mark.parametrize(("noise", "drift"), [(0.05, 0.0), (0.05, 0.1), (0.0, 0.05)])
def test_the_noise_of_the_runs_is_told_from_a_drift(noise: float, drift: float) -> None:
    asked = wish("draft_model:model=D,k=4,suffix:k=4,medusa:model=M,k=4")
    found = []
    for seed in range(30):
        tuner = Tuner(Simulated(noise=noise, drift=drift, seed=seed), asked, lambda: 100)
        run = tuner.measure("decide", [f.arm(4) for f in asked.families], 5)
        noise_found = visit_noise(run)
        assert noise_found is not None
        assert noise_found.freedom == 3
        found.append(noise_found.deviation)
    # Times of arms grow in proportion, so that a straight line leaves a little of a drift.
    middle = math.sqrt(sum(x * x for x in found) / len(found))
    assert middle == pytest.approx(noise, rel=0.25, abs=0.02)
    own = Run.of(replace(run.plan, engine="own"))
    assert visit_noise(own) is None


def test_a_gain_within_the_noise_of_the_runs_is_none() -> None:
    backend = Simulated(
        accept=lambda workload: 0.0, cost=lambda clients, k: 0.97 if k else 1.0, noise=0.05
    )
    assert tune(backend).chosen.name == PLAIN


def test_a_machine_that_is_busy_otherwise_is_named() -> None:
    for noise, said in ((0.4, True), (0.01, False)):
        found = tune(Simulated(noise=noise, seed=1))
        assert any("something else used the machine" in note for note in found.notes) is said


def test_too_few_prompts_have_no_interval() -> None:
    one = expected("w", 1, [drawn(Random(3), 4, 0.1)], Noise(0.1, 3), 2)
    assert one is not None
    assert (one.low, one.high) == (None, None)
    assert inside(one, Ratio(1.0)) is None
    assert expected("w", 1, [Pairs("w", (), ())], None, 2) is None


def test_each_workload_keeps_its_weight_in_a_mixture() -> None:
    even = Pairs("a", (10.0,) * 6, (2.0,) * 6)
    odd = Pairs("b", (1.0,) * 6, (1.0,) * 6)
    ratio = together([even, odd])
    # Drawn from both together the mixture would vary, and with it the ratio.
    assert ratio.value == ratio.low == ratio.high == pytest.approx(66 / 18)


@pytest.mark.parametrize(("p", "sound"), [(0.8, True), (0.2, False)])
def test_a_check_finds_what_no_longer_holds(p: float, sound: bool, capsys: Capture) -> None:
    found = tune(Simulated(noise=0.01))
    config = found.chosen.speculation
    assert config is not None
    later = Tuner(Simulated(accept=lambda workload: p, noise=0.01), wish(), lambda: 100)
    run = later.measure("check", [arm_from(config.config())], 8)
    rows = tune_check.check(run, found.expected)
    assert [row.inside for row in rows] == [sound]
    assert tune_check.holds(rows) is sound
    from wager.bench.tune.report import show_check

    show_check(console(color=False), rows, "tuned.json")
    printed = capsys.readouterr().out
    assert f"tuned.json: {int(sound)} of 1 expectations hold" in printed
    assert ("OUTSIDE" in printed) is not sound


def test_a_check_is_judged_by_the_mixture() -> None:
    def row(workload: str, held: bool) -> tune_check.Checked:
        one = Expected(workload, 1, 1.0, 0.9, 1.1, 0.95, 1.05, 8)
        return tune_check.Checked(one, Ratio(1.0), held)

    assert tune_check.holds([row("a", False), row("b", True), row("all together", True)])
    assert not tune_check.holds([row("a", True), row("b", True), row("all together", False)])
    with pytest.raises(ConfigError, match="lacks 'speedup'"):
        tune_check.read_expected([{"workload": "a", "clients": 1}])


# Parts


def test_families_follow_what_is_given() -> None:
    (one,) = families("vllm", "draft_model:model=D", 8)
    assert one.lengths == (1, 2, 3, 4, 6, 8)
    assert families("vllm", "suffix:k=5", 8)[0].lengths == (5,)
    *varied, suffix = families("own", None, 5)
    assert {f.method for f in varied} == {"ngram"}
    assert [f.lead for f in varied] == [True] + [False] * (len(varied) - 1)
    assert varied[0].lengths == suffix.lengths == (1, 2, 3, 4, 5)
    assert (suffix.method, suffix.lead) == ("suffix", True)
    both = families("own", "suffix+ngram")
    assert [f.options for f in both] == [f.options for f in varied]
    assert both[0].arm(4).name == "suffix+ngram:k=4,min=2,max=5"
    asked = both[0].arm(4).speculation
    assert asked is not None
    assert arm_from(asked.config()).speculation == asked
    (fixed,) = families("own", "ngram:min=2,max=4")
    assert fixed.options == {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    assert families("llamacpp", "ngram-cache")[0].lengths == ()
    assert families("llamacpp", "ngram-cache")[0].arm(8).name == "ngram-cache"
    assert {f.method for f in families("llamacpp", None)} == {"ngram-simple", "ngram-mod"}
    for engine, methods, message in (
        ("vllm", "plain", "always measured"),
        ("vllm", "ngram:k=0", "whole number"),
        ("llamacpp", "suffix", "no suffix trees"),
        ("own", "medusa", "does not draft this way"),
        ("own", "suffix+medusa", "does not draft this way"),
        ("own", "draft_model", "model: draft_model needs one"),
        ("vllm", "suffix+ngram", "runs one method at a time"),
    ):
        with pytest.raises(ConfigError, match=message):
            families(engine, methods)
    with pytest.raises(ConfigError, match="max-k"):
        families("own", None, 0)


def test_ranges_cover_every_number_of_requests() -> None:
    assert ranges([(8, 2), (1, 16)]) == [[1, 2, 16], [3, 1024, 2]]
    assert ranges([(1, 4), (2, 4), (32, 0)]) == [[1, 8, 4], [9, 1024, 0]]
    assert ranges([(1, 4), (2, 2)]) == [[1, 1, 4], [2, 1024, 2]]
    for loads in ((1, 2, 3), (1, 8, 32), (4, 5, 64)):
        found = ranges([(load, load) for load in loads])
        assert found[0][0] == 1
        assert all(a[1] + 1 == b[0] for a, b in pairwise(found))
        assert all(any(low <= n <= high and k == n for low, high, k in found) for n in loads)


def test_a_schedule_is_written_for_the_engine() -> None:
    from wager.external.dialects import dialect

    arm = scheduled(Family("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 5}, (4, 8)),
                    [(1, 8), (8, 0)])  # fmt: skip
    assert arm.name == "ngram:k=8/0@3,min=2,max=5"
    (flag, text) = dialect("vllm").write(arm.speculation).arguments
    config = json.loads(text)
    assert flag == "--speculative-config"
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 2, 8], [3, 1024, 0]]
    assert config["num_speculative_tokens"] == 8


def test_a_line_through_costs() -> None:
    cost = LookedCost({1: (1.5, 0.25)})
    assert cost.cost(1, {0: 0.5, 8: 0.5}) == pytest.approx(1.5 + 0.25 * 4.0)
    assert cost.cost(2, {8: 1.0}) is None


def test_what_costs_without_a_draft_is_told_from_what_a_draft_costs() -> None:
    """As vLLM on a CPU: slower as soon as it speculates, and then by what is drafted."""

    def cost(clients: int, k: int) -> float:
        return 1.4 + 0.1 * k if k else 1.0

    asked = wish("suffix", workloads=("copy", "words"))
    tuner = Tuner(Simulated(accept=lambda workload: 0.7, cost=cost), asked, lambda: 100)
    cells = tuner.measure("look", [asked.families[0].arm(16)], 6).cells()
    # One of them is made to draft in a fifth of its steps only.
    assert cells[1].coverage is not None
    seldom = replace(cells[1], coverage=cells[1].coverage / 5, verify_cost_estimated=1.4 + 1.6 / 5)
    line = looked_cost([cells[0], seldom])
    assert line.cost(1, {0: 1.0}) == pytest.approx(1.4, abs=0.05)
    assert line.cost(1, {8: 1.0}) == pytest.approx(2.2, rel=0.05)
    # Two points of about the same length say nothing of what costs without any.
    assert looked_cost(cells).cost(1, {0: 1.0}) == 1.0


def test_a_table_is_corrected_by_the_look() -> None:
    backend = Simulated(cost=lambda clients, k: 1.0 + 0.2 * k)
    asked = wish()
    tuner = Tuner(backend, asked, lambda: 100)
    look = tuner.measure("look", [asked.families[0].arm(16)], 6)
    cells = look.cells()
    accepted = of_cell(cells[0], 16)
    assert accepted is not None
    # Says half of what a draft really adds.
    table = StepTable({1: 10.0, 17: 26.0}, "given")
    found = table_cost(table, cells, {"words": accepted})
    assert found.factors[1] == pytest.approx(2.0, rel=0.1)
    assert found.cost(1, {8: 1.0}) == pytest.approx(2.6, rel=0.1)
    assert tune(backend, asked, steps=lambda: table).basis["draft_model"].endswith("of the look")


def test_replayed_acceptance_is_used_for_every_variant() -> None:
    asked = wish("ngram")

    def replay(arms: Any, measurements: Any) -> dict[str, dict[str, Acceptance]]:
        out = {}
        for arm in arms:
            assert arm.speculation is not None
            k = arm.speculation.options["num_speculative_tokens"]
            better = arm.speculation.options["prompt_lookup_max"] == 8
            p = 0.8 if better else 0.5
            out[arm.name] = {"words": Acceptance(tokens_per_step(p, k), {k: 1.0}, "replayed")}
        return out

    found = tune(Simulated(), asked, replay=replay)
    assert all("max=8" in name for name in found.scores)
    assert "replayed for every length" in found.basis["ngram"]


def test_the_report_ends_in_a_command(capsys: Capture) -> None:
    found = tune(Simulated(), wish(clients="1,8"))
    show(console(color=False), found, ["serve", "--speculative-config", '{"a": 1}'])
    printed = capsys.readouterr().out
    assert printed.rstrip().splitlines()[-1] == "serve --speculative-config '{\"a\": 1}'"
    assert "model on vLLM 9.9; words; 8 prompts of each workload" in printed
    assert "in 19 of 20 cases" in printed
    for name in found.scores:
        assert name in printed


def test_failed_answers_do_not_decide() -> None:
    class Failing(Simulated):
        def _answer(self, prompt: Prompt, clients: int) -> Answer:
            answer = super()._answer(prompt, clients)
            if self.arm.name != PLAIN and not prompt.id.endswith(("0", "1")):
                answer.error = "out of memory"
            return answer

    found = tune(Failing())
    assert found.chosen.name == PLAIN
    assert "too few prompts for an interval" in why(found)[0]
