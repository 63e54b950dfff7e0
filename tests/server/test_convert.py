"""From bodies to what the engine is asked."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.asgi import PATIENCE_S
from tests.server.fakes import CONTEXT, NAME, TALK_TEMPLATE, TEXT, Client, FakeLLM, Say, tokenizer
from wager.config import RequestSpeculation, SamplingParams, StructuredOutput
from wager.errors import RequestError
from wager.models.tokenizer import Tokenizer
from wager.server import convert
from wager.server.errors import ApiError, as_api_error
from wager.server.schema import ChatBody, CompletionBody, parse

HI = [{"role": "user", "content": "hi"}]
END = [[Say("a", [70], "stop")]]


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"), TALK_TEMPLATE)


@pytest.fixture
def client(spell: Tokenizer) -> Client:
    return Client(FakeLLM(spell, END))


def chat(client: Client, **given: Any) -> SamplingParams:
    return convert.sampling(parse(ChatBody, {"messages": HI, **given}), client.service)


def text(client: Client, **given: Any) -> SamplingParams:
    return convert.sampling(parse(CompletionBody, {"prompt": "a", **given}), client.service)


def refusal(client: Client, body: dict[str, Any], route: Any = text) -> ApiError:
    with pytest.raises((ApiError, RequestError)) as caught:
        route(client, **body)
    return as_api_error(caught.value, "id")


def test_the_model_s_own_defaults_where_nothing_is_said(client: Client) -> None:
    own = client.service.default_params()
    assert chat(client) == own
    assert chat(client, temperature=None, top_p=None, stop=None, n=None) == own
    assert text(client, max_tokens=None) == own


def test_every_option_arrives(client: Client) -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5, "n": 2,
        "min_tokens": 1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.5, "include_stop_str_in_output": True, "ignore_eos": True,
        "skip_special_tokens": False, "prompt_logprobs": 3,
    }  # fmt: skip
    lists = {"stop_token_ids": [5, 6], "allowed_token_ids": [9, 8], "bad_words": ["x"]}
    params = chat(client, **given, **lists, logit_bias={"42": -5, "7": 1.5}, stop="z")
    for name, value in given.items():
        assert getattr(params, name) == value, name
    assert params.stop == ("z",)
    assert params.stop_token_ids == (5, 6)
    assert params.allowed_token_ids == (8, 9)
    assert params.bad_words == ("x",)
    assert params.logit_bias == ((7, 1.5), (42, -5.0))


def test_speculation_of_one_request(client: Client) -> None:
    assert chat(client, speculation={"enabled": False}).speculation == RequestSpeculation(False)
    asked = chat(client, speculation={"method": "ngram", "num_speculative_tokens": 3}).speculation
    assert asked == RequestSpeculation(True, 3, "ngram")
    assert refusal(client, {"speculation": {"num_speculative_tokens": 0}}).param == "speculation"


@pytest.mark.parametrize(
    ("body", "most"),
    [({}, None), ({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6),
     ({"max_tokens": 5, "max_completion_tokens": 5}, 5), ({"max_tokens": None}, None)],
)  # fmt: skip
def test_the_two_names_of_max_tokens(client: Client, body: dict[str, Any], most: Any) -> None:
    assert chat(client, **body).max_tokens == most


def test_completions_are_short_unless_more_is_asked_for(client: Client) -> None:
    assert text(client).max_tokens == convert.MAX_TOKENS
    assert text(client, max_tokens=None).max_tokens is None
    assert text(client, max_completion_tokens=7).max_tokens == 7
    assert text(client, max_tokens=10_000).max_tokens == 10_000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [5] * 2000}, "stop_token_ids"),
        ({"stop_token_ids": [-5]}, "stop_token_ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"AI": 1}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logprobs": -2}, "logprobs"),
        ({"logprobs": 1000}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 21, "echo": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": 1 << 64}, "seed"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
    ],
)
def test_what_cannot_be_is_named(client: Client, body: dict[str, Any], field: str) -> None:
    error = refusal(client, body)
    assert (error.status, error.param) == (400, field), error.message


@pytest.mark.parametrize("seed", [0, -1, 1 << 63, (1 << 64) - 1])
def test_seeds(client: Client, seed: int) -> None:
    assert chat(client, seed=seed).seed == seed


def test_log_probabilities_of_the_two_routes(client: Client) -> None:
    assert chat(client, logprobs=False, top_logprobs=0).logprobs is None
    assert chat(client, logprobs=True).logprobs == 0
    assert chat(client, logprobs=True, top_logprobs=5).logprobs == 5
    assert refusal(client, {"top_logprobs": 2}, chat).param == "top_logprobs"
    assert chat(client, logprobs=True, top_logprobs=20).logprobs == 20
    for top in (-1, 21):
        error = refusal(client, {"logprobs": True, "top_logprobs": top}, chat)
        assert error.param == "top_logprobs"
    assert text(client, logprobs=0).logprobs == 0
    assert text(client, logprobs=3).prompt_logprobs is None
    assert text(client, logprobs=3, echo=True).prompt_logprobs == 3
    assert text(client, logprobs=3, echo=True, prompt_logprobs=5).prompt_logprobs == 5
    assert text(client, echo=True).prompt_logprobs is None


def test_only_the_prompt(client: Client) -> None:
    body = parse(CompletionBody, {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1})
    assert convert.prompt_only(body)
    assert convert.sampling(body, client.service).max_tokens == 1
    body = parse(CompletionBody, {"prompt": "a", "max_tokens": 0, "echo": True, "min_tokens": 2})
    with pytest.raises(RequestError, match=r"^min_tokens: 2 is larger than max_tokens: 0$"):
        convert.sampling(body, client.service)
    body = parse(CompletionBody, {"prompt": "a", "max_tokens": 0, "echo": True, "min_tokens": -1})
    with pytest.raises(RequestError, match=r"^min_tokens: must be"):
        convert.sampling(body, client.service)
    assert not convert.prompt_only(parse(CompletionBody, {"prompt": "a", "echo": True}))


# The form of the answer


def form(client: Client, **given: Any) -> convert.Form | None:
    return convert.form(parse(ChatBody, {"messages": HI, **given}), client.service)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ({"json": SCHEMA}, "json_schema", None),
        ({"json": json.dumps(SCHEMA)}, "json_schema", None),
        ({"json_object": True}, "json_object", ""),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["a", "b"]}, "choice", ("a", "b")),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
    ],
)
def test_structured_outputs(client: Client, given: Any, kind: str, value: Any) -> None:
    found = form(client, structured_outputs=given)
    assert found is not None
    assert found[0] == "structured_outputs"
    assert found[1].kind == kind
    if value is None:
        assert isinstance(found[1].value, str)
        assert json.loads(found[1].value) == SCHEMA
    else:
        assert found[1].value == value


def test_response_formats(client: Client) -> None:
    assert form(client, response_format={"type": "text"}) is None
    assert form(client, response_format={"type": "json_object"}) == (
        "response_format",
        StructuredOutput("json_object"),
    )
    asked = {"name": "x", "schema": SCHEMA, "strict": True}
    found = form(client, response_format={"type": "json_schema", "json_schema": asked})
    assert found is not None
    assert isinstance(found[1].value, str)
    assert json.loads(found[1].value) == SCHEMA


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "[" * 9000}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a" * 70_000]}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
         "structured_outputs"),
    ],
)  # fmt: skip
def test_forms_that_cannot_be_are_named(client: Client, given: Any, field: str) -> None:
    error = refusal(client, given, form)
    assert error.status == 400
    assert error.param == field
    assert error.message.startswith(field)


def test_a_grammar_that_cannot_be_compiled_is_refused(client: Client) -> None:
    body = {"prompt": "a", "structured_outputs": {"regex": "(a"}}
    error = client.refused(TEXT, body)
    assert error["param"] == "structured_outputs"
    assert client.llm.asked == []


def test_a_grammar_that_takes_too_long_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> None:
        time.sleep(0.2)

    monkeypatch.setattr("wager.sampling.grammar.prepare", slow)
    monkeypatch.setattr(convert, "COMPILE_S", 0.01)
    error = client.refused(TEXT, {"prompt": "a", "structured_outputs": {"regex": "ab"}})
    assert error["param"] == "structured_outputs"
    assert "0.01 s" in error["message"]


def test_a_grammar_may_wait_for_others_as_long_as_it_takes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own time counts, and who leaves meanwhile leaves nothing to be compiled."""
    go, compiled = threading.Event(), []
    busy = threading.Semaphore(0)

    def held(_tokenizer: object, _ends: object, structured: StructuredOutput) -> None:
        busy.release()
        assert go.wait(PATIENCE_S)
        compiled.append(structured.value)

    def ask(text: str) -> asyncio.Task[None]:
        asked = ("field", StructuredOutput("regex", text))
        return asyncio.ensure_future(convert.compiled(client.service, asked))

    async def body() -> None:
        monkeypatch.setattr("wager.sampling.grammar.prepare", held)
        monkeypatch.setattr(convert, "COMPILE_S", PATIENCE_S)
        working = [ask("a"), ask("b")]
        for _ in working:
            assert await asyncio.to_thread(busy.acquire, timeout=PATIENCE_S)
        monkeypatch.setattr(convert, "COMPILE_S", 0.0)
        waiting = [ask("c"), ask("d")]
        done, _ = await asyncio.wait(waiting, timeout=0.05)
        assert not done
        waiting[1].cancel()
        await asyncio.wait({waiting[1]}, timeout=PATIENCE_S)
        monkeypatch.setattr(convert, "COMPILE_S", PATIENCE_S)
        go.set()
        await asyncio.wait_for(asyncio.gather(*working, waiting[0]), PATIENCE_S)
        assert sorted(compiled) == ["a", "b", "c"]

    asyncio.run(body())


