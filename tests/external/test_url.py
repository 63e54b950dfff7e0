"""Servers that run already: two addresses, or one with a switch in the request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.external.stub import DONE, Script, Stub, counters, text
from wager.arms import Arm, Speculation
from wager.backend import Counters, EngineError, Load, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external.url import UrlBackend, UrlOptions

OFF, ON = Arm("plain"), Arm("ngram", Speculation("ngram"))
PROMPT = Prompt("p", SamplingParams(max_tokens=8, temperature=0.0), text="x")
REPLY = [Script([(0.0, text("a", ids=[1], finish="stop")), (0.0, DONE)])]


def drafts(number: int, family: str = "vllm") -> str:
    return counters(family, spec_decode_num_drafts={"": number})


def ask(backend: UrlBackend) -> None:
    (answer,) = backend.stream([PROMPT], Load(clients=1))
    assert answer.error is None
    assert answer.text == "a"


def test_two_addresses() -> None:
    with Stub(REPLY) as off, Stub(REPLY, pages=[drafts(3), drafts(8)], models=["m"]) as on:
        backend = UrlBackend(UrlOptions(url_off=off.url, url_on=f"{on.url}/v1/"))
        started = backend.start(OFF)
        assert started.effective == {"url": off.url, "model": "stub"}
        assert any("no metrics page" in line for line in started.warnings)
        ask(backend)
        assert backend.counters() == Counters()
        backend.stop()
        assert backend.start(ON).effective == {"url": on.url, "model": "m"}
        ask(backend)
        assert (len(off.bodies), len(on.bodies)) == (1, 1)
        assert backend.counters().drafts == 8
        assert off.bodies[0]["model"] == "stub"


def test_one_address_with_a_switch() -> None:
    with Stub(REPLY) as stub:
        backend = UrlBackend(
            UrlOptions(
                url=stub.url.removeprefix("http://"), request_off={"speculative": {"n_max": 0}}
            )
        )
        assert (
            backend.check(OFF) == f'{stub.url}, {{"speculative": {{"n_max": 0}}}} in each request'
        )
        assert backend.check(ON) == stub.url
        backend.start(OFF)
        ask(backend)
        backend.start(ON)
        ask(backend)
        assert stub.bodies[0]["speculative"] == {"n_max": 0}
        assert "speculative" not in stub.bodies[1]


@pytest.mark.parametrize(
    ("family", "owner", "expected"),
    [
        ("vllm", "stub", {"return_token_ids", "cache_salt", "top_k", "ignore_eos"}),
        ("wager", "stub", {"return_token_ids", "cache_salt", "top_k", "ignore_eos", "min_p"}),
        (None, "vllm", {"return_token_ids", "cache_salt", "top_k", "ignore_eos"}),
        ("llamacpp", "stub", {"return_tokens", "cache_prompt", "top_k", "ignore_eos", "min_p"}),
        ("sglang", "stub", {"top_k", "ignore_eos", "min_p"}),
        (None, "someone", set()),
    ],
)
def test_an_engine_that_is_recognised_is_asked_in_its_own_way(
    family: str | None, owner: str, expected: set[str]
) -> None:
    pages = [drafts(0, family) if family else None]
    llama = [Script([(0.0, {"content": "a", "tokens": [1]}), (0.0, {"stop": True})])]
    with Stub(llama if family == "llamacpp" else REPLY, pages=pages, owner=owner) as stub:
        backend = UrlBackend(UrlOptions(url_on=stub.url))
        started = backend.start(ON)
        ask(backend)
    beyond = {"return_token_ids", "cache_salt", "top_k", "ignore_eos", "min_p"}
    beyond |= {"return_tokens", "cache_prompt"}
    assert beyond & set(stub.bodies[0]) == expected
    assert stub.paths == ["/completion" if family == "llamacpp" else "/v1/completions"]
    kept_apart = expected & {"cache_salt", "cache_prompt"}
    assert any("cannot be salted" in line for line in started.warnings) != bool(kept_apart)


def test_a_chat_for_llama_server_is_put_into_its_template() -> None:
    def script(_: int, body: dict[str, Any]) -> Script:
        if "messages" in body:
            return Script(body='{"prompt": "<user>hi"}', content_type="application/json")
        return Script([(0.0, {"content": "a", "tokens": [1]}), (0.0, {"stop": True})])

    chat = Prompt("p", SamplingParams(max_tokens=8), messages=(("user", "hi"),))
    with Stub(script, owner="llamacpp") as stub:
        backend = UrlBackend(UrlOptions(url_on=stub.url))
        backend.start(ON)
        (answer,) = backend.stream([chat], Load(clients=1))
    assert answer.token_ids == [1]
    assert stub.paths == ["/apply-template", "/completion"]
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
    assert stub.bodies[1]["prompt"] == "<user>hi"


def test_what_a_strict_server_cannot_be_asked() -> None:
    with Stub(REPLY) as stub:
        backend = UrlBackend(UrlOptions(url_on=stub.url))
        backend.start(ON)
        greedy = Prompt("p", SamplingParams(max_tokens=8, ignore_eos=True), text="x")
        with pytest.raises(ConfigError, match="ignore_eos: p sets it"):
            list(backend.stream([greedy], Load(clients=1)))
        assert stub.bodies == []


def test_the_key_goes_with_every_request() -> None:
    with Stub(REPLY) as stub:
        backend = UrlBackend(UrlOptions(url_on=stub.url, api_key="secret"))
        backend.start(ON)
        ask(backend)
        assert stub.headers[0]["authorization"] == "Bearer secret"


def test_a_restart_between_two_readings() -> None:
    with Stub(REPLY, pages=[drafts(1), drafts(100), drafts(5)]) as stub:
        backend = UrlBackend(UrlOptions(url_on=stub.url))
        backend.start(ON)
        before = backend.counters()
        assert before.drafts == 100
        assert backend.counters().since(before) == Counters(resets=1)


def test_the_model_is_named_where_there_are_several() -> None:
    with Stub(models=["a", "b"]) as stub:
        with pytest.raises(ConfigError, match=r"model: name one .* a, b"):
            UrlBackend(UrlOptions(url_on=stub.url)).start(ON)
        with pytest.raises(ConfigError, match="does not serve 'c'; it has a, b"):
            UrlBackend(UrlOptions(url_on=stub.url, model="c")).start(ON)
        started = UrlBackend(UrlOptions(url_on=stub.url, model="b")).start(ON)
        assert started.effective["model"] == "b"


def test_the_version_where_the_server_tells_it() -> None:
    with Stub(gets={"/version": {"version": "0.32.0"}}) as stub:
        assert UrlBackend(UrlOptions(url_on=stub.url)).start(ON).version == "0.32.0"
    with Stub() as stub:
        assert UrlBackend(UrlOptions(url_on=stub.url)).start(ON).version is None


def test_nobody_is_there() -> None:
    with Stub() as stub:
        pass
    with pytest.raises(EngineError, match=f"url: {stub.url}/v1/models gave no answer"):
        UrlBackend(UrlOptions(url_on=stub.url)).start(ON)


def test_a_server_that_is_something_else() -> None:
    with (
        Stub(gets={"/v1/models": {"hello": 1}}) as stub,
        pytest.raises(EngineError, match="lists no models"),
    ):
        UrlBackend(UrlOptions(url_on=stub.url)).start(ON)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "url: give --url-off and --url-on"),
        ({"url": "h"}, "both arms would send the same requests to http://h"),
        ({"url_off": "h", "url_on": "http://h/v1"}, "both arms would send the same requests"),
        ({"url": "h", "url_on": "i"}, "not both"),
        ({"url_on": "h", "metrics_url": "http://i/metrics"}, "one metrics page"),
    ],
)
def test_addresses_that_tell_no_arms_apart(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        UrlBackend(UrlOptions(**given))


def test_an_arm_without_an_address_or_with_options() -> None:
    backend = UrlBackend(UrlOptions(url_on="h"))
    with pytest.raises(ConfigError, match=r"plain has no address; give --url-off or --url"):
        backend.check(OFF)
    with pytest.raises(ConfigError, match=r"cannot be given options.*name the arm ngram alone"):
        backend.check(Arm("ngram:k=4", Speculation("ngram", {"num_speculative_tokens": 4})))
