"""The order of the runs, and what is left of a measurement that ends early."""

from __future__ import annotations

import pytest

from tests.bench.scripted import ScriptedBackend, prompt, reply
from wager.bench.measure import DEFAULT_SPECULATION, Measurement, arms, measure, warm_up
from wager.bench.results import cell
from wager.config import SpeculationConfig
from wager.errors import ConfigError

NGRAM = arms([DEFAULT_SPECULATION])


def measurement(count: int, clients: int = 1) -> Measurement:
    return Measurement("w", clients, [prompt(f"w-{i}") for i in range(count)], NGRAM)


def backend(**options: object) -> ScriptedBackend:
    return ScriptedBackend(lambda name, arm, times: reply(name), **options)  # type: ignore[arg-type]


def starts(scripted: ScriptedBackend) -> list[str]:
    return [e.removeprefix("start ") for e in scripted.events if e.startswith("start")]


def runs(scripted: ScriptedBackend) -> list[list[str]]:
    parts = " ".join(scripted.events).split("stop")
    return [part.split()[2:] for part in parts if part.strip()]


def test_arms_alternate_and_every_second_group_is_turned_round() -> None:
    scripted = backend()
    measure(scripted, measurement(2), repeats=1)
    assert starts(scripted)[:4] == ["plain", "ngram", "ngram", "plain"]
    assert starts(scripted)[4:] == ["ngram", "plain", "plain", "ngram"]
    assert runs(scripted) == [["w-0"]] * 4 + [["w-1"]] * 4


def test_groups_hold_two_prompts_for_each_of_several_clients() -> None:
    scripted = backend()
    measure(scripted, measurement(6, clients=2), repeats=1)
    assert runs(scripted) == [["w-0", "w-1", "w-2", "w-3"]] * 4 + [["w-4", "w-5"]] * 4


@pytest.mark.parametrize(("repeats", "clients"), [(1, 1), (3, 1), (2, 8)])
def test_every_prompt_runs_equally_often_in_every_arm(repeats: int, clients: int) -> None:
    scripted, target = backend(), measurement(10, clients)
    heard: list[tuple[int, int]] = []
    measure(scripted, target, repeats, lambda done, total: heard.append((done, total)))
    assert set(scripted.seen.values()) == {2 * repeats}
    assert len(scripted.seen) == 20
    assert heard[-1] == (40 * repeats, 40 * repeats)
    assert target.measured() == target.prompts
    assert target.total_ms["ngram"] == target.total_ms["plain"] > 0


def test_three_arms_go_there_and_back() -> None:
    scripted = backend()
    three = arms([SpeculationConfig("ngram", 4), SpeculationConfig("other", 8)])
    measure(scripted, Measurement("w", 1, [prompt("w-0")], three), repeats=1)
    assert starts(scripted) == ["plain", "ngram", "other", "other", "ngram", "plain"]


@pytest.mark.parametrize("run", range(1, 9))
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_early_end_keeps_only_complete_pairs(run: int, error: type[BaseException]) -> None:
    scripted, target = backend(fail_at_run=run, error=error), measurement(8, clients=2)
    with pytest.raises(error):
        measure(scripted, target, repeats=1)
    assert scripted.events[-1] == "stop"
    measured = target.measured()
    # Two groups of four: A B B A, then B A A B; a pair is complete whenever both ran equally often.
    complete = {1: 0, 2: 0, 3: 4, 4: 0, 5: 4, 6: 4, 7: 8, 8: 4}[run]
    assert len(measured) == complete
    found = cell(target, NGRAM[1])
    assert (found is None) == (complete == 0)
    if found is not None:
        assert found.outputs == complete


def test_warm_up_is_short_and_not_counted() -> None:
    scripted = backend()
    warm_up(scripted, prompt("w-0"), NGRAM)
    assert scripted.events == ["start plain", "w-0", "stop", "start ngram", "w-0", "stop"]


def test_arms_are_named_by_method_and_told_apart() -> None:
    assert [a.name for a in NGRAM] == ["plain", "ngram"]
    two = arms([SpeculationConfig("ngram", 4), SpeculationConfig("ngram", 8)])
    assert [a.name for a in two] == ["plain", "ngram k=4 lookup=5-5", "ngram k=8 lookup=5-5"]
    with pytest.raises(ConfigError, match="speculative-config"):
        arms([SpeculationConfig("ngram", 4), SpeculationConfig("ngram", 4)])
