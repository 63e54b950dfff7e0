"""The document, the list of models, and the two routes about tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fakes import (
    CONTEXT,
    NAME,
    TALK_TEMPLATE,
    VOCABULARY,
    Client,
    FakeLLM,
    tokenizer,
)
from wager.models.tokenizer import Tokenizer
from wager.server import answers, fields
from wager.server.openapi import build
from wager.speculation import SpeculationConfig

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"), TALK_TEMPLATE)


@pytest.fixture
def client(spell: Tokenizer) -> Client:
    return Client(FakeLLM(spell))


def references(value: Any) -> set[str]:
    """All that is pointed at."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    if isinstance(value, list):
        return set().union(*map(references, value))
    return set()


def test_the_document_is_whole(client: Client) -> None:
    reply = client.get("/openapi.json")
    assert reply.status == 200
    document = json.loads(reply.text)
    assert document == build(False)
    assert document["openapi"] == "3.1.0"
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    assert not any("__" in name for name in known), "two models of one name"


def test_every_route_is_in_the_document(client: Client) -> None:
    paths = set(build(False)["paths"])
    routes = {
        route.path.replace(":path", "")
        for route in client.app.routes
        if not route.path.startswith(("/dashboard", "/debug"))
    }
    assert routes == paths


def test_every_field_is_in_the_document() -> None:
    schemas = build(False)["components"]["schemas"]
    for route, name in (("chat", "ChatBody"), ("completions", "CompletionBody")):
        schema = schemas[name]
        assert set(schema["properties"]) == fields.served(route)  # type: ignore[arg-type]
        known = {n for n, field in fields.TABLE.items() if route in field.routes}
        told = {*schema["properties"], *schema["x-refused"], *schema["x-without-effect"]}
        assert told == known
    assert schemas["ChatBody"]["required"] == ["messages"]
    assert schemas["CompletionBody"]["required"] == ["prompt"]


def test_keys_are_in_the_document_where_there_are_some() -> None:
    assert "security" not in build(False)
    document = build(True)
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    document["paths"].clear()
    assert build(True)["paths"]


# Models


def test_models(client: Client) -> None:
    reply = client.get("/v1/models")
    found = answers.Models.model_validate_json(reply.text)
    assert [model.id for model in found.data] == [NAME, "alias"]
    assert found.data[0].max_model_len == CONTEXT
    assert found.data[0].speculation is None
    one = answers.ServedModel.model_validate_json(client.get("/v1/models/alias").text)
    assert one == found.data[1]
    missing = client.get("/v1/models/org/other")
    assert missing.status == 404
    assert missing.error["code"] == "model_not_found"


def test_the_settings_in_effect(client: Client) -> None:
    given = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    engine: Any = client.llm.llm.engine
    engine.speculation = SpeculationConfig.parse(given)
    (model, _) = json.loads(client.get("/v1/models").text)["data"]
    assert model["speculation"]["num_speculative_tokens"] == 5
    assert model["speculation"]["controller"] == "on"
    assert model["speculation"]["methods"][0]["method"] == "ngram"
    assert "4" in model["speculation"]["methods"][0]["options"]


# Tokens


def test_tokens_there_and_back(client: Client, spell: Tokenizer) -> None:
    text = "the été 🙂 <|im_end|>"
    reply = client.post("/tokenize", {"prompt": text, "return_token_strs": True})
    found = answers.Tokenized.model_validate_json(reply.text)
    assert found.tokens == spell.encode(text)
    assert found.count == len(found.tokens)
    assert found.max_model_len == CONTEXT
    assert found.token_strs is not None
    assert found.token_strs[-1] == "<|im_end|>"
    back = client.post("/detokenize", {"tokens": found.tokens})
    assert answers.Detokenized.model_validate_json(back.text).prompt == text


def test_tokens_of_messages(client: Client, spell: Tokenizer) -> None:
    reply = client.post("/tokenize", {"messages": HI})
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    found = answers.Tokenized.model_validate_json(reply.text)
    assert found.tokens == spell.encode(text, add_special=False)
    assert found.token_strs is None
    body = {"messages": HI, "add_generation_prompt": False}
    assert answers.Tokenized.model_validate_json(client.post("/tokenize", body).text).count == len(
        spell.encode("<|im_start|>user\nhi<|im_end|>\n", add_special=False)
    )


def test_long_texts_have_tokens_too(client: Client) -> None:
    reply = client.post("/tokenize", {"prompt": "x" * 5000})
    assert answers.Tokenized.model_validate_json(reply.text).count > CONTEXT


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [VOCABULARY]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
    ],
)
def test_refusals(client: Client, path: str, body: dict[str, Any], field: str) -> None:
    assert client.refused(path, body)["param"] == field


def test_unknown_fields_of_the_small_routes(client: Client) -> None:
    reply = client.post("/detokenize", {"tokens": [5], "token": 1})
    assert reply.status == 200
    assert reply.header("x-wager-warning") == (
        "unknown field(s) ignored: token (did you mean tokens?)"
    )
