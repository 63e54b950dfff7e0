"""`--suite article`: its plan, the time it says it needs, its tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.bench.scripted import ON, ScriptedBackend, plan, planned, prompt, prompts, reply
from tests.external.pretend import program, recorded
from tests.tiny import write_tiny_hf
from wager.arms import PLAIN, Arm
from wager.backend import Answer, Counters, Load, Prompt, Started
from wager.bench.plan import Plan, PlannedCell, content, schedule
from wager.bench.run import Event, Executor, Run
from wager.bench.suites import article as suites
from wager.bench.suites import report as suites_report
from wager.bench.suites.article import Estimating, Speed
from wager.bench.summary import Target, summarise
from wager.bench.workloads.sources import Wanted
from wager.cli.main import main
from wager.errors import ConfigError

Capture = pytest.CaptureFixture[str]
LOADS = tuple(Load(clients=n) for n in (1, 8, 32))
BASE: dict[str, Any] = {
    "suite": "article", "engine": "vllm", "workload": None, "arms": None, "clients": None,
    "speculative_config": None, "rate": None, "demo": False, "warm": None, "max_tokens": None,
    "max_model_len": None, "identity": None, "seed": 3,
}  # fmt: skip


def test_what_it_sets() -> None:
    given = suites.settle(BASE)
    assert given["workload"] == "copy,words,random,rename,explain"
    assert given["clients"] == "1,8,32"
    assert given["identity"] == 12
    assert given["seed"] == 3
    assert [arm.name for arm in suites.arms()] == [
        "plain", "ngram:k=2,min=2,max=5", "ngram:k=4,min=2,max=5", "ngram:k=8,min=2,max=5",
    ]  # fmt: skip
    own = {"clients": "1", "max_tokens": 8, "identity": 0, "max_model_len": 64}
    assert {k: suites.settle({**BASE, **own})[k] for k in own} == own


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"suite": "book"}, "suite: 'book' is unknown; there is: article"),
        ({"engine": "url"}, "which url cannot be told; use own, vllm"),
        ({"engine": "ollama"}, "which ollama cannot be told"),
        ({"arms": "plain,ngram:k=3"}, "arms: --suite article has its own; leave it out"),
        ({"speculative_config": ["{}"]}, "speculative-config: --suite article has its own"),
        ({"workload": "copy"}, "workload: --suite article has its own"),
        ({"rate": "2"}, "rate: --suite article has its own"),
        ({"demo": True}, "demo: --suite article has its own"),
        ({"warm": 5}, "warm: --suite article has its own"),
    ],
)
def test_what_it_refuses(other: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        suites.settle({**BASE, **other})


def drawn(**more: Any) -> Any:
    wanted = Wanted(suites.WORKLOADS, LOADS, max_tokens=128, **more)
    return suites.draw(wanted, lambda: 1000, same_for_all_loads=False)


def test_four_batches_of_a_cell_the_first_dropped() -> None:
    found = drawn()
    assert [(c.workload, c.load.clients) for c in found.cells[:4]] == [
        ("copy", 1), ("copy", 8), ("copy", 32), ("words", 1),
    ]  # fmt: skip
    assert len(found.cells) == 15
    for cell in found.cells:
        batch = max(4, cell.load.clients)
        assert (cell.batch, len(cell.dropped), len(cell.prompts)) == (batch, batch, 3 * batch)
        assert cell.random_prompts == (cell.workload == "random")
    every = [p for cell in found.cells for p in (*cell.dropped, *cell.prompts)]
    # No prompt is sent twice to one server, whatever it is sent for.
    asked = [content(p) for p in (*every, *found.warm_up, *found.identity)]
    assert len(set(asked)) == len(asked)
    assert all(p.params.max_tokens <= 128 for p in every)


def test_a_batch_may_be_larger_but_every_client_has_a_prompt() -> None:
    sizes = [cell.batch for cell in drawn(count=10).cells[:3]]
    assert sizes == [10, 10, 32]
    assert [cell.batch for cell in drawn(count=1).cells[:3]] == [1, 8, 32]


def test_twelve_greedy_prompts_are_fixed_and_the_cells_follow_the_seed() -> None:
    first, second = drawn(seed=1), drawn(seed=2)
    assert len(first.identity) == 12
    assert first.identity == second.identity
    assert all(p.params.temperature == 0.0 for p in first.identity)
    assert content(first.cells[0].prompts[0]) != content(second.cells[0].prompts[0])


def batched(clients: int, batch: int, name: str = "w") -> PlannedCell:
    cell = planned(3 * batch, clients, name)
    return replace(cell, dropped=prompts(batch, f"{name}-first"), batch=batch)


def asked(scripted: ScriptedBackend) -> list[list[str]]:
    blocks = " ".join(scripted.events).split("stop")
    return [block.split()[1:] for block in blocks if block.strip()]


def test_a_server_answers_the_dropped_batch_before_each_cell() -> None:
    scripted = ScriptedBackend(fresh_start_is_cheap=False)
    run = Run.of(plan(batched(2, 2, "a"), batched(1, 1, "b"), engine="vllm"))
    Executor(scripted, run).execute()
    assert len(asked(scripted)) == 4
    assert asked(scripted)[1] == [
        ON.name, "warm-0", "warm-1",
        "a-first-0", "a-first-1", *(f"a-{i}" for i in range(6)),
        "b-first-0", *(f"b-{i}" for i in range(3)),
    ]  # fmt: skip
    assert [load.clients for load in scripted.loads[:8]] == [2, 2, 2, 2, 2, 1, 1, 1]
    assert set(run.measurements[0].answers[PLAIN]) == {f"a-{i}" for i in range(6)}
    # Differences of the counters: three batches on each of two servers, none of them dropped.
    assert run.measurements[0].counters(ON.name).drafted == 6


def test_progress_goes_through_a_cell_not_through_each_of_its_batches() -> None:
    heard: list[Event] = []
    wanted = plan(batched(2, 2, "a"), engine="vllm")
    scripted = ScriptedBackend(fresh_start_is_cheap=False)
    Executor(scripted, Run.of(wanted), progress=heard.append).execute()
    first = [(e.done, e.total) for e in heard if "server 1 of 4" in e.what]
    assert first == [(n, 6) for n in range(1, 7)]
    assert (heard[-1].done_in_all, heard[-1].in_all) == (24, 24)


def test_the_own_engine_drops_it_once_per_arm() -> None:
    scripted = ScriptedBackend()
    run = Run.of(plan(batched(2, 2)))
    Executor(scripted, run).execute()
    blocks = asked(scripted)[2:]
    first = ["w-first-0", "w-first-1"]
    assert blocks[:4] == [
        [PLAIN, *first, "w-0", "w-1"], [ON.name, *first, "w-0", "w-1"],
        [ON.name, "w-0", "w-1"], [PLAIN, "w-0", "w-1"],
    ]  # fmt: skip
    assert blocks[4:8] == [[name, "w-2", "w-3"] for name in (ON.name, PLAIN, PLAIN, ON.name)]
    assert run.complete
    assert run.measurements[0].counters(PLAIN).drafted == 6


def test_a_resumed_run_drops_only_what_comes_before_something_missing() -> None:
    wanted = plan(batched(1, 1, "a"), batched(1, 1, "b"), engine="vllm")
    scripted = ScriptedBackend(fresh_start_is_cheap=False)
    executor = Executor(scripted, Run.of(wanted))
    executor._blocks = schedule(wanted, False)
    done = [i for i, part in enumerate(executor._blocks[0].parts) if part.cell == 0]
    executor._done = {(0, i): None for i in done}  # type: ignore[misc]
    parts = executor._blocks[0].parts
    idle = [p.prompts[0].id for i, p in enumerate(parts) if executor._idle(0, i)]
    assert idle == ["a-first-0"]


def test_the_time_it_needs_if_every_arm_is_plain() -> None:
    """Two clients, one second to the first token and 0.1 s for each of 8: 1.8 s a request."""
    speeds = {Load(clients=2): Speed(1.0, 0.1)}
    one = plan(batched(2, 2), engine="vllm")
    # Each of 4 servers: 10 s start, 2 warm-up prompts, 2 dropped and 6 timed, two at a time.
    assert suites.seconds(one, speeds, 10.0, cheap=False) == pytest.approx(4 * (10 + 5 * 1.8))
    # Own: 2 warm-ups alone (the nearest load is taken), 2 dropped batches, 4 runs of 6 prompts.
    expected = 2 * 1.8 + 2 * 1.8 + 4 * 3 * 1.8
    assert suites.seconds(one, speeds, 0.0, cheap=True) == pytest.approx(expected)
    assert suites.seconds(one, {Load(clients=1): Speed(1.0, 0.1)}, 0.0, cheap=False) is None


def test_speeds_are_medians_of_what_was_answered() -> None:
    answers = [
        reply("a", [1, 2, 3], first=0.2, total=1.2),
        reply("b", [1, 2, 3], first=0.4, total=2.4),
        reply("c", [1, 2, 3], first=0.3, total=1.9),
        replace(reply("d"), error="gone"),
        reply("e", [1], first=9.0, total=9.0),
    ]
    assert suites.speed_of(answers) == Speed(0.3, pytest.approx(0.8))
    assert suites.speed_of(answers[3:]) is None


@pytest.mark.parametrize(
    ("total", "said"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (3 * 3600, "3.0 h")]
)
def test_the_outlook(total: float, said: str) -> None:
    one = plan(batched(2, 2), engine="vllm")
    lines = suites.outlook(one, total, cheap=False)
    assert lines[0] == (
        "article: 2 arms, 1 cells (2 clients), 4 servers; 24 requests are timed and 8 dropped"
    )
    assert lines[1].startswith(f"time needed: about {said}, if every arm is as fast as plain")
    assert "n/a" in suites.outlook(one, None, cheap=True)[1]


@pytest.mark.parametrize("cheap", [True, False])
def test_the_short_look_comes_once_and_is_in_no_figure(cheap: bool) -> None:
    scripted = ScriptedBackend(fresh_start_is_cheap=cheap)
    wanted = plan(batched(2, 2), engine="own" if cheap else "vllm")
    said: list[str] = []
    run = Run.of(wanted)
    Executor(Estimating(scripted, wanted, said.append), run).execute()
    assert len(said) == 2
    looks = [name for name in scripted.events if name.startswith("words-")]
    assert looks == ["words-00", "words-00", "words-01"]
    assert run.complete
    assert set(run.measurements[0].answers[PLAIN]) == {f"w-{i}" for i in range(6)}
    assert run.measurements[0].counters(PLAIN).drafted == 6
    # The own engine is started again, so that nothing of the look is in its caches.
    after = scripted.events[scripted.events.index("words-01") + 1]
    assert after == ("stop" if cheap else "warm-0")


def test_an_engine_that_dies_at_the_short_look_is_stopped() -> None:
    scripted = ScriptedBackend(fail_at_run=1, error=RuntimeError("gone"))
    wanted = plan(batched(2, 2))
    with pytest.raises(RuntimeError, match="gone"):
        Estimating(scripted, wanted, print).start(Arm(PLAIN))
    assert scripted.events[-1] == "stop"


class Counting(ScriptedBackend):
    """A server whose counters tell positions: of 10 drafts of 2, 8 and 4 tokens were accepted."""

    def counters(self) -> Counters:
        n = self.runs if self.arm.speculation else 0
        return Counters(
            steps=20 * n, drafts=10 * n, drafted=20 * n, accepted=12 * n, accepted_at=(8 * n, 4 * n)
        )

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        for answer in super().stream(prompts, load):
            # Twice as fast with speculation, and a reply of the engine's own.
            took = 1.0 if self.arm.name == PLAIN else 0.5
            yield replace(answer, total_s=took, first_token_s=0.1 * took, counts=None)

    def start(self, arm: Arm) -> Started:
        room = 1000 if arm.name == PLAIN else 900
        return replace(super().start(arm), kv_tokens=room, startup_s=4.0)


def report_of(backend: ScriptedBackend, wanted: Plan) -> tuple[Run, str]:
    run = Run.of(wanted)
    Executor(backend, run).execute()
    return run, shown(run)


def shown(run: Run, **more: bool) -> str:
    text = StringIO()
    report = summarise(run, Target("m"))
    suites_report.show(Console(width=120, file=text), run, report, **more)
    return text.getvalue()


def table(text: str, title: str) -> list[list[str]]:
    lines = text.split(title, 1)[1].splitlines()[1:]
    rows = []
    for line in lines:
        if not line.strip():
            break
        rows.append(re.split(r"\s{2,}", line.strip()))
    return rows


def article() -> Plan:
    """Small, with the names and loads of the suite."""
    cells = (
        *(batched(n, 8, "copy") for n in (1, 8)),
        *(batched(n, 8, name) for name in ("random", "rename") for n in (1, 8)),
    )
    cells = tuple(
        replace(
            cell,
            prompts=tuple(replace(p, id=f"{i}-{p.id}") for p in cell.prompts),
            dropped=tuple(replace(p, id=f"{i}-{p.id}") for p in cell.dropped),
        )
        for i, cell in enumerate(cells)
    )
    on = tuple(arm for arm in suites.arms() if arm.name == PLAIN or "k=2" in arm.name)
    identity = tuple(prompt(f"identity-{i}") for i in range(12))
    return replace(plan(*cells, arms=on, engine="vllm"), identity=identity)


def test_the_tables_of_a_known_engine() -> None:
    run, text = report_of(Counting(fresh_start_is_cheap=False), article())
    assert run.complete
    speed = table(text, "over plain decoding, 95 %: copy, words, random")
    assert speed[0] == ["workload", "clients", "plain tok/s", "k=2"]
    assert [row[:2] for row in speed[1:]] == [
        ["copy", "1"], ["copy", "8"], ["random", "1"], ["random", "8"],
    ]  # fmt: skip
    assert all(row[3] == "2.00 [2.00, 2.00]" for row in speed[1:])
    other = table(text, "over plain decoding, 95 %: copy, rename, explain, random")
    assert [row[0] for row in other[1:]] == ["copy", "copy", "rename", "rename", "random", "random"]
    accepted = table(text, "differences of the engine's counters)")
    assert accepted[1] == ["copy", "1 client", "60 %, 1.60"]
    assert table(text, "by position, unconditional")[1] == ["copy", "k=2", "80 %", "40 %"]
    assert table(text, "by position, conditional")[1] == ["copy", "k=2", "80 %", "50 %"]
    same = table(text, "greedy identity of 12 fixed prompts")
    assert same[1] == ["ngram:k=2,min=2,max=5", "12 of 12", "12 of 12", "none"]
    room = table(text, "room for keys and values, and start-up")
    assert room[1] == [PLAIN, "1000", "n/a", "4.0 s", "n/a", "4.0 s"]
    assert room[2] == ["ngram:k=2,min=2,max=5", "900", "10.0 %", "4.0 s", "n/a", "4.0 s"]
    assert "4 batches per cell, the first dropped; each prompt 2 times per arm, a server" in text


def test_what_an_engine_does_not_tell_is_not_made_up() -> None:
    silent = ScriptedBackend(
        script=lambda name, arm, times: replace(reply(name), counts=None),
        fresh_start_is_cheap=False,
    )
    silent.counters = lambda: Counters()  # type: ignore[method-assign]
    _, text = report_of(silent, article())
    assert table(text, "differences of the engine's counters)")[1][2] == "n/a, n/a"
    assert table(text, "by position, unconditional")[1] == ["copy", "k=2", "n/a"]


def test_drafts_of_which_nothing_was_accepted_are_0_and_no_drafts_are_not_available() -> None:
    refused = Counting(fresh_start_is_cheap=False)
    none = Counting(fresh_start_is_cheap=False)
    refused.counters = lambda: Counters(  # type: ignore[method-assign]
        steps=20 * refused.runs, drafts=refused.runs, drafted=refused.runs, accepted=0
    )
    none.counters = lambda: Counters(  # type: ignore[method-assign]
        steps=20 * none.runs, drafts=0, drafted=0, accepted=0
    )
    for backend, share in ((refused, "0 %"), (none, "n/a")):
        _, text = report_of(backend, article())
        for kind in ("unconditional", "conditional"):
            assert table(text, f"by position, {kind}")[1] == ["copy", "k=2", share]


def test_different_replies_are_shown_with_their_place() -> None:
    def script(name: str, arm: Arm, times: int) -> Answer:
        return reply(name, [1, 2, 9] if arm.speculation and name == "identity-3" else [1, 2, 3])

    _, text = report_of(ScriptedBackend(script, fresh_start_is_cheap=False), article())
    row = table(text, "greedy identity of 12 fixed prompts")[1]
    assert row == [
        "ngram:k=2,min=2,max=5", "11 of 12", "12 of 12",
        "token 2 of identity-3, top-2 gap n/a",
    ]  # fmt: skip


def test_a_run_that_ends_early_shows_what_it_has() -> None:
    run = Run.of(article())
    text = shown(run, interrupted=True)
    assert "INTERRUPTED" in text
    assert "k=2" not in text.split("INTERRUPTED")[1]


def test_the_whole_on_a_tiny_model(tmp_path: Path, capsys: Capture) -> None:
    model = write_tiny_hf(tmp_path / "tiny", max_context=4096, seed=1)
    file = tmp_path / "out.json"
    given = ["--suite", "article", "--clients", "1,2", "--prompts", "1", "--max-tokens", "4"]
    asked = ["bench", str(model), *given, "--threads", "1", "--max-model-len", "4096"]
    assert main([*asked, "--identity", "2", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    assert "article: 4 arms, 10 cells (1 client, 2 clients); 360 requests are timed" in printed.err
    assert "time needed: about " in printed.err
    assert len(table(printed.out, "95 %: copy, rename, explain, random")) == 1 + 4 * 2
    assert "2 of 2" in printed.out
    assert '"arm": "ngram:k=8,min=2,max=5"' in file.read_text()


def test_it_stops_at_a_limit_and_goes_on_from_there(tmp_path: Path, capsys: Capture) -> None:
    model = write_tiny_hf(tmp_path / "tiny", max_context=4096, seed=1)
    file = tmp_path / "out.json"
    given = ["--suite", "article", "--clients", "1", "--prompts", "1", "--max-tokens", "2"]
    asked = ["bench", str(model), *given, "--threads", "1", "--max-model-len", "4096"]
    asked += ["--identity", "0", "--json", str(file)]
    assert main([*asked, "--time-limit", "0.01s"]) == 0
    assert not json.loads(file.read_text())["complete"]
    assert "STOPPED EARLY" in capsys.readouterr().out
    assert main([*asked, "--resume"]) == 0
    found = json.loads(file.read_text())
    assert found["complete"]
    assert len(found["cells"]) == 5 * 3
    # What is left is said by the progress; nothing is looked at again.
    assert "time needed" not in capsys.readouterr().err


def test_an_engine_that_is_started(tmp_path: Path, capsys: Capture) -> None:
    """With what vLLM printed and told when it had drafted nothing yet."""
    model = write_tiny_hf(tmp_path / "tiny", seed=1)
    path = program(
        tmp_path, "vllm", recorded("vllm_help.txt"), recorded("vllm_ngram.log"),
        metrics=recorded("vllm_metrics.txt"),
    )  # fmt: skip
    given = ["--suite", "article", "--clients", "1", "--prompts", "1", "--identity", "1"]
    engine = ["--engine", "vllm", "--engine-program", path, "--run-dir", str(tmp_path / "run")]
    assert main(["bench", str(model), *given, *engine]) == 0
    printed = capsys.readouterr()
    assert "4 arms, 5 cells (1 client), 8 servers; 120 requests are timed" in printed.err
    room = table(printed.out, "room for keys and values, and start-up")
    assert [row[:2] for row in room[1:]] == [[arm.name, "23296"] for arm in suites.arms()]
    command = json.loads((tmp_path / "run" / "bench.json").read_text())["arms"][3]["command"]
    assert command[command.index("--max-model-len") + 1] == "1024"
    assert json.loads(command[command.index("--speculative-config") + 1]) == {
        "method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }  # fmt: skip
