"""Bodies: what is JSON, how deep, and nothing that ends the server."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.asgi import Exchange, app_with, played
from wager.server.errors import ApiError
from wager.server.limits import deeper_than, parse

DEPTH = 64


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{: ", "not valid JSON at line 1, column 2"),
        (b'{"a": 1\n', "not valid JSON at line 2"),
        (b'{"a": 1}}', "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": "\x01"}', "not valid JSON"),
        (b'{"a": "b', "not valid JSON"),
        (b'{"a": "\\x"}', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"5", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": "\xff"}', "is not UTF-8: byte 7"),
        (b'{"a": "\xc4\xe3"}', "is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "is not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
        ('{"a": 1}'.encode("utf-32-le"), "not valid JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "larger than any float"),
        (b'{"a": -1e999}', "larger than any float"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 400 digits"),
        (b'{"a": 0.' + b"1" * 500 + b"}", "more than 400 digits"),
        (b'{"a": 1, "b": {"c": 2, "c": 2}}', "c: is given twice"),
        (b'{"a": 1, "\\u0061": 2}', "a: is given twice"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\uDFFFb": 1}', "lone surrogate"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse(body, DEPTH)
    assert caught.value.status == 400
    # The error itself can be sent.
    assert json.loads(caught.value.response().body)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b' {"a": [1, -2.5e3, true, null, "x"]} ', {"a": [1, -2500.0, True, None, "x"]}),
        ('{"a": "ü😀"}'.encode(), {"a": "ü😀"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "[[[[\\"]]]{\\\\"}', {"a": '[[[["]]]{\\'}),
        (b'{"a": "' + b"9" * 5000 + b'"}', {"a": "9" * 5000}),
        (b'{"a": 1e-320}', {"a": 1e-320}),
        (b'{"a": 18446744073709551616}', {"a": 2**64}),
    ],
)
def test_what_is_json_is_read(body: bytes, value: dict[str, Any]) -> None:
    assert parse(body, DEPTH) == value


def nested(depth: int, open_: str = "[", close: str = "]") -> bytes:
    """An object of ``depth`` levels in all."""
    return f'{{"x": {open_ * (depth - 1)}{close * (depth - 1)}}}'.encode()


@pytest.mark.parametrize("depth", [2, 8, 64])
def test_the_nesting_that_is_allowed(depth: int) -> None:
    assert parse(nested(depth), depth)
    for body in (nested(depth + 1), nested(depth, '{"a":[', "]}") if depth > 2 else nested(9)):
        with pytest.raises(ApiError, match=f"deeper than {depth} levels"):
            parse(body, depth)


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": ' + b"[" * 10_000,
        b'{"x": ' + b"[" * 1_000_000,
        b'{"x": ' + b'{"a":' * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 2_000_000,
        b'{"x": [' + b"[]," * 20_000 + b"[" * 3000 + b"]" * 3000 + b"]}",
    ],
)
def test_no_depth_reaches_the_parser(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("the parser saw it")

    monkeypatch.setattr("wager.server.limits.json.loads", loads)
    with pytest.raises(ApiError, match="nested deeper"):
        parse(body, DEPTH)


@pytest.mark.parametrize(
    "body", [b"]" * 100_000, b'{"x": ' + b"[]]" * 9999, b"[]" * 9999 + b"[" * 60, b"}{" * 500]
)
def test_brackets_that_do_not_match(body: bytes) -> None:
    before = sys.getrecursionlimit()
    with pytest.raises(ApiError, match="not valid JSON"):
        parse(body, DEPTH)
    assert sys.getrecursionlimit() == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8") | st.sampled_from('[]{}"\\'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                max_size=3),
    max_leaves=12,
)  # fmt: skip


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(v) for v in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(v) for v in value), default=0)
    return 0


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.booleans(), st.integers(1, 6))
def test_any_json_is_read_as_the_parser_reads_it(value: Any, ascii_: bool, most: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii_).encode()
    if depth_of(value) > most:
        with pytest.raises(ApiError, match="nested deeper"):
            parse(body, most)
    else:
        assert parse(body, most) == value


@given(st.lists(st.sampled_from([b"[", b"]"]), max_size=40), st.integers(1, 6))
def test_what_is_said_to_be_shallow_is_shallow_enough(parts: list[bytes], most: int) -> None:
    depth = deepest = 0
    for part in parts:
        depth += 1 if part == b"[" else -1
        if depth < 0:
            break
        deepest = max(deepest, depth)
    deep = deeper_than(b"".join(parts), most)
    if depth == 0:
        assert deep == (deepest > most)
    elif not deep:
        assert deepest <= 2 * most


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        # What programs send that were told nothing, `curl -d` among them.
        (None, 200),
        ("application/x-www-form-urlencoded", 200),
        ("text/plain", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_kinds_of_body(kind: str | None, status: int) -> None:
    headers = [] if kind is None else [("content-type", kind)]
    assert played(app_with(), headers=headers).status == status


@pytest.mark.parametrize(
    "sign",
    [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site"),
     ("sec-fetch-site", "same-site")],
)  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "status"),
    [(None, 415), ("", 415), ("application/x-www-form-urlencoded", 415), ("text/plain", 415),
     ("application/json", 200), ("application/vnd.api+json", 200)],
)  # fmt: skip
def test_a_page_has_to_say_that_it_sends_json(
    sign: tuple[str, str], kind: str | None, status: int
) -> None:
    """What says nothing, as a Blob does, or what a form sends needs no permission in a browser."""
    headers = [sign] if kind is None else [sign, ("content-type", kind)]
    reply = played(app_with(), headers=headers)
    assert reply.status == status
    if status == 415:
        assert reply.read == 0
        assert reply.error["message"].startswith("content-type: must be application/json")


@pytest.mark.parametrize("one", ["{}", "[]", '{"a":1}', '[{"role":"user"}]'])
def test_small_objects_take_more_memory_than_their_text(one: str) -> None:
    """Some of them are good, a body full of them is not."""
    assert len(parse(f'{{"x": [{",".join([one] * 5000)}]}}'.encode(), DEPTH)["x"]) == 5000
    with pytest.raises(ApiError, match="more than 200000 objects, arrays and keys"):
        parse(f'{{"x": [{",".join([one] * 200_000)}]}}'.encode(), DEPTH)


def test_many_keys_are_too_many() -> None:
    with pytest.raises(ApiError, match="more than 200000 objects, arrays and keys"):
        parse(json.dumps({str(n): n for n in range(200_001)}).encode(), DEPTH)


def test_many_numbers_and_long_texts_are_not() -> None:
    value = {"prompt": list(range(300_000)), "x": "{[:" * 100_000}
    assert parse(json.dumps(value).encode(), DEPTH) == value


def test_bodies_that_take_too_much_together() -> None:
    """32 of the largest size may be on their way; what is behind them is told to come again."""

    async def run() -> None:
        app = app_with(max_body=100)
        parts = [b'{"a":"' + b"x" * 90, b'"}']
        slow = [Exchange(body=parts[:1], unfinished=True, announce=False) for _ in range(33)]
        tasks = [asyncio.ensure_future(one.play(app)) for one in slow]
        while not all(one.read for one in slow):
            await asyncio.sleep(0)
        late = await Exchange(body=parts, announce=False).play(app)
        assert late.status == 429
        assert late.header("retry-after") == "1"
        for one in slow:
            one.leave()
        await asyncio.gather(*tasks)
        assert (await Exchange(body=parts, announce=False).play(app)).status == 200

    asyncio.run(run())


def test_a_large_body_is_read_too() -> None:
    value = {"a": "x" * 200_000, "b": list(range(1000))}
    reply = played(app_with(), body=json.dumps(value).encode())
    assert json.loads(reply.text) == value


def test_a_client_that_leaves_while_it_sends() -> None:
    async def run() -> Exchange:
        exchange = Exchange(body=[b'{"a":'], unfinished=True)
        exchange.leave()
        return await exchange.play(app_with())

    assert asyncio.run(run()).sent == []