# Prompts


@pytest.mark.parametrize(
    ("prompt", "count"), [("the cat", 1), (["the", "cat"], 2), ([5, 6], 1), ([[5], [6, 7]], 2)]
)
def test_prompts_of_all_kinds(client: Client, prompt: Any, count: int) -> None:
    found = convert.completion_prompts(parse(CompletionBody, {"prompt": prompt}), client.service)
    assert len(found) == count
    if prompt == "the cat":
        assert found == [client.llm.tokenizer.encode("the cat")]
    if count == 2 and isinstance(prompt[0], list):
        assert found == prompt


@pytest.mark.parametrize("prompt", ["", [""], [[]], [[5], []], ["a", ""]])
def test_empty_prompts_are_refused(client: Client, prompt: Any) -> None:
    error = client.refused(TEXT, {"prompt": prompt})
    assert error["param"] == "prompt"
    assert "empty" in error["message"]


@pytest.mark.parametrize(("length", "good"), [(CONTEXT - 1, True), (CONTEXT, False),
                                              (CONTEXT + 1, False)])  # fmt: skip
def test_prompts_are_never_cut(client: Client, length: int, good: bool) -> None:
    body = {"prompt": [5] * length, "max_tokens": 100}
    if good:
        client.whole(TEXT, body)
        return
    error = client.refused(TEXT, body)
    assert error["param"] == "prompt"
    assert error["code"] == "context_length_exceeded"
    assert str(length) in error["message"]
    assert str(CONTEXT) in error["message"]
    assert client.llm.asked == []


def test_other_refusals_of_prompts(client: Client) -> None:
    assert "288" in client.refused(TEXT, {"prompt": [5, 288]})["message"]
    assert "64" in client.refused(TEXT, {"prompt": ["a"] * 65})["message"]


def test_the_model_s_names(client: Client) -> None:
    assert convert.check_model(None, client.service) == NAME
    assert convert.check_model("alias", client.service) == "alias"
    error = client.refused(TEXT, {"prompt": "a", "model": "gpt-unknown"}, 404)
    assert error["param"] == "model"
    assert error["code"] == "model_not_found"


def test_the_tokenizer_is_real(tmp_path: Path) -> None:
    spell = tokenizer(tmp_path)
    assert spell.decode(spell.encode("the été 🙂")) == "the été 🙂"
