"""JSON Schema: what each keyword lets through and what it does not, to the byte.

The keywords are llguidance's work; that they mean the same with its next version is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.sampling.test_grammar import Bytes, Past
from wager.config import StructuredOutput
from wager.errors import NoTokenLeft, RequestError
from wager.sampling.grammar import Grammar, GrammarMask, prepare

TOKENIZER: Any = Bytes()
ROW = np.zeros(TOKENIZER.vocab_size, np.float32)
Schema = dict[str, Any]


def closed(**properties: Any) -> Schema:
    """An object with these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": False}  # fmt: skip


TREE = closed(v={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
LISTS: Schema = {
    "$ref": "#/$defs/list",
    "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}},
}
CASES: list[tuple[Schema, list[str], list[str]]] = [
    ({"const": {"a": [1, None]}}, ['{"a":[1,null]}'], ['{"a":[1]}', "null"]),
    ({"const": 'a"b\\\n'}, [json.dumps('a"b\\\n')], ['"a"']),
    ({"enum": [1, "a", None, True]}, ["1", '"a"', "null", "true"], ["2", "false", '"b"']),
    ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, ["-3", "true"], ["null", '"3"', "1.5"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, ["7", '"ab"'],
     ['"abc"', "[]"]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["3", "5"], ["2", "6"]),
    ({"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    ({"type": "string", "pattern": "^[a-c]{2}[0-9]$"}, ['"ab1"'], ['"ad1"', '"ab"', '"ab12"']),
    ({"type": "string", "pattern": "b+"}, ['"abc"', '"b"'], ['"ac"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-13-01"', '"today"']),
    ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"강물é"'], ['"a"', '"abcd"']),
    ({"type": "string"}, ['""', '"\\u001f\\n\\""', '"🙂"'], ['"\\x"', '"\\u00g1"', '"\n"', '"a']),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
     ["[1]", "[1, 2,3]"], ["[]", "[1,2,3,4]", '["1"]']),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False,
      "minItems": 2}, ['[1,"a"]'], ["[1]", '["a",1]', '[1,"a",2]']),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 1.5}, ["0", "1.25"],
     ["-0.1", "1.5", "2", '"1"']),
    ({"type": "number"}, ["-1.5e3", "0", "10"], ["+1", ".5", "NaN", "1.", "01"]),
    ({"type": "integer", "multipleOf": 5}, ["10", "0"], ["7"]),
    (TREE, ['{"v":1,"next":{"v":2,"next":null}}'], ['{"v":1,"next":{"v":2}}', '{"v":1}']),
    (LISTS, ["[]", "[[],[[]]]"], ["[1]", "{}"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a":1,"b":2}'],
     ['{"a":"x"}']),
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}},
      "additionalProperties": False}, ["{}", '{"x1":1}'], ['{"y":1}', '{"x":"1"}']),
    ({**closed(a={"type": "integer"}, b={"type": "integer"}), "required": ["b"]},
     ['{"b":1}', '{"a":1,"b":2}'], ['{"a":1}', "{}", '{"b":1,"c":2}']),
]  # fmt: skip
UNKNOWN: list[Schema] = [
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}},
    {"not": {"type": "integer"}},
    {"if": {"type": "integer"}, "then": {"minimum": 3}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"$ref": "#/$defs/nowhere"},
]


def grammar(schema: Schema) -> Grammar:
    return prepare(TOKENIZER, (0,), StructuredOutput("json_schema", json.dumps(schema)))


def passes(schema: Schema, text: str) -> bool:
    """Whether the whole text may be written, and the answer may end there."""
    subject = GrammarMask(grammar(schema), (0,))
    written: Sequence[int] = text.encode()
    for number, byte in enumerate(written, 1):
        try:
            ended = subject.advance(1 + byte)
        except NoTokenLeft:
            return False
        if ended:
            return number == len(written)
    return bool(np.isfinite(subject(ROW, Past())[0]))


def holds(schema: Schema, text: str) -> bool:
    """What the standard says."""
    try:
        value = json.loads(text, parse_constant=int)
    except ValueError:
        return False
    checks = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checks).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "good", "bad"), CASES, ids=[str(case[0])[:60] for case in CASES]
)
def test_keywords(schema: Schema, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert holds(schema, text), text
        assert passes(schema, text), text
    for text in bad:
        assert not holds(schema, text), text
        assert not passes(schema, text), text


@pytest.mark.parametrize("schema", UNKNOWN, ids=str)
def test_what_is_not_known_is_refused(schema: Schema) -> None:
    with pytest.raises(RequestError):
        grammar(schema)
