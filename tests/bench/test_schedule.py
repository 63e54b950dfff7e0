"""The order of the runs, and what is left of a run that ends early."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.bench.scripted import (
    ARMS,
    ON,
    OTHER,
    ScriptedBackend,
    plan,
    planned,
    prompt,
    prompts,
)
from wager.arms import PLAIN
from wager.backend import Answer, EngineError, Load
from wager.bench.plan import Plan, PlannedCell, schedule
from wager.bench.run import Event, Executor, Run
from wager.errors import ConfigError


def executed(scripted: ScriptedBackend, wanted: Plan, heard: list[Event] | None = None) -> Run:
    run = Run.of(wanted)
    Executor(
        scripted, run, progress=lambda e: (heard if heard is not None else []).append(e)
    ).execute()
    return run


def starts(scripted: ScriptedBackend) -> list[str]:
    return [e.removeprefix("start ") for e in scripted.events if e.startswith("start")]


def runs(scripted: ScriptedBackend) -> list[list[str]]:
    parts = " ".join(scripted.events).split("stop")
    return [part.split()[2:] for part in parts if part.strip()]


def test_every_arm_is_warmed_up_first_and_that_is_not_counted() -> None:
    scripted = ScriptedBackend()
    run = executed(scripted, plan(planned(1)))
    assert scripted.events[:6] == [
        "start plain", "warm-0", "stop", "start ngram:k=4", "warm-0", "stop",
    ]  # fmt: skip
    assert run.measurements[0].answers[PLAIN].keys() == {"w-0"}
    warm = schedule(plan(planned(1)), True)[0].parts[0].prompts[0]
    assert warm.params.max_tokens == 8
    long = replace(
        plan(planned(1)), warm_up=(replace(warm, params=replace(warm.params, max_tokens=99)),)
    )
    assert schedule(long, True)[0].parts[0].prompts[0].params.max_tokens == 16


def test_arms_alternate_and_every_second_group_is_turned_round() -> None:
    scripted = ScriptedBackend()
    executed(scripted, plan(planned(2)))
    assert starts(scripted)[2:6] == [PLAIN, ON.name, ON.name, PLAIN]
    assert starts(scripted)[6:] == [ON.name, PLAIN, PLAIN, ON.name]
    assert runs(scripted)[2:] == [["w-0"]] * 4 + [["w-1"]] * 4


def test_groups_hold_two_prompts_for_each_of_several_clients() -> None:
    scripted = ScriptedBackend()
    executed(scripted, plan(planned(6, clients=2)))
    assert runs(scripted)[2:] == [["w-0", "w-1", "w-2", "w-3"]] * 4 + [["w-4", "w-5"]] * 4


def test_a_rate_needs_all_prompts_in_one_group() -> None:
    scripted = ScriptedBackend()
    cell = PlannedCell("w", Load(rate=2.0), prompts(5))
    executed(scripted, plan(cell))
    assert runs(scripted)[2:] == [[f"w-{i}" for i in range(5)]] * 4
    assert {load.rate for load in scripted.loads[2:]} == {2.0}


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize(("repeats", "clients"), [(1, 1), (3, 1), (2, 8)])
def test_every_prompt_runs_equally_often_in_every_arm(
    repeats: int, clients: int, cheap: bool
) -> None:
    scripted = ScriptedBackend(fresh_start_is_cheap=cheap)
    heard: list[Event] = []
    run = executed(scripted, plan(planned(10, clients), repeats=repeats), heard)
    timed = {key: times for key, times in scripted.seen.items() if key[0].startswith("w-")}
    assert set(timed.values()) == {2 * repeats}
    assert len(timed) == 20
    assert (heard[-1].done_in_all, heard[-1].in_all) == (40 * repeats, 40 * repeats)
    measurement = run.measurements[0]
    assert measurement.measured(ON) == list(measurement.prompts)
    counted = measurement.counters(ON.name)
    assert counted.total_ms == measurement.counters(PLAIN).total_ms
    assert counted.total_ms is not None
    assert counted.total_ms > 0
    assert run.complete


def test_behind_every_start_of_a_warm_cell_come_other_prompts() -> None:
    warm = replace(planned(3), warm=prompts(2, "before"))
    scripted = ScriptedBackend()
    run = executed(scripted, plan(planned(1, name="cold"), warm))
    before, timed = ["before-0", "before-1"], ["w-0", "w-1", "w-2"]
    # One group, whatever the number of clients: what comes before it takes longer.
    assert runs(scripted)[2:] == [["cold-0"]] * 4 + [[*before, *timed]] * 4
    cold, kept = run.measurements
    assert (cold.warm, kept.warm) == (None, 2)
    assert kept.answers[ON.name].keys() == set(timed)
    assert [c.warm for c in run.cells()] == [None, 2]
    scripted = ScriptedBackend(fresh_start_is_cheap=False)
    executed(scripted, plan(planned(1, name="cold"), warm, engine="vllm"))
    assert runs(scripted) == [["warm-0", "warm-1", "cold-0", *before, *timed]] * 4


def test_a_timed_prompt_among_those_before_is_a_repeated_one() -> None:
    warm = replace(planned(3), warm=(prompt("again"), replace(prompts(1)[0], id="other")))
    assert [m.repeated_prompts for m in plan(warm).measurements()] == [True]
    other = replace(planned(3), warm=prompts(3, "before"))
    assert [m.repeated_prompts for m in plan(other).measurements()] == [False]


def test_three_arms_go_there_and_back() -> None:
    for cheap in (True, False):
        scripted = ScriptedBackend(fresh_start_is_cheap=cheap)
        executed(scripted, plan(planned(1), arms=(*ARMS, OTHER)))
        there = [PLAIN, ON.name, OTHER.name]
        assert starts(scripted)[-6:] == [*there, *there[::-1]]


def test_a_server_runs_every_cell_after_a_batch_of_other_prompts() -> None:
    scripted = ScriptedBackend(fresh_start_is_cheap=False)
    run = executed(scripted, plan(planned(2, 1, "a"), planned(2, 8, "b"), engine="vllm"))
    assert starts(scripted) == [PLAIN, ON.name, ON.name, PLAIN]
    assert runs(scripted) == [["warm-0", "warm-1", "a-0", "a-1", "b-0", "b-1"]] * 4
    assert [load.clients for load in scripted.loads[:3]] == [2, 1, 8]
    assert [m.answers[ON.name].keys() for m in run.measurements] == [{"a-0", "a-1"}, {"b-0", "b-1"}]
    assert len(run.started[PLAIN]) == len(run.started[ON.name]) == 2


def test_the_identity_pass_asks_for_logprobs_once_per_server() -> None:
    for cheap in (True, False):
        wanted = replace(plan(planned(1), repeats=2), identity=prompts(2, "same"))
        parts = [p for b in schedule(wanted, cheap) for p in b.parts if p.kind == "identity"]
        assert len(parts) == 4
        assert {p.params.logprobs for part in parts for p in part.prompts} == {2}
        scripted = ScriptedBackend(fresh_start_is_cheap=cheap)
        run = executed(scripted, wanted)
        assert {len(a) for side in run.identity.values() for a in side.values()} == {2}


@pytest.mark.parametrize("arms", [(), ARMS[:1], (ON, OTHER)])
def test_a_plan_without_a_comparison_is_refused(arms: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match="arms"):
        schedule(replace(plan(planned(1)), arms=arms), True)  # type: ignore[arg-type]


def test_repeated_prompts_are_seen() -> None:
    twice = PlannedCell("w", Load(clients=1), (*prompts(2), replace(prompts(1)[0], id="again")))
    assert [m.repeated_prompts for m in plan(planned(2), twice).measurements()] == [False, True]
    # On one server the prompts of one load come after those of another.
    two = (planned(2, 1), planned(2, 8), planned(2, 1, "b"))
    flags = [m.repeated_prompts for m in plan(*two, engine="vllm").measurements()]
    assert flags == [True, True, False]
    assert [m.repeated_prompts for m in plan(*two).measurements()] == [False] * 3
    assert [m.repeated_prompts for m in plan(*two, engine="url").measurements()] == [True] * 3


@pytest.mark.parametrize("at", range(3, 11))
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_early_end_keeps_only_complete_pairs(at: int, error: type[BaseException]) -> None:
    scripted = ScriptedBackend(fail_at_run=at, error=error)
    run = Run.of(plan(planned(8, clients=2)))
    with pytest.raises(error):
        Executor(scripted, run).execute()
    assert scripted.events[-1] == "stop"
    assert not run.complete
    # Two groups of four: A B B A, then B A A B; a pair is complete whenever both ran equally often.
    complete = {1: 0, 2: 0, 3: 4, 4: 0, 5: 4, 6: 4, 7: 8, 8: 4}[at - 2]
    assert len(run.measurements[0].measured(ON)) == complete
    found = run.cells()
    assert len(found) == (complete > 0)
    assert all(cell.outputs == complete for cell in found)


def test_an_early_end_of_servers_keeps_whole_servers() -> None:
    scripted = ScriptedBackend(fresh_start_is_cheap=False, fail_at_run=6, error=KeyboardInterrupt)
    run = Run.of(plan(planned(3)))
    with pytest.raises(KeyboardInterrupt):
        Executor(scripted, run).execute()
    assert [cell.outputs for cell in run.cells()] == [3]
    assert scripted.events[-1] == "stop"


def test_an_arm_that_does_not_start_is_given_up_and_the_others_go_on() -> None:
    scripted = ScriptedBackend(
        fresh_start_is_cheap=False, fail_start_of=ON.name, error=EngineError("no such option")
    )
    run = executed(scripted, plan(planned(2), arms=(*ARMS, OTHER)))
    assert run.failed == {ON.name: "no such option"}
    assert [cell.arm for cell in run.cells()] == [OTHER.name]
    assert starts(scripted).count(ON.name) == 1
    assert run.complete


@pytest.mark.parametrize("failing", [PLAIN, ON.name])
def test_without_plain_or_any_other_arm_there_is_nothing_to_compare(failing: str) -> None:
    scripted = ScriptedBackend(
        fresh_start_is_cheap=False, fail_start_of=failing, error=EngineError("gone")
    )
    with pytest.raises(EngineError, match="gone"):
        executed(scripted, plan(planned(2)))


def test_a_warm_up_of_nothing_but_errors_ends_the_arm() -> None:
    def script(name: str, arm: object, times: int) -> Answer:
        return Answer(name, "", None, 0.1, None, error="HTTP 404: no such model")

    with pytest.raises(EngineError, match="warm-up failed: HTTP 404"):
        executed(ScriptedBackend(script, fresh_start_is_cheap=False), plan(planned(2)))


def test_a_time_limit_stops_after_the_part_that_runs() -> None:
    for cheap in (True, False):
        scripted = ScriptedBackend(fresh_start_is_cheap=cheap)
        run = Run.of(plan(planned(2)))
        executor = Executor(scripted, run, deadline=time.monotonic() + 3600)
        executor.progress = lambda event, e=executor: setattr(e, "deadline", 0.0)  # type: ignore[misc]
        executor.execute()
        assert len(run.measurements[0].answers[PLAIN]) == (1 if cheap else 2)
        assert ON.name not in run.measurements[0].answers
        assert scripted.events[-1] == "stop"
        assert not run.complete


def test_the_digest_changes_with_everything_that_matters() -> None:
    base = plan(planned(2))
    others = [
        replace(base, model="other"),
        replace(base, repeats=2),
        replace(base, arms=(*ARMS, OTHER)),
        replace(base, settings={"weights": "int8"}),
        plan(planned(2, clients=2)),
        plan(planned(3)),
    ]
    assert plan(planned(2)).digest() == base.digest()
    assert len({p.digest() for p in (base, *others)}) == 1 + len(others)
