"""The client against scripted streams, of which everything is known."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.external.stub import DONE, Script, Stub, delta, text, usage
from wager.backend import Answer, Load, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external import client, openai
from wager.external.reply import Reply

CLOCK_S = 0.02


class OpenAI:
    """The protocol as it is, salted."""

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        return openai.request(prompt, "stub")

    def salt(self, body: dict[str, Any], salt: str) -> None:
        body["cache_salt"] = salt

    def read(self, event: dict[str, Any], reply: Reply) -> None:
        openai.read(event, reply)


def prompts(number: int, max_tokens: int | None = 64) -> list[Prompt]:
    return [
        Prompt(f"p{i}", SamplingParams(max_tokens=max_tokens), text=f"say {i}")
        for i in range(number)
    ]


def ask(
    stub: Stub, asked: Sequence[Prompt], load: Load | None = None, timeout_s: float = 30.0
) -> list[Answer]:
    target = client.Target(stub.url, timeout_s=timeout_s)
    return list(client.stream(OpenAI(), target, asked, load or Load(clients=1)))


def one(*events: Any, max_tokens: int | None = 64, **script: Any) -> Answer:
    """The answer to a single request; events without a time come at once."""
    timed = [event if isinstance(event, tuple) else (0.0, event) for event in events]
    with Stub([Script(timed, **script)]) as stub:
        (answer,) = ask(stub, prompts(1, max_tokens))
    return answer


def timely(
    seen: Callable[[Answer], Sequence[float | None]], due: list[float], *events: Any
) -> Answer:
    """The answer, its times as scripted. A busy machine is late now and then, not three times."""
    for _ in range(3):
        answer = one(*events)
        if seen(answer) == pytest.approx(due, abs=CLOCK_S):
            return answer
    raise AssertionError(f"{seen(answer)} where {due} was due")


def test_five_tokens_per_piece() -> None:
    """Ten pieces of five tokens, one every 100 ms, are fifty tokens."""
    events = [(0.1 * i, text("abcde")) for i in range(10)]
    answer = timely(
        lambda a: [at for at, _ in a.chunks],
        [0.1 * i for i in range(10)],
        *(*events, text("", finish="length"), (0.9, usage(50, 7)), (0.9, DONE)),
    )
    assert answer.error is None
    assert answer.tokens == 50
    assert answer.prompt_tokens == 7
    assert [tokens for _, tokens in answer.chunks] == [None] * 10
    assert answer.text == "abcde" * 10
    assert answer.finish_reason == "length"
    assert answer.token_ids is None


def test_pieces_whose_ids_are_told() -> None:
    events = [text("abcde", ids=range(5 * i, 5 * i + 5)) for i in range(10)]
    answer = one(*events, text("", ids=[], finish="length"), usage(50), DONE)
    assert [tokens for _, tokens in answer.chunks] == [5] * 10
    assert answer.token_ids == list(range(50))


def test_pieces_that_each_carry_a_running_count() -> None:
    def counted(piece: str, so_far: int, finish: str | None = None) -> dict[str, Any]:
        return {**text(piece, finish=finish), **{"usage": usage(so_far)["usage"]}}

    answer = one(counted("a", 1), counted("bcd", 4), counted("", 5, "stop"), usage(5), DONE)
    assert [tokens for _, tokens in answer.chunks] == [1, 3, 1]
    assert answer.tokens == 5


def test_a_usage_on_the_last_piece_alone_says_nothing_of_that_piece() -> None:
    last = {**text("c", finish="stop"), **{"usage": usage(9)["usage"]}}
    answer = one(text("a"), text("b"), last, DONE)
    assert [tokens for _, tokens in answer.chunks] == [None, None, None]
    assert answer.tokens == 9


@pytest.mark.parametrize("number", [0, 1, 2])
def test_replies_of_few_tokens(number: int) -> None:
    """Nothing breaks, and no token is made up."""
    events = [(0.0, text("x", ids=[i])) for i in range(number)]
    answer = one(*events, text("", ids=[], finish="stop"), usage(number), DONE)
    assert answer.error is None
    assert answer.tokens == number
    assert answer.token_ids == list(range(number))
    assert len(answer.chunks) == number
    assert (answer.first_token_s is None) == (number == 0)
    json.dumps([answer.first_token_s, answer.total_s, answer.chunks], allow_nan=False)


def test_a_reply_in_one_piece() -> None:
    answer = one(text("all of it", ids=[1, 2, 3, 4], finish="stop"), usage(4), DONE)
    assert answer.tokens == 4
    assert len(answer.chunks) == 1
    assert answer.chunks[0] == (answer.first_token_s, 4)


def test_the_first_token_is_one_of_any_kind() -> None:
    """Role at 0 ms, reasoning at 200 ms, content a second later."""
    answer = timely(
        lambda a: [a.first_token_s, a.total_s],
        [0.2, 1.2],
        delta(role="assistant", content=""),
        (0.2, delta(reasoning_content="let me see")),
        (1.2, delta(content="yes")),
        (1.2, delta("stop")),
        (1.2, usage(4)),
        (1.2, DONE),
    )
    assert answer.text == "let me seeyes"
    assert len(answer.chunks) == 2


def test_a_stream_without_content_has_no_first_token() -> None:
    """Its other half: not 0, not negative."""
    answer = one(delta(role="assistant", content=None), delta("stop"), usage(0), DONE)
    assert answer.error is None
    assert answer.first_token_s is None
    assert answer.tokens == 0


def test_the_servers_count_wins() -> None:
    """What was sent is 100 ids; the server counts 101 (1 %), then 110 (10 %)."""
    prompt = Prompt("p", SamplingParams(max_tokens=8), token_ids=tuple(range(100)))
    replies = [
        Script([(0.0, text("x", finish="stop")), (0.0, usage(1, counted)), (0.0, DONE)])
        for counted in (101, 110)
    ]
    with Stub(replies) as stub:
        near = ask(stub, [prompt])[0]
        far = ask(stub, [prompt])[0]
    assert near.prompt_tokens == 101
    assert near.notes == []
    assert far.prompt_tokens == 110
    assert far.notes == ["the server counted 110 prompt tokens where 100 were sent"]


def test_a_decode_time_that_cannot_be_right() -> None:
    """``predicted_ms`` near 0 for 20 tokens that took 190 ms to arrive."""
    events = [(0.01 * i, text("x", ids=[i])) for i in range(20)]

    def end(ms: float) -> dict[str, Any]:
        return {"choices": [], "timings": {"predicted_n": 20, "predicted_ms": ms}}

    for ms in (0.0, 0.01):
        last = [text("", ids=[], finish="length"), end(ms), DONE]
        answer = timely(lambda a: [a.chunks[-1][0]], [0.19], *events, *last)
        assert "is not plausible" in answer.notes[0]
        assert "client's clock" in answer.notes[0]
    answer = one(*events, text("", ids=[], finish="length"), end(190.0), DONE)
    assert answer.notes == []
    assert answer.tokens == 20


@pytest.mark.parametrize("ids", [True, False])
def test_a_server_that_does_not_heed_the_length(ids: bool) -> None:
    """Eight tokens are asked for, and the stream never ends."""
    endless = [(0.002 * i, text("x", ids=[i] if ids else None)) for i in range(5000)]
    with Stub([Script(endless)]) as stub:
        (answer,) = ask(stub, prompts(1, max_tokens=8))
        assert answer.error is not None
        assert answer.error.startswith("9 tokens came where at most 8 were asked for")
        assert len(answer.chunks) == 9
        deadline = time.monotonic() + 10
        while not stub.closed:
            assert time.monotonic() < deadline, "the request was not ended"
            time.sleep(0.01)


def test_a_count_above_what_was_asked_for() -> None:
    answer = one(text("abc", finish="stop"), usage(80), DONE, max_tokens=8)
    assert answer.error is not None
    assert answer.error.startswith("80 tokens came where at most 8")


def test_a_refusal_is_the_error_of_its_answer() -> None:
    body = json.dumps({"error": {"message": "max_tokens is\ntoo large", "code": 400}})
    answer = one(status=400, body=body, content_type="application/json")
    assert answer.error == "HTTP 400: max_tokens is too large"
    assert answer.first_token_s is None
    assert answer.tokens == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"detail": "no such route"}', "no such route"),
        ('{"error": "model not found"}', "model not found"),
        ("<html>\n gateway</html>", "<html> gateway</html>"),
        ('{"object":"error","message":"bad","code":400}', "bad"),
    ],
)
def test_every_form_of_refusal_is_read(body: str, said: str) -> None:
    assert one(status=404, body=body).error == f"HTTP 404: {said}"


def test_an_error_within_a_stream() -> None:
    answer = one(text("a", ids=[1]), {"error": {"message": "out of memory"}}, DONE)
    assert answer.error == "out of memory"
    assert answer.text == "a"


def test_a_stream_that_breaks_off() -> None:
    answer = one(text("a"), cut=True)
    assert answer.error is not None
    assert "RemoteProtocolError" in answer.error
    assert one(text("a")).error == "the stream ended before the reply did"


def test_a_reply_that_is_no_stream() -> None:
    answer = one(body="{}", content_type="application/json")
    assert answer.error == "answered with application/json, not with a stream"


def test_events_that_cannot_be_read_are_counted() -> None:
    answer = one(
        b": a comment\n\n",
        "{not json",
        "[1, 2]",
        {"choices": [7]},
        b"event: ping\ndata: {}\n\n",
        text("a", ids=[1]),
        text("", ids=[], finish="stop"),
        DONE,
    )
    assert answer.error is None
    assert answer.tokens == 1
    assert answer.notes == ["3 events of the stream could not be read"]


def test_nobody_is_there() -> None:
    with Stub() as stub:
        pass
    (answer,) = ask(stub, prompts(1))
    assert answer.error is not None
    assert answer.error.startswith("ConnectError")


def test_a_server_that_falls_silent() -> None:
    with Stub([Script([(0.0, text("a")), (60.0, DONE)])]) as stub:
        (answer,) = ask(stub, prompts(1), timeout_s=0.3)
    assert answer.error == "not finished after 0.3 s"
    assert answer.text == "a"


def test_one_failure_ends_nothing_else() -> None:
    good = Script([(0.01, text("a", ids=[1], finish="stop")), (0.01, DONE)])
    bad = Script(status=500, body="oops")
    with Stub(lambda _, body: bad if body["prompt"] == "say 2" else good) as stub:
        answers = {a.prompt_id: a for a in ask(stub, prompts(5), Load(clients=2))}
    assert len(answers) == 5
    assert [name for name, a in answers.items() if a.error] == ["p2"]


def test_a_connection_that_the_server_closes_after_its_reply_is_not_used_again() -> None:
    good = Script([(0.01, text("a", ids=[1], finish="stop")), (0.01, DONE)])
    with Stub([good], one_reply_each=True) as stub:
        answers = ask(stub, prompts(4), Load(clients=1))
    assert [a.error for a in answers] == [None] * 4


def test_answers_come_as_soon_as_they_are_finished() -> None:
    def script(_: int, body: dict[str, Any]) -> Script:
        at = 1.0 if body["prompt"] == "say 0" else 0.05
        return Script([(at, text("a", ids=[1], finish="stop")), (at, DONE)])

    with Stub(script) as stub:
        answers = ask(stub, prompts(4), Load(clients=2))
    assert [a.prompt_id for a in answers] == ["p1", "p2", "p3", "p0"]


def test_the_load_stays_full_until_the_last_counted_reply() -> None:
    def script(number: int, body: dict[str, Any]) -> Script:
        at = 0.4 if body["prompt"] == "say 4" else 0.05
        return Script([(at, text("a", ids=[1], finish="stop")), (at, DONE)])

    with Stub(script) as stub:
        answers = ask(stub, prompts(5), Load(clients=3))
        assert sorted(a.prompt_id for a in answers) == ["p0", "p1", "p2", "p3", "p4"]
        assert stub.most_open == 3
        # While the slow one runs, two clients ask again, with salts of their own.
        salts = Counter(body["cache_salt"] for body in stub.bodies)
        assert sorted(salts.values(), reverse=True) == [5] + [1] * (len(salts) - 1)
        assert len(salts) > 3


def test_two_runs_share_no_salt() -> None:
    with Stub([Script([(0.0, text("a", finish="stop")), (0.0, DONE)])]) as stub:
        ask(stub, prompts(1))
        ask(stub, prompts(1))
        assert stub.bodies[0]["cache_salt"] != stub.bodies[1]["cache_salt"]


def test_uncounted_requests_are_cancelled_at_the_end() -> None:
    def script(number: int, _: dict[str, Any]) -> Script:
        at = (0.1, 0.4, 60.0)[min(number, 2)]
        return Script([(at, text("a", ids=[1], finish="stop")), (at, DONE)])

    with Stub(script) as stub:
        assert len(ask(stub, prompts(2), Load(clients=2))) == 2
        assert len(stub.bodies) == 3
        deadline = time.monotonic() + 10
        while stub.closed < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_whoever_stops_listening_ends_the_run() -> None:
    slow = Script([(30.0, DONE)])
    quick = Script([(0.0, text("a", ids=[1], finish="stop")), (0.0, DONE)])
    with Stub([quick, slow]) as stub:
        answers = client.stream(OpenAI(), client.Target(stub.url), prompts(3), Load(clients=1))
        assert next(answers).prompt_id == "p0"
        began = time.monotonic()
        answers.close()  # type: ignore[attr-defined]
        assert time.monotonic() - began < 10


def test_arrivals_at_a_rate_do_not_wait_for_replies() -> None:
    with Stub([Script([(0.5, text("a", ids=[1], finish="stop")), (0.5, DONE)])]) as stub:
        answers = ask(stub, prompts(12), Load(rate=200.0, seed=3))
        assert len(answers) == 12
        assert all(a.error is None for a in answers)
        assert len(stub.bodies) == 12
        assert stub.most_open == 12


def test_arrivals_are_those_of_the_seed() -> None:
    def gaps(seed: int) -> list[float]:
        run = client._Run(OpenAI(), client.Target("http://x"), [], Load(rate=2.0, seed=seed))
        return run.arrival_times(400)

    assert gaps(1) == gaps(1)
    assert gaps(1) != gaps(2)
    assert gaps(1)[0] == 0.0
    assert gaps(1)[-1] == pytest.approx(200.0, rel=0.2)


@pytest.mark.parametrize("load", [Load(), Load(clients=1, rate=1.0), Load(clients=0), Load(rate=0)])
def test_a_load_that_is_none(load: Load) -> None:
    with Stub() as stub, pytest.raises(ConfigError, match="load"):
        ask(stub, prompts(1), load)


def test_no_prompts_no_requests() -> None:
    with Stub() as stub:
        assert ask(stub, []) == []
        assert stub.bodies == []
