"""The closed loop over an engine: how many requests fly, what is counted, what is left behind."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from wager import SpeculationConfig
from wager.arms import PLAIN, Arm, arm_of, parse_arms
from wager.backend import Load, Prompt, SourceCounts
from wager.bench.backend import EngineBackend, check_arm
from wager.config import EngineConfig, SamplingParams
from wager.errors import ConfigError, RequestError
from wager.types import CompletionOutput, DraftCounts, RequestOutput

SPECULATION = SpeculationConfig.of("ngram", 4)
NGRAM = arm_of({"method": "ngram", "num_speculative_tokens": 4})


@dataclass
class Flying:
    name: str
    ids: list[int]
    left: int
    salt: str


class ScriptedStats:
    plain_ms = verify_ms = prefill_ms = draft_ms = 1.0
    preemptions = resets = 0

    def __init__(self) -> None:
        self.counts = DraftCounts()
        self.counts.record(4, 3, 4)
        self.by_source = {"ngram": self.counts}

    def reset(self) -> None:
        self.resets += 1


@dataclass
class ScriptedPool:
    blocks: int = 7


@dataclass
class ScriptedBets:
    """Made anew by every `set_speculation`, with a controller that knows nothing."""

    controller: object = field(default_factory=object)


class ScriptedEngine:
    """Gives each request one token per step until its max_tokens; writes down the load."""

    def __init__(self) -> None:
        self.flying: dict[str, Flying] = {}
        self.loads: list[int] = []
        self.added: list[Flying] = []
        self.aborted: list[str] = []
        self.stats = ScriptedStats()
        self.pool = ScriptedPool()
        self.config = EngineConfig()
        self.bets: ScriptedBets | None = None

    def add_request(
        self, ids: list[int], params: SamplingParams, request_id: str, cache_salt: str = ""
    ) -> str:
        if not ids:
            raise RequestError("prompt: is empty")
        assert request_id not in {f.name for f in self.added}
        one = Flying(request_id, ids, params.max_tokens or 0, cache_salt)
        self.flying[request_id] = one
        self.added.append(one)
        return request_id

    def step(self) -> list[RequestOutput]:
        self.loads.append(len(self.flying))
        outputs = []
        for one in list(self.flying.values()):
            one.left -= 1
            if one.left == 0:
                del self.flying[one.name]
            choice = CompletionOutput(0, [one.left], f"{one.left} ", None)
            done = one.left == 0
            outputs.append(RequestOutput(one.name, one.ids, [choice], done))
        return outputs

    def abort(self, name: str) -> None:
        if self.flying.pop(name, None):
            self.aborted.append(name)

    def has_work(self) -> bool:
        return bool(self.flying)


@dataclass
class ScriptedTokenizer:
    has_chat_template: bool = True


@dataclass
class ScriptedLLM:
    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    tokenizer: ScriptedTokenizer = field(default_factory=ScriptedTokenizer)
    calls: list[Any] = field(default_factory=list)

    def prompt_ids(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, *self.prompt_ids(messages[-1]["content"])]

    def set_speculation(self, speculation: SpeculationConfig | None) -> None:
        self.calls.append(speculation)
        self.engine.bets = None if speculation is None else ScriptedBets()

    def reset_caches(self) -> None:
        self.calls.append("reset")


def prompts(limits: list[int]) -> list[Prompt]:
    return [
        Prompt(f"p-{i}", SamplingParams(max_tokens=limit), text=f"text {i}")
        for i, limit in enumerate(limits)
    ]


def stream(llm: ScriptedLLM, asked: list[Prompt], clients: int) -> Any:
    return EngineBackend(llm).stream(asked, Load(clients=clients))  # type: ignore[arg-type]


@pytest.mark.parametrize("clients", [1, 2, 3, 8])
def test_as_many_requests_fly_as_there_are_clients(clients: int) -> None:
    llm = ScriptedLLM()
    asked = prompts([3, 1, 7, 2, 5])
    answers = list(stream(llm, asked, clients))
    assert sorted(a.prompt_id for a in answers) == [p.id for p in asked]
    assert set(llm.engine.loads) == {clients}
    assert not llm.engine.has_work()


def test_one_client_sends_each_prompt_once_and_in_order() -> None:
    llm = ScriptedLLM()
    answers = list(stream(llm, prompts([3, 1, 2]), 1))
    assert [a.prompt_id for a in answers] == ["p-0", "p-1", "p-2"]
    assert len(llm.engine.added) == 3
    assert answers[0].token_ids == [2, 1, 0]
    assert answers[0].text == "2 1 0 "


def test_what_fills_the_load_is_not_counted_and_hits_no_prefix_of_a_counted_one() -> None:
    llm = ScriptedLLM()
    answers = list(stream(llm, prompts([9, 2]), 2))
    assert len(answers) == 2
    fillers = [f for f in llm.engine.added if f.salt]
    assert len(llm.engine.added) == 2 + len(fillers)
    assert fillers
    assert all(f.salt == "filler" for f in fillers)
    assert llm.engine.aborted


def test_a_consumer_that_leaves_early_leaves_nothing_behind() -> None:
    llm = ScriptedLLM()
    for _ in itertools.islice(running := stream(llm, prompts([2, 9, 9]), 2), 1):
        pass
    running.close()
    assert not llm.engine.flying


def test_a_request_that_is_refused_is_named_and_the_others_are_aborted() -> None:
    llm = ScriptedLLM()
    asked = [*prompts([9]), Prompt("bad-1", SamplingParams(max_tokens=1), text="")]
    with pytest.raises(RequestError, match=r"bad-1: prompt: is empty"):
        list(stream(llm, asked, 2))
    assert not llm.engine.flying


def test_start_changes_the_arm_and_empties_everything() -> None:
    llm = ScriptedLLM()
    backend = EngineBackend(llm)  # type: ignore[arg-type]
    started = backend.start(NGRAM)
    backend.start(Arm(PLAIN))
    assert llm.calls == [SPECULATION, "reset", None, "reset"]
    assert llm.engine.stats.resets == 2
    assert started.kv_tokens == 7 * 16
    assert started.effective["prompt_lookup_max"] == 5


def test_counters_are_those_of_the_engine() -> None:
    found = EngineBackend(ScriptedLLM()).counters()  # type: ignore[arg-type]
    assert (found.total_ms, found.draft_ms) == (3.0, 1.0)
    assert (found.steps, found.drafts, found.drafted, found.accepted) == (1, 1, 4, 3)
    assert (found.accepted_at, found.generated) == ((1, 1, 1), 4)
    assert found.by_source == {"ngram": SourceCounts(1, 4, 3)}


def test_an_arm_is_checked_without_a_model() -> None:
    assert check_arm(NGRAM) == SPECULATION.describe()
    assert check_arm(Arm(PLAIN)) == "no drafts"
    with pytest.raises(ConfigError, match="eagle9"):
        check_arm(arm_of({"method": "eagle9", "num_speculative_tokens": 4}))
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        check_arm(arm_of({"method": "ngram", "controller": "off"}))
    with pytest.raises(ConfigError, match="unknown key 'model'"):
        check_arm(arm_of({"method": "ngram", "num_speculative_tokens": 4, "model": "d"}))


def test_an_arm_that_names_a_length_is_not_controlled() -> None:
    """It means just that length, as on every other engine; one without leaves it to be found."""
    said = "only where it pays"
    for arm, controlled in {
        "ngram:k=8": False, "suffix+ngram:k=8": False, "auto:k=4": False, "ngram": True,
        "auto": True, "ngram:k=8,controller=on": True, "ngram:num-speculative-tokens=8": False,
    }.items():  # fmt: skip
        (parsed,) = parse_arms(arm)
        assert (said in check_arm(parsed)) == controlled, arm


class Clock:
    """Stands still but for sleeping and for steps of a second."""

    def __init__(self, llm: ScriptedLLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 0.0, 0.0
        self._step = llm.engine.step
        llm.engine.step = self.step  # type: ignore[method-assign]
        monkeypatch.setattr("wager.bench.backend.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("wager.bench.backend.time.sleep", self.sleep)

    def step(self) -> list[RequestOutput]:
        self.now += 1.0
        return self._step()

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds


def test_every_token_is_timed_from_the_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ScriptedLLM()
    Clock(llm, monkeypatch)
    first, second = stream(llm, prompts([3, 2]), 1)
    assert first.chunks == [(1.0, 1), (2.0, 1), (3.0, 1)]
    assert (first.first_token_s, first.total_s) == (1.0, 3.0)
    assert (second.first_token_s, second.total_s) == (1.0, 2.0)
    assert (first.tokens, first.prompt_tokens) == (3, len("text 0"))


def test_at_a_rate_each_prompt_is_sent_once_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ScriptedLLM()
    clock = Clock(llm, monkeypatch)
    backend = EngineBackend(llm)  # type: ignore[arg-type]
    answers = list(backend.stream(prompts([2, 2, 2, 2]), Load(rate=0.5, seed=3)))
    assert sorted(a.prompt_id for a in answers) == [f"p-{i}" for i in range(4)]
    assert [f.salt for f in llm.engine.added] == [""] * 4
    assert clock.slept > 0.0
    # A request that came while a step ran has waited for the end of the step.
    assert all(2.0 - 1e-9 <= a.total_s < 3.0 for a in answers)
    assert any(a.total_s > 2.1 for a in answers)
    other = ScriptedLLM()
    again = EngineBackend(other)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rate"):
        list(again.stream(prompts([1]), Load()))


def test_each_kind_of_prompt_becomes_ids() -> None:
    llm = ScriptedLLM()
    params = SamplingParams(max_tokens=1)
    asked = [
        Prompt("chat-0", params, messages=(("user", "ab"),)),
        Prompt("raw-0", params, text="ab"),
        Prompt("ids-0", params, token_ids=(7, 8)),
    ]
    list(stream(llm, asked, 1))
    assert [f.ids for f in llm.engine.added] == [[1, 97, 98], [97, 98], [7, 8]]


def test_a_chat_without_a_template_is_refused() -> None:
    llm = ScriptedLLM(tokenizer=ScriptedTokenizer(has_chat_template=False))
    asked = [Prompt("rename-00", SamplingParams(max_tokens=1), messages=(("user", "ab"),))]
    with pytest.raises(ConfigError, match="workload: rename is a chat"):
        list(stream(llm, asked, 1))


def test_an_arm_s_controller_goes_on_from_start_to_start() -> None:
    """As in a server; each arm has its own."""
    llm = ScriptedLLM()
    backend = EngineBackend(llm)  # type: ignore[arg-type]
    plain, one, other = parse_arms("plain,ngram:k=4,suffix")
    seen = []
    for arm in (plain, one, other, other, one, plain):
        backend.start(arm)
        seen.append(llm.engine.bets and llm.engine.bets.controller)
    assert seen[0] is seen[5] is None
    assert seen[1] is seen[4]
    assert seen[2] is seen[3]
    assert seen[1] is not seen[2]
