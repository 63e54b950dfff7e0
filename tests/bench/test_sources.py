"""Prompts of a plan: which load gets which, what warms up, what is compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wager.backend import Load, Prompt
from wager.bench.plan import content
from wager.bench.workloads.generated import RECIPES
from wager.bench.workloads.sources import Drawn, Wanted, chats, check, draw
from wager.errors import ConfigError

ONE, EIGHT = Load(clients=1), Load(clients=8)


def no_model() -> int:
    raise AssertionError("the vocabulary was asked for")


def drawn(
    *names: str, loads: tuple[Load, ...] = (ONE, EIGHT), same: bool = False, **more: int
) -> Drawn:
    identity = more.pop("identity", 0)
    wanted = Wanted(names, loads, more.get("count"), more.get("max_tokens"), more.get("seed", 0))
    return draw(wanted, no_model, same_for_all_loads=same, identity=identity)


def contents(prompts: tuple[Prompt, ...]) -> set[object]:
    return {content(prompt) for prompt in prompts}


def a_file(folder: Path, count: int, name: str = "mine") -> str:
    path = folder / f"{name}.jsonl"
    lines = [json.dumps({"prompt": f"say {i}", "max_tokens": 4}) + "\n" for i in range(count)]
    path.write_text("".join(lines))
    return str(path)


def test_on_a_server_each_load_has_prompts_of_its_own() -> None:
    found = drawn("copy", "explain", count=3)
    assert [(c.workload, c.load.clients) for c in found.cells] == [
        ("copy", 1), ("copy", 8), ("explain", 1), ("explain", 8),
    ]  # fmt: skip
    assert [len(c.prompts) for c in found.cells] == [3] * 4
    assert len(set.union(*(contents(c.prompts) for c in found.cells))) == 12


def test_where_caches_are_emptied_all_loads_have_the_same() -> None:
    found = drawn("copy", count=3, same=True)
    assert found.cells[0].prompts == found.cells[1].prompts
    assert found.warm_up == found.cells[0].prompts[:1]
    assert len(drawn("copy", same=True).cells[0].prompts) == 16


def test_warm_up_and_identity_prompts_are_in_no_cell() -> None:
    found = drawn("copy", "words", count=4, identity=12)
    timed = set.union(*(contents(c.prompts) for c in found.cells))
    others = [*contents(found.warm_up), *contents(found.identity)]
    assert len(others) == len(set(others)) == 8 + 12
    assert not timed & set(others)
    assert {p.params.temperature for p in found.identity} == {0.0}
    assert not any(p.params.ignore_eos for p in found.identity)
    assert [len(drawn("copy", count=1, identity=n).identity) for n in (0, 1, 5)] == [0, 1, 5]


def test_a_file_is_shared_out_where_it_holds_enough(tmp_path: Path) -> None:
    found = drawn(a_file(tmp_path, 8), count=4)
    first, second = (contents(c.prompts) for c in found.cells)
    assert (len(first), len(second), len(first & second)) == (4, 4, 0)
    assert {c.workload for c in found.cells} == {"mine"}
    assert not contents(found.warm_up) & (first | second)


@pytest.mark.parametrize(("held", "count", "each"), [(7, 4, 4), (3, 4, 3)])
def test_a_file_that_is_too_small_gives_every_load_the_same(
    tmp_path: Path, held: int, count: int, each: int
) -> None:
    found = drawn(a_file(tmp_path, held), count=count)
    assert [len(c.prompts) for c in found.cells] == [each] * 2
    assert found.cells[0].prompts == found.cells[1].prompts
    # That it holds fewer than were asked for is said; fewer than all loads need is not its fault.
    assert len(found.notes) == (held < count)


def test_a_warm_cell_comes_behind_the_cold_one_with_other_prompts_before() -> None:
    wanted = Wanted(("copy", "rename"), (ONE, EIGHT), 3, warm=5)
    cold = draw(replace(wanted, warm=0), no_model, same_for_all_loads=True).cells
    found = draw(wanted, no_model, same_for_all_loads=True).cells
    assert [(c.workload, c.load, len(c.warm)) for c in found] == [
        (label, load, warm)
        for name in ("copy", "rename")
        for label, warm in ((name, 0), (f"{name} after 5", 5))
        for load in (ONE, EIGHT)
    ]
    # The same prompts as without it, cold and warm; others before.
    assert [c.prompts for c in found] == [c.prompts for c in cold for _ in (0, 1)]
    for cell in found:
        assert not contents(cell.warm) & contents(cell.prompts)
    # A server sees no prompt twice.
    served = draw(wanted, no_model, same_for_all_loads=False).cells
    timed = [content(prompt) for cell in served for prompt in cell.prompts]
    assert len(timed) == len(set(timed)) == 2 * 4 * 3
    assert not any(contents(cell.warm) & set(timed) for cell in served)


def test_a_file_must_hold_what_comes_before_too(tmp_path: Path) -> None:
    wanted = Wanted((a_file(tmp_path, 8),), (ONE,), 4, warm=4)
    cold, warm = draw(wanted, no_model, same_for_all_loads=True).cells
    assert cold.prompts == warm.prompts
    assert (len(warm.prompts), len(warm.warm)) == (4, 4)
    assert not contents(warm.warm) & contents(warm.prompts)
    with pytest.raises(ConfigError, match=r"warm: .*holds 8 prompts, and 4 to measure with 5"):
        draw(replace(wanted, warm=5), no_model, same_for_all_loads=True)


def test_random_ids_are_marked_and_need_a_vocabulary(tmp_path: Path) -> None:
    wanted = Wanted(("random",), (ONE,), 2)
    assert draw(wanted, lambda: 50, same_for_all_loads=True).cells[0].random_prompts
    with pytest.raises(AssertionError, match="vocabulary"):
        draw(wanted, no_model, same_for_all_loads=True)
    path = tmp_path / "ids.jsonl"
    path.write_text('{"prompt": [1, 2, 3]}\n')
    assert drawn(str(path)).cells[0].random_prompts
    assert not drawn("words", count=1).cells[0].random_prompts


def test_an_engine_of_chats_is_asked_nothing_else(tmp_path: Path) -> None:
    def asked(*names: str) -> Drawn:
        wanted = Wanted(names, (ONE,), 2, chats_only=True)
        return draw(wanted, no_model, same_for_all_loads=False, identity=4)

    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    for name in ("story", str(file)):
        found = asked(name)
        every = [*found.cells[0].prompts, *found.warm_up, *found.identity]
        assert len(every) >= 1 + 2 + 4
        assert all(prompt.messages is not None for prompt in every)
    assert {p.params.temperature for p in found.identity} == {0.0}
    for name in ("copy", "random", a_file(tmp_path, 2)):
        with pytest.raises(ConfigError, match=r"not of chats.* choose among rename, edit"):
            asked(name)
    assert {"agent", "copy", "words", "random"} == set(RECIPES) - set(chats())


def test_unknown_and_repeated_workloads_are_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path, 1)
    check(["copy", path, f"{path}:prompts"])
    for names in ([], ["copi"], ["copy", "copy"], [path, path], [path, "nowhere.jsonl"]):
        with pytest.raises(ConfigError, match="workload"):
            check(names)
