"""`wager tune` over engines whose best draft length is known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.tune_sim import Simulated, k_of, tokens_per_step, tune, wish
from wager.arms import PLAIN, Arm
from wager.backend import EngineError, Load
from wager.bench.run import Run
from wager.bench.tune import rounds as tune_rounds
from wager.bench.tune.report import why
from wager.bench.tune.rounds import Cost, within
from wager.bench.tune.search import Tuner
from wager.errors import ConfigError

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
Capture = pytest.CaptureFixture[str]


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


def test_a_gain_beyond_the_steps_is_measured_once_more() -> None:
    """Plain decoding meets a slow machine in the real runs, and only there."""
    backend = Simulated(slow=lambda arm, start: 3.0 if arm == PLAIN and 5 <= start <= 12 else 1.0)
    found = tune(backend)
    assert backend.starts[4:12].count(PLAIN) == 2
    # The two best of the real runs, not all of them.
    assert len(backend.starts) == 12 + 2 * 3
    assert any("measured once more" in note for note in found.notes)
    best = max(gain(backend, 1, k) for k in LENGTHS)
    assert gain(backend, 1, k_of(found.chosen, 1)) >= 0.97 * best
    (one,) = found.expected
    assert one.speedup == pytest.approx(best, rel=0.15)


def test_a_machine_that_stays_unsteady_ends_in_plain_decoding() -> None:
    found = tune(Simulated(slow=lambda arm, start: 3.0 if arm == PLAIN and start > 4 else 1.0))
    assert found.chosen.name == PLAIN
    assert "measure again" in why(found)[0]


def test_without_time_for_it_the_doubt_is_said() -> None:
    backend = Simulated(slow=lambda arm, start: 3.0 if arm == PLAIN and start >= 5 else 1.0)

    class Late(Tuner):
        def measure(self, name: str, arms: Sequence[Arm], count: int) -> Run:
            run = super().measure(name, arms, count)
            if name == "decide":
                self.wish = replace(self.wish, deadline=time.monotonic() + 1.0)
            return run

    tuner = Late(backend, wish(), lambda: 100)
    found = tuner.tune()
    assert found.chosen.name == PLAIN
    assert any("no time to measure it again" in note for note in found.notes)
    assert "again" not in tuner.runs


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
