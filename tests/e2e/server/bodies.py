"""Bodies that clients should not send: what is in them, what is answered, which field is named.

``Row.statuses`` holds more than one number where a documented rule may accept the value; then the
answer has to be a good one. Numbers of cases are those of the list of faults that other products
had. Every row is followed by the survivor probe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.server.answers import CHAT, TEXT

NAME = "tiny"
BAD: Final = (400,)
EITHER: Final = (200, 400)
LARGE: Final = (400, 413)


@dataclass(frozen=True)
class Row:
    """One request. ``body`` bytes are sent as they are."""

    name: str
    body: Any
    statuses: tuple[int, ...] = BAD
    field: str | None = None
    route: str = TEXT

    def __str__(self) -> str:
        return self.name

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def text(name: str, statuses: tuple[int, ...] = BAD, field: str | None = None, **given: Any) -> Row:
    """A good completion request with some fields of another kind. ``field``: the first of them,
    or "" where what is wrong is seen before the fields are."""
    body = {"model": NAME, "prompt": [5, 6, 7, 5, 6, 7], "max_tokens": 4, "seed": 1, **given}
    return Row(name, body, statuses, next(iter(given)) if field is None else field)


def chat(name: str, statuses: tuple[int, ...] = BAD, field: str | None = None, **given: Any) -> Row:
    """The same of a chat."""
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": NAME, "messages": messages, "max_tokens": 4, "seed": 1, **given}
    return Row(name, body, statuses, next(iter(given)) if field is None else field, CHAT)


def raw(
    name: str, body: str | bytes, field: str | None = None, statuses: tuple[int, ...] = BAD
) -> Row:
    """Text that no JSON library would write, around a good request."""
    content = body.encode() if isinstance(body, str) else body
    return Row(name, content, statuses, field)


def with_raw(name: str, field: str, value: str, statuses: tuple[int, ...] = BAD) -> Row:
    """A good request with one more field, whose value is written as it is.

    What is no JSON is refused before anybody knows which field it belongs to.
    """
    good = f'"model": "{NAME}", "prompt": [5, 6, 7], "max_tokens": 4, "seed": 1'
    return Row(name, f'{{{good}, "{field}": {value}}}'.encode(), statuses)


def message(name: str, statuses: tuple[int, ...] = BAD, **given: Any) -> Row:
    """A chat of one message of this kind."""
    return chat(name, statuses, "messages", messages=[given])


def nested(depth: int, inner: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A schema of alternatives within alternatives."""
    schema: dict[str, Any] = dict(inner or {"type": "integer"})
    for _ in range(depth):
        schema = {"oneOf": [schema, {"type": "string", "maxLength": 4}]}
    return schema


