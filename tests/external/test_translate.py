"""`translate` over a table of lines from guides: what is said, and what is written, exactly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wager.errors import ConfigError
from wager.external.dialects import ENGINES
from wager.external.translate.forms import Form
from wager.external.translate.understand import as_json, translate

HEAVY = {"numpy", "torch", "transformers", "tokenizers", "gguf", "huggingface_hub", "httpx2"}


@dataclass(frozen=True)
class Case:
    """A line of a guide; ``says`` are its errors and warnings, ``forms`` the first line of each."""

    text: str
    engine: str
    asks: dict[str, Any] | None
    says: list[str]
    forms: dict[str, str]


CASES = [
    Case(**case)
    for case in json.loads(Path(__file__).with_name("translate_cases.json").read_text())
]


def first(form: Form) -> str:
    if form.error is not None:
        return f"no: {form.error}"
    return form.modelfile or form.commands[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text[:70].replace("\n", " "))
def test_table(case: Case) -> None:
    found = translate(case.text)
    reading = found.reading
    assert reading.engine == case.engine
    assert (None if reading.speculation is None else reading.speculation.config()) == case.asks
    said = [f"{f.severity} {f.what}" for f in reading.findings if f.severity != "note"]
    assert said == case.says
    assert {form.engine: first(form) for form in found.forms} == case.forms


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text[:70].replace("\n", " "))
def test_what_is_written_is_read_back_without_an_error(case: Case) -> None:
    for form in translate(case.text).forms:
        if form.error is not None or form.engine == "own":
            continue
        text = form.modelfile or form.commands[0]
        again = translate(text, form.engine)
        assert again.reading.engine == form.engine
        errors = [f for f in again.reading.findings if f.severity == "error"]
        assert not errors, (text, errors)
        assert first(again.forms[0]) == text


def one(text: str, word: str) -> str:
    """The text of the one finding about ``word``."""
    (found,) = [f.text for f in translate(text).reading.findings if f.what == word]
    return found


def test_why_a_drafter_path_does_not_belong_to_vllm() -> None:
    text = """vllm serve T -sc '{"method":"dspark","model":"H"}' --speculative-draft-model-path H"""
    assert "an option of SGLang" in one(text, "--speculative-draft-model-path H")
    assert "here it is --spec-model" in one(text, "--speculative-draft-model-path H")


def test_a_lookup_without_its_file_swallows_the_next_option() -> None:
    said = one("llama-server -m T.gguf --draft ngram --lookup-cache-static --port 9000",
               "--lookup-cache-static")  # fmt: skip
    assert "takes whatever follows for it, the next option too" in said


def test_one_lookup_bound_is_copied() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 7}'
    assert "only repeats of exactly 7 tokens" in one(text, "prompt_lookup_min")


def test_the_old_flags_took_one_for_the_shortest() -> None:
    text = "--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4"
    assert "it was 1 in the versions" in one(text, "prompt_lookup_min")


def test_notes_name_every_option_that_is_left_out() -> None:
    text = '{"method":"draft_model","model":"D","num_speculative_tokens":4,"moe_backend":"x"}'
    (form,) = translate(text, "llamacpp").forms
    assert any("moe_backend 'x' is left out" in note for note in form.notes)


def test_options_of_another_kind_stay_with_their_engine() -> None:
    text = "vllm serve M --dtype float32 --spec-method suffix --max-model-len 512"
    vllm, llamacpp = translate(text, "vllm").forms[0], translate(text, "llamacpp").forms[0]
    assert vllm.commands[0].startswith("vllm serve M --dtype float32 --max-model-len 512 ")
    assert llamacpp.error is not None
    (ngram,) = translate(text.replace("suffix", "ngram --spec-tokens 3"), "llamacpp").forms
    assert "left out, as options of vLLM: --dtype float32 --max-model-len 512" in ngram.notes


def test_a_call_of_python_keeps_its_other_keywords_where_a_call_is_written() -> None:
    text = 'sgl.Engine(model_path="M", tp_size=2, speculative_algorithm="NGRAM")'
    (sglang,) = translate(text, "sglang").forms
    assert sglang.commands[0].startswith("python -m sglang.launch_server --model-path M --spec")
    assert "left out, as options of SGLang: tp_size=2" in sglang.notes
    text = 'LLM("M", dtype="float32", speculative_config={"method": "suffix"})'
    (vllm,) = translate(text, "vllm").forms
    assert vllm.commands == ("LLM('M', dtype='float32', speculative_config={'method': 'suffix'})",)


@pytest.mark.parametrize("command", ["", "wager run M -sc "])
def test_a_list_of_methods_is_wagers(command: str) -> None:
    config = '{"method": ["suffix", "ngram"], "num_speculative_tokens": 8, "verify": "match"}'
    found = translate(f"{command}'{config}'" if command else config)
    assert found.reading.engine == "own"
    assert not [f for f in found.reading.findings if f.severity == "error"]
    forms = {form.engine: form for form in found.forms}
    assert '"method":["suffix","ngram"]' in forms["own"].commands[0]
    assert [engine for engine, form in forms.items() if form.error is None] == ["own"]
    (wrong,) = [
        f.text
        for f in translate(config.replace("suffix", "medusa")).reading.findings
        if f.severity == "error"
    ]
    assert "does not draft this way yet" in wrong


def test_words_of_a_shell_are_read_as_one_command() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4}'
    words = ["vllm", "serve", "M", "--speculative-config", config]
    assert translate(words).reading.speculation == translate(config).reading.speculation


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "nothing to read"),
        ("   ", "nothing to read"),
        ("hello world", "'hello'"),
        ("--frequency-penalty 3", "--frequency-penalty"),
        ('{"a": 1}', "a"),
        ("{}", "empty"),
        ("{", "not valid JSON"),
        ("[1, 2]", "[1,"),
        ("vllm serve M --speculative-config 'nonsense'", "'nonsense'"),
        ("vllm serve 'M", "quotation"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_word(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(word)) as caught:
        translate(text)
    assert "\n" not in str(caught.value)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of vllm, llamacpp"):
        translate("--draft-max 3", "tgi")


def test_json_holds_everything_that_is_shown() -> None:
    found = translate("--draft-max 3")
    told = as_json(found)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert [form["engine"] for form in told["forms"]] == list(ENGINES)
    assert told["speculative_config"] == {
        "method": "draft_model", "num_speculative_tokens": 3, "model": "DRAFTER.gguf",
    }  # fmt: skip
    assert told["target"] is None
    assert {"severity", "what", "text"} == set(told["findings"][0])


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys\nfrom wager.external.translate.understand import translate\n"
        "translate('--draft-max 3')\nprint(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "wager.external.translate.understand" in loaded
    assert not loaded & (HEAVY | {"wager._native"})
