"""Bodies drawn from the server's own OpenAPI document, most of them a little wrong: never a 5xx.

The document says which routes there are and what their bodies look like; a part of the values is
replaced by one of another kind, and a part of the names by others.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.server.answers import CHAT, TEXT, joined, lines_of, whole
from tests.e2e.server.harness import Live, error_of, serving, strict
from tests.recipes import ngram

Schema = Mapping[str, Any]
DEPTH = 5
QUIET = settings(
    max_examples=120, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large,
                           HealthCheck.filter_too_much],
)  # fmt: skip
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.just([]), st.just({}), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2), st.just("🙂" * 50),
    st.just(10**30), st.just(-1), st.just("\u0000"), st.just([[]]), st.just([None]),
)  # fmt: skip


@pytest.fixture(scope="module")
def live(short_path: Path) -> Iterator[Live]:
    with serving(short_path, speculation=ngram(8, low=1), max_num_seqs=8) as live:
        yield live


@pytest.fixture(scope="module")
def document(live: Live) -> dict[str, Any]:
    reply = live.get("/openapi.json")
    assert reply.status_code == 200
    found = strict(reply.text)
    assert found["openapi"].startswith("3.")
    return dict(found)


def resolved(schema: Schema, document: Schema) -> Schema:
    """The schema that a reference within the document points to."""
    while "$ref" in schema:
        target: Any = document
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        schema = target
    return schema


def values(schema: Any, document: Schema, depth: int = DEPTH) -> st.SearchStrategy[Any]:
    """Values of a schema, and now and then one of another kind."""
    if schema is True or not isinstance(schema, Mapping) or depth == 0:
        return ODD
    schema = resolved(schema, document)
    right = _right(schema, document, depth)
    return st.integers(0, 11).flatmap(lambda dice: ODD if dice == 0 else right)


def _right(schema: Schema, document: Schema, depth: int) -> st.SearchStrategy[Any]:
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of([values(one, document, depth - 1) for one in schema[word]])
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    if "const" in schema:
        return st.just(schema["const"])
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        return st.one_of([_right({**schema, "type": one}, document, depth) for one in kind])
    if kind == "object":
        return _objects(schema, document, depth)
    if kind == "array":
        most = min(schema.get("maxItems", 3), 3)
        least = min(schema.get("minItems", 0), most)
        items = values(schema.get("items", True), document, depth - 1)
        return st.lists(items, min_size=least, max_size=most)
    if kind == "integer":
        low, high = schema.get("minimum", -2), schema.get("maximum", 40)
        return st.integers(low, max(low, min(high, low + 60)))
    if kind == "number":
        return st.floats(schema.get("minimum", -3), schema.get("maximum", 3), allow_nan=False)
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        letters = st.sampled_from(string.ascii_letters + ' {}"[]é강🙂\n')
        return st.text(letters, min_size=min(schema.get("minLength", 0), 5), max_size=12)
    return st.none() if kind == "null" else ODD


def _objects(schema: Schema, document: Schema, depth: int) -> st.SearchStrategy[Any]:
    fields: Mapping[str, Any] = schema.get("properties", {})
    needed = [name for name in schema.get("required", []) if name in fields]
    made = {name: values(one, document, depth - 1) for name, one in fields.items()}
    if not made:
        return st.dictionaries(st.text(max_size=6), ODD, max_size=3)

    def chosen(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({name: made[name] for name in {*needed, *names}})

    subsets = st.lists(st.sampled_from(sorted(made)), max_size=6, unique=True)
    return subsets.flatmap(chosen)


def posts(document: Schema) -> dict[str, Any]:
    """The routes that take a body, each with the body's schema."""
    found = {}
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content:
            found[path] = content["application/json"]["schema"]
    return found


def test_the_document_names_every_route(document: dict[str, Any], live: Live) -> None:
    expected = {CHAT, TEXT, "/v1/models", "/tokenize", "/detokenize", "/health", "/metrics",
                "/version"}  # fmt: skip
    assert expected <= set(document["paths"])
    assert {CHAT, TEXT, "/tokenize", "/detokenize"} <= set(posts(document))
    for path, methods in document["paths"].items():
        if "get" in methods and "{" not in path and "live" not in path:
            assert live.get(path).status_code == 200, path


def checked(live: Live, path: str, body: Any) -> int:
    """The status of a body; it must be a good reply, or a refusal in OpenAI's form."""
    reply = live.post(path, body)
    assert reply.status_code < 500, f"{reply.status_code}: {reply.text[:500]}\nto {body!r}"
    if reply.headers["content-type"].startswith("text/event-stream"):
        check_stream(reply.text, body)
    elif reply.status_code == 200:
        found = strict(reply.text)
        if path in (CHAT, TEXT):
            assert whole(found).choices
    else:
        error_of(reply)
    return reply.status_code


def check_stream(text: str, body: Any) -> None:
    """A whole stream, or one that ends with a refusal: what was asked for showed to be impossible
    on the way."""
    *told, last = [line.removeprefix("data: ") for line in lines_of(text) if line]
    if last == "[DONE]":
        assert joined([strict(one) for one in told]).choices
    else:
        error = strict(last)["error"]
        assert error["type"] == "invalid_request_error", f"{error}\nto {body!r}"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_bodies_of_the_document(path: str, document: dict[str, Any], live: Live) -> None:
    schema = posts(document)[path]
    seen: list[int] = []

    @QUIET
    @given(body=values(schema, document))
    def run(body: Any) -> None:
        seen.append(checked(live, path, body))

    run()
    assert len(seen) >= 100
    live.survives()


GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    TEXT: {"model": "tiny", "prompt": "hi", "max_tokens": 3},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_one_or_two_fields_of_a_good_body(
    path: str, stream: bool, document: dict[str, Any], live: Live
) -> None:
    """Nearer to what real clients send: most of these are served."""
    schema = resolved(posts(document)[path], document)
    fields = schema["properties"]
    seen: list[int] = []

    @QUIET
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=2))
        body = {**GOOD[path], "stream": stream}
        for name in names:
            body[name] = data.draw(values(fields[name], document))
        seen.append(checked(live, path, body))

    run()
    assert 200 in seen
    assert 400 in seen
    live.survives()


def test_bytes_that_are_no_json(live: Live) -> None:
    @QUIET
    @given(noise=st.binary(max_size=200))
    def run(noise: bytes) -> None:
        for path in (CHAT, TEXT, "/tokenize"):
            reply = live.post(path, noise)
            assert reply.status_code in {400, 413, 415}
            error_of(reply)

    run()
    live.survives()


def test_every_body_of_json_values(live: Live) -> None:
    """JSON of any shape on every route."""
    anything = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["model", "prompt", "messages", "role", "content", "tokens", "x"]), inner,
        max_size=4), max_leaves=12)  # fmt: skip

    @QUIET
    @given(body=anything)
    def run(body: Any) -> None:
        for path in (CHAT, TEXT, "/tokenize", "/detokenize"):
            assert checked(live, path, body) < 500

    run()
    live.survives()