def schema_body(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


EMPTY_PROMPTS = [
    text("empty text", prompt=""),
    text("list of an empty text", prompt=[""]),
    text("empty list", prompt=[]),
    text("list of an empty list", prompt=[[]]),
    text("an empty one behind a good one", prompt=[[5, 6], []]),
    text("no prompt", prompt=None),
    chat("no messages", messages=[]),
    chat("empty content", EITHER, "messages", messages=[{"role": "user", "content": ""}]),
]

OUTSIDE = [
    text("bias of an id outside", logit_bias={"999999": 5}),
    text("bias of a negative id", logit_bias={"-1": 1}),
    text("bias of a word", logit_bias={"AI": -100}),
    text("bias too large", logit_bias={"5": 101}),
    text("bias that is text", logit_bias={"5": "1"}),
    text("bias as a list", logit_bias=[[5, 1]]),
    with_raw("bias NaN", "logit_bias", '{"5": NaN}'),
    text("stop id outside", stop_token_ids=[10**9]),
    text("stop id negative", stop_token_ids=[-5]),
    text("stop id as text", stop_token_ids=["5"]),
    text("allowed id outside", allowed_token_ids=[10**9]),
    text("allowed id negative", allowed_token_ids=[-1]),
    text("nothing allowed", allowed_token_ids=[]),
    text("bad word empty", bad_words=[""]),
    text("bad word a number", bad_words=[5]),
    text("prompt id outside", prompt=[5, 10**9]),
    text("prompt id just outside", prompt=[288]),
    text("prompt id negative", prompt=[-1]),
    text("prompt id a float", prompt=[5.5]),
    text("prompt id true", prompt=[True]),
]

SEEDS = [
    text("seed -1", (200,), seed=-1),
    text("seed 2^63", (200,), seed=1 << 63),
    text("seed 2^64", seed=1 << 64),
    text("seed 2^200", seed=1 << 200),
    text("seed 1.5", seed=1.5),
    text("seed as text", seed="7"),
    text("seed null", (200,), seed=None),
    text("seed a list", seed=[1]),
]

NUMBERS = [
    with_raw("temperature NaN", "temperature", "NaN"),
    with_raw("temperature Infinity", "temperature", "Infinity"),
    with_raw("temperature -Infinity", "temperature", "-Infinity"),
    with_raw("temperature 1e999", "temperature", "1e999"),
    with_raw("temperature 1e308", "temperature", "1e308", EITHER),
    with_raw("temperature 1e-320", "temperature", "1e-320", (200,)),
    with_raw("temperature 1e-5", "temperature", "1e-5", (200,)),
    text("temperature -1", temperature=-1),
    text("temperature as text", temperature="0"),
    text("temperature true", temperature=True),
    with_raw("top_p NaN", "top_p", "NaN"),
    with_raw("top_p Infinity", "top_p", "Infinity"),
    with_raw("min_p NaN", "min_p", "NaN"),
    text("top_p 0", top_p=0),
    text("top_p -1", top_p=-1),
    text("top_p 2", top_p=2),
    text("min_p 2", min_p=2),
    text("top_k -2", top_k=-2),
    text("top_k 1.5", top_k=1.5),
    text("presence_penalty 3", presence_penalty=3),
    text("frequency_penalty -2.1", frequency_penalty=-2.1),
    text("repetition_penalty 0", repetition_penalty=0),
    with_raw("repetition_penalty 1e999", "repetition_penalty", "1e999"),
]

BYTES = [
    raw("byte 0xFF", b'{"model": "tiny", "prompt": "\xff", "max_tokens": 4}'),
    raw("GBK", '{"model": "tiny", "prompt": "\u4f60\u597d", "max_tokens": 4}'.encode("gbk")),
    raw("UTF-16", '{"model": "tiny", "prompt": "a", "max_tokens": 4}'.encode("utf-16")),
    raw("UTF-8 mark", b'\xef\xbb\xbf{"model": "tiny", "prompt": "a", "max_tokens": 4}',
        statuses=EITHER),
    raw("half a surrogate", '{"model": "tiny", "prompt": "\\ud800", "max_tokens": 4}'),
    raw("half a surrogate in stop",
        '{"model": "tiny", "prompt": "a", "max_tokens": 4, "stop": "\\udfff"}',
        statuses=EITHER),
    raw("half a surrogate in a name", '{"model": "tiny", "prompt": "a", "\\ud83d": 1}',
        statuses=EITHER),
    raw("zero byte", '{"model": "tiny", "prompt": "\\u0000", "max_tokens": 4}', statuses=(200,)),
    text("ids that are half characters", (200,), prompt=[200, 230, 240, 250, 255]),
]  # fmt: skip

DEEP = [
    raw("10,000 brackets", '{"x": ' + "[" * 10_000 + "]" * 10_000 + "}"),
    raw("10,000 open brackets", '{"x": ' + "[" * 10_000),
    raw("10,000 objects", '{"a":' * 10_000 + "1" + "}" * 10_000),
    chat("alternatives 12 deep", EITHER, response_format=schema_body(nested(12))),
    chat("alternatives 30 deep", EITHER, "", response_format=schema_body(nested(30))),
    chat("alternatives 300 deep", BAD, "", response_format=schema_body(nested(300))),
    chat("a schema that means itself", EITHER,
         response_format=schema_body({"$ref": "#"})),
    chat("a schema from elsewhere", BAD,
         response_format=schema_body({"$ref": "http://127.0.0.1:9/x"})),
    chat("a schema that is none", BAD,
         response_format=schema_body({"type": "nonsense"})),
    chat("a schema that is text", BAD, "response_format", response_format=schema_body("x")),
    chat("an unknown format", BAD, "response_format", response_format={"type": "yaml"}),
    text("stars within stars", EITHER, structured_outputs={"regex": "(a*)*b"}),
    text("a large repetition", EITHER,
         structured_outputs={"regex": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"}),
    text("a broken expression", structured_outputs={"regex": "(a"}),
    text("a broken grammar", structured_outputs={"grammar": "start: \"a"}),
    text("no choice", structured_outputs={"choice": []}),
    text("two kinds at once", structured_outputs={"regex": "a", "choice": ["a"]}),
    text("a kind that is none", structured_outputs={"regexx": "a"}),
]  # fmt: skip

# Each is in order by itself; together they leave nothing that could be written.
DEAD_ENDS = [
    text("an end token alone, too early", BAD, "allowed_token_ids", allowed_token_ids=[2],
         min_tokens=2),
    text("the same behind the prompt alone", BAD, "min_tokens", allowed_token_ids=[2],
         min_tokens=1, max_tokens=0, echo=True),
    text("what is allowed is bad", BAD, "bad_words", allowed_token_ids=[4], bad_words=["e"]),
    text("the same behind the prompt", BAD, "bad_words", allowed_token_ids=[4], bad_words=["e"],
         max_tokens=0, echo=True),
    text("a form of other tokens", BAD, "structured_outputs", allowed_token_ids=[4],
         structured_outputs={"regex": "[0-9]{3}"}),
    text("a form of bad words", BAD, "structured_outputs", bad_words=["e"],
         structured_outputs={"choice": ["e"]}),
    chat("a format of other tokens", BAD, "response_format", allowed_token_ids=[4],
         response_format={"type": "json_object"}),
    # A whole form ends the answer, whatever else is asked for.
    text("a form that ends too early", (200,), "", min_tokens=4,
         structured_outputs={"choice": ["e"]}),
]  # fmt: skip

HUGE = [
    text("n 10^6", n=10**6),
    text("n 0", n=0),
    text("max_tokens 10^12", max_tokens=10**12),
    chat("max_completion_tokens 10^12", max_completion_tokens=10**12),
    chat("top_logprobs 10^6", BAD, "top_logprobs", logprobs=True, top_logprobs=10**6),
    chat("top_logprobs -1", BAD, "top_logprobs", logprobs=True, top_logprobs=-1),
    chat("top_logprobs 21", BAD, "top_logprobs", logprobs=True, top_logprobs=21),
    text("logprobs 10^6", logprobs=10**6),
    text("logprobs 21", logprobs=21),
    text("logprobs -2", logprobs=-2),
    text("prompt_logprobs -1", prompt_logprobs=-1),
    text("prompt_logprobs -5 with echo", BAD, prompt_logprobs=-5, echo=True, logprobs=1),
    text("prompt_logprobs 10^6", prompt_logprobs=10**6),
    text("20 alternatives of 16 prompts for 16 choices", BAD, prompt_logprobs=20, n=16,
         prompt=[[5] * 1000] * 16),
    text("the same in front of the answers", BAD, logprobs=20, echo=True, n=16,
         prompt=[[5] * 1000] * 16),
    text("20 alternatives of 256 long answers", BAD, logprobs=20, n=16, max_tokens=None,
         prompt=[[5]] * 16),
    text("list of 10^5 prompts", LARGE, prompt=["a"] * 10**5),
    text("prompt of 10^6 ids", LARGE, prompt=[5] * 10**6),
    text("prompt of 10^6 letters", LARGE, prompt="a" * 10**6),
    text("10^4 stops", LARGE, stop=["a"] * 10**4),
    text("10^5 stop ids", LARGE, stop_token_ids=[5] * 10**5),
    text("10^4 bad words", LARGE, bad_words=[f"w{i}" for i in range(10**4)]),
    text("10^5 biases", LARGE, logit_bias={str(i): 1 for i in range(10**5)}),
    text("10^5 choices", LARGE, structured_outputs={"choice": [f"c{i}" for i in range(10**5)]}),
    chat("a schema of 200 kB", LARGE,
         response_format=schema_body({"type": "string", "description": "d" * 200_000})),
    text("a cache_salt of 1 MB", LARGE, cache_salt="s" * 10**6),
]  # fmt: skip

UNSUPPORTED = [  # 87: known, and refused
    text("suffix", suffix="end"),
    text("best_of", best_of=2),
    text("use_beam_search", EITHER, use_beam_search=True),
    chat("an image", field="messages", messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}]}]),
    chat("audio", field="messages", messages=[{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]),
    chat("functions", EITHER, functions=[{"name": "f", "parameters": {}}]),
    chat("modalities", EITHER, modalities=["audio"]),
    text("another model", (400, 404), model="gpt-unknown"),
]  # fmt: skip

