"""`wager tune` over engines whose best draft length is known."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.bench.tune_sim import Simulated, k_of, tokens_per_step
from wager.arms import PLAIN
from wager.backend import Answer, EngineError, Load, Prompt
from wager.bench import tune_check, tune_rounds
from wager.bench.estimate import StepTable
from wager.bench.report import console
from wager.bench.run import Run
from wager.bench.sources import Wanted
from wager.bench.statistics import Ratio
from wager.bench.tune import Outcome, Tuner, Wish, arm_from
from wager.bench.tune_choice import Expected, Noise, Pairs, expected, inside, together, visit_noise
from wager.bench.tune_predict import Acceptance, LookedCost, of_cell, table_cost
from wager.bench.tune_report import show, why
from wager.bench.tune_rounds import Cost, within
from wager.bench.tune_space import Family, families, ranges, scheduled
from wager.errors import ConfigError

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
Capture = pytest.CaptureFixture[str]


def wish(methods: str = "draft_model:model=D", clients: str = "1", **more: Any) -> Wish:
    engine = more.pop("engine", "vllm")
    loads = tuple(Load(clients=int(n)) for n in clients.split(","))
    names = more.pop("workloads", ("words",))
    return Wish(
        engine=engine,
        model="model",
        families=tuple(families(engine, methods)),
        wanted=Wanted(names, loads, more.pop("count", 8)),
        **more,
    )


def tune(backend: Simulated, asked: Wish | None = None, **more: Any) -> Outcome:
    return Tuner(backend, asked or wish(), lambda: 100, **more).tune()


def gain(backend: Simulated, clients: int, k: int, p: float = 0.8) -> float:
    return tokens_per_step(p, k) / backend.cost(clients, k) if k else 1.0


@pytest.mark.parametrize(("p", "slope"), [(0.8, 0.1), (0.6, 0.05), (0.95, 0.05), (0.7, 0.3)])
def test_the_best_length_is_found(p: float, slope: float) -> None:
    backend = Simulated(accept=lambda workload: p, cost=lambda clients, k: 1.0 + slope * k)
    found = tune(backend)
    best = max(gain(backend, 1, k, p) for k in LENGTHS)
    chosen = k_of(found.chosen, 1)
    assert gain(backend, 1, chosen, p) >= 0.97 * best
    # A few real runs: the look, and at most three lengths of the method.
    assert len(found.scores) <= 3
    assert found.by_load == {1: found.chosen.name}
    (one,) = found.expected
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.speedup < one.high


def test_estimates_agree_with_what_is_then_measured() -> None:
    found = tune(Simulated())
    for name, by_load in found.scores.items():
        assert by_load[1].speedup.value == pytest.approx(
            found.predictions[name].by_load[1], rel=0.12
        )
    assert "what a look at its longest drafts counted" in found.basis["draft_model"]


def test_what_is_never_accepted_is_not_used() -> None:
    backend = Simulated(accept=lambda workload: 0.0, cost=lambda clients, k: 1.0 + 0.3 * k)
    found = tune(backend)
    assert found.chosen.name == PLAIN
    assert found.expected == []
    # Hopeless by the estimate, so that the look is all that was run.
    assert set(backend.starts) == {PLAIN, "draft_model:k=16,model=D"}
    (line,) = why(found)
    assert line.startswith("1 client: plain decoding. The best of the others")
    assert "a loss" in line


def test_a_small_loss_is_measured_before_it_is_refused() -> None:
    backend = Simulated(accept=lambda workload: 0.0, cost=lambda clients, k: 1.0 + 0.02 * k)
    found = tune(backend)
    assert found.chosen.name == PLAIN
    assert "draft_model:k=1,model=D" in backend.starts


def flips(clients: int, k: int) -> float:
    """Long drafts pay for one client; for eight only short ones do."""
    return 1.0 + k * (0.02 if clients == 1 else 0.45)


def test_a_schedule_where_the_best_length_changes_with_the_load() -> None:
    backend = Simulated(accept=lambda workload: 0.9, cost=flips)
    found = tune(backend, wish(clients="1,8"))
    assert found.schedule is not None
    assert [row[:2] for row in found.schedule] == [[1, 2], [3, 1024]]
    long, short = (row[2] for row in found.schedule)
    best = [max(LENGTHS, key=lambda k: gain(backend, c, k, 0.9)) for c in (1, 8)]
    assert gain(backend, 1, long, 0.9) >= 0.97 * gain(backend, 1, best[0], 0.9)
    assert gain(backend, 8, short, 0.9) >= 0.97 * gain(backend, 8, best[1], 0.9)
    assert found.chosen.speculation is not None
    options = found.chosen.speculation.options
    assert options["num_speculative_tokens"] == long
    # It was measured itself: at both loads it does what was promised of its parts.
    by_load = found.scores[found.chosen.name]
    assert all(by_load[load].pays for load in (1, 8))
    assert {e.clients for e in found.expected} == {1, 8}
    assert "draft tokens from 3 requests on" in "\n".join(why(found))


def test_a_schedule_with_nothing_at_the_higher_load() -> None:
    backend = Simulated(
        accept=lambda workload: 0.9, cost=lambda c, k: 1 + k * (0.02 if c < 8 else 2)
    )
    found = tune(backend, wish(clients="1,8"))
    assert found.schedule is not None
    assert found.schedule[1][2] == 0
    assert "not the same as plain decoding" in "\n".join(why(found))


@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_without_a_schedule_nothing_that_loses_at_a_load_is_chosen(engine: str) -> None:
    method = "draft-simple:model=D.gguf" if engine == "llamacpp" else "suffix"
    backend = Simulated(
        accept=lambda workload: 0.9, cost=lambda c, k: 1 + k * (0.02 if c < 8 else 2), name=engine
    )
    found = tune(backend, wish(method, "1,8", engine=engine))
    assert found.by_load[1] != PLAIN
    assert found.by_load[8] == PLAIN
    assert (found.chosen.name, found.schedule) == (PLAIN, None)
    assert "what pays at 1 client loses elsewhere" in "\n".join(why(found))


def test_a_mixture_is_judged_as_a_whole() -> None:
    def accept(workload: str) -> float:
        return {"copy": 0.95, "words": 0.0}[workload]

    found = tune(Simulated(accept=accept), wish(workloads=("copy", "words")))
    assert found.chosen.name != PLAIN
    rows = {e.workload: e.speedup for e in found.expected}
    assert rows["words"] < 1.0 < rows["all together"] < rows["copy"]


def test_where_the_engine_tells_nothing_some_lengths_are_tried() -> None:
    found = tune(Simulated(tells=False))
    assert [k_of(c.arm, 1) for c in found.candidates.values()] == [16, 8, 4]
    assert k_of(found.chosen, 1) in (8, 16)
    assert any("tells too little" in note for note in found.notes)


def test_a_method_that_does_not_start_is_left_out() -> None:
    backend = Simulated(fail_start_of="suffix")
    found = tune(backend, wish("suffix,draft_model:model=D"))
    assert found.chosen.name.startswith("draft_model")
    assert any("suffix:k=16 could not be measured" in note for note in found.notes)
    with pytest.raises(EngineError, match="no such library"):
        tune(Simulated(fail_start_of="suffix"), wish("suffix"))


def test_arms_that_leave_nothing_open_are_measured_at_once() -> None:
    backend = Simulated()
    found = tune(backend, wish("draft_model:model=D,k=4,suffix:k=2"))
    assert backend.starts == [
        PLAIN, "draft_model:k=4,model=D", "suffix:k=2",
        "suffix:k=2", "draft_model:k=4,model=D", PLAIN,
    ]  # fmt: skip
    assert found.chosen.name == "draft_model:k=4,model=D"
    assert found.predictions == {}


def test_no_prompt_is_asked_in_two_rounds() -> None:
    backend = Simulated()
    seeds: list[set[int | None]] = []

    class Watching(Simulated):
        def stream(self, prompts: Any, load: Load) -> Any:
            seeds[-1].update(p.params.seed for p in prompts)
            return super().stream(prompts, load)

        def start(self, arm: Any) -> Any:
            if arm.name == PLAIN:
                seeds.append(set())
            return super().start(arm)

    backend = Watching(accept=lambda workload: 0.9, cost=flips)
    tune(backend, wish(clients="1,8"))
    look, *_, last = (group for group in seeds if len(group) > 8)
    assert not {s for s in look if s} & {s for s in last if s}


def test_no_time_for_anything_is_said() -> None:
    found = tune(Simulated(), wish(deadline=time.monotonic() - 1.0))
    assert found.chosen.name == PLAIN
    assert any("the time was up after the look" in note for note in found.notes)
    assert why(found) == ["1 client: plain decoding: nothing else was measured"]


def test_rounds_fit_into_the_time() -> None:
    cost = Cost(startup=10.0, per_prompt=1.0)
    assert cost.of(4, 8) == 144.0
    assert within(None, 6, 8, cost) == [(6, 8)]
    assert within(300.0, 6, 8, cost) == [(6, 8)]
    # Halving needs fewer prompts for the first round, which pays where prompts are what costs.
    slow = Cost(startup=0.0, per_prompt=10.0)
    assert within(700.0, 6, 8, slow) == [(3, 8)]
    assert within(1100.0, 6, 16, slow) == [(2, 16)]
    assert within(1800.0, 6, 16, slow) == [(6, 8), (1, 16)]
    assert within(80.0, 6, 8, cost) == [(1, 8)]
    assert within(65.0, 6, 8, cost) == [(1, 6)]
    assert within(30.0, 6, 8, cost) == []
    for left in range(0, 2000, 50):
        for arms in (1, 3, 8):
            rounds = within(float(left), arms, 16, slow)
            assert sum(slow.of(kept + 1, n) for kept, n in rounds) <= left
            assert all(1 <= kept <= arms and n >= 5 for kept, n in rounds)


def test_halving_keeps_the_best() -> None:
    backend = Simulated()
    asked = wish("draft_model:model=D,suffix", count=16)
    tuner = Tuner(backend, asked, lambda: 100)
    look = tuner.measure("look", [f.arm(4) for f in asked.families], 6)
    (kept,) = tune_rounds.best(look, look.plan.arms[1:], 1)
    found = tune_rounds.scores(look)
    assert found[kept.name][1].speedup.value == max(
        s[1].speedup.value or 0.0 for s in found.values()
    )


def test_a_run_that_was_cut_off_is_resumed(tmp_path: Path) -> None:
    whole = tune(Simulated(), wish())
    for at in (5, 12):
        folder = tmp_path / str(at)
        folder.mkdir()
        broken = Simulated(fail_at_run=at)
        with pytest.raises(KeyboardInterrupt):
            tune(broken, wish(run_dir=folder))
        second = Simulated()
        found = tune(second, wish(run_dir=folder, resume=True))
        assert found.chosen == whole.chosen
        assert found.expected == whole.expected
        assert len(second.starts) < len(broken.starts) + len(second.starts)
        done = [pair for pair in broken.asked if not pair[0].startswith("copy")]
        assert done


def test_a_resumed_run_with_other_methods_is_refused(tmp_path: Path) -> None:
    tune(Simulated(), wish(run_dir=tmp_path))
    with pytest.raises(ConfigError, match="resume"):
        tune(Simulated(), wish("suffix", run_dir=tmp_path, resume=True))


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
    from wager.bench.tune_report import show_check

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
    varied = families("own", None, 5)
    assert [f.lead for f in varied] == [True] + [False] * (len(varied) - 1)
    assert varied[0].lengths == (1, 2, 3, 4, 5)
    (fixed,) = families("own", "ngram:min=2,max=4")
    assert fixed.options == {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    assert families("llamacpp", "ngram-cache")[0].lengths == ()
    assert families("llamacpp", "ngram-cache")[0].arm(8).name == "ngram-cache"
    assert {f.method for f in families("llamacpp", None)} == {"ngram-simple", "ngram-mod"}
    for engine, methods, message in (
        ("vllm", "plain", "always measured"),
        ("vllm", "ngram:k=0", "whole number"),
        ("llamacpp", "suffix", "no suffix trees"),
        ("own", "suffix", "does not draft this way"),
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
    assert cost.cost(1, {0: 0.5, 8: 0.5}) == pytest.approx(0.5 + 0.5 * 3.5)
    assert cost.cost(2, {8: 1.0}) is None


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