TYPES = [
    text("stream as text", stream="true"),
    text("stream 1", stream=1),
    text("prompt 5", prompt=5),
    text("prompt an object", prompt={"a": 1}),
    text("prompt of both kinds", prompt=["a", 5]),
    text("n 1.5", n=1.5),
    text("n true", n=True),
    text("stop 7", stop=7),
    text("stop with an empty text", stop=[""]),
    text("stop empty", stop=""),
    text("stop with a number", stop=["a", 1]),
    text("max_tokens as text", max_tokens="4"),
    text("max_tokens 1.5", max_tokens=1.5),
    text("max_tokens -1", max_tokens=-1),
    text("max_tokens 0", max_tokens=0),
    text("min_tokens above max_tokens", BAD, "min_tokens", max_tokens=2, min_tokens=3),
    text("echo as text", echo="yes"),
    text("logprobs as text", logprobs="2"),
    text("ignore_eos null", EITHER, ignore_eos=None),
    text("model a number", BAD, model=5),
    text("stream_options without stream", BAD, stream_options={"include_usage": True}),
    text("stream_options a list", BAD, "stream_options", stream=True, stream_options=[]),
    chat("messages as text", messages="hi"),
    chat("messages of texts", messages=["hi"]),
    message("content null", role="user", content=None),
    message("content a number", role="user", content=5),
    message("content of unknown parts", role="user", content=[{"type": "smell"}]),
    message("no role", content="hi"),
    message("role a number", role=1, content="hi"),
    chat("tools an object", tools={"type": "function"}),
    chat("a tool without a name", tools=[{"type": "function", "function": {}}]),
    chat("tool_choice of no tool", BAD, "tool_choice", tool_choice="required"),
    chat("tool_choice of another tool", BAD, "tool_choice",
         tool_choice={"type": "function", "function": {"name": "other"}},
         tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    chat("top_logprobs without logprobs", BAD, top_logprobs=2),
    chat("template options a list", chat_template_kwargs=[1]),
    text("speculation as text", speculation="off"),
    text("speculation with an unknown key", speculation={"enable": False}),
    text("speculation enabled 1", speculation={"enabled": 1}),
    text("more drafts than the server's", speculation={"num_speculative_tokens": 1000}),
    text("no drafts in number", speculation={"num_speculative_tokens": 0}),
    text("a method the server lacks", speculation={"method": "eagle3"}),
    raw("a colon too much", "{: "),
    raw("empty", b""),
    raw("white space", b"  \n"),
    raw("an array", "[]"),
    raw("a number", "5"),
    raw("null", "null"),
    raw("text", '"x"'),
    raw("no end", '{"model": "tiny", "prompt": "a"'),
    raw("something behind it", '{"model": "tiny", "prompt": "a"} x'),
    raw("a key twice", '{"model": "tiny", "prompt": "a", "prompt": "b"}', "prompt"),
    raw("a key twice inside", '{"prompt": "a", "logit_bias": {"5": 1, "5": 2}}'),
    raw("a comment", '{"prompt": "a" /* b */}'),
    raw("a form", "prompt=a&max_tokens=4"),
]  # fmt: skip

ROWS: list[Row] = [
    *EMPTY_PROMPTS, *OUTSIDE, *SEEDS, *NUMBERS, *BYTES, *DEEP, *DEAD_ENDS, *HUGE, *UNSUPPORTED,
    *TYPES,
]  # fmt: skip
